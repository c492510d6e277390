"""
Operators that meet in a peering object: who works, who waits, and that nothing is lost by it.
"""
import asyncio
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid

import aiohttp
import pytest
import yaml

from tests.e2e.journals import wait_handled
from tests.e2e.kubes import CRDS, NAMESPACES, Kind, KubeError
from tests.e2e.ports import find_free_ports
from tests.e2e.proxy import Proxy

MANIFEST = pathlib.Path(__file__).parents[2] / 'peering.yaml'
NARROW = Kind('kopf.dev', 'v1', 'kopfpeerings', 'KopfPeering')
WIDE = Kind('kopf.dev', 'v1', 'clusterkopfpeerings', 'ClusterKopfPeering', namespaced=False)
FORMER = Kind('zalando.org', 'v1', 'kopfpeerings', 'KopfPeering')

TEXT = '''
import asyncio, os
WHO = os.environ.get('WHO', 'x')

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.peering.lifetime = int(os.environ.get('LIFETIME', '60'))

@kopf.on.create(*KIND)
async def create(name, spec, **_):
    print(f'CREATE {name} BY {WHO}')
    await asyncio.sleep(spec.get('duration', 0))
    print(f'CREATED {name} BY {WHO}')

@kopf.on.update(*KIND)
def update(name, **_):
    print(f'UPDATE {name} BY {WHO}')

@kopf.on.resume(*KIND)
def resume(name, **_):
    print(f'RESUME {name} BY {WHO}')
'''
DAEMONS = TEXT + '''
@kopf.daemon(*KIND)
async def daemon(name, stopped, **_):
    print(f'DAEMON {name} BY {WHO}')
    await stopped.wait()
    print(f'STOPPED {name} BY {WHO}: {stopped.reason}')

@kopf.timer(*KIND, interval=0.2)
def timer(name, **_):
    print(f'TICK {name} BY {WHO}')
'''
ACTIVE = r'Starting the watch-stream for things'
YIELDING = r'Pausing operations in favour of \[<Peer .+: priority=\d+'
CLASHING = r'\[WARNING .+conflicting operators with the same priority'
RESUMING = r'Resuming operations after the pause'


async def install(kube, *groups):
    for group in groups:
        for definition in yaml.safe_load_all(MANIFEST.read_text().replace('kopf.dev', group)):
            try:
                await kube.request('POST', CRDS, body=definition)
            except KubeError as e:
                assert e.status == 409  # it is there already
    for kind in (NARROW, WIDE, FORMER):
        if kind.group in groups:
            await kube.wait_served(kind)


@pytest.fixture()
def name():
    return f'peering-{uuid.uuid4().hex[:8]}'


@pytest.fixture()
async def peering(kube, name):
    """A peering object of both scopes, which nobody else uses; its name."""
    await install(kube, 'kopf.dev', 'zalando.org')
    for kind in (NARROW, WIDE):
        while True:
            try:
                await kube.create(kind, name)
                break
            except KubeError as e:
                assert e.status in (404, 429)
                await asyncio.sleep(0.1)
    yield name
    for kind in (NARROW, WIDE, FORMER):
        try:
            await kube.delete(kind, name)
        except KubeError as e:
            assert e.status == 404


@pytest.fixture()
def member(operator, kind, peering):
    """Start an operator of the peering in the namespace ``default``."""
    def start(who, priority=0, *options, text=TEXT, lifetime=60, scope=('--namespace', 'default'),
              **kwargs):
        return operator(
            text, '--priority', str(priority), *options, kind=kind,
            scope=(*scope, '--peering', peering, '--verbose'),
            env={'WHO': who, 'LIFETIME': str(lifetime), 'POD_ID': who}, **kwargs)
    return start


async def get_records(kube, peering, kind=NARROW):
    obj = await kube.get(kind, peering)
    return obj.get('status') or {}


def run(cluster, *args):
    return subprocess.run(
        [sys.executable, '-m', 'kopf', *args], env={**os.environ, 'KUBECONFIG': cluster},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)


