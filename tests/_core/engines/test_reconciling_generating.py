"""
Generated values: made once, when they are absent. In virtual time, on the sandbox.
"""
import asyncio
import base64
import logging
import re

import pytest

import kopf
from kopf import testing
from kopf._core.engines.reconciling import desired, generating
from kopf._kits.sandbox.faults import Fault
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


class Maker:
    """Makes another value each time."""

    def __init__(self):
        self.made = []

    def __call__(self):
        self.made.append(f'word-{len(self.made) + 1}')
        return self.made[-1]


@pytest.fixture()
def make():
    return Maker()


@pytest.fixture()
def registry(make):
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('kopfexamples', owns=['secrets'], id='fn', registry=registry)
    async def fn(spec, **_):
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'child'},
               'stringData': {'word': kopf.generated(make)},
               'data': {'n': base64.b64encode(str(spec.get('n')).encode()).decode()}}

    return registry


def read(secret, key='word'):
    return base64.b64decode(secret['data'][key]).decode()


def list_managers(obj):
    return [(entry['manager'], entry['operation']) for entry in obj['metadata']['managedFields']]


@testing.virtual_time
async def test_a_value_is_made_at_the_creation_and_stays(registry, make):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            secret = await api.client.wait('secrets', 'child', timeout=5)
            assert read(secret) == 'word-1'
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            secret = await api.client.wait(
                'secrets', 'child', lambda obj: read(obj, 'n') == '2', timeout=5)
            assert read(secret) == 'word-1'
            assert list_managers(secret) == [('kopf/fn', 'Apply')]
        assert make.made == ['word-1']


@testing.virtual_time
async def test_at_rest_and_after_a_restart_nothing_is_written(registry, make):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        for _ in range(2):
            async with api.operator(registry=registry):
                if not make.made:
                    await api.client.create('kopfexamples', 'parent', spec={'n': 1})
                secret = await api.client.wait('secrets', 'child', timeout=5)
                await asyncio.sleep(100)
                assert await api.client.get('secrets', 'child') == secret
        assert make.made == ['word-1']


@testing.virtual_time
async def test_the_next_call_sees_the_value(registry, make):
    seen = []

    @kopf.reconcile('kopfexamples', registry=registry)
    async def reader(children, **_):
        child = children.get('secrets', 'child')
        seen.append(child and base64.b64decode(child['data']['word']).decode())

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await api.client.wait('secrets', 'child', timeout=5)
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            await asyncio.sleep(10)
    assert seen[-1] == 'word-1'


@testing.virtual_time
async def test_values_are_in_any_field_of_any_kind_and_can_be_made_slowly(registry):
    async def make():
        await asyncio.sleep(1)
        return 'slow'

    @kopf.reconcile('kopfexamples', owns=['configmaps', 'kopfexamples'], registry=registry,
                    labels={'l': 'v'})
    async def fn(name, **_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
            'name': 'child', 'annotations': {'a': kopf.generated(make)}}}
        yield {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {
            'name': f'{name}-nested', 'labels': {'l': kopf.generated(lambda: 'other')}},
            'spec': {'a': {'b': kopf.generated(lambda: {'c': [1, 2]}), 'd': 'e'}}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create(
                'kopfexamples', 'parent', spec={'n': 1}, metadata={'labels': {'l': 'v'}})
            obj = await api.client.wait('configmaps', 'child', timeout=5)
            assert obj['metadata']['annotations']['a'] == 'slow'
            obj = await api.client.wait('kopfexamples', 'parent-nested', timeout=5)
            assert obj['spec'] == {'a': {'b': {'c': [1, 2]}, 'd': 'e'}}


@testing.virtual_time
async def test_applied_manifests_can_have_values(registry, make):
    words = []

    @kopf.on.update('kopfexamples', registry=registry)
    @kopf.on.create('kopfexamples', registry=registry)
    async def apply_fn(spec, **_):
        obj = await kopf.apply({
            'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {
                'name': 'applied', 'namespace': 'default', 'labels': {'n': str(spec['n'])}},
            'stringData': {'word': kopf.generated(lambda: f'{make()}-applied')}})
        words.append(read(obj))

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            for n in range(3):
                await (api.client.patch('kopfexamples', 'parent', {'spec': {'n': n}}) if n else
                       api.client.create('kopfexamples', 'parent', spec={'n': n}))
                secret = await api.client.wait(
                    'secrets', 'applied', lambda obj: obj['metadata']['labels']['n'] == str(n))
            await asyncio.sleep(1)
    assert len(words) == 3 and {*words} == {read(secret)}


