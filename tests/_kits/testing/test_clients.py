import contextlib
import copy

import pytest
import yaml

import kopf
from kopf.testing import (
    APIError,
    Fault,
    Session,
    open_api,
    run_sandbox,
    virtual_time,
    wait_for_sync,
)

OBJ = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'obj'}}


@pytest.fixture()
def session(crd):
    with Session('sandbox') as session:
        session.client.load(crd)
        yield session


@pytest.fixture()
def client(session):
    return session.client


@pytest.mark.parametrize('kind', [
    'kopfexamples', 'kopfexample', 'KopfExample', 'kopfexamples.kopf.dev',
    'kopfexamples.v1.kopf.dev', ('kopf.dev', 'v1', 'kopfexamples'), OBJ])
def test_kinds_are_named_as_in_decorators(client, kind):
    client.create(OBJ)
    assert client.get(kind, 'obj')['kind'] == 'KopfExample'
    assert [item['metadata']['name'] for item in client.list(kind)] == ['obj']


def test_unknown_kinds_are_told(client):
    with pytest.raises(LookupError, match=r"The API serves no absents\. Load its"):
        client.get('absents', 'obj')


def test_objects_are_made_of_names_and_fields(client):
    obj = client.create('kopfexamples', 'obj', spec={'a': 1}, metadata={'labels': {'b': 'c'}})
    assert obj['metadata']['labels'] == {'b': 'c'}
    assert obj['metadata']['namespace'] == 'default'
    assert (obj['kind'], obj['spec']) == ('KopfExample', {'a': 1})


def test_objects_stand_for_themselves(client):
    obj = client.create(OBJ)
    assert client.patch(obj, {'spec': {'a': 1}})['spec'] == {'a': 1}
    assert client.get(obj)['spec'] == {'a': 1}
    client.delete(obj)
    client.wait_gone(obj)


def test_namespaces_are_chosen(client):
    client.create('namespaces', 'other')
    client.create('kopfexamples', 'obj', namespace='other')
    client.create('kopfexamples', 'obj', metadata={'labels': {'a': 'b'}})
    assert len(client.list('kopfexamples')) == 2
    assert len(client.list('kopfexamples', namespace='other')) == 1
    assert len(client.list('kopfexamples', labels={'a': 'b'})) == 1


def test_errors_have_the_status(client):
    with pytest.raises(APIError, match=r'kopfexamples.kopf.dev "obj" not found') as info:
        client.get('kopfexamples', 'obj')
    assert info.value.status == 404


def test_any_request_can_be_made(client):
    assert client.request('GET', '/version')['major'] == '1'


def test_waiting_gives_the_object(client):
    client.create(OBJ)
    assert client.wait('kopfexamples', 'obj')['metadata']['name'] == 'obj'


@pytest.mark.parametrize('result', [True, False])
def test_conditions_can_be_async(client, result):
    async def is_ready(obj):
        return result

    client.create(OBJ)
    with contextlib.nullcontext() if result else pytest.raises(AssertionError, match="is_ready"):
        client.wait('kopfexamples', 'obj', is_ready)


def test_waiting_in_vain_tells_the_object_as_it_is(client):
    client.create('kopfexamples', 'obj', spec={'a': 1})
    with pytest.raises(AssertionError) as info:
        client.wait('kopfexamples', 'obj', lambda obj: obj['spec']['a'] == 2, timeout=5)
    assert "kopfexamples 'obj' has not met the condition in 5 seconds" in str(info.value)
    assert "obj['spec']['a'] == 2" in str(info.value)
    assert "spec:\n  a: 1" in str(info.value)


def test_waiting_in_vain_for_what_is_absent_says_so(client):
    with pytest.raises(AssertionError, match="5 seconds: exists\nLast seen: no such object"):
        client.wait('kopfexamples', 'obj', timeout=5)


def test_waiting_in_vain_for_an_unknown_kind_says_so(client):
    unknown = "The API serves no wrong. Load its CustomResourceDefinition first"
    with pytest.raises(AssertionError, match=f"Last seen: {unknown}"):
        client.wait('wrong', 'obj', timeout=5)
    with pytest.raises(AssertionError, match=f"Last seen:\n{unknown}"):
        client.wait_gone('wrong', 'obj', timeout=5)


def test_files_are_loaded_kinds_first(tmp_path, crd):
    path = tmp_path / 'all.yaml'
    path.write_text(yaml.safe_dump_all([OBJ, crd]))
    with Session('sandbox') as session:
        loaded = session.client.load(path)
        assert [obj['kind'] for obj in loaded] == ['CustomResourceDefinition', 'KopfExample']
        assert session.client.load(path)[1]['metadata']['name'] == 'obj'


