"""
Brakes: operators on the sandbox, in virtual time, with a handler that suddenly wants less.
"""
import asyncio

import pytest

import kopf
import kopf.testing
from tests.crds import make_crd
from tests.docs.snippets import DOCS

EXAMPLES = 'kopfexamples'
PARENTS = 60
RELEASED = {'metadata': {'annotations': {'kopf.dev/brakes-released-until': '2100-01-01T00:00Z'}}}


class Wish:
    """What the handler wants, for all objects alike."""

    def __init__(self):
        self.children = True
        self.image = 'image:1'
        self.replicas = 1


@pytest.fixture()
def wish():
    return Wish()


@pytest.fixture()
def registry(wish):
    registry = kopf.OperatorRegistry()

    @kopf.reconcile(EXAMPLES, owns=['configmaps', 'deployments.apps'], interval=100,
                    registry=registry)
    async def reconcile(name, spec, **_):
        if not wish.children or spec.get('off'):
            return []
        if spec.get('deployment'):
            pod = {'metadata': {'labels': {'app': name}},
                   'spec': {'containers': [{'name': 'main', 'image': wish.image}]}}
            return [{'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name},
                     'spec': {'replicas': wish.replicas, 'template': pod,
                              'selector': {'matchLabels': {'app': name}}}}]
        return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': {}}]

    return registry


class World:
    """A sandbox with parents, as long as it is entered."""

    def __init__(self, number=PARENTS, **spec):
        self._number, self._spec = number, spec

    async def __aenter__(self):
        self._api = kopf.testing.open_api('sandbox')
        api = await self._api.__aenter__()
        self.client, self.operator, self.faults = api.client, api.operator, api.sandbox.faults
        await self.client.load(DOCS.parent / 'examples' / 'crd.yaml')
        for number in range(self._number):
            await self.client.create(EXAMPLES, f'obj{number}', spec=self._spec)
        return self

    async def __aexit__(self, *args):
        await self._api.__aexit__(*args)

    async def count(self, kind='configmaps'):
        return len([obj for obj in await self.client.list(kind)
                    if obj['metadata']['name'].startswith('obj')])


def make_settings(**brakes):
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    for name, value in brakes.items():
        setattr(settings.brakes, name, value)
    return settings


@kopf.testing.virtual_time
async def test_deletions_over_the_budget_are_stopped(registry, wish):
    world, settings = World(), make_settings(stop=True)
    async with world, world.operator(registry=registry, settings=settings) as operator:
        await asyncio.sleep(50)
        assert await world.count() == PARENTS
        wish.children = False
        await asyncio.sleep(1000)
        assert await world.count() == PARENTS - 20
        [line] = await operator.wait_log("Stopped: deletions of")
        assert "configmaps are more than 20 in a minute" in line
        assert "kopf brakes release kopfexamples -A --selector=''" in line

        # All else goes on.
        await world.client.create(EXAMPLES, 'other')
        wish.children = True
        await asyncio.sleep(150)
        assert await world.count() == PARENTS

        # What is released goes on, and nothing else.
        wish.children = False
        await world.client.patch(EXAMPLES, 'obj7', RELEASED)
        await asyncio.sleep(1000)
        assert await world.count() == PARENTS - 1


@kopf.testing.virtual_time
async def test_the_stop_is_an_event_of_the_object(registry, wish):
    world, settings = World(30), make_settings(stop=True)
    settings.posting.enabled = True
    async with world, world.operator(registry=registry, settings=settings):
        await asyncio.sleep(50)
        wish.children = False
        await asyncio.sleep(300)
        events = [event for event in await world.client.list('events')
                  if event['message'].startswith("Stopped: deletions of configmaps")]
        assert [(event['type'], event['involvedObject']['kind']) for event in events] == [
            ('Warning', 'KopfExample')]


@kopf.testing.virtual_time
async def test_the_budget_counts_anew_when_nothing_was_refused_for_a_while(registry, wish):
    world, settings = World(30), make_settings(stop=True)
    async with world, world.operator(registry=registry, settings=settings):
        await asyncio.sleep(50)
        wish.children = False
        await asyncio.sleep(500)
        assert await world.count() == 10
        wish.children = True
        await asyncio.sleep(5000)
        assert await world.count() == 30
        for number in range(15):
            await world.client.delete('configmaps', f'obj{number}')
        await asyncio.sleep(100)
        assert await world.count() == 30
        wish.children = False
        for number in range(30):
            await world.client.patch(EXAMPLES, f'obj{number}', {'metadata': {'labels': {'a': 'b'}}})
        await asyncio.sleep(500)
        assert await world.count() == 10


