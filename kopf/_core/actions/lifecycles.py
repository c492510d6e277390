"""
Lifecycles: which of the handlers that are due are executed now, and in which order.

A lifecycle is a function that gets the handlers and the kwargs of their cause, and returns
some of the handlers. The rest is taken in the next turns.
"""
import random
from collections.abc import Sequence
from typing import Any, Protocol

from kopf._core.actions import progression
from kopf._core.intents import handlers as handlers_


class LifeCycleFn(Protocol):
    def __call__(
            self,
            handlers: Sequence[handlers_.Handler],
            *,
            state: progression.State,
            **kwargs: Any,
    ) -> Sequence[handlers_.Handler]: ...


def all_at_once(handlers: Sequence[handlers_.Handler], **_: Any) -> Sequence[handlers_.Handler]:
    """All handlers, one after another, in the order of their declaration."""
    return handlers


def one_by_one(handlers: Sequence[handlers_.Handler], **_: Any) -> Sequence[handlers_.Handler]:
    """Only the first handler."""
    return handlers[:1]


def randomized(handlers: Sequence[handlers_.Handler], **_: Any) -> Sequence[handlers_.Handler]:
    """Any one handler."""
    return [random.choice(handlers)] if handlers else []


def shuffled(handlers: Sequence[handlers_.Handler], **_: Any) -> Sequence[handlers_.Handler]:
    """All handlers in a random order."""
    return random.sample(handlers, k=len(handlers))


def asap(
        handlers: Sequence[handlers_.Handler],
        *,
        state: progression.State,
        **_: Any,
) -> Sequence[handlers_.Handler]:
    """The one handler with the fewest attempts so far: those that work come first."""
    if len(handlers) < 2:
        return handlers
    return [min(handlers, key=lambda handler: state.retries_of(handler.id))]


_default_lifecycle: LifeCycleFn = asap


def get_default_lifecycle() -> LifeCycleFn:
    return _default_lifecycle


def set_default_lifecycle(lifecycle: LifeCycleFn | None) -> None:
    """Set the lifecycle for all operators that are run without one; None brings back `asap`."""
    global _default_lifecycle
    _default_lifecycle = lifecycle if lifecycle is not None else asap
