"""
Webhooks: the API asks the operator before it changes anything.
"""

import asyncio
import datetime
import json
import logging
import signal
import ssl
import time
import uuid

import pytest

import kopf
from tests.e2e.kubes import CONFIGMAPS, PODS, Kind, KubeError

CONFIGURATIONS = {
    reason: Kind('admissionregistration.k8s.io', 'v1', f'{reason}webhookconfigurations',
                 f'{reason.title()}WebhookConfiguration', namespaced=False)
    for reason in ('validating', 'mutating')
}

PRELUDE = """
@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = {managed!r}

@kopf.on.validate(*KIND, id='ready', labels={{'probe': 'validate'}})
@kopf.on.mutate(*KIND, id='ready', labels={{'probe': 'mutate'}})
def ready(**_):
    raise kopf.AdmissionError("Ready.", code=499)
"""


@pytest.fixture()
async def managed(kube, borrow):
    """The name of the configurations of the test; they are gone after it, when it has ended."""
    name = f'auto.a{uuid.uuid4().hex[:8]}.test'
    yield name
    for configuration in CONFIGURATIONS.values():
        try:
            await kube.delete(configuration, name)
        except KubeError as e:
            assert e.status == 404


@pytest.fixture()
def settings(settings, managed):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = managed
    return settings


@pytest.fixture()
def serve(registry, embedded, kube, kind):
    """Run the operator with the handlers of the test, and return when its webhooks are called."""
    async def start(probed=kind, **kwargs):
        @kopf.on.validate(*probed.selector, id='ready', labels={'probe': 'validate'})
        @kopf.on.mutate(*probed.selector, id='ready', labels={'probe': 'mutate'})
        def ready(**_):
            raise kopf.AdmissionError("Ready.", code=499)

        instance = embedded(**kwargs)
        await wait_ready(kube, probed)
        return instance

    return start


@pytest.fixture()
def run(managed, operator, kube, kind):
    """Run the operator as a process; return when its webhooks are called."""
    async def start(text, *, kind=kind, **kwargs):
        instance = operator(PRELUDE.format(managed=managed) + text, kind=kind, **kwargs)
        await instance.wait_for("Reconfiguring the mutating webhook")
        await wait_ready(kube, kind)
        return instance

    return start


async def wait_ready(kube, kind, *, ready=True, timeout=30):
    """Wait until both sorts of webhooks are called by the API (or are not called any more)."""
    deadline = time.monotonic() + timeout
    for reason in ('validate', 'mutate'):
        while await is_refused(kube, kind, labels={'probe': reason}) != ready:
            assert time.monotonic() < deadline, "The webhooks are not as expected."
            await asyncio.sleep(0.03)


async def is_refused(kube, kind, **metadata):
    try:
        await submit(kube, kind, 'probe', dry=True, metadata=metadata)
    except KubeError as e:
        return e.status == 499
    return False


async def submit(kube, kind, name, *, dry=False, metadata=None, **fields):
    return await kube.request(
        'POST', kind.get_path(namespace='default'), params={'dryRun': 'All'} if dry else {}, body={
            'apiVersion': kind.api_version, 'kind': kind.kind,
            'metadata': {'name': name, **(metadata or {})}, **fields})


async def get_webhooks(kube, reason, managed):
    return (await kube.get(CONFIGURATIONS[reason], managed))['webhooks']


async def request_for_warnings(kube, method, path, body=None):
    """Make a request, and return what the API warns of."""
    async with kube._session.request(method, path, json=body) as response:
        await response.read()
        return [header.split('"')[1] for header in response.headers.getall('Warning', [])]


async def test_objects_are_accepted_and_refused_with_the_code_and_the_message(kube, kind, serve):

    @kopf.on.validate(*kind.selector)
    def check(spec, **_):
        if spec.get('field') == 'bad':
            raise kopf.AdmissionError("This is bad.", code=418)

    await serve()
    await kube.create(kind, 'good', spec={'field': 'good'})
    with pytest.raises(KubeError, match="denied the request: This is bad.") as info:
        await kube.create(kind, 'bad', spec={'field': 'bad'})
    assert info.value.status == 418
    with pytest.raises(KubeError) as info:
        await kube.patch(kind, 'good', {'spec': {'field': 'bad'}})
    assert info.value.status == 418
    assert [obj['spec'] for obj in await kube.list_objects(kind)] == [{'field': 'good'}]


