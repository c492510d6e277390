import asyncio
import contextlib
import gzip
import io
import json
import threading

import aiohttp
import pytest
from aiohttp import test_utils, web

from kopf import testing
from tests._kits.testing.httpclients import CLIENTS


@contextlib.asynccontextmanager
async def serve(handle):
    """Serve a system, with a path in its base URL; it is intercepted."""
    app = web.Application(client_max_size=10_000_000)
    app.router.add_route('*', '/v1/{rest:.*}', handle)
    async with test_utils.TestServer(app) as server:
        async with testing.intercept(str(server.make_url('/v1/'))) as interception:
            yield interception


@pytest.mark.parametrize('ask', CLIENTS)
@testing.virtual_time
async def test_calls_of_any_client_are_passed_on_as_they_are(ask):
    async def handle(request):
        return web.json_response(
            {'method': request.method, 'path': request.raw_path, 'body': await request.text(),
             'own': request.headers['X-Own'], 'host': request.host},
            status=202, headers={'X-Other': 'b'})

    async with serve(handle) as interception:
        status, body = await ask(
            'PUT', f'{interception.url}/a%2Fb?c=%20d', b'e', {'X-Own': 'f', 'Idempotency-Key': 't'})
        answer = json.loads(body)
        assert status == 202
        assert answer.pop('host') != interception.url.removeprefix('http://')
        assert answer == {'method': 'PUT', 'path': '/v1/a%2Fb?c=%20d', 'body': 'e', 'own': 'f'}
        [call] = interception.calls
        assert (call.method, call.path, call.token, call.status, call.answer['body']) == (
            'PUT', '/a%2Fb?c=%20d', 't', 202, 'e')


@testing.virtual_time
async def test_answers_are_passed_on_as_they_are():
    async def handle(request):
        response = web.Response(status=302, headers={'Location': '/elsewhere'}, text='ü' * 9999)
        response.set_cookie('a', 'b')
        response.set_cookie('c', 'd')
        response.enable_compression()
        return response

    async with serve(handle) as interception, aiohttp.ClientSession() as session:
        async with session.get(interception.url, allow_redirects=False) as response:
            assert (response.status, response.headers['Location']) == (302, '/elsewhere')
            assert {key: item.value for key, item in response.cookies.items()} == {
                'a': 'b', 'c': 'd'}
            assert await response.text() == 'ü' * 9999


@testing.virtual_time
async def test_answers_of_objects_that_are_stored_compressed_are_passed_on_as_they_are():
    async def handle(request):
        return web.Response(body=gzip.compress(b'abc'), headers={'Content-Encoding': 'gzip'})

    async with serve(handle) as interception, aiohttp.ClientSession(interception.url) as session:
        async with session.get('/') as response:
            assert await response.read() == b'abc'
        async with session.head('/') as response:
            assert response.content_length == len(gzip.compress(b'abc'))


@testing.virtual_time
async def test_large_bodies_are_passed_on():
    async def handle(request):
        return web.Response(text=f'{len(await request.read())}')

    async with serve(handle) as interception, aiohttp.ClientSession(interception.url) as session:
        async with session.post('/', data=io.BytesIO(b'x' * 3_000_000)) as response:
            assert await response.text() == '3000000'


@testing.virtual_time
async def test_faults_hit_calls_by_their_methods_and_paths():
    served = []

    async def handle(request):
        served.append(request.path)
        return web.Response()

    async with serve(handle) as interception, aiohttp.ClientSession(interception.url) as session:
        interception.faults.add(
            testing.Fault(action='refuse', verb='post', resource='/accounts/*', status=429))
        statuses = {}
        for method, path in [('POST', '/accounts/x?y'), ('GET', '/accounts/x'), ('POST', '/users')]:
            async with session.request(method, path) as response:
                statuses[method, path] = response.status
        assert list(statuses.values()) == [429, 200, 200]
        assert served == ['/v1/accounts/x', '/v1/users']


async def test_a_system_that_is_not_there_is_a_bad_gateway(unused_tcp_port):
    async with (testing.intercept(f'http://127.0.0.1:{unused_tcp_port}') as interception,
                aiohttp.ClientSession() as session, session.get(interception.url) as response):
        assert response.status == 502


@contextlib.contextmanager
def run_cloud():
    """Run a system in a thread, as if it was elsewhere."""
    cloud = testing.FakeCloud()
    started, ending = threading.Event(), asyncio.Event()

    async def live():
        async with cloud:
            started.set()
            await ending.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    started.wait()
    try:
        yield cloud
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


HANDLERS = '''
import os
import urllib.error
import urllib.request
import json

URL = os.environ['BILLING_URL'] + '/accounts'

def ask(url, data=None):
    try:
        with urllib.request.urlopen(url, data=data, timeout=5) as response:
            return json.load(response)
    except urllib.error.HTTPError as e:
        e.close()  # it is the response
        raise

@kopf.on.create('kopfexamples')
def open_account(name, patch, **_):
    found = ask(f'{URL}?name={name}')['items'] if FINDING else []
    account = found[0] if found else ask(URL, json.dumps({'name': name}).encode())
    patch.status['account'] = account['id']
'''


async def scenario(client):
    await client.create('kopfexamples', 'obj', spec={})
    await client.wait('kopfexamples', 'obj', lambda obj: obj['status']['account'], timeout=300)


def intercept(cloud):
    async def reset():
        async with aiohttp.ClientSession(cloud.url, raise_for_status=True) as session:
            for thing in cloud.things('accounts'):
                async with session.delete(f"/accounts/{thing['id']}"):
                    pass

    async def get_things():
        return cloud.things('accounts')

    return testing.intercept(cloud.url, reset=reset, things=get_things)


@pytest.mark.parametrize('finding, failed', [
    (True, set()), (False, {'call-after', 'call-lose'})])
def test_a_real_system_is_explored_through_it(finding, failed, crd, script, monkeypatch):
    with run_cloud() as cloud:
        interception = intercept(cloud)
        monkeypatch.setenv('BILLING_URL', interception.url)
        found, text = explore(
            script(HANDLERS.replace('FINDING', str(finding))), load=[crd], external=[interception])
    assert found == failed, text
    assert "There are 2 things for one name, 'obj': " in text or not failed


def explore(path, **options):
    try:
        testing.explore(
            scenario, path, strikes=['call-before', 'call-after', 'call-lose', 'call-429'],
            **options)
    except testing.ExplorationError as e:
        return {finding.strike.kind for finding in e.findings}, str(e)
    return set(), ''


TRUSTING = '''
import os
import aiohttp

@kopf.on.create('kopfexamples')
async def open_account(name, patch, **_):
    async with aiohttp.ClientSession(os.environ['BILLING_URL'], raise_for_status=True) as session:
        for _ in range(2):
            async with session.get('/accounts', params={'name': name}) as response:
                found = (await response.json())['items']
            if not found:
                async with session.post('/accounts', json={'name': name}) as response:
                    found = [await response.json()]
        patch.status['account'] = found[0]['id']
'''


def test_an_older_answer_is_the_former_one_to_the_same_request(crd, script, monkeypatch):
    with run_cloud() as cloud:
        interception = intercept(cloud)
        monkeypatch.setenv('BILLING_URL', interception.url)
        found, text = explore(
            script(TRUSTING), load=[crd], external=[interception], only='call-stale:3')
    assert found == {'call-stale'}
    assert """call 3: GET /accounts?name=obj: 200 {"items": []}""" in text
    assert "There are 2 things for one name, 'obj': " in text
