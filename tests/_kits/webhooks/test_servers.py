import asyncio
import base64
import errno
import json
import logging
import shutil
import socket
import ssl
import subprocess
import sys

import pytest

import kopf
from kopf._cogs.serving import inbound
from kopf._kits.webhooks import servers
from tests._kits.webhooks.clients import (
    REVIEW,
    Client,
    ask,
    build_request,
    write_identity,
)
from tests._kits.webhooks.conftest import get_port


def make_context(config_or_pem, own=None):
    pem = config_or_pem
    if isinstance(config_or_pem, dict):
        pem = base64.b64decode(config_or_pem['caBundle'])
    context = ssl.create_default_context(cadata=pem.decode())
    if own is not None:
        context.load_cert_chain(*own)
    return context


def write_pair(folder, *hostnames):
    paths = folder / 'cert.pem', folder / 'key.pem'
    for path, content in zip(paths, kopf.WebhookServer.build_certificate(hostnames)):
        path.write_bytes(content)
    return paths


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(inbound, 'LINGERING_TIMEOUT', 0.1)


async def test_self_signed_certificates_are_verifiable_by_what_the_api_is_told(serve, fn):
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0))
    assert config['url'].startswith('https://127.0.0.1:')
    assert await ask(get_port(config), build_request(), context=make_context(config)) == 200


async def test_http_is_served_only_if_insecure(serve, fn):
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, insecure=True))
    assert config == {'url': f'http://127.0.0.1:{get_port(config)}'}
    assert await ask(get_port(config), build_request()) == 200


async def test_given_certificates_are_used(serve, fn, tmp_path):
    certfile, pkeyfile = write_pair(tmp_path, '127.0.0.1')
    config = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, certfile=certfile, pkeyfile=str(pkeyfile)))
    assert base64.b64decode(config['caBundle']) == certfile.read_bytes()
    assert await ask(get_port(config), build_request(), context=make_context(config)) == 200


async def test_certificates_that_this_machine_trusts_need_no_authority(
        serve, fn, tmp_path, monkeypatch):
    certfile, pkeyfile = write_pair(tmp_path, 'localhost')
    monkeypatch.setenv('SSL_CERT_FILE', str(certfile))
    for host, expected in [('localhost', {'url'}), ('elsewhere', {'url', 'caBundle'})]:
        config = await serve(kopf.WebhookServer(
            host=host, port=0, certfile=certfile, pkeyfile=pkeyfile))
        assert set(config) == expected


async def test_private_keys_are_never_told(serve, fn, tmp_path):
    certfile, pkeyfile = write_pair(tmp_path, '127.0.0.1')
    both = tmp_path / 'both.pem'
    both.write_bytes(pkeyfile.read_bytes() + certfile.read_bytes())
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, certfile=both))
    assert base64.b64decode(config['caBundle']) == certfile.read_bytes()


async def test_a_given_context_is_used_as_it_is(serve, fn, tmp_path):
    certfile, pkeyfile = write_pair(tmp_path, '127.0.0.1')
    given = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    given.load_cert_chain(certfile, pkeyfile)
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, context=given))
    context = make_context(certfile.read_bytes())
    assert await ask(get_port(config), build_request(), context=context) == 200


async def test_a_given_context_without_a_certificate_gets_a_self_signed_one(serve, fn):
    given = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, context=given))
    assert await ask(get_port(config), build_request(), context=make_context(config)) == 200


async def test_passwords_are_for_given_and_for_made_keys(serve, fn, tmp_path):
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, password='secret'))
    assert await ask(get_port(config), build_request(), context=make_context(config)) == 200
    certfile, pkeyfile = tmp_path / 'cert', tmp_path / 'key'
    pair = kopf.WebhookServer.build_certificate(['127.0.0.1'], 'secret')
    for path, content in zip((certfile, pkeyfile), pair):
        path.write_bytes(content)
    config = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, certfile=certfile, pkeyfile=pkeyfile, password='secret'))
    context = make_context(pair[0])
    assert await ask(get_port(config), build_request(), context=context) == 200


async def test_encrypted_keys_without_a_password_are_refused_and_nobody_is_asked(serve, tmp_path):
    pair = tmp_path / 'pair.pem'
    pair.write_bytes(b''.join(kopf.WebhookServer.build_certificate(['127.0.0.1'], 'secret')))
    with pytest.raises(ValueError, match="The private key is encrypted"):
        await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, certfile=pair))


async def test_authorities_are_told_and_dumped(serve, tmp_path):
    dump, cafile = tmp_path / 'dump.pem', tmp_path / 'ca.pem'
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, cadump=dump))
    assert base64.b64decode(config['caBundle']) == dump.read_bytes()
    cafile.write_bytes(b'from the file')
    config = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, cadump=dump, cafile=cafile))
    assert base64.b64decode(config['caBundle']) == dump.read_bytes() == b'from the file'
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, cadata=b'as data'))
    assert base64.b64decode(config['caBundle']) == b'as data'


