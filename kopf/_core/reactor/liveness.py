"""
Liveness: the health checks of an operator, if they are asked for.
"""
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.structs import ids
from kopf._core.engines import activities
from kopf._core.engines.probing import answering, endpoints, serving
from kopf._core.intents import causes
from kopf._core.reactor import health


class Liveness:
    """The health checks, from the end of the startup handlers to that of the cleanup handlers."""

    def __init__(
            self,
            endpoint: endpoints.Endpoint | None,
            *,
            monitor: health.Monitor,
            run_activity: Callable[[causes.Activity], Awaitable[Mapping[ids.HandlerId, Any]]],
            clock: clocks.Clock,
    ) -> None:
        super().__init__()
        self._run_activity = run_activity
        self._answerer = answering.Answerer(
            probe=self._probe, diagnose=monitor.diagnose, clock=clock)
        self._server = (
            None if endpoint is None else serving.Server(endpoint, answer=self._answerer.answer))

    async def start(self) -> None:
        """
        Begin to serve.

        :raises EndpointError: if it cannot be served there.
        """
        if self._server is not None:
            await self._server.start()

    async def stop(self) -> None:
        await self._answerer.close()
        if self._server is not None:
            await self._server.stop()

    async def _probe(self) -> answering.Results:
        try:
            return await self._run_activity(causes.Activity.PROBE)
        except activities.ActivityError as e:
            raise answering.ProbeError([
                id_ for id_, outcome in e.outcomes.items() if outcome.exception is not None
            ]) from e
