"""
Observers: they are notified of what happens in an operator, e.g. for metrics and traces.

Kopf calls the observer when an action begins, in the context in which the action runs: so, the
context variables that the observer sets are visible in the handlers, also in threads. The observer
returns a function. Kopf calls this function in the same context when the action ends: with its
result, its error, or its cancellation.
"""
import asyncio
import enum
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kopf._cogs.structs import bodies, references
from kopf._core.actions import progression
from kopf._core.intents import causes, handlers

logger = logging.getLogger('kopf._core.actions.observers')

P = ParamSpec('P')
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


class Passage(enum.Enum):
    """What happens to an object in the work queue."""

    QUEUED = enum.auto()
    """The object waits from now on, unless it waits already."""

    DROPPED = enum.auto()
    """The object does not wait any more, though nobody has processed it."""

    STARTED = enum.auto()
    """Its processing begins."""

    ENDED = enum.auto()
    """Its processing has ended."""


class Observer(Protocol):
    """
    The interface of observers. Kopf calls the methods in the event loop, so they must not block.

    If an observer fails, the observed action continues. Kopf logs only the first error. A method
    that a subclass does not override is never called.
    """

    def attempt(self, handler: handlers.Handler, cause: causes.Cause) -> Ended[progression.Outcome]:
        """
        A handler is about to be called, unless its limits are exceeded.

        The outcome contains the error of the handler; the error argument is only for
        cancellations. The attempts of sub-handlers happen within the attempt of their parent.
        """

    def omission(
            self, handler: handlers.ResourceHandler, resource: references.Resource,
            body: bodies.Body, reason: str,
    ) -> None:
        """
        A handler is not called for an object in this state, though it would be called otherwise:
        the object does not fit its types, or its filter fails.
        """

    def passage(self, resource: references.Resource, key: Hashable, passage: Passage) -> None:
        """
        An object gets into the work queue, or through it, or out of it. The ``key`` identifies the
        object until it is out of the queue.
        """

    def reconciliation(self, resource: references.Resource, raw: bodies.RawBody) -> Ended[Sequel]:
        """
        A reconciliation of an object in this state begins.

        If an error ends the reconciliation, Kopf throttles the object, unless the object is gone.
        """

    def write(
            self, resource: references.Resource, raw: bodies.RawBody, *,
            content_type: str, subresource: str | None = None,
    ) -> Ended[bodies.RawBody]:
        """
        A patch of an object in this state is about to be sent. ``content_type`` is ``'merge'`` or
        ``'json'``; for owned resources, ``'apply'`` or ``'delete'``, and the uid may be unknown.

        The result is the newest state of the object, or None if the object does not exist.
        """


class Notifier:
    """Notifies the observers of actions, and logs the errors of the observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._failed: set[int] = set()
        """The ids (``id()``) of the observers that have failed."""
        self._methods: dict[object, list[tuple[Observer, Callable[..., Any]]]] = {
            # The first observer is notified first of beginnings, and last of ends.
            plain: [
                (observer, getattr(observer, plain.__name__)) for observer in reversed(observers)
                if getattr(type(observer), plain.__name__) is not plain]
            for plain in (
                Observer.attempt, Observer.omission, Observer.passage, Observer.reconciliation,
                Observer.write)}

    def omission(
            self, handler: handlers.ResourceHandler, resource: references.Resource,
            body: bodies.Body, reason: str,
    ) -> None:
        for observer, note in self._methods[Observer.omission]:
            try:
                note(handler, resource, body, reason)
            except Exception as failure:
                self._complain(observer, failure)

    def passage(self, resource: references.Resource, key: Hashable, passage: Passage) -> None:
        for observer, note in self._methods[Observer.passage]:
            try:
                note(resource, key, passage)
            except Exception as failure:
                self._complain(observer, failure)

    def follow(
            self,
            method: Callable[Concatenate[Any, P], Ended[T]],
            work: Coroutine[Any, Any, T],
            *args: P.args,
            **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, T]:
        """Do the work, and notify the observers by this method, which gets the other arguments."""
        for observer, begin in self._methods[method]:
            work = self._follow(observer, functools.partial(begin, *args, **kwargs), work)
        return work

    async def _follow(
            self, observer: Observer, begin: Callable[[], Ended[T]], work: Awaitable[T],
    ) -> T:
        """
        Do the work, and notify one observer.

        This is done for each event of each object, so it is rather quick than short.
        """
        try:
            end = begin()
        except Exception as failure:
            self._complain(observer, failure)
            return await work
        time = asyncio.get_running_loop().time
        began = time()
        try:
            result = await work
        except BaseException as e:
            seconds = time() - began
            try:
                end(None, e, seconds)
            except Exception as failure:
                self._complain(observer, failure)
            raise
        seconds = time() - began
        try:
            end(result, None, seconds)
        except Exception as failure:
            self._complain(observer, failure)
        return result

    def _complain(self, observer: Observer, e: Exception) -> None:
        if id(observer) not in self._failed:
            self._failed.add(id(observer))
            logger.error(f"The observer {observer!r} has failed: {e!r}. Handling goes on. More "
                         f"errors of this observer are not logged.", exc_info=e)


NOBODY = Notifier(())
"""For operators without observers."""