async def test_the_kinds_for_peering_are_accepted_by_the_api(kube):
    definitions = list(yaml.safe_load_all(MANIFEST.read_text()))
    assert {definition['metadata']['name'] for definition in definitions} == {
        'clusterkopfpeerings.kopf.dev', 'kopfpeerings.kopf.dev'}
    for definition in definitions:
        try:
            await kube.request('POST', CRDS, body=definition, params={'dryRun': 'All'})
        except KubeError as e:
            assert e.status == 409  # they are there for real


async def test_operator_writes_a_record_of_itself(kube, member, peering):
    op = member('me', 5)
    await op.wait_for(ACTIVE)
    records = await get_records(kube, peering)
    lastseen = datetime.datetime.fromisoformat(records['me'].pop('lastseen'))
    assert records == {'me': {'priority': 5, 'lifetime': 60}}
    assert abs((datetime.datetime.now(datetime.UTC) - lastseen).total_seconds()) < 10


async def test_operator_is_known_by_its_user_and_host_unless_it_is_told_its_name(
        kube, operator, kind, peering):
    op = operator(TEXT, kind=kind, env={'POD_ID': ''},
                  scope=('--namespace', 'default', '--peering', peering, '--verbose'))
    await op.wait_for(ACTIVE)
    identity, = await get_records(kube, peering)
    assert re.fullmatch(r'[^@/]+@[^@/]+/\d{14}/[a-z0-9]{3}', identity)


async def test_record_is_renewed_in_its_lifetime(kube, member, peering):
    op = member('me', lifetime=15)  # the API server can be slow for seconds
    await op.wait_for(r'Keep-alive in .+: ok', count=4, timeout=60)
    assert op.find(ACTIVE)
    assert not op.find('Pausing')


async def test_record_is_gone_when_the_operator_is_stopped(kube, member, peering):
    op = member('me')
    await op.wait_for(ACTIVE)
    assert op.stop() == 0
    assert await get_records(kube, peering) == {}


async def test_record_is_left_to_expire_if_the_thread_of_a_daemon_goes_on(
        kube, kind, member, peering):
    op = member('me', text='''
import time

@kopf.daemon(*KIND)
def daemon(**_):
    print('DAEMON')
    time.sleep(12)  # it does not look whether to stop
    print('ENDED')
''')
    await op.wait_for(ACTIVE)
    await kube.create(kind, 'obj', spec={})
    await op.wait_for('DAEMON')
    op.send(signal.SIGTERM)
    await op.wait_for('Daemons go on in threads')
    assert await op.wait() == 0
    assert op.find('ENDED')
    assert 'me' in await get_records(kube, peering)


async def test_record_of_a_killed_operator_is_removed_by_others_after_its_lifetime(
        kube, member, peering):
    first = member('first', 1, lifetime=2)
    await first.wait_for(ACTIVE)
    first.kill()
    member('second', 2, lifetime=2)
    await kube.wait_for(NARROW, peering, lambda obj: obj['status'].keys() == {'second'})


async def test_cluster_wide_operators_meet_in_the_cluster_wide_object(kube, member, peering):
    op = member('me', scope=('--all-namespaces',))
    await op.wait_for(ACTIVE)
    assert (await get_records(kube, peering, WIDE)).keys() == {'me'}
    assert await get_records(kube, peering, NARROW) == {}


async def test_scope_of_the_peering_can_be_chosen_in_the_settings(kube, member, peering):
    op = member('me', text=TEXT + '''
@kopf.on.startup()
def choose(settings, **_):
    settings.peering.clusterwide = True
''')
    await op.wait_for(ACTIVE)
    assert (await get_records(kube, peering, WIDE)).keys() == {'me'}
    assert await get_records(kube, peering, NARROW) == {}


async def test_cluster_wide_operators_can_meet_in_the_objects_of_namespaces(kube, member, peering):
    op = member('me', scope=('--all-namespaces',), text=TEXT + '''
@kopf.on.startup()
def choose(settings, **_):
    settings.peering.namespaced = True
''')
    await op.wait_for(ACTIVE)
    assert (await get_records(kube, peering, NARROW)).keys() == {'me'}
    assert await get_records(kube, peering, WIDE) == {}


