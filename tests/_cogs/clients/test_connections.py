"""
What connections are made of: credentials and their files, certificates, proxies, names of hosts.
"""
import asyncio
import base64
import contextlib
import datetime
import gc
import os
import socket
import ssl
import types

import aiohttp
import pytest
import trustme
from aiohttp import web

from kopf._cogs.clients import api, connections, errors, vaults
from kopf._cogs.structs import credentials
from tests._cogs.clients.servers import Server, drop, flow, hang, refuse, say


@pytest.fixture(autouse=True)
async def _eager(monkeypatch):
    monkeypatch.setattr(connections, 'FILES_CHECK_INTERVAL', 0)
    yield
    await asyncio.sleep(0.05)  # let the transports of TLS be closed, also those that have failed


@pytest.fixture(scope='module')
def ca():
    return trustme.CA()


@pytest.fixture()
def secure(ca):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_OPTIONAL
    ca.issue_cert('127.0.0.1', 'localhost').configure_cert(context)
    ca.configure_trust(context)
    server = Server(ssl=context)
    server.start()
    server.script(tell_peer)
    yield server
    server.stop()


async def tell_peer(request):
    """Answer with the name in the certificate of the client."""
    certificate = request.transport.get_extra_info('ssl_object').getpeercert() or {}
    names = [value for part in certificate.get('subject', ()) for _, value in part]
    return web.json_response(names[-1] if names else None)


@pytest.fixture()
def put(ca, tmp_path):
    """Put a certificate for the name in place of the former one."""
    def write(name):
        issued = ca.issue_cert(f'{name}@host', common_name=name)
        (tmp_path / 'new.pem').write_bytes(
            issued.private_key_pem.bytes() + issued.cert_chain_pems[0].bytes())
        os.replace(tmp_path / 'new.pem', tmp_path / 'tls.pem')
        return str(tmp_path / 'tls.pem')
    return write


def make_client(settings, *infos, login=None):
    vault = vaults.Vault({str(number): info for number, info in enumerate(infos)}, login=login)
    return api.Client(credentials=vault, settings=settings)


def make_info(server, **kwargs):
    return credentials.ConnectionInfo(server=server.url, **kwargs)


METHODS = pytest.mark.parametrize('method, body', [('GET', None), ('PATCH', b'{}')])


async def test_nothing_is_left_open_whenever_connecting_is_cancelled(secure, settings, ca):
    port = int(secure.url.rpartition(':')[2])
    for turns in range(40):
        info = make_info(secure, ca_data=ca.cert_pem.bytes())
        async with make_client(settings, info) as client:
            task = asyncio.create_task(client.request('PATCH', '/', body=b'{}'))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
    await asyncio.sleep(0.1)
    assert not find_open_transports(port)


async def test_nothing_is_left_open_whenever_a_change_of_credentials_is_cancelled(server, settings):
    server.script(say({}))
    for turns in range(10):
        old, new = make_info(server, token='old'), make_info(server, token='new')
        async with make_client(settings, old) as client:
            await client.request('GET', '/')
            client.vault.invalidate(old)
            client.vault.populate({'new': new})
            task = asyncio.create_task(client.request('GET', '/'))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert not [each for each in gc.get_objects()
                    if type(each) is aiohttp.ClientSession and not each.closed]


async def test_streams_are_closed_without_waiting_for_the_server(secure, settings, ca):
    port = int(secure.url.rpartition(':')[2])
    secure.script(flow(b'a', 100), on='/stream')
    async with make_client(settings, make_info(secure, ca_data=ca.cert_pem.bytes())) as client:
        async with client.stream('/stream') as content:
            assert await content.readany() == b'a'
            assert find_open_transports(port)
        assert not find_open_transports(port)


def find_open_transports(port):
    transports = [
        item for item in gc.get_objects() if type(item).__name__ == '_SelectorSocketTransport']
    return [item for item in transports if not item.is_closing()
            and item.get_extra_info('peername')[1] == port]


