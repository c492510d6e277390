"""
Errors of owned resources count as errors of their handler. In virtual time, on the sandbox.
"""
import asyncio
import re

import pytest

import kopf
from kopf import testing
from kopf._core.actions import observers, progression
from kopf._core.intents import causes
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'
FAILING = 'failing'


def get_conditions(obj):
    return {item['type']: item for item in obj['status']['conditions']}


class World:
    """A handler with a good child and a failing one, on the sandbox."""

    def __init__(self, api, **options):
        self.calls = []
        self.registry = kopf.OperatorRegistry()
        self.client = api.client
        self.fault = api.sandbox.faults.add(testing.Fault(
            action='refuse', status=403, verb='patch', resource='configmaps', name=FAILING))

        @kopf.on.startup(registry=self.registry)
        def configure(settings, **_):
            settings.posting.enabled = False
            settings.reconciling.error_delay = 1
            settings.reconciling.max_error_delay = 1

        @kopf.reconcile('kopfexamples', owns=['configmaps'], conditions=True,
                        registry=self.registry, **options)
        async def fn(spec, retry, patch, **_):
            patch.status['retry'] = retry
            self.calls.append(retry)
            for name in ('good', FAILING):
                yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                       'data': {'n': str(spec.get('n'))}}

    async def create(self):
        await self.client.create('kopfexamples', 'parent', spec={'n': 1})

    async def wait(self, **statuses):
        def is_so(obj):
            conditions = get_conditions(obj)
            return all(conditions[key]['status'] == status for key, status in statuses.items())

        obj = await self.client.wait('kopfexamples', 'parent', is_so, timeout=600)
        return get_conditions(obj)


def in_world(**options):
    def decorate(fn):
        @testing.virtual_time
        async def test():
            async with testing.open_api('sandbox') as api:
                await api.client.load(CRD)
                world = World(api, **options)
                async with api.operator(registry=world.registry) as operator:
                    await world.create()
                    await fn(world, operator)
        return test
    return decorate


@in_world()
async def test_they_are_retried_by_default(world, operator):
    await world.wait(Ready='False', Reconciling='True', Stalled='False')
    await asyncio.sleep(10)
    assert world.calls[:5] == [0, 1, 2, 3, 4]


@in_world(errors=kopf.ErrorsMode.PERMANENT)
async def test_permanent_ones_are_not_retried_until_the_next_change(world, operator):
    conditions = await world.wait(Ready='False', Reconciling='False', Stalled='True')
    assert 'ConfigMap default/failing: ' in conditions['Stalled']['message']
    await asyncio.sleep(3600)
    assert world.calls == [0]
    world.fault.count = 0
    await world.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
    await world.wait(Ready='True', Reconciling='False', Stalled='False')
    assert world.calls == [0, 0]


@in_world(retries=3)
async def test_there_are_no_more_attempts_than_retries(world, operator):
    conditions = await world.wait(Stalled='True')
    assert 'ConfigMap default/failing: ' in conditions['Stalled']['message']
    await asyncio.sleep(3600)
    assert world.calls == [0, 1, 2]


@in_world(timeout=5)
async def test_there_are_no_more_attempts_after_the_timeout(world, operator):
    conditions = await world.wait(Stalled='True')
    assert 'has timed out' in conditions['Stalled']['message']
    await asyncio.sleep(3600)
    assert 4 <= len(world.calls) <= 6


@in_world(errors=kopf.ErrorsMode.IGNORED, interval=1000)
async def test_ignored_ones_are_logged_and_no_errors(world, operator):
    await world.wait(Ready='True', Reconciling='False', Stalled='False')
    assert await operator.wait_log("will ignore it: ConfigMap default/failing: ")
    await asyncio.sleep(500)
    assert world.calls == [0]
    await asyncio.sleep(1000)
    assert world.calls == [0, 0]  # by the interval