async def test_former_api_group_is_used_if_the_object_is_there(kube, member, peering):
    await kube.delete(NARROW, peering)
    await kube.create(FORMER, peering)
    op = member('me')
    await op.wait_for(ACTIVE)
    assert (await get_records(kube, peering, FORMER)).keys() == {'me'}


async def test_lower_priority_waits_and_says_for_whom(kube, kind, member):
    low = member('low', 1)
    await low.wait_for(ACTIVE)
    high = member('high', 2)
    await low.wait_for(r'Pausing operations in favour of \[<Peer high: priority=2, lifetime=60')
    await high.wait_for(ACTIVE)
    await kube.create(kind, 'obj', spec={})
    await high.wait_for('CREATED obj BY high')
    await wait_handled(kube, kind, 'obj')
    assert not low.find('obj BY')


async def test_operator_that_comes_with_a_lower_priority_waits_from_the_beginning(member):
    high = member('high', 2)
    await high.wait_for(ACTIVE)
    low = member('low', 1)
    await low.wait_for(YIELDING)
    await asyncio.sleep(0.5)
    assert not low.find(ACTIVE)


async def test_development_mode_has_a_high_priority(kube, operator, kind, peering):
    op = operator(TEXT, '--dev', kind=kind, env={'POD_ID': 'dev'},
                  scope=('--namespace', 'default', '--peering', peering, '--verbose'))
    await op.wait_for(ACTIVE)
    assert (await get_records(kube, peering))['dev']['priority'] == 666


async def test_next_one_takes_over_as_soon_as_the_highest_is_stopped(kube, kind, member):
    high, low = member('high', 2), member('low', 1)
    await high.wait_for(ACTIVE)
    await low.wait_for(YIELDING)
    begun = time.monotonic()
    high.send(signal.SIGTERM)
    await low.wait_for(RESUMING)
    await low.wait_for(ACTIVE)
    assert time.monotonic() - begun < 20  # not the lifetime
    await kube.create(kind, 'obj', spec={})
    await low.wait_for('CREATED obj BY low')


async def test_next_one_takes_over_when_the_lifetime_of_the_killed_one_is_over(kube, kind, member):
    high = member('high', 2, lifetime=8)  # the API server can be slow for seconds
    await high.wait_for(ACTIVE)
    low = member('low', 1, lifetime=8)
    await low.wait_for(YIELDING)
    await kube.create(kind, 'before', spec={})
    await high.wait_for('CREATED before')
    await wait_handled(kube, kind, 'before')
    high.kill()
    killed = time.monotonic()
    await kube.create(kind, 'meanwhile', spec={})
    await low.wait_for('CREATED meanwhile BY low')
    assert 1.0 < time.monotonic() - killed < 20
    assert not low.find('CREATED before')
    await wait_handled(kube, kind, 'meanwhile')


async def test_same_priority_freezes_all_with_a_warning(kube, kind, member):
    first = member('first')
    await first.wait_for(ACTIVE)
    second = member('second')
    await first.wait_for(CLASHING)
    await second.wait_for(CLASHING)
    await kube.create(kind, 'obj', spec={})
    await asyncio.sleep(1)
    assert not first.find('obj BY')
    assert not second.find('obj BY')
    second.stop()
    await first.wait_for(RESUMING)
    await first.wait_for('CREATED obj BY first')


async def test_operators_of_different_peerings_do_not_see_each_other(
        kube, operator, member, kind):
    first = member('first', 1)
    other = f'other-{uuid.uuid4().hex[:8]}'
    await kube.create(NARROW, other)
    second = operator(TEXT, '--peering', other, '--priority', '2', kind=kind,
                      scope=('--namespace', 'default', '--verbose'))
    await first.wait_for(ACTIVE)
    await second.wait_for(ACTIVE)
    await asyncio.sleep(0.5)
    assert not first.find('Pausing')
    second.stop()
    await kube.delete(NARROW, other)


