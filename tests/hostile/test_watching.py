"""
Lists and watches: whatever an API server shows of one object, the others are handled, the operator
lives on, and nothing is done in a hurry.
"""
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf.testing import virtual_time
from tests.hostile import anything, worlds

BAD = {
    'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
    'metadata': {
        'name': 'bad', 'namespace': 'default', 'uid': 'u-bad', 'resourceVersion': '5',
        'creationTimestamp': '2020-01-01T00:00:00Z', 'generation': 1,
        'labels': {'a': 'b'}, 'annotations': {
            'kopf.zalando.org/good': '{}', 'kopf.zalando.org/last-handled-configuration': '{}'},
        'finalizers': ['f'], 'ownerReferences': [{'uid': 'x'}], 'managedFields': [{}]},
    'spec': {'field': 'value'}, 'status': {'field': 'value'},
}
LIST = {
    'kind': 'KopfExampleList', 'apiVersion': 'kopf.dev/v1',
    'metadata': {'resourceVersion': '7', 'continue': 'x', 'remainingItemCount': 5}, 'items': [BAD]}

bodies = anything.damaged(BAD, inner=anything.nested_values)
lines = st.sampled_from([
    b'', b'{', b'null', b'[]', b'5', b'{"type":"ADDED"}', b'\xff\xfe', b'[' * 100_000, b'{"type":',
    b'{"type":"ERROR","object":null}', b'{"type":"ERROR","object":{"code":[]}}']) | st.builds(
        lambda type, body: anything.encode({'type': type, 'object': body}).encode('utf-8'),
        st.sampled_from(['ADDED', 'MODIFIED', 'DELETED', 'BOOKMARK', 'ERROR', 'STRANGE', '', 5]),
        bodies | anything.damaged({
            'kind': 'Status', 'code': 410, 'reason': 'Expired', 'message': 'x',
            'details': {'retryAfterSeconds': 5}}))
heads = anything.damaged(LIST, inner=anything.nested_values).map(anything.encode).map(str.encode)


def is_list(method, path):
    return method == 'GET' and '/kopfexamples?' in path and 'watch=' not in path


def is_watch(method, path):
    return method == 'GET' and '/kopfexamples?' in path and 'watch=' in path


def make_registry():
    registry = worlds.make_registry()

    @kopf.on.event('kopfexamples', registry=registry)
    async def event(event, **_):
        str(event)

    @kopf.on.update('kopfexamples', registry=registry)
    @kopf.on.resume('kopfexamples', registry=registry)
    @kopf.on.delete('kopfexamples', registry=registry, optional=True)
    async def change(diff, meta, **_):
        str(diff), str(meta.labels), str(meta.annotations)

    @kopf.index('kopfexamples', registry=registry)
    async def index(name, **_):
        return {name: 1}

    @kopf.daemon('kopfexamples', registry=registry, labels={'a': 'b'})
    @kopf.timer('kopfexamples', registry=registry, interval=60, labels={'c': kopf.PRESENT})
    async def accompany(**_):
        pass

    return registry


async def assert_that_others_are_handled(world):
    await world.create('good')
    await world.wait_handled('good')
    await assert_little_is_done(world)


async def assert_little_is_done(world):
    """About one request every few seconds, at most, and few lines for each."""
    asked, said = await world.rest(600)
    assert asked < 300 and said < 900, (asked, said, world.show())


@given(bodies)
@virtual_time
async def test_strange_objects_in_lists(body):
    def lie(answer):
        answer = json.loads(answer)
        answer['items'].append('@')
        return json.dumps(answer).replace('"@"', anything.encode(body)).encode()

    async def prepare(world):
        world.liar.lie(is_list, lie)

    async with worlds.open_world(make_registry(), prepare=prepare) as world:
        await assert_that_others_are_handled(world)


@given(bodies, st.sampled_from(['ADDED', 'MODIFIED', 'DELETED']))
@virtual_time
async def test_strange_objects_in_watches(body, type):
    line = anything.encode({'type': type, 'object': body}).encode() + b'\n'
    async with worlds.open_world(make_registry()) as world:
        world.liar.lie(is_watch, lambda real: line + real)
        await assert_that_others_are_handled(world)


@given(lines)
@virtual_time
async def test_strange_lines_in_watches(line):
    async with worlds.open_world(make_registry()) as world:
        world.liar.lie(is_watch, lambda real: line + b'\n' + real)
        await assert_that_others_are_handled(world)


@given(heads)
@virtual_time
async def test_strange_lists_until_they_are_right(answer):
    async def prepare(world):
        world.liar.lie(is_list, lambda real: answer)

    async with worlds.open_world(make_registry(), prepare=prepare) as world:
        await assert_little_is_done(world)
        world.liar.lies.clear()
        await assert_that_others_are_handled(world)


@pytest.mark.parametrize('line', [b'{', b'{"type":"ADDED","object":{"metadata":{}}}'])
@virtual_time
async def test_strange_lines_leave_no_memory_behind(line):
    async def storm():
        for _ in range(12):
            await world.create('good')
            await world.rest(10)
            await world.api.sandbox.delete('kopfexamples', 'good')
            await world.rest(10)

    async with worlds.open_world(make_registry()) as world:
        world.liar.lie(is_watch, lambda real: line + b'\n' + real)
        await world.check_memory(storm)
