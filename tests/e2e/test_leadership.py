"""
Replicas of an operator that elect their leader by a Lease: who works, and when the next takes over.
"""
import asyncio
import signal
import time
import uuid

import aiohttp

from tests.e2e.journals import get_progress, wait_handled
from tests.e2e.kubes import CONFIGMAPS
from tests.e2e.ports import find_free_ports
from tests.e2e.replicas import (
    DEADLINE,
    DURATION,
    LEADING,
    LEASES,
    LOST,
    PAUSE,
    PERIOD,
    SLACK,
    STANDING_BY,
    edit_lease,
    is_lease,
    wait_holder,
    wait_until,
)


async def test_leader_is_in_the_lease(kube, replicas, lease):
    op = replicas.start('me')
    await op.wait_for(LEADING)
    obj = await kube.get(LEASES, lease)
    assert obj['spec']['holderIdentity'] == 'me'
    assert obj['spec']['leaseDurationSeconds'] == DURATION
    assert obj['spec']['leaseTransitions'] == 0
    await kube.wait_for(
        LEASES, lease, lambda newer: newer['spec']['renewTime'] > obj['spec']['renewTime'])
    newer = await kube.get(LEASES, lease)
    assert newer['spec']['acquireTime'] == obj['spec']['acquireTime']
    assert newer['spec']['leaseTransitions'] == 0


async def test_standby_watches_but_handles_nothing(kube, kind, replicas):
    a, b = await replicas.start_both()
    await kube.create(kind, 'obj', spec={})
    await wait_handled(kube, kind, 'obj')
    await kube.patch(kind, 'obj', {'spec': {'n': 1}})
    await a.wait_for('HANDLED obj 1 BY a')
    await wait_handled(kube, kind, 'obj')
    assert not b.find('HANDLE')
    assert not [request for request in replicas.proxies['b'].requests if request.method != 'GET']


async def test_next_one_takes_over_when_the_lease_of_the_killed_one_expires(kube, kind, replicas):
    a, b = await replicas.start_both()
    await kube.create(kind, 'before', spec={})
    await a.wait_for('HANDLED before')
    await wait_handled(kube, kind, 'before')
    a.kill()
    killed = time.monotonic()
    await kube.create(kind, 'meanwhile', spec={})
    await b.wait_for('HANDLED meanwhile None BY b')
    assert DURATION - PERIOD - 1 < time.monotonic() - killed < DURATION + PAUSE + SLACK
    await wait_handled(kube, kind, 'meanwhile')
    assert not b.find('HANDLE before')
    assert replicas.find_intruders() == []


async def test_next_one_takes_over_at_once_when_the_leader_is_stopped(kube, kind, replicas, lease):
    a, b = await replicas.start_both('''
@kopf.on.startup()
def wait_for_long(settings, **_):
    settings.leadership.lease_duration = 60
    settings.leadership.renew_deadline = 40
    settings.leadership.retry_period = 30
''')
    await kube.create(kind, 'before', spec={'duration': 0.5})
    await a.wait_for('HANDLE before')
    stopped = time.monotonic()
    a.send(signal.SIGTERM)
    await b.wait_for(LEADING)
    assert time.monotonic() - stopped < 20  # neither the period of attempts nor the duration
    assert await a.wait() == 0
    await kube.create(kind, 'after', spec={})
    await b.wait_for('HANDLED after None BY b')
    assert a.find('HANDLED before')  # the Lease is released after all work has ended
    assert not b.find('HANDLE before')
    obj = await wait_holder(kube, lease, 'b')
    assert obj['spec']['leaseTransitions'] == 1
    assert replicas.find_intruders() == []


async def test_takeover_lists_nothing_again(kube, kind, replicas):
    a, b = await replicas.start_both()
    for i in range(3):
        await kube.create(kind, f'obj{i}', spec={})
        await wait_handled(kube, kind, f'obj{i}')
    a.stop()
    lists = len(replicas.proxies['b'].lists)
    await kube.patch(kind, 'obj1', {'spec': {'n': 1}})
    await b.wait_for('HANDLED obj1 1 BY b')
    await wait_handled(kube, kind, 'obj1')
    read = [req for req in replicas.proxies['b'].lists[lists:] if not is_lease(req)]
    assert [request for request in read if request.query.get('limit') != '1'] == []
    assert not b.find('HANDLED obj[02]')