@pytest.mark.parametrize('error', [kopf.PermanentError, kopf.TemporaryError, ValueError])
async def test_objects_are_refused_by_all_other_errors(kube, kind, serve, error):

    # Of several webhooks that refuse an object, the API tells the error of any one.
    @kopf.on.validate(*kind.selector, id='check', labels={'probe': kopf.ABSENT})
    async def check(**_):
        raise error("Why so.")

    await serve()
    with pytest.raises(KubeError, match="check.auto.*denied the request: Why so.") as info:
        await kube.create(kind, 'x')
    assert info.value.status == 500


async def test_objects_are_mutated(kube, kind, serve):

    def append(body):
        body['spec']['items'].append('last')

    @kopf.on.mutate(*kind.selector, operations=['CREATE'], labels={'probe': kopf.ABSENT})
    def change(patch, **_):
        patch.spec['new/~key'] = {'a': [1, {'b': None}]}
        patch.spec['gone'] = None
        patch.spec['absent'] = None
        patch.meta.labels['label'] = 'value'
        patch.meta.annotations['absent'] = None
        patch.status['some'] = {'what': 'here', 'none': None}
        patch.fns.append(append)

    await serve()
    obj = await kube.create(kind, 'x', spec={'gone': 1, 'items': ['first'], 'kept': True})
    assert obj['spec'] == {
        'items': ['first', 'last'], 'kept': True, 'new/~key': {'a': [1, {'b': None}]}}
    assert obj['metadata']['labels'] == {'label': 'value'}
    assert 'annotations' not in obj['metadata'] or not obj['metadata']['annotations']
    assert obj['status'] == {'some': {'what': 'here'}}


async def test_several_handlers_mutate_one_after_another(kube, kind, serve):

    @kopf.on.mutate(*kind.selector)
    def first(patch, **_):
        patch.spec['first'] = 1

    @kopf.on.mutate(*kind.selector)
    def second(patch, spec, **_):
        patch.spec['second'] = spec.get('first')

    await serve()
    obj = await kube.create(kind, 'x', spec={})
    assert obj['spec'] == {'first': 1, 'second': 1}


async def test_warnings_go_to_the_user(kube, kind, serve):

    @kopf.on.validate(*kind.selector)
    def check(warnings, **_):
        warnings.append("Do it better.")

    @kopf.on.mutate(*kind.selector)
    def change(warnings, **_):
        warnings.append("It could be changed.")

    await serve()
    body = {'apiVersion': kind.api_version, 'kind': kind.kind, 'metadata': {'name': 'x'}}
    assert set(await request_for_warnings(
        kube, 'POST', kind.get_path(namespace='default'), body,
    )) == {"Do it better.", "It could be changed."}


async def test_handlers_get_what_is_documented(kube, kind, serve, journal):

    @kopf.on.validate(*kind.selector, param='any', labels={'probe': kopf.ABSENT})
    def check(**kwargs):
        journal.append(kwargs)

    await serve()
    await kube.create(kind, 'x', spec={'a': 1}, labels={'l': 'v'}, annotations={'a': 'v'})
    [kwargs] = journal
    assert set(kwargs) == {
        'memo', 'logger', 'param', 'retry', 'started', 'runtime', 'resource', 'body', 'spec',
        'meta', 'status', 'uid', 'name', 'namespace', 'labels', 'annotations', 'patch',
        'operation', 'subresource', 'dryrun', 'warnings', 'headers', 'sslpeer', 'userinfo',
        'diff', 'old', 'new',
    }
    assert kwargs['param'] == 'any'
    assert kwargs['retry'] == 0
    assert isinstance(kwargs['started'], datetime.datetime)
    assert kwargs['runtime'] == datetime.timedelta(0)
    assert isinstance(kwargs['logger'], logging.LoggerAdapter)
    assert kwargs['memo'] == {}
    assert kwargs['resource'].plural == kind.plural
    assert kwargs['name'] == 'x'
    assert kwargs['namespace'] == 'default'
    assert kwargs['labels'] == {'l': 'v'}
    assert kwargs['annotations'] == {'a': 'v'}
    assert kwargs['spec'] == {'a': 1}
    assert kwargs['operation'] == 'CREATE'
    assert kwargs['subresource'] is None
    assert kwargs['dryrun'] is False
    assert kwargs['warnings'] == []
    assert kwargs['sslpeer'] is None
    assert kwargs['headers']['Content-Type'] == 'application/json'
    assert kwargs['userinfo']['username'] == 'admin'
    assert 'system:masters' in kwargs['userinfo']['groups']
    assert kwargs['old'] is None
    assert kwargs['new'] == kwargs['body']
    assert [(op, field) for op, field, _, _ in kwargs['diff']] == [('add', ())]


