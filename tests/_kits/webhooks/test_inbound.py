"""
What strangers can do to the server: nothing but have an error for it.
"""
import asyncio
import base64
import contextlib
import json
import logging
import random
import socket
import ssl

import pytest

from kopf._cogs.aiokits import tasks
from kopf._cogs.serving import inbound
from kopf._core.engines.admission.questions import MalformedRequestError, UnknownResourceError
from kopf._kits.webhooks import httpreviews
from tests._kits.webhooks.clients import REVIEW, Client, ask, build_request
from tests._kits.webhooks.conftest import get_port


@pytest.fixture()
def limit(monkeypatch):
    """Set limits of the next server."""
    def limit(**limits):
        monkeypatch.setattr(httpreviews, 'POLICY', httpreviews.POLICY._replace(**limits))
    return limit


@pytest.fixture()
def quick(limit, monkeypatch):
    limit(receiving=0.2, writing=0.2)
    monkeypatch.setattr(inbound, 'LINGERING_TIMEOUT', 0.1)


async def test_reviews_are_answered(port, fn):
    async with Client(port) as client:
        status, headers, body = await client.ask(build_request(path='/some/id?timeout=10s'))
    assert status == 200
    assert headers['Content-Type'] == 'application/json'
    assert json.loads(body) == {'response': {'uid': 'uid1', 'allowed': True}}
    [call] = fn
    assert call['webhook'] == 'some/id'
    assert call['request'] == REVIEW
    assert call['headers']['Host'] == 'localhost'
    assert call['sslpeer'] is None


async def test_a_connection_is_used_again_and_again(port, fn):
    async with Client(port) as client:
        for _ in range(3):
            assert (await client.ask(build_request()))[0] == 200
    assert len(fn) == 3


async def test_requests_can_come_before_the_answers(port, fn):
    async with Client(port) as client:
        client.send(b''.join(build_request(path=f'/{i}') for i in range(100)))
        assert [(await client.receive())[0] for _ in range(100)] == [200] * 100
    assert [call['webhook'] for call in fn] == [str(i) for i in range(100)]


async def test_requests_can_come_byte_by_byte(port, fn):
    async with Client(port) as client:
        for byte in build_request():
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.receive())[0] == 200


async def test_requests_can_come_in_chunks(port, fn):
    raw = json.dumps(REVIEW).encode()
    body = b'5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n' % (raw[:5], len(raw) - 5, raw[5:])
    request = build_request(body, length=..., headers=['Transfer-Encoding: chunked'])
    async with Client(port) as client:
        assert (await client.ask(request))[0] == 200
        assert (await client.ask(build_request()))[0] == 200


async def test_clients_are_told_to_go_on_if_they_ask(port, fn):
    head, _, body = build_request(headers=['Expect: 100-continue']).partition(b'\r\n\r\n')
    async with Client(port) as client:
        assert (await client.ask(head + b'\r\n\r\n'))[0] == 100
        assert (await client.ask(body))[0] == 200


async def test_requests_below_the_root_are_served_and_no_others(serve, fn):
    port = get_port(await serve(path='/the/root/'))
    assert await ask(port, build_request(path='/the/root/id')) == 200
    assert await ask(port, build_request(path='/the/root')) == 200
    assert await ask(port, build_request(path='/the/rooted')) == 404
    assert await ask(port, build_request(path='/id')) == 404
    assert [call['webhook'] for call in fn] == ['id', '']


