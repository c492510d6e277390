"""
Answering: the answers about the operator's health, and the check of the operator's event loop.
"""
import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from kopf._cogs.aiokits import sharing
from kopf._cogs.serving import exchanges
from kopf._core.actions import inflight, tracebacks

logger = logging.getLogger(__name__)

MAX_AGE = 10.0
"""For how long (seconds) the results of the probe handlers are cached."""

MAX_AGE_OF_FAILURES = 1.0
"""The same if a probe handler has failed. It is shorter, so that a recovery is reported soon."""

TICK = 0.5
"""How often (seconds) the server checks the operator's event loop, and the pending answers."""

LOOP_TIMEOUT = 10.0
"""How long (seconds) the operator's event loop can be blocked before the operator is unhealthy."""

ANSWER_TIMEOUT = 4.0
"""
How long (seconds) a request waits for the probe handlers: less than the clients wait.

The handlers go on after that, so that the next requests can get their results.
"""


class Answerer:
    """
    Makes the answers about the operator's health. Make it in the event loop of the operator.

    Only `respond` and `watch` are called in another thread and event loop: those of the server.

    Simultaneous requests share one run of the probe handlers, and its results are cached for the
    next requests. ``diagnose`` is called for each request; it returns the problems by aspects.

    The time of blocking is counted in ticks of the server's thread, not by the clock: otherwise,
    the loop would seem blocked after the whole process was suspended.
    """

    def __init__(
            self,
            *,
            probe: Callable[[], Awaitable[tuple[Any, Collection[str]]]],
            diagnose: Callable[[], Mapping[str, str]],
            underway: inflight.Calls,
    ) -> None:
        self._probe = probe
        self._diagnose = diagnose
        self._underway = underway
        self._probed = sharing.Shared(self._run, name="probes")
        self._reported: frozenset[str] = frozenset()
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._is_alive = True
        self._silence = 0.0
        self._latest: tuple[float, exchanges.Response] | None = None

    async def answer(self) -> exchanges.Response:
        problems = self._diagnose()
        self._log_changes(problems)
        if problems:
            return describe(problems)
        return await self._probed.get()

    def stand_by(self) -> None:
        """Tell in the next answer that the operator is a standby, or that it leads."""
        self._probed.forget()

    take_over = stand_by

    async def close(self) -> None:
        """End what is under way for the answers, when they are not served any more."""
        await self._probed.close()

    async def _run(self) -> tuple[exchanges.Response, float]:
        results, failed = await self._probe()
        if failed:
            return describe({
                'probes': f"failed: {', '.join(failed)}; see the log."}, 500), MAX_AGE_OF_FAILURES
        try:
            return exchanges.Response(200, json.dumps(results, allow_nan=False).encode()), MAX_AGE
        except (TypeError, ValueError, RecursionError) as e:
            logger.error(f"The results of the probe handlers are no JSON: {e}")
            return describe({'probes': "the results are no JSON."}, 500), MAX_AGE_OF_FAILURES

    def _log_changes(self, problems: Mapping[str, str]) -> None:
        """Log the changes of the health."""
        for aspect in problems.keys() - self._reported:
            logger.warning(f"The operator is not healthy: {aspect}: {problems[aspect]}")
        if self._reported and not problems:
            logger.info("The operator is healthy again.")
        self._reported = frozenset(problems)

    def _note_life(self) -> None:
        self._is_alive = True

    # In the thread of the server.

    async def respond(self, _: exchanges.Request) -> exchanges.Response:
        """
        Get the answer from the operator's event loop; if it takes long, use what is known here.
        """
        if self._silence >= LOOP_TIMEOUT:
            return self._describe_block()
        future = asyncio.run_coroutine_threadsafe(self.answer(), self._loop)
        waiting = asyncio.wrap_future(future)
        started = time.monotonic()
        try:
            while not (await asyncio.wait([waiting], timeout=TICK))[0]:
                now = time.monotonic()
                if self._silence >= LOOP_TIMEOUT:
                    return self._describe_block()
                if self._latest is not None and now <= self._latest[0]:
                    return self._latest[1]
                if now - started >= ANSWER_TIMEOUT and not self._silence:  # else, the loop is slow
                    slow = ', '.join(call.handler.id for call in self._underway if (
                        call.kwargs.get('activity') == 'probe'))
                    return describe({'probes': f"no results after {ANSWER_TIMEOUT:.0f} s: {slow}."})
            result = waiting.result()
        finally:
            future.cancel()
        self._latest = time.monotonic() + MAX_AGE * (result.status == 200), result
        return result

    async def watch(self) -> None:
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
                    logger.warning(f"The event loop is blocked {self._locate_block()}")

    def _describe_block(self) -> exchanges.Response:
        return describe({'loop': f"blocked {self._locate_block()}"})

    def _locate_block(self) -> str:
        place = tracebacks.locate(sys._current_frames().get(self._watched))
        return f"for {self._silence:.0f} s by {place}"


def describe(problems: Mapping[str, str], status: int = 503) -> exchanges.Response:
    return exchanges.Response(status, json.dumps({'problems': problems}).encode())