# Certificates.


@METHODS
async def test_client_certificates_are_read_again_when_their_files_change(
        secure, settings, ca, put, method, body,
):
    info = make_info(secure, ca_data=ca.cert_pem.bytes(), certificate_path=put('one'))
    async with make_client(settings, info) as client:
        assert await client.request(method, '/', body=body) == 'one'
        put('two')
        assert await client.request(method, '/', body=body) == 'two'
        assert len(client._pool._opened) == 1


async def test_streams_survive_the_change_of_certificates(secure, settings, ca, put):
    secure.script(flow(b'a', 0.3, b'b', then='end'), on='/stream')
    info = make_info(secure, ca_data=ca.cert_pem.bytes(), certificate_path=put('one'))
    async with make_client(settings, info) as client:
        async with client.stream('/stream') as content:
            assert await content.readany() == b'a'
            put('two')
            assert await client.request('GET', '/') == 'two'
            assert await content.readany() == b'b'
        assert len([item for item in client._pool._opened if not item.is_closed]) == 1


async def test_half_written_certificates_do_not_matter_until_they_are_complete(
        secure, settings, ca, put, tmp_path, caplog,
):
    info = make_info(secure, ca_data=ca.cert_pem.bytes(), certificate_path=put('one'))
    async with make_client(settings, info) as client:
        await client.request('GET', '/')
        (tmp_path / 'tls.pem').write_text('-----BEGIN half')
        for _ in range(3):
            assert await client.request('GET', '/') == 'one'
        put('two')
        assert await client.request('GET', '/') == 'two'
    assert len([text for text in caplog.messages if 'The former ones are used' in text]) == 1


async def test_rejected_certificates_are_replaced_by_new_ones_from_their_files(
        secure, settings, ca, put, monkeypatch,
):
    async def reply(request):
        name = (await tell_peer(request)).text
        return await (refuse(401) if name == '"one"' else say(name))(request)

    monkeypatch.setattr(connections, 'FILES_CHECK_INTERVAL', 1000)
    secure.script(reply)
    info = make_info(secure, ca_data=ca.cert_pem.bytes(), certificate_path=put('one'))
    async with make_client(settings, info) as client:
        await client._pool.connect()
        put('two')
        assert await client.request('GET', '/') == '"two"'


async def test_authorities_are_read_again_when_their_files_change(
        secure, settings, ca, tmp_path,
):
    settings.networking.error_backoffs = []
    path = tmp_path / 'ca.crt'
    path.write_bytes(trustme.CA().cert_pem.bytes())
    async with make_client(settings, make_info(secure, ca_path=path)) as client:
        with pytest.raises(errors.APIConnectionError):
            await client.request('GET', '/')
        path.write_bytes(ca.cert_pem.bytes())
        await client.request('GET', '/')


@METHODS
async def test_servers_that_are_not_trusted_are_told_with_what_to_check(
        secure, settings, method, body,
):
    settings.networking.error_backoffs = []
    info = make_info(secure, ca_data=trustme.CA().cert_pem.bytes())
    async with make_client(settings, info) as client:
        with pytest.raises(errors.APIUntrustedError, match=r"check the CA of the cluster"):
            await client.request(method, '/', body=body)


async def test_another_ca_of_the_server_is_found_by_another_login(secure, settings, ca):
    settings.networking.error_backoffs = [0, 0]
    outdated = make_info(secure, ca_data=trustme.CA().cert_pem.bytes())
    logins = []

    async def login():
        logins.append(len(logins))
        trusted = make_info(secure, ca_data=ca.cert_pem.bytes())
        return {'a': trusted if len(logins) > 1 else outdated}

    secure.script(say({'n': 1}), say({'n': 2}))
    async with api.Client(credentials=vaults.Vault(login=login), settings=settings) as client:
        assert await client.request('GET', '/') == {'n': 1}
        assert await client.request('GET', '/') == {'n': 2}
    assert logins == [0, 1]