async def test_stalled_watches_are_replaced_at_the_takeover(kube, kind, replicas):
    a, b = await replicas.start_both()
    await asyncio.sleep(1)  # the watches are not new any more
    assert replicas.proxies['b'].stall_streams()
    await kube.create(kind, 'obj', spec={})
    await a.wait_for('HANDLED obj')
    await wait_handled(kube, kind, 'obj')
    a.stop()
    await b.wait_for(LEADING)
    await kube.patch(kind, 'obj', {'spec': {'n': 1}})
    await b.wait_for('HANDLED obj 1 BY b')
    await wait_handled(kube, kind, 'obj')
    assert not b.find('HANDLED obj None')


async def test_lease_that_is_not_released_expires(kube, replicas, lease):
    a, b = await replicas.start_both('''
@kopf.on.startup()
def keep(settings, **_):
    settings.leadership.release_on_exit = False
''')
    assert a.stop() == 0
    stopped = time.monotonic()
    assert (await kube.get(LEASES, lease))['spec']['holderIdentity'] == 'a'
    await b.wait_for(LEADING)
    assert time.monotonic() - stopped > DURATION - PERIOD - 1


async def test_lease_expires_if_the_thread_of_a_daemon_goes_on(kube, kind, replicas, lease):
    a, b = await replicas.start_both('''
@kopf.daemon(*KIND)
def accompany(name, **_):
    print(f'DAEMON {name} BY {WHO}')
    time.sleep(15)  # it does not look whether to stop
    print(f'ENDED {name} BY {WHO}')
''')
    await kube.create(kind, 'obj', spec={})
    await a.wait_for('DAEMON obj')
    a.send(signal.SIGTERM)
    await a.wait_for('Daemons go on in threads')
    left = time.monotonic()
    await b.wait_for(LEADING)
    assert time.monotonic() - left > DURATION - PERIOD - 1
    assert await a.wait() == 0
    assert a.find('ENDED obj')


async def test_process_that_was_stopped_writes_nothing_when_it_goes_on(kube, kind, replicas):
    a, b = await replicas.start_both()
    for i in range(5):
        await kube.create(kind, f'obj{i}', spec={'duration': 1.0})
    await a.wait_for('HANDLE obj', count=5)
    a.send(signal.SIGSTOP)
    await b.wait_for('HANDLED obj', count=5)
    for i in range(5):
        await wait_handled(kube, kind, f'obj{i}')
    a.send(signal.SIGCONT)
    await a.wait_for(LOST)
    await a.wait_for(STANDING_BY)
    await kube.create(kind, 'last', spec={})
    await b.wait_for('HANDLED last None BY b')
    assert not a.find('HANDLE last')
    assert replicas.find_intruders() == []


async def test_leader_that_is_cut_off_stops_before_the_next_one_begins(kube, kind, replicas):
    a, b = await replicas.start_both()
    await kube.create(kind, 'obj', spec={'duration': 10})
    await a.wait_for('HANDLE obj')
    outage = replicas.proxies['a'].refuse()
    replicas.proxies['a'].cut_streams()
    await a.wait_for(LOST)
    assert not b.find(LEADING)
    await b.wait_for('HANDLE obj None BY b')
    outage.end()
    await a.wait_for(STANDING_BY)
    await b.wait_for('HANDLED obj None BY b')
    await wait_handled(kube, kind, 'obj')
    assert not a.find('HANDLED obj')
    assert replicas.find_intruders() == []


async def test_leader_whose_requests_hang_stops_in_time(kube, kind, replicas):
    a, b = await replicas.start_both()
    await kube.create(kind, 'obj', spec={})
    await wait_handled(kube, kind, 'obj')
    outage = replicas.proxies['a'].hang(times=None)
    replicas.proxies['a'].stall_streams()
    begun = time.monotonic()
    await a.wait_for(LOST)
    assert time.monotonic() - begun < DEADLINE + PERIOD + SLACK
    await kube.patch(kind, 'obj', {'spec': {'n': 1}})
    await b.wait_for('HANDLED obj 1 BY b')
    outage.end()
    assert replicas.find_intruders() == []


async def test_blocked_event_loop_does_not_cost_the_leadership(kube, kind, replicas):
    a, b = await replicas.start_both(f'''
@kopf.on.create(*KIND, annotations={{'block': kopf.PRESENT}})
async def block(**_):
    time.sleep({DURATION + DEADLINE})
    print('UNBLOCKED')
''')
    await kube.create(kind, 'obj', spec={}, annotations={'block': 'yes'})
    await a.wait_for('UNBLOCKED')
    await wait_handled(kube, kind, 'obj')
    assert not a.find(LOST)
    assert not b.find('HANDLE|LEADING')
    assert replicas.find_intruders() == []


