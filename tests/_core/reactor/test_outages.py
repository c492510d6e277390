"""
Whole operators whose API goes away for long, and comes back. The time is virtual.
"""
import asyncio
import dataclasses
import datetime
import types

import pytest

import kopf
from kopf import testing
from kopf._cogs.clients import vaults
from kopf._kits.sandbox.faults import Fault
from kopf.testing import virtual_time
from tests._kits.conftest import CRD

HOUR = 3600
WATCHES = 2  # of the kind itself, and of CRDs
PENDING = 30  # objects whose handlers succeed in the outage


@dataclasses.dataclass(kw_only=True, eq=False)
class Outage(Fault):
    """A fault that remembers the times of what it has hit."""
    times: list = dataclasses.field(default_factory=list)

    def hit(self, target):
        hit = super().hit(target)
        if hit:
            self.times.append(asyncio.get_running_loop().time())
        return hit


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    @kopf.on.update('kopfexamples', id='fn', registry=registry)
    async def fn(spec, logger, **_):
        await asyncio.sleep(spec.get('takes', 0))
        logger.info(f"done with {spec['n']}")
        return spec['n']

    return registry


async def create(api, name, **spec):
    await api.client.create('kopfexamples', name, spec=spec)


async def wait_handled(api, name, n, *, timeout=60):
    await api.client.wait(
        'kopfexamples', name, lambda obj: obj['status']['fn'] == n, timeout=timeout)


OUTAGES = [
    {'action': 'drop'},
    {'action': 'refuse', 'status': 503},
    {'action': 'refuse', 'status': 500},
    {'action': 'refuse', 'status': 429},
]


@pytest.mark.parametrize(
    'outage', OUTAGES, ids=lambda outage: str(outage.get('status', outage['action'])))
def test_an_hour_without_the_api_is_survived_with_few_requests(registry, outage):
    @virtual_time
    async def live():
        loop = asyncio.get_running_loop()
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            async with api.operator(registry=registry) as operator:
                await create(api, 'one', n=1)
                for number in range(PENDING):
                    await create(api, f'pending{number}', n=2, takes=10)
                await wait_handled(api, 'one', 1)
                fault = api.sandbox.faults.add(Outage(**outage))
                api.sandbox.faults.add(Fault(action='cut', verb='watch'))
                await asyncio.sleep(HOUR)
                api.sandbox.faults.clear()
                back = loop.time()
                await create(api, 'new', n=3)
                await wait_handled(api, 'new', 3)
                for number in range(PENDING):
                    await wait_handled(api, f'pending{number}', 2, timeout=700)
                print(f"{len(fault.times)} requests; all is well in {loop.time() - back:.0f}s")
        return operator.log, fault.times

    log, times = live()
    assert len(times) <= HOUR * (WATCHES + 1)
    for start in range(0, HOUR, 60):
        assert sum(start <= time - times[0] < start + 60 for time in times) <= 60 * (WATCHES + 1)
    assert log.count("[default/pending0] done with 2") == 1
    warnings = [line for line in log if 'has failed, and will be tried again' in line]
    assert len(warnings) == WATCHES
    assert len([line for line in log if 'works again, after' in line]) == WATCHES


def test_operators_do_not_come_back_in_step(registry):
    @virtual_time
    async def live():
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            async with api.operator(registry=registry), api.operator(registry=registry):
                await asyncio.sleep(10)
                fault = api.sandbox.faults.add(Outage(action='drop'))
                api.sandbox.faults.add(Fault(action='cut', verb='watch'))
                await asyncio.sleep(HOUR)
                api.sandbox.faults.clear()
        return fault.times

    times = live()[-50:]
    pauses = {round(after - before, 2) for before, after in zip(times, times[1:], strict=False)}
    assert len(pauses) > 15


