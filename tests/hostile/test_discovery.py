"""
Discovery: whatever an extension API server says about its resources, those of the others are
served; the operator lives on, and does not ask in a hurry.
"""
import json

from hypothesis import given
from hypothesis import strategies as st

from kopf.testing import virtual_time
from tests.hostile import anything, worlds

GROUP = {
    'metadata': {'name': 'bad.dev'}, 'versions': [{
        'version': 'v1', 'freshness': 'Current', 'resources': [{
            'resource': 'bads', 'singularResource': 'bad', 'scope': 'Namespaced',
            'responseKind': {'group': '', 'version': '', 'kind': 'Bad'},
            'shortNames': ['b'], 'categories': ['all'], 'verbs': ['list', 'watch', 'patch'],
            'subresources': [{'subresource': 'status', 'verbs': ['get'], 'responseKind': {}}]}]}]}
NAMED = {
    'name': 'bad.dev', 'preferredVersion': {'groupVersion': 'bad.dev/v1', 'version': 'v1'},
    'versions': [{'groupVersion': 'bad.dev/v1', 'version': 'v1'}]}
RESOURCES = {'kind': 'APIResourceList', 'groupVersion': 'bad.dev/v1', 'resources': [
    {'name': 'bads', 'singularName': 'bad', 'namespaced': True, 'kind': 'Bad',
     'shortNames': ['b'], 'categories': ['all'], 'verbs': ['list', 'watch', 'patch']},
    {'name': 'bads/status', 'namespaced': True, 'kind': 'Bad', 'verbs': ['get']}]}
RIGHT = {'kind': 'APIGroupList', 'groups': [{
    'name': 'kopf.dev', 'versions': [{'groupVersion': 'kopf.dev/v1', 'version': 'v1'}]}]}


async def assert_that_others_are_served(*, lies):
    """The handlers are for a resource of any group, so that all groups are discovered."""
    async def prepare(world):
        for path, lie in lies.items():
            world.liar.lie(lambda _, asked, path=path: asked == path, lie)

    registry = worlds.make_registry()
    async with worlds.open_world(registry, prepare=prepare) as world:
        await world.create('good')
        await world.wait_handled('good')
        asked, said = await world.rest(600)
        assert asked < 200 and said < 200, (asked, said, world.show())


def add(key, item):
    """The lie that there is one more group."""
    def lie(answer):
        answer = json.loads(answer)
        answer[key].insert(0, '@')
        return json.dumps(answer).replace('"@"', anything.encode(item)).encode()
    return lie


@given(anything.damaged(GROUP))
@virtual_time
async def test_strange_groups_in_the_aggregated_discovery(group):
    await assert_that_others_are_served(lies={'/apis': add('items', group)})


@given(anything.damaged(NAMED), anything.damaged(RESOURCES, inner=anything.nested_values))
@virtual_time
async def test_strange_groups_in_the_former_discovery(group, resources):
    await assert_that_others_are_served(lies={
        '/apis': lambda _: add('groups', group)(json.dumps(RIGHT)),
        '/apis/bad.dev/v1': lambda _: anything.encode(resources).encode()})


@given(st.binary(max_size=20) | anything.nested_values.map(anything.encode).map(str.encode) | (
    anything.damaged({'kind': 'APIGroupDiscoveryList', 'items': [GROUP]}).map(json.dumps).map(
        str.encode)))
@virtual_time
async def test_strange_answers_until_they_are_right(answer):
    async def prepare(world):
        world.liar.lie(lambda _, path: path in ('/api', '/apis'), lambda _: answer)

    async with worlds.open_world(worlds.make_registry(), prepare=prepare) as world:
        asked, said = await world.rest(600)
        assert asked < 300 and said < 100, (asked, said, world.show())
        world.liar.lies.clear()
        await world.create('good')
        await world.wait_handled('good')
