"""
Which requests get further headers.
"""
import collections

import pytest

from kopf._cogs.clients import transfers
from tests._cogs.clients import servers


@pytest.mark.parametrize('method, body', [('GET', None), ('PATCH', b'{}')])
async def test_headers_are_added_to_requests(server, client, method, body):
    server.script(servers.say({}), servers.say({}))
    numbers = iter(['1', '2'])
    client.add_headers(lambda: {'x-number': next(numbers)})
    await client.request(method, '/x', body=body)
    await client.unfenced().request(method, '/x', body=body)
    assert [received.headers['x-number'] for received in server.requests] == ['1', '2']
    assert all('User-Agent' in received.headers for received in server.requests)


async def test_further_attempts_get_headers_of_their_own(server, client):
    server.script(servers.refuse(503), servers.say({}))
    numbers = iter(['1', '2'])
    client.add_headers(lambda: {'x-number': next(numbers)})
    await client.request('GET', '/x')
    assert [received.headers['x-number'] for received in server.requests] == ['1', '2']


async def test_requests_without_headers_are_no_traffic(client):
    def fail():
        raise RuntimeError("boo!")

    client.add_headers(fail)
    for _ in range(transfers.POOL_SIZE + 1):
        with pytest.raises(RuntimeError, match="boo!"):
            await client.request('GET', '/x')
    assert not client.congested


async def test_requests_can_be_counted_at_the_same_time(server, client):
    server.script(servers.say({}))
    counts = collections.Counter()
    client.add_headers(lambda: {'x-number': '1'})
    client.count_requests(lambda *key: counts.update([key]))
    await client.request('GET', '/x')
    assert [received.headers['x-number'] for received in server.requests] == ['1']
    assert counts.total() == 1
