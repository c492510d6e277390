import asyncio
import json

import pytest

from kopf._kits.sandbox import watches
from kopf._kits.sandbox.server import Sandbox
from kopf.testing import virtual_time
from tests._kits.sandbox.conftest import CMS, cm


def shown(events):
    return [(event['type'], event['object']['metadata'].get('name')) for event in events]


async def revision(http):
    return (await http('GET', CMS)).body['metadata']['resourceVersion']


async def test_a_watch_goes_on_from_a_revision(http):
    await http('POST', CMS, cm('a'))
    since = await revision(http)
    await http('POST', CMS, cm('b'))
    await http('DELETE', f'{CMS}/a')
    events = await http.watch(CMS, resourceVersion=since)
    assert shown(events) == [('ADDED', 'b'), ('DELETED', 'a')]


async def test_without_a_revision_it_begins_with_what_there_is(http):
    await http('POST', CMS, cm('a'))
    assert shown(await http.watch(CMS)) == [('ADDED', 'a')]


async def test_live_changes_come_while_they_happen(http, session):
    url = f'{http.url}{CMS}?watch=true&resourceVersion={await revision(http)}'
    async with session.get(url) as response:
        for name in 'abc':
            await http('POST', CMS, cm(name))
            event = json.loads(await asyncio.wait_for(response.content.readline(), 5))
            assert event['object']['metadata']['name'] == name


async def test_initial_events_end_with_a_bookmark(http):
    await http('POST', CMS, cm('a'))
    events = await http.watch(CMS, sendInitialEvents='true', allowWatchBookmarks='true',
                              resourceVersionMatch='NotOlderThan')
    assert events[0]['type'] == 'ADDED'
    assert events[1]['object']['metadata']['annotations'] == {'k8s.io/initial-events-end': 'true'}


@virtual_time
async def test_a_watch_without_bookmarks_sleeps_when_these_would_be_due():
    async with Sandbox() as sandbox:
        watch = watches.Watch(
            sandbox._cluster, sandbox._request('watch', sandbox._find('configmaps'), '', None))
        looks, take = [], watch._take
        watch._take = lambda: looks.append(1) or take()
        watching = asyncio.ensure_future(anext(watch.lines()))
        await asyncio.sleep(watches.BOOKMARK_PERIOD)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(looks) == 1
        watching.cancel()
        await asyncio.wait([watching])


async def test_a_compacted_revision_is_gone(sandbox, http):
    since = await revision(http)
    await http('POST', CMS, cm('a'))
    sandbox._cluster.store.compact()
    event, = await http.watch(CMS, resourceVersion=since)
    assert (event['type'], event['object']['code']) == ('ERROR', 410)


@pytest.mark.parametrize(('selector', 'expected'), [
    ({'labelSelector': 'x=y'}, [('ADDED', 'a'), ('MODIFIED', 'a'), ('DELETED', 'a')]),
    ({'fieldSelector': 'metadata.name=a'}, [('ADDED', 'a')] + [('MODIFIED', 'a')] * 3),
    ({'fieldSelector': 'metadata.name=b'}, []),
])
async def test_selected_objects_come_and_go(http, selector, expected):
    since = await revision(http)
    await http('POST', CMS, cm('a'))
    for patch in ({'metadata': {'labels': {'x': 'y'}}}, {'data': {'a': 'b'}},
                  {'metadata': {'labels': {'x': 'z'}}}):
        await http('PATCH', f'{CMS}/a', patch, type='application/merge-patch+json')
    assert shown(await http.watch(CMS, resourceVersion=since, **selector)) == expected


async def test_lines_are_encoded_once_for_all_watchers(sandbox, http):
    since = await revision(http)
    await http('POST', CMS, cm('a'))
    change, = sandbox._cluster.store.since(('', 'configmaps'), int(since))
    path = '/api/v1/configmaps'
    await asyncio.gather(*(http.watch(path, resourceVersion=since) for _ in range(5)))
    assert len(change.shown) == 1


async def test_watches_end_with_the_sandbox(sandbox, http, session):
    async with session.get(f'{http.url}{CMS}?watch=true') as response:
        await sandbox.stop()
        assert await asyncio.wait_for(response.content.read(), 5) == b''


async def test_watches_end_with_their_kind(sandbox, http, session, toys):
    async with session.get(f'{http.url}{toys}?watch=true') as response:
        await sandbox.delete('crd', 'toys.sandbox.test')
        assert await asyncio.wait_for(response.content.read(), 5) == b''


async def test_watchers_that_leave_are_forgotten(sandbox, http, session):
    async with session.get(f'{http.url}{CMS}?watch=true'):
        assert len(sandbox._watches._open) == 1
    for _ in range(100):
        if not sandbox._watches._open:
            break
        await asyncio.sleep(0.01)
    assert not sandbox._watches._open