@kopf.testing.virtual_time
async def test_repeated_attempts_to_delete_are_counted_once(registry, wish):
    world, settings = World(5), make_settings(stop=True, deletions=5)
    async with world, world.operator(registry=registry, settings=settings) as operator:
        await asyncio.sleep(50)
        refusals = world.faults.add(kopf.testing.Fault(
            action='refuse', verb='delete', resource='configmaps', status=403))
        wish.children = False
        await asyncio.sleep(300)
        assert refusals.hits > 10
        world.faults.clear()
        await asyncio.sleep(1000)
        assert await world.count() == 0
        assert 'Stopped' not in operator.text


@kopf.testing.virtual_time
async def test_what_edits_want_is_not_counted(registry, wish):
    world, settings = World(), make_settings(stop=True)
    async with world, world.operator(registry=registry, settings=settings) as operator:
        await asyncio.sleep(50)
        for number in range(40):
            await world.client.patch(EXAMPLES, f'obj{number}', {'spec': {'off': True}})
        await asyncio.sleep(1000)
        assert await world.count() == 20
        assert "Stopped" not in operator.text

        # The next run of the same objects is for no edit.
        for number in range(40):
            await world.client.patch(EXAMPLES, f'obj{number}', {'spec': {'off': False}})
        await asyncio.sleep(1000)
        assert await world.count() == PARENTS
        wish.children = False
        await asyncio.sleep(1000)
        assert await world.count() == PARENTS - 20


