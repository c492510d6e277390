import asyncio
import contextlib
import contextvars
import datetime
import itertools
import logging
import os

import aiohttp
import pytest
from aiohttp import web

from kopf import testing
from kopf._cogs.clients import api, connections, errors, sockets, transfers, vaults
from kopf._cogs.structs import credentials
from tests._cogs.clients.servers import drop, flow, hang, refuse, say, say_raw


def make_client(server, settings, **kwargs):
    return api.Client(
        credentials=credentials.ConnectionInfo(server=server.url, **kwargs), settings=settings)


async def test_answers_are_parsed(server, client):
    server.script(say({'a': [1, None]}))
    assert await client.request('GET', '/api') == {'a': [1, None]}


async def test_empty_answers_are_nothing(odd):
    async with odd(b'') as client:
        assert await client.request('DELETE', '/api') is None


async def test_garbage_is_an_error_of_the_server(odd):
    async with odd(b'{') as client:
        with pytest.raises(errors.APIServerError):
            await client.request('GET', '/api')


@pytest.mark.parametrize('depth', [300, 10_000])
async def test_answers_nested_too_deeply_are_errors_of_their_own(server, client, depth):
    server.script(say_raw(b'[' * depth + b']' * depth))
    with pytest.raises(errors.APITooDeepError, match='deeper than 250 levels'):
        await client.request('PATCH', '/api', body=b'{}')
    assert len(server.requests) == 1


async def test_requests_have_all_that_is_needed(server, client):
    server.script(say({}))
    await client.request(
        'PATCH', '/some%20path?x=y', params={'a': 'b c', 'd': '%'}, body=b'[]',
        content_type='application/json-patch+json')
    request = server.requests[0]
    assert request.method == 'PATCH'
    assert request.path == '/some path'
    assert request.query == {'x': 'y', 'a': 'b c', 'd': '%'}
    assert request.headers['Content-Type'] == 'application/json-patch+json'
    assert request.headers['Accept'] == 'application/json'
    assert request.headers['Authorization'] == 'Bearer s3cret-t0ken'
    assert request.body == b'[]'


async def compress(request):
    """Answer with as much as API servers compress, if that is accepted."""
    response = web.json_response(['x' * 150_000])
    if 'gzip' in request.headers['Accept-Encoding']:
        response.enable_compression(web.ContentCoding.gzip)
    return response


@pytest.mark.parametrize('session, accepted', [
    (None, 'gzip'),
    ({}, 'gzip'),
    ({'auto_decompress': False}, 'gzip'),
], ids=['own', 'aiohttp', 'without-decompression'])
async def test_responses_to_read_can_be_compressed(server, settings, session, accepted):
    server.script(compress)
    info = credentials.ConnectionInfo(server=server.url) if session is None else (
        credentials.AiohttpSession(
            server=server.url, aiohttp_session=aiohttp.ClientSession(**session)))
    async with api.Client(credentials=info, settings=settings) as client:
        for method, body in [('GET', None), ('PATCH', b'{}'), ('DELETE', None)]:
            assert await client.request(method, '/', body=body) == ['x' * 150_000]
        async with client.stream('/') as stream:
            content = b''
            while part := await stream.readany():
                content += part
            assert content == b'["%s"]' % (b'x' * 150_000)
    assert [request.headers['Accept-Encoding'] for request in server.requests] == [
        accepted, 'identity', 'identity', 'identity']


async def test_bodies_are_json_by_default(server, client):
    server.script(say({}))
    await client.request('POST', '/', body=b'{}')
    await client.request('GET', '/')
    assert server.requests[0].headers['Content-Type'] == 'application/json'
    assert 'Content-Type' not in server.requests[1].headers


async def test_servers_can_have_paths(server, settings):
    server.script(say({}))
    info = credentials.ConnectionInfo(server=server.url + '/k8s/clusters/c-1/')
    async with api.Client(credentials=info, settings=settings) as client:
        await client.request('GET', '/api')
    assert server.requests[0].path == '/k8s/clusters/c-1/api'


