import asyncio
import dataclasses
import datetime
import http.server
import json
import socket
import sys
import threading
from unittest import mock

import pytest

import kopf
from kopf import testing
from kopf._kits.external import driving
from kopf._kits.testing import operators
from kopf._kits.typed import kinds
from tests import rights
from tests.crds import make_crd

CHILD = '''
@kopf.reconcile('kopfexamples', owns=['configmaps'])
async def child(name, spec, **_):
    yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
           'data': {'n': str(spec['n'])}}
'''

NOTHING = '''
@kopf.on.event('kopfexamples')
async def look(**_):
    pass
'''

REQUESTING = '''
import aiohttp, os, pathlib, yaml

@kopf.on.event('kopfexamples')
async def change(**_):
    config = yaml.safe_load(pathlib.Path(os.environ['KUBECONFIG']).read_text())
    headers = {'Content-Type': 'application/strategic-merge-patch+json'}
    async with aiohttp.ClientSession(config['clusters'][0]['cluster']['server']) as session:
        for method, path, body in REQUESTS:
            options = {'json': body} if body else {}
            if method == 'PATCH':
                options['headers'] = headers
            async with session.request(method, path, **options):
                pass
'''

MAPS = '/api/v1/namespaces/default/configmaps'
DEPLOYMENTS = '/apis/apps/v1/namespaces/default/deployments'


def request(method, path, body=None):
    return send((method, path, body))


def send(*requests):
    """Make a handler that sends requests to the API, as any client would do it."""
    return REQUESTING.replace('REQUESTS', repr(requests))


def set_image(image, kind='deployments', name='web'):
    return request('PATCH', f'/apis/apps/v1/namespaces/default/{kind}/{name}', {
        'spec': {'template': {'spec': {'containers': [{'name': 'app', 'image': image}]}}}})


def names(items):
    return [(item.action, str(item.place)) for item in items]


# What would become of objects.


def test_a_created_object_is_planned_with_its_handler(plan, parent):
    item, = plan(CHILD).items
    assert (item.action, str(item.place)) == ('create', 'configmaps default/example')
    assert item.handlers == ['child for kopfexamples.kopf.dev default/example']
    assert testing.Field('data', None, {'n': '1'}) in item.fields


def test_nothing_is_planned_if_nothing_would_change(plan, parent):
    made = plan(NOTHING)
    assert not made.items and not made.problems and not made.unknown
    assert made.get_code() == 0


def test_the_cluster_is_only_read(plan, parent, cluster):
    made = plan(CHILD)
    assert set(made.upstream) <= {'get', 'list'}
    assert not cluster.client.list('configmaps')


def test_a_change_is_planned_by_fields(plan, parent, make_workload):
    make_workload()
    item, = plan(set_image('nginx:2')).items
    assert item.action == 'change'
    assert item.fields == [testing.Field(
        'spec.template.spec.containers[app].image', 'nginx:1', 'nginx:2')]


def test_a_changed_template_restarts_the_pods(plan, parent, make_workload):
    make_workload(replicas=5)
    made = plan(set_image('nginx:2'))
    assert [item.restarts for item in made.restarts] == [5]


def test_the_pods_of_daemonsets_are_those_that_are_scheduled(plan, parent, make_workload, client):
    make_workload('DaemonSet')
    client.patch('daemonsets', 'web', {'status': {
        'desiredNumberScheduled': 7, 'currentNumberScheduled': 7, 'numberMisscheduled': 0,
        'numberReady': 7}}, subresource='status')
    made = plan(set_image('nginx:2', 'daemonsets'))
    assert [item.restarts for item in made.restarts] == [7]


def test_other_changes_of_workloads_restart_nothing(plan, parent, make_workload):
    make_workload()
    made = plan(request('PATCH', f'{DEPLOYMENTS}/web', {'spec': {'replicas': 9}}))
    assert [field.new for field in made.items[0].fields] == [9]
    assert not made.restarts


@pytest.mark.parametrize('kind, spec', [
    ('Deployment', {'paused': True}), ('StatefulSet', {'updateStrategy': {'type': 'OnDelete'}})])
def test_paused_workloads_restart_nothing(plan, parent, make_workload, kind, spec):
    make_workload(kind, **spec)
    made = plan(set_image('nginx:2', f'{kind.lower()}s'))
    assert made.items and not made.restarts


PARTITION = {'updateStrategy': {'rollingUpdate': {'partition': 2}}}


def test_a_partition_limits_the_restarts(plan, parent, make_workload):
    make_workload('StatefulSet', replicas=5, **PARTITION)
    made = plan(set_image('nginx:2', 'statefulsets'))
    assert [item.restarts for item in made.restarts] == [3]


@pytest.mark.parametrize('kind, spec, change, expected', [
    ('Deployment', {'paused': True}, {'paused': None}, 4),
    ('StatefulSet', PARTITION, {'updateStrategy': {'rollingUpdate': {'partition': 1}}}, 3),
    ('StatefulSet', {'updateStrategy': {'type': 'OnDelete'}},
     {'updateStrategy': {'type': 'RollingUpdate'}}, 4),
])
@pytest.mark.parametrize('is_observed', [True, False])
def test_what_was_held_back_restarts_when_it_is_let_go(
        plan, parent, make_workload, client, kind, spec, change, expected, is_observed):
    make_workload(kind, replicas=5, **spec)
    plural = f'{kind.lower()}s'
    if is_observed:
        client.patch(plural, 'web', {'status': {
            'observedGeneration': 1, 'replicas': 5, 'updatedReplicas': 1}}, subresource='status')
    path = DEPLOYMENTS.replace('deployments', plural)
    made = plan(request('PATCH', f'{path}/web', {'spec': change}))
    assert [item.restarts for item in made.restarts] == [expected] * is_observed


def test_a_deletion_is_planned_with_what_the_garbage_collector_deletes(plan, parent, client):
    owner = client.create('configmaps', 'owner')
    client.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'owned', 'ownerReferences': [{
            'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': 'owner',
            'uid': owner['metadata']['uid']}]}})
    made = plan(request('DELETE', f'{MAPS}/owner'))
    assert names(made.deletions) == [
        ('delete', 'configmaps default/owned'), ('delete', 'configmaps default/owner')]
    assert [(item.owner, bool(item.handlers)) for item in made.deletions] == [
        ('ConfigMap owner', False), ('', True)]


async def test_a_pruned_child_is_planned_as_deleted(plan, parent, cluster, script):
    path = script(CHILD)
    async with testing.Operator(path, credentials=cluster.credentials, clusterwide=True):
        await asyncio.to_thread(cluster.client.wait, 'configmaps', 'example')
    made = await asyncio.to_thread(plan, CHILD.replace("yield {", "if spec['n'] > 1: yield {"))
    assert names(made.deletions) == [('delete', 'configmaps default/example')]


def test_an_object_that_waits_for_others_is_planned_as_deleted(plan, parent, client):
    client.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'held', 'finalizers': ['example.com/other']}})
    made = plan(request('DELETE', f'{MAPS}/held'))
    assert [item.is_waiting for item in made.deletions] == [True]


def test_an_object_that_is_deleted_and_created_again_is_replaced(plan, parent, client):
    client.create('configmaps', 'x')
    made = plan(send(('DELETE', f'{MAPS}/x', None), ('POST', MAPS, {
        'metadata': {'name': 'x'}, 'data': {'a': 'b'}})))
    item, = made.deletions
    assert item.action == 'replace'
    assert testing.Field('data', None, {'a': 'b'}) in item.fields


