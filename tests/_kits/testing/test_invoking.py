import asyncio
import datetime

import pytest

import kopf
from kopf import testing


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


async def test_the_result_is_returned():
    def fn(spec, **_):
        return spec['size'] + 1

    done = await testing.invoke(fn, {'spec': {'size': 1}})
    assert (done.result, done.error, done.delay, done.succeeded) == (2, None, None, True)


async def test_the_result_goes_to_the_status():
    async def fn(**_):
        return {'a': 'b'}

    done = await testing.invoke(fn, {'status': {'x': 'y'}})
    assert list(done.body['status'].values()) == ['y', {'a': 'b'}]


async def test_the_patch_is_kept_and_applied():
    def fn(patch, **_):
        patch.spec['size'] = 2
        patch.fns.append(lambda body: body['spec'].update(color='red'))

    done = await testing.invoke(fn, {'spec': {'size': 1}})
    assert done.patch == {'spec': {'size': 2}}
    assert done.body['spec'] == {'size': 2, 'color': 'red'}


async def test_permanent_errors_are_failures():
    def fn(**_):
        raise kopf.PermanentError("boo")

    done = await testing.invoke(fn)
    assert isinstance(done.error, kopf.PermanentError)
    assert (done.failed, done.delay) == (True, None)


@pytest.mark.parametrize(('error', 'delay'), [
    (kopf.TemporaryError("boo", delay=7), 7), (kopf.TemporaryError("boo", delay=None), 0),
    (ValueError("boo"), 60)])
async def test_other_errors_are_tried_again(error, delay):
    async def fn(**_):
        raise error

    done = await testing.invoke(fn)
    assert (done.error, done.delay, done.failed) == (error, delay, False)


async def test_a_handler_is_called_as_it_was_declared(registry):
    @kopf.on.update('things', field='spec.size', param='p', retries=2, registry=registry)
    def fn(old, new, diff, param, reason, **_):
        return [old, new, len(diff), param, reason]

    done = await testing.invoke(
        fn, {'spec': {'size': 2}}, old={'spec': {'size': 1}}, registry=registry)
    assert done.result == [1, 2, 1, 'p', 'update']
    done = await testing.invoke(fn, {'spec': {'size': 2}}, retry=2, registry=registry)
    assert isinstance(done.error, kopf.HandlerRetriesError)


async def test_the_reason_tells_as_what_it_is_called(registry):
    @kopf.on.create('things', param='c', registry=registry)
    @kopf.on.delete('things', param='d', registry=registry)
    def fn(param, reason, **_):
        return [param, reason]

    for reason in ('create', 'delete'):
        done = await testing.invoke(fn, reason=reason, registry=registry)
        assert done.result == [reason[0], reason]


async def test_the_reason_tells_which_decorator_applies_among_those_of_any_changes(registry):
    @kopf.daemon('things', param='daemon', registry=registry)
    @kopf.on.create('things', param='create', registry=registry)
    @kopf.on.field('things', field='spec', param='field', registry=registry)
    @kopf.on.resume('things', param='resume', registry=registry)
    def fn(param, **kwargs):
        return [param, 'stopped' in kwargs]

    for reason in ('daemon', 'create', 'field', 'resume'):
        done = await testing.invoke(fn, reason=reason, registry=registry)
        assert done.result == [reason, reason == 'daemon']


async def test_all_the_kwargs_are_there():
    def fn(**kwargs):
        return sorted(kwargs)

    done = await testing.invoke(fn)
    assert done.result == sorted([
        'annotations', 'body', 'diff', 'labels', 'logger', 'memo', 'meta', 'name', 'namespace',
        'new', 'old', 'param', 'patch', 'reason', 'resource', 'retry', 'runtime', 'spec',
        'started', 'status', 'uid'])


@pytest.mark.parametrize('api_version, kind, plural', [
    ('networking.k8s.io/v1', 'Ingress', 'ingresses'),
    ('autoscaling/v1', 'HorizontalPodAutoscaler', 'horizontalpodautoscalers'),
    ('example.com/v1beta1', 'Website', 'websites'),
])
async def test_handlers_get_the_resource_of_the_object(registry, api_version, kind, plural):
    @kopf.on.create(plural, registry=registry)
    def fn(resource, **_):
        return resource.api_version, resource.plural, resource.namespaced

    done = await testing.invoke(fn, {'apiVersion': api_version, 'kind': kind}, registry=registry)
    assert done.result == [api_version, plural, True]  # as it is stored
    found = testing.explain({'apiVersion': api_version, 'kind': kind}, registry=registry)
    assert found.handlers[0].is_called