@pytest.mark.parametrize('failure', [
    refuse(500), refuse(503), refuse(429), drop(), say_raw(b'<html>', status=502),
])
async def test_temporary_errors_are_retried(server, client, failure):
    server.script(failure, failure, failure, say({'ok': True}))
    assert await client.request('GET', '/') == {'ok': True}
    assert len(server.requests) == 4


@pytest.mark.parametrize('failure, cls', [
    (refuse(500), errors.APIServerError),
    (refuse(429), errors.APITooManyRequestsError),
    (drop(), errors.APIConnectionError),
])
async def test_the_last_error_escalates(server, client, failure, cls):
    server.script(failure)
    with pytest.raises(cls):
        await client.request('PATCH', '/')
    assert len(server.requests) == 4


@pytest.mark.parametrize('status', [400, 403, 404, 409, 410, 413, 422])
async def test_other_errors_escalate_at_once(server, client, status):
    server.script(refuse(status, 'because'))
    with pytest.raises(errors.APIClientError, match='because') as caught:
        await client.request('GET', '/')
    assert caught.value.status == status
    assert len(server.requests) == 1


async def test_redirects_are_not_followed(server, client):
    server.script(say({}, status=302, headers={'Location': 'https://u:s3cret@x/api?t=s3cret'}))
    with pytest.raises(errors.APIError, match='HTTP 302: .* redirects to https://x/api,') as info:
        await client.request('GET', '/')
    assert len(server.requests) == 1
    assert 's3cret' not in f'{info.value!r} {info.value}'


@pytest.mark.parametrize('before, earlier', [
    ([], None),
    ([refuse(503)], errors.APIServerError),
    ([say({}), drop()], errors.APIConnectionError),
], ids=['first', 'retried', 'kept-connection'])
async def test_errors_tell_whether_an_earlier_attempt_can_have_been_executed(
        server, client, before, earlier):
    server.script(*before, refuse(409))
    if len(before) > 1:
        await client.request('PATCH', '/api', body=b'{}')
    with pytest.raises(errors.APIConflictError) as info:
        await client.request('PATCH', '/api', body=b'{}')
    assert type(info.value.earlier) is (earlier or type(None))


@pytest.mark.parametrize('backoffs', [[], ()])
async def test_retrying_can_be_disabled_by_settings(server, client, settings, backoffs):
    settings.networking.error_backoffs = backoffs
    server.script(refuse(500))
    with pytest.raises(errors.APIServerError):
        await client.request('GET', '/')
    assert len(server.requests) == 1


async def test_retrying_can_be_disabled_for_a_request(server, client):
    server.script(refuse(500))
    with pytest.raises(errors.APIServerError):
        await client.request('GET', '/', retry=False)
    assert len(server.requests) == 1


async def test_backoffs_can_be_given_for_a_request(server, client):
    server.script(refuse(500))
    with pytest.raises(errors.APIServerError):
        await client.request('GET', '/', backoffs=[0.01])
    assert len(server.requests) == 2


async def test_one_number_means_one_retry(server, client, settings):
    settings.networking.error_backoffs = 0.1
    server.script(refuse(500))
    with pytest.raises(errors.APIServerError):
        await client.request('GET', '/')
    assert len(server.requests) == 2
    assert server.requests[1].time - server.requests[0].time >= 0.1


class Endless:
    def __iter__(self):
        return itertools.repeat(0.001)


async def test_backoffs_can_be_endless(server, client, settings):
    settings.networking.error_backoffs = Endless()
    server.script(*[refuse(500)] * 7, say({'ok': True}))
    assert await client.request('GET', '/') == {'ok': True}


async def test_every_request_begins_with_the_first_backoff(server, client, settings):
    settings.networking.error_backoffs = [0.01]
    server.script(refuse(500), say({}), refuse(500), say({}))
    await client.request('GET', '/')
    await client.request('GET', '/')
    assert len(server.requests) == 4