HOSTILE = [
    pytest.param(build_request(method='GET'), 405, id='get'),
    pytest.param(build_request(method='PRI', path='/'), 400, id='http2-like'),
    pytest.param(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400, id='http2'),
    pytest.param(b'\x16\x03\x01\x02\x00\x01\x00\r\n\r\n', 400, id='tls'),
    pytest.param(b'\x00' * 100 + b'\r\n\r\n', 400, id='zeros'),
    pytest.param(b'POST /' + b'a' * httpreviews.POLICY.head, 431, id='long path'),
    pytest.param(b'POST / HTTP/1.1\r\n' + b'a: b\r\n' * 20_000, 431, id='many headers'),
    pytest.param(build_request(b''), 411, id='empty'),
    pytest.param(build_request(length=...).partition(b'{')[0], 411, id='no length'),
    pytest.param(build_request(length=...), 400, id='no length, but a body'),
    pytest.param(build_request(length=httpreviews.POLICY.body + 1), 413, id='large'),
    pytest.param(build_request(length='1e3'), 400, id='strange length'),
    pytest.param(build_request(content_type='text/plain'), 415, id='text'),
    pytest.param(build_request(content_type=None), 415, id='no type'),
    pytest.param(build_request(headers=['Origin: http://evil.test']), 403, id='web page'),
    pytest.param(build_request(headers=['Connection: upgrade', 'Upgrade: h2c']), 400, id='h2c'),
    pytest.param(build_request(b'5\r\nabc', length=..., headers=[
        'Transfer-Encoding: chunked', 'Content-Length: 3']), 400, id='smuggling'),
    pytest.param(build_request(b'nonsense'), 400, id='no json'),
    pytest.param(build_request(b'[]'), 400, id='no object'),
    pytest.param(build_request(b'\xff\xfe\xfd'), 400, id='no text'),
    pytest.param(build_request(b'{"a": NaN}'), 400, id='nan'),
    pytest.param(build_request(b'[' * 1_000_000), 400, id='deep and open'),
    pytest.param(build_request(b'[' * 500_000 + b']' * 500_000), 400, id='deep'),
    pytest.param(build_request(b'{"a":' * 100_000 + b'1' + b'}' * 100_000), 400, id='deep dicts'),
    pytest.param(build_request(b'1' * 100_000), 400, id='huge number'),
    pytest.param(build_request(b'{"a": 1} {"b": 2}'), 400, id='two documents'),
]


@pytest.mark.parametrize(('raw', 'expected'), HOSTILE)
async def test_hostile_requests_have_an_error_and_a_line_in_the_log(
        port, fn, raw, expected, caplog):
    async with Client(port) as neighbour:
        assert (await neighbour.ask(build_request()))[0] == 200
        caplog.clear()
        async with Client(port) as client:
            status, _, _ = await client.ask(raw)
        assert (await neighbour.ask(build_request()))[0] == 200
    assert status == expected
    assert len(fn) == 2
    [record] = [record for record in caplog.records if record.name.startswith('kopf')]
    assert record.levelno == logging.WARNING
    assert f'is refused: {expected}' in record.getMessage()
    assert len(record.getMessage()) < 500


async def test_the_largest_objects_are_reviewed_however_their_values_are_escaped(port, fn):
    value = r'\u003c' * (1536 * 1024)  # etcd has one byte for each
    await ask(port, build_request(f'{{"old": "{value}", "new": "{value}"}}'.encode()))
    [call] = fn
    assert call['request'] == dict.fromkeys(['old', 'new'], '<' * 1536 * 1024)


@pytest.mark.parametrize(('error', 'expected'), [
    (MalformedRequestError("what?" * 1000), 400),
    (UnknownResourceError("what?" * 1000), 404),
    (RuntimeError("what?"), 500),
])
async def test_errors_of_reviews_are_errors_of_http(port, fn, error, expected):
    async def fail():
        raise error

    fn.behave = fail
    async with Client(port) as client:
        status, _, body = await client.ask(build_request())
        assert status == expected
        assert len(body) < 500
        fn.behave = None
        assert (await client.ask(build_request()))[0] == 200


async def test_all_headers_are_passed_with_the_credentials_in_them(port, fn):
    await ask(port, build_request(headers=['Authorization: Bearer topsecret', 'X-Any: thing']))
    [call] = fn
    assert call['headers']['Authorization'] == 'Bearer topsecret'
    assert call['headers']['X-Any'] == 'thing'


async def test_secrets_of_requests_are_not_logged(port, fn, caplog):
    caplog.set_level(logging.DEBUG)
    headers = ['Authorization: Bearer topsecret']
    await ask(port, build_request(headers=headers))
    await ask(port, build_request(b'topsecret', headers=headers))
    await ask(port, build_request(method='GET', headers=headers))
    await ask(port, build_request(path='/topsecret'))
    await ask(port, build_request(path='/topsecret', version='x'))
    await ask(port, build_request(path='/topsecret', headers=['topsecret']))
    await ask(port, build_request(path='/topsecret' + 'x' * httpreviews.POLICY.head))
    assert 'is refused: 431' in caplog.text
    assert 'topsecret' not in caplog.text


