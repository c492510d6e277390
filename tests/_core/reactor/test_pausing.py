"""
Pauses of single objects: operators on the sandbox, in virtual time.
"""
import asyncio
import datetime

import pytest

import kopf
import kopf.testing
from kopf._core.intents.stopping import DaemonStoppingReason
from kopf._kits.sandbox.faults import Fault
from tests.docs.snippets import DOCS

PAUSED = {'metadata': {'annotations': {'kopf.dev/paused': 'Moving the disks'}}}
UNPAUSED = {'metadata': {'annotations': {'kopf.dev/paused': None}}}
EXAMPLES = 'kopfexamples'
DEFINITIONS, CRD = 'customresourcedefinitions', 'kopfexamples.kopf.dev'
ANYTHING = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}
WHILE = 120.0
"""How long the objects are left alone to see that nothing is called, in virtual seconds."""


def note_calls(registry, *, calls):
    """Declare handlers of all kinds, which note their calls."""
    for decorator in (kopf.on.create, kopf.on.update, kopf.on.resume, kopf.on.delete):
        @decorator(EXAMPLES, id='change', registry=registry)
        def change(reason, name, spec, old, **_):
            former = None if old is None else old.get('spec', {}).get('size')
            calls.append((str(reason), name, former, spec.get('size')))

    @kopf.on.event(EXAMPLES, id='watch', registry=registry)
    def watch(type, **_):
        calls.append(('event', type))

    @kopf.index(EXAMPLES, id='sizes', registry=registry)
    def sizes(name, spec, **_):
        return {name: spec.get('size')}

    @kopf.timer(EXAMPLES, id='tick', interval=10, registry=registry)
    def tick(**_):
        calls.append(('tick',))

    @kopf.daemon(EXAMPLES, id='stay', registry=registry)
    async def stay(stopped, **_):
        calls.append(('daemon begins',))
        await stopped.wait()
        calls.append(('daemon ends', stopped.reason))


def make_pause(*, seconds):
    until = asyncio.get_running_loop().wall_time + datetime.timedelta(seconds=seconds)
    return f'Tests; until={until.isoformat()}'


def pop(calls, *kinds):
    found = [call for call in calls if call[0] in kinds]
    calls[:] = [call for call in calls if call[0] not in kinds]
    return found


HANDLED = ('create', 'update', 'resume', 'delete', 'tick', 'daemon begins')


@pytest.fixture()
def calls():
    return []


@pytest.fixture()
def registry(calls):
    registry = kopf.OperatorRegistry()
    note_calls(registry, calls=calls)
    return registry


class World:
    """A sandbox with one object, as long as it is entered."""

    async def __aenter__(self):
        self._api = kopf.testing.open_api('sandbox')
        api = await self._api.__aenter__()
        self.client, self.operator = api.client, api.operator
        self.faults = api.sandbox.faults
        await self.client.load(DOCS.parent / 'examples' / 'crd.yaml')

    async def __aexit__(self, *args):
        await self._api.__aexit__(*args)

    async def create(self, **fields):
        await self.client.create(EXAMPLES, 'obj', **fields)

    async def define(self, **properties):
        """Let the objects have only these fields beside the spec."""
        definition = await self.client.get(DEFINITIONS, CRD)
        versions = definition['spec']['versions']
        versions[0]['schema']['openAPIV3Schema']['properties'] = {'spec': ANYTHING, **properties}
        await self.client.patch(DEFINITIONS, CRD, {'spec': {'versions': versions}})

    async def edit(self, patch):
        return await self.client.patch(EXAMPLES, 'obj', patch)

    def count_patches(self):
        """Count the PATCHes from now on, as the ``hits`` of the result."""
        return self.faults.add(Fault(action='delay', verb='patch', seconds=0))

    async def resize(self, size):
        await self.edit({'spec': {'size': size}})


@pytest.fixture()
def world():
    return World()


@kopf.testing.virtual_time
async def test_handlers_wait_while_the_object_is_paused(world, registry, calls):
    async with world, world.operator(registry=registry) as operator:
        await world.create(spec={'size': 1})
        await asyncio.sleep(15)
        assert sorted(pop(calls, *HANDLED)) == [
            ('create', 'obj', None, 1), ('daemon begins',), ('tick',), ('tick',)]

        await world.edit(PAUSED)
        await asyncio.sleep(5)
        assert [reason for _, reason in pop(calls, 'daemon ends')] == [
            DaemonStoppingReason.RESOURCE_PAUSED]
        pop(calls, 'event')
        await world.resize(2)
        await world.resize(3)
        await asyncio.sleep(WHILE)
        assert pop(calls, *HANDLED) == []
        assert pop(calls, 'event') == [('event', 'MODIFIED')] * 2  # these go on

        # What has changed meanwhile is handled once, with the difference from before.
        await world.edit(UNPAUSED)
        await asyncio.sleep(5)
        assert sorted(pop(calls, *HANDLED)) == [
            ('daemon begins',), ('tick',), ('update', 'obj', 1, 3)]
        await operator.wait_log("The object is paused: Moving the disks")
        await operator.wait_log("The object is not paused any more")