async def test_the_longer_of_backoff_and_retry_after_counts(server, client, settings):
    settings.networking.error_backoffs = [0.1, 2]
    server.script(
        refuse(429, headers={'Retry-After': '1'}), refuse(429, headers={'Retry-After': '0'}),
        say({}))
    await client.request('GET', '/')
    times = [request.time for request in server.requests]
    assert times[1] - times[0] >= 1
    assert times[2] - times[1] >= 2


async def test_retry_after_can_be_enforced(server, client, settings):
    settings.networking.error_backoffs = [10, 0.2]
    settings.networking.enforce_retry_after = True
    server.script(refuse(503, headers={'Retry-After': '0.1'}), refuse(503), say({}))
    await client.request('GET', '/')
    times = [request.time for request in server.requests]
    assert 0.1 <= times[1] - times[0] < 10
    assert times[2] - times[1] >= 0.2


async def test_retry_after_in_the_body_counts_too(server, client):
    server.script(refuse(429, details={'retryAfterSeconds': 1}), say({}))
    await client.request('GET', '/')
    assert server.requests[1].time - server.requests[0].time >= 1


async def test_the_request_timeout_is_of_each_try(server, client, settings):
    settings.networking.request_timeout = 0.5
    settings.networking.error_backoffs = [0.01]
    server.script(hang())
    with pytest.raises(errors.APIConnectionError):
        await client.request('GET', '/')
    assert len(server.requests) == 2


@testing.virtual_time
async def test_a_timeout_can_be_given_for_a_request(settings):
    loop = asyncio.get_running_loop()
    settings.networking.error_backoffs = [0.1]
    async with testing.open_api('sandbox') as sandboxed:
        fault = sandboxed.sandbox.faults.add(
            testing.Fault(action='delay', seconds=60, resource='/version', count=1))
        info = credentials.ConnectionInfo(server=sandboxed.sandbox.url)
        async with api.Client(credentials=info, settings=settings) as client:
            started = loop.time()
            assert await client.request('GET', '/version', timeout=5)
            assert fault.hits == 1
            assert 5 <= loop.time() - started < 6


async def test_unreachable_servers_are_errors(settings):
    info = credentials.ConnectionInfo(server='http://127.0.0.1:1')
    async with api.Client(credentials=info, settings=settings) as client:
        with pytest.raises(errors.APIConnectionError):
            await client.request('GET', '/')


async def test_errors_have_no_passwords_of_proxies(settings):
    info = credentials.ConnectionInfo(
        server='http://127.0.0.1:2', proxy_url='http://user:s3cret@127.0.0.1:1')
    async with api.Client(credentials=info, settings=settings) as client:
        with pytest.raises(errors.APIConnectionError) as caught:
            await client.request('GET', '/')
    assert 's3cret' not in str(caught.value)


async def test_retries_are_logged_without_secrets(server, settings, caplog):
    caplog.set_level(logging.DEBUG)
    server.script(refuse(500, 'oops'), say({}))
    url = server.url.replace('//', '//user:s3cret@')
    info = credentials.ConnectionInfo(server=url)
    async with api.Client(credentials=info, settings=settings) as client:
        await client.request('GET', '/api?limit=1')
    assert caplog.messages == [
        f"Request attempt #1/4 failed; will retry: GET {server.url}/api?limit=1 -> "
        f"APIServerError('oops', status=500)"
    ]


async def test_retries_are_logged_to_the_logger_of_the_request(server, client, caplog):
    caplog.set_level(logging.DEBUG)
    server.script(refuse(500), say({}))
    await client.request('GET', '/', logger=logging.getLogger('mine'))
    assert [record.name for record in caplog.records] == ['mine']


async def test_the_number_of_endless_tries_is_not_logged(server, client, settings, caplog):
    caplog.set_level(logging.DEBUG)
    settings.networking.error_backoffs = Endless()
    server.script(refuse(500), say({}))
    await client.request('GET', '/')
    assert "Request attempt #1 failed" in caplog.text