def test_statuses_and_finalizers_are_told_apart(plan, parent):
    item, = plan('''
@kopf.on.create('kopfexamples')
async def create(patch, **_):
    patch.spec['extra'] = 1
    return {'done': True}

@kopf.on.delete('kopfexamples')
async def delete(**_):
    pass
''').items
    assert [field.path for field in item.fields] == ['spec.extra']
    assert [field.path for field in item.status] == ['status']
    assert item.finalizers == ['+kopf.zalando.org/KopfFinalizerMarker']


def test_the_annotations_of_kopf_are_no_change(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
async def create(**_):
    pass
''')
    assert made.requests['patch']
    assert not made.items


def test_generated_names_are_patterns(plan, parent):
    made = plan(send(*[('POST', MAPS, {'metadata': {'generateName': 'x-'}})] * 2))
    assert [item.place.name for item in made.items] == ['x-*', 'x-* #2']


@pytest.mark.parametrize('type', ['ClusterIP', 'NodePort'])
def test_assigned_addresses_are_unknown(plan, parent, type):
    item, = plan(request('POST', '/api/v1/namespaces/default/services', {
        'metadata': {'name': 'x'}, 'spec': {'type': type, 'ports': [{'port': 80}]}})).items
    spec, = (field.new for field in item.fields if field.path == 'spec')
    assert spec['clusterIP'] == '(assigned by the API)'
    assert spec['ports'][0].get('nodePort') == (
        None if type == 'ClusterIP' else '(assigned by the API)')


def test_uids_of_new_objects_are_names(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
async def create(**_):
    first = await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'first', 'namespace': 'default'}})
    await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'second', 'namespace': 'default'}, 'data': {'uid': first['metadata']['uid']}})
''')
    assert made.items[1].fields == [testing.Field(
        'data', None, {'uid': '(uid of configmaps default/first)'})]


def test_values_of_secrets_are_not_shown(plan, parent, client):
    client.create({'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 's'},
                   'stringData': {'key': 'old-value'}})
    made = plan(request('PATCH', '/api/v1/namespaces/default/secrets/s', {
        'stringData': {'key': 'new-value', 'more': 'x'}}))
    assert made.items[0].fields == [
        testing.Field('data.key', '***', '***'), testing.Field('data.more', None, '***')]


# What is wrong.


def test_an_immutable_field_is_refused(plan, parent, make_workload):
    make_workload()
    made = plan(request('PATCH', f'{DEPLOYMENTS}/web', {
        'spec': {'selector': {'matchLabels': {'app': 'other'}}}}))
    refused, = made.refused
    assert str(refused.place) == 'deployments.apps default/web'
    assert 'immutable' in refused.message
    assert refused.handlers == ['change for kopfexamples.kopf.dev default/example']
    assert made.get_code() == 1


def test_a_refused_secret_is_not_quoted(plan, parent):
    made = plan(request('POST', '/api/v1/namespaces/default/secrets', {
        'metadata': {'name': 's'}, 'data': {'key': 'no-base64!'}}))
    refused, = made.refused
    assert 'no-base64' not in refused.message


def test_a_patch_that_is_too_large_is_refused(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
def create(patch, **_):
    patch.status['x'] = 'x' * 2_000_000
''')
    refused, = made.refused
    assert 'too large' in refused.message
    assert made.get_code() == 1


@pytest.mark.parametrize('source', [
    "@kopf.on.startup()\ndef start(**_): raise SystemExit(0)",
    "@kopf.on.create('kopfexamples')\ndef create(**_): raise SystemExit(0)",
    "@kopf.on.create('kopfexamples')\nasync def create(**_): raise SystemExit(0)",
], ids=['startup', 'sync', 'async'])
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # it ends abruptly
def test_an_operator_that_ends_the_process_is_not_planned(plan, parent, source):
    with pytest.raises(testing.PlanError, match=r"sys.exit\(0\)"):
        plan(source)


def test_what_is_accepted_later_is_not_refused(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
async def create(retry, **_):
    await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'x', 'namespace': 'default', 'labels': {'a': 'b' if retry else 'no label'}}})
''')
    assert made.items and not made.refused and not made.failures


@pytest.mark.parametrize('more', ['', '''
@kopf.on.create('kopfexamples')
def change(patch, **_):
    patch.spec['x'] = 1
'''])
def test_refused_patches_of_handlers_are_shown(plan, parent, more):
    made = plan('''
@kopf.on.create('kopfexamples')
def create(patch, **_):
    patch.metadata.labels['not a label'] = 'x'
''' + more)
    refused, = made.refused
    assert refused.handlers == ['create for kopfexamples.kopf.dev default/example']
    assert "metadata.labels" in refused.message
    assert [field.path for item in made.items for field in item.fields] == ['spec.x'] * bool(more)


def test_failing_handlers_are_shown_with_their_objects(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
def fail(**_):
    raise ValueError("that is it")
''')
    assert made.failures == [testing.Failure(
        'fail', 'kopfexamples.kopf.dev default/example', 'that is it')]
    assert made.get_code() == 1


def test_handlers_that_succeed_later_have_not_failed(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
def fail(retry, patch, **_):
    if retry < 3:
        raise kopf.TemporaryError("not yet", delay=600)
    patch.spec['retries'] = retry
''')
    assert not made.failures
    assert made.items[0].fields == [testing.Field('spec.retries', None, 3)]


def test_an_operator_that_does_not_start_is_a_problem(plan, parent):
    made = plan(NOTHING + '''
@kopf.on.startup()
def start(**_):
    raise kopf.PermanentError("never")
''')
    assert any('never' in problem for problem in made.problems)
    assert made.get_code() == 1


def test_without_handlers_there_is_no_plan(plan):
    with pytest.raises(testing.PlanError, match="There are no handlers in"):
        plan('')


def test_without_sources_there_is_no_plan():
    with pytest.raises(testing.PlanError, match="There are no handlers: name the files"):
        testing.plan()


def test_without_a_cluster_there_is_no_plan(script):
    with pytest.raises(testing.PlanError, match="The upstream fails"):
        testing.plan(script(NOTHING), clusterwide=True,
                     origin=kopf.ConnectionInfo(server='http://127.0.0.1:9'))


def test_wrong_labels_are_no_plan(plan):
    with pytest.raises(testing.PlanError, match="expected"):
        plan(NOTHING, labels='a=b=c')


async def test_it_is_for_sync_tests(script):
    with pytest.raises(RuntimeError, match="sync tests"):
        testing.plan(script(NOTHING))


def test_blocking_handlers_end_the_plan(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
async def create(patch, **_):
    while True:
        pass
''', real_limit=1)
    assert any('has not ended in 1 seconds' in problem for problem in made.problems)


# Time.


def test_timers_tick_in_virtual_time(plan, parent):
    made = plan('''
@kopf.timer('kopfexamples', interval=600)
def tick(spec, patch, **_):
    patch.spec['ticks'] = spec.get('ticks', 0) + 1
''', horizon=3000)
    assert made.items[0].fields[0].new in (5, 6)
    assert "not at rest" in made.unknown[0]


def test_the_plan_ends_at_rest(plan, parent):
    made = plan('''
@kopf.timer('kopfexamples', initial_delay=1000, interval=100)
def tick(spec, patch, **_):
    patch.spec['ticks'] = 1
''', horizon=100_000)
    assert made.items[0].fields == [testing.Field('spec.ticks', None, 1)]
    assert not made.unknown


def test_the_plan_waits_for_handlers_that_write_late(plan, parent):
    made = plan('''
import asyncio

@kopf.on.create('kopfexamples')
async def make(namespace, **_):
    await asyncio.sleep(1000)
    await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'late', 'namespace': namespace}})
