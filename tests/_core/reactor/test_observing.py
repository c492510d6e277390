"""
What observers are told of: all that the operator does to objects, and to itself.
"""
import asyncio

import pytest

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.clients import vaults
from kopf._core.actions import inflight, observers
from kopf._core.actions.execution import Context
from kopf._core.engines import activities
from kopf._core.engines.admission import reviewing, webhooks
from kopf._core.intents import causes, registries
from kopf._core.reactor import operating
from tests._core.reactor.worlds import Api, Operator, run_virtually


def identify(raw):
    return [raw['metadata'].get(key) for key in ('namespace', 'name', 'uid')]


class Observer(observers.Observer):
    """Notes what has ended: (what, which, result, error, duration)."""

    def __init__(self):
        self.told = []

    def attempt(self, handler, cause):
        return self._begin('attempt', handler.id)

    def omission(self, handler, resource, body, reason):
        self.told.append(('omission', handler.id, resource.plural, body.metadata.name, reason))

    def passage(self, resource, key, passage):
        self.told.append(('passage', resource.plural, passage))

    def reconciliation(self, resource, raw):
        return self._begin('reconciliation', (resource.plural, *identify(raw)))

    def write(self, resource, raw, *, content_type, subresource=None):
        return self._begin(
            'write', (resource.plural, *identify(raw), content_type, subresource))

    def _begin(self, what, which):
        return lambda *args: self.told.append((what, which, *args))

    def get(self, what):
        return [args for kind, *args in self.told if kind == what]


def observe(declare, *, lasts=10, faults=(), subresource=False):
    """Let an operator handle one object for so long."""
    async def run():
        registry = registries.OperatorRegistry()
        declare(registry)
        api, observer = Api(), Observer()
        api.create('obj', spec={})
        api.faults.extend(faults)
        operator = Operator(api, registry, observer=observer, subresource=subresource)
        operator.settings.queueing.error_delays = [3]
        operator.start()
        await asyncio.sleep(lasts)
        await operator.stop()
        return observer

    return run_virtually(run())


def test_attempts_of_all_handlers_of_objects_are_told():
    def declare(registry):
        def sub(**_):
            pass

        async def fn(**_):
            pass

        @kopf.on.create('kopfexamples', id='parent', registry=registry)
        async def parent(**_):
            kopf.register(sub, id='sub')

        kopf.on.event('kopfexamples', id='event', registry=registry)(fn)
        kopf.index('kopfexamples', id='index', registry=registry)(fn)
        kopf.daemon('kopfexamples', id='daemon', registry=registry)(fn)
        kopf.timer('kopfexamples', id='timer', interval=100, registry=registry)(fn)

    told = [handler_id for handler_id, *_ in observe(declare).get('attempt')]
    assert set(told) == {'parent', 'parent/sub', 'event', 'index', 'daemon', 'timer'}
    assert told.index('parent/sub') < told.index('parent')


def test_handlers_that_are_not_called_as_their_filters_fail_are_told():
    def fails(spec, **_):
        return spec['absent']

    def declare(registry):
        async def fn(**_):
            pass

        options = {'registry': registry, 'when': fails}
        kopf.on.event('kopfexamples', id='event', **options)(fn)
        kopf.index('kopfexamples', id='index', **options)(fn)
        kopf.daemon('kopfexamples', id='daemon', **options)(fn)
        kopf.timer('kopfexamples', id='timer', interval=100, **options)(fn)

    observer = observe(declare)
    assert observer.get('attempt') == []
    assert set(map(tuple, observer.get('omission'))) == {
        (name, 'kopfexamples', 'obj', "KeyError('absent')")
        for name in ('event', 'index', 'daemon', 'timer')}


async def test_attempts_of_activities_are_told():
    registry, observer = kopf.OperatorRegistry(), Observer()

    @kopf.on.startup(id='fn', registry=registry)
    async def fn(**_):
        pass

    await activities.run_activity(
        registry=registry, activity=causes.Activity.STARTUP, memo=kopf.Memo(), context=Context(
            settings=kopf.OperatorSettings(), clock=Clock(), indices={},
            observer=observers.Notifier([observer])))
    (handler_id, outcome, error, _), = observer.get('attempt')
    assert (handler_id, outcome.final, error) == ('fn', True, None)