async def test_warnings_of_the_api_are_logged_once_each(server, client, caplog):
    one, two = '299 - "say \\"A\\""', '299 api "say B"'
    server.script(
        say({}, headers={'Warning': one}), say({}, headers={'Warning': f'{one}, {two}'}),
        say({}, headers={'Warning': '199 - "no"'}))
    for _ in range(3):
        await client.request('GET', '/')
    assert caplog.messages == ['The API warns: say "A"', 'The API warns: say B']


async def test_connections_are_kept_for_the_next_requests(server, client):
    server.script(say({}))
    for _ in range(10):
        await client.request('GET', '/')
    assert len({request.peer for request in server.requests}) == 1


async def test_requests_at_once_share_a_small_pool(server, client):
    server.script(say({}))
    await asyncio.gather(*[client.request('GET', '/') for _ in range(100)])
    assert len({request.peer for request in server.requests}) <= transfers.POOL_SIZE


async def test_streams_do_not_take_places_in_the_pool(server, client):
    server.script(flow(b'x'), on='/stream')
    server.script(say({'ok': True}))
    async with asyncio.TaskGroup() as group, asyncio.timeout(20):
        done = asyncio.Event()

        async def stream():
            async with client.stream('/stream') as content:
                await content.readany()
                await done.wait()

        for _ in range(transfers.POOL_SIZE * 2):
            group.create_task(stream())
        assert await client.request('GET', '/') == {'ok': True}
        done.set()


async def test_streams_raise_errors(server, client):
    server.script(refuse(403, 'forbidden'))
    with pytest.raises(errors.APIForbiddenError, match='forbidden'):
        async with client.stream('/'):
            pass
    assert len(server.requests) == 1


async def test_settings_apply_at_once(server, client, settings):
    server.script(hang(), say({}))
    settings.networking.request_timeout = 0.5
    await client.request('GET', '/')
    settings.networking.error_backoffs = []
    server.script(refuse(500))
    with pytest.raises(errors.APIServerError):
        await client.request('GET', '/')


# Credentials.


async def test_passwords_are_sent_as_basic_authentication(server, settings):
    server.script(say({}))
    async with make_client(server, settings, username='u', password='p') as client:
        await client.request('GET', '/')
    assert server.requests[0].headers['Authorization'] == 'Basic dTpw'


async def test_rejected_credentials_cannot_be_used_again(server, client):
    server.script(refuse(401))
    with pytest.raises(credentials.LoginError):
        await client.request('GET', '/')
    with pytest.raises(credentials.LoginError):
        await client.request('GET', '/')
    assert len(server.requests) == 1


async def test_other_credentials_are_tried_when_some_are_rejected(server, settings):
    server.script(refuse(401), say({'ok': True}))
    vault = vaults.Vault({
        'a': credentials.ConnectionInfo(server=server.url, token='one', priority=2),
        'b': credentials.ConnectionInfo(server=server.url, token='two', priority=1),
    })
    async with api.Client(credentials=vault, settings=settings) as client:
        assert await client.request('GET', '/') == {'ok': True}
    sent = [request.headers['Authorization'] for request in server.requests]
    assert sent == ['Bearer one', 'Bearer two']


async def test_streams_that_break_are_errors_of_the_network(server, client):
    server.script(flow(b'x', then='drop'))
    with pytest.raises(errors.APIConnectionError):
        async with client.stream('/') as content:
            while await content.readany():
                pass


async def test_rejected_streams_are_tried_with_other_credentials(server, settings):
    server.script(refuse(401), flow(b'x'))
    vault = vaults.Vault({
        'a': credentials.ConnectionInfo(server=server.url, token='one', priority=2),
        'b': credentials.ConnectionInfo(server=server.url, token='two', priority=1),
    })
    async with api.Client(credentials=vault, settings=settings) as client:
        async with client.stream('/') as content:
            assert await content.readany() == b'x'


