"""What a handler of `kopf.reconcile` would do is shown by `kopf.testing.invoke`."""
import pytest

import kopf
from kopf import testing

CONFIGMAP = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'a': 'b'}}


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


async def preview(registry, wanted, children=(), **options):
    @kopf.reconcile('things', owns=['configmaps', 'clusterroles'], registry=registry, **options)
    def fn(**_):
        return wanted

    return await testing.invoke(
        fn, {'metadata': {'uid': 'uid'}}, registry=registry, children=children)


async def test_children_that_are_not_given_would_be_created(registry):
    role = {'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': 'ClusterRole', 'rules': []}
    done = await preview(registry, [CONFIGMAP, role])
    assert (done.created, done.changed, done.deleted) == (
        ['ConfigMap default/example', 'ClusterRole example'], {}, [])


async def test_children_that_are_as_they_should_be_would_be_left_alone(registry):
    done = await preview(registry, CONFIGMAP, [{**CONFIGMAP, 'status': {'x': 'y'}}])
    assert (done.created, done.changed, done.deleted) == ([], {}, [])
    assert len(done.children) == 1


async def test_children_that_were_wanted_before_are_left_alone_as_they_are(registry):
    before = await preview(registry, CONFIGMAP)
    done = await preview(kopf.OperatorRegistry(), CONFIGMAP, before.children)
    assert (done.created, done.changed, done.deleted) == ([], {}, [])


async def test_the_differences_of_given_children_are_shown(registry):
    given = {**CONFIGMAP, 'data': {'a': 'x', 'c': 'd'}}
    done = await preview(registry, CONFIGMAP, [given])
    assert (done.created, done.deleted) == ([], [])
    assert {name: set(diff) for name, diff in done.changed.items()} == {
        'ConfigMap default/example': {
            ('change', ('data', 'a'), 'x', 'b'), ('remove', ('data', 'c'), 'd', None)}}


async def test_given_children_that_are_not_wanted_would_be_deleted(registry):
    done = await preview(registry, [], [CONFIGMAP])
    assert (done.created, done.changed, done.deleted) == ([], {}, ['ConfigMap default/example'])


@pytest.mark.parametrize(('wanted', 'options'), [
    (None, {}), ([], {'prune': False}), ([{}], {}),
], ids=['of those that manage by themselves', 'without pruning', 'after errors'])
async def test_given_children_would_be_kept(registry, wanted, options):
    done = await preview(registry, wanted, [CONFIGMAP], **options)
    assert done.deleted == []


async def test_children_that_are_being_deleted_would_be_left_alone(registry):
    given = {**CONFIGMAP, 'data': {}, 'metadata': {'deletionTimestamp': '2020-01-01T00:00:00Z'}}
    done = await preview(registry, CONFIGMAP, [given])
    assert (done.created, done.changed, done.deleted) == ([], {}, [])


@pytest.mark.parametrize(('options', 'delay', 'failed'), [
    ({'errors': kopf.ErrorsMode.PERMANENT}, None, True),
    ({'retries': 1}, None, True),
    ({'retries': 2}, 0.005, False),
    ({'errors': kopf.ErrorsMode.IGNORED}, None, False),
])
async def test_wrong_manifests_are_judged_as_errors_of_the_handler(
        registry, options, delay, failed):
    done = await preview(registry, [{}], **options)
    assert (done.delay, done.failed) == (delay, failed)
    assert any("A manifest needs apiVersion and kind: {}" in line for line in done.log)