async def test_standalone_operator_neither_sees_nor_is_seen(kube, member, operator, kind, peering):
    high = member('high', 100)
    await high.wait_for(ACTIVE)
    alone = operator(TEXT, '--peering', peering, kind=kind,
                     scope=('--namespace', 'default', '--standalone', '--verbose'))
    await alone.wait_for(ACTIVE)
    assert (await get_records(kube, peering)).keys() == {'high'}
    assert not alone.find('Pausing|peering')


async def test_stealth_is_about_logging_only(kube, member, peering):
    op = member('me', lifetime=2, text=TEXT + '''
@kopf.on.startup()
def hide(settings, **_):
    settings.peering.stealth = True
''')
    await op.wait_for(ACTIVE)
    first = (await get_records(kube, peering))['me']['lastseen']
    await kube.wait_for(NARROW, peering, lambda obj: obj['status']['me']['lastseen'] != first)
    assert not op.find('Keep-alive')


async def test_mandatory_peering_is_waited_for(kube, kind, member, peering):
    await kube.delete(NARROW, peering)
    op = member('me')
    await op.wait_for(f"There is no KopfPeering '{peering}' in 'default', but it is mandatory")
    await asyncio.sleep(0.5)
    assert not op.find(ACTIVE)
    await kube.create(NARROW, peering)
    await op.wait_for(ACTIVE)


async def test_mandatory_peering_that_is_deleted_freezes_until_it_is_back(
        kube, kind, member, peering):
    op = member('me')
    await op.wait_for(ACTIVE)
    await kube.delete(NARROW, peering)
    await op.wait_for('Pausing operations until it exists')
    await kube.create(kind, 'obj', spec={})
    await asyncio.sleep(0.5)
    assert not op.find('obj BY')
    await kube.create(NARROW, peering)
    await op.wait_for('CREATED obj BY me')


async def test_peering_by_the_settings_is_not_mandatory(kube, operator, kind, peering):
    text = TEXT + f'''
@kopf.on.startup()
def choose(settings, **_):
    settings.peering.name = {peering!r}
    settings.peering.priority = 3
'''
    await kube.delete(NARROW, peering)
    op = operator(text, kind=kind, env={'POD_ID': 'me'},
                  scope=('--namespace', 'default', '--verbose'))
    await op.wait_for('falling back to the standalone mode')
    await op.wait_for(ACTIVE)
    await kube.create(NARROW, peering)
    await kube.wait_for(NARROW, peering, lambda obj: obj.get('status'))
    assert (await get_records(kube, peering))['me']['priority'] == 3
    assert len(op.find(ACTIVE)) == 1


async def test_namespaces_that_come_have_to_have_their_peering_objects_joined(
        kube, kind, member, peering):
    prefix = f'ns-{uuid.uuid4().hex[:6]}'
    op = member('me', scope=('--namespace', 'default', '--namespace', f'{prefix}-*'))
    await op.wait_for(ACTIVE)
    others = [f'{prefix}-{i}' for i in range(3)]
    for namespace in others:
        await kube.create(NAMESPACES, namespace)
    for namespace in others:  # one warning can be of several namespaces
        await op.wait_for(f"in .*'{namespace}'.* Pausing operations until it exists")
    for namespace in others:
        await kube.create(NARROW, peering, namespace=namespace)
        await kube.wait_for(NARROW, peering, lambda obj: obj.get('status'), namespace=namespace)
    for namespace in ['default', *others]:
        await op.wait_for(f"{ACTIVE}.+ in '{namespace}'")
        await kube.create(kind, f'obj-{namespace}', namespace=namespace, spec={})
        await op.wait_for(f'CREATED obj-{namespace} BY me')
    for namespace in others:
        await kube.delete(NAMESPACES, namespace)


async def test_handler_under_way_is_let_finish_and_is_not_repeated(kube, kind, member):
    low = member('low', 1)
    await low.wait_for(ACTIVE)
    await kube.create(kind, 'obj', spec={'duration': 1})
    await low.wait_for('CREATE obj BY low')
    lock = member('high', 2)
    await low.wait_for(YIELDING)
    await low.wait_for('CREATED obj BY low')
    await wait_handled(kube, kind, 'obj')
    lock.stop()