async def test_expired_credentials_are_replaced_before_they_are_used(server, settings):
    async def login():
        return {'a': credentials.ConnectionInfo(server=server.url, token='new')}

    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    vault = vaults.Vault(
        {'a': credentials.ConnectionInfo(server=server.url, token='old', expiration=soon)},
        login=login)
    server.script(say({}))
    async with api.Client(credentials=vault, settings=settings) as client:
        await client.request('GET', '/')
        await asyncio.sleep(1.05)
        await client.request('GET', '/')
    sent = [request.headers['Authorization'] for request in server.requests]
    assert sent == ['Bearer old', 'Bearer new']


async def test_requests_under_way_survive_the_change_of_credentials(server, settings):
    server.script(flow(b'[', 0.3, b']', then='end'), on='/slow')
    server.script(refuse(401), say({}))
    vault = vaults.Vault({
        'a': credentials.ConnectionInfo(server=server.url, token='one', priority=2),
        'b': credentials.ConnectionInfo(server=server.url, token='two', priority=1),
    })
    async with api.Client(credentials=vault, settings=settings) as client:
        slow = asyncio.create_task(client.request('GET', '/slow'))
        await asyncio.sleep(0.1)
        await client.request('GET', '/')
        assert await slow == []
        assert len(client._pool._opened) <= 2
    assert sum(request.path == '/slow' for request in server.requests) == 1


async def test_tokens_in_files_are_read_again_when_they_change(
        server, settings, tmp_path, monkeypatch,
):
    monkeypatch.setattr(connections, 'FILES_CHECK_INTERVAL', 0)
    path = tmp_path / 'token'
    path.write_text('one\n')
    server.script(say({}))
    async with make_client(server, settings, token_path=path) as client:
        await client.request('GET', '/')
        path.write_text('two\n')
        os.utime(path, (1, 1))
        await client.request('GET', '/')
        path.unlink()
        await client.request('GET', '/')
    sent = [request.headers.get('Authorization') for request in server.requests]
    assert sent[:2] == ['Bearer one', 'Bearer two']


async def test_tokens_in_files_are_read_again_when_they_are_rejected(server, settings, tmp_path):
    path = tmp_path / 'token'
    path.write_text('one')
    server.script(say({}), refuse(401), say({'ok': True}))
    async with make_client(server, settings, token_path=path) as client:
        await client.request('GET', '/')
        path.write_text('two')
        assert await client.request('GET', '/') == {'ok': True}
    sent = [request.headers['Authorization'] for request in server.requests]
    assert sent[-1] == 'Bearer two'


async def test_tokens_renewed_by_one_request_are_not_rejected_by_another(
        server, settings, tmp_path,
):
    path = tmp_path / 'token'
    path.write_text('one')

    async def reply(request):
        is_known = request.headers['Authorization'] == f'Bearer {path.read_text()}'
        return await (say({'ok': True}) if is_known else refuse(401))(request)

    server.script(reply)
    async with make_client(server, settings, token_path=path) as client:
        await client.request('GET', '/first')
        path.write_text('two')
        answers = await asyncio.gather(*[client.request('GET', '/x') for _ in range(5)])
    assert answers == [{'ok': True}] * 5


async def test_unusable_credentials_do_not_hide_usable_ones(server, settings):
    server.script(say({'ok': True}))
    vault = vaults.Vault({
        'a': credentials.ConnectionInfo(
            server='https://nowhere.test', ca_path='/nowhere', priority=2),
        'b': credentials.ConnectionInfo(server=server.url, priority=1),
    })
    async with api.Client(credentials=vault, settings=settings) as client:
        assert await client.request('GET', '/') == {'ok': True}


async def test_why_credentials_are_unusable_is_told(settings):
    info = credentials.ConnectionInfo(server='https://nowhere.test', ca_path='/nowhere')
    async with api.Client(credentials=info, settings=settings) as client:
        with pytest.raises(credentials.LoginError, match='/nowhere|absent'):
            await client.request('GET', '/')