@pytest.mark.parametrize('is_strict', [True, False], ids=['strict', 'as documented'])
async def test_own_writes_of_the_operator_pass_the_validator(
        kube, kind, serve, journal, is_strict):
    allowed = ['x']  # until the handler is changed, so to say

    @kopf.on.validate(*kind.selector, operations={'CREATE', 'UPDATE'},
                      labels={'probe': kopf.ABSENT})
    def check(spec, old, operation, **_):
        if not is_strict and old is not None and old.get('spec', {}) == spec:
            return
        if spec.get('field') not in allowed:
            journal.append((operation,))
            raise kopf.AdmissionError("This is bad.")

    @kopf.on.delete(*kind.selector)
    def delete_fn(**_):
        pass

    await serve()
    await kube.create(kind, 'x', spec={'field': 'x'})
    await kube.wait_for(kind, 'x', lambda obj: obj['metadata'].get('finalizers'))
    allowed.clear()
    await kube.delete(kind, 'x')
    if is_strict:
        await journal.wait(('UPDATE',))
        assert (await kube.get(kind, 'x'))['metadata']['finalizers']
        allowed.append('x')
    await kube.wait_gone(kind, 'x')
    if not is_strict:
        assert not journal


async def test_updates_and_deletions_have_their_old_states(kube, kind, serve, journal):

    @kopf.on.validate(*kind.selector, labels={'probe': kopf.ABSENT})
    def check(operation, old, new, diff, name, spec, **_):
        journal.append((
            operation, name, dict(spec), old and old['spec'], new and new['spec'],
            [tuple(item) for item in diff if item.field[:1] != ('metadata',)]))

    await serve()
    await kube.create(kind, 'x', spec={'field': 1})
    await kube.wait_cached(kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await kube.wait_cached(kind, 'x')
    await kube.delete(kind, 'x')
    creation, update, deletion = journal
    assert creation[:-1] == ('CREATE', 'x', {'field': 1}, None, {'field': 1})
    assert update == (
        'UPDATE', 'x', {'field': 2}, {'field': 1}, {'field': 2},
        [('change', ('spec', 'field'), 1, 2)])
    assert deletion[:-1] == ('DELETE', 'x', {'field': 2}, {'field': 2}, None)
    assert [item[:2] for item in deletion[-1]] == [('remove', ())]


@pytest.mark.parametrize('operation', ['CREATE', 'UPDATE', 'DELETE'])
async def test_handlers_are_only_for_their_operations(kube, kind, serve, journal, operation):

    @kopf.on.mutate(*kind.selector, operations={operation}, labels={'probe': kopf.ABSENT})
    @kopf.on.validate(*kind.selector, operations={operation}, labels={'probe': kopf.ABSENT})
    def check(operation, patch, **_):
        journal.append(operation)

    await serve()
    await kube.create(kind, 'x')
    await kube.wait_cached(kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await kube.wait_cached(kind, 'x')
    await kube.delete(kind, 'x')
    assert journal == [operation] * 2


async def test_deletions_are_refused_and_not_changed(kube, kind, serve):

    @kopf.on.validate(*kind.selector, operations=['DELETE'])
    def check(spec, **_):
        if spec.get('held'):
            raise kopf.AdmissionError("It is held.", code=403)

    @kopf.on.mutate(*kind.selector)
    def change(patch, **_):
        patch.spec['changed'] = True

    await serve()
    await kube.create(kind, 'x', spec={'held': True})
    with pytest.raises(KubeError, match="It is held."):
        await kube.delete(kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'held': None}})
    await kube.delete(kind, 'x')
    assert await kube.list_objects(kind) == []