async def test_handlers_are_interrupted_and_daemons_stop_when_the_lease_is_lost(
        kube, kind, replicas, lease):
    a = replicas.start('a', '''
@kopf.on.create(*KIND, id='long')
async def run_for_long(**_):
    try:
        print('BEGIN')
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        print('CANCELLED')
        raise

@kopf.daemon(*KIND)
async def daemon(stopped, **_):
    print('DAEMON')
    await stopped.wait()
    print(f'STOPPED: {stopped.reason}')
''')
    await a.wait_for(LEADING)
    await kube.create(kind, 'obj', spec={})
    await a.wait_for('BEGIN')
    await a.wait_for('DAEMON')
    await edit_lease(kube, lease, holderIdentity='other', leaseDurationSeconds=1)
    await a.wait_for("Lost the Lease .+ held by 'other'")
    await a.wait_for('CANCELLED')
    await a.wait_for('STOPPED: .*OPERATOR_PAUSING')
    await a.wait_for(LEADING, count=2)
    await a.wait_for('BEGIN', count=2)
    await a.wait_for('DAEMON', count=2)
    assert (await kube.get(LEASES, lease))['spec']['leaseTransitions'] == 1
    assert replicas.find_intruders() == []


async def test_operator_exits_at_a_loss_if_so_set(kube, replicas, lease):
    a = replicas.start('a', '''
@kopf.on.startup()
def leave(settings, **_):
    settings.leadership.exit_on_loss = True
''')
    await a.wait_for(LEADING)
    await edit_lease(kube, lease, holderIdentity='other', leaseDurationSeconds=100)
    assert await a.wait() == 1
    assert a.find('Error: The operator has lost its Lease')
    assert (await kube.get(LEASES, lease))['spec']['holderIdentity'] == 'other'


async def test_retries_go_on_where_the_former_leader_has_left_them(kube, kind, replicas):
    a, b = await replicas.start_both('''
@kopf.on.create(*KIND, id='failing')
def fail(retry, **_):
    print(f'RETRY {retry} BY {WHO}')
    if retry < 3:
        raise kopf.TemporaryError("not yet", delay=0.5 if retry < 1 else 8)
''')
    await kube.create(kind, 'obj', spec={})
    await a.wait_for('RETRY 1 BY a')
    await kube.wait_for(kind, 'obj', lambda obj: get_progress(obj)['failing']['retries'] == 2)
    a.stop()
    await wait_handled(kube, kind, 'obj')
    assert len(a.find('RETRY') + b.find('RETRY')) == 4
    assert b.find('RETRY 3 BY b')
    assert not b.find('HANDLE obj')


async def test_leader_that_comes_back_knows_what_the_other_has_done(kube, kind, replicas, lease):
    a, b = await replicas.start_both('''
@kopf.on.update(*KIND, id='failing')
def fail(retry, spec, **_):
    print(f'RETRY {retry} OF {spec.get("n")} BY {WHO}')
    if retry < 1:
        raise kopf.TemporaryError("not yet", delay=4)
''')
    await kube.create(kind, 'obj', spec={})
    await wait_handled(kube, kind, 'obj')
    await kube.patch(kind, 'obj', {'spec': {'n': 1}})
    await a.wait_for('RETRY 0 OF 1 BY a')
    await kube.wait_for(kind, 'obj', lambda obj: get_progress(obj)['failing']['retries'] == 1)
    a.send(signal.SIGSTOP)
    await b.wait_for(LEADING)
    a.send(signal.SIGCONT)
    await a.wait_for(LOST)
    await b.wait_for('RETRY 1 OF 1 BY b')
    await wait_handled(kube, kind, 'obj')
    b.stop()
    await a.wait_for(LEADING, count=2)
    await kube.patch(kind, 'obj', {'spec': {'n': 2}})
    await a.wait_for('RETRY 1 OF 2 BY a')
    await wait_handled(kube, kind, 'obj')
    assert len(a.find('RETRY . OF 1') + b.find('RETRY . OF 1')) == 2
    assert replicas.find_intruders() == []