''')
    late, = (item for item in made.items if item.action == 'create')
    assert late.handlers == ['make for kopfexamples.kopf.dev default/example']
    assert not made.unknown


def test_resources_that_are_not_served_are_told(plan):
    text = NOTHING.replace('kopfexamples', 'kopfexample.v9.kopf.dev')
    unknown, = plan(text).unknown
    assert unknown.startswith("Unresolved resources cannot be served (try creating their CRDs): ")
    assert 'kopfexample.v9.kopf.dev' in unknown
    assert plan(text, against=text).unknown == [unknown]
    assert not plan(NOTHING.replace('kopfexamples', 'kopfexample')).unknown


@pytest.fixture()
def restrict(cluster):
    """A function that makes credentials of a user who can read these resources in a namespace."""
    def restrict(*resources, cluster_resources=('namespaces', 'customresourcedefinitions')):
        token = cluster.sandbox.add_user('limited', lambda *_: None)
        cluster.client.load(
            *rights.make_role(rights.make_rule(*cluster_resources)),
            *rights.make_role(rights.make_rule(*resources), namespace='default'))
        return dataclasses.replace(
            cluster.credentials, token=token, certificate_data=None, default_namespace='default')
    return restrict


@pytest.mark.parametrize('against', [None, CHILD])
def test_what_handlers_need_and_nobody_may_read_is_an_error(plan, parent, restrict, against):
    made = plan(CHILD, against=against, origin=restrict('kopfexamples'), namespaces=['default'])
    problem, = made.problems
    assert problem.startswith("configmaps cannot be read: The upstream refuses: configmaps is")
    assert made.get_code() == 1
    assert not made.items and not made.unknown


def test_what_may_be_read_only_in_some_namespaces_is_planned_there(plan, parent, restrict):
    origin = restrict('kopfexamples', 'configmaps')
    made = plan(CHILD, origin=origin)
    assert names(made.items) == [('create', 'configmaps default/example')]
    partial = ["configmaps can be read only in default.",
               "kopfexamples.kopf.dev can be read only in default."]
    assert sorted(made.unknown) == partial
    assert sorted(plan(CHILD, against=NOTHING, origin=origin).unknown) == partial
    for namespaces in (['def*'], ['default', 'kube-system']):
        assert sorted(plan(CHILD, origin=origin, namespaces=namespaces).unknown) == partial
    for namespaces in (['default'], 'default'):
        made = plan(CHILD, origin=origin, namespaces=namespaces)
        assert names(made.items) == [('create', 'configmaps default/example')]
        assert not made.unknown and not made.problems


def test_what_can_depend_on_deleted_objects_and_cannot_be_read_is_unknown(plan, parent, restrict):
    deleting = request('DELETE', '/apis/kopf.dev/v1/namespaces/default/kopfexamples/example')
    made = plan(deleting, origin=restrict('kopfexamples'), namespaces=['default'])
    assert names(made.items) == [('delete', 'kopfexamples.kopf.dev default/example')]
    assert not made.problems
    assert any(text.startswith("secrets cannot be read: ") for text in made.unknown)


@pytest.mark.parametrize('namespaces', [[], ['def*'], ['default', 'def*']])
def test_unreadable_definitions_and_namespaces_are_told(plan, parent, restrict, namespaces):
    origin = restrict('kopfexamples', cluster_resources=())
    made = plan(NOTHING, origin=origin, namespaces=namespaces)
    problem, = made.problems
    assert problem.startswith("customresourcedefinitions.apiextensions.k8s.io cannot be read: ")
    assert made.get_code() == 1
    first, second = made.unknown
    assert first.startswith("namespaces cannot be read: ")
    assert second.startswith("Unresolved resources cannot be served")


def test_unreadable_definitions_are_told_though_they_are_not_needed(plan, restrict):
    made = plan(NOTHING.replace('kopfexamples', 'configmaps'),
                origin=restrict('configmaps', cluster_resources=['namespaces']))
    assert made.unknown[0].startswith("customresourcedefinitions.apiextensions.k8s.io cannot be")
    assert not made.problems


def test_named_namespaces_are_planned_without_rights_to_list_them(plan, parent, restrict):
    origin = dataclasses.replace(
        restrict('kopfexamples', 'configmaps', cluster_resources=['customresourcedefinitions']),
        default_namespace='other')
    made = plan(CHILD, origin=origin, namespaces=['default'])
    assert names(made.items) == [('create', 'configmaps default/example')]
    assert not made.unknown and not made.problems


def test_handlers_that_do_not_end_are_told(plan, parent, client):
    for number in range(11):
        client.create('kopfexamples', f'other{number:02}')
    made = plan('''
import asyncio

@kopf.on.create('kopfexamples')
async def make(**_):
    await asyncio.Event().wait()
''', horizon=1000)
    assert not made.items
    assert made.unknown == [
        "What is done next by what has not ended in time: make for kopfexamples.kopf.dev "
        "default/example, make for kopfexamples.kopf.dev default/other00, make for "
        "kopfexamples.kopf.dev default/other01, and 9 more",
        "It is not at rest in the end, after 1002 seconds of virtual time."]


def test_absent_namespaces_are_told(plan, parent):
    made = plan(CHILD, namespaces=['default', 'misspelled', 'team-*'])
    assert "What happens in namespaces that are not there: misspelled" in made.unknown


def test_objects_that_stay_paused_are_told(plan, client):
    for number in range(12):
        client.create('kopfexamples', f'a{number:02}', spec={'n': 1}, metadata={
            'annotations': {'my/paused': 'Moving the disks'}})
    client.create('kopfexamples', 'b', spec={'n': 1}, metadata={
        'annotations': {'my/paused': 'until=2099-01-01'}})
    client.create('kopfexamples', 'c', spec={'n': 1}, metadata={
        'annotations': {'my/paused': 'until=2020-01-01'}})
    made = plan(f"""
@kopf.on.startup()
def configure(settings, **_):
    settings.pausing.annotation = 'my/paused'
{CHILD}""")
    assert names(made.items) == [('create', 'configmaps default/c')]
    assert made.unknown == [
        "What happens after their pauses to kopfexamples.kopf.dev default/a00, "
        "kopfexamples.kopf.dev default/a01, kopfexamples.kopf.dev default/a02, and 10 more"]


def test_a_pause_can_end_before_the_horizon(plan, client):
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=30)
    client.create('kopfexamples', 'a', spec={'n': 1}, metadata={
        'annotations': {'kopf.dev/paused': f'until={until:%Y-%m-%dT%H:%MZ}'}})
    made = plan(CHILD)
    assert names(made.items) == [('create', 'configmaps default/a')]
    assert not made.unknown


def test_brakes_hide_nothing(plan, client):
    for name in ('a', 'b', 'c'):
        client.create('kopfexamples', name, metadata={'finalizers': [
            'kopf.zalando.org/KopfFinalizerMarker']})
    made = plan(f"""
@kopf.on.startup()
def configure(settings, **_):
    settings.brakes.stop = True
    settings.brakes.deletions, settings.brakes.share = 1, 0.0
{NOTHING}""")
    assert names(made.items) == [
        ('change', f'kopfexamples.kopf.dev default/{name}') for name in ('a', 'b', 'c')]
    assert not made.unknown and not made.failures


@pytest.mark.parametrize('sync', [False, True])
def test_daemons_run_until_the_horizon(plan, parent, sync):
    source = '''
@kopf.daemon('kopfexamples')
async def run(patch, stopped, **_):
    await stopped.wait(1000)
    made = kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'late', 'namespace': 'default'}})
    await made
    await stopped.wait()