async def test_attempts_of_webhooks_are_told():
    registry, observer = kopf.OperatorRegistry(), Observer()

    @kopf.on.validate('kopfexamples', id='fn', registry=registry)
    async def fn(**_):
        raise kopf.AdmissionError("no")

    handlers = list(registry._webhooks)
    reviewer = reviewing.Reviewer(
        directory=webhooks.Directory(handlers),
        context=Context(settings=kopf.OperatorSettings(), clock=Clock(), indices={},
                        observer=observers.Notifier([observer])),
        find=lambda resource: (resource, handlers), get_memo=lambda *_: kopf.Memo())
    await reviewer({'apiVersion': 'admission.k8s.io/v1', 'kind': 'AdmissionReview', 'request': {
        'uid': 'uid1', 'operation': 'CREATE', 'object': {'metadata': {'name': 'x'}},
        'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': 'kopfexamples'}}})
    (handler_id, outcome, error, _), = observer.get('attempt')
    assert (handler_id, str(outcome.exception), error) == ('fn', 'no', None)


async def test_observers_of_operators_are_told_by_all_their_parts():
    registry, observer, ready = kopf.OperatorRegistry(), Observer(), asyncio.Event()

    @kopf.on.cleanup(id='fn', registry=registry)
    async def fn(**_):
        pass

    options = operating.Options(
        registry=registry, clusterwide=True, ready_flag=ready,
        vault=vaults.Vault({'': kopf.ConnectionInfo(server='http://127.0.0.1')}))
    operator = operating.Operator(
        options, settings=kopf.OperatorSettings(), underway=inflight.Calls(),
        extend=lambda _: [operating.Extension(observer=observer)])
    task = asyncio.create_task(operator.run())
    await ready.wait()
    works, = operator.role.works
    task.cancel()
    await asyncio.wait([task])
    assert [handler_id for handler_id, *_ in observer.get('attempt')] == ['fn']
    assert operator._env is operator._admission._env is works.spawner.context


def declare_slow(registry):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(**_):
        await asyncio.sleep(2)
        return 'result'


def test_passes_are_told_with_their_durations():
    which, result, error, seconds = observe(declare_slow).get('reconciliation')[0]
    assert which == ('kopfexamples', 'ns', 'obj', 'uid1')
    assert (result, error) == (observers.Sequel.REST, None)
    assert seconds == pytest.approx(2, abs=0.5)


def test_passages_through_the_queue_are_told_in_their_order():
    def declare(registry):
        kopf.on.event('kopfexamples', id='fn', registry=registry)(lambda **_: None)

    assert observe(declare).get('passage') == [
        ['kopfexamples', observers.Passage.QUEUED],
        ['kopfexamples', observers.Passage.STARTED],
        ['kopfexamples', observers.Passage.ENDED]]


def test_passes_that_fail_are_told_with_their_errors():
    told = observe(declare_slow, faults=['before']).get('reconciliation')
    assert "lost on the way" in str(told[0][2])
    assert told[-1][2] is None


def test_writes_are_told_with_what_comes_of_them():
    def declare(registry):
        declare_slow(registry)
        kopf.on.delete('kopfexamples', id='deleted', registry=registry)(lambda **_: None)

    finalizer, *others = observe(declare, subresource=True).get('write')
    which, newest, error, _ = finalizer
    assert which == ('kopfexamples', 'ns', 'obj', 'uid1', 'json', None)
    assert (newest['metadata']['finalizers'], error) == (['kopf.zalando.org/KopfFinalizerMarker'],
                                                         None)
    assert {(*which[-2:], 'fn' in newest['status']) for which, newest, *_ in others} == {
        ('merge', 'status', True), ('merge', None, True)}


def test_writes_that_fail_are_told_with_their_errors():
    first, *_, last = observe(declare_slow, faults=['before']).get('write')
    assert (first[1], str(first[2])) == (None, "lost on the way")
    assert last[2] is None


@pytest.mark.parametrize('decorate', [kopf.daemon, kopf.timer, kopf.on.event])
def test_writes_of_other_handlers_are_told_too(decorate):
    def declare(registry):
        @decorate('kopfexamples', id='fn', registry=registry)
        async def fn(patch, **_):
            patch.spec['seen'] = True

    assert ('merge', True) in [
        (which[-2], newest['spec'].get('seen'))
        for which, newest, *_ in observe(declare).get('write')]


def test_observers_that_fail_do_no_harm_to_objects(caplog):
    class FailingObserver:
        """All of its methods fail."""

        def attempt(self, *_, **__):
            raise ValueError("of the observer")

        omission = passage = reconciliation = write = attempt

    async def run():
        registry = registries.OperatorRegistry()
        declare_slow(registry)
        api = Api()
        api.create('obj', spec={})
        operator = Operator(api, registry, observer=FailingObserver())
        operator.start()
        await operator.rest()
        await operator.stop()
        return api

    assert run_virtually(run()).objects['obj']['status'] == {'fn': 'result'}
    assert caplog.text.count("has failed: ValueError") == 1
