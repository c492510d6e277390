import asyncio
import contextlib
import gc
import gzip
import inspect
import os
import socket
import ssl
import sys
import weakref

import aiohttp
import pytest
import trustme

from kopf._cogs.clients import connectors, httpsessions, sockets
from kopf._cogs.clients.transfers import TransferError

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'


class Server:
    """Answers each request with the next of the answers; an empty one is for hanging up."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.connections = 0
        self.writers = []
        self.peak = 0
        self._busy = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b'\r\n\r\n')
                length = int(head.lower().split(b'content-length:')[1].split(b'\r\n')[0])
                self.requests.append((head, await reader.readexactly(length)))
                self._busy += 1
                self.peak = max(self.peak, self._busy)
                await self.gate.wait()
                self._busy -= 1
                answer = self.answers.pop(0) if self.answers else OK
                if not answer:
                    break
                for part in answer if isinstance(answer, list) else [answer]:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if answer is not OK and b'close' in b''.join(answer if isinstance(answer, list)
                                                            else [answer]).lower():
                    break
        writer.close()


def connect(port, *, host='127.0.0.1', ssl=None, limit=1, keepalive=60.0):
    return httpsessions.Sessions(
        f'{"http" if ssl is None else "https"}://{host}:{port}', ssl=ssl, pool_size=limit,
        keepalive=keepalive)


def get_open(wire):
    return wire._pool._guards


@contextlib.asynccontextmanager
async def serve(*answers, limit=2, keepalive=60.0, tls=(None, None)):
    handler = Server(*answers)
    theirs, ours = tls
    server = await asyncio.start_server(handler, '127.0.0.1', 0, ssl=theirs)
    port = server.sockets[0].getsockname()[1]
    wire = connect(port, ssl=ours, limit=limit, keepalive=keepalive)
    try:
        yield handler, wire
    finally:
        handler.gate.set()
        await wire.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)


@pytest.fixture(scope='module')
def tls():
    ca = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert('127.0.0.1').configure_cert(theirs)
    ours = ssl.create_default_context()
    ca.configure_trust(ours)
    return theirs, ours


async def send(wire, body=b'{}', *, method='PATCH', **headers):
    return await wire.exchange(method, '/path?a=b', headers=headers, body=body)


async def wait_requests(server, number):
    while len(server.requests) < number:
        await asyncio.sleep(0)


async def test_requests_are_sent_as_http_has_it():
    async with serve() as (server, wire):
        response = await send(wire, b'{"a": 1}', Accept='application/json')
    [(head, body)] = server.requests
    lines = head.decode().split('\r\n')
    assert lines[0] == 'PATCH /path?a=b HTTP/1.1'
    assert lines[1].startswith('Host: 127.0.0.1:')
    assert 'Accept: application/json' in lines
    assert body == b'{"a": 1}'
    assert (response.status, response.body) == (200, b'ok')


@pytest.mark.parametrize('answer', [OK, [CHUNKED, b'2\r\nok\r\n0\r\n\r\n']])
async def test_an_idle_connection_keeps_nothing_of_its_last_request(answer):
    """It can be idle for hours, and a permit refers to the object that was written."""
    class Permit:
        def __call__(self):
            pass

    permit, body = Permit(), str(answer).encode()
    unused, known = weakref.ref(permit), sys.getrefcount(body)
    async with serve(answer) as (_, wire):
        response = await wire.exchange('PATCH', '/', headers={}, body=body, permit=permit)
        del permit
        await asyncio.sleep(0)
        gc.collect()
        assert len(get_open(wire)) == 1
        assert unused() is None
        assert sys.getrefcount(body) == known
        holders = gc.get_referrers(response.body)  # since 3.14, also this coroutine
        assert [each for each in holders if not inspect.iscoroutine(each)] == [response]


async def test_headers_of_responses_are_found_in_any_case():
    answer = b'HTTP/1.1 429 Slow\r\nretry-AFTER: 5\r\nContent-Length: 0\r\n\r\n'
    async with serve(answer) as (_, wire):
        response = await send(wire)
    assert (response.status, response.headers.getall('Retry-After')) == (429, ['5'])


async def test_connections_are_kept_and_used_again():
    async with serve() as (server, wire):
        for _ in range(5):
            await send(wire)
    assert (len(server.requests), server.connections) == (5, 1)


async def test_connections_are_not_used_after_the_server_asks_to_close():
    answer = b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok'
    async with serve(answer) as (server, wire):
        await send(wire)
        await send(wire)
    assert server.connections == 2


async def test_connections_kept_for_too_long_are_not_used():
    async with serve(keepalive=-1.0) as (server, wire):
        await send(wire)
        await send(wire)
    assert server.connections == 2


IDEMPOTENT = pytest.mark.parametrize('method', ['GET', 'PATCH', 'PUT', 'DELETE'])


@IDEMPOTENT
async def test_a_request_is_sent_again_if_a_kept_connection_turns_out_to_be_closed(method):
    async with serve(OK, b'', OK) as (server, wire):
        first = await send(wire, method=method)
        second = await send(wire, method=method)
    assert (second.status, first.is_repeated, second.is_repeated) == (200, False, True)
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_request_is_not_sent_again_if_a_part_of_the_response_has_come():
    async with serve(OK, b'HTTP/1.1 200 OK, close', OK) as (server, wire):
        await send(wire)
        with pytest.raises(TransferError):
            await send(wire)
    assert len(server.requests) == 2


async def test_a_post_is_not_sent_again():
    async with serve(OK, b'', OK) as (_, wire):
        await send(wire)
        with pytest.raises(TransferError):
            await send(wire, method='POST')


@IDEMPOTENT
async def test_a_new_connection_that_is_closed_without_an_answer_is_an_error(method):
    async with serve(b'', b'') as (server, wire):
        with pytest.raises(TransferError, match='without a response|disconnected'):
            await send(wire, method=method)
    assert len(server.requests) == 1


@pytest.mark.parametrize('answer', [
    b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 20\r\n\r\nhalf',
    b'HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf',
    b'HTTP/1.1 200 OK, close',
])
async def test_a_half_response_is_an_error(answer):
    async with serve(answer) as (_, wire):
        with pytest.raises(TransferError):
            await send(wire)


def test_the_parser_is_the_fast_one():
    assert aiohttp.http.HttpResponseParser.__module__ == 'aiohttp._http_parser'


@pytest.mark.parametrize('answer', [
    b'SSH-2.0-OpenSSH close\r\n\r\n',
    b'HTTP/1.1 abc OK close\r\n\r\n',
    b'HTTP/1.1 101 Switching close\r\n\r\n',
    b'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nclose',
    b'HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nclose',
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nclose',
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nclose',
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nclose',
    b'HTTP/1.1 200 OK\r\nX: ' + b'x' * 70_000 + b'close',
    [CHUNKED, b'1\r\na\r\n', b'xyz\r\n'],
    [CHUNKED, b'1\r\n', b'close'],
])
async def test_what_is_no_response_is_an_error_of_the_connection(answer):
    async with serve(answer) as (_, wire):
        with pytest.raises(TransferError):
            await send(wire)


async def test_responses_without_any_length_end_with_the_connection():
    async with serve(b'HTTP/1.0 200 OK\r\n\r\nuntil close') as (_, wire):
        response = await send(wire)
    assert response.body == b'until close'


async def test_responses_of_100_precede_the_real_one():
    async with serve(b'HTTP/1.1 100 Continue\r\n\r\n' + OK) as (_, wire):
        assert (await send(wire)).body == b'ok'


async def test_responses_without_content_have_no_length():
    async with serve(b'HTTP/1.1 204 No Content\r\n\r\n', OK) as (server, wire):
        assert (await send(wire)).body == b''
        assert (await send(wire)).body == b'ok'
    assert server.connections == 1


async def test_more_requests_than_connections_wait_for_their_turn():
    async with serve(limit=2) as (server, wire):
        server.gate.clear()
        tasks = [asyncio.create_task(send(wire)) for _ in range(6)]
        await wait_requests(server, 2)
        server.gate.set()
        await asyncio.gather(*tasks)
    assert (len(server.requests), server.connections, server.peak) == (6, 2, 2)


async def test_a_cancelled_request_leaves_its_place_to_others():
    async with serve(limit=1) as (server, wire):
        server.gate.clear()
        tasks = [asyncio.create_task(send(wire)) for _ in range(3)]
        await wait_requests(server, 1)
        for task in tasks[:2]:
            task.cancel()
        server.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results[:2]] == [asyncio.CancelledError] * 2
    assert results[2].status == 200


async def test_a_cancelled_request_does_not_leave_its_response_to_the_next_one():
    late = b'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate'
    async with serve(late, OK, limit=1) as (server, wire):
        server.gate.clear()
        task = asyncio.create_task(send(wire))
        await wait_requests(server, 1)
        task.cancel()
        await asyncio.wait([task])
        server.gate.set()
        assert (await send(wire)).body == b'ok'
    assert server.connections == 2


async def test_a_refused_connection_is_an_error():
    wire = connect(1)
    with pytest.raises(TransferError, match='Cannot connect'):
        await send(wire)
    await wire.close()


async def test_line_breaks_in_headers_are_refused():
    async with serve() as (server, wire):
        with pytest.raises(TransferError, match='injection'):
            await send(wire, Authorization='token\r\nX-Injected: 1')
    assert not server.requests


async def test_after_a_request_without_an_answer_no_other_kept_connection_is_used():
    async with serve(limit=5) as (server, wire):
        server.gate.clear()
        together = [asyncio.create_task(send(wire)) for _ in range(3)]
        await asyncio.sleep(0.05)
        server.gate.set()
        await asyncio.gather(*together)
        assert server.connections == 3
        server.gate.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await send(wire)
        server.gate.set()
        await send(wire)
        assert server.connections == 4


async def test_connections_notice_that_the_other_side_is_gone_from_the_beginning(monkeypatch):
    options = []

    async def connect(loop, sock, address):
        options.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        if hasattr(socket, 'TCP_USER_TIMEOUT'):
            options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        return await original(loop, sock, address)

    original = asyncio.SelectorEventLoop.sock_connect
    monkeypatch.setattr(asyncio.SelectorEventLoop, 'sock_connect', connect)
    async with serve() as (_, wire):
        await send(wire)
    assert options in ([1], [1, sockets.SILENCE * 1000])


UNASKED = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nunasked'


async def test_bytes_on_an_idle_connection_close_it():
    async with serve() as (server, wire):
        await send(wire)
        server.writers[0].write(UNASKED[:20])
        while get_open(wire):
            await asyncio.sleep(0.001)
        assert (await send(wire)).body == b'ok'
    assert server.connections == 2


async def test_a_second_response_in_one_piece_with_the_first_answers_no_request():
    async with serve([CHUNKED + b'2\r\nok\r\n', b'0\r\n\r\n' + UNASKED]) as (server, wire):
        assert (await send(wire)).body == b'ok'
        assert (await send(wire)).body == b'ok'
    assert server.connections == 2


@pytest.mark.parametrize('size', [20, len(UNASKED)])
async def test_bytes_on_an_idle_connection_never_answer_a_request_though_nobody_has_read_them(size):
    async with serve() as (server, wire):
        await send(wire)
        theirs = server.writers[0].get_extra_info('socket')
        with socket.socket(fileno=os.dup(theirs.fileno())) as sock:
            assert sock.send(UNASKED[:size]) == size
        assert (await send(wire)).body == b'ok'  # the loop has not come to read in between
    assert server.connections == 2


async def test_a_post_is_not_sent_over_a_connection_that_the_server_has_just_closed():
    async with serve() as (server, wire):
        await send(wire)
        theirs = server.writers[0].get_extra_info('socket')
        with socket.socket(fileno=os.dup(theirs.fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)
        assert (await send(wire, method='POST')).body == b'ok'


async def test_a_response_and_a_cancellation_in_one_turn_leave_no_connection_open(monkeypatch):
    async with serve() as (server, wire):
        task = asyncio.create_task(send(wire))
        receive = connectors.Guard.data_received

        def receive_and_cancel(guard, data):
            receive(guard, data)
            task.cancel()

        monkeypatch.setattr(connectors.Guard, 'data_received', receive_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        await asyncio.sleep(0)
        assert not get_open(wire)
        assert (await send(wire)).body == b'ok'


async def test_after_closing_no_request_goes_out_again():
    async with serve() as (server, wire):
        await send(wire)
        server.gate.clear()
        task = asyncio.create_task(send(wire))
        while len(server.requests) < 2:
            await asyncio.sleep(0.001)
        await wire.close()
        with pytest.raises(TransferError, match='closed'):
            await task
        with pytest.raises(TransferError, match='closed'):
            await send(wire)
    assert (len(server.requests), server.connections) == (2, 1)


async def test_a_connection_made_while_closing_is_not_used():
    async with serve() as (server, wire):
        task = asyncio.create_task(send(wire))
        await asyncio.sleep(0)
        await wire.close()
        with pytest.raises(TransferError, match='closed'):
            await task
        await asyncio.sleep(0.01)
        assert not get_open(wire)
    assert not server.requests


@pytest.mark.parametrize('steps', range(40))
async def test_a_cancelled_connection_leaves_its_descriptor_to_asyncio(steps, tls):
    # If it were closed in a handshake, new connections would get it, and asyncio would refuse them.
    async with serve(limit=5, tls=tls) as (_, wire):
        task = asyncio.create_task(send(wire))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        responses = await asyncio.gather(*(send(wire) for _ in range(5)))
        assert [response.body for response in responses] == [b'ok'] * 5


async def test_tls_takes_little_memory_and_large_bodies_come_nevertheless(tls):
    body = bytes(range(256)) * 4096
    async with serve(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s' % (len(body), body), OK,
                     tls=tls) as (_, wire):
        assert (await send(wire)).body == body
        [guard] = get_open(wire)
        assert len(guard.transport._ssl_protocol._ssl_buffer) == connectors.TLS_BUFFER


@pytest.mark.parametrize('answer', [
    b'HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n' + b'x' * 1001,
    CHUNKED + (b'1f4\r\n%s\r\n' % (b'x' * 500)) * 3,
    b'HTTP/1.0 200 OK\r\n\r\nclose' + b'x' * 1001,
])
async def test_bodies_have_a_limit(answer, monkeypatch):
    monkeypatch.setattr(httpsessions, 'MAX_BODY', 1000)
    async with serve(answer) as (_, wire):
        with pytest.raises(TransferError, match='longer than 1000 bytes'):
            await send(wire)


def compress(body, *, encoding=b'gzip', cut=None, more=b''):
    data = gzip.compress(body)[:cut] + more
    return b'HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s' % (
        encoding, len(data), data)


async def test_compressed_responses_are_decompressed_in_whatever_pieces_they_come():
    body = b''.join(b'%d ' % i for i in range(10_000))
    raw = compress(body, encoding=b'GZIP')
    pieces = [raw[start:start + 1000] for start in range(0, len(raw), 1000)]
    async with serve(pieces) as (_, wire):
        assert (await send(wire)).body == body


async def test_responses_without_a_body_are_complete_whatever_their_encoding_is():
    answer = b'HTTP/1.1 304 Not Modified\r\nContent-Encoding: gzip\r\n\r\n'
    async with serve(answer) as (_, wire):
        response = await send(wire)
    assert (response.status, response.body) == (304, b'')


async def test_compressed_responses_are_decompressed():
    async with serve(compress(b'x' * 100_000), OK, compress(b'y')) as (server, wire):
        responses = [await send(wire) for _ in range(3)]
        assert [response.body for response in responses] == [b'x' * 100_000, b'ok', b'y']
        assert server.connections == 1


@pytest.mark.parametrize('answer, reason', [
    (compress(b'x' * 1001), 'longer than 1000 bytes'),
    (compress(b'x' * 10, cut=-1), 'is incomplete'),
    (compress(b'x' * 10, cut=5), 'is incomplete'),
    (compress(b'x' * 10, more=b'x'), 'is incomplete'),
    (compress(b'x', encoding=b'br'), "is not supported: 'br'"),
    (compress(b'x', encoding=b'gzip, gzip'), "is not supported: 'gzip, gzip'"),
    (b'HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok', 'properly'),
    (b'HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n%s'
     % gzip.compress(b'x')[:-1], 'is incomplete'),
], ids=['large', 'cut', 'without-data', 'more', 'other', 'twice', 'plain', 'hung-up'])
async def test_what_is_compressed_wrongly_is_an_error_and_others_go_on(answer, reason, monkeypatch):
    monkeypatch.setattr(httpsessions, 'MAX_BODY', 1000)
    async with serve(answer, OK) as (_, wire):
        with pytest.raises(TransferError, match=reason):
            await send(wire)
        assert (await send(wire)).body == b'ok'


async def test_an_address_that_swallows_everything_does_not_hold_up_the_others(monkeypatch):
    async with serve() as (_, known):
        port = int(known._origin.rpartition(':')[2])
        with socket.socket() as hole, contextlib.ExitStack() as stack:
            hole.bind(('127.0.0.2', port))
            hole.listen(0)
            for _ in range(3):  # fill the backlog, so that nothing is answered any more
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(('127.0.0.2', port))
            monkeypatch.setattr(socket, 'getaddrinfo', lambda *_, **__: [
                (socket.AF_INET, socket.SOCK_STREAM, 6, '', (address, port))
                for address in ('127.0.0.2', '127.0.0.1')])
            wire = connect(port, host='two.test')
            async with asyncio.timeout(5):
                assert (await send(wire)).body == b'ok'
            await wire.close()
            await asyncio.sleep(0)


async def test_an_answer_of_the_dns_that_never_comes_holds_up_one_request_only(monkeypatch):
    async def getaddrinfo(*args, **kwargs):
        if not waiting.is_set():
            waiting.set()
            await asyncio.Event().wait()
        return await resolve('127.0.0.1', *args[1:], **kwargs)

    loop, waiting = asyncio.get_running_loop(), asyncio.Event()
    resolve = loop.getaddrinfo
    async with serve() as (_, known):
        monkeypatch.setattr(loop, 'getaddrinfo', getaddrinfo)
        wire = connect(int(known._origin.rpartition(':')[2]), host='one.test', limit=2)
        first = asyncio.create_task(send(wire))
        await waiting.wait()
        async with asyncio.timeout(5):
            assert (await send(wire)).body == b'ok'
        first.cancel()
        await asyncio.wait([first])
        await wire.close()


@pytest.mark.parametrize('sendings', [0, 1])
async def test_the_permit_is_asked_for_each_sending_and_nothing_is_sent_without_it(sendings):
    def permit():
        if len(server.requests) > sendings:
            raise RuntimeError("not permitted")

    async with serve(OK, b'') as (server, wire):
        await send(wire)
        with pytest.raises(RuntimeError, match='not permitted'):
            await wire.exchange('PATCH', '/', headers={}, body=b'{}', permit=permit)
    assert len(server.requests) == sendings + 1
