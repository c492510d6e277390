"""
Electors: the thread of the election, with an event loop and connections of its own.

The handlers of an operator can block its event loop for any time. The Lease has to be renewed
meanwhile. So, the thread shares nothing with the event loop of the operator but the tenure, which
needs no locks, and the credentials, which it borrows when it has none that are valid.
"""
import asyncio
import concurrent.futures
import contextlib
import datetime
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.clients import api, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials
from kopf._core.engines.leadership import candidacies, electing, tenures

EXIT_TIMEOUT = 1.0
"""How long (seconds) to wait for the end of the thread, after the time to release the Lease."""


class Elector:
    """
    The election of one operator. `start` and `stop` are called in the operator's event loop.

    ``on_change`` is also called there: soon after a term of the tenure has begun or ended, and when
    the thread has failed.
    """

    def __init__(
            self,
            *,
            candidate: electing.Candidate,
            settings: configuration.OperatorSettings,
            vault: vaults.Vault,
            on_change: Callable[[], None],
    ) -> None:
        super().__init__()
        self.tenure: tenures.Tenure = tenures.Tenure()
        self._candidate = candidate
        self._settings = settings
        self._vault = vault
        self._on_change = on_change
        self._operator = asyncio.get_running_loop()
        self._lent: credentials.Credentials | None = None
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = (
            concurrent.futures.Future())
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stopping: asyncio.Event | None = None
        self._time_to_release: float | None = None
        self._thread = threading.Thread(target=self._run, name='kopf-leadership', daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """
        Raise the error of the thread if it has failed.

        :raises Exception: a bug; errors of the API are retried.
        """
        if self._ended.done():
            self._ended.result()

    async def stop(self, *, release_in: float | None) -> None:
        """
        End the candidacy, and release the Lease within that time (seconds); None to keep it.
        """
        self._time_to_release = release_in
        ended = asyncio.wrap_future(self._ended)
        events: list[asyncio.Future[Any]] = [asyncio.wrap_future(self._started), ended]
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        if not self._ended.done():
            with contextlib.suppress(RuntimeError):  # the thread has failed just now
                self._started.result().call_soon_threadsafe(self._stop)
            await asyncio.wait([ended], timeout=(release_in or 0) + EXIT_TIMEOUT)
        if ended.done():
            ended.exception()  # which `check` has raised, or which comes too late to matter

    # In the thread.

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except BaseException as e:
            self.tenure.end()
            if not self._started.done():
                self._started.set_exception(e)
            self._ended.set_exception(e)
        else:
            self._ended.set_result(None)
        self._notify()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        vault = vaults.Vault(login=self._borrow)
        async with api.Client(credentials=vault, settings=self._settings) as client:
            candidacy = candidacies.Candidacy(
                client, candidate=self._candidate, settings=self._settings.leadership,
                tenure=self.tenure, on_change=self._notify)
            running = asyncio.create_task(candidacy.run())
            waiting = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            waiting.cancel()
            await asyncio.wait([running, waiting])
            if not running.cancelled():
                running.result()
            if self._time_to_release is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._time_to_release):
                        await candidacy.release()

    def _stop(self) -> None:
        assert self._stopping is not None
        self._stopping.set()

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the operator has ended, and its loop is closed
            self._operator.call_soon_threadsafe(self._on_change)

    async def _borrow(self) -> Mapping[str, credentials.Credentials]:
        """Get the credentials of the operator, if the former ones are rejected or expired."""
        lending = asyncio.run_coroutine_threadsafe(self._lend(self._lent), self._operator)
        lent = self._lent = await asyncio.wrap_future(lending)
        return {'': lent}

    # In the operator's event loop again.

    async def _lend(self, former: credentials.Credentials | None) -> credentials.Credentials:
        now = datetime.datetime.now(datetime.UTC)
        if former is not None and self._vault.holds(former) and not former.is_expired(now):
            self._vault.invalidate(former)
        return await self._vault.obtain()
