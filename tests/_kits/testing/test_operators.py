import asyncio
import contextlib

import pytest

import kopf
from kopf import testing
from kopf.testing import virtual_time


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@virtual_time
async def test_handlers_are_called_and_their_results_are_seen(registry, crd):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    def fn(name, logger, **_):
        logger.info("hello")
        return name

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'obj')
            await operator.wait_log("hello")
            await api.client.wait('kopfexamples', 'obj', lambda obj: obj['status']['fn'] == 'obj')


@virtual_time
async def test_hours_of_retries_are_exact(registry, crd):
    calls = []

    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    def fn(retry, **_):
        calls.append(asyncio_time())
        if retry < 3:
            raise kopf.TemporaryError("not yet", delay=3600)

    loop = asyncio.get_running_loop()
    asyncio_time = loop.time
    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'obj')
            await testing.wait_for(lambda: len(calls) == 4, timeout=24 * 3600)
    assert [round(call - calls[0], 1) for call in calls] == [0, 3600, 7200, 10800]


@virtual_time
async def test_a_restart_goes_on_with_the_waiting(registry, crd):
    calls = []

    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(retry, **_):
        calls.append(retry)
        if retry < 1:
            raise kopf.TemporaryError("not yet", delay=3600)

    loop = asyncio.get_running_loop()
    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'obj')
            await testing.wait_for(lambda: calls)
        await asyncio.sleep(3000)
        async with api.operator(registry=registry):
            await testing.wait_for(lambda: len(calls) == 2, timeout=1000)
    assert 3600 <= loop.time() <= 3602
    assert calls == [0, 1]


@virtual_time
async def test_an_operator_can_be_started_again(registry, crd):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    def fn(name, **_):
        return name

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        operator = api.operator(registry=registry, rbac=True)
        for name in ['one', 'two', 'three']:
            await api.client.create('kopfexamples', name)
            async with operator:
                await api.client.wait('kopfexamples', name, lambda obj: obj['status']['fn'])


@virtual_time
async def test_a_running_operator_is_not_started(registry):
    async with testing.open_api('sandbox') as api:
        async with api.operator(registry=registry) as operator:
            with pytest.raises(RuntimeError, match="runs already"):
                await operator.start()


@virtual_time
async def test_an_operator_stops_if_its_start_is_cancelled(registry):
    @kopf.on.startup(registry=registry)
    async def never(**_):
        raise kopf.TemporaryError("not yet", delay=1)

    async with testing.open_api('sandbox') as api:
        existing = asyncio.all_tasks()
        operator = api.operator(registry=registry)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(operator.start(), 10)
        assert asyncio.all_tasks() == existing
        assert "Operator is stopping" in operator.text


@virtual_time
async def test_operators_side_by_side_have_logs_of_their_own(crd):
    def make(text):
        registry = kopf.OperatorRegistry()

        @kopf.on.event('kopfexamples', registry=registry)
        def fn(logger, **_):
            logger.info(text)

        return registry

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with (api.operator(registry=make("one")) as one,
                    api.operator(registry=make("two")) as two):
            await api.client.create('kopfexamples', 'obj')
            await one.wait_log("one")
            await two.wait_log("two")
    assert "two" not in one.text
    assert "one" not in two.text


@virtual_time
async def test_the_tasks_of_others_outlive_the_operator(registry, crd):
    @kopf.on.startup(registry=registry)
    async def fn(**_):
        left.append(asyncio.create_task(asyncio.sleep(1000)))

    left = []
    async with testing.open_api('sandbox') as api:
        async with api.operator(registry=registry):
            own = asyncio.create_task(asyncio.sleep(1000))
        assert left[0].done()
        assert not own.done()
        own.cancel()
        assert await api.client.list('namespaces')


@virtual_time
async def test_the_tasks_of_an_operator_end_also_beside_another_one(registry, crd):
    left = []

    @kopf.on.create('kopfexamples', registry=registry)
    async def fn(**_):
        left.append(asyncio.create_task(asyncio.sleep(1000)))

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(registry=kopf.OperatorRegistry()):
            async with api.operator(registry=registry):
                await api.client.create('kopfexamples', 'a')
                await asyncio.sleep(1)
            assert left[0].cancelled()


@virtual_time
async def test_failures_to_start_are_raised(registry):
    @kopf.on.startup(registry=registry)
    async def fn(**_):
        raise kopf.PermanentError("boo")

    async with testing.open_api('sandbox') as api:
        with pytest.raises(Exception, match="boo"):
            async with api.operator(registry=registry):
                raise RuntimeError("never")


@virtual_time
async def test_startup_handlers_that_never_succeed_are_named(registry):
    @kopf.on.startup(registry=registry)
    def picky(**_):
        raise ValueError("boo")

    async with testing.open_api('sandbox') as api:
        existing = asyncio.all_tasks()
        with pytest.raises(TimeoutError, match=r"picky' failed .*boo(.|\n)*not started in 600 sec"):
            await api.operator(registry=registry).start()
        assert asyncio.all_tasks() == existing


