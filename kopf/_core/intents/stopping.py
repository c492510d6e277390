"""
Flags that tell daemons to stop, and why; for threads and for coroutines.

One setter belongs to the framework; its waiters are given to the daemons.
"""
import abc
import asyncio
import enum
import threading
from typing import Any, Generic, Self, TypeVar

FlagT = TypeVar('FlagT', bound=enum.Flag)


class DaemonStoppingReason(enum.Flag):
    """
    Why a daemon or a timer is told to stop: one or several of the reasons.

    Whatever the reason is, the daemon must stop.
    """

    DONE = enum.auto()
    """It has ended by itself."""

    FILTERS_MISMATCH = enum.auto()
    """The object does not match the filters anymore."""

    RESOURCE_DELETED = enum.auto()
    """The object is being deleted, or is deleted already."""

    OPERATOR_PAUSING = enum.auto()
    """Another operator has taken over: the peering."""

    OPERATOR_EXITING = enum.auto()
    """The operator exits."""

    DAEMON_SIGNALLED = enum.auto()
    """The flag is set: the first stage of stopping."""

    DAEMON_CANCELLED = enum.auto()
    """The task is cancelled: the second stage."""

    DAEMON_ABANDONED = enum.auto()
    """It did not stop, and is left alone: the last stage."""


_events_lock = threading.Lock()


class FlagSetter(Generic[FlagT]):
    """
    The framework's side of a flag: set once or several times, with the reasons added up.

    It is set in the thread of the event loop, and is read in any thread. The primitives to wait for
    are made when someone waits: most flags are never waited for.
    """
    __slots__ = ('_async_event', '_sync_event', 'reason')

    def __init__(self) -> None:
        self.reason: FlagT | None = None
        self._sync_event: threading.Event | None = None
        self._async_event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self.reason is not None

    def set(self, reason: FlagT) -> None:
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

    @property
    def sync_waiter(self) -> 'SyncFlagWaiter[FlagT]':
        return SyncFlagWaiter(self)

    @property
    def async_waiter(self) -> 'AsyncFlagWaiter[FlagT]':
        return AsyncFlagWaiter(self)


class FlagWaiter(abc.ABC, Generic[FlagT]):
    """
    A flag as a handler sees it: true in boolean expressions when it is set.

    It is never reset: once it is set, the handler should exit as soon as it can.
    """
    __slots__ = ('_setter',)

    def __init__(self, setter: FlagSetter[FlagT], /) -> None:
        self._setter = setter

    def __repr__(self) -> str:
        return f'<{self.__class__.__name__}: {self.reason or "not set"}>'

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        return self._setter.is_set()

    @property
    def reason(self) -> FlagT | None:
        """Why it is set, all the reasons so far; None until then."""
        return self._setter.reason

    @abc.abstractmethod
    def wait(self, timeout: float | None = None) -> Any:
        """
        Wait for the flag at most that many seconds, instead of sleeping.

        The result is the flag itself: true if it is set by then. Coroutines have to await it.
        """


class SyncFlagWaiter(FlagWaiter[FlagT]):
    """A flag for threads."""
    __slots__ = ()

    def wait(self, timeout: float | None = None) -> Self:
        self._setter.sync_event.wait(timeout)
        return self


class AsyncFlagWaiter(FlagWaiter[FlagT]):
    """A flag for coroutines."""
    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> Self:
        try:
            async with asyncio.timeout(timeout):
                await self._setter.async_event.wait()
        except TimeoutError:
            pass
        return self


DaemonStopper = FlagSetter[DaemonStoppingReason]
DaemonStopped = FlagWaiter[DaemonStoppingReason]
SyncDaemonStopperChecker = SyncFlagWaiter[DaemonStoppingReason]
AsyncDaemonStopperChecker = AsyncFlagWaiter[DaemonStoppingReason]
