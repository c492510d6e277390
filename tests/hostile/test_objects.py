"""
Objects: their spec, status, and annotations are anything that their writers want, also where the
framework keeps its own records. Other objects are handled; so is this one when it makes sense.
"""
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kopf
from kopf.testing import virtual_time
from tests.hostile import anything, worlds

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
MERGE = 'application/merge-patch+json'
PREFIX = 'kopf.zalando.org'
RECORD = {
    'started': '2020-01-01T00:00:00.000000+00:00', 'stopped': None,
    'delayed': '2020-01-01T00:00:00.000000+00:00', 'purpose': 'create', 'retries': 1,
    'success': False, 'failure': False, 'message': 'text', 'subrefs': ['good/sub']}
IDS = ['good', 'field/status.field', 'parent', 'parent/child', 'accompany', 'gone']

notes = anything.damaged(RECORD, inner=anything.nested_values).map(anything.encode) | (
    anything.nested_values.map(anything.encode)) | st.sampled_from(['', '{', '[' * 2000, '\n'])
annotations = st.dictionaries(
    st.sampled_from(['last-handled-configuration', 'touch-dummy', 'kopf-managed', *IDS]).map(
        lambda id: f"{PREFIX}/{id.replace('/', '.')}"),
    notes, min_size=1, max_size=4).filter(lambda found: sum(map(len, found.values())) < 200_000)
progress = st.dictionaries(st.sampled_from(IDS), st.builds(
    lambda record: record, anything.damaged(RECORD)) | anything.values)
statuses = anything.values | st.fixed_dictionaries({}, optional={
    'kopf': anything.values | st.fixed_dictionaries({}, optional={
        'progress': progress | anything.values, 'dummy': anything.values,
        'last-handled-configuration': anything.values}),
    'field': anything.values, 'good': anything.values, 'parent': anything.values})
parts = st.fixed_dictionaries({}, optional={
    'spec': anything.nested_values, 'status': statuses, 'data': anything.nested_values,
    'metadata': st.fixed_dictionaries({}, optional={
        'annotations': annotations, 'finalizers': st.just([FINALIZER]),
        'labels': st.just({'kept': 'yes'})})})
histories = st.lists(parts, min_size=1, max_size=3)
"""What the object is created with, and the patches that follow."""

DAMAGED_STATE = [{'metadata': {'annotations': {f'{PREFIX}/last-handled-configuration': '{bad'}}}]
DAMAGED_RECORD = [
    {'spec': {}}, {'metadata': {'annotations': {f'{PREFIX}/parent': '{"retries": "x"}'}}}]


def make_registry(storage=None, *, plain=False):
    """With ``plain``, there are only handlers of changes: most objects need no task then."""
    registry = worlds.make_registry()

    if storage is not None:
        @kopf.on.startup(registry=registry)
        async def keep(settings, **_):
            settings.persistence.progress_storage = storage()

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    @kopf.on.resume('kopfexamples', registry=registry)
    async def parent(body, diff, retry, **_):
        str(body), str(diff)
        if not retry:
            raise kopf.TemporaryError("again", delay=1)

        @kopf.subhandler()
        async def child(**_):
            pass

    if plain:
        return registry

    @kopf.on.field('kopfexamples', id='field', field='status.field', registry=registry)
    @kopf.on.event('kopfexamples', registry=registry)
    @kopf.on.delete('kopfexamples', optional=True, registry=registry)
    async def look(body, **_):
        str(body)

    @kopf.index('kopfexamples', registry=registry)
    async def index(spec, **_):
        return {str(spec): spec}

    @kopf.daemon('kopfexamples', labels={'kept': 'yes'}, registry=registry)
    async def accompany(body, stopped, **_):
        str(body)
        await stopped.wait()

    return registry


async def play(world, part, *, new=False, name='bad'):
    """Do to one object what its writers do to it; what the API refuses does not happen."""
    if new:
        part = {**part, 'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
                'metadata': {**part.get('metadata', {}), 'name': name}}
        await world.send('POST', anything.encode(part))
    else:
        await world.send('PATCH', anything.encode(part), name, content_type=MERGE)


async def live(history, storage=None, *, plain=False):
    """The first state is there before the operator; at the end, there is another operator."""
    async with worlds.open_world(
            make_registry(storage, plain=plain),
            prepare=lambda world: play(world, history[0], new=True),
    ) as world:
        await world.create('good')
        await world.wait_handled('good')
        for part in history[1:]:
            await play(world, part)
            await world.rest(10)
        asked, said = await world.rest(600)
        assert asked < 300 and said < 1500, (asked, said, world.show())
        assert 'RecursionError' not in world.operator.text
        await world.create('later')
        await world.restart()
        await world.wait_handled('later')
        assert 'RecursionError' not in world.operator.text


@given(histories)
@example(DAMAGED_STATE)
@example(DAMAGED_RECORD)
@virtual_time
async def test_anything_in_objects(history):
    await live(history)


@given(histories)
@example(DAMAGED_STATE)
@example(DAMAGED_RECORD)
@virtual_time
async def test_anything_in_objects_with_handlers_of_changes_only(history):
    await live(history, plain=True)


@given(histories)
@virtual_time
async def test_anything_in_objects_whose_progress_is_in_the_status(history):
    await live(history, kopf.StatusProgressStorage)


@given(histories)
@virtual_time
async def test_anything_in_objects_whose_progress_is_at_two_places(history):
    await live(history, kopf.SmartProgressStorage)


@pytest.mark.parametrize('history', [DAMAGED_STATE, DAMAGED_RECORD])
@virtual_time
async def test_objects_that_are_gone_leave_no_memory_behind(history):
    names = map('bad-{}'.format, itertools.count())

    async def storm():
        for name in itertools.islice(names, 12):
            await play(world, history[0], new=True, name=name)
            for part in history[1:]:
                await play(world, part, name=name)
            await world.rest(1)
            await world.send('DELETE', '', name)
            await play(world, {'metadata': {'finalizers': None}}, name=name)

    async with worlds.open_world(make_registry()) as world:
        await world.check_memory(storm)