@virtual_time
async def test_startup_handlers_that_never_end_are_named(registry):
    @kopf.on.startup(registry=registry)
    async def slow(**_):
        await asyncio.Event().wait()

    async with testing.open_api('sandbox') as api:
        with pytest.raises(TimeoutError, match=r"slow' \(\d+ s, at .*\n.*not started in 600 sec"):
            await api.operator(registry=registry).start()


async def swallow(**_):
    """A handler that swallows each cancellation."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(1)


@pytest.mark.parametrize('decorate', [kopf.on.create, kopf.daemon, kopf.on.event])
def test_handlers_that_swallow_their_cancellation_are_named(registry, crd, monkeypatch, decorate):
    monkeypatch.setattr('kopf._kits.testing.operators.FAREWELL', 0.1)

    decorate('kopfexamples', id='stuck', registry=registry)(swallow)

    @virtual_time
    async def run():
        async with testing.open_api('sandbox') as api:
            await api.client.load(crd)
            async with api.operator(registry=registry) as operator:
                await api.client.create('kopfexamples', 'obj')
                await operator.wait_log("invoked|'stuck'|MODIFIED")

    with pytest.raises(RuntimeError, match=r"has not stopped: .*'stuck' for default/obj"):
        run()


def test_startup_handlers_that_swallow_their_cancellation_are_named(registry, monkeypatch):
    monkeypatch.setattr('kopf._kits.testing.operators.FAREWELL', 0.1)

    kopf.on.startup(registry=registry, id='stuck')(swallow)

    @virtual_time
    async def run():
        async with testing.open_api('sandbox') as api:
            await api.operator(registry=registry).start()

    with pytest.raises(RuntimeError, match="has not stopped: .*'stuck'"):
        run()


@virtual_time
async def test_cleanup_handlers_are_not_interrupted(registry, monkeypatch):
    monkeypatch.setattr('kopf._kits.testing.operators.FAREWELL', 0.0)

    @kopf.on.cleanup(registry=registry)
    async def fn(**_):
        await asyncio.sleep(1000)
        ended.append(True)

    ended = []
    async with testing.open_api('sandbox') as api, api.operator(registry=registry):
        pass
    assert ended


@virtual_time
async def test_missing_lines_are_told_with_the_log(registry):
    @kopf.on.startup(registry=registry)
    async def fn(logger, **_):
        logger.info("something else")

    async with testing.open_api('sandbox') as api, api.operator(registry=registry) as operator:
        with pytest.raises(AssertionError, match=r"no lines with 'absent'(.|\n)*something else"):
            await operator.wait_log("absent", timeout=1)


@virtual_time
async def test_files_are_loaded_anew_for_each_operator(script):
    path = script("""
@kopf.on.startup()
def fn(logger, **_):
    logger.info("started")
""")
    async with testing.open_api('sandbox') as api:
        for _ in range(2):
            async with api.operator(path) as operator:
                await operator.wait_log("started")
    assert not [handler for handler in kopf.get_default_registry()._activities
                if handler.fn.__module__.endswith('handlers')]


@virtual_time
async def test_files_that_the_test_has_imported_are_not_executed_again(tmp_path, monkeypatch):
    path = tmp_path / 'module_with_metrics.py'
    path.write_text("""
import kopf
import prometheus_client

GAUGE = prometheus_client.Gauge('things_of_a_test', 'It can exist once in a process.')

@kopf.on.startup()
def fn(**_):
    GAUGE.inc()
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    import module_with_metrics
    async with testing.open_api('sandbox') as api:
        for _ in range(2):
            async with api.operator(str(path)):
                pass
    assert module_with_metrics.GAUGE.collect()[0].samples[0].value == 2


@virtual_time
async def test_one_namespace_is_not_taken_for_its_letters(registry, crd):
    @kopf.on.create('kopfexamples', registry=registry, id='fn')
    async def fn(**_):
        return 'done'

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(registry=registry, namespaces='default', rbac=True) as operator:
            await api.client.create('kopfexamples', 'obj')
            await api.client.wait('kopfexamples', 'obj', lambda obj: obj['status']['fn'])
        assert "No such namespace" not in operator.text


@virtual_time
async def test_startup_handlers_can_declare_others(script, crd):
    path = script("""
def fn(**_):
    return 'done'

@kopf.on.startup()
def declare(**_):
    kopf.on.create('kopfexamples', id='fn')(fn)
""")
    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(path):
            await api.client.create('kopfexamples', 'obj')
            await api.client.wait('kopfexamples', 'obj', lambda obj: obj['status']['fn'])


@virtual_time
async def test_an_operator_starts_again_with_objects_that_it_converts(script):
    path = script("""
from dataclasses import dataclass

@dataclass
class Spec:
    size: str = '1G'

@dataclass
class OldSpec:
    gigabytes: int = 1

@kopf.crd('example.com', 'v1', plural='volumes')
class Volume:
    spec: Spec

@kopf.crd('example.com', 'v1beta1', of=Volume, storage=True)
class OldVolume:
    spec: OldSpec

kopf.convert(OldVolume, Volume, kopf.Move(
    '.spec.gigabytes', '.spec.size', up='{}G'.format, down=lambda size: int(size[:-1])))

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = 'volumes.example.com'

@kopf.on.event(Volume)
def see(name, logger, **_):
    logger.info(f"There is {name}")
""")
    async with testing.open_api('sandbox') as api:
        operator = api.operator(path)
        for name in ['one', 'two']:
            async with operator:
                await api.client.create(
                    'volumes.v1beta1.example.com', name, spec={'gigabytes': 5})
                await operator.wait_log(f"There is {name}", timeout=60)