async def test_ready_made_sessions_are_used_as_they_are_and_closed(server, settings):
    server.script(flow(b'x'), on='/stream')
    server.script(say({'ok': True}))
    session = aiohttp.ClientSession(headers={'X-Mine': 'yes'})
    info = credentials.AiohttpSession(server=server.url, aiohttp_session=session)
    async with api.Client(credentials=info, settings=settings) as client:
        assert await client.request('GET', '/') == {'ok': True}
        async with client.stream('/stream') as content:
            assert await content.readany() == b'x'
    assert all(request.headers['X-Mine'] == 'yes' for request in server.requests)
    assert session.closed


async def test_connections_that_are_made_after_closing_are_closed_after_their_requests(
        server, settings):
    server.script(say({}), say({}))
    client = api.Client(
        credentials=credentials.ConnectionInfo(server=server.url), settings=settings)
    await client.close()
    for number in range(2):
        await asyncio.gather(client.request('GET', '/'), client.request('GET', '/'))
        assert [item.is_closed for item in client._pool._opened] == [True] * (number + 1)


# The environment.


@pytest.fixture()
def _no_env(monkeypatch):
    for name in ['HTTP_PROXY', 'http_proxy', 'NO_PROXY', 'no_proxy', 'NETRC']:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures('_no_env')
async def test_proxies_of_the_environment_are_ignored_by_default(server, client, monkeypatch):
    monkeypatch.setenv('HTTP_PROXY', 'http://127.0.0.1:1')
    server.script(say({'ok': True}))
    assert await client.request('GET', '/') == {'ok': True}


@pytest.mark.usefixtures('_no_env')
@pytest.mark.parametrize('scheme', ['http://', 'HTTP://', ''])
async def test_proxies_of_the_environment_are_used_if_trusted(
        server, settings, monkeypatch, scheme,
):
    settings.networking.trust_env = True
    monkeypatch.setenv('HTTP_PROXY', server.url.replace('http://', scheme))
    server.script(say({'ok': True}))
    info = credentials.ConnectionInfo(server='http://nowhere.test', token='x')
    async with api.Client(credentials=info, settings=settings) as client:
        assert await client.request('GET', '/') == {'ok': True}
    assert server.requests[0].headers['Host'] == 'nowhere.test'


@pytest.mark.usefixtures('_no_env')
@pytest.mark.parametrize('token', ['x', None])
@pytest.mark.parametrize('excluded', [
    '127.0.0.1', '.svc, 10.0.0.0/8, 127.0.0.0/8', '::1,127.1.2.3/8'])
async def test_excluded_hosts_are_connected_without_a_proxy(
        server, settings, monkeypatch, excluded, token,
):
    settings.networking.trust_env = True
    monkeypatch.setenv('HTTP_PROXY', 'http://127.0.0.1:1')
    monkeypatch.setenv('NO_PROXY', excluded)
    server.script(say({'ok': True}))
    async with make_client(server, settings, token=token) as client:
        assert await client.request('GET', '/') == {'ok': True}


@pytest.mark.usefixtures('_no_env')
@pytest.mark.parametrize('excluded', ['10.0.0.0/8', '128.0.0.0/8,x/y,,127.0.0.0/33', '::/0'])
async def test_hosts_are_not_excluded_by_other_networks(server, settings, monkeypatch, excluded):
    settings.networking.trust_env = True
    monkeypatch.setenv('HTTP_PROXY', server.url)
    monkeypatch.setenv('NO_PROXY', excluded)
    server.script(say({'ok': True}))
    info = credentials.ConnectionInfo(server='http://127.0.0.1:1')
    async with api.Client(credentials=info, settings=settings) as client:
        assert await client.request('GET', '/') == {'ok': True}