@pytest.mark.parametrize(('cls', 'host'), [
    (kopf.WebhookK3dServer, 'host.k3d.internal'),
    (kopf.WebhookMinikubeServer, 'host.minikube.internal'),
    (kopf.WebhookDockerDesktopServer, 'host.docker.internal'),
])
async def test_clusters_know_the_machine_by_names_of_their_own(serve, fn, cls, host):
    config = await serve(cls(port=0, path='/path'))
    assert config['url'] == f'https://{host}:{get_port(config)}/path'
    context = make_context(config)
    reader, writer = await asyncio.open_connection(
        '127.0.0.1', get_port(config), ssl=context, server_hostname=host)
    writer.close()
    await writer.wait_closed()


async def test_the_host_is_what_the_api_is_told(serve):
    config = await serve(host='example.com', addr=None)
    assert config['url'] == f'http://example.com:{get_port(config)}'


async def test_more_names_are_in_the_certificate(serve, fn):
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, extra_sans=['more.test']))
    reader, writer = await asyncio.open_connection(
        '127.0.0.1', get_port(config), ssl=make_context(config), server_hostname='more.test')
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(('addr', 'host'), [
    (None, 'localhost'), ('localhost', 'localhost'), ('0.0.0.0', '127.0.0.1'),
    ('127.0.0.2', '127.0.0.2')])
async def test_urls_are_good_on_the_machine_itself_by_default(serve, fn, addr, host):
    config = await serve(addr=addr)
    assert config['url'] == f'http://{host}:{get_port(config)}'
    assert await ask(get_port(config), build_request(), host=host) == 200


async def test_addresses_of_ipv6_are_in_brackets(serve, fn):
    config = await serve(addr='::1')
    assert config['url'].startswith('http://[::1]:')


async def test_without_an_address_nobody_else_reaches_it(serve, fn):
    config = await serve(addr=None)
    with pytest.raises(OSError):
        await ask(get_port(config), build_request(), host='127.0.0.2')


@pytest.mark.parametrize('cls', [kopf.WebhookServer, kopf.WebhookK3dServer])
async def test_it_listens_everywhere_if_it_is_reached_from_elsewhere(serve, fn, cls):
    config = await serve(cls(port=0, host='example.com', insecure=True))
    assert await ask(get_port(config), build_request(), host='127.0.0.2') == 200


async def test_another_port_is_taken_if_the_default_one_is_not_free(serve, monkeypatch):
    with socket.socket() as blocker:
        blocker.bind(('127.0.0.1', 0))
        blocker.listen()
        monkeypatch.setattr(servers, 'DEFAULT_PORT', blocker.getsockname()[1])
        config = await serve(port=None)
    assert get_port(config) != servers.DEFAULT_PORT


async def test_a_given_port_that_is_not_free_is_an_error(serve):
    with socket.socket() as blocker:
        blocker.bind(('127.0.0.1', 0))
        blocker.listen()
        with pytest.raises(OSError, match="Cannot listen at 127.0.0.1, port") as info:
            await serve(port=blocker.getsockname()[1])
    assert info.value.errno == errno.EADDRINUSE


async def test_clients_have_an_identity_only_if_it_is_verified(serve, fn, tmp_path):
    mine = write_identity(tmp_path, 'me')
    config = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, verify_cafile=mine[0]))
    port = get_port(config)
    assert await ask(port, build_request(), context=make_context(config)) == 200
    assert await ask(port, build_request(), context=make_context(config, mine)) == 200
    assert fn[0]['sslpeer'] is None
    assert fn[1]['sslpeer']['subject'] == ((('commonName', 'me'),),)
    other = write_identity(tmp_path, 'other')
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await ask(port, build_request(), context=make_context(config, other))
    assert len(fn) == 2


@pytest.mark.skipif(shutil.which('openssl') is None, reason="openssl names the files")
async def test_clients_can_be_verified_by_a_folder_of_certificates(serve, fn, tmp_path):
    mine = write_identity(tmp_path, 'me')
    folder = tmp_path / 'folder'
    folder.mkdir()
    name = subprocess.check_output(
        ['openssl', 'x509', '-noout', '-hash', '-in', str(mine[0])], text=True).strip()
    (folder / f'{name}.0').write_bytes(mine[0].read_bytes())
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0, verify_capath=folder))
    context = make_context(config, mine)
    assert await ask(get_port(config), build_request(), context=context) == 200
    assert fn[0]['sslpeer']['subject'] == ((('commonName', 'me'),),)