'''
    made = plan(source.replace('async ', '').replace('await made', 'made.result()').replace(
        'await ', '') if sync else source)
    late, = (item for item in made.items if item.action == 'create')
    assert late.handlers == ['run for kopfexamples.kopf.dev default/example']


# What surrounds the operator.


def test_handlers_wait_for_pods_that_do_not_run(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
async def create(patch, **_):
    labels = {'app': 'web'}
    made = await kopf.apply({
        'apiVersion': 'apps/v1', 'kind': 'Deployment',
        'metadata': {'name': 'web', 'namespace': 'default'},
        'spec': {'replicas': 4, 'selector': {'matchLabels': labels}, 'template': {
            'metadata': {'labels': labels},
            'spec': {'containers': [{'name': 'x', 'image': 'x'}]}}}})
    if made.status.get('readyReplicas') != 4:
        raise kopf.TemporaryError("not ready", delay=10)
    patch.spec['ready'] = True
''')
    assert not made.failures
    assert {item.action: [field.path for field in item.status] for item in made.items} == {
        'create': [], 'change': []}


def test_stages_come_from_a_file(plan, parent, tmp_path, client):
    path = tmp_path / 'stages.yaml'
    path.write_text('''
- resource: kopfexamples.kopf.dev
  when: {spec.n: 2}
  after: 60
  status: {seen: "{spec.n}", other: "{spec.other|7}", list: ["{spec.n}"]}
''')
    text = '''
@kopf.on.event('kopfexamples')
def go(spec, status, patch, **_):
    patch.spec['n'] = 2
    if 'seen' in status:
        patch.spec['status'] = dict(status)
'''
    item, = plan(text, stages=path).items
    assert item.fields == [
        testing.Field('spec.n', 1, 2),
        testing.Field('spec.status', None, {'seen': 2, 'other': 7, 'list': [2]})]
    assert not item.status


def test_timers_are_awaited_whose_first_delay_is_a_function(plan, parent):
    item, = plan('''
@kopf.timer('kopfexamples', interval=10, initial_delay=lambda **_: 1000)
def go(patch, **_):
    patch.spec['n'] = 2
''').items
    assert item.fields == [testing.Field('spec.n', 1, 2)]


@pytest.mark.parametrize('seconds', [500, 5000])
def test_late_stages_are_awaited(plan, parent, tmp_path, seconds):
    path = tmp_path / 'stages.yaml'
    path.write_text(f'- {{resource: configmaps, status: {{}}}}\n'
                    f'- {{resource: kopfexamples.kopf.dev, after: {seconds}, status: {{x: 1}}}}')
    made = plan('''
@kopf.on.event('kopfexamples')
def go(status, patch, **_):
    patch.spec['n'] = 2 + status.get('x', 0)
''', stages=path)
    item, = made.items
    assert item.fields == [testing.Field('spec.n', 1, 3 if seconds == 500 else 2)]
    assert made.unknown == ([] if seconds == 500 else [
        "It is not at rest in the end, after 3600 seconds of virtual time."])


@pytest.mark.parametrize('text', [
    '{', '- {}', '- {resource: x}', '5', '', '- {resource: x, status: ready}',
    '- {resource: x, status: {}, after: "5"}', '- {resource: x, status: {}, after: true}',
    '- {resource: x, status: {}, when: [spec.n]}', '- {resource: 5, status: {}}',
    '- {resource: x, status: {n: "{spec.n|[}"}}'])
def test_wrong_stages_are_no_plan(plan, tmp_path, text):
    path = tmp_path / 'stages.yaml'
    path.write_text(text)
    with pytest.raises(testing.PlanError, match=r"stages\.yaml has no stages"):
        plan(NOTHING, stages=path)


def test_stages_of_unknown_resources_are_told(plan, tmp_path):
    path = tmp_path / 'stages.yaml'
    path.write_text('- {resource: deployments, status: {}}')
    unknown, = plan(NOTHING, stages=path).unknown
    assert unknown.startswith("What becomes of deployments: there is a stage, but no such resource")


def test_refused_stages_are_errors(plan, tmp_path, parent):
    path = tmp_path / 'stages.yaml'
    path.write_text('- {resource: configmaps, status: {}}\n'
                    '- {resource: services, status: {loadBalancer: 5}}')
    text = send(*[('POST', '/api/v1/namespaces/default/services', {
        'metadata': {'name': f'svc{n}'}, 'spec': {'ports': [{'port': 1}]}}) for n in range(2)])
    problem, = plan(text, stages=path).problems
    assert problem.startswith("The status that the stages have for services is refused: ")


def test_stages_are_for_kinds_without_the_subresource_of_the_status_too(plan, client, tmp_path):
    crd = client.get('customresourcedefinitions', 'kopfexamples.kopf.dev')
    for version in crd['spec']['versions']:
        version.pop('subresources', None)
    client.patch('customresourcedefinitions', 'kopfexamples.kopf.dev', {'spec': crd['spec']})
    client.create('kopfexamples', 'example', spec={'n': 1})
    path = tmp_path / 'stages.yaml'
    path.write_text('- {resource: kopfexamples.kopf.dev, status: {seen: "{spec.n}"}}')
    item, = plan('''
@kopf.on.event('kopfexamples')
def go(spec, status, patch, **_):
    patch.spec['n'] = status.get('seen', 1) + 1 if spec['n'] < 3 else 3
''', stages=path).items
    assert item.fields == [testing.Field('spec.n', 1, 3)]


def test_another_version_that_does_not_start_is_an_error(plan, parent):
    made = plan(CHILD, against=CHILD + '''
@kopf.on.startup()
def fail(**_):
    raise kopf.PermanentError("no database")
''')
    problem, = made.problems
    assert problem.startswith("The other version: ") and "no database" in problem
    assert made.get_code() == 1


def test_the_operator_is_alone_and_serves_nothing(plan, parent):
    made = plan('''
@kopf.on.startup()
def configure(settings, retry, **_):
    if retry == 0:
        raise kopf.TemporaryError("The secrets are not mounted yet.", delay=1)
    settings.peering.name, settings.peering.mandatory = 'absent', True
    settings.peering.standalone = False
    settings.leadership.name = 'lease'
    settings.posting.enabled = True
    settings.metrics.endpoint = 'http://127.0.0.1:1/metrics'
    settings.admission.managed = 'auto.kopf.dev'

@kopf.on.validate('kopfexamples')
def validate(**_):
    pass

@kopf.on.create('kopfexamples')
def create(patch, body, **_):
    kopf.info(body, reason='R', message='M')
    patch.spec['extra'] = 1
''')
    assert names(made.items) == [('change', 'kopfexamples.kopf.dev default/example')]
    assert made.unknown == ["The admission handlers are not called: validate"]
    assert 'create' not in made.requests


def test_only_the_selected_objects_are_handled(plan, parent, client):
    client.create('kopfexamples', {'metadata': {'name': 'other', 'labels': {'a': 'b'}}, 'spec': {
        'n': 2}})
    made = plan(CHILD, labels='a in (b,c),!d')
    assert names(made.items) == [('create', 'configmaps default/other')]


def test_deletions_that_wait_for_the_operator_are_shown_by_their_finalizers(plan, client):
    finalizer = 'kopf.zalando.org/KopfFinalizerMarker'
    client.create('kopfexamples', {
        'metadata': {'name': 'one', 'finalizers': [finalizer]}, 'spec': {}})
    client.delete('kopfexamples', 'one')
    holding = '''
@kopf.on.delete('kopfexamples')
def delete(**_):
    raise kopf.TemporaryError("the backup is not done", delay=60)
'''
    assert not plan(holding).items
    for made in (plan(NOTHING + '''
@kopf.on.create('kopfexamples')
def create(**_):
    pass
''', against=holding), plan(holding.replace('raise', 'pass  #'))):
        item, = made.items
        assert (item.action, item.finalizers) == ('change', [f'-{finalizer}'])
        assert not made.deletions and made.get_code() == 2


