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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from kopf._cogs.structs import bodies, references
from kopf._core.actions import progression
from kopf._core.intents import causes, handlers

logger = logging.getLogger('kopf._core.actions.observers')

T = TypeVar('T')

NO_OPTIONS: Mapping[str, Any] = {}

_Method = tuple[Any, Callable[..., Any]]
"""An observer and one of its methods."""

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

    If an observer fails, the observed action continues. Kopf logs only the first error. A class
    whose method is that of this class is not notified by that method.
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
        """The ids (``id()``) of the observers that have failed."""
        self._attempt = self._find_methods('attempt')
        self._reconciliation = self._find_methods('reconciliation')
        self._write = self._find_methods('write')

    def _find_methods(self, name: str) -> list[_Method]:
        plain = getattr(Observer, name)
        methods: list[_Method] = []
        for observer in self.observers:
            try:
                if getattr(type(observer), name) is not plain:
                    methods.append((observer, getattr(observer, name)))
            except AttributeError as e:
                self._complain(observer, e)
        return methods

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
            work: Coroutine[Any, Any, progression.Outcome],
    ) -> Coroutine[Any, Any, progression.Outcome]:
        return self._follow(self._attempt, work, (handler, cause)) if self._attempt else work

    def reconciliation(
            self, resource: references.Resource, raw: bodies.RawBody,
            work: Awaitable[Any], find_sequel: Callable[[], Sequel],
    ) -> Awaitable[Any]:
        if not self._reconciliation:
            return work
        return self._follow(
            self._reconciliation, work, (resource, identify(raw)), find_result=find_sequel)

    def write(
            self, resource: references.Resource, raw: bodies.RawBody,
            work: Coroutine[Any, Any, bodies.RawBody | None], *,
            content_type: str, subresource: str | None,
    ) -> Coroutine[Any, Any, bodies.RawBody | None]:
        if not self._write:
            return work
        return self._follow(self._write, work, (resource, identify(raw)), options={
            'content_type': content_type, 'subresource': subresource})

    async def _follow(
            self,
            methods: Sequence[_Method],
            work: Awaitable[T],
            args: tuple[Any, ...],
            *,
            options: Mapping[str, Any] = NO_OPTIONS,
            find_result: Callable[[], object] | None = None,
    ) -> T:
        """
        Do the work, and notify the observers: at the end, in the reverse order.

        This is done for each event of each object, so it is rather quick than short.
        """
        time = asyncio.get_running_loop().time
        ends: list[tuple[Observer, Ended[Any]]] = []
        for observer, method in methods:
            try:
                ends.append((observer, method(*args, **options)))
            except Exception as e:
                self._complain(observer, e)
        if len(ends) > 1:
            ends.reverse()
        began = time()
        try:
            result = await work
        except BaseException as e:
            seconds = time() - began
            for observer, end in ends:
                try:
                    end(None, e, seconds)
                except Exception as failure:
                    self._complain(observer, failure)
            raise
        seconds = time() - began
        told: Any = result if find_result is None else find_result()
        for observer, end in ends:
            try:
                end(told, None, seconds)
            except Exception as failure:
                self._complain(observer, failure)
        return result

    def _complain(self, observer: Observer, e: Exception) -> None:
        if id(observer) not in self._failed:
            self._failed.add(id(observer))
            logger.error(f"The observer {observer!r} has failed: {e!r}. Handling goes on. More "
                         f"errors of this observer are not logged.", exc_info=e)


def name_outcome(outcome: progression.Outcome | None) -> str:
    """Name the outcome of an attempt, e.g. as a label; None is a cancellation."""
    if outcome is None:
        return 'cancelled'
    if outcome.exception is None:
        return 'success'
    return 'failure' if outcome.final else 'waiting' if outcome.waiting else 'retry'


def identify(raw: bodies.RawBody) -> Identity:
    meta = raw['metadata']
    return Identity(meta.get('namespace'), meta.get('name'), meta.get('uid'))