@pytest.mark.skipif(shutil.which('curl') is None, reason="there is no curl")
async def test_it_can_be_asked_by_curl_as_documented(serve, fn, tmp_path):
    cert, key = write_identity(tmp_path, 'me')
    dump, review = tmp_path / 'selfsigned.pem', tmp_path / 'review.json'
    review.write_text(json.dumps(REVIEW))
    config = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, cadump=dump, verify_cafile=cert))
    process = await asyncio.create_subprocess_exec(
        'curl', '--silent', '--cacert', dump, '--cert', cert, '--key', key,
        f'https://ussser:passsw@127.0.0.1:{get_port(config)}', '-d', f'@{review}',
        stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert json.loads(output)['response']['allowed'] is True
    call, = fn
    assert (call['webhook'] or None, call['request']) == (None, REVIEW)
    assert call['headers']['Authorization'] == 'Basic dXNzc2VyOnBhc3Nzdw=='
    assert call['headers']['Content-Type'] == 'application/x-www-form-urlencoded'
    assert call['sslpeer']['subject'] == ((('commonName', 'me'),),)


async def test_certificates_that_nobody_verifies_are_no_identity(serve, fn, tmp_path):
    mine = write_identity(tmp_path, 'me')
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0))
    port = get_port(config)
    assert await ask(port, build_request(), context=make_context(config, mine)) == 200
    assert fn[0]['sslpeer'] is None


async def test_clients_without_certificates_are_not_let_in_if_these_are_required(
        serve, fn, tmp_path):
    mine = write_identity(tmp_path, 'me')
    config = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, verify_cadata=mine[0].read_text(),
        verify_mode=ssl.CERT_REQUIRED))
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await ask(get_port(config), build_request(), context=make_context(config))
    assert await ask(get_port(config), build_request(), context=make_context(config, mine)) == 200
    assert len(fn) == 1


@pytest.mark.parametrize('own', [False, True])
async def test_changed_files_are_loaded_without_an_interruption(
        serve, fn, tmp_path, caplog, own):
    caplog.set_level(logging.INFO)
    certfile, pkeyfile = write_pair(tmp_path, '127.0.0.1')
    config = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, certfile=certfile, pkeyfile=pkeyfile, cafile=certfile,
        file_check_interval=0.02,
        context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if own else None))
    async with Client(get_port(config), context=make_context(config)) as early:
        assert (await early.ask(build_request()))[0] == 200
        following = asyncio.create_task(anext(serve.iterator))
        await asyncio.sleep(0.1)
        assert not following.done()
        write_pair(tmp_path, '127.0.0.1')
        pkeyfile.write_bytes(b'half of a file')
        await asyncio.sleep(0.1)
        assert "cannot be used" in caplog.text
        assert await ask(get_port(config), build_request(), context=make_context(config)) == 200
        write_pair(tmp_path, '127.0.0.1')
        renewed = await following
        assert renewed['url'] == config['url']
        assert base64.b64decode(renewed['caBundle']) == certfile.read_bytes()
        assert await ask(get_port(config), build_request(), context=make_context(renewed)) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(get_port(config), build_request(), context=make_context(config))
        assert (await early.ask(build_request()))[0] == 200


async def test_old_versions_of_tls_are_refused(serve):
    config = await serve(kopf.WebhookServer(addr='127.0.0.1', port=0))
    context = make_context(config)
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        await ask(get_port(config), build_request(), context=context)


async def test_the_port_is_free_when_it_ends(fn):
    server = kopf.WebhookServer(addr='127.0.0.1', port=0, insecure=True)
    async with server:
        port = get_port(await anext(server(fn)))
    with pytest.raises(OSError):
        await ask(port, build_request())


async def test_requests_at_work_are_answered_when_it_ends(fn):
    fn.behave = lambda: asyncio.sleep(0.3)
    server = kopf.WebhookServer(addr='127.0.0.1', port=0, insecure=True)
    async with server:
        port = get_port(await anext(server(fn)))
        request = asyncio.create_task(ask(port, build_request()))
        while not fn:
            await asyncio.sleep(0.01)
    assert await request == 200


async def test_it_can_be_inherited_as_documented(fn):
    class MyTunnel(kopf.WebhookServer):
        async def __call__(self, fn):
            async for client_config in super().__call__(fn):
                yield {**client_config, 'url': client_config['url'] + '/more'}

    async with MyTunnel(addr='127.0.0.1', port=0, insecure=True) as server:
        config = await anext(server(fn))
        assert config['url'].endswith('/more')
        assert await ask(get_port(config), build_request()) == 200


async def test_it_can_be_a_part_of_others_as_documented(fn):
    class MyTunnel:
        async def __call__(self, fn):
            server = kopf.WebhookServer(addr='127.0.0.1', port=0, insecure=True)
            async for client_config in server(fn):
                yield {**client_config, 'url': client_config['url'] + '/more'}

    iterator = MyTunnel()(fn)
    config = await anext(iterator)
    assert config['url'].endswith('/more')
    assert await ask(get_port(config), build_request()) == 200
    await iterator.aclose()


def test_nothing_heavy_is_imported_before_it_is_needed():
    assert kopf.WebhookServer(password='secret').password == 'secret'
    assert 'secret' not in repr(kopf.WebhookServer(password='secret'))
    assert 'pyngrok' not in sys.modules
    subprocess.run([sys.executable, '-c', (
        "import sys, kopf, kopf.cli, kopf._kits.running; "
        "kopf.WebhookServer(); assert 'aiohttp.web' not in sys.modules")], check=True)