async def test_the_same_credentials_are_kept_and_not_asked_for_too_often(secure, settings):
    settings.networking.error_backoffs = [0, 0, 0]
    logins, another = [], trustme.CA().cert_pem.bytes()

    async def login():
        logins.append(len(logins))
        return {'a': make_info(secure, ca_data=another)}

    vault = vaults.Vault(login=login)
    async with api.Client(credentials=vault, settings=settings) as client:
        with pytest.raises(errors.APIUntrustedError):
            await client.request('GET', '/')
        first = vault.select()
        with pytest.raises(errors.APIUntrustedError):
            await client.request('GET', '/')
        assert vault.select() is first
    assert logins == [0, 1]


@METHODS
async def test_servers_without_tls_are_errors_of_the_connection(server, settings, method, body):
    settings.networking.error_backoffs = []
    info = credentials.ConnectionInfo(server=server.url.replace('http:', 'https:'))
    async with make_client(settings, info) as client:
        with pytest.raises(errors.APIConnectionError):
            await client.request(method, '/', body=body)


# Several users.


async def test_users_of_the_same_priority_take_requests_at_random(server, settings):
    server.script(say({}))
    infos = [make_info(server, token=token, priority=priority)
             for token, priority in [('a', 1), ('b', 1), ('c', 0)]]
    async with make_client(settings, *infos) as client:
        for _ in range(50):
            await client.request('GET', '/')
        assert len(client._pool._opened) == 2
    sent = {request.headers['Authorization'] for request in server.requests}
    assert sent == {'Bearer a', 'Bearer b'}


async def test_the_next_priority_is_used_when_the_first_one_is_rejected(server, settings):
    async def reply(request):
        good = request.headers['Authorization'] == 'Bearer c'
        return await (say({}) if good else refuse(401))(request)

    server.script(reply)
    infos = [make_info(server, token=token, priority=priority)
             for token, priority in [('a', 1), ('b', 1), ('c', 0)]]
    async with make_client(settings, *infos) as client:
        await asyncio.gather(*[client.request('GET', '/') for _ in range(20)])
        seen = len(server.requests)
        await asyncio.gather(*[client.request('GET', '/') for _ in range(20)])
    assert {request.headers['Authorization'] for request in server.requests[seen:]} == {'Bearer c'}


async def test_a_rejection_amid_many_requests_makes_one_login_and_all_go_on(server, settings):
    logins = 0

    async def login():
        nonlocal logins
        logins += 1
        await asyncio.sleep(0.05)
        return {'a': make_info(server, token='new')}

    async def reply(request):
        await asyncio.sleep(0.01)
        good = request.headers['Authorization'] == 'Bearer new'
        return await (say({}) if good else refuse(401))(request)

    server.script(reply)
    async with make_client(settings, make_info(server, token='old'), login=login) as client:
        await asyncio.gather(*[
            client.request(method, '/', body=body)
            for method, body in [('GET', None), ('PATCH', b'{}')] * 50])
        assert len([item for item in client._pool._opened if not item.is_closed]) == 1
    assert logins == 1


async def test_rejected_ones_that_have_worked_get_another_chance(server, settings, monkeypatch):
    monkeypatch.setattr(vaults, 'PAUSES', (0.01, 0.02))
    server.script(say({}), refuse(401), refuse(401), say({'ok': True}))
    async with make_client(settings, make_info(server, token='t')) as client:
        await client.request('GET', '/')
        assert await client.request('GET', '/') == {'ok': True}
    assert len(server.requests) == 4


async def test_errors_of_the_server_do_not_prove_the_credentials(server, settings):
    server.script(refuse(503), refuse(401))
    async with make_client(settings, make_info(server, token='t')) as client:
        with pytest.raises(credentials.LoginError):
            await client.request('GET', '/')
        assert not client.vault.proven