@virtual_time
async def test_modules_give_their_own_handlers(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ('module_one', 'module_two'):
        (tmp_path / f'{name}.py').write_text(f"""
import kopf
@kopf.on.startup()
def {name}(logger, **_):
    logger.info("started")
""")
    async with testing.open_api('sandbox') as api:
        for _ in range(2):
            async with api.operator('module_one') as one:
                pass
            async with api.operator('module_two') as two:
                pass
            assert "'module_one' succeeded" in one.text and 'module_two' not in one.text
            assert "'module_two' succeeded" in two.text and 'module_one' not in two.text


@virtual_time
async def test_registries_are_added_to_the_others(registry, crd, script):
    path = script("""
@kopf.on.create('kopfexamples')
def one(**_):
    pass
""")

    @kopf.on.create('kopfexamples', registry=registry)
    def two(**_):
        pass

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(path, registry) as operator:
            await api.client.create('kopfexamples', 'obj')
            await operator.wait_log("'one' succeeded")
            await operator.wait_log("two' succeeded")


@virtual_time
async def test_the_log_levels_are_as_before(registry):
    import logging
    before = logging.getLogger('kopf').level, list(logging.getLogger().handlers)
    async with testing.open_api('sandbox') as api, api.operator(registry=registry):
        pass
    assert (logging.getLogger('kopf').level, list(logging.getLogger().handlers)) == before


async def test_real_time_works_too(registry, crd):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(**_):
        return 1

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'obj')
            await api.client.wait('kopfexamples', 'obj', lambda obj: obj['status']['fn'])


@virtual_time
async def test_retried_handlers_can_apply_manifests(registry, crd):
    @kopf.on.create('kopfexamples', registry=registry)
    async def create(retry, name, namespace, **_):
        if not retry:
            raise kopf.TemporaryError("not yet", delay=10)
        await kopf.apply({
            'apiVersion': 'v1', 'kind': 'ConfigMap',
            'metadata': {'name': name, 'namespace': namespace}, 'data': {'key': 'value'}})

    async with testing.open_api('sandbox') as api, api.operator(registry=registry):
        await api.client.load(crd)
        await api.client.create('kopfexamples', 'name1')
        await api.client.wait(
            'configmaps', 'name1', lambda obj: obj['data'] == {'key': 'value'}, timeout=60)


@virtual_time
async def test_leases_are_kept_in_virtual_time(registry, crd):
    @kopf.on.create('kopfexamples', registry=registry, id='fn')
    async def fn(**_):
        return asyncio.get_running_loop().time()

    def make(identity):
        settings = kopf.OperatorSettings()
        settings.leadership.name = 'mine'
        return api.operator(registry=registry, settings=settings, identity=identity)

    async def create(name):
        await api.client.create('kopfexamples', name)
        began = asyncio.get_running_loop().time()
        obj = await api.client.wait(
            'kopfexamples', name, lambda obj: obj['status']['fn'], timeout=60)
        return obj['status']['fn'] - began

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        async with make('one') as one, make('two') as two:
            await asyncio.sleep(3600)
            assert await create('first') < 2
            assert "Handler 'fn' is invoked" in one.text
            assert "Lost the Lease" not in one.text
            outage = api.sandbox.faults.add(testing.Fault(action='refuse', resource='leases'))
            await asyncio.sleep(11)  # the deadline of the renewal
            assert "Lost the Lease" in one.text
            api.sandbox.faults.remove(outage)
            await one.stop()
            assert await create('second') < 15  # the duration of the Lease
            assert "Handler 'fn' is invoked" in two.text


@virtual_time
async def test_shards_are_held_in_virtual_time(registry, crd):
    @kopf.on.create('kopfexamples', registry=registry, id='fn')
    async def fn(**_):
        return 'done'

    async with testing.open_api('sandbox') as api, contextlib.AsyncExitStack() as stack:
        await api.client.load(crd)
        logs = []
        for identity in ['one', 'two']:
            settings = kopf.OperatorSettings()
            settings.sharding.count = 4
            operator = await stack.enter_async_context(
                api.operator(registry=registry, settings=settings, identity=identity))
            logs.append(operator)
        await asyncio.sleep(60)
        for number in range(20):
            await api.client.create('kopfexamples', f'obj-{number}')
        for number in range(20):
            await api.client.wait('kopfexamples', f'obj-{number}', lambda obj: obj['status']['fn'])
        assert all("2 of 4 shards are held" in operator.text for operator in logs)
        assert all("Handler 'fn' is invoked" in operator.text for operator in logs)