async def test_frozen_operator_stops_daemons_and_timers_and_starts_them_again(
        kube, kind, member, cluster, peering):
    op = member('me', text=DAEMONS)
    await op.wait_for(ACTIVE)
    await kube.create(kind, 'obj', spec={})
    await op.wait_for('DAEMON obj')
    await op.wait_for('TICK obj')
    assert run(cluster, 'freeze', '-n', 'default', '-P', peering, '-t', '60').returncode == 0
    await op.wait_for('STOPPED obj BY me: .*OPERATOR_PAUSING')
    await asyncio.sleep(0.1)
    ticks = len(op.find('TICK'))
    await asyncio.sleep(0.7)
    assert len(op.find('TICK')) == ticks
    assert run(cluster, 'resume', '-n', 'default', '-P', peering).returncode == 0
    await op.wait_for('DAEMON obj', count=2)
    await op.wait_for('TICK obj', count=ticks + 2)


async def test_resume_handlers_are_not_repeated_after_freezing(
        kube, kind, member, cluster, peering):
    await kube.create(kind, 'old', spec={})
    first = member('first')
    await first.wait_for('CREATED old')
    await wait_handled(kube, kind, 'old')
    first.stop()
    op = member('me')
    await op.wait_for('RESUME old BY me')
    run(cluster, 'freeze', '-n', 'default', '-P', peering, '-t', '2', '-m', 'a break')
    await op.wait_for(r"Pausing operations in favour of .+message='a break'")
    await kube.patch(kind, 'old', {'spec': {'field': 1}})
    await op.wait_for(RESUMING)
    await op.wait_for('UPDATE old BY me')
    await wait_handled(kube, kind, 'old')
    assert len(op.find('RESUME old')) == 1


async def test_freezing_writes_a_record_and_resuming_removes_it(kube, cluster, peering):
    done = run(cluster, 'freeze', '-n', 'default', '-P', peering, '-t', '60', '-i', 'someone')
    assert done.returncode == 0
    records = await get_records(kube, peering)
    assert records['someone'].keys() == {'priority', 'lifetime', 'lastseen'}
    assert records['someone']['priority'] == 100
    done = run(cluster, 'resume', '-n', 'default', '-P', peering, '-i', 'someone')
    assert done.returncode == 0
    assert await get_records(kube, peering) == {}


async def test_resuming_says_if_others_freeze(kube, cluster, peering):
    run(cluster, 'freeze', '-n', 'default', '-P', peering, '-t', '60', '-i', 'someone')
    done = run(cluster, 'resume', '-n', 'default', '-P', peering, '-i', 'else')
    assert (f"Operators of KopfPeering '{peering}' in 'default' are not frozen by 'else' any more. "
            f"There are records of: 'someone'.") in done.stderr
    assert 'someone' in await get_records(kube, peering)


async def test_freezing_of_the_cluster_has_its_own_object(kube, cluster, peering):
    done = run(cluster, 'freeze', '-A', '-P', peering, '-t', '60', '-i', 'someone', '--dev')
    assert done.returncode == 0
    assert (await get_records(kube, peering, WIDE))['someone']['priority'] == 666


@pytest.mark.usefixtures('peering')
@pytest.mark.parametrize('command', [('freeze', '-t', '60'), ('resume',)])
async def test_absent_peering_is_an_error_of_the_commands(cluster, command):
    done = run(cluster, *command, '-n', 'default', '-P', 'absent')
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "Error: Peering 'absent' not found. Create it first: apply a KopfPeering with this name.")