@pytest.mark.parametrize(('subresource', 'expected'), [
    (None, [None]), ('status', ['status']), ('*', [None, 'status'])])
async def test_handlers_are_only_for_their_subresources(
        kube, status_kind, serve, journal, subresource, expected):

    @kopf.on.validate(
        *status_kind.selector, subresource=subresource, operations=['UPDATE'])
    def check(subresource, status, **_):
        journal.append(subresource)

    await serve(status_kind)
    await kube.create(status_kind, 'x')
    await kube.wait_cached(status_kind, 'x')
    await kube.patch(status_kind, 'x', {'spec': {'a': 1}})
    await kube.wait_cached(status_kind, 'x')
    await kube.patch(status_kind, 'x', {'status': {'a': 1}}, subresource='status')
    assert journal == expected


async def test_bodies_of_scaling_and_of_connections_are_passed_as_they_are(
        kube, kind, serve, journal, settings):
    deployments = Kind('apps', 'v1', 'deployments', 'Deployment')
    labels = {'app': f'a{uuid.uuid4().hex[:8]}'}

    @kopf.on.validate('deployments', subresource='scale')
    def scaling(body, name, subresource, spec, **_):
        if name == labels['app']:
            journal.append((body['kind'], name, subresource, spec.get('replicas')))

    @kopf.on.validate('pods', subresource='exec', operations=['CONNECT'])
    def connecting(body, name, namespace, operation, old, **_):
        if name == labels['app']:
            journal.append((body['kind'], name, namespace, operation, old, *body['command']))
            raise kopf.AdmissionError("No way in.", code=403)

    await serve()
    await kube.create(deployments, labels['app'], spec={
        'replicas': 0, 'selector': {'matchLabels': labels},
        'template': {'metadata': {'labels': labels},
                     'spec': {'containers': [{'name': 'main', 'image': 'any'}]}}})
    await kube.create(PODS, labels['app'], spec={'containers': [{'name': 'main', 'image': 'any'}]})
    try:
        await kube.patch(deployments, labels['app'], {'spec': {'replicas': 3}}, subresource='scale')
        with pytest.raises(KubeError, match="No way in."):
            await kube.request('POST', PODS.get_path(labels['app'], 'default', 'exec'),
                               params={'command': 'sh', 'container': 'main'})
    finally:
        await kube.delete(deployments, labels['app'])
        await kube.delete(PODS, labels['app'])
    assert set(journal) == {  # a set: after a controller's write in between, the API asks twice
        ('Scale', labels['app'], 'scale', 3),
        ('PodExecOptions', labels['app'], 'default', 'CONNECT', None, 'sh'),
    }


async def test_filters_are_evaluated_on_both_sides(kube, kind, serve, journal, managed):
    filters = {
        'label': {'labels': {'l': 'v'}},
        'present': {'labels': {'l': kopf.PRESENT}},
        'absent': {'labels': {'l': kopf.ABSENT, 'probe': kopf.ABSENT}},
        'callback': {'labels': {'l': lambda value, name, **_: value == 'v' and name != 'probe'}},
        'annotation': {'annotations': {'a': 'v'}},
        'field': {'field': 'spec.field'},
        'value': {'field': 'spec.field', 'value': 2},
        'when': {'when': lambda spec, operation, **_: spec.get('field') == 3},
    }
    for name, options in filters.items():
        @kopf.on.validate(*kind.selector, id=name, param=name, operations=['CREATE'], **options)
        def check(param, name, **_):
            journal.append((name, param))

    await serve()
    await kube.create(kind, 'nothing')
    await kube.create(kind, 'labelled', labels={'l': 'v'})
    await kube.create(kind, 'mislabelled', labels={'l': 'x'})
    await kube.create(kind, 'annotated', annotations={'a': 'v'})
    await kube.create(kind, 'one', spec={'field': 1})
    await kube.create(kind, 'two', spec={'field': 2})
    await kube.create(kind, 'three', spec={'field': 3})
    assert set(journal) == {
        ('nothing', 'absent'), ('labelled', 'label'), ('labelled', 'present'),
        ('labelled', 'callback'), ('mislabelled', 'present'), ('annotated', 'annotation'),
        ('annotated', 'absent'), ('one', 'field'), ('one', 'absent'), ('two', 'field'),
        ('two', 'value'), ('two', 'absent'), ('three', 'field'), ('three', 'when'),
        ('three', 'absent'),
    }
    selectors = {webhook['name'].partition('.')[0]: webhook.get('objectSelector')
                 for webhook in await get_webhooks(kube, 'validating', managed)}
    assert selectors['label'] == {
        'matchExpressions': [{'key': 'l', 'operator': 'In', 'values': ['v']}]}
    assert selectors['absent']['matchExpressions'][0] == {'key': 'l', 'operator': 'DoesNotExist'}
    assert not selectors['callback'] and not selectors['annotation']


