"""
The ``stopped`` flags of daemons and timers, for threads and for coroutines.

Kopf keeps the object that sets a flag; the handler gets an object that waits for the flag.
"""
import abc
import asyncio
import enum
import threading
from typing import Any, Self

from kopf._cogs.aiokits import clocks


class DaemonStoppingReason(enum.Flag):
    """
    Why a daemon or a timer has to stop: a combination of these flags.

    At first, it is only the reason: what has happened to the object or to the operator. The stages
    of stopping (``DAEMON_…``) are added later if the handler continues. Whatever the reason is, the
    handler must exit.
    """

    DONE = enum.auto()
    """The handler has exited on its own. Kopf never sets it; it is kept for compatibility."""

    FILTERS_MISMATCH = enum.auto()
    """The object does not match the filters of the handler any more."""

    RESOURCE_DELETED = enum.auto()
    """The object is being deleted, or is gone."""

    OPERATOR_PAUSING = enum.auto()
    """The operator is paused in favour of another operator of the peering."""

    OPERATOR_EXITING = enum.auto()
    """The operator exits, or does not handle the resource or the namespace any more."""

    DAEMON_SIGNALLED = enum.auto()
    """The first stage: the handler did not exit at once; its ``cancellation_backoff`` begins."""

    DAEMON_CANCELLED = enum.auto()
    """
    The second stage: the task of an asynchronous handler is cancelled.

    A synchronous handler cannot be cancelled: this flag is all it can notice.
    """

    DAEMON_ABANDONED = enum.auto()
    """The last stage: the handler did not exit, and Kopf does not wait for it any more."""

    RESOURCE_PAUSED = enum.auto()  # the others have the values of Kopf 1
    """Somebody has paused the object. It is a reason, not a stage."""


_events_lock = threading.Lock()


class DaemonStopper:
    """
    Kopf's side of a flag. It can be set several times; the reasons are combined.

    It is set in the thread of the event loop, and read in any thread. The events to wait for are
    made on demand: most flags are never waited for.
    """
    __slots__ = ('_async_event', '_sync_event', 'reason')

    def __init__(self) -> None:
        self.reason: DaemonStoppingReason | None = None
        self._sync_event: threading.Event | None = None
        self._async_event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self.reason is not None

    def set(self, reason: DaemonStoppingReason) -> None:
        with _events_lock:
            self.reason = reason if self.reason is None else self.reason | reason
            if self._sync_event is not None:
                self._sync_event.set()
        if self._async_event is not None:
            self._async_event.set()

    @property
    def sync_event(self) -> threading.Event:
        with _events_lock:
            if self._sync_event is None:
                self._sync_event = threading.Event()
                if self.reason is not None:
                    self._sync_event.set()
            return self._sync_event

    @property
    def async_event(self) -> asyncio.Event:
        if self._async_event is None:
            self._async_event = asyncio.Event()
            if self.reason is not None:
                self._async_event.set()
        return self._async_event

    def make_waiter(self, *, is_async: bool) -> 'DaemonStopped':
        if is_async:
            return AsyncDaemonStopperChecker(self)
        if self._sync_event is None and (flag := clocks.make_flag()) is not None:
            self._sync_event = flag
            if self.is_set():
                flag.set()
        return SyncDaemonStopperChecker(self)


class DaemonStopped(abc.ABC):
    """
    The handler's side of a flag. It is true in boolean expressions if it is set.

    A flag is never reset. When it is set, the handler should exit as soon as possible.
    """
    __slots__ = ('_setter',)

    def __init__(self, setter: DaemonStopper, /) -> None:
        self._setter = setter

    def __repr__(self) -> str:
        return f'<{self.__class__.__name__}: {self.reason or "not set"}>'

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        return self._setter.is_set()

    @property
    def reason(self) -> DaemonStoppingReason | None:
        """The combination of all reasons so far; None if the flag is not set."""
        return self._setter.reason

    @abc.abstractmethod
    def wait(self, timeout: float | None = None) -> Any:
        """
        Wait until the flag is set, for ``timeout`` seconds at most (None: no limit).

        Returns the flag itself, which is true if it is set. In coroutines, use ``await``. Use this
        method instead of sleeping, so that the handler can exit at once.
        """


class SyncDaemonStopperChecker(DaemonStopped):
    """A flag for synchronous handlers."""
    __slots__ = ()

    def wait(self, timeout: float | None = None) -> Self:
        self._setter.sync_event.wait(timeout)
        return self


class AsyncDaemonStopperChecker(DaemonStopped):
    """A flag for asynchronous handlers."""
    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> Self:
        try:
            async with asyncio.timeout(timeout):  # noqa: TID251 (a cancelled task has its flag set)
                await self._setter.async_event.wait()
        except TimeoutError:
            pass
        return self
