"""
Which requests are counted, and as what.
"""
import collections

import pytest

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import credentials
from tests._cogs.clients import servers


@pytest.fixture()
def counts():
    return collections.Counter()


@pytest.mark.parametrize('method, body', [('GET', None), ('PATCH', b'{}'), ('POST', b'{}')])
async def test_requests_are_counted(server, client, counts, method, body):
    server.script(servers.say({}))
    client.count_requests(lambda *key: counts.update([key]))
    await client.request(method, '/x', body=body)
    assert counts == {(200, method, server.url.removeprefix('http://')): 1}


@pytest.mark.parametrize('method, body', [('GET', None), ('PATCH', b'{}')])
async def test_refusals_and_further_attempts_are_counted(server, client, counts, method, body):
    server.script(servers.refuse(503), servers.refuse(409))
    client.count_requests(lambda *key: counts.update([key]))
    with pytest.raises(errors.APIConflictError):
        await client.request(method, '/x', body=body)
    host = server.url.removeprefix('http://')
    assert counts == {(503, method, host): 1, (409, method, host): 1}


async def test_streams_are_counted(odd, counts):
    async with odd(b'{}') as client:
        client.count_requests(lambda *key: counts.update([key]))
        async with client.stream('/x') as content:
            assert await content.read() == b'{}'
    assert counts == {(200, 'GET', 'api.test'): 1}


async def test_refused_streams_are_counted(odd, counts):
    async with odd(b'{}', status=410) as client:
        client.count_requests(lambda *key: counts.update([key]))
        with pytest.raises(errors.APIGoneError):
            async with client.stream('/x'):
                pass
    assert counts == {(410, 'GET', 'api.test'): 1}


async def test_failures_in_a_stream_are_not_counted_again(server, client, counts):
    server.script(servers.flow(b'x', then='drop'))
    client.count_requests(lambda *key: counts.update([key]))
    with pytest.raises(errors.APIConnectionError):
        async with client.stream('/x') as content:
            while await content.readany():
                pass
    assert counts == {(200, 'GET', server.url.removeprefix('http://')): 1}


async def test_attempts_that_get_no_answer_are_counted_each(settings, counts):
    info = credentials.ConnectionInfo(server='http://127.0.0.1:1')
    async with api.Client(credentials=info, settings=settings) as client:
        client.count_requests(lambda *key: counts.update([key]))
        for method, body in [('GET', None), ('PATCH', b'{}')]:
            with pytest.raises(errors.APIConnectionError):
                await client.request(method, '/x', body=body)
        with pytest.raises(errors.APIConnectionError):
            async with client.stream('/x'):
                pass
    attempts = 1 + len(settings.networking.error_backoffs)
    assert counts == {
        (None, 'GET', '127.0.0.1:1'): attempts + 1, (None, 'PATCH', '127.0.0.1:1'): attempts}


async def test_attempts_without_an_answer_in_time_are_counted(server, client, counts):
    server.script(servers.hang())
    client.count_requests(lambda *key: counts.update([key]))
    with pytest.raises(errors.APIConnectionError):
        await client.request('GET', '/x', timeout=0.1, retry=False)
    assert counts == {(None, 'GET', server.url.removeprefix('http://')): 1}


async def test_open_connections_and_copies_of_the_client_count_too(server, client, counts):
    server.script(servers.say({}), servers.say({}), servers.say({}))
    await client.request('GET', '/x')
    client.count_requests(lambda *key: counts.update([key]))
    await client.request('GET', '/x')
    await client.unfenced().request('PATCH', '/x', body=b'{}')
    host = server.url.removeprefix('http://')
    assert counts == {(200, 'GET', host): 1, (200, 'PATCH', host): 1}