@pytest.mark.parametrize(('kind', 'fail', 'message'), [
    ('ConfigMap', lambda: 1 / 0, "ZeroDivisionError('division by zero')"),
    ('ConfigMap', lambda: None, "TypeError('the function has returned None')"),
    ('ConfigMap', lambda: {'not', 'JSON'}, "TypeError('Object of type set is not JSON "),
    ('ConfigMap', lambda: float('nan'), "ValueError('Out of range float values"),
    ('Secret', lambda: None, "TypeError('the function has returned None')"),
    ('Secret', lambda: 1, "TypeError('a string or bytes are needed, not int')"),
    ('Secret', lambda: 'hidden\udc80', "ValueError('the string cannot be encoded')"),
])
@testing.virtual_time
async def test_a_failing_function_fails_its_handler_only(registry, kind, fail, message, caplog):
    @kopf.reconcile('kopfexamples', owns=['configmaps', 'secrets'], registry=registry)
    async def failing(**_):
        yield {'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': 'failing'},
               'data': {'word': kopf.generated(fail)}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await operator.wait_log(re.escape(f"data.word cannot be generated: {message}"))
            await api.client.wait('secrets', 'child', timeout=5)
    assert 'hidden' not in caplog.text


@testing.virtual_time
async def test_a_resource_with_values_is_not_recreated(registry, make):
    @kopf.reconcile('kopfexamples', owns=['secrets'], recreate=True, registry=registry)
    async def fn(spec, **_):
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'immutable'},
               'stringData': {'word': kopf.generated(lambda: f'{make()}-immutable')},
               'immutable': True, 'data': {'n': base64.b64encode(b'%d' % spec['n']).decode()}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            secret = await api.client.wait('secrets', 'immutable', timeout=5)
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            await operator.wait_log(r"Secret default/immutable: .*: data \(FieldValueForbidden\)")
            await asyncio.sleep(10)
            assert await api.client.get('secrets', 'immutable') == secret


@pytest.mark.parametrize('metadata', [{'name': 'child'}, {'name': 'child', 'labels': {'!': '?'}}])
@testing.virtual_time
async def test_values_are_not_logged(registry, caplog, metadata):
    @kopf.reconcile('kopfexamples', owns=['configmaps', 'secrets'], registry=registry)
    async def fn(**_):
        manifests = [
            {'apiVersion': 'v1', 'kind': kind, 'metadata': metadata,
             'data': {'word': kopf.generated(lambda: 'super-secret')}}
            for kind in ('ConfigMap', 'Secret')]
        logging.getLogger('test').info(f"{manifests!r}")
        return manifests

    caplog.set_level(0)
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        api.sandbox.faults.add(Fault(action='refuse', verb='create', status=500, count=2))
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await asyncio.sleep(30)
    encoded = base64.b64encode(b'super-secret').decode()
    assert 'super-secret' not in caplog.text and encoded not in caplog.text


@testing.virtual_time
@pytest.mark.parametrize('value', ['not valid!', 'not valid"', 'not valid\n', 'not valid\\'])
async def test_values_are_not_in_the_messages_of_the_api(value, registry):
    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(**_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
            'name': 'child', 'labels': {'l': kopf.generated(lambda: value)}}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            [line, *_] = await operator.wait_log('ConfigMap default/child: .*Invalid')
            assert 'HTTP 422, Invalid: metadata.labels (FieldValueInvalid). ' in line
            assert 'not valid' not in operator.text


@testing.virtual_time
async def test_messages_of_the_api_to_repeated_requests_are_not_logged(registry, caplog):
    caplog.set_level(0)
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        api.sandbox.faults.add(
            Fault(action='refuse', verb='create', resource='secrets', status=500, count=99))
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await operator.wait_log("Secret default/child: HTTP 500, ", timeout=300)
    assert 'attempt #' not in caplog.text