@kopf.testing.virtual_time
async def test_nothing_is_called_after_a_pause_without_changes(world, registry, calls):
    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await world.edit(PAUSED)
        await asyncio.sleep(5)
        calls.clear()
        await world.edit(UNPAUSED)
        await asyncio.sleep(5)
        assert pop(calls, 'create', 'update', 'resume') == []


@kopf.testing.virtual_time
async def test_pauses_end_by_their_time(world, registry, calls):
    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await world.edit({'metadata': {'annotations': {
            'kopf.dev/paused': make_pause(seconds=100)}}})
        await world.resize(2)
        await asyncio.sleep(80)
        assert pop(calls, 'update') == []
        await asyncio.sleep(40)
        assert pop(calls, 'update') == [('update', 'obj', 1, 2)]


@kopf.testing.virtual_time
async def test_pauses_end_by_their_time_after_the_finalizer_was_added(world):
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.on.create(EXAMPLES, registry=registry)
    @kopf.on.delete(EXAMPLES, registry=registry)
    def change(reason, **_):
        calls.append(str(reason))

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1}, metadata={'annotations': {
            'kopf.dev/paused': make_pause(seconds=100)}})
        await asyncio.sleep(80)
        assert (await world.client.get(EXAMPLES, 'obj'))['metadata']['finalizers']
        assert calls == []
        await asyncio.sleep(40)
        assert calls == ['create']


@kopf.testing.virtual_time
async def test_the_time_of_a_pause_can_be_changed(world, registry, calls):
    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await world.edit({'metadata': {'annotations': {
            'kopf.dev/paused': make_pause(seconds=50)}}})
        await world.resize(2)
        await asyncio.sleep(20)
        await world.edit({'metadata': {'annotations': {
            'kopf.dev/paused': make_pause(seconds=100)}}})
        await asyncio.sleep(80)
        assert pop(calls, 'update') == []
        await asyncio.sleep(30)
        assert pop(calls, 'update') == [('update', 'obj', 1, 2)]


@kopf.testing.virtual_time
async def test_times_in_the_past_are_no_pauses(world, registry, calls):
    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1}, metadata={'annotations': {
            'kopf.dev/paused': make_pause(seconds=-1)}})
        await asyncio.sleep(5)
        assert pop(calls, 'create') == [('create', 'obj', None, 1)]


@kopf.testing.virtual_time
async def test_operators_that_start_find_objects_paused(world, registry, calls):
    async with world:
        await world.create(spec={'size': 1}, **PAUSED)
        async with world.operator(registry=registry):
            await asyncio.sleep(WHILE)
            assert pop(calls, *HANDLED) == []
        async with world.operator(registry=registry):
            await asyncio.sleep(5)
            await world.edit(UNPAUSED)
            await asyncio.sleep(5)
            assert pop(calls, 'create') == [('create', 'obj', None, 1)]


@kopf.testing.virtual_time
async def test_deletions_wait_for_the_end_of_the_pause(world, registry, calls):
    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1}, **PAUSED)
        await asyncio.sleep(5)
        await world.client.delete(EXAMPLES, 'obj')
        await asyncio.sleep(WHILE)
        assert pop(calls, 'create', 'delete') == []
        await world.edit(UNPAUSED)
        await world.client.wait_gone(EXAMPLES, 'obj', timeout=30)
        assert pop(calls, 'create', 'delete') == [('delete', 'obj', None, 1)]


@kopf.testing.virtual_time
async def test_deletions_wait_if_there_are_only_daemons(world):
    registry, reasons = kopf.OperatorRegistry(), []

    @kopf.daemon(EXAMPLES, registry=registry)
    async def stay(stopped, **_):
        await stopped.wait()
        reasons.append(stopped.reason)

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await world.edit(PAUSED)
        await asyncio.sleep(5)
        assert reasons == [DaemonStoppingReason.RESOURCE_PAUSED]
        await world.client.delete(EXAMPLES, 'obj')
        await asyncio.sleep(WHILE)
        assert (await world.client.get(EXAMPLES, 'obj'))['metadata']['finalizers']
        await world.edit(UNPAUSED)
        await world.client.wait_gone(EXAMPLES, 'obj', timeout=30)
        assert len(reasons) == 1