async def test_explained_objects_are_of_their_versions(registry):
    @kopf.on.create('example.com', 'v1beta1', 'websites', registry=registry)
    def fn(**_):
        pass

    for version, is_called in [('v1beta1', True), ('v1', False)]:
        found = testing.explain(
            {'apiVersion': f'example.com/{version}', 'kind': 'Website'}, registry=registry)
        assert found.handlers[0].is_called == is_called


async def test_kwargs_can_be_replaced():
    def fn(index, name, **_):
        return [index, name]

    assert (await testing.invoke(fn, index={'a': 1}, name='x')).result == [{'a': 1}, 'x']


async def test_the_runtime_counts_for_the_timeout(registry):
    @kopf.on.create('things', timeout=10, registry=registry)
    def fn(runtime, **_):
        return runtime >= datetime.timedelta(seconds=9)

    assert (await testing.invoke(fn, runtime=9, registry=registry)).result is True
    done = await testing.invoke(fn, runtime=10, registry=registry)
    assert isinstance(done.error, kopf.HandlerTimeoutError)


async def test_sub_handlers_are_called_too():
    def fn(**_):
        @kopf.subhandler(id='sub')
        def sub(**_):
            return 1

    done = await testing.invoke(fn)
    assert [key.rpartition('/')[2] for key in done.body['status']] == ['sub']


async def test_the_log_and_the_events_are_kept():
    def fn(logger, body, **_):
        logger.info("hello")
        kopf.event(body, type='Normal', reason='Why', message='what')

    done = await testing.invoke(fn, {'metadata': {'name': 'x'}})
    assert "[default/x] hello" in done.log
    assert [(event.type, event.reason, event.message) for event in done.events] == [
        ('Normal', 'Why', 'what')]


async def test_an_event_handler_gets_its_type(registry):
    @kopf.on.event('things', registry=registry)
    def fn(type, event, **_):
        return [type, event['type'], event['object']['metadata']['name']]

    done = await testing.invoke(
        fn, {'metadata': {'name': 'x'}}, type='DELETED', registry=registry)
    assert done.result == ['DELETED', 'DELETED', 'x']


async def test_activities_get_the_settings(registry):
    @kopf.on.startup(registry=registry)
    async def fn(settings, **_):
        settings.posting.enabled = False

    settings = kopf.OperatorSettings()
    assert (await testing.invoke(fn, settings=settings, registry=registry)).succeeded
    assert settings.posting.enabled is False


async def test_admission_is_allowed_with_a_patch_and_warnings(registry):
    @kopf.on.mutate('things', registry=registry)
    def fn(patch, warnings, userinfo, operation, **_):
        patch.spec['by'] = userinfo['username']
        warnings.append(operation)

    done = await testing.invoke(fn, registry=registry, operation='UPDATE')
    assert (done.allowed, done.warnings, done.patch) == (
        True, ['UPDATE'], {'spec': {'by': 'tester'}})


async def test_admission_is_denied_by_errors(registry):
    @kopf.on.validate('things', registry=registry)
    def fn(**_):
        raise kopf.AdmissionError("no", code=418)

    done = await testing.invoke(fn, registry=registry)
    assert done.allowed is False
    assert (str(done.error), done.error.code) == ("no", 418)


@pytest.mark.parametrize(('given', 'expected'), [
    ({}, ['CREATE', None, {'size': 2}]),
    ({'old': {'spec': {'size': 1}}}, ['UPDATE', {'size': 1}, {'size': 2}]),
    ({'operation': 'DELETE'}, ['DELETE', {'size': 2}, None]),
])
async def test_admission_handlers_get_whole_objects_before_and_after(registry, given, expected):
    @kopf.on.validate('things', field='spec.size', registry=registry)
    def fn(operation, old, new, **kwargs):
        return [operation, old and old['spec'], new and new['spec'], 'reason' in kwargs]

    done = await testing.invoke(fn, {'spec': {'size': 2}}, registry=registry, **given)
    assert done.result == [*expected, False]