@pytest.mark.parametrize('part', [b'POST', build_request(b'abc', length=100)])
async def test_slow_requests_are_ended(quick, port, fn, part):
    async with Client(port) as client:
        assert (await client.ask(part))[0] == 408
        assert await client.reader.read() == b''


async def test_endless_heads_are_refused(port, fn):
    line = b'%s: x\r\n' % (b'a' * 1000)
    async with Client(port) as client:
        client.send(b'POST /id HTTP/1.1\r\n')
        for _ in range(80):
            client.send(line)
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.receive())[0] == 431
        assert await client.reader.read() == b''


async def test_silent_connections_are_ended(quick, port, fn):
    async with Client(port) as client:
        assert await client.reader.read() == b''


async def test_slow_chunks_do_not_prolong_the_time(quick, port, fn):
    async with Client(port) as client:
        client.send(build_request(b'', length=..., headers=['Transfer-Encoding: chunked']))
        sending = asyncio.create_task(send_slowly(client))
        assert (await client.receive())[0] == 408
        sending.cancel()
        await asyncio.wait([sending])


async def send_slowly(client):
    while True:
        client.send(b'1\r\na\r\n')
        await asyncio.sleep(0.02)


async def test_the_answer_is_not_lost_while_the_client_still_sends(port, fn):
    async with Client(port) as client:
        client.send(build_request(b'x' * 10, length=httpreviews.POLICY.body + 1))
        await asyncio.sleep(0.1)
        client.send(b'x' * 1_000_000)
        assert (await client.receive())[0] == 413


async def test_handlers_are_cancelled_when_nobody_waits_for_them(port, fn):
    ended = asyncio.Event()

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    fn.behave = wait
    async with Client(port) as client:
        client.send(build_request())
        while not fn:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await ended.wait()