async def test_a_failing_filter_refuses(kube, kind, serve):

    @kopf.on.validate(*kind.selector, when=lambda name, **_: name == 'probe' or 1 / 0)
    def check(**_):
        pass

    await serve()
    with pytest.raises(KubeError, match="division by zero") as info:
        await kube.create(kind, 'x')
    assert info.value.status == 500


async def test_dry_runs_are_told(kube, kind, serve, journal, managed):

    @kopf.on.validate(*kind.selector, id='check', side_effects=True, labels={'probe': kopf.ABSENT})
    def check(dryrun, **_):
        journal.append(dryrun)

    await serve()
    await submit(kube, kind, 'x', dry=True)
    await submit(kube, kind, 'x')
    assert journal == [True, False]
    effects = {webhook['name'].partition('.')[0]: webhook['sideEffects']
               for webhook in await get_webhooks(kube, 'validating', managed)}
    assert effects['check'] == 'NoneOnDryRun'


async def test_generated_names_are_seen_as_far_as_they_are_known(kube, kind, serve, journal):

    @kopf.on.validate(*kind.selector, labels={'probe': kopf.ABSENT})
    def check(meta, **_):
        journal.append(meta['generateName'])

    await serve()
    await kube.request('POST', kind.get_path(namespace='default'), body={
        'apiVersion': kind.api_version, 'kind': kind.kind, 'metadata': {'generateName': 'some-'}})
    assert journal == ['some-']


async def test_ignored_failures_let_everything_pass(kube, kind, run):
    operator = await run("""
@kopf.on.validate(*KIND, ignore_failures=True)
def check(warnings, **_):
    warnings.append("Called.")
""")
    operator.kill()
    await wait_ready(kube, kind, ready=False)  # that handler is strict, and not reachable
    with pytest.raises(KubeError, match="failed calling webhook .?.?ready"):
        await submit(kube, kind, 'x', metadata={'labels': {'probe': 'validate'}})
    await submit(kube, kind, 'x')


async def test_strict_webhooks_block_while_the_operator_is_dead_and_not_after_it_is_back(
        kube, kind, run):
    text = """
@kopf.on.validate(*KIND)
def check(**_):
    pass
"""
    operator = await run(text)
    operator.kill()
    with pytest.raises(KubeError, match="failed calling webhook .?.?check.auto"):
        await submit(kube, kind, 'x')
    await run(text)
    await submit(kube, kind, 'x')


async def test_webhooks_are_removed_at_exit_unless_persistent(kube, kind, run, managed):
    operator = await run("""
@kopf.on.validate(*KIND, persistent=True, labels={'kept': kopf.PRESENT})
def kept(**_):
    pass

@kopf.on.validate(*KIND)
def removed(**_):
    pass
""")
    assert operator.stop() == 0
    [webhook] = await get_webhooks(kube, 'validating', managed)
    assert webhook['name'] == f'kept.{managed}'
    assert not (await kube.get(CONFIGURATIONS['mutating'], managed)).get('webhooks')
    await wait_ready(kube, kind, ready=False)
    await submit(kube, kind, 'x')
    with pytest.raises(KubeError, match="failed calling webhook .?.?kept.auto"):
        await submit(kube, kind, 'y', metadata={'labels': {'kept': 'yes'}})


async def test_other_handlers_replace_what_a_dead_operator_has_left(kube, kind, run, managed):
    operator = await run("""
@kopf.on.validate(*KIND)
def one(**_):
    pass
""")
    operator.kill()
    await run("""
@kopf.on.validate(*KIND)
def two(**_):
    pass
""")
    names = {webhook['name'] for webhook in await get_webhooks(kube, 'validating', managed)}
    assert names == {f'two.{managed}', f'ready.{managed}'}
    await submit(kube, kind, 'x')


