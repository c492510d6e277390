"""
The end of a server at each moment of a new connection.
"""
import asyncio
import contextlib
import socket

import pytest
from aiohttp import web

from kopf._kits.sandbox import listening


async def respond(_):
    return web.Response()


@pytest.mark.parametrize('rounds', range(7))
async def test_connections_are_closed_at_whatever_moment_the_server_stops(rounds):
    listener = listening.Listener(web.Server(respond))
    port = await listener.start(host='127.0.0.1', port=0)
    with socket.create_connection(('127.0.0.1', port)) as client:
        client.setblocking(False)
        for _ in range(rounds):
            await asyncio.sleep(0)
        await listener.stop()
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):  # it was not accepted
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b''