@contextlib.asynccontextmanager
async def crowd(port, *, size):
    """Many connections of strangers, who never say anything, not even about TLS."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Client(port)) for _ in range(size)]


async def is_open(client):
    try:
        return (await client.ask(build_request()))[0] == 200
    except (asyncio.IncompleteReadError, OSError):
        return False


async def test_strangers_do_not_push_out_those_who_have_sent_reviews(serve, fn, limit):
    limit(connections=5)
    port = get_port(await serve())
    async with Client(port) as known:
        assert await is_open(known)
        async with crowd(port, size=50):
            assert await is_open(known)


async def test_newcomers_find_a_place_among_strangers(serve, fn, limit):
    limit(connections=5)
    port = get_port(await serve())
    async with crowd(port, size=20) as strangers, Client(port) as newcomer:
        assert await is_open(newcomer)
        results = [await is_open(client) for client in strangers]
    assert sum(results) == 4


async def test_of_those_who_have_sent_reviews_the_longest_idle_one_goes(serve, fn, limit):
    limit(connections=3)
    port = get_port(await serve())
    async with Client(port) as first, Client(port) as second, Client(port) as third:
        for client in (first, second, third, first):
            assert await is_open(client)
        async with Client(port) as newcomer:
            assert await is_open(newcomer)
            assert not await is_open(second)
            assert await is_open(third) and await is_open(first)


async def test_newcomers_are_refused_rather_than_requests_ended(serve, fn, limit):
    limit(connections=2)
    port = get_port(await serve())
    gate = asyncio.Event()
    fn.behave = gate.wait
    async with Client(port) as first, Client(port) as second:
        first.send(build_request())
        second.send(build_request())
        while len(fn) < 2:
            await asyncio.sleep(0.001)
        async with Client(port) as newcomer:
            assert not await is_open(newcomer)
        gate.set()
        assert [(await client.receive())[0] for client in (first, second)] == [200, 200]


async def test_unfinished_handshakes_count_as_connections(serve, fn, limit):
    limit(connections=5)
    config = await serve(insecure=False)
    context = ssl.create_default_context(cadata=base64.b64decode(config['caBundle']).decode())
    port = get_port(config)
    async with Client(port, context=context) as known:
        assert await is_open(known)
        async with crowd(port, size=20) as strangers:
            async with Client(port, context=context) as newcomer:
                assert await is_open(newcomer)
            assert await is_open(known)
            closed = [asyncio.create_task(client.reader.read()) for client in strangers]
            await asyncio.wait(closed, timeout=0.2)
            assert len([task for task in closed if not task.done()]) <= 4
            await tasks.cancel(closed)


async def test_a_request_can_come_with_the_last_words_about_tls(serve, fn):
    config = await serve(insecure=False)
    context = ssl.create_default_context(cadata=base64.b64decode(config['caBundle']).decode())
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname='127.0.0.1')
    async with Client(get_port(config)) as client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.send(outgoing.read())
                incoming.write(await client.reader.read(65536))
        tls.write(build_request())
        client.send(outgoing.read())
        received = b''
        while b'allowed' not in received:
            incoming.write(await client.reader.read(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                received += tls.read()


async def test_strangers_are_warned_about_once_in_a_while(port, fn, caplog):
    caplog.set_level(logging.DEBUG)
    for _ in range(20):
        assert await ask(port, build_request(method='GET')) == 405
    refusals = [record.levelno for record in caplog.records if 'is refused' in record.getMessage()]
    assert refusals == [logging.WARNING] + [logging.DEBUG] * 19


async def test_refused_handshakes_leave_their_descriptors_to_asyncio(serve, fn, monkeypatch):
    # If they were closed at once, new connections would get them while asyncio still uses them.
    config = await serve(insecure=False)
    context = ssl.create_default_context(cadata=base64.b64decode(config['caBundle']).decode())
    port = get_port(config)
    made = inbound.Connection.connection_made

    def make_and_refuse(connection, transport):
        made(connection, transport)
        with monkeypatch.context() as patch:
            patch.setattr(random, 'choice', lambda found: found[0])  # what still greets
            listener = connection._listener
            listener.policy, usual = listener.policy._replace(connections=1), listener.policy
            assert listener._make_place()
            listener.policy = usual

    def connect():  # and then say nothing, also not at the end
        return context.wrap_socket(
            socket.create_connection(('127.0.0.1', port)), server_hostname='127.0.0.1')

    with monkeypatch.context() as patch:
        patch.setattr(inbound.Connection, 'connection_made', make_and_refuse)
        stranger = await asyncio.to_thread(connect)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(stranger)
        newcomers = [Client(port, context=context) for _ in range(5)]
        await asyncio.gather(*map(stack.enter_async_context, newcomers))
        assert all([await is_open(newcomer) for newcomer in newcomers])


async def test_a_crowd_is_warned_about_once_in_a_while(serve, fn, caplog, limit):
    limit(connections=2)
    port = get_port(await serve())
    async with crowd(port, size=20):
        await asyncio.sleep(0.05)
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 'too many connections' in record.getMessage()


async def test_patterns_of_headers_cannot_stop_the_operator(port, fn):
    raw = b'POST /id HTTP/1.1\r\na:' + b' ' * (httpreviews.POLICY.head - 100) + b'\0\r\n\r\n'
    assert await ask(port, raw) == 400


async def test_requests_beyond_the_common_memory_are_refused(serve, fn, limit):
    limit(memory=250_000)
    port = get_port(await serve())
    large = build_request(b'x' * 200_000)
    async with Client(port) as first, Client(port) as second:
        first.send(large[:100_000])
        await asyncio.sleep(0.1)
        assert (await second.ask(large))[0] == 503
        assert await ask(port, build_request()) == 200
        assert (await first.ask(large[100_000:]))[0] == 400
    assert await ask(port, large) == 400


async def test_requests_in_progress_are_cancelled_if_the_closing_is(serve, fn):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def behave():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    fn.behave = behave
    config = await serve()
    asking = asyncio.create_task(ask(get_port(config), build_request(json.dumps(REVIEW).encode())))
    await begun.wait()
    closing = asyncio.create_task(serve.iterator.aclose())
    await asyncio.sleep(0)
    assert not ended.is_set()
    await tasks.cancel([closing])
    assert ended.is_set()
    await tasks.cancel([asking])