async def test_expired_sessions_are_closed(server, settings, monkeypatch):
    server.script(say({}))
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    session = aiohttp.ClientSession(headers={'Authorization': 'Bearer one'})
    expiring = credentials.AiohttpSession(
        server=server.url, aiohttp_session=session, expiration=soon)

    async def login():
        return {'b': make_info(server, token='two')}

    async with make_client(settings, expiring, login=login) as client:
        await client.request('GET', '/')
        monkeypatch.setattr(vaults, 'datetime', types.SimpleNamespace(
            UTC=datetime.UTC, datetime=types.SimpleNamespace(now=lambda zone: soon)))
        await client.request('GET', '/')
        assert session.closed
    sent = [request.headers['Authorization'] for request in server.requests]
    assert sent == ['Bearer one', 'Bearer two']


# Connections as such.


@METHODS
async def test_a_kept_connection_that_is_closed_in_the_very_moment_does_not_matter(
        server, settings, method, body,
):
    settings.networking.error_backoffs = []
    server.script(say({}), drop(), say({'ok': True}))
    async with make_client(settings, make_info(server)) as client:
        await client.request(method, '/', body=body)
        assert await client.request(method, '/', body=body) == {'ok': True}


@METHODS
async def test_names_of_hosts_are_tried_to_be_resolved_again(
        server, settings, monkeypatch, method, body,
):
    loop = asyncio.get_running_loop()
    resolve, failures = loop.getaddrinfo, 2
    info = credentials.ConnectionInfo(server=server.url.replace('127.0.0.1', 'kube.test'))

    async def getaddrinfo(host, *args, **kwargs):
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return await resolve('127.0.0.1', *args, **kwargs)

    monkeypatch.setattr(loop, 'getaddrinfo', getaddrinfo)
    server.script(say({'ok': True}))
    async with make_client(settings, info) as client:
        assert await client.request(method, '/', body=body) == {'ok': True}
    assert failures == -1


