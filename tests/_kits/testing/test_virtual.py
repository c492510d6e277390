import asyncio
import base64
import datetime
import io
import ssl
import sys
import threading
import time

import anyio.to_thread
import pytest
from aiohttp import ClientSession, web

import kopf
from kopf._cogs.aiokits.clocks import Clock, stand_still
from kopf._kits.webhooks import certificates
from kopf.testing import virtual_time


@pytest.fixture()
def serve():
    """Start a server in the running loop; returns its URL and a function to stop it."""
    async def serve(handler):
        runner = web.ServerRunner(web.Server(handler))
        await runner.setup()
        site = web.TCPSite(runner, '127.0.0.1', 0)
        await site.start()
        return f'http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}', runner.cleanup
    return serve


def now():
    return asyncio.get_running_loop().time()


def test_sync_functions_are_refused():
    @virtual_time
    def forgotten():
        pass

    with pytest.raises(TypeError, match=r"is for async functions, and forgotten\(\) is none"):
        forgotten()


@virtual_time
async def test_an_hour_is_over_at_once():
    started = time.monotonic()
    await asyncio.sleep(3600)
    assert now() == 3600
    assert time.monotonic() - started < 600  # on a busy machine, too


@virtual_time
async def test_the_wall_time_goes_with_it():
    clock = Clock()
    before = clock.now()
    await asyncio.sleep(3600)
    assert clock.now().wall - before.wall == datetime.timedelta(hours=1)


@virtual_time
async def test_things_happen_in_the_order_of_their_times():
    seen = []
    loop = asyncio.get_running_loop()
    for delay in (3, 1, 2):
        loop.call_later(delay, lambda delay=delay: seen.append((delay, loop.time())))
    await asyncio.sleep(4)
    assert seen == [(1, 1), (2, 2), (3, 3)]


@virtual_time
async def test_threads_take_no_time():
    async with asyncio.timeout(1):
        assert await asyncio.to_thread(lambda: time.sleep(0.05) or 'done') == 'done'
    assert now() == 0


@virtual_time
async def test_threads_of_anyio_take_no_time():
    for _ in range(2):  # in a new thread, and in one that was idle
        async with asyncio.timeout(1):
            assert await anyio.to_thread.run_sync(lambda: time.sleep(0.05) or 'done') == 'done'
        assert now() == 0
    await asyncio.sleep(3600)  # an idle thread holds nothing up
    assert now() == 3600


@virtual_time
async def test_no_time_passes_while_it_stands_still():
    loop = asyncio.get_running_loop()
    timer = asyncio.create_task(asyncio.sleep(0.001))
    done = loop.create_future()
    worker = threading.Thread(target=lambda: (
        time.sleep(0.05), loop.call_soon_threadsafe(done.set_result, None)))
    worker.start()
    with stand_still():
        await done
        assert now() == 0
    await timer
    assert now() == 0.001
    worker.join()


@virtual_time
async def test_processes_take_no_time():
    async with asyncio.timeout(1):
        process = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(1)', stdout=-1)
        out, _ = await process.communicate()
    assert (out, now()) == (b'1\n', 0)


@virtual_time
async def test_a_blocked_thread_does_not_stop_the_time():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.to_thread(time.sleep, 0.3)
    assert now() == pytest.approx(0.1, abs=0.01)


@virtual_time
async def test_servers_of_the_loop_are_talked_to_without_time(serve):
    async def handler(request):
        return web.Response(body=await request.read())

    url, stop = await serve(handler)
    async with ClientSession() as session, asyncio.timeout(0.001):
        for size in (0, 1, 1_000_000):
            async with session.post(url, data=io.BytesIO(b'x' * size)) as response:
                assert len(await response.read()) == size
    await stop()
    assert now() < 1


@virtual_time
async def test_servers_of_the_loop_take_their_time(serve):
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await asyncio.sleep(60)
            await response.write(b'x')
        return response

    url, stop = await serve(handler)
    async with ClientSession() as session, session.get(url) as response:
        times = [now() async for _ in response.content.iter_any()]
    await stop()
    assert times == [60, 120, 180]


