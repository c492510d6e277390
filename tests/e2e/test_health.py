import asyncio
import dataclasses
import datetime
import json
import re
import signal
import threading
import time

import aiohttp
import pytest

import kopf
from kopf._core.engines.liveness import answering, health
from tests.e2e.journals import wait_handled
from tests.e2e.ports import find_free_ports
from tests.e2e.proxy import Proxy


@pytest.fixture()
def url():
    return f'http://127.0.0.1:{find_free_ports(1)}/healthz'


async def check(url):
    """Ask for the health; returns the status and the body."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.headers['Content-Type'] == 'application/json; charset=utf-8'
        return response.status, json.loads(await response.text())


async def wait_for(url, status, *, timeout=30.0):
    """Wait until the health is such; returns the body."""
    deadline = time.monotonic() + timeout
    while (answer := await check(url))[0] != status:
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.1)
    return answer[1]


async def test_the_results_of_the_probes_are_served_and_cached(embedded, url, journal):
    @kopf.on.probe(id='sync')
    def probe_fn(settings, activity, **_):
        journal.append(activity)
        return len(journal)

    @kopf.on.probe(id='async')
    async def async_probe_fn(**_):
        return {'a': [1, None, 'é']}

    @kopf.on.probe(id='nothing')
    def probe_without_result(**_):
        pass

    embedded(liveness_endpoint=url)
    expected = 200, {'sync': 1, 'async': {'a': [1, None, 'é']}}
    answers = await asyncio.gather(*(check(url) for _ in range(20)))
    assert answers == [expected] * 20
    assert await check(url) == expected
    assert journal == ['probe']


async def test_without_probes_there_is_an_empty_answer(embedded, url):
    embedded(liveness_endpoint=url)
    assert await check(url) == (200, {})


async def test_failed_probes_are_named_but_not_their_secrets(embedded, url, monkeypatch):
    monkeypatch.setattr(answering, 'MAX_AGE_OF_FAILURES', 0.0)
    is_failing = True

    @kopf.on.probe(id='database')
    def probe_fn(**_):
        if is_failing:
            raise kopf.PermanentError("password=secret")

    embedded(liveness_endpoint=url)
    assert await check(url) == (
        500, {'problems': {'probes': "failed: database; see the log."}})
    is_failing = False
    assert await check(url) == (200, {})


async def test_it_is_served_by_the_command_line(operator, kind, url):
    op = operator('''
@kopf.on.probe()
def fn(**_):
    return 123
''', f'--liveness={url}', kind=kind)
    await op.wait_for("The health checks are served")
    assert await wait_for(url, 200) == {'fn': 123}
    assert op.stop() == 0


async def test_a_taken_port_ends_the_operator_with_a_line(operator, kind, url):
    handlers = '''
@kopf.on.event(*KIND)
def fn(**_):
    pass
'''
    first = operator(handlers, f'--liveness={url}', kind=kind)
    await first.wait_for("The health checks are served")
    op = operator(handlers, f'--liveness={url}', kind=kind)
    assert await op.wait() == 1
    assert op.find("Error: The health checks cannot be served at .+: Address already in use")
    assert not op.find("Traceback")


async def test_a_blocked_loop_is_told_of_in_its_time_and_then_all_is_well_again(
        kube, kind, operator, url):
    op = operator(f'''
import time

@kopf.on.create(*KIND)
async def fn(**_):
    time.sleep({answering.LOOP_TIMEOUT + 3})
''', f'--liveness={url}', kind=kind)
    await op.wait_for("The health checks are served")
    started = time.monotonic()
    await kube.create(kind, 'obj')
    problems = (await wait_for(url, 503, timeout=answering.LOOP_TIMEOUT + 2))['problems']
    assert time.monotonic() - started > answering.LOOP_TIMEOUT - 1
    assert 'handlers0.py:8 fn()' in problems['loop']
    assert op.find("The event loop is blocked for .+handlers0.py:8 fn()")
    assert await wait_for(url, 200) == {}
    await op.wait_for("The event loop runs again")


async def test_a_watch_that_was_ended_is_started_again_and_all_is_well(
        kube, kind, embedded, url, journal):
    @kopf.on.create(*kind.selector)
    async def fn(name, **_):
        journal.append(name)
        for task in asyncio.all_tasks():
            if task.get_name().startswith('watching'):
                task.cancel()

    embedded(liveness_endpoint=url)
    await kube.create(kind, 'obj1')
    await journal.wait('obj1')
    assert await wait_for(url, 200) == {}
    await kube.create(kind, 'obj2')
    await journal.wait('obj2')


async def test_a_lost_login_is_told_of_in_its_time_and_then_all_is_well_again(
        kube, kind, embedded, url, monkeypatch, journal):
    monkeypatch.setattr(health, 'LOGIN_TIMEOUT', 1.0)
    is_lost = False

    @kopf.on.login()
    def login(**_):
        if is_lost:
            raise kopf.TemporaryError("password=secret", delay=0.5)
        expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
        return dataclasses.replace(kopf.login_with_kubeconfig(), expiration=expiration)

    @kopf.on.create(*kind.selector)
    def fn(name, **_):
        journal.append(name)

    embedded(liveness_endpoint=url)
    await wait_for(url, 200)
    is_lost = True
    await asyncio.sleep(1)  # it expires
    await kube.create(kind, 'obj')  # handling it needs a request
    body = await wait_for(url, 503)
    assert body['problems'].keys() == {'login'}
    assert re.fullmatch(r"no credentials for \d+ s; see the log\.", body['problems']['login'])
    is_lost = False
    assert await wait_for(url, 200) == {}
    await wait_handled(kube, kind, 'obj')
    assert journal == ['obj']


async def test_stuck_threads_are_told_of_in_their_time_and_then_all_is_well_again(
        kube, kind, embedded, url, monkeypatch, settings):
    monkeypatch.setattr(health, 'FULL_TIMEOUT', 1.0)
    settings.execution.max_workers = 1
    gate = threading.Event()

    @kopf.on.create(*kind.selector)
    def fn(**_):
        gate.wait(20)

    embedded(liveness_endpoint=url)
    await kube.create(kind, 'obj1')
    await kube.create(kind, 'obj2')
    try:
        problems = (await wait_for(url, 503))['problems']
        assert problems.keys() == {'threads'}
        assert "fn' for default/obj" in problems['threads']
        assert 'test_health.py:' in problems['threads']
    finally:
        gate.set()
    assert await wait_for(url, 200) == {}


async def test_sync_probes_are_answered_while_handlers_occupy_all_threads(
        embedded, kind, kube, url, settings,
):
    settings.execution.max_workers = 1
    begun, gate = threading.Event(), threading.Event()

    @kopf.on.create(*kind.selector)
    def fn(**_):
        begun.set()
        gate.wait(60)

    @kopf.on.probe(id='probe')
    def probe(**_):
        return begun.is_set()

    embedded(liveness_endpoint=url)
    await kube.create(kind, 'obj')
    await asyncio.to_thread(begun.wait, 30)
    await kube.create(kind, 'other')
    try:
        assert await check(url) == (200, {'probe': True})
    finally:
        gate.set()


async def test_kinds_that_are_absent_are_no_reason_for_a_new_start(embedded, url):
    @kopf.on.create('absent.test', 'v1', 'nothings')
    def fn(**_):
        pass

    embedded(liveness_endpoint=url)
    await wait_for(url, 200)
    await asyncio.sleep(1)
    assert await check(url) == (200, {})


async def test_an_api_that_cannot_be_reached_is_no_reason_for_a_new_start(
        cluster, kube, kind, operator, url, tmp_path):
    with Proxy(cluster) as proxy:
        op = operator(
            '@kopf.on.create(*KIND)\ndef fn(**_): pass', f'--liveness={url}', kind=kind,
            kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))
        await kube.create(kind, 'obj')
        await op.wait_for("Handling cycle is finished")
        proxy.refuse()
        proxy.cut_streams()
        for _ in range(20):
            assert await check(url) == (200, {})
            await asyncio.sleep(0.1)
        op.stop(timeout=20)


async def test_it_answers_until_the_cleanup_is_over(operator, kind, url):
    op = operator('''
import asyncio

@kopf.on.cleanup()
async def fn(**_):
    print("cleaning")
    await asyncio.sleep(1)
''', f'--liveness={url}', kind=kind)
    await op.wait_for("The health checks are served")
    op.send(signal.SIGTERM)
    await op.wait_for("cleaning")
    assert await check(url) == (200, {})
    assert await op.wait() == 0
    with pytest.raises(aiohttp.ClientConnectorError):
        await check(url)
