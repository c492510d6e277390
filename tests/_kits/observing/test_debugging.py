"""
What an operator does right now, as JSON for people.
"""
import asyncio
import concurrent.futures
import datetime
import json

import pytest

import kopf
from kopf._cogs.serving import exchanges
from kopf._kits.observing import debug
from tests._core.reactor.worlds import run_virtually
from tests._kits.observing.scrapes import Measured


def declare(registry):
    @kopf.on.create('kopfexamples', id='created', registry=registry)
    async def created(spec, retry, **_):
        if spec.get('fails') and not retry:
            raise kopf.TemporaryError("password=secret", delay=60)
        await asyncio.sleep(spec.get('lasts', 0))


def describe(*specs, lasts=10, faults=(), change=None, role=None):
    async def run():
        async with Measured(declare, role=role) as measured:
            measured.api.faults.extend(faults)
            for number, spec in enumerate(specs):
                measured.api.create(f'obj{number}', spec={**spec, 'token': 'secret'})
            if change is not None:
                change(measured)
            measured.pulse.begin()
            measured.pulse.hear(None)
            await asyncio.sleep(lasts)
            return await debug.describe(measured.inspector)

    found = run_virtually(run())
    assert 'secret' not in json.dumps(found)
    return found


def test_objects_at_work_have_their_handlers():
    found = describe({'lasts': 100}, {})
    shown, = found['at_work']['shown']
    assert {key: shown[key] for key in ('resource', 'namespace', 'name', 'uid', 'phase')} == {
        'resource': 'kopfexamples.v1.kopf.dev', 'namespace': 'ns', 'name': 'obj0', 'uid': 'uid1',
        'phase': 'calling'}
    handler, = shown['handlers']
    assert (handler['id'], handler['waits_for_thread']) == ('created', False)
    assert handler['seconds'] == pytest.approx(10, abs=0.5)
    assert found['waiting'] == found['queued'] == found['throttled'] == {'total': 0, 'shown': []}


def test_waiting_objects_have_the_reason_and_the_time():
    shown, = describe({'fails': True}, {})['waiting']['shown']
    assert (shown['name'], shown['reason']) == ('obj0', 'retry')
    assert shown['seconds'] == pytest.approx(50, abs=0.5)
    handler, = shown['handlers']
    assert (handler['id'], handler['attempts']) == ('created', 1)
    assert handler['seconds'] == pytest.approx(shown['seconds'], abs=0.1)
    assert datetime.datetime.fromisoformat(handler['until']).tzinfo is not None


def test_throttled_objects_have_the_time():
    found = describe({}, faults=['before'])
    shown, = found['throttled']['shown']
    assert (shown['name'], shown['reason']) == ('obj0', 'throttled')
    assert shown['seconds'] == pytest.approx(20, abs=0.5)
    assert found['waiting']['total'] == 0


def test_queued_objects_are_shown():
    def limit(measured):
        measured.operator.settings.queueing.worker_limit = 1

    found = describe({'lasts': 100}, {}, {}, change=limit)
    assert (found['at_work']['total'], found['queued']['total']) == (1, 2)
    assert [shown['name'] for shown in found['queued']['shown']] == ['obj1', 'obj2']


def test_of_many_objects_only_some_are_shown_but_all_are_counted():
    found = describe(*[{'fails': True}] * 1500, lasts=50)
    assert found['waiting']['total'] == 1500
    assert len(found['waiting']['shown']) == debug.MAX_SHOWN
    assert len(json.dumps(found)) < 100_000


def test_watches_are_shown():
    assert describe({})['watches'] == {'total': 1, 'shown': [{
        'resource': 'kopfexamples.v1.kopf.dev', 'namespace': None, 'running': True,
        'restarts': 0, 'last_event_seconds_ago': 10.0}]}