def test_half_a_minute_without_authentication_is_survived(registry):
    @virtual_time
    async def live():
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            async with api.operator(registry=registry) as operator:
                await create(api, 'one', n=1, takes=10)
                await operator.wait_log("Handler 'fn' is invoked")
                fault = api.sandbox.faults.add(Outage(action='refuse', status=401))
                await asyncio.sleep(30)
                api.sandbox.faults.clear()
                await wait_handled(api, 'one', 1)
        return operator.log, fault.times

    log, times = live()
    assert "The API accepts the credentials again." in log
    assert len(times) <= 30


def test_credentials_that_stay_invalid_end_the_operator(registry):
    @virtual_time
    async def live():
        loop = asyncio.get_running_loop()
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            operator = api.operator(registry=registry)
            await operator.start()
            await create(api, 'one', n=1, takes=10)
            await operator.wait_log("Handler 'fn' is invoked")
            # The watches stay open: it is the patching that is refused.
            api.sandbox.faults.add(Outage(action='refuse', status=401))
            await testing.wait_for(operator._task.done, timeout=HOUR)
            ended = loop.time()
            api.sandbox.faults.clear()
            with pytest.raises(kopf.LoginError, match="rejects"):
                await operator.stop()
        return ended

    assert 60 <= live() <= 100


class VirtualWallClock:
    @staticmethod
    def now(zone):
        origin = datetime.datetime(2026, 1, 1, tzinfo=zone)
        return origin + datetime.timedelta(seconds=asyncio.get_running_loop().time())


def test_credentials_that_expire_in_an_outage_are_renewed_after_it(registry, monkeypatch):
    monkeypatch.setattr(
        vaults, 'datetime', types.SimpleNamespace(datetime=VirtualWallClock, UTC=datetime.UTC))
    logins = []

    @virtual_time
    async def live():
        async with testing.open_api('sandbox') as api:
            async def login():
                logins.append(asyncio.get_running_loop().time())
                expiration = VirtualWallClock.now(datetime.UTC) + datetime.timedelta(seconds=60)
                return {'id': dataclasses.replace(api.credentials, expiration=expiration)}

            await api.client.load(CRD)
            vault = vaults.Vault(login=login)
            async with api.operator(registry=registry, vault=vault):
                await create(api, 'one', n=1, takes=10)
                await asyncio.sleep(5)
                api.sandbox.faults.add(Outage(action='drop'))
                api.sandbox.faults.add(Fault(action='cut', verb='watch'))
                await asyncio.sleep(HOUR)
                api.sandbox.faults.clear()
                await wait_handled(api, 'one', 1, timeout=700)

    live()
    assert len(logins) > 10


@pytest.mark.parametrize('outage', [
    {'action': 'delay', 'seconds': HOUR},
    {'action': 'delay', 'seconds': HOUR, 'verb': 'patch'},
    {'action': 'drop'},
    {'action': 'refuse', 'status': 503},
    {'action': 'refuse', 'status': 403},
], ids=lambda outage: ' '.join(map(str, outage.values())))
def test_leaving_takes_5_seconds_whatever_the_api_does_and_tells_what_is_not_written(outage):
    registry = kopf.OperatorRegistry()
    cleaned = []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.persistence.flush_delay = 0

    @kopf.on.create('kopfexamples', id='first', registry=registry)
    async def first(**_):
        return 'done'

    @kopf.on.create('kopfexamples', id='second', registry=registry)
    async def second(spec, **_):
        await asyncio.sleep(spec['takes'])

    @kopf.daemon('kopfexamples', id='daemon', registry=registry)
    async def daemon(stopped, patch, **_):
        await stopped.wait()
        patch.status['daemon'] = 'done'

    @kopf.on.cleanup(registry=registry)
    async def clean(**_):
        cleaned.append(asyncio.get_running_loop().time())
        await asyncio.sleep(20)

    @virtual_time
    async def live():
        loop = asyncio.get_running_loop()
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            operator = api.operator(registry=registry)
            await operator.start()
            await create(api, 'running', takes=600)
            await create(api, 'writing', takes=30)
            await create(api, 'resting', takes=10)
            await asyncio.sleep(9)
            api.sandbox.faults.add(Fault(**outage))
            await asyncio.sleep(22)
            begun = loop.time()
            await operator.stop()
            took = loop.time() - begun
            api.sandbox.faults.clear()
        return operator.log, cleaned[0] - begun, took

    log, handling, total = live()
    assert handling <= 4.1
    assert total <= 20 + 5
    lines = [line for line in log if "could not be written before the exit" in line]
    for name in ['writing', 'resting']:
        line, = [line for line in lines if f"[default/{name}]" in line]
        assert "call these handlers again: 'second'." in line
    assert sum("The patch of Daemon 'daemon' is lost" in line for line in log) == 3