@kopf.testing.virtual_time
async def test_deletions_go_on_if_the_pause_allows_them(world, registry, calls):
    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await world.edit({'metadata': {'annotations': {'kopf.dev/paused': 'x; deletion=allow'}}})
        await world.resize(2)
        await world.client.delete(EXAMPLES, 'obj')
        await world.client.wait_gone(EXAMPLES, 'obj', timeout=30)
        assert pop(calls, 'update', 'delete') == [('delete', 'obj', 1, 2)]


@kopf.testing.virtual_time
async def test_the_pause_begins_between_two_handlers(world):
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.on.create(EXAMPLES, registry=registry)
    async def first(**_):
        calls.append('first')
        await world.edit(PAUSED)
        await asyncio.sleep(5)

    @kopf.on.create(EXAMPLES, registry=registry)
    async def second(**_):
        calls.append('second')

    async with world:
        async with world.operator(registry=registry):
            await world.create(spec={'size': 1})
            await asyncio.sleep(WHILE)
            assert calls == ['first']
        async with world.operator(registry=registry):
            await asyncio.sleep(5)
            await world.edit(UNPAUSED)
            await asyncio.sleep(5)
            assert calls == ['first', 'second']


@kopf.testing.virtual_time
async def test_the_pause_begins_between_two_sub_handlers(world):
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.on.create(EXAMPLES, registry=registry)
    async def parent(**_):
        @kopf.subhandler()
        async def first(**_):
            calls.append('first')
            await world.edit(PAUSED)
            await asyncio.sleep(5)

        @kopf.subhandler()
        async def second(**_):
            calls.append('second')

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(WHILE)
        assert calls == ['first']
        await world.edit(UNPAUSED)
        await asyncio.sleep(5)
        assert calls == ['first', 'second']


@kopf.testing.virtual_time
async def test_daemons_and_timers_are_paused_while_a_handler_runs(world, registry, calls):
    @kopf.on.create(EXAMPLES, registry=registry)
    async def last(**_):
        await asyncio.sleep(60)

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await world.edit(PAUSED)
        await asyncio.sleep(5)
        assert len(pop(calls, 'daemon ends')) == 1
        pop(calls, *HANDLED)
        await asyncio.sleep(30)
        assert pop(calls, *HANDLED) == []
        await world.edit(UNPAUSED)
        await asyncio.sleep(40)
        assert set(pop(calls, 'daemon begins', 'tick')) == {('daemon begins',), ('tick',)}


@kopf.testing.virtual_time
async def test_timers_do_not_go_on_by_a_response_from_before_the_pause(world):
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.timer(EXAMPLES, interval=1, registry=registry)
    def tick(**_):
        calls.append('tick')

    @kopf.on.create(EXAMPLES, registry=registry)
    def quick(**_):
        return 'done'  # it is written while the other one runs

    @kopf.on.create(EXAMPLES, registry=registry)
    async def slow(**_):
        await asyncio.sleep(5)

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(3)
        await world.edit(PAUSED)
        await asyncio.sleep(1)
        assert calls
        calls.clear()
        await asyncio.sleep(WHILE)
        assert calls == []


@kopf.testing.virtual_time
async def test_pauses_are_seen_that_come_before_the_last_write(world, registry, calls):
    registry = kopf.OperatorRegistry()

    @kopf.timer(EXAMPLES, interval=10, registry=registry)
    def tick(**_):
        calls.append('tick')

    @kopf.on.create(EXAMPLES, registry=registry)
    async def create(**_):
        world.faults.add(Fault(action='slow', verb='watch', resource='kopfexamples*', seconds=1))
        await world.edit(PAUSED)

    async with world, world.operator(registry=registry) as operator:
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await operator.wait_log("The object is paused: Moving the disks")
        calls.clear()
        await asyncio.sleep(WHILE)
        assert calls == []
        assert 'create' not in str(await world.client.get(EXAMPLES, 'obj'))  # it is closed


@kopf.testing.virtual_time
async def test_retries_wait(world):
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.on.create(EXAMPLES, registry=registry)
    async def create(retry, **_):
        calls.append(retry)
        if retry < 2:
            raise kopf.TemporaryError("Not yet.", delay=10)

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        await world.edit(PAUSED)
        await asyncio.sleep(WHILE)
        assert calls == [0]
        await world.edit(UNPAUSED)
        await asyncio.sleep(30)
        assert calls == [0, 1, 2]