@pytest.mark.parametrize('change, state', [
    (None, 'working'),
    (lambda measured: measured.operator.informers.pause(), 'paused'),
    (lambda measured: measured.operator.stand_by(), 'standby'),
])
def test_state_of_the_operator_is_shown(change, state):
    assert describe({}, change=change)['state'] == state


@pytest.mark.parametrize('role', [None, 'leader', 'standby'])
def test_leadership_is_shown(role):
    assert describe({}, role=role)['leadership'] == role


@pytest.mark.parametrize('address, expected', [
    ('127.0.0.1', True),
    ('127.1.2.3', True),
    ('::1', True),
    ('::ffff:127.0.0.1', True),
    ('10.0.0.1', False),
    ('::ffff:10.0.0.1', False),
    ('fe80::1%eth0', False),
    ('', False),
    ('localhost', False),
])
def test_addresses_of_the_same_machine(address, expected):
    assert debug.is_local(address) == expected


def make_request(peer, fields=()):
    return exchanges.Request('GET', '/', fields, peer=peer)


@pytest.mark.parametrize('name, expected', [
    ('Forwarded', True),
    ('forwarded', True),
    ('Via', True),
    ('X-Real-IP', True),
    ('x-forwarded-for', True),
    ('X-Forwarded-Proto', True),
    ('X-Forwarded-Client-Cert', True),
    ('Host', False),
    ('User-Agent', False),
    ('X-Request-Id', False),
])
def test_requests_that_proxies_have_forwarded_are_known_by_their_headers(name, expected):
    request = make_request('127.0.0.1', [('Host', 'localhost'), (name, 'whatever')])
    assert debug.is_forwarded(request) == expected


def ask(debugger, peer, *fields):
    """Ask from another thread, with an event loop of its own, as the server does."""
    status, body, content_type, _ = asyncio.run(debugger.respond(make_request(peer, fields)))
    assert content_type == 'application/json; charset=utf-8'
    return status, json.loads(body)


@pytest.mark.parametrize('peer, is_remote, status', [
    ('127.0.0.1', False, 200),
    ('10.0.0.1', False, 403),
    ('10.0.0.1', True, 200),
])
async def test_other_machines_get_nothing_unless_the_author_allows_it(peer, is_remote, status):
    async with Measured(declare) as measured:
        measured.inspected.settings.debugging.remote = is_remote
        debugger = debug.Debugger(measured.inspector)
        response = await asyncio.to_thread(ask, debugger, peer)
    assert response[0] == status
    assert ('state' in response[1]) == (status == 200)


@pytest.mark.parametrize('host, status', [
    ('localhost:8080', 200), ('127.0.0.1:8080', 200), ('[::1]:8080', 200),
    ('example.com:8080', 403), ('127.0.0.1.example.com', 403)])
async def test_web_pages_with_names_that_lead_here_get_nothing(host, status):
    async with Measured(declare) as measured:
        debugger = debug.Debugger(measured.inspector)
        response = await asyncio.to_thread(ask, debugger, '127.0.0.1', ('Host', host))
    assert response[0] == status


@pytest.mark.parametrize('is_remote, status', [(False, 403), (True, 200)])
async def test_clients_of_proxies_on_the_same_machine_are_remote(is_remote, status):
    async with Measured(declare) as measured:
        measured.inspected.settings.debugging.remote = is_remote
        debugger = debug.Debugger(measured.inspector)
        response = await asyncio.to_thread(
            ask, debugger, '127.0.0.1', ('X-Forwarded-For', '127.0.0.1'))
    assert response[0] == status
    assert ('state' in response[1]) == (status == 200)


async def test_blocked_event_loop_is_said(monkeypatch):
    monkeypatch.setattr(debug, 'PATIENCE', 0.01)
    async with Measured(declare) as measured:
        debugger = debug.Debugger(measured.inspector)
        with concurrent.futures.ThreadPoolExecutor() as executor:
            response = executor.submit(ask, debugger, '127.0.0.1').result()
    assert response == (503, {'error': "The event loop of the operator is blocked."})