@pytest.mark.usefixtures('_no_env')
async def test_the_proxy_of_the_credentials_is_used(server, settings):
    server.script(say({'ok': True}))
    info = credentials.ConnectionInfo(server='http://nowhere.test', proxy_url=server.url)
    async with api.Client(credentials=info, settings=settings) as client:
        assert await client.request('GET', '/') == {'ok': True}


@pytest.mark.usefixtures('_no_env')
@pytest.mark.parametrize('trusted, token, expected', [
    (True, None, 'Basic bmV0cmN1c2VyOm5ldHJjcGFzcw=='),
    (True, 'mine', 'Bearer mine'),
    (False, None, None),
])
async def test_netrc_counts_for_those_without_other_credentials(
        server, settings, monkeypatch, tmp_path, trusted, token, expected,
):
    netrc = tmp_path / 'netrc'
    netrc.write_text('machine 127.0.0.1 login netrcuser password netrcpass\n')
    monkeypatch.setenv('NETRC', str(netrc))
    settings.networking.trust_env = trusted
    server.script(say({}))
    async with make_client(server, settings, token=token) as client:
        await client.request('GET', '/')
    assert server.requests[0].headers.get('Authorization') == expected


class Tenure:
    """Terms as the test says."""

    def __init__(self):
        self.term = 1

    def verify(self, term):
        if term is None or term != self.term:
            raise errors.NotLeadingError("not leading")


@pytest.fixture()
def tenure(client):
    tenure = Tenure()
    client.fence_writes(tenure)
    return tenure


@pytest.fixture(params=['direct', 'proxy'])
async def limited(request, server, settings):
    """A client with a tenure, with the fast connections for writes, or with those of aiohttp."""
    server.script(say({}))
    info = credentials.ConnectionInfo(server=server.url) if request.param == 'direct' else (
        credentials.ConnectionInfo(server='http://nowhere.test', proxy_url=server.url))
    async with api.Client(credentials=info, settings=settings) as client:
        client.fence_writes(Tenure())
        yield client


async def test_writes_are_sent_within_a_term(limited, server):
    assert await limited.request('PATCH', '/path', body=b'{}') == {}
    assert server.requests[0].body == b'{}'


async def test_writes_are_not_sent_outside_of_the_terms(limited, server):
    limited._tenure.term = None
    with pytest.raises(errors.NotLeadingError):
        await limited.request('PATCH', '/path', body=b'{}')
    assert [req for req in server.requests if req.body] == []


@pytest.mark.parametrize('refused', ['permit', 'term', None])
async def test_writes_are_sent_only_if_both_the_term_and_the_permit_allow_it(
        limited, server, refused):
    def permit():
        if refused == 'permit':
            raise RuntimeError("not permitted")

    limited._tenure.term = None if refused == 'term' else 1
    expectation = contextlib.nullcontext() if refused is None else pytest.raises(
        RuntimeError if refused == 'permit' else errors.NotLeadingError)
    with expectation:
        await limited.request('PATCH', '/path', body=b'{}', permit=permit)
    assert len([req for req in server.requests if req.body]) == (refused is None)


async def test_reading_is_not_limited(limited, server):
    limited._tenure.term = None
    assert await limited.request('GET', '/path') == {}


async def test_writes_without_limits_are_sent_at_any_time(limited, server):
    limited._tenure.term = None
    assert await limited.unfenced().request('PATCH', '/path', body=b'{}') == {}


async def test_writes_belong_to_the_term_that_was_entered(limited, server):
    limited.enter_term()
    limited.verify_term()
    assert await limited.request('PATCH', '/path', body=b'{}') == {}
    limited._tenure.term = 2
    with pytest.raises(errors.NotLeadingError):
        limited.verify_term()
    with pytest.raises(errors.NotLeadingError):
        await limited.request('PATCH', '/path', body=b'{}')
    assert len([req for req in server.requests if req.body]) == 1
    limited.enter_term()
    assert await limited.request('PATCH', '/path', body=b'{}') == {}


