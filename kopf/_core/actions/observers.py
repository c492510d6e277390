"""
Observers: they are notified of what happens in an operator, e.g. for metrics and traces.

Kopf calls the observer when an action begins, in the context in which the action runs: so, the
context variables that the observer sets are visible in the handlers, also in threads. The observer
returns a function. Kopf calls this function in the same context when the action ends: with its
result, its error, or its cancellation.
"""
import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from kopf._cogs.structs import bodies, references
from kopf._core.actions import progression
from kopf._core.intents import causes, handlers

logger = logging.getLogger('kopf._core.actions.observers')

T = TypeVar('T')

Ended = Callable[[T | None, BaseException | None, float], None]
"""
Kopf calls this function with the result, the error, and the duration in seconds.

If there is an error, the result is None. The error can be a cancellation.
"""


class Sequel(enum.Enum):
    """What follows after a reconciliation without an error."""

    REST = enum.auto()
    """Nothing until the object changes."""

    LATER = enum.auto()
    """The object is reconciled again at some time, e.g. to retry a handler."""

    AGAIN = enum.auto()
    """The object is reconciled again as soon as possible, as there is news."""


class Identity(NamedTuple):
    """The identity of an object. Objects under an admission review can lack parts of it."""
    namespace: str | None
    name: str | None
    uid: str | None


class Observer(Protocol):
    """
    The interface of observers. Kopf calls the methods in the event loop, so they must not block.

    If an observer fails, the observed action continues. Kopf logs only the first error.
    """

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
    ) -> Ended[progression.Outcome]:
        """
        A handler is about to be called, unless its limits are exceeded.

        The outcome contains the error of the handler; the error argument is only for
        cancellations. The attempts of sub-handlers happen within the attempt of their parent.
        """

    def reconciliation(self, resource: references.Resource, identity: Identity) -> Ended[Sequel]:
        """
        A reconciliation of an object begins.

        If an error ends the reconciliation, Kopf throttles the object, unless the object is gone.
        """

    def write(
            self, resource: references.Resource, identity: Identity, *,
            content_type: str, subresource: str | None,
    ) -> Ended[bodies.RawBody]:
        """
        A patch of an object is about to be sent. ``content_type`` is ``'merge'`` or ``'json'``; for
        owned resources, ``'apply'`` or ``'delete'``, and the uid can be unknown yet.

        The result is the newest state of the object, or None if the object does not exist.
        """


class Telling:
    """Notifies the observers of actions, and logs the errors of the observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        super().__init__()
        self.observers = observers
        self._failed: set[int] = set()
        """The indices of the observers that have failed."""

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
            work: Awaitable[progression.Outcome],
    ) -> Coroutine[Any, Any, progression.Outcome]:
        return self._follow(work, lambda observer: observer.attempt(handler, cause))

    def reconciliation(
            self, resource: references.Resource, raw: bodies.RawBody, work: Awaitable[Sequel],
    ) -> Coroutine[Any, Any, Sequel]:
        return self._follow(
            work, lambda observer: observer.reconciliation(resource, identify(raw)))

    def write(
            self, resource: references.Resource, raw: bodies.RawBody,
            work: Awaitable[bodies.RawBody | None], *,
            content_type: str, subresource: str | None,
    ) -> Coroutine[Any, Any, bodies.RawBody | None]:
        return self._follow(work, lambda observer: observer.write(
            resource, identify(raw), content_type=content_type, subresource=subresource))

    async def _follow(
            self, work: Awaitable[T], begin: Callable[[Observer], Ended[Any]],
    ) -> T:
        """Do the work, and notify the observers; in the reverse order at the end."""
        loop = asyncio.get_running_loop()
        ends: list[tuple[int, Ended[Any]]] = []
        for number, observer in enumerate(self.observers):
            try:
                ends.append((number, begin(observer)))
            except Exception as e:
                self._complain(number, e)
        began = loop.time()
        try:
            result = await work
        except BaseException as e:
            self._end(ends, None, e, loop.time() - began)
            raise
        self._end(ends, result, None, loop.time() - began)
        return result

    def _end(
            self, ends: Sequence[tuple[int, Ended[Any]]],
            result: object, error: BaseException | None, seconds: float,
    ) -> None:
        for number, end in reversed(ends):
            try:
                end(result, error, seconds)
            except Exception as e:
                self._complain(number, e)

    def _complain(self, number: int, e: Exception) -> None:
        if number not in self._failed:
            self._failed.add(number)
            logger.error(f"The observer {self.observers[number]!r} has failed: {e!r}. Handling "
                         f"goes on. More errors of this observer are not logged.", exc_info=e)


def identify(raw: bodies.RawBody) -> Identity:
    meta = raw['metadata']
    return Identity(meta.get('namespace'), meta.get('name'), meta.get('uid'))
