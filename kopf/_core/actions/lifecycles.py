"""
Lifecycles: which of the due handlers of an object are called now, and in which order.

A lifecycle is a function. It gets the due handlers and the kwargs of their cause, and returns some
of the handlers. Later, it is called again for the other handlers.
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
    """
    Call all due handlers, one after another, in the order of their declaration.

    ::

        kopf.run(clusterwide=True, lifecycle=kopf.lifecycles.all_at_once)

    See "Embed an operator in a program" in the documentation.

    :param handlers: the due handlers.
    """
    return handlers


def one_by_one(handlers: Sequence[handlers_.Handler], **_: Any) -> Sequence[handlers_.Handler]:
    """
    Call only the first due handler.

    ::

        kopf.run(clusterwide=True, lifecycle=kopf.lifecycles.one_by_one)

    See "Embed an operator in a program" in the documentation.

    :param handlers: the due handlers.
    """
    return handlers[:1]


def randomized(handlers: Sequence[handlers_.Handler], **_: Any) -> Sequence[handlers_.Handler]:
    """
    Call one due handler, selected at random.

    ::

        kopf.run(clusterwide=True, lifecycle=kopf.lifecycles.randomized)

    See "Embed an operator in a program" in the documentation.

    :param handlers: the due handlers.
    """
    return [random.choice(handlers)] if handlers else []


def shuffled(handlers: Sequence[handlers_.Handler], **_: Any) -> Sequence[handlers_.Handler]:
    """
    Call all due handlers in a random order.

    ::

        kopf.run(clusterwide=True, lifecycle=kopf.lifecycles.shuffled)

    See "Embed an operator in a program" in the documentation.

    :param handlers: the due handlers.
    """
    return random.sample(handlers, k=len(handlers))


def asap(
        handlers: Sequence[handlers_.Handler],
        *,
        state: progression.State,
        **_: Any,
) -> Sequence[handlers_.Handler]:
    """
    Call the due handler with the fewest attempts so far. This is the default.

    So, a failing handler does not delay the others.

    ::

        kopf.run(clusterwide=True, lifecycle=kopf.lifecycles.asap)

    See "Embed an operator in a program" in the documentation.

    :param handlers: the due handlers.
    :param state: the progress of the handlers.
    """
    if len(handlers) < 2:
        return handlers
    if state.retries_of(handlers[0].id) == 0:  # usually; no other handler can have fewer
        return handlers[:1]
    return [min(handlers, key=lambda handler: state.retries_of(handler.id))]


_default_lifecycle: LifeCycleFn = asap


def get_default_lifecycle() -> LifeCycleFn:
    """
    Get the lifecycle of operators that run without ``lifecycle=``.

    ::

        kopf.run(clusterwide=True, lifecycle=kopf.get_default_lifecycle())

    See "Embed an operator in a program" in the documentation.
    """
    return _default_lifecycle


def set_default_lifecycle(lifecycle: LifeCycleFn | None) -> None:
    """
    Set the lifecycle of operators that run without ``lifecycle=``.

    ::

        kopf.set_default_lifecycle(kopf.lifecycles.one_by_one)

    See "Embed an operator in a program" in the documentation.

    :param lifecycle: a function of `kopf.lifecycles`, or another function of the same signature.
        `None` restores `kopf.lifecycles.asap`.
    """
    global _default_lifecycle
    _default_lifecycle = lifecycle if lifecycle is not None else asap
