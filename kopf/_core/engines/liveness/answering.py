"""
Answering: makes the answers about the operator's health, and caches the results of probe handlers.
"""
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

from kopf._cogs.aiokits import clocks, sharing

logger = logging.getLogger(__name__)

MAX_AGE = 10.0
"""For how long (seconds) the results of the probe handlers are cached."""

MAX_AGE_OF_FAILURES = 1.0
"""The same if a probe handler has failed. It is shorter, so that a recovery is reported soon."""

Results = Mapping[Any, Any]


class ProbeError(Exception):
    """Some of the probe handlers have failed."""

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__(f"Probe handlers have failed: {', '.join(ids)}.")
        self.ids = ids


class Answer(NamedTuple):
    status: int
    """The HTTP status code."""
    body: bytes
    """JSON."""

    @classmethod
    def make_problems(cls, problems: Mapping[str, str], *, status: int = 503) -> 'Answer':
        return cls(status, json.dumps({'problems': problems}).encode())


class Answerer:
    """
    Makes the answers about the operator's health. It runs in the event loop of the operator.

    Simultaneous requests share one run of the probe handlers, and its results are cached for the
    next requests. ``diagnose`` is called for each request; it returns the problems by aspects.
    """

    def __init__(
            self,
            *,
            probe: Callable[[], Awaitable[Results]],
            diagnose: Callable[[], Mapping[str, str]],
            clock: clocks.Clock,
    ) -> None:
        super().__init__()
        self._probe = probe
        self._diagnose = diagnose
        self._probed = sharing.Shared(self._run, name="probes", now=clock.mono)
        self._reported: frozenset[str] = frozenset()

    async def answer(self) -> Answer:
        problems = self._diagnose()
        self._log_changes(problems)
        if problems:
            return Answer.make_problems(problems)
        return await self._probed.get()

    def forget(self) -> None:
        """Call the probe handlers for the next answer, as their results are outdated."""
        self._probed.forget()

    async def close(self) -> None:
        await self._probed.close()

    async def _run(self) -> tuple[Answer, float]:
        max_age = MAX_AGE_OF_FAILURES
        try:
            answer = Answer(200, json.dumps(await self._probe()).encode())
            max_age = MAX_AGE
        except ProbeError as e:
            answer = Answer.make_problems(
                {'probes': f"failed: {', '.join(e.ids)}; see the log."}, status=500)
        except (TypeError, ValueError, RecursionError) as e:
            logger.error(f"The results of the probe handlers are no JSON: {e}")
            answer = Answer.make_problems({'probes': "the results are no JSON."}, status=500)
        return answer, max_age

    def _log_changes(self, problems: Mapping[str, str]) -> None:
        """Log the changes of the health."""
        for aspect in problems.keys() - self._reported:
            logger.warning(f"The operator is not healthy: {aspect}: {problems[aspect]}")
        if self._reported and not problems:
            logger.info("The operator is healthy again.")
        self._reported = frozenset(problems)