@virtual_time
async def test_a_server_sees_that_its_client_is_gone(serve):
    ended = asyncio.Event()

    async def handler(request):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    runner = web.ServerRunner(web.Server(handler, handler_cancellation=True))
    await runner.setup()
    site = web.TCPSite(runner, '127.0.0.1', 0)
    await site.start()
    url = f'http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}'
    async with ClientSession() as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await session.get(url)
    await ended.wait()
    assert now() < 10
    await runner.cleanup()


@virtual_time
async def test_a_client_sees_that_its_server_is_gone(serve):
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'x')
        request.transport.abort()
        return response

    url, stop = await serve(handler)
    async with ClientSession() as session, session.get(url) as response:
        with pytest.raises(Exception, match=r".*"):
            await response.read()
    await stop()


@virtual_time
async def test_a_server_that_has_stopped_refuses(serve):
    async def handler(request):
        raise AssertionError

    url, stop = await serve(handler)
    await stop()
    async with ClientSession() as session:
        with pytest.raises(OSError):
            await session.get(url)


@virtual_time
async def test_the_servers_are_reachable_from_outside(serve):
    async def handler(request):
        return web.Response(text='hello')

    url, stop = await serve(handler)
    code = f'import urllib.request as r; print(r.urlopen({url!r}).read().decode())'
    process = await asyncio.create_subprocess_exec(sys.executable, '-c', code, stdout=-1)
    assert (await process.communicate())[0] == b'hello\n'
    await stop()


@pytest.fixture(scope='module')
def pair():
    return certificates.build_certificate(['127.0.0.1'])


class Echo(asyncio.Protocol):

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def trust(bundle):
    return ssl.create_default_context(cadata=bundle.decode())


@virtual_time
async def test_a_server_with_tls_is_connected_in_memory(pair):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_pair(context, pair, None)
    server = await asyncio.get_running_loop().create_server(Echo, '127.0.0.1', 0, ssl=context)
    reader, writer = await asyncio.open_connection(
        *server.sockets[0].getsockname(), ssl=trust(pair[0]))
    sent = b'x' * 300_000
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    assert writer.get_extra_info('socket') is None  # it is a pipe
    writer.close()
    await writer.wait_closed()
    server.close()


class Hasty(asyncio.Protocol):

    def connection_made(self, transport):
        transport.abort()


@virtual_time
async def test_a_connection_that_is_lost_right_after_the_handshake_is_closed(pair):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_pair(context, pair, None)
    server = await asyncio.get_running_loop().create_server(Echo, '127.0.0.1', 0, ssl=context)
    transport, _ = await asyncio.get_running_loop().create_connection(
        Hasty, *server.sockets[0].getsockname(), ssl=trust(pair[0]))
    assert transport.is_closing()  # as asyncio has it for sockets
    server.close()


@virtual_time
async def test_an_untrusted_server_in_the_loop_is_refused(pair):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_pair(context, pair, None)
    server = await asyncio.get_running_loop().create_server(Echo, '127.0.0.1', 0, ssl=context)
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(
            *server.sockets[0].getsockname(), ssl=ssl.create_default_context())
    server.close()


@pytest.mark.parametrize('insecure', [False, True])
@virtual_time
async def test_a_server_that_accepts_by_itself_is_connected_in_memory(insecure):
    async def fn(request, **_):
        return {'seen': request}

    server = kopf.WebhookServer(addr='127.0.0.1', port=0, insecure=insecure)(fn)
    config = await anext(server)
    context = True if insecure else trust(base64.b64decode(config['caBundle']))
    async with ClientSession() as session:
        async with session.post(config['url'], json={}, ssl=context) as response:
            assert await response.json() == {'seen': {}}
    port = int(config['url'].rpartition(':')[2])
    _, writer = await asyncio.open_connection(
        '127.0.0.1', port, ssl=None if insecure else context)
    assert writer.get_extra_info('socket') is None  # it is a pipe
    await server.aclose()
    writer.close()
    await writer.wait_closed()
    async with ClientSession() as session:
        with pytest.raises(OSError):
            await session.post(config['url'], json={}, ssl=context)


def test_results_and_errors_get_out():
    @virtual_time
    async def fn(a, *, b):
        if a == b:
            raise ValueError(a)
        return a + b

    assert fn(1, b=2) == 3
    with pytest.raises(ValueError):
        fn(1, b=1)
