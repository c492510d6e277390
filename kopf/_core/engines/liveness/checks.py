"""
The health checks of an operator: puts the answers and the server together.
"""
from collections.abc import Awaitable, Callable

from kopf._cogs.aiokits import clocks
from kopf._core.engines.liveness import answering, endpoints, health, healthserver


class Checks:
    """The health checks of one operator; none without an endpoint."""

    def __init__(
            self,
            endpoint: endpoints.Endpoint | None,
            *,
            monitor: health.Monitor,
            probe: Callable[[], Awaitable[answering.Results]],
            clock: clocks.Clock,
    ) -> None:
        """
        ``probe`` calls the probe handlers, and raises `answering.ProbeError` if any has failed.
        """
        super().__init__()
        self._answerer = answering.Answerer(
            probe=probe, diagnose=monitor.diagnose, clock=clock)
        self._server = (
            None if endpoint is None
            else healthserver.Server(endpoint, answer=self._answerer.answer))

    async def start(self) -> None:
        """
        Start the server.

        :raises EndpointError: if the endpoint cannot be listened on.
        """
        if self._server is not None:
            await self._server.start()

    def stand_by(self) -> None:
        """Tell in the next answer that the operator is a standby."""
        self._answerer.forget()

    def take_over(self) -> None:
        """Tell in the next answer that the operator leads."""
        self._answerer.forget()

    async def stop(self) -> None:
        await self._answerer.close()
        if self._server is not None:
            await self._server.stop()
