"""
The server of the health checks and of other pages: its thread, and its check of the operator's
event loop.
"""
import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, NamedTuple

from kopf._cogs.serving import exchanges
from kopf._core.actions import tracebacks
from kopf._core.engines.liveness import responding
from kopf._core.engines.liveness.answering import MAX_AGE, Answer
from kopf._core.engines.liveness.endpoints import Endpoint, EndpointError

logger = logging.getLogger(__name__)

TICK = 0.5
"""How often (seconds) the server checks the operator's event loop, and the pending answers."""

LOOP_TIMEOUT = 10.0
"""How long (seconds) the operator's event loop can be blocked before the operator is unhealthy."""

ANSWER_TIMEOUT = 15.0
"""
How long (seconds) a request waits for the probe handlers.

The handlers go on after that, so that the next requests can get their results.
"""


class Page(NamedTuple):
    """What is served at a path. ``respond`` is called in the thread of the server."""
    title: str
    """What it is, for messages: e.g. "health checks"."""
    option: str
    """The option of the command line that sets the URL."""
    path: str
    respond: exchanges.Respond


class Server:
    """
    The server of the health checks and of other pages at one host and port. `start` and `stop` are
    called in the event loop of the operator.

    The time of blocking is counted in ticks of the server's thread, not by the clock: otherwise,
    the loop would seem blocked after the whole process was suspended.
    """

    def __init__(
            self,
            endpoint: Endpoint,
            *,
            answer: Callable[[], Coroutine[Any, Any, Answer]] | None,
            pages: Collection[Page] = (),
    ) -> None:
        """
        The endpoint is that of the health checks, if there are any: if there is an ``answer``.
        """
        super().__init__()
        self._endpoint = endpoint
        self._answer = answer
        self._pages = [
            *([] if answer is None else [
                Page('health checks', '--liveness', endpoint.path, self._respond)]),
            *pages]
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._is_alive = True
        self._silence = 0.0
        self._latest: tuple[float, Answer] | None = None
        self._started: concurrent.futures.Future[Endpoint] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._thread = threading.Thread(target=self._run, name='kopf-liveness', daemon=True)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint with the actual port."""
        return self._endpoint

    async def start(self) -> None:
        """
        Start the server.

        :raises EndpointError: if the endpoint cannot be listened on.
        """
        self._thread.start()
        self._endpoint = await asyncio.shield(asyncio.wrap_future(self._started))
        for page in self._pages:
            logger.info(
                f"The {page.title} are served at {self._endpoint._replace(path=page.path)}")

    async def stop(self) -> None:
        """Stop the server. It is safe to call if the server was not started or has failed."""
        if self._thread.ident is None:
            return
        await asyncio.gather(asyncio.wrap_future(self._started), return_exceptions=True)
        if self._serving is not None:
            loop, stopping = self._serving
            with contextlib.suppress(RuntimeError):  # the server has failed, and its loop is closed
                loop.call_soon_threadsafe(stopping.set)
        await asyncio.wrap_future(self._ended)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except BaseException as e:
            if not self._started.done():
                self._started.set_exception(e)
            else:
                logger.error(
                    f"The {self._title} are not served any longer: {e!r}", exc_info=True)
        finally:
            self._ended.set_result(None)

    @property
    def _title(self) -> str:
        return ' and the '.join(page.title for page in self._pages)

    async def _serve(self) -> None:
        from kopf._cogs.serving import listeners  # only if it is used

        try:
            listening = listeners.bind(self._endpoint.host, self._endpoint.port)
        except (OSError, UnicodeError, ValueError, OverflowError) as e:
            code = getattr(e, 'errno', None) or 0
            reason = os.strerror(code) if code > 0 else getattr(e, 'strerror', None) or str(e)
            hint = ""
            if code == errno.EADDRINUSE:
                other = self._endpoint._replace(port=self._endpoint.port + 1)
                hint = (f". Stop what uses the port, or choose another one: "
                        f"{self._pages[0].option}={other}")
            raise EndpointError(
                f"The {self._title} cannot be served at {self._endpoint}: {reason}{hint}") from e
        listener = listeners.Listener(
            listening, responding.Pages({page.path: page.respond for page in self._pages}),
            policy=responding.POLICY, title=self._title)
        listener.listen(None)
        stopping = asyncio.Event()
        self._serving = asyncio.get_running_loop(), stopping
        self._started.set_result(self._endpoint._replace(port=listener.port))
        monitor = None if self._answer is None else asyncio.create_task(self._monitor())
        await stopping.wait()
        if monitor is not None:
            monitor.cancel()
        await listener.close()

    async def _respond(self, _: exchanges.Request) -> exchanges.Response:
        assert self._answer is not None
        return exchanges.Response(*await self._get_answer(self._answer))

    async def _get_answer(self, answer: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """
        Get the answer from the operator's event loop; if it takes long, use what is known here.
        """
        if self._silence >= LOOP_TIMEOUT:
            return self._make_blocked()
        future = asyncio.run_coroutine_threadsafe(answer(), self._loop)
        waiting = asyncio.wrap_future(future)
        started = time.monotonic()
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=TICK)
                now = time.monotonic()
                if waiting.done():
                    break
                if self._silence >= LOOP_TIMEOUT:
                    return self._make_blocked()
                if self._latest is not None and now - self._latest[0] <= MAX_AGE:
                    return self._latest[1]
                if now - started >= ANSWER_TIMEOUT:
                    return Answer.make_problems({
                        'probes': f"no results yet after {ANSWER_TIMEOUT:.0f} s."})
            result = waiting.result()
        finally:
            future.cancel()
        self._latest = time.monotonic(), result
        return result

    async def _monitor(self) -> None:
        """
        Check that the operator's event loop runs: whether it calls a callback within each tick.
        """
        while True:
            if self._is_alive:
                if self._silence >= LOOP_TIMEOUT:
                    logger.info(f"The event loop runs again; it was blocked for "
                                f"{self._silence:.0f} seconds.")
                self._silence = 0.0
                self._is_alive = False
                self._loop.call_soon_threadsafe(self._note_life)
            await asyncio.sleep(TICK)
            if not self._is_alive:
                was_blocked = self._silence >= LOOP_TIMEOUT
                self._silence += TICK
                if self._silence >= LOOP_TIMEOUT and not was_blocked:
                    logger.warning(f"The event loop is blocked {self._describe_blocking()}")

    def _note_life(self) -> None:
        self._is_alive = True

    def _make_blocked(self) -> Answer:
        return Answer.make_problems({'loop': f"blocked {self._describe_blocking()}"})

    def _describe_blocking(self) -> str:
        place = tracebacks.locate(sys._current_frames().get(self._watched))
        return f"for {self._silence:.0f} s by {place}"