async def test_an_operator_without_webhooks_removes_what_is_left_under_its_name(
        kube, kind, run, managed, operator):
    (await run("")).kill()
    second = operator(f"""
@kopf.on.startup()
def configure(settings, **_):
    settings.admission.managed = {managed!r}
""")
    await second.wait_for("Reconfiguring the mutating webhook")
    await wait_ready(kube, kind, ready=False)
    for configuration in CONFIGURATIONS.values():
        assert not (await kube.get(configuration, managed)).get('webhooks')


async def test_webhooks_survive_the_end_of_the_handlers_work(kube, kind, run, managed):
    operator = await run("""
import time
@kopf.on.validate(*KIND, persistent=True, labels={'slow': kopf.PRESENT})
def slow(logger, **_):
    logger.info("It is slow.")
    time.sleep(1.0)
""")
    request = asyncio.create_task(submit(kube, kind, 'x', metadata={'labels': {'slow': 'yes'}}))
    await operator.wait_for("It is slow.")
    operator.send(signal.SIGTERM)
    await request
    assert await operator.wait() == 0


async def test_kinds_are_served_when_they_come_and_left_when_they_go(
        kube, make_kind, serve, registry, kind, managed):
    late = Kind.make_unique()

    @kopf.on.validate(*late.selector)
    def check(**_):
        raise kopf.AdmissionError("Not at all.", code=444)

    await serve()
    names = [webhook['name'] for webhook in await get_webhooks(kube, 'validating', managed)]
    assert names == [f'ready.{managed}']
    await make_kind(late)
    deadline = time.monotonic() + 20
    while True:
        try:
            await submit(kube, late, 'x', dry=True)
        except KubeError as e:
            if e.status == 444:
                break
            assert e.status in (404, 429, 405), e
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await kube.delete_kind(late)
    while len(await get_webhooks(kube, 'validating', managed)) > 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_one_function_is_for_several_kinds_with_a_webhook_for_all(
        kube, borrow, kind, serve, journal, managed):
    other = borrow()

    @kopf.on.validate(*kind.selector, id='check', labels={'probe': kopf.ABSENT})
    @kopf.on.validate(*other.selector, id='check', labels={'probe': kopf.ABSENT})
    def check(resource, **_):
        journal.append(resource.plural)

    await serve()
    await kube.create(kind, 'x')
    await kube.create(other, 'x')
    assert journal == [kind.plural, other.plural]
    webhooks = {webhook['name']: webhook
                for webhook in await get_webhooks(kube, 'validating', managed)}
    rules = webhooks[f'check.{managed}']['rules']
    assert {resource for rule in rules for resource in rule['resources']} == {
        kind.plural, other.plural}


async def test_builtin_kinds_are_served(kube, kind, serve, journal):
    unique = f'a{uuid.uuid4().hex[:8]}'

    @kopf.on.mutate('configmaps', labels={'only': unique}, operations=['CREATE'])
    def change(patch, **_):
        patch['data'] = {'key': 'value'}

    await serve()
    obj = await kube.create(CONFIGMAPS, unique, labels={'only': unique})
    await kube.delete(CONFIGMAPS, unique)
    assert obj['data'] == {'key': 'value'}


@pytest.mark.parametrize('id_', [
    'Upper_Case', '_leading', 'a b/c?d#e', 'ünïcode', 'x' * 300, 'a//b', '...', 'a/status.b'])
async def test_any_handler_id_is_made_acceptable(kube, kind, serve, id_):

    @kopf.on.validate(*kind.selector, id=id_)
    def check(name, **_):
        if name != 'probe':
            raise kopf.AdmissionError("It is called.", code=444)

    await serve()
    with pytest.raises(KubeError, match="It is called."):
        await submit(kube, kind, 'x')