async def test_sub_handlers_are_for_changes_only(registry):
    @kopf.timer('things', registry=registry)
    async def fn(**_):
        await kopf.execute(fns={'sub': lambda **_: None})

    done = await testing.invoke(fn, registry=registry)
    assert isinstance(done.error, RuntimeError)


async def test_patches_of_sub_handlers_are_kept_too(registry):
    def fn(patch, **_):
        patch.spec['size'] = 2

        @kopf.subhandler(id='sub')
        def sub(patch, **_):
            patch.spec['color'] = 'red'

    assert (await testing.invoke(fn)).patch == {'spec': {'size': 2, 'color': 'red'}}


async def test_patches_that_are_not_json_are_failures():
    def fn(patch, **_):
        patch.spec['size'] = object()

    done = await testing.invoke(fn, {'spec': {'size': 1}})
    assert (done.failed, done.patch, done.body['spec']) == (True, {}, {'size': 1})


async def test_daemons_see_that_they_are_not_stopped(registry):
    @kopf.daemon('things', registry=registry)
    async def fn(stopped, **_):
        await stopped.wait(0)
        return bool(stopped)

    assert (await testing.invoke(fn, registry=registry)).result is False


def test_sync_tests_have_a_way_too():
    async def fn(**_):
        await asyncio.sleep(0)
        return 1

    assert testing.invoke_sync(fn).result == 1


CONFIGMAP = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'a': 'b'}}


async def test_reconcilers_give_the_children_that_would_be_applied(registry):
    @kopf.reconcile('things', owns=['configmaps'], registry=registry)
    def fn(**_):
        yield {**CONFIGMAP, 'metadata': {'name': 'child'}}

    done = await testing.invoke(fn, {'metadata': {'uid': 'uid'}}, registry=registry)
    child, = done.children
    assert child['data'] == {'a': 'b'} and child['metadata']['name'] == 'child'
    assert child['metadata']['namespace'] == 'default'
    assert child['metadata']['labels']['kopf.dev/owner'] == 'uid'
    assert [ref['uid'] for ref in child['metadata']['ownerReferences']] == ['uid']


async def test_the_reason_of_reconcilers_is_to_reconcile(registry):
    @kopf.reconcile('things', registry=registry)
    def fn(reason, patch, **_):
        patch.status['reason'] = reason

    done = await testing.invoke(fn, registry=registry)
    assert done.patch == {'status': {'reason': kopf.Reason.RECONCILE}}
    assert kopf.Reason.RECONCILE == 'reconcile'


async def test_other_handlers_give_no_children():
    done = await testing.invoke(lambda **_: [CONFIGMAP])
    assert done.children == []


async def test_reconcilers_see_the_given_children(registry):
    @kopf.reconcile('things', owns=['deployments'], registry=registry)
    async def fn(children, patch, **_):
        child = children.get('deployments', 'example')
        patch.status['seen'] = [child.spec['replicas'], child.status['readyReplicas']]

    done = await testing.invoke(fn, registry=registry, children=[{
        'apiVersion': 'apps/v1', 'kind': 'Deployment', 'spec': {'replicas': 2},
        'status': {'readyReplicas': 1}}])
    assert done.error is None and done.patch == {'status': {'seen': [2, 1]}}


@pytest.mark.parametrize(('result', 'text'), [
    ([{}], "A manifest needs apiVersion and kind: {}"),
    ([{**CONFIGMAP, 'kind': 'Secret'}], "Secret of v1 is not among the owned kinds"),
])
async def test_wrong_manifests_are_errors_of_reconcilers(registry, result, text):
    @kopf.reconcile('things', owns=['configmaps'], registry=registry)
    def fn(**_):
        return [*result, CONFIGMAP]

    done = await testing.invoke(fn, registry=registry)
    assert str(done.error).startswith(text) and len(done.children) == 1
    assert (done.delay, done.failed) == (0.005, False)


async def test_manifests_of_custom_kinds_need_no_cluster(registry):
    @kopf.reconcile('things', owns=['policies'], registry=registry)
    def fn(**_):
        return {'apiVersion': 'example.com/v1', 'kind': 'Policy'}

    done = await testing.invoke(fn, registry=registry, reason='reconcile')
    assert [child['kind'] for child in done.children] == ['Policy']