@pytest.mark.parametrize('seconds', [1000, 100_000])
def test_retries_are_awaited_that_were_scheduled_before(plan, client, seconds):
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    client.create('kopfexamples', {'metadata': {'name': 'one', 'annotations': {
        'kopf.zalando.org/create': json.dumps({
            'started': '2020-01-01T00:00:00Z', 'delayed': until.isoformat(),
            'purpose': 'create', 'retries': 1})}}, 'spec': {}})
    made = plan('''
@kopf.on.create('kopfexamples')
def create(retry, patch, **_):
    patch.spec['retry'] = retry
''')
    if seconds == 1000:
        item, = made.items
        assert item.fields == [testing.Field('spec.retry', None, 1)]
    else:
        assert made.unknown == [
            "It is not at rest in the end, after 3600 seconds of virtual time."]


def test_finalizers_of_other_objects_stay(plan, client):
    for name, labels in {'one': {}, 'two': {'a': 'b'}}.items():
        client.create('kopfexamples', {
            'metadata': {'name': name, 'labels': labels, 'finalizers': [
                'kopf.zalando.org/KopfFinalizerMarker']}, 'spec': {}})
    text = '''
@kopf.on.delete('kopfexamples', when=lambda spec, **_: spec.get('n'))
def delete(**_):
    pass
'''
    assert len(plan(text).items) == 2
    item, = plan(text, labels='a').items
    assert item.place.name == 'two'


def test_only_the_namespaces_of_the_operator_are_handled(plan, parent, client, cluster, script):
    client.create('namespaces', 'ns')
    client.create('kopfexamples', 'other', namespace='ns', spec={'n': 2})
    made = testing.plan(script(CHILD), origin=cluster.credentials, namespaces=['ns'])
    assert names(made.items) == [('create', 'configmaps ns/example')] or (
        names(made.items) == [('create', 'configmaps ns/other')])


def test_login_handlers_are_used(parent, cluster, script):
    made = testing.plan(script(f'''
@kopf.on.login()
def login(**_):
    return kopf.ConnectionInfo(server={cluster.url!r})
{CHILD}'''), clusterwide=True)
    assert made.items and not made.problems


# What leads out of the process.


@pytest.fixture()
def server():
    """A server that is not the API."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'7')

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found.server_port
        found.shutdown()
        thread.join()


ASKING = {
    'sync': '''
@kopf.on.create('kopfexamples')
def ask(patch, **_):
    import urllib.request
    patch.spec['answer'] = int(urllib.request.build_opener().open('http://127.0.0.1:PORT/').read())
''',
    'async': '''
@kopf.on.create('kopfexamples')
async def ask(patch, **_):
    import aiohttp
    async with aiohttp.request('GET', 'http://127.0.0.1:PORT/') as answer:
        patch.spec['answer'] = int(await answer.read())
''',
    'thread': '''
@kopf.on.create('kopfexamples')
def ask(patch, **_):
    import threading, urllib.request
    def read():
        try:
            patch.spec['answer'] = int(urllib.request.build_opener().open('http://127.0.0.1:PORT/').read())
        except OSError:
            pass
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
''',
}


@pytest.mark.parametrize('way', ASKING)
def test_connections_are_refused_and_listed(plan, parent, server, way):
    made = plan(ASKING[way].replace('PORT', str(server)))
    who = '?' if way == 'thread' else 'ask for kopfexamples.kopf.dev default/example'
    assert any(f'127.0.0.1:{server}' in text and text.endswith(f'By {who}')
               for text in made.unknown)
    assert not made.items


def test_what_aiohttp_says_of_refused_connections_says_what_to_do(plan, parent):
    made = plan('''
import aiohttp

@kopf.on.create('kopfexamples')
async def ask(**_):
    async with aiohttp.ClientSession() as session:
        await session.get('http://127.0.0.1:1/')
''')
    assert '--allow 127.0.0.1' in made.failures[0].message


@pytest.mark.parametrize('way', ASKING)
def test_connections_are_made_if_they_are_allowed(plan, parent, server, way):
    made = plan(ASKING[way].replace('PORT', str(server)), allow=['127.0.0.1'])
    assert made.items[0].fields == [testing.Field('spec.answer', None, 7)]
    assert not made.unknown


@pytest.mark.parametrize('way', ['sync', 'async'])
def test_names_are_not_even_resolved(plan, parent, way):
    made = plan(ASKING[way].replace('127.0.0.1:PORT', 'api.example.com'))
    assert any('api.example.com:80' in text and 'By ask for' in text for text in made.unknown)


def test_names_that_are_looked_up_by_old_functions_are_listed(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
def ask(**_):
    import socket
    socket.gethostbyname('api.example.com')
''')
    assert any('api.example.com' in text and 'By ask for' in text for text in made.unknown)
    assert 'not api.example.com.' in made.failures[0].message


def test_allowed_names_that_cannot_be_resolved_allow_nothing(plan, parent, server):
    made = plan(ASKING['sync'].replace('PORT', str(server)), allow=[f"{'x' * 70}.example.com"])
    assert any(f'127.0.0.1:{server}' in text for text in made.unknown)
    assert '--allow 127.0.0.1' in made.failures[0].message


@pytest.mark.parametrize('is_allowed', [False, True])
def test_unix_sockets_are_refused_unless_they_are_allowed(plan, parent, tmp_path, is_allowed):
    path = str(tmp_path / 'socket')
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        made = plan(f"""
@kopf.on.create('kopfexamples')
def connect(**_):
    import socket
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect({path!r})
    return 'connected'
""", allow=[path] if is_allowed else [])
    refused = [text for text in made.unknown if path in text]
    assert bool(refused) is bool(made.failures) is not is_allowed
    assert all(text.endswith('By connect for kopfexamples.kopf.dev default/example')
               for text in refused)


@pytest.fixture()
def native(tmp_path, monkeypatch):
    """A module of which Python does not tell when it connects."""
    (tmp_path / 'psycopg2.py').touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop('psycopg2', None)


@pytest.mark.usefixtures('native')
def test_modules_with_native_connections_must_be_allowed(plan, parent):
    with pytest.raises(testing.PlanError, match="nothing by them: --allow psycopg2$"):
        plan('import psycopg2' + NOTHING)
    assert plan(NOTHING, allow=['psycopg2']).get_code() == 0


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('is_allowed', [False, True])
def test_handlers_load_modules_with_native_connections_if_allowed(plan, parent, is_allowed):
    made = plan("""
@kopf.on.create('kopfexamples', retries=1)
def look(**_):
    import psycopg2
""", allow=['psycopg2'] if is_allowed else [])
    assert [text.partition(':')[0] for text in made.unknown] == (
        [] if is_allowed else ["What psycopg2 would have answered"])
    assert ['--allow psycopg2' in failure.message for failure in made.failures] == (
        [] if is_allowed else [True])


def test_processes_that_are_spawned_connect_to_nothing(plan, parent, server, monkeypatch):
    monkeypatch.delitem(sys.modules, 'multiprocessing.popen_spawn_posix', raising=False)
    made = plan(f"""
import multiprocessing, socket

@kopf.on.create('kopfexamples', retries=1)
def ask(patch, **_):
    process = multiprocessing.get_context('spawn').Process(
        target=socket.create_connection, args=[('127.0.0.1', {server})])
    process.start()
    process.join()