# Placeholders.

def manifest(**fields):
    return {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'child'}, **fields}


def test_placeholders_of_secrets_are_in_the_data_with_base64():
    one, two = kopf.generated(str), kopf.generated(str)
    content, fields = desired.read(manifest(stringData={'a': one}, data={'b': two, 'c': 'MQ=='}))
    shown = base64.b64encode(b'generated by Kopf').decode()
    assert content == manifest(data={'a': shown, 'b': shown, 'c': 'MQ=='})
    assert fields == {('data', 'a'): one, ('data', 'b'): two}


def test_other_values_of_secrets_stay_where_they_are():
    content, _ = desired.read(manifest(stringData={'a': kopf.generated(str), 'b': 'text'}))
    assert content['stringData'] == {'b': 'text'}


@pytest.mark.parametrize(('content', 'message'), [
    ({'metadata': {'name': kopf.generated(str)}}, 'metadata.name cannot be generated'),
    ({'metadata': kopf.generated(str)}, 'metadata cannot be generated'),
    ({'kind': kopf.generated(str)}, 'kind cannot be generated'),
    ({'spec': {'items': [{'key': kopf.generated(str)}]}}, 'in the list spec.items'),
    ({'spec': [[kopf.generated(str)]]}, 'in the list spec'),
])
def test_some_places_cannot_have_values(content, message):
    with pytest.raises(Exception, match=message):
        desired.read(manifest(**content))


def test_a_value_is_no_part_of_a_string():
    with pytest.raises(TypeError, match='as a whole'):
        f"postgres://user:{kopf.generated(str)}@host"
    assert str(kopf.generated(str)) == '<generated by Kopf>'


def test_previews_have_placeholders(registry):
    outcome = testing.invoke_sync(
        registry._reconciling._handlers[0].fn, {'spec': {'n': 1}}, registry=registry)
    assert [child['metadata']['name'] for child in outcome.children] == ['child']
    assert base64.b64decode(outcome.children[0]['data']['word']) == b'generated by Kopf'


@testing.virtual_time
async def test_a_rotation_that_is_asked_for_during_the_creation_is_not_lost(
        registry, make, monkeypatch):
    claim = generating.claim

    async def claim_late(client, **options):
        if len(make.made) == 1:
            await api.client.patch(
                'secrets', 'child', {'metadata': {'annotations': {'kopf.dev/rotate': 'now'}}})
        return await claim(client, **options)

    monkeypatch.setattr(generating, 'claim', claim_late)
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent')
            secret = await api.client.wait(
                'secrets', 'child', lambda obj: read(obj) == 'word-2', timeout=5)
            assert secret['metadata']['annotations']['kopf.dev/rotate'] == 'false'


@testing.virtual_time
async def test_a_rotation_that_is_asked_for_before_the_adoption_is_not_lost(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create('secrets', 'child', metadata={
            'annotations': {'kopf.dev/rotate': 'now'}},
            data={'word': base64.b64encode(b'old').decode()})
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            secret = await api.client.wait(
                'secrets', 'child', lambda obj: read(obj) == 'word-1', timeout=5)
            assert secret['metadata']['annotations']['kopf.dev/rotate'] == 'false'


@testing.virtual_time
async def test_a_rotation_that_is_asked_for_where_nothing_is_generated_calls_nothing_again():
    calls, registry = [], kopf.OperatorRegistry()

    @kopf.reconcile('kopfexamples', owns=['secrets'], registry=registry)
    async def fn(spec, **_):
        calls.append(spec.get('n'))
        return {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'child'},
                'stringData': {'word': f'another-{len(calls)}'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await api.client.wait('secrets', 'child', timeout=5)
            await api.client.patch(
                'secrets', 'child', {'metadata': {'annotations': {'kopf.dev/rotate': 'now'}}})
            await asyncio.sleep(10)
            calls.clear()
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            await asyncio.sleep(100)
    assert calls == [2]


def test_the_function_is_needed_and_not_its_result():
    with pytest.raises(TypeError, match="without calling it") as error:
        kopf.generated('secret')
    assert "'secret'" not in str(error.value)
