"""
Servers of aiohttp that leave no connection open when they stop.

aiohttp's own runners close the listening socket first. asyncio then refuses to make the connections
that it has accepted in this moment, and leaves their sockets open.
"""
import asyncio
from typing import Any

from aiohttp import web

ACCEPTING = 3
"""In how many rounds of the event loop asyncio makes a connection that it has accepted."""

TIMEOUT = 1.0
"""How long (seconds) requests in progress can take when a server stops."""


class Listener:
    """A server that listens."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._listening: asyncio.Server

    async def start(self, **options: Any) -> int:
        """Listen, with the options of `asyncio.loop.create_server`; return the port."""
        self._listening = await asyncio.get_running_loop().create_server(self._server, **options)
        port: int = self._listening.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        for sock in self._listening.sockets:
            asyncio.get_running_loop().remove_reader(sock)
        for _ in range(ACCEPTING):
            await asyncio.sleep(0)
        self._listening.close()
        self._server.pre_shutdown()
        await self._server.shutdown(TIMEOUT)