@kopf.testing.virtual_time
async def test_reconcilers_wait_and_say_so_in_a_condition(world):
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.reconcile(EXAMPLES, conditions=True, interval=50, registry=registry,
                    owns=['configmaps'])
    async def reconcile(spec, name, **_):
        calls.append(spec['size'])
        return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                 'data': {'size': str(spec['size'])}}]

    async def get_conditions():
        obj = await world.client.get(EXAMPLES, 'obj')
        return {item['type']: (item['status'], item['message'])
                for item in obj['status']['conditions']}

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        assert 'Paused' not in await get_conditions()
        await world.edit(PAUSED)
        await world.resize(2)
        calls.clear()
        await world.client.patch('configmaps', 'obj', {'data': {'size': '7'}})
        await asyncio.sleep(WHILE)
        assert calls == []
        assert (await world.client.get('configmaps', 'obj'))['data'] == {'size': '7'}
        assert (await get_conditions())['Paused'] == (
            'True', "The object is paused: Moving the disks")
        await world.edit(UNPAUSED)
        await asyncio.sleep(5)
        assert set(calls) == {2}
        assert (await world.client.get('configmaps', 'obj'))['data'] == {'size': '2'}
        conditions = await get_conditions()
        assert 'Paused' not in conditions
        assert conditions['Ready'] == ('True', '')


@kopf.testing.virtual_time
async def test_the_pause_begins_between_two_reconcilers(world):
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.reconcile(EXAMPLES, registry=registry)
    async def first(**_):
        calls.append('first')
        if len(calls) == 1:
            await world.edit(PAUSED)
            await asyncio.sleep(5)

    @kopf.reconcile(EXAMPLES, registry=registry)
    async def second(**_):
        calls.append('second')

    async with world, world.operator(registry=registry):
        await world.create(spec={'size': 1})
        await asyncio.sleep(WHILE)
        assert calls == ['first']
        await world.edit(UNPAUSED)
        await asyncio.sleep(5)
        assert calls == ['first', 'first', 'second']


@kopf.testing.virtual_time
async def test_pauses_of_objects_that_are_for_no_handler_are_not_mentioned(world):
    registry = kopf.OperatorRegistry()

    @kopf.reconcile(EXAMPLES, labels={'app': 'other'}, conditions=True, registry=registry)
    @kopf.on.update(EXAMPLES, labels={'app': 'other'}, registry=registry)
    def handle(**_):
        pass

    async with world, world.operator(registry=registry) as operator:
        await world.create(spec={'size': 1}, **PAUSED)
        await asyncio.sleep(5)
        assert not [line for line in operator.log if 'paused' in line]
        assert 'status' not in await world.client.get(EXAMPLES, 'obj')


@kopf.testing.virtual_time
async def test_paused_objects_are_left_alone(world):
    registry = kopf.OperatorRegistry()

    @kopf.reconcile(EXAMPLES, conditions=True, interval=10, owns=['configmaps'], registry=registry)
    async def reconcile(name, **_):
        return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}}]

    async with world, world.operator(registry=registry) as operator:
        await world.define()  # the server drops the conditions
        await world.create(spec={'size': 1})
        await asyncio.sleep(15)
        await world.edit(PAUSED)
        await operator.wait_log("The object is paused: Moving the disks")
        await asyncio.sleep(5)
        patches = world.count_patches()
        for size in '123':
            await world.client.patch('configmaps', 'obj', {'data': {'size': size}})
            await asyncio.sleep(WHILE)
        assert patches.hits == 3


@kopf.testing.virtual_time
async def test_conditions_that_are_refused_are_not_sent_again(world):
    registry = kopf.OperatorRegistry()

    @kopf.reconcile(EXAMPLES, conditions=True, registry=registry)
    async def reconcile(**_):
        pass

    async with world, world.operator(registry=registry) as operator:
        await world.define(status={'type': 'object', 'properties': {'conditions': {
            'type': 'array', 'maxItems': 3, 'items': ANYTHING}}})
        await world.create(spec={'size': 1})
        await asyncio.sleep(5)
        patches = world.count_patches()
        await world.edit(PAUSED)
        await asyncio.sleep(WHILE)
        assert patches.hits == 2
        await operator.wait_log("The condition of the pause is refused: ")


@pytest.mark.parametrize('annotation', [None, 'example.com/stop'])
@kopf.testing.virtual_time
async def test_the_annotation_can_be_renamed_and_switched_off(
        world, registry, calls, annotation):
    settings = kopf.OperatorSettings()
    settings.pausing.annotation = annotation
    async with world, world.operator(registry=registry, settings=settings):
        await world.create(spec={'size': 1}, **PAUSED)
        await asyncio.sleep(5)
        assert pop(calls, 'create') == [('create', 'obj', None, 1)]
        if annotation is not None:
            await world.edit({'metadata': {'annotations': {annotation: 'yes'}}})
            await world.resize(2)
            await asyncio.sleep(WHILE)
            assert pop(calls, 'update') == []
            await world.resize(1)
            await world.edit({'metadata': {'annotations': {annotation: None}}})
            await asyncio.sleep(5)
            assert pop(calls, 'update') == []  # the annotation itself is no change
