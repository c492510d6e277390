"""
Objects are reconciled when others change that they use, by indices. In virtual time.
"""
import asyncio
import contextlib

import pytest

import kopf
from kopf import testing
from kopf._core.engines.reconciling.watched import needs_content
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


class World:
    def __init__(self, api):
        self.calls = []
        self.client = api.client
        self.sandbox = api.sandbox
        self.api = api
        self.registry = kopf.OperatorRegistry()

        @kopf.on.startup(registry=self.registry)
        def configure(settings, **_):
            settings.posting.enabled = False

    def serve(self, watches, **options):
        @kopf.reconcile('kopfexamples', watches=watches, registry=self.registry, **options)
        async def fn(name, **_):
            self.calls.append(name)

    def index(self, fn, **options):
        return kopf.index('kopfexamples', registry=self.registry, **options)(fn)

    async def use(self, name, *secrets):
        await self.client.create('kopfexamples', name, spec={'uses': list(secrets)})

    async def wait(self, *names):
        """Wait until exactly these objects are called, in any order; then forget the calls."""
        await testing.wait_for(lambda: sorted(self.calls) == sorted(names), timeout=60)
        await asyncio.sleep(60)
        assert sorted(self.calls) == sorted(names)
        self.calls.clear()

    @contextlib.asynccontextmanager
    async def operate(self):
        async with self.api.operator(registry=self.registry) as operator:
            yield operator


@contextlib.asynccontextmanager
async def open_world():
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        yield World(api)


def by_names(name, spec, **_):
    return dict.fromkeys(spec.get('uses', []), name)


def by_places(name, namespace, spec, **_):
    return {(namespace, secret): (namespace, name) for secret in spec.get('uses', [])}


@testing.virtual_time
@pytest.mark.parametrize('make_index', [by_names, by_places])
@pytest.mark.parametrize('as_function', [True, False])
async def test_users_of_a_watched_object_are_found_by_an_index(make_index, as_function):
    async with open_world() as world:
        fn = world.index(make_index, id='used')
        world.serve({'secrets': fn if as_function else 'used'})
        await world.use('x', 'one', 'both')
        await world.use('y', 'two', 'both')
        await world.use('z')
        async with world.operate():
            await world.wait('x', 'y', 'z')
            await world.client.create('secrets', 'one')
            await world.wait('x')
            await world.client.create('secrets', 'both')
            await world.wait('x', 'y')
            await world.client.create('secrets', 'nobodys')
            await world.wait()
            await world.client.patch('secrets', 'both', {'data': {'a': 'Yg=='}})
            await world.wait('x', 'y')
            await world.client.patch('kopfexamples', 'z', {'spec': {'uses': ['one']}})
            await world.wait('z')
            await world.client.delete('secrets', 'one')
            await world.wait('x', 'z')
            await world.client.patch('kopfexamples', 'x', {'spec': {'uses': []}})
            await world.wait('x')
            await world.client.patch('secrets', 'both', {'data': {'a': 'Yw=='}})
            await world.wait('y')


@testing.virtual_time
async def test_a_deletion_that_was_not_watched_is_noticed_whoever_used_the_object_since_then():
    async with open_world() as world:
        world.index(by_names, id='used')
        world.serve({'secrets': 'used'})
        await world.client.create('secrets', 'one')
        await world.use('x')
        async with world.operate():
            await world.wait('x')
            await world.client.patch('kopfexamples', 'x', {'spec': {'uses': ['one']}})
            await world.wait('x')
            world.sandbox.faults.add(testing.Fault(
                action='refuse', verb='watch', resource='secrets', status=410, count=1))
            world.sandbox.faults.add(testing.Fault(
                action='cut', verb='watch', resource='secrets', count=1))
            await world.client.delete('secrets', 'one')
            await world.wait('x')


@testing.virtual_time
async def test_values_can_be_of_other_namespaces_and_several():
    def index(name, **_):
        return {'one': [('default', name), 'x'], 'two': None}

    async with open_world() as world:
        world.index(index, id='used')
        world.serve({'secrets': 'used'})
        await world.use('x')
        await world.use('y')
        async with world.operate():
            await world.wait('x', 'y')
            await world.client.create('secrets', 'one')
            await world.wait('x', 'y')
            await world.client.create('secrets', 'two')
            await world.wait()


@pytest.mark.parametrize(('mapper', 'expected'), [
    ('used', False),
    (lambda name, labels, **_: name, False),
    (lambda body, **_: body, True),
    (lambda spec, **_: spec, True),
    (lambda status, **_: status, True),
])
def test_the_content_is_watched_only_if_it_is_needed(mapper, expected):
    assert needs_content(mapper) == expected


@testing.virtual_time
async def test_an_index_with_other_values_is_an_error_that_does_no_harm():
    def index(name, **_):
        return {'one': 1, 'two': name}

    async with open_world() as world:
        world.index(index, id='used')
        world.serve({'secrets': 'used'})
        await world.use('x')
        async with world.operate() as operator:
            await world.wait('x')
            await world.client.create('secrets', 'one')
            assert await operator.wait_log("the index has no names under the key 'one'")
            await world.client.create('secrets', 'two')
            await world.wait('x')


@testing.virtual_time
async def test_an_unknown_index_is_an_error_at_the_start():
    async with open_world() as world:
        world.serve({'secrets': 'used'}, id='fn')
        with pytest.raises(LookupError, match=(
                r"Reconciler 'fn' watches secrets by the index 'used', but there is no such")):
            async with world.operate():
                await asyncio.sleep(60)


@testing.virtual_time
async def test_changes_during_a_call_lead_to_the_next_call_when_they_are_indexed():
    """Otherwise, a change of a used object between that call and the indexing would be missed."""
    calls = []
    async with open_world() as world:
        async def index(name, spec, **_):
            await asyncio.sleep(10)
            return {spec['uses']: name}

        world.index(index, id='used')

        @kopf.reconcile('kopfexamples', watches={'secrets': 'used'}, registry=world.registry)
        async def fn(spec, used, **_):
            calls.append((spec['uses'], set(used)))
            await asyncio.sleep(5)

        async with world.operate():
            await world.client.create('kopfexamples', 'x', spec={'uses': 'one'})
            await testing.wait_for(lambda: calls, timeout=600)
            await world.client.patch('kopfexamples', 'x', {'spec': {'uses': 'two'}})
            await testing.wait_for(lambda: len(calls) == 2, timeout=600)
        assert calls == [('one', {'one'}), ('two', {'two'})]