async def test_operator_that_is_cut_off_freezes_in_its_lifetime_and_goes_on_after(
        kube, kind, member, cluster, tmp_path):
    with Proxy(cluster) as proxy:
        op = member('me', lifetime=2, text=DAEMONS,
                    kubeconfig=proxy.write_kubeconfig(tmp_path / 'config'))
        await op.wait_for(ACTIVE)
        await kube.create(kind, 'obj', spec={})
        await op.wait_for('DAEMON obj')
        outage = proxy.refuse()
        proxy.cut_streams()
        await op.wait_for('Pausing operations: .+ could not be renewed for 2 seconds')
        await op.wait_for('STOPPED obj BY me: .*OPERATOR_PAUSING')
        outage.end()
        await op.wait_for('The peering is reached again')
        await op.wait_for('DAEMON obj', count=2)
        assert len(op.find('CREATED obj')) == 1


async def test_operator_without_rights_for_peerings_works_alone_with_a_warning(
        kube, kind, operator, cluster, peering, tmp_path):
    with Proxy(cluster) as proxy:
        proxy.fail(403, match=lambda request: 'kopfpeerings' in request.path, times=None)
        op = operator(TEXT, kind=kind, scope=('--namespace', 'default', '--verbose'),
                      kubeconfig=proxy.write_kubeconfig(tmp_path / 'config'))
        await op.wait_for('There is no permission to list and watch kopfpeerings.v1.kopf.dev')
        await kube.create(kind, 'obj', spec={})
        await op.wait_for('CREATED obj')
        assert len(op.find('no permission to list and watch kopfpeerings.v1.kopf.dev')) == 1


async def test_operator_that_must_meet_others_but_has_no_rights_waits(
        kube, kind, member, cluster, tmp_path):
    with Proxy(cluster) as proxy:
        proxy.fail(403, match=lambda request: 'kopfpeerings' in request.path, times=None)
        op = member('me', kubeconfig=proxy.write_kubeconfig(tmp_path / 'config'))
        await op.wait_for('There is no permission to list and watch kopfpeerings.v1.kopf.dev')
        await asyncio.sleep(0.5)
        assert not op.find(ACTIVE)


async def test_operator_without_rights_to_write_its_record_works_alone_with_a_warning(
        kube, kind, operator, cluster, peering, tmp_path):
    text = TEXT + f'''
@kopf.on.startup()
def choose(settings, **_):
    settings.peering.name = {peering!r}
'''
    with Proxy(cluster) as proxy:
        proxy.fail(403, times=None, match=lambda request: (
            'kopfpeerings' in request.path and request.method == 'PATCH'))
        op = operator(text, kind=kind, scope=('--namespace', 'default', '--verbose'),
                      kubeconfig=proxy.write_kubeconfig(tmp_path / 'config'))
        await op.wait_for('no permission to list, watch, and patch kopfpeerings.v1.kopf.dev')
        await kube.create(kind, 'obj', spec={})
        await op.wait_for('CREATED obj')


async def test_webhooks_go_on_answering(kind, member, cluster, peering):
    op = member('me', text=TEXT + f'PORT = {find_free_ports(1)}' + '''

@kopf.on.startup()
def serve(settings, **_):
    settings.admission.server = kopf.WebhookServer(
        addr='127.0.0.1', port=PORT, insecure=True)

@kopf.on.validate(*KIND)
def check(**_):
    print('CHECKED')
''')
    await op.wait_for(ACTIVE)
    run(cluster, 'freeze', '-n', 'default', '-P', peering, '-t', '60')
    await op.wait_for(YIELDING)
    url = (await op.wait_for(r'http://127\.0\.0\.1:\d+'))[0]
    url = re.search(r'http://127\.0\.0\.1:\d+', url)[0]
    async with aiohttp.ClientSession() as session:
        review = {'apiVersion': 'admission.k8s.io/v1', 'kind': 'AdmissionReview', 'request': {
            'uid': '1', 'operation': 'CREATE', 'dryRun': False, 'userInfo': {}, 'options': {},
            'resource': {'group': kind.group, 'version': kind.version, 'resource': kind.plural},
            'object': {'metadata': {'name': 'x', 'namespace': 'default'}}, 'oldObject': None}}
        async with session.post(f'{url}/check', json=review) as response:
            answer = json.loads(await response.text())
    assert answer['response']['allowed'] is True
