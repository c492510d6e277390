"""
How long connecting can take, by the settings; the limits of whole requests are tested with these.
"""
import asyncio
import contextlib
import socket

import pytest

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import credentials


@pytest.fixture()
def unresponsive():
    """A server that never accepts, and whose queue is full; returns its credentials."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(('127.0.0.1', 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(3):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(('127.0.0.1', port))
        yield credentials.ConnectionInfo(server=f'http://127.0.0.1:{port}')


async def measure(action):
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.timeout(5):
        with pytest.raises(errors.APIConnectionError):
            await action
    return loop.time() - start


async def stream(client):
        async with client.stream('/'):
            pass


@pytest.mark.parametrize(('watching', 'networking', 'total'), [
    (0.2, 10, 20), (0.2, None, 20), (None, 0.2, 20), (None, None, 0.2),
])
async def test_streams_connect_by_their_own_limit_or_that_of_requests(
        settings, unresponsive, watching, networking, total):
    settings.watching.connect_timeout = watching
    settings.networking.connect_timeout = networking
    settings.networking.request_timeout = total
    async with api.Client(credentials=unresponsive, settings=settings) as client:
        assert 0.1 < await measure(stream(client)) < 3


@pytest.mark.parametrize(('networking', 'total'), [(0.2, 20), (None, 0.2), (20, 0.2)])
async def test_requests_connect_by_their_own_limit_or_that_of_the_whole(
        settings, unresponsive, networking, total):
    settings.networking.error_backoffs = []
    settings.networking.connect_timeout = networking
    settings.networking.request_timeout = total
    async with api.Client(credentials=unresponsive, settings=settings) as client:
        assert 0.1 < await measure(client.request('GET', '/')) < 3