""")
    failure, = made.failures
    assert failure.message.endswith("--allow multiprocessing.popen_spawn_posix")


def test_programs_are_refused_and_listed(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
def start(**_):
    import subprocess
    subprocess.run(['/bin/echo', 'hello'], check=True)
''')
    assert any('the program echo' in text for text in made.unknown)
    assert made.failures


def test_programs_run_if_they_are_allowed(plan, parent):
    made = plan('''
@kopf.on.create('kopfexamples')
def start(patch, **_):
    import subprocess
    patch.spec['said'] = subprocess.check_output(['echo', 'hello'], text=True)
''', allow=['echo'])
    assert made.items[0].fields == [testing.Field('spec.said', None, 'hello\n')]


def test_programs_have_their_names_also_in_folders_with_spaces(plan, parent, tmp_path):
    folder = tmp_path / 'some folder'
    folder.mkdir()
    (folder / 'greet').symlink_to('/bin/echo')
    made = plan(f'''
@kopf.on.create('kopfexamples')
def start(patch, **_):
    import os, subprocess
    patch.spec['said'] = subprocess.check_output([{str(folder / 'greet')!r}, 'hello'], text=True)
    os.system('true')
''', allow=['greet', 'true'])
    assert made.items[0].fields == [testing.Field('spec.said', None, 'hello\n')]


def test_everything_is_allowed_again_after_the_plan(plan, parent, server):
    plan(NOTHING)
    import urllib.request
    assert urllib.request.urlopen(f'http://127.0.0.1:{server}/').read() == b'7'


def test_blocking_clients_reach_the_sandbox_and_are_known(plan, parent, client):
    made = plan('''
@kopf.on.create('kopfexamples')
def create(**_):
    import json, os, pathlib, urllib.request, yaml
    config = yaml.safe_load(pathlib.Path(os.environ['KUBECONFIG']).read_text())
    url = config['clusters'][0]['cluster']['server'] + '/api/v1/namespaces/default/configmaps'
    with urllib.request.urlopen(urllib.request.Request(
            url, json.dumps({'metadata': {'name': 'x'}}).encode(),
            {'Content-Type': 'application/json'})):
        pass
''')
    item, = made.items
    assert names([item]) == [('create', 'configmaps default/x')]
    assert item.handlers == ['create for kopfexamples.kopf.dev default/example']


def test_blocking_clients_are_told_apart_though_the_first_one_sends_later(plan, client):
    for name in 'ab':
        client.create('kopfexamples', name, spec={})
    made = plan('''
import http.client, json, os, pathlib, socket, threading, time, yaml
is_noted = threading.Event()

class SlowSocket(socket.socket):
    def sendall(self, data):
        is_noted.set()
        time.sleep(0.2)
        super().sendall(data)

@kopf.on.create('kopfexamples')
def create(name, **_):
    config = yaml.safe_load(pathlib.Path(os.environ['KUBECONFIG']).read_text())
    host, _, port = config['clusters'][0]['cluster']['server'].rpartition(':')
    client = http.client.HTTPConnection('127.0.0.1', int(port))
    client.connect()
    if name == 'a':
        client.sock = SlowSocket(fileno=client.sock.detach())
    else:
        assert is_noted.wait(5)
    client.request('POST', '/api/v1/namespaces/default/configmaps', json.dumps(
        {'metadata': {'name': f'of-{name}'}}), {'Content-Type': 'application/json'})
    client.getresponse().read()
    client.close()
''')
    assert {str(item.place): item.handlers for item in made.items} == {
        f'configmaps default/of-{name}': [f'create for kopfexamples.kopf.dev default/{name}']
        for name in 'ab'}


EARLY = """
import os, pathlib, yaml
path = pathlib.Path(os.environ['KUBECONFIG'])
server = yaml.safe_load(path.read_text())['clusters'][0]['cluster']['server']

@kopf.on.create('kopfexamples')
def create(**_):
    import json, urllib.request
    assert path == pathlib.Path(os.environ['KUBECONFIG'])
    with urllib.request.urlopen(urllib.request.Request(
            f'{server}/api/v1/namespaces/default/configmaps',
            json.dumps({'metadata': {'name': 'x'}, 'data': {'n': 'N'}}).encode(),
            {'Content-Type': 'application/json'})):
        pass
"""


def test_clients_that_are_made_at_the_import_reach_the_sandbox(plan, parent, client):
    item, = plan(EARLY).items
    assert names([item]) == [('create', 'configmaps default/x')]
    item, = plan(EARLY.replace("'N'", "'other'"), against=EARLY).items
    assert item.fields == [testing.Field('data.n', 'N', 'other')]
    assert client.list('configmaps') == []


def test_deletions_by_unknown_clients_are_planned(plan, parent, client):
    client.create('configmaps', 'x')
    made = plan('''
@kopf.on.create('kopfexamples')
def delete(**_):
    import os, pathlib, socket, yaml
    config = yaml.safe_load(pathlib.Path(os.environ['KUBECONFIG']).read_text())
    port = int(config['clusters'][0]['cluster']['server'].rpartition(':')[2])
    with socket.create_connection(('127.0.0.1', port)) as sock:
        sock.sendall(b'DELETE /api/v1/namespaces/default/configmaps/x HTTP/1.1\\r\\n'
                     b'Host: localhost\\r\\nConnection: close\\r\\n\\r\\n')
        while sock.recv(1000):
            pass
''')
    assert names(made.deletions) == [('delete', 'configmaps default/x')]


# Two versions.


def test_the_same_version_differs_in_nothing(plan, parent):
    made = plan(CHILD, against=CHILD)
    assert not made.items and not made.only_old
    assert made.get_code() == 0


def test_only_the_differing_fields_are_planned(plan, parent):
    made = plan(CHILD.replace("str(spec['n'])}", "'2', 'm': '3'}"), against=CHILD)
    item, = made.items
    assert names([item]) == [('create', 'configmaps default/example')]
    assert item.fields == [
        testing.Field('data.n', '1', '2'), testing.Field('data.m', None, '3')]


def test_what_only_the_other_version_does_is_told(plan, parent):
    made = plan(NOTHING, against=CHILD)
    assert not made.items
    assert names(made.only_old) == [('create', 'configmaps default/example')]
    assert made.get_code() == 2


def test_what_only_the_new_version_does_is_planned(plan, parent, client):
    client.create('configmaps', 'x')
    made = plan(request('DELETE', f'{MAPS}/x'), against=NOTHING)
    assert names(made.deletions) == [('delete', 'configmaps default/x')]


def test_times_and_generated_values_of_both_versions_are_the_same(plan, parent):
    text = '''
import datetime, uuid

@kopf.on.create('kopfexamples')
async def create(**_):
    first = await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'first', 'namespace': 'default'}})
    await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'second', 'namespace': 'default'}, 'data': {
            'uid': first['metadata']['uid'], 'time': datetime.datetime.now().isoformat() + 'Z'}})
'''
    made = plan(text, against=text)
    assert not made.items


def test_failures_of_both_versions_are_no_errors_but_unknown(plan, parent):
    text = '''
@kopf.on.create('kopfexamples')
def fail(**_):
    raise ValueError("as always")
'''
    made = plan(text, against=text)
    assert made.unknown[-1] == ("What fail for kopfexamples.kopf.dev default/example would do, "
                                "which fails in both versions: as always")
    assert not made.failures and made.get_code() == 0


@pytest.mark.parametrize('error', [
    'ValueError(f"Not Found. Date: {time.time()}, {object()}")',
    'ValueError(str(uuid.uuid4()))'])
def test_failures_of_both_versions_are_the_same_with_other_times_and_addresses(
        plan, parent, client, error):
    client.create('kopfexamples', 'other', spec={})
    text = f'''
import time, uuid
@kopf.on.create('kopfexamples')
def fail(**_):
    raise {error}
'''
    made = plan(text, against=text)
    assert not made.failures and made.get_code() == 0
    assert made.unknown[-1].startswith("What fail for kopfexamples.kopf.dev default/example, "
                                       "kopfexamples.kopf.dev default/other would do")


def test_other_failures_than_those_of_the_old_version_are_errors(plan, parent):
    text = '''
@kopf.on.create('kopfexamples')
def fail(name, **_):
    raise ValueError(f"{name}: as always")
'''
    made = plan(text.replace('always', 'never'), against=text)
    assert [each.message for each in made.failures] == ["example: as never"]
    assert made.get_code() == 1


def test_both_versions_have_the_same_state(plan, parent, client):
    """What is changed in between is seen by none of them."""
    text = f'''
import threading

@kopf.on.startup()
def start(**_):
    pass
{CHILD}'''
    made = plan(text, against=text)
    assert made.upstream['list'] <= 20
    assert not made.items


# The exit code.


def test_changes_have_a_code(plan, parent):
    assert plan(CHILD).get_code() == 2


def test_deletions_and_restarts_can_be_errors(plan, parent, make_workload, client):
    make_workload()
    client.create('configmaps', 'x')
    restart = plan(set_image('nginx:2'))
    delete = plan(request('DELETE', f'{MAPS}/x'))
    assert [restart.get_code([name]) for name in ('deletions', 'restarts')] == [2, 1]
    assert [delete.get_code([name]) for name in ('deletions', 'restarts')] == [1, 2]


def test_generated_values_are_neither_made_nor_shown(plan, parent):
    made = plan('''
def make():
    raise Exception("It must not be called.")

@kopf.reconcile('kopfexamples', owns=['configmaps'])
async def child(name, **_):
    yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
           'data': {'word': kopf.generated(make)}}
''')
    item, = made.items
    assert testing.Field('data', None, {'word': 'generated by Kopf'}) in item.fields
    assert not made.problems


def load_converted(client, kind, plural, *, strategy='Webhook'):
    """Load a kind of two versions, which a webhook of the cluster converts by default."""
    crd = make_crd(kind, plural)
    spec = crd['spec']
    spec['versions'].append({**spec['versions'][0], 'name': 'v2', 'storage': False})
    if strategy == 'Webhook':
        spec['conversion'] = {'strategy': strategy, 'webhook': {
            'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://127.0.0.1:1/'}}}
    client.load(crd)


@pytest.mark.parametrize('selector', ['used', 'used.v2.example.com'])
@pytest.mark.parametrize('against', [None, NOTHING])
@pytest.mark.parametrize('template', [
    NOTHING.replace('kopfexamples', 'SELECTOR'), CHILD.replace('configmaps', 'SELECTOR')])
def test_conversions_are_warned_of_only_for_the_kinds_of_handlers(
        plan, client, caplog, template, selector, against):
    load_converted(client, 'Used', 'used')
    load_converted(client, 'Unused', 'unused')
    plan(template.replace('SELECTOR', selector), against=against)
    assert [line for line in caplog.messages if "the webhook that converts" in line] == [
        "used.example.com are served in v1 only: the webhook that converts them is not called from "
        "here."]


CONVERTING = """
@kopf.on.convert('used.example.com', 'v1', 'v2')
def up(obj):
    obj['spec']['two'] = obj['spec'].pop('one')

