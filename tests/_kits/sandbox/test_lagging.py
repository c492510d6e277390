import asyncio
import json

import pytest

from kopf._kits.sandbox.lagging import Lag
from tests._kits.sandbox.conftest import CMS, cm


@pytest.fixture()
async def lag(sandbox, http):
    """A lag of all requests behind the creation of the second of two objects."""
    await http('POST', CMS, cm('a'))
    lag = Lag(sandbox._cluster.store.revision)
    await http('POST', CMS, cm('b'))
    sandbox.faults.get_lag = lambda target: lag
    return lag


def get_names(answer):
    return [item['metadata']['name'] for item in answer.body['items']]


async def test_lists_show_an_older_state_until_the_end_of_the_lag(http, lag):
    answer = await http('GET', CMS)
    assert get_names(answer) == ['a']
    assert answer.body['metadata']['resourceVersion'] == str(lag.revision)
    lag.end()
    assert get_names(await http('GET', CMS)) == ['a', 'b']


async def test_single_objects_are_always_the_newest(http, lag):
    assert (await http('GET', f'{CMS}/b')).status == 200


async def test_a_revision_that_the_server_does_not_know_yet_is_refused(http, lag):
    answer = await http('GET', f'{CMS}?resourceVersion={lag.revision + 1}')
    assert answer.status == 504


@pytest.mark.parametrize('query', [
    'resourceVersion={0}', 'resourceVersion=',
    'sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true'])
async def test_watches_continue_with_what_they_have_missed(query, sandbox, session, lag):
    url = f'{sandbox.url}{CMS}?watch=true&{query.format(lag.revision - 1)}'
    async with session.get(url) as response:
        found = [await read_line(response)]
        if 'Bookmarks' in query:
            bookmark = await read_line(response)
            assert bookmark['object']['metadata']['resourceVersion'] == str(lag.revision)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readuntil(b'\n'), 0.1)
        lag.end()
        found.append(await read_line(response))
    assert [(line['type'], line['object']['metadata']['name']) for line in found] == [
        ('ADDED', 'a'), ('ADDED', 'b')]


async def read_line(response):
    return json.loads(await asyncio.wait_for(response.content.readuntil(b'\n'), 10))