@virtual_time
async def test_what_was_created_is_cleaned_up(crd):
    async with open_api('sandbox') as api:
        await api.client.load(crd, OBJ)
        await api.client.clean_up()
        await api.client.wait_gone(crd)


@virtual_time
async def test_what_cannot_be_deleted_keeps_nothing_else_from_being_deleted(crd):
    async with open_api('sandbox') as api:
        await api.client.load(crd, OBJ)
        await api.client.create('configmaps', 'kept')
        await api.client.create('configmaps', 'gone')
        api.sandbox.faults.add(Fault(action='refuse', status=403, verb='delete', name='kept'))
        with pytest.raises(ExceptionGroup) as info:
            await api.client.clean_up()
        assert [e.status for e in info.value.exceptions] == [403]
        assert [obj['metadata']['name'] for obj in await api.client.list('configmaps')] == ['kept']
        await api.client.wait_gone(crd)


@virtual_time
async def test_definitions_that_serve_nothing_are_errors_that_name_them(crd):
    unserved = copy.deepcopy(crd)
    for version in unserved['spec']['versions']:
        version['served'] = False
    async with open_api('sandbox') as api:
        with pytest.raises(ValueError, match=r"^kopfexamples.kopf.dev serves no version: set serv"):
            await api.client.load(unserved)
        await api.client.clean_up()
        await api.client.wait_gone(crd)


def test_what_finalizers_keep_is_cleaned_up_on_a_real_api(crd, tmp_path):
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = 'example.com/mine'

    @kopf.on.create('kopfexamples', registry=registry, id='copy')
    async def copy(name, body, **_):
        if name == 'obj':
            await kopf.apply({**OBJ, 'metadata': {'name': 'copy', 'namespace': 'default'}})

    @kopf.on.delete('kopfexamples', registry=registry)
    def release(**_):
        pass

    with run_sandbox() as sandbox:
        sandbox.write_kubeconfig(tmp_path / 'kubeconfig')
        for _ in range(2):
            with Session(str(tmp_path / 'kubeconfig')) as session:
                session.client.load(crd, OBJ)
                session.start_operator(registry=registry, settings=settings)
                session.client.wait(
                    'kopfexamples', 'copy', lambda obj: obj['metadata']['finalizers'])
            assert not sandbox.client.list('customresourcedefinitions')


def test_lists_and_namespaces_are_loaded_before_what_is_in_them(session, tmp_path):
    path = tmp_path / 'list.yaml'
    path.write_text(yaml.safe_dump({'apiVersion': 'v1', 'kind': 'List', 'items': [
        {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x', 'namespace': 'ns'}},
        {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ns'}}]}))
    assert [obj['kind'] for obj in session.client.load(path)] == ['Namespace', 'ConfigMap']


def test_a_sandbox_in_a_thread_is_used_by_anybody(crd, tmp_path):
    with run_sandbox() as sandbox:
        sandbox.client.load(crd)
        sandbox.client.create(OBJ)
        sandbox.write_kubeconfig(tmp_path / 'kubeconfig')
        with Session(str(tmp_path / 'kubeconfig')) as session:
            assert session.sandbox is None
            assert session.client.get('kopfexamples', 'obj')
            session.client.create('kopfexamples', 'another')
        wait_for_sync(lambda: len(sandbox.client.list('kopfexamples')) == 1)


def test_the_time_of_a_session_goes_on_demand(session):
    assert session.time.now < 1
    session.time.sleep(3600)
    assert 3600 <= session.time.now < 3601
    assert session.time.wait_for(lambda: session.time.now > 7200, timeout=9999)


@virtual_time
async def test_the_errors_of_handlers_are_shown_until_they_succeed(crd):
    registry = kopf.OperatorRegistry()

    @kopf.on.delete('kopfexamples', registry=registry, id='release')
    async def release(name, retry, **_):
        if name == 'failing' or not retry:
            raise kopf.TemporaryError("It is in use.", delay=1)

    async with open_api('sandbox') as api:
        await api.client.load(crd)
        async with api.operator(registry=registry):
            for name in ('failing', 'retried'):
                await api.client.create('kopfexamples', name)
                await api.client.wait(
                    'kopfexamples', name, lambda obj: obj['metadata']['finalizers'])
                await api.client.delete('kopfexamples', name)
            with pytest.raises(AssertionError) as info:
                await api.client.wait_gone('kopfexamples', 'failing', timeout=5)
    lines = str(info.value).splitlines()
    assert lines[:2] == [
        "[default/failing] Handler 'release' failed temporarily: It is in use. "
        "(will try again in 1 second)",
        "kopfexamples 'failing' still exists after 5 seconds."]
    assert "retried" not in str(info.value)
    assert "managedFields" not in str(info.value)