async def test_writes_in_other_contexts_belong_to_the_present_term(limited):
    async def enter():
        limited.enter_term()

    await asyncio.create_task(enter())
    limited._tenure.term = 2
    limited.verify_term()
    assert await limited.request('PATCH', '/path', body=b'{}') == {}


async def test_writes_that_threads_ask_for_belong_to_the_term_of_the_thread(limited):
    loop = asyncio.get_running_loop()

    def write():
        return asyncio.run_coroutine_threadsafe(
            limited.request('PATCH', '/path', body=b'{}'), loop).result()

    async def enter():
        limited.enter_term()
        return contextvars.copy_context()

    context = await asyncio.create_task(enter())
    assert await loop.run_in_executor(None, context.run, write) == {}
    limited._tenure.term = 2
    with pytest.raises(errors.NotLeadingError):
        await loop.run_in_executor(None, context.run, write)


async def test_terms_of_other_clients_do_not_matter(limited, server, settings):
    info = credentials.ConnectionInfo(server=server.url)
    async with api.Client(credentials=info, settings=settings) as other:
        other.fence_writes(Tenure())
        other.enter_term()
        limited._tenure.term = 2
        assert await limited.request('PATCH', '/path', body=b'{}') == {}


async def test_requests_without_limits_count_as_traffic(client, server, until):
    server.script(*[hang()] * transfers.POOL_SIZE)
    assert not client.congested
    requests = [
        asyncio.create_task(client.unfenced().request('GET', '/path', timeout=60))
        for _ in range(transfers.POOL_SIZE)]
    await until(lambda: client.congested)
    assert not client.overloaded
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)
    assert not client.congested


async def test_requests_that_wait_for_many_rounds_are_an_overload(client, server, until):
    count = transfers.POOL_SIZE * api.OVERLOAD
    server.script(*[hang()] * transfers.POOL_SIZE)
    requests = [
        asyncio.create_task(client.request('GET', '/path', timeout=60)) for _ in range(count)]
    await until(lambda: client.overloaded)
    requests[-1].cancel()
    await asyncio.wait(requests[-1:])
    assert client.congested and not client.overloaded
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)


async def test_term_is_checked_right_before_the_write_and_not_before_the_connection(
        limited, server, monkeypatch):
    def lose(address):
        limited._tenure.term = None  # as if the process were suspended while it connects
        return make_socket(address)

    make_socket = sockets.make_socket
    monkeypatch.setattr(sockets, 'make_socket', lose)
    with pytest.raises(errors.NotLeadingError):
        await limited.request('PATCH', '/path', body=b'{}')
    assert [req for req in server.requests if req.body] == []


async def test_write_that_was_begun_in_a_former_term_is_not_sent_in_the_next_one(
        client, server, tenure):
    async def fail(request):
        tenure.term += 1
        return web.Response(status=500)

    server.script(fail)
    with pytest.raises(errors.NotLeadingError):
        await client.request('PATCH', '/path', body=b'{}')
    assert len(server.requests) == 1


async def test_writes_under_way_are_dropped_at_the_end_of_a_term(client, server, tenure):
    server.script(hang())
    writing = asyncio.create_task(client.request('PATCH', '/path', body=b'{}'))
    while not server.requests:
        await asyncio.sleep(0.01)
    tenure.term = None
    client.reset_writes()
    with pytest.raises(errors.NotLeadingError):
        await writing
    server.script(say({}))
    tenure.term = 2
    assert await client.request('PATCH', '/path', body=b'{}') == {}


async def test_streams_are_ended_if_they_are_old_enough(client, server):
    server.script(flow(b'x'))
    async with client.stream('/path', params={'watch': 'true'}) as content:
        assert await content.readany() == b'x'
        client.reset_streams(age=100)
        waiting = asyncio.create_task(content.readany())
        await asyncio.sleep(0)
        assert not waiting.done()
        client.reset_streams(age=0)
        assert await waiting == b''
    client.reset_streams(age=0)