@kopf.testing.virtual_time
async def test_own_changes_of_the_status_are_no_edits():
    registry, is_inverted = kopf.OperatorRegistry(), False

    @kopf.reconcile('things', owns=['configmaps'], conditions=True, registry=registry)
    async def reconcile(name, **_):
        return [] if is_inverted else {
            'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}}

    definition = make_crd('Thing', 'things')  # without the subresource, the generation counts them
    definition['spec']['versions'][0].pop('subresources', None)
    async with World(0) as world, world.operator(
            registry=registry, settings=make_settings(stop=True)):
        await world.client.load(definition)
        for number in range(30):
            await world.client.create('things', f'obj{number}')
        await asyncio.sleep(50)
        is_inverted = True
        for number in range(30):
            await world.client.patch('things', f'obj{number}', {'metadata': {'labels': {'a': 'b'}}})
        await asyncio.sleep(1000)
        assert await world.count() == 10


@kopf.testing.virtual_time
async def test_edits_of_which_the_operator_has_not_known_the_former_state_are_counted(
        registry, wish):
    world, settings = World(), make_settings(stop=True)
    async with world:
        async with world.operator(registry=registry, settings=settings):
            await asyncio.sleep(50)
        for number in range(40):
            await world.client.patch(EXAMPLES, f'obj{number}', {'spec': {'edited': True}})
        wish.children = False
        async with world.operator(registry=registry, settings=settings):
            await asyncio.sleep(1000)
            assert await world.count() == PARENTS - 20


@kopf.testing.virtual_time
async def test_by_default_there_is_only_a_warning(registry, wish):
    world = World()
    async with world, world.operator(registry=registry, settings=make_settings()) as operator:
        await asyncio.sleep(50)
        wish.children = False
        await asyncio.sleep(1000)
        assert await world.count() == 0
        [line] = await operator.wait_log("which is the budget of settings.brakes")
        assert "deletions of configmaps are more than 20 in a minute" in line


@kopf.testing.virtual_time
@pytest.mark.parametrize(('brakes', 'deleted'), [
    ({'share': 0.5}, 30),
    ({'deletions': 3, 'share': 0.0}, 3),
    ({'deletions': 0, 'share': 0.0}, 0),
    ({'deletions': 0, 'share': 0.25}, 15),
    ({'deletions': None}, 60),
    ({'released': True}, 60),
])
async def test_budgets(registry, wish, brakes, deleted):
    world, settings = World(), make_settings(stop=True, **brakes)
    async with world, world.operator(registry=registry, settings=settings):
        await asyncio.sleep(50)
        wish.children = False
        await asyncio.sleep(300)
        assert await world.count() == PARENTS - deleted


@kopf.testing.virtual_time
async def test_shares_are_of_what_there_was_though_all_is_deleted_at_once(registry, wish):
    world, settings = World(), make_settings(stop=True, share=0.5)
    async with world:
        async with world.operator(registry=registry, settings=settings):
            await asyncio.sleep(50)
        wish.children = False
        async with world.operator(registry=registry, settings=settings):
            await asyncio.sleep(300)
            assert await world.count() == PARENTS // 2


@kopf.testing.virtual_time
async def test_what_users_delete_is_not_counted(registry):
    world, settings = World(), make_settings(stop=True)
    async with world, world.operator(registry=registry, settings=settings) as operator:
        await asyncio.sleep(50)
        for number in range(PARENTS):
            await world.client.delete(EXAMPLES, f'obj{number}')
        await asyncio.sleep(300)
        assert await world.count() == 0
        assert 'Stopped' not in operator.text


@kopf.testing.virtual_time
@pytest.mark.parametrize(('share', 'changed'), [(None, 30), (0.2, 6), (0.0, 1)])
async def test_changes_of_pod_templates_are_counted_on_request(registry, wish, share, changed):
    world, settings = World(30, deployment=True), make_settings(stop=True, restarts=share)
    async with world, world.operator(registry=registry, settings=settings):
        await asyncio.sleep(50)
        wish.image = 'image:2'
        await asyncio.sleep(500)
        found = [obj['spec']['template']['spec']['containers'][0]['image']
                 for obj in await world.client.list('deployments.apps')]
        assert found.count('image:2') == changed
        assert len(found) == 30


@kopf.testing.virtual_time
async def test_changes_of_workloads_beside_the_pod_template_are_not_counted(registry, wish):
    world, settings = World(10, deployment=True), make_settings(stop=True, restarts=0.0)
    async with world, world.operator(registry=registry, settings=settings):
        await asyncio.sleep(50)
        wish.replicas = 2
        await asyncio.sleep(200)
        deployments = await world.client.list('deployments.apps')
        assert [obj['spec']['replicas'] for obj in deployments] == [2] * 10


@kopf.testing.virtual_time
async def test_removals_of_finalizers_from_living_objects_are_counted():
    registry, wanted = kopf.OperatorRegistry(), [True]

    @kopf.on.delete(EXAMPLES, when=lambda **_: wanted[0], registry=registry)
    def delete(**_):
        pass

    async def count():
        return len([obj for obj in await world.client.list(EXAMPLES)
                    if obj['metadata'].get('finalizers')])

    world, settings = World(), make_settings(stop=True)
    async with world:
        async with world.operator(registry=registry, settings=settings):
            await asyncio.sleep(50)
            assert await count() == PARENTS
        wanted[0] = False
        async with world.operator(registry=registry, settings=settings) as operator:
            await asyncio.sleep(1000)
            assert await count() == PARENTS - 20
            await operator.wait_log("Stopped: finalizers removed from living kopfexamples")
            told = [line for line in operator.text.splitlines() if '] finalizers removed' in line]
            assert len(told) == PARENTS - 20  # once for each object
            for obj in await world.client.list(EXAMPLES):
                await world.client.patch(EXAMPLES, obj['metadata']['name'], RELEASED)
            await asyncio.sleep(1000)
            assert await count() == 0


@kopf.testing.virtual_time
async def test_finalizers_that_edits_make_needless_are_not_counted():
    registry = kopf.OperatorRegistry()

    @kopf.on.delete(EXAMPLES, when=lambda spec, **_: not spec.get('off'), registry=registry)
    def delete(**_):
        pass

    world = World(10)
    async with world, world.operator(
            registry=registry, settings=make_settings(stop=True, deletions=3)) as operator:
        await asyncio.sleep(50)
        for number in range(10):
            await world.client.patch(EXAMPLES, f'obj{number}', {'spec': {'off': True}})
        await asyncio.sleep(50)
        assert not any(obj['metadata'].get('finalizers')
                       for obj in await world.client.list(EXAMPLES))
        assert 'Stopped' not in operator.text


@kopf.testing.virtual_time
async def test_objects_whose_finalizers_the_brakes_keep_are_handled():
    registry, wanted, updated = kopf.OperatorRegistry(), [True], []

    @kopf.on.delete(EXAMPLES, when=lambda **_: wanted[0], registry=registry)
    def delete(**_):
        pass

    @kopf.on.update(EXAMPLES, registry=registry)
    def update(name, **_):
        updated.append(name)

    async def count():
        return len([obj for obj in await world.client.list(EXAMPLES)
                    if obj['metadata'].get('finalizers')])

    world = World(10)
    async with world, world.operator(
            registry=registry, settings=make_settings(stop=True, deletions=3)) as operator:
        await asyncio.sleep(50)
        wanted[0] = False
        for number in range(10):
            await world.client.patch(EXAMPLES, f'obj{number}', {'metadata': {'labels': {'a': 'b'}}})
        await asyncio.sleep(500)
        assert await count() == 7
        assert len(updated) == 10
        assert operator.text.count('Stopped') == 1
        await asyncio.sleep(30)
        for number in range(10):
            await world.client.patch(EXAMPLES, f'obj{number}', RELEASED)
        await asyncio.sleep(100)
        assert await count() == 0
        assert len(updated) == 10
