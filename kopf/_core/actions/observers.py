"""
Observers: they are notified of what happens in an operator, e.g. for metrics and traces.

Kopf calls the observer when an action begins, in the context in which the action runs: so, the
context variables that the observer sets are visible in the handlers, also in threads. The observer
returns a function. Kopf calls this function in the same context when the action ends: with its
result, its error, or its cancellation.
"""
import asyncio
import logging
from collections.abc import Awaitable, Callable
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

    def reconciliation(self, resource: references.Resource, identity: Identity) -> Ended[None]:
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
    """Notifies an observer of actions, and logs the observer's errors."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer
        self._has_failed = False

    async def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
            work: Awaitable[progression.Outcome],
    ) -> progression.Outcome:
        return await self._follow(work, lambda: self._observer.attempt(handler, cause))

    async def reconciliation(
            self, resource: references.Resource, raw: bodies.RawBody, work: Awaitable[None],
    ) -> None:
        await self._follow(
            work, lambda: self._observer.reconciliation(resource, identify(raw)))

    async def write(
            self, resource: references.Resource, raw: bodies.RawBody,
            work: Awaitable[bodies.RawBody | None], *,
            content_type: str, subresource: str | None,
    ) -> bodies.RawBody | None:
        return await self._follow(work, lambda: self._observer.write(
            resource, identify(raw), content_type=content_type, subresource=subresource))

    async def _follow(self, work: Awaitable[T], begin: Callable[[], Ended[Any]]) -> T:
        loop = asyncio.get_running_loop()
        ended = self._tell(begin)
        began = loop.time()

        def end(result: T | None, error: BaseException | None) -> None:
            if ended is not None:
                self._tell(lambda: ended(result, error, loop.time() - began))

        try:
            result = await work
        except BaseException as e:
            end(None, e)
            raise
        end(result, None)
        return result

    def _tell(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception as e:
            if not self._has_failed:
                self._has_failed = True
                logger.error(f"The observer {self._observer!r} has failed: {e!r}. Handling goes "
                             f"on. More errors of this observer are not logged.", exc_info=True)
            return None


def identify(raw: bodies.RawBody) -> Identity:
    meta = raw['metadata']
    return Identity(meta.get('namespace'), meta.get('name'), meta.get('uid'))
