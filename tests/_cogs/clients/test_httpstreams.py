"""
Streams, by the client's own sessions and by those that an author's login handler returns.
"""
import asyncio
import contextlib

import aiohttp
import pytest

from kopf._cogs.clients import connections, httpsessions, transfers
from kopf._cogs.structs import credentials

HEAD = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'
ENDLESS = b'HTTP/1.1 200 OK\r\nX-Y: z\r\n\r\n'


class Server:
    """Sends the head of a response; then, what the test wants."""

    def __init__(self, head):
        self.head = head
        self.request = b''
        self.writer = None
        self.is_gone = asyncio.Event()

    async def __call__(self, reader, writer):
        self.writer = writer
        self.request = await reader.readuntil(b'\r\n\r\n')
        writer.write(self.head)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        self.is_gone.set()
        writer.close()

    def send(self, data):
        self.writer.write(data)

    def send_chunk(self, data):
        self.send(b'%x\r\n%b\r\n' % (len(data), data))

    def hang_up(self):
        self.writer.close()


@contextlib.asynccontextmanager
async def serve(kind, head=HEAD):
    handler = Server(head)
    server = await asyncio.start_server(handler, '127.0.0.1', 0)
    url = f'http://127.0.0.1:{server.sockets[0].getsockname()[1]}'
    info = credentials.ConnectionInfo(server=f'{url}/root') if kind == 'own' else (
        credentials.AiohttpSession(
            server=f'{url}/root', aiohttp_session=aiohttp.ClientSession()))
    connection = connections.Connection(info)
    try:
        yield handler, connection
    finally:
        await connection.close()
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def stream(http):
    response = await http.open('/root/path?a=b', headers={'X-A': 'b'}, connect_timeout=10)
    try:
        yield response
    finally:
        response.close()


both = pytest.mark.parametrize('kind', ['own', 'authors'])


@both
async def test_bodies_come_piece_by_piece(kind):
    async with serve(kind) as (server, http), stream(http) as response:
        assert server.request.startswith(b'GET /root/path?a=b HTTP/1.1\r\n')
        assert b'\r\nX-A: b\r\n' in server.request
        assert b'content-length' not in server.request.lower()
        assert response.head.status == 200
        assert response.head.body == b''
        for piece in [b'one\n', b'two\nthr', b'ee\n']:
            server.send_chunk(piece)
            assert await response.readany() == piece
        server.send(b'0\r\n\r\n')
        assert await response.readany() == b''
        assert await response.readany() == b''


@both
async def test_all_that_has_come_is_read_at_once(kind):
    async with serve(kind) as (server, http), stream(http) as response:
        server.send(b'1\r\na\r\n2\r\nbc\r\n0\r\n\r\n')
        assert await response.readany() == b'abc'
        assert await response.readany() == b''


@both
async def test_bodies_without_any_length_end_with_the_connection(kind):
    async with serve(kind, ENDLESS) as (server, http), stream(http) as response:
        assert response.head.headers.getall('x-y') == ['z']
        server.send(b'abc')
        assert await response.readany() == b'abc'
        server.send(b'def')
        server.hang_up()
        assert await response.read() == b'def'


@both
async def test_broken_bodies_are_errors_after_what_has_come(kind):
    async with serve(kind) as (server, http), stream(http) as response:
        server.send_chunk(b'abc')
        assert await response.readany() == b'abc'
        server.send(b'7\r\nabc')
        assert await response.readany() == b'abc'
        server.hang_up()
        with pytest.raises(transfers.TransferError):
            await response.readany()
        with pytest.raises(transfers.TransferError):
            await response.readany()


async def test_bodies_that_are_not_understood_are_errors():
    async with serve('own') as (server, http), stream(http) as response:
        server.send(b'what?\r\n')
        with pytest.raises(transfers.TransferError):
            await response.readany()


@both
@pytest.mark.parametrize('head', [
    b'what?\r\n\r\n',
    b'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n',
])
async def test_heads_that_are_not_understood_are_errors(kind, head):
    async with serve(kind, head) as (_, http):
        with pytest.raises(transfers.TransferError):
            async with stream(http):
                pytest.fail("There was no head.")


async def test_what_comes_after_the_response_is_ignored():
    async with serve('own') as (server, http), stream(http) as response:
        server.send(b'1\r\na\r\n0\r\n\r\n')
        assert await response.readany() == b'a'
        server.send(b'HTTP/1.1 200 OK\r\n')
        await server.is_gone.wait()
        assert await response.readany() == b''


@both
async def test_closed_streams_are_errors_for_the_reader(kind):
    async with serve(kind) as (server, http), stream(http) as response:
        reading = asyncio.create_task(response.readany())
        await asyncio.sleep(0)
        response.close()
        with pytest.raises(transfers.TransferError):
            await reading
        await server.is_gone.wait()


@both
async def test_streams_can_be_ended_from_this_side(kind):
    async with serve(kind) as (server, http), stream(http) as response:
        reading = asyncio.create_task(response.readany())
        await asyncio.sleep(0)
        response.end()
        assert await reading == b''
        assert await response.readany() == b''
        await server.is_gone.wait()


@both
async def test_streams_that_are_left_close_their_connections(kind):
    async with serve(kind) as (server, http):
        async with stream(http):
            pass
        await server.is_gone.wait()


async def test_streams_are_closed_with_all_connections():
    async with serve('own') as (server, http), stream(http) as response:
        await http.close()
        with pytest.raises(transfers.TransferError):
            await response.readany()
        await server.is_gone.wait()


async def test_streams_go_on_when_the_writes_are_reset():
    async with serve('own') as (server, http), stream(http) as response:
        http.reset()
        server.send_chunk(b'abc')
        assert await response.readany() == b'abc'


async def test_who_reads_slowly_makes_the_server_wait():
    async with serve('own') as (server, http), stream(http) as response:
        size = 64 * 1024 * 1024  # far more than all buffers of the system
        server.send_chunk(b'x' * size)
        drained = asyncio.create_task(server.writer.drain())
        done, _ = await asyncio.wait([drained], timeout=0.2)
        assert not done
        received = 0
        while received < size:
            part = await response.readany()
            assert len(part) <= 2 * httpsessions.STREAM_BUFFER + 256 * 1024  # what asyncio reads
            received += len(part)
        await drained


async def test_a_cancelled_reader_loses_nothing():
    async with serve('own') as (server, http), stream(http) as response:
        reading = asyncio.create_task(response.readany())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        server.send_chunk(b'abc')
        assert await response.readany() == b'abc'