@kopf.on.convert('used.example.com', 'v2', 'v1')
def down(obj):
    obj['spec']['one'] = obj['spec'].pop('two')

@kopf.on.create('example.com', 'v2', 'used')
def create(spec, patch, **_):
    patch.spec['two'] = spec['two'] + 1
"""


@pytest.mark.parametrize('strategy', ['Webhook', 'None'])
def test_objects_are_converted_by_the_functions_of_the_operator(plan, client, caplog, strategy):
    load_converted(client, 'Used', 'used', strategy=strategy)
    client.create({
        'apiVersion': 'example.com/v1', 'kind': 'Used', 'metadata': {'name': 'a'},
        'spec': {'one': 1}})
    item, = plan(CONVERTING).items
    assert [(field.path, field.old, field.new) for field in item.fields] == [('spec.one', 1, 2)]
    assert not [line for line in caplog.messages if "the webhook that converts" in line]


VOLUMES = """
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class OldVolumeSpec:
    gigabytes: int = 1

@kopf.crd('example.com', 'v1beta1', plural='volumes')
class Volume:
    spec: OldVolumeSpec = OldVolumeSpec()

@kopf.on.update(Volume)
def update(patch, **_):
    patch.spec['gigabytes'] = 100
"""

OLD = VOLUMES + """
@kopf.reconcile(Volume, owns=['configmaps'])
def child(name, spec: OldVolumeSpec, **_):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
            'data': {'size': f'{spec.gigabytes}G'}}
"""

NEW = """
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class VolumeSpec:
    size: str = '1G'
    tier: str = 'slow'

@dataclass(frozen=True, kw_only=True)
class OldVolumeSpec:
    gigabytes: int = 1

@kopf.crd('example.com', 'v1', plural='volumes')
class Volume:
    spec: VolumeSpec = VolumeSpec()

@kopf.crd('example.com', 'v1beta1', of=Volume, storage=True)
class OldVolume:
    spec: OldVolumeSpec = OldVolumeSpec()

kopf.convert(OldVolume, Volume, kopf.Move(
    '.spec.gigabytes', '.spec.size', up='{}G'.format, down=lambda size: int(size[:-1])))

@kopf.on.update(Volume)
def update(patch, **_):
    patch.spec['size'] = '100G'

@kopf.reconcile(Volume, owns=['configmaps'])
def child(name, spec: VolumeSpec, **_):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
            'data': {'size': spec.size, 'tier': spec.tier}}
"""


def let_handle(cluster, path, *, has_child=True):
    """Let a version of the operator handle a volume, in a cluster without newer versions of it."""
    async def run():
        async with testing.Operator(path, credentials=cluster.credentials, clusterwide=True):
            if has_child:
                await asyncio.to_thread(cluster.client.wait, 'configmaps', 'a')
            await asyncio.to_thread(
                cluster.client.wait, 'volumes', 'a', lambda obj: 'last-handled' in str(obj))

    with kinds.separated():
        registry = operators.load([path], is_fresh=True)
        cluster.client.load(*kinds.define(kinds.find(registry.get_selectors())))
    cluster.client.create('volumes', 'a', spec={'gigabytes': 5})
    asyncio.run(run())


@pytest.mark.parametrize('is_compared', [False, True])
def test_objects_are_converted_to_a_version_that_the_cluster_has_not_yet(
        plan, cluster, script, is_compared, caplog):
    let_handle(cluster, script(OLD, name='deployed.py'))
    made = plan(NEW, against=OLD if is_compared else None)
    item, = made.items
    assert str(item.place) == 'configmaps default/a'
    assert testing.Field('data.tier', None, 'slow') in item.fields
    assert not [field for field in item.fields if field.path == 'data.size']
    assert not made.failures and not made.unknown and not made.problems
    assert not [line for line in caplog.messages if "another definition" in line]


def test_a_field_that_gets_a_default_changes_all_objects(plan, cluster, script):
    let_handle(cluster, script(VOLUMES, name='deployed.py'), has_child=False)
    item, = plan(VOLUMES.replace('int = 1', "int = 1\n    tier: str = 'slow'")).items
    assert item.fields == [testing.Field('spec.gigabytes', 5, 100)]


def test_objects_that_do_not_fit_the_new_types_are_failures(plan, cluster, script):
    let_handle(cluster, script(VOLUMES, name='deployed.py'), has_child=False)
    new = VOLUMES.replace('gigabytes: int = 1', "gigabytes: str = '1'")
    made = plan(new + """
@kopf.on.resume(Volume)
def other(spec: OldVolumeSpec, **_): pass

@kopf.on.event(Volume)
def event(spec: OldVolumeSpec, **_): pass

@kopf.timer(Volume, interval=100)
def timer(spec: OldVolumeSpec, **_): pass