@METHODS
async def test_connecting_is_limited_by_its_own_timeout(settings, method, body):
    settings.networking.error_backoffs = []
    settings.networking.connect_timeout = 0.1
    with socket.socket() as listener:  # it never accepts, and its queue is full
        listener.bind(('127.0.0.1', 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                sock = stack.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(('127.0.0.1', port))
            info = credentials.ConnectionInfo(server=f'http://127.0.0.1:{port}')
            async with make_client(settings, info) as client, asyncio.timeout(5):
                with pytest.raises(errors.APIConnectionError):
                    await client.request(method, '/', body=body)


@METHODS
async def test_a_slow_answer_is_waited_for_within_its_timeout(server, settings, method, body):
    settings.networking.error_backoffs = []
    settings.networking.request_timeout = 2
    server.script(flow(0.3, b'{"a"', 0.3, b': 1}', then='end'))
    async with make_client(settings, make_info(server)) as client:
        assert await client.request(method, '/', body=body) == {'a': 1}


@METHODS
async def test_an_answer_that_never_comes_is_tried_again_over_a_new_connection(
        server, settings, method, body,
):
    server.script(say({}), hang(), say({'ok': True}))
    async with make_client(settings, make_info(server)) as client:
        await client.request(method, '/', body=body)
        settings.networking.request_timeout = 0.2
        settings.networking.error_backoffs = [0.01] * 20
        assert await client.request(method, '/', body=body) == {'ok': True}


# Proxies.


class Tunnel:
    """A proxy for TLS, which wants a password."""

    def __init__(self):
        self.heads = []
        self.tasks = []

    async def __call__(self, reader, writer):
        self.tasks.append(asyncio.current_task())
        head = await reader.readuntil(b'\r\n\r\n')
        self.heads.append(head)
        host, _, port = head.split()[1].decode().rpartition(':')
        upstream = await asyncio.open_connection(host, int(port))
        writer.write(b'HTTP/1.1 200 OK\r\n\r\n')

        async def pump(source, target):
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
            target.close()
        await asyncio.gather(pump(reader, upstream[1]), pump(upstream[0], writer))


@METHODS
async def test_tls_goes_through_proxies_with_passwords(secure, settings, ca, method, body):
    tunnel = Tunnel()
    proxy = await asyncio.start_server(tunnel, '127.0.0.1', 0)
    port = proxy.sockets[0].getsockname()[1]
    info = make_info(secure, ca_data=ca.cert_pem.bytes(), token='s3cret',
                     proxy_url=f'http://user:pa55@127.0.0.1:{port}')
    async with make_client(settings, info) as client:
        assert await client.request(method, '/', body=body) is None
    proxy.close()
    await asyncio.gather(*tunnel.tasks)  # they end when both sides of their connections are closed
    authorization = base64.b64encode(b'user:pa55')
    assert b'Proxy-Authorization: Basic ' + authorization in tunnel.heads[0]
    assert b's3cret' not in tunnel.heads[0]
    assert secure.requests[0].headers['Authorization'] == 'Bearer s3cret'
    assert 'Proxy-Authorization' not in secure.requests[0].headers


@METHODS
async def test_no_request_bypasses_the_proxy(server, settings, method, body):
    server.script(say({'ok': True}))
    info = credentials.ConnectionInfo(server='http://nowhere.test', proxy_url=server.url)
    async with make_client(settings, info) as client:
        assert await client.request(method, '/path', body=body) == {'ok': True}
    assert server.requests[0].headers['Host'] == 'nowhere.test'


async def test_writes_are_encrypted_however_the_scheme_is_written(secure, ca, settings):
    info = credentials.ConnectionInfo(
        server=secure.url.replace('https', 'HTTPS'), token='s3cret',
        ca_data=ca.cert_pem.bytes())
    secure.script(say({'ok': True}))
    async with api.Client(credentials=info, settings=settings) as client:
        assert await client.request('PATCH', '/path', body=b'{}') == {'ok': True}
        assert await client.request('GET', '/path') == {'ok': True}
    assert [req.headers['Authorization'] for req in secure.requests] == ['Bearer s3cret'] * 2


@pytest.mark.parametrize('server', ['ftp://host', 'https://host:port', 'host:80'])
async def test_credentials_with_other_urls_are_of_no_use(settings, server):
    info = credentials.ConnectionInfo(server=server)
    async with api.Client(credentials=info, settings=settings) as client:
        with pytest.raises(credentials.LoginError, match='The URL of the API server'):
            await client.request('GET', '/path')


@pytest.mark.parametrize('proxy', ['socks5://host', 'http://host:port', 'host:80'])
async def test_proxies_with_other_urls_are_of_no_use(settings, proxy):
    info = credentials.ConnectionInfo(server='http://host', proxy_url=proxy)
    async with api.Client(credentials=info, settings=settings) as client:
        with pytest.raises(credentials.LoginError, match='The URL of the proxy'):
            await client.request('GET', '/path')


async def test_tokens_that_cannot_be_sent_are_of_no_use(settings, server):
    info = credentials.ConnectionInfo(server=server.url, token='s3cret-\u20ac')
    async with api.Client(credentials=info, settings=settings) as client:
        with pytest.raises(credentials.LoginError, match='Get another token') as e:
            await client.request('PATCH', '/path', body=b'{}')
    assert 's3cret' not in str(e.value)


async def test_new_tokens_that_cannot_be_sent_do_not_replace_the_former_one(
        settings, server, tmp_path, caplog):
    path = tmp_path / 'token'
    path.write_text('good')
    info = credentials.ConnectionInfo(server=server.url, token_path=path)
    server.script(say({}))
    async with api.Client(credentials=info, settings=settings) as client:
        await client.request('GET', '/path')
        path.write_text('s3cret-\u20ac')
        await client.request('GET', '/path')
    assert [req.headers['Authorization'] for req in server.requests] == ['Bearer good'] * 2
    assert 'The new token is of no use' in caplog.text
    assert 's3cret' not in caplog.text