async def test_resume_and_event_handlers_see_each_object_at_the_takeover(kube, kind, replicas):
    a, b = await replicas.start_both('''
@kopf.on.resume(*KIND)
def resume(name, **_):
    print(f'RESUME {name} BY {WHO}')

@kopf.on.event(*KIND)
def event(name, type, spec, **_):
    print(f'EVENT {type} {name} {spec.get("n")} BY {WHO}')
''')
    for name in ['same', 'changed', 'gone']:
        await kube.create(kind, name, spec={'n': 0})
        await wait_handled(kube, kind, name)
    await kube.patch(kind, 'changed', {'spec': {'n': 1}})
    await a.wait_for('HANDLED changed 1')
    await wait_handled(kube, kind, 'changed')
    await kube.delete(kind, 'gone')
    await a.wait_for('EVENT DELETED gone')
    assert not b.find('RESUME|EVENT')
    a.stop()
    await b.wait_for('RESUME same BY b')
    await b.wait_for('RESUME changed BY b')
    assert b.find('EVENT None same 0 BY b')
    assert b.find('EVENT None changed 1 BY b')
    assert not b.find('gone')
    assert not b.find('HANDLE ')


async def test_owned_resources_are_reconciled_by_the_leader_only(kube, kind, replicas):
    a, b = await replicas.start_both('''
@kopf.reconcile(*KIND, owns=['configmaps'])
def reconcile(name, spec, **_):
    print(f'RECONCILE {name} {spec.get("n")} BY {WHO}')
    return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-child'},
             'data': {'n': str(spec.get('n'))}}]
''')
    name = f'obj-{uuid.uuid4().hex[:8]}'
    await kube.create(kind, name, spec={'n': 0})
    await kube.wait_for(CONFIGMAPS, f'{name}-child', lambda obj: obj['data']['n'] == '0')
    a.kill()
    await kube.patch(kind, name, {'spec': {'n': 1}})
    await kube.wait_for(CONFIGMAPS, f'{name}-child', lambda obj: obj['data']['n'] == '1')
    assert b.find(f'RECONCILE {name} 1 BY b')
    assert not b.find(f'RECONCILE {name} 0 BY b')
    await kube.patch(CONFIGMAPS, f'{name}-child', {'data': {'n': 'drift'}})
    await kube.wait_for(CONFIGMAPS, f'{name}-child', lambda obj: obj['data']['n'] == '1')
    assert replicas.find_intruders() == []


async def test_health_checks_tell_who_leads(replicas):
    ports = find_free_ports(2)
    urls = [f'http://127.0.0.1:{ports + i}/healthz' for i in range(2)]
    a = replicas.start('a', '', f'--liveness={urls[0]}')
    await a.wait_for(LEADING)
    b = replicas.start('b', '', f'--liveness={urls[1]}')
    await b.wait_for(STANDING_BY)

    async def check(url):
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.json()

    assert await check(urls[0]) == (200, {'leadership': 'leader'})
    assert await check(urls[1]) == (200, {'leadership': 'standby'})
    a.stop()
    await b.wait_for(LEADING)
    assert await check(urls[1]) == (200, {'leadership': 'leader'})


async def test_lack_of_rights_is_told_once_with_the_rule_and_tried_again(kube, kind, replicas):
    op = replicas.start('early')
    await op.wait_for(LEADING)
    op.stop()
    proxy = replicas.proxies['early']
    denial = proxy.fail(
        403, 'leases.coordination.k8s.io "x" is forbidden: User "me" cannot get it',
        reason='Forbidden', match=is_lease, times=None)
    op = replicas.start('early')
    line, = await op.wait_for('is forbidden')
    assert 'resources: [leases], verbs: [get, watch, create, update]' in line
    hits = denial.hits
    await wait_until(lambda: denial.hits > hits + 2)
    assert len(op.find('is forbidden')) == 1
    denial.end()
    await op.wait_for(LEADING)


async def test_peering_and_a_lease_at_once_are_refused(replicas):
    op = replicas.start('me', '', '--peering=default')
    assert await op.wait() == 1
    line, = op.find('Error: ')
    assert 'Peering and leader election exclude each other' in line


async def test_lease_is_in_the_namespace_of_the_context(kube, kind, operator, cluster, lease):
    text = '@kopf.on.event(*KIND)\ndef fn(**_): pass'
    op = operator(text, f'--leader-elect={lease}', kind=kind,
                  scope=('--namespace', 'default', '--verbose'), env={'POD_ID': 'me'})
    await op.wait_for(LEADING)
    assert (await kube.get(LEASES, lease))['spec']['holderIdentity'] == 'me'


async def test_namespace_of_the_lease_is_asked_for_if_it_is_unknown(replicas):
    op = replicas.start('me', '''
@kopf.on.startup()
def forget(settings, **_):
    settings.leadership.namespace = None

@kopf.on.login()
def login(**_):
    return kopf.ConnectionInfo(server='https://127.0.0.1')
''')
    assert await op.wait() == 1
    line, = op.find('Error: ')
    assert 'settings.leadership.namespace' in line