async def test_memos_are_those_of_the_objects(kube, kind, serve, journal):

    @kopf.on.event(*kind.selector)
    def fn(memo, name, **_):
        memo.seen = name
        journal.append(('event', name))

    @kopf.on.validate(*kind.selector, labels={'probe': kopf.ABSENT})
    def check(memo, operation, **_):
        journal.append((operation, memo.get('seen'), memo.get('kept')))
        memo.kept = operation

    await serve()
    await kube.create(kind, 'x')
    await journal.wait(('event', 'x'))
    await kube.wait_cached(kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await kube.wait_cached(kind, 'x')
    await kube.delete(kind, 'x')
    assert [entry for entry in journal if entry[0] != 'event'] == [
        ('CREATE', None, None), ('UPDATE', 'x', None), ('DELETE', 'x', 'UPDATE')]


async def test_indices_are_there(kube, kind, serve, journal):

    @kopf.index(*kind.selector, id='index')
    def index(name, **_):
        return {name: name}

    @kopf.on.event(*kind.selector, when=lambda name, **_: name == 'x')
    def seen(**_):
        journal.append('indexed')

    @kopf.on.validate(*kind.selector, labels={'probe': kopf.ABSENT})
    def check(index, name, **_):
        if name == 'y':
            journal.append(sorted(index))

    await kube.create(kind, 'x')
    await serve()
    await journal.wait('indexed')
    await kube.create(kind, 'y')
    assert journal == ['indexed', ['x']]


async def test_the_operator_s_own_writes_go_through_its_webhooks(kube, kind, serve, journal):

    @kopf.on.mutate(*kind.selector)
    def change(patch, **_):
        patch.spec['mutated'] = True

    @kopf.on.create(*kind.selector, id='created')
    def created(spec, **_):
        journal.append(dict(spec))
        return 'result'

    await serve()
    await kube.create(kind, 'x')
    obj = await kube.wait_for(kind, 'x', lambda obj: obj['status']['created'])
    assert journal == [{'mutated': True}]
    assert obj['spec'] == {'mutated': True}


@pytest.mark.parametrize('label', ['deleted', 'reconciled'])
async def test_objects_whose_finalizers_are_dropped_by_a_webhook_are_throttled(
        kube, kind, serve, settings, journal, caplog, label):

    settings.queueing.error_delays = [0.1, 600]

    @kopf.on.mutate(*kind.selector, operations=['UPDATE'])
    def drop(meta, patch, **_):
        journal.append(list(meta.get('finalizers', [])))
        patch.metadata['finalizers'] = []

    @kopf.on.delete(*kind.selector, labels={'for': 'deleted'})
    def delete(**_):
        pass

    @kopf.reconcile(*kind.selector, owns=['configmaps'], labels={'for': 'reconciled'})
    def reconcile(name, **_):  # in another namespace, where no owner reference holds
        return {'apiVersion': 'v1', 'kind': 'ConfigMap',
                'metadata': {'name': name, 'namespace': 'kube-public'}}

    await serve()
    name = f'dropped-{uuid.uuid4().hex[:8]}'
    await kube.create(kind, name, labels={'for': label})
    await journal.wait_until(
        lambda: sum("Throttling for" in text for text in caplog.messages) == 2)
    finalizer = journal[0][0]
    assert journal == [[finalizer]] * 2
    assert f"The change of the finalizer {finalizer} was accepted, but is undone" in caplog.text
    assert not await kube.list_objects(CONFIGMAPS, field_selector=f'metadata.name={name}')


async def test_a_new_client_config_is_applied(kube, kind, embedded, registry, settings, managed):
    moved = asyncio.Event()
    loops = []

    async def server(fn):
        loops.append(asyncio.get_running_loop())
        yield {'url': 'https://127.0.0.1:1/nowhere'}
        await moved.wait()
        async for client_config in kopf.WebhookServer(addr='127.0.0.1')(fn):
            yield client_config

    @kopf.on.validate(*kind.selector)
    def check(**_):
        raise kopf.AdmissionError("It is called.", code=444)

    settings.admission.server = server
    embedded()
    deadline = time.monotonic() + 30
    for status in (500, 444):
        while True:
            try:
                await submit(kube, kind, 'x', dry=True)
            except KubeError as e:
                if e.status == status:
                    break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        loops[0].call_soon_threadsafe(moved.set)


async def test_client_certificates_are_required_where_wanted(
        kube, kind, embedded, registry, settings, tmp_path):
    authority, _ = kopf.WebhookServer.build_certificate(['authority'])
    settings.admission.server = kopf.WebhookServer(
        addr='127.0.0.1', verify_cadata=authority.decode(), verify_mode=ssl.CERT_REQUIRED)

    @kopf.on.validate(*kind.selector)
    def check(**_):
        pass

    embedded()
    deadline = time.monotonic() + 30
    while True:
        try:
            await submit(kube, kind, 'x', dry=True)
        except KubeError as e:
            assert 'certificate' in str(e) or 'EOF' in str(e) or 'reset' in str(e), str(e)
            break
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_handlers_without_a_server_end_the_operator_with_a_line(kind, operator):
    instance = operator("""
@kopf.on.validate(*KIND)
def check(**_):
    pass
""", kind=kind)
    assert await instance.wait() == 1
    assert instance.find("Error: Admission handlers need a server or a tunnel.*'check'")
    assert 'Traceback' not in instance.text


async def test_a_server_that_ends_ends_the_operator(kind, operator):
    instance = operator("""
async def server(fn):
    yield {'url': 'https://127.0.0.1:1/'}

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = server

@kopf.on.validate(*KIND)
def check(**_):
    pass
""", kind=kind)
    assert await instance.wait() == 1
    assert instance.find("Error: The webhook server has ended")
    assert 'Traceback' not in instance.text


async def test_without_rights_the_operator_goes_on_and_says_so(kube, kind, operator, managed):
    text = PRELUDE.format(managed=f'{managed}..test')  # which the API does not accept as a name
    instance = operator(text + """
@kopf.on.event(*KIND)
def fn(name, logger, **_):
    logger.info(f"Here is {name}.")
""", kind=kind)
    await instance.wait_for("Managing of the webhook configurations .* has failed, and will be")
    await kube.create(kind, 'x')
    await instance.wait_for("Here is x.")


async def test_patches_of_random_objects_are_accepted(kube, kind, serve):
    cases = [
        ({'a': {'b/c': 1, '~': 2, '': 3}}, {'a': {'b/c': None, '~': {'x': 1}, '': None}}),
        ({'a': None, 'b': [1, None, {}]}, {'a': {'deep': {'deeper': None}}, 'b': None}),
        ({}, {'-': 1, '0': 2, 'a': {}}),
        ({'list': [1, 2]}, {'list': {'now': 'a dict'}}),
        ({'dict': {'x': 1}}, {'dict': [1]}),
        ({'t': True, 'n': 1, 'f': 1.5, 's': ''}, {'t': 1, 'n': True, 'f': 2, 's': '\ud83d\ude00'}),
        ({'same': 1}, {'same': 1}),
    ]

    @kopf.on.mutate(*kind.selector, operations=['CREATE'], labels={'probe': kopf.ABSENT})
    def change(patch, body, **_):
        patch['spec'] = json.loads(body['metadata']['annotations']['patch'])

    await serve()
    for number, (spec, patch) in enumerate(cases):
        obj = await kube.create(
            kind, f'x{number}', spec=spec, annotations={'patch': json.dumps(patch)})
        expected = kopf.Patch({'spec': patch}).apply({'spec': spec})['spec']
        assert obj['spec'] == json.loads(json.dumps(expected))


async def serve_at(url):
    """Pretend to be a webhook server: no object is reviewed in the test."""
    yield {'url': url}
    await asyncio.Event().wait()


@pytest.mark.parametrize('mode', ['lease', 'shards'])
async def test_only_the_replica_that_works_registers_its_webhooks(
        kube, kind, embedded, managed, mode):
    kopf.on.validate(*kind.selector, id='check')(lambda **_: None)

    def start(who):
        settings = kopf.OperatorSettings()
        settings.admission.server = lambda _: serve_at(f'https://127.0.0.1/{who}')
        settings.admission.managed = managed
        settings.leadership.namespace = 'default'
        settings.leadership.retry_period = 0.5
        settings.leadership.name = managed if mode == 'lease' else None
        settings.sharding.count = 2 if mode == 'shards' else None
        settings.sharding.name = managed
        return embedded(settings=settings, identity=who)

    async def wait_url(who):
        await kube.wait_for(CONFIGURATIONS['validating'], managed, lambda obj: [
            item['clientConfig']['url'] for item in obj.get('webhooks', [])
        ] == ([] if who is None else [f'https://127.0.0.1/{who}/check']))

    one = start('one')
    await wait_url('one')
    two = start('two')
    one.stop()
    await wait_url('two')
    two.stop()
    await wait_url(None)