@pytest.mark.parametrize(('takes', 'working', 'expected'), [
    (3, 0, 2.5), (30, 0, 4.5), (30, 30, 4.5)])
def test_leaving_takes_5_seconds_however_slow_the_webhooks_are(takes, working, expected):
    registry = kopf.OperatorRegistry()
    reviewed = []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port=0)
        settings.admission.managed = 'kopf.dev'

    @kopf.on.validate('kopfexamples', registry=registry)
    async def check(name, **_):
        if name == 'slow':
            await asyncio.sleep(takes)
            reviewed.append(name)

    @kopf.on.create('kopfexamples', registry=registry)
    async def fn(**_):
        await asyncio.sleep(working)

    @virtual_time
    async def live():
        loop = asyncio.get_running_loop()
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            operator = api.operator(registry=registry)
            await operator.start()
            await create(api, 'busy')
            await asyncio.sleep(1)
            creation = asyncio.create_task(create(api, 'slow'))
            await asyncio.sleep(0.5)
            begun = loop.time()
            await operator.stop()
            took = loop.time() - begun
            await creation  # a second attempt, without the webhook
        return took

    assert live() == pytest.approx(expected, abs=0.1)
    assert bool(reviewed) == (takes == 3)


def test_threads_that_return_late_do_not_wait_for_the_api_any_longer():
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(**_):
        end = asyncio.get_running_loop().time() + 30
        while asyncio.get_running_loop().time() < end:  # as threads, it cannot be interrupted
            try:
                await asyncio.sleep(end - asyncio.get_running_loop().time())
            except asyncio.CancelledError:
                pass

    @virtual_time
    async def live():
        loop = asyncio.get_running_loop()
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            operator = api.operator(registry=registry)
            await operator.start()
            await create(api, 'obj')
            await operator.wait_log("Handler 'fn' is invoked")
            api.sandbox.faults.add(Fault(action='delay', seconds=HOUR, verb='patch'))
            begun = loop.time()
            await operator.stop()
            api.sandbox.faults.clear()
        return operator.log, loop.time() - begun

    log, took = live()
    assert 30 <= took <= 30 + 5
    assert any("could not be written before the exit" in line for line in log)


def test_finished_handlers_are_told_once_if_that_cannot_be_written_for_long(registry):
    kopf.on.delete('kopfexamples', registry=registry)(lambda **_: None)

    @virtual_time
    async def live():
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            async with api.operator(registry=registry) as operator:
                await create(api, 'one', n=1)
                await create(api, 'two', n=2, takes=10)
                await wait_handled(api, 'one', 1)
                await operator.wait_log(r"two\] Handler 'fn' is invoked")
                fault = api.sandbox.faults.add(Outage(action='refuse', verb='patch', status=403))
                await api.client.delete('kopfexamples', 'one')
                await asyncio.sleep(HOUR)
                api.sandbox.faults.clear()
                await api.client.wait_gone('kopfexamples', 'one', timeout=700)
                await wait_handled(api, 'two', 2, timeout=700)
        return operator.log, fault.times

    log, times = live()
    assert len(times) > 10
    assert [line for line in log if 'is processed' in line] == [
        '[default/one] Creation is processed: 1 succeeded; 0 failed.',
        '[default/one] Deletion is processed: 1 succeeded; 0 failed.',
        '[default/two] Creation is processed: 1 succeeded; 0 failed.']
