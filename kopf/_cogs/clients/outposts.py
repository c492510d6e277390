"""
Outposts: threads that keep Leases, with an event loop and connections of their own.

The handlers of an operator can block its event loop for any time. The thread must renew its Leases
meanwhile. So, the thread shares nothing with the event loop of the operator but what needs no
locks, and the credentials, which it borrows when it has none that are valid.

In virtual time, no time passes while handlers block the event loop, so there is no thread: what is
done "in the thread" is done in the event loop of the operator, by its clock.
"""
import asyncio
import concurrent.futures
import contextlib
import dataclasses
import datetime
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from kopf._cogs.aiokits import clocks, tasks, timeouts
from kopf._cogs.clients import api, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

MIN_RELEASE_TIME = 1.0
"""How long (seconds) the release of the Leases can take at least, however late the exit is."""

EXIT_TIMEOUT = 1.0
"""How long (seconds) to wait for the end of the thread, after the time to release the Leases."""


class Duty(Protocol):
    """What is done in the thread."""

    async def run(self) -> None:
        """Keep the Leases until cancelled."""

    async def release(self) -> None:
        """Give the Leases away. It is called after `run` has ended."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Outpost:
    """
    A thread with one duty. `start`, `call`, and `stop` are called in the operator's event loop.

    ``assign`` makes the duty, in the thread. ``on_end`` is called there if the duty has failed.
    ``on_change`` is called in the operator's event loop: when `notify` was called in the thread,
    and when the thread has failed or ended.
    """
    name: str
    assign: Callable[[api.Client], Duty]
    settings: configuration.OperatorSettings
    vault: vaults.Vault
    on_change: Callable[[], None]
    on_end: Callable[[], None]

    def __post_init__(self) -> None:
        self._operator = asyncio.get_running_loop()
        self._lent: credentials.Credentials | None = None
        is_virtual = clocks.is_virtual()
        self._loop = self._operator if is_virtual else asyncio.SelectorEventLoop()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stopping = asyncio.Event()
        self._time_to_release: float | None = None

    def start(self) -> None:
        if self._loop is self._operator:
            self._task = self._loop.create_task(self._serve(), name=self.name)
            self._task.add_done_callback(lambda task: self._end(task.result))
        else:
            threading.Thread(
                target=self._end, args=[self._run], name=self.name, daemon=True).start()

    def check(self) -> None:
        """
        Raise the error of the thread if it has failed.

        :raises Exception: a bug; errors of the API are retried.
        """
        if self._ended.done():
            self._ended.result()

    def call(self, fn: Callable[[], None]) -> None:
        """Call the function in the thread soon, unless the thread has ended."""
        with contextlib.suppress(RuntimeError):  # the thread has ended, and its loop is closed
            self._loop.call_soon_threadsafe(fn)

    async def stop(self, *, release_by: float | None) -> None:
        """
        End the duty, and release the Leases by that time of the event loop; None to keep them.
        """
        left = 0.0
        if release_by is not None:
            left = self._time_to_release = max(MIN_RELEASE_TIME, release_by - self._operator.time())
        self.call(self._stopping.set)
        ended = asyncio.wrap_future(self._ended)
        await asyncio.wait([ended], timeout=left + EXIT_TIMEOUT)
        if ended.done():
            ended.exception()  # which `check` has raised, or which comes too late to matter

    # In the thread.

    def notify(self) -> None:
        """Let ``on_change`` be called in the operator's event loop."""
        with contextlib.suppress(RuntimeError):  # the operator has ended, and its loop is closed
            self._operator.call_soon_threadsafe(self.on_change)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def _end(self, get_result: Callable[[], None]) -> None:
        try:
            get_result()
        except BaseException as e:
            self.on_end()
            self._ended.set_exception(e)
        else:
            self._ended.set_result(None)
        self.notify()

    async def _serve(self) -> None:
        vault = vaults.Vault(login=self._borrow)
        async with api.Client(credentials=vault, settings=self.settings) as client:
            duty = self.assign(client)
            running = asyncio.create_task(duty.run())
            waiting = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
            await tasks.cancel([running, waiting])
            if not running.cancelled():
                running.result()
            if self._time_to_release is not None:
                with contextlib.suppress(TimeoutError):
                    async with timeouts.timeout(self._time_to_release):
                        await duty.release()

    async def _borrow(self) -> Mapping[str, credentials.Credentials]:
        """Get the credentials of the operator, if the former ones are rejected or expired."""
        lending = asyncio.run_coroutine_threadsafe(self._lend(self._lent), self._operator)
        lent = self._lent = await asyncio.wrap_future(lending)
        return {'': lent}

    # In the operator's event loop again.

    async def _lend(self, former: credentials.Credentials | None) -> credentials.Credentials:
        now = datetime.datetime.now(datetime.UTC)
        if former is not None and self.vault.holds(former) and not former.is_expired(now):
            self.vault.invalidate(former)
        return await self.vault.obtain()
