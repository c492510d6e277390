"""
The health checks of an operator: puts the answers and the servers together.
"""
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kopf._cogs.aiokits import clocks
from kopf._core.engines.liveness import answering, endpoints, health

if TYPE_CHECKING:
    from kopf._cogs.serving import exchanges
    from kopf._core.engines.liveness import healthserver


class Checks:
    """The health checks of one operator, none without an endpoint; and other pages beside them."""

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
        self._endpoint = endpoint
        self._pages: dict[tuple[str | None, int], list[healthserver.Page]] = {}
        self._servers: list[healthserver.Server] = []

    def add(
            self, endpoint: endpoints.Endpoint, respond: 'exchanges.Respond', *,
            title: str, option: str,
    ) -> None:
        """
        Serve a page there, too: by the same server as other pages of the same host and port.

        :raises EndpointError: if there is another page at this endpoint.
        """
        from kopf._core.engines.liveness import healthserver  # only if it is used

        address = endpoint.host, endpoint.port
        known = self._pages.setdefault(address, [])
        paths = {page.path: page.title for page in known}
        if self._endpoint is not None and address == self._endpoint[:2]:
            paths[self._endpoint.path] = 'health checks'
        if endpoint.path in paths:
            raise endpoints.EndpointError(
                f"Both the {paths[endpoint.path]} and the {title} cannot be served at {endpoint}. "
                f"Choose another path: {option}=http://host:port/path")
        known.append(healthserver.Page(title, option, endpoint.path, respond))

    async def start(self) -> None:
        """
        Start the servers.

        :raises EndpointError: if an endpoint cannot be listened on.
        """
        pages = dict(self._pages)
        if self._endpoint is None and not pages:
            return
        from kopf._core.engines.liveness import healthserver  # only if it is used

        if self._endpoint is not None:
            self._servers.append(healthserver.Server(
                self._endpoint, answer=self._answerer.answer,
                pages=pages.pop(self._endpoint[:2], [])))
        for (host, port), members in pages.items():
            self._servers.append(healthserver.Server(
                endpoints.Endpoint(host, port, members[0].path), answer=None, pages=members))
        for server in self._servers:
            await server.start()

    def stand_by(self) -> None:
        """Tell in the next answer that the operator is a standby."""
        self._answerer.forget()

    def take_over(self) -> None:
        """Tell in the next answer that the operator leads."""
        self._answerer.forget()

    async def stop(self) -> None:
        await self._answerer.close()
        for server in self._servers:
            await server.stop()