@kopf.reconcile(Volume)
def level(spec: OldVolumeSpec, **_): pass
""")
    assert {(failure.handler, failure.place, failure.message) for failure in made.failures} == {
        (name, 'volumes.example.com default/a',
         "the object does not fit its types: spec.gigabytes: is a number, not a string")
        for name in ('other', 'event', 'timer', 'level')}
    assert made.get_code() == 1


@pytest.mark.parametrize('decorator', [
    "on.event('kopfexamples'", "on.create('kopfexamples'", "timer('kopfexamples', interval=100",
    "daemon('kopfexamples'", "reconcile('kopfexamples'", "index('kopfexamples'"])
def test_failing_filters_are_failures(plan, parent, decorator):
    made = plan(f"""
@kopf.{decorator}, when=lambda spec, **_: spec['absent'])
def handler(**_): pass
""")
    failure, = made.failures
    assert (failure.handler, failure.place, failure.message) == (
        'handler', 'kopfexamples.kopf.dev default/example', "KeyError('absent')")


def test_a_version_that_is_left_out_again_is_planned(plan, cluster, script):
    let_handle(cluster, script(OLD, name='deployed.py'))
    made = plan(OLD, against=NEW)
    assert not made.items
    assert names(made.only_old) == [('change', 'configmaps default/a')]


# External systems.

BILLING = """
billing = kopf.external('kopfexamples', id='billing', interval=10, immutable=['region'])

@billing.observe
def observe(key, **_):
    return {'n': 1, 'region': 'here'}

@billing.create
@billing.update
@billing.delete
def change(**_):
    raise Exception('It is changed.')

@billing.desired
def desired(spec, **_):
    return {'n': spec['n']}
"""

KNOWN = {'external.kopf.dev/billing': '{"phase":"known","token":"t","key":"key1","attempt":1}',
         'external.kopf.dev/kopf-managed': 'yes'}


def list_calls(made):
    return [(call.external, call.verb, call.key, *call.fields) for call in made.calls]


def test_nothing_is_created_in_external_systems(plan, parent):
    made = plan(BILLING)
    assert list_calls(made) == [('billing', 'create', '', 'n')]
    assert [item.finalizers for item in made.items] == [['+kopf.dev/external']]
    assert not made.failures and made.get_code() == 2


def test_nothing_is_updated_in_external_systems(plan, client):
    client.create('kopfexamples', 'example', spec={'n': 2}, metadata={
        'annotations': KNOWN, 'finalizers': ['kopf.dev/external']})
    made = plan(BILLING)
    assert list_calls(made) == [('billing', 'update', 'key1', 'n')]
    assert made.get_code(['deletions']) == 2
    assert plan(BILLING, against=BILLING).get_code() == 0


def test_nothing_is_deleted_in_external_systems(plan, client):
    client.create('kopfexamples', 'example', spec={'n': 1}, metadata={
        'annotations': KNOWN, 'finalizers': ['kopf.dev/external']})
    client.delete('kopfexamples', 'example')
    made = plan(BILLING)
    assert list_calls(made) == [('billing', 'delete', 'key1')]
    assert (made.get_code(), made.get_code(['deletions'])) == (2, 1)


def test_new_things_are_planned_though_the_system_cannot_be_asked_for_others(plan, client):
    for number in range(8):
        client.create('kopfexamples', f'known{number}', spec={'n': 1}, metadata={
            'annotations': KNOWN, 'finalizers': ['kopf.dev/external']})
    for number in range(3):
        client.create('kopfexamples', f'new{number}', spec={'n': 1})
    made = plan(BILLING.replace("    return {'n': 1, 'region': 'here'}", """
    import socket
    socket.create_connection(('billing.example.com', 443))
"""))
    assert list_calls(made) == [('billing', 'create', '', 'n')] * 3
    assert [text.partition(':')[0] for text in made.unknown][:1] == [
        "What billing.example.com"]


@pytest.mark.parametrize('phase', [None, 'known', 'deleting'])
def test_calls_that_are_not_made_are_not_repeated(plan, client, phase):
    annotations = {} if phase is None else {
        **KNOWN, 'external.kopf.dev/billing': json.dumps({'phase': phase, 'key': 'key1'})}
    client.create('kopfexamples', 'example', spec={'n': 2}, metadata={
        'annotations': annotations, 'finalizers': ['kopf.dev/external']})
    if phase == 'deleting':
        client.delete('kopfexamples', 'example')
    with mock.patch.object(driving.Journey, 'go', autospec=True,
                           side_effect=driving.Journey.go) as go:
        made = plan(BILLING.replace("interval=10", "interval=1000"))
    assert len(made.calls) == 1
    assert 1 <= go.call_count <= 6


@pytest.mark.parametrize('field', ['stringData', 'data'])
def test_other_values_of_secrets_are_a_difference_and_not_shown(plan, parent, client, field):
    def text(value):
        return f"""
@kopf.reconcile('kopfexamples', owns=['secrets'])
def fn(name, **_):
    return {{'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {{'name': name}}, {field!r}: {{
        'changed': {value!r}, 'same': 'c2FtZQ=='}}}}
"""
    made = plan(text('b25l'), against=text('dHdv'))
    item, = made.items
    assert item.fields == [testing.Field('data.changed', '***', '***')]
    shown = json.dumps(dataclasses.asdict(made))
    assert '"***"' in shown and 'b25l' not in repr(made) + shown
    assert not plan(text('b25lIA=='), against=text('b25lIA==')).items


def test_other_values_for_external_systems_are_a_difference(plan, client):
    client.create('kopfexamples', 'known', spec={'n': 2}, metadata={
        'annotations': KNOWN, 'finalizers': ['kopf.dev/external']})
    client.create('kopfexamples', 'new', spec={'n': 2})
    made = plan(BILLING.replace("spec['n']", "spec['n'] + 1"), against=BILLING)
    assert sorted(list_calls(made)) == [
        ('billing', 'create', '', 'n'), ('billing', 'update', 'key1', 'n')]
    assert not made.only_old_calls
    assert plan(BILLING, against=BILLING).get_code() == 0


def test_calls_that_only_the_other_version_would_make_are_a_difference(plan, client):
    client.create('kopfexamples', 'new', spec={'n': 2})
    made = plan(NOTHING, against=BILLING)
    call, = made.only_old_calls
    assert (call.external, call.verb) == ('billing', 'create')
    assert not made.calls and made.get_code() == 2


def test_what_is_desired_must_be_a_dict(plan, parent):
    made = plan(BILLING.replace("return {'n': spec['n']}", "return 'large'"))
    assert not made.calls
    assert [(each.handler, each.message) for each in made.failures] == [
        ('billing/desired', "desired must return a dict. It has returned a value of str.")]


def test_systems_that_no_version_can_reach_are_told(plan, client):
    client.create('kopfexamples', 'example', spec={'n': 2}, metadata={
        'annotations': KNOWN, 'finalizers': ['kopf.dev/external']})
    text = BILLING.replace("    return {'n': 1, 'region': 'here'}", """
    import socket
    socket.create_connection(('billing.example.com', 443))
""")
    made = plan(text.replace("spec['n']", "spec['n'] + 1"), against=text)
    assert not made.calls and not made.failures
    assert any(each.startswith("What billing.example.com:443 would have answered")
               for each in made.unknown)
    assert any(each.startswith("What billing/observe for kopfexamples.kopf.dev default/example "
                               "would do, which fails in both versions: ")
               for each in made.unknown)


def test_external_systems_need_nothing_if_nothing_would_change(plan, client):
    client.create('kopfexamples', 'example', spec={'n': 1}, metadata={
        'annotations': KNOWN, 'finalizers': ['kopf.dev/external']})
    assert not plan(BILLING).calls