@in_world()
async def test_a_success_is_logged_only_when_the_returned_manifests_are_applied(world, operator):
    await world.wait(Ready='False')
    world.fault.count = 0
    await world.wait(Ready='True')
    told = [verb for line in operator.log for verb in ('failed', 'succeeded')
            if re.search(rf"Reconciler '.*' {verb}", line)]
    assert [*dict.fromkeys(told)] == ['failed', 'succeeded']


@in_world(errors=kopf.ErrorsMode.PERMANENT)
async def test_the_patch_of_the_handler_is_written_nevertheless(world, operator):
    await world.wait(Stalled='True')
    assert (await world.client.get('kopfexamples', 'parent'))['status']['retry'] == 0
    assert await world.client.get('configmaps', 'good')


@pytest.mark.parametrize('errors', [kopf.ErrorsMode.TEMPORARY, kopf.ErrorsMode.PERMANENT])
@testing.virtual_time
async def test_they_have_no_tracebacks_in_the_log(errors):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        world = World(api, errors=errors)
        async with api.operator(registry=world.registry) as operator:
            await world.create()
            await world.wait(Ready='False')
        assert not any('Traceback' in line for line in operator.log)


@testing.virtual_time
async def test_a_deletion_that_is_refused_as_a_conflict_is_repeated():
    registry = kopf.OperatorRegistry()

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(spec, **_):
        if spec['n'] == 1:
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await api.client.wait('configmaps', 'child')
            refusal = api.sandbox.faults.add(testing.Fault(
                action='refuse', status=409, verb='delete', resource='configmaps', count=1))
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            await api.client.wait_gone('configmaps', 'child', timeout=600)
            assert refusal.hits == 1


@testing.virtual_time
async def test_handlers_that_want_to_be_called_again_at_once_leave_a_pause_for_others():
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(retry, **_):
        calls.append(retry)
        raise kopf.TemporaryError("again", delay=0)

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent')
            await asyncio.sleep(2)
    assert 50 < len(calls) <= 2 / progression.MIN_PAUSE + 1
    assert calls == [*range(len(calls))]


class Recorder(observers.Observer):
    """Records the attempts of reconcilers, and the writes of owned resources, as they end."""

    def __init__(self):
        super().__init__()
        self.depth = 0
        self.seen = []

    def attempt(self, handler, cause):
        self.depth += isinstance(cause, causes.ReconcilingCause)

        def end(outcome, error, seconds):
            if isinstance(cause, causes.ReconcilingCause):
                self.depth -= 1
                self.seen.append(('attempt', outcome.final, outcome.exception is None))
        return end

    def write(self, resource, raw, **_):
        def end(response, error, seconds):
            if resource.plural == 'configmaps':
                self.seen.append(('write', self.depth, error is None))
        return end


@testing.virtual_time
async def test_they_belong_to_the_attempts_that_are_observed():
    recorder = Recorder()
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        world = World(api, retries=2)
        async with api.operator(registry=world.registry, _observer=recorder):
            await world.create()
            await world.wait(Stalled='True')
            world.fault.count = 0
            await world.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            await world.wait(Ready='True')
    assert sorted(recorder.seen[:2]) == [('write', 1, False), ('write', 1, True)]
    assert [item[1:] for item in recorder.seen if item[0] == 'attempt'] == [
        (False, False), (True, False), (True, True)]
    assert {item[1] for item in recorder.seen if item[0] == 'write'} == {1}


@testing.virtual_time
async def test_an_error_that_is_repeated_at_once_is_told_once_and_then_with_each_longer_delay(
        caplog):
    registry = kopf.OperatorRegistry()

    @kopf.reconcile('kopfexamples', registry=registry)
    async def fn(**_):
        raise KeyError('oops')

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={})
            await asyncio.sleep(10)
    told = [record.message for record in caplog.records
            if record.levelname == 'ERROR' and 'will try again in' in record.message]
    assert 'in 0.005' in told[0]
    assert len(told) <= 5
