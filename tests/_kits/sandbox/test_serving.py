"""The API over HTTP: what is special about the wire; all else is in the conformance suite."""
import asyncio

import aiohttp
import pytest

from kopf._kits.sandbox.server import Sandbox
from tests._kits.sandbox.conftest import CMS, Http, cm, toy


async def test_an_object_lives_through_all_verbs(http):
    assert (await http('POST', CMS, cm('a', data={'x': '1'}))).status == 201
    made = await http('GET', f'{CMS}/a')
    assert made.body['data'] == {'x': '1'}
    assert (await http('PUT', f'{CMS}/a', {**made.body, 'data': {'x': '2'}})).status == 200
    patched = await http('PATCH', f'{CMS}/a', {'data': {'y': '3'}},
                         type='application/merge-patch+json')
    assert patched.body['data'] == {'x': '2', 'y': '3'}
    assert int(patched.body['metadata']['resourceVersion']) > int(
        made.body['metadata']['resourceVersion'])
    assert (await http('DELETE', f'{CMS}/a')).body['status'] == 'Success'
    assert (await http('GET', f'{CMS}/a')).status == 404


async def test_errors_are_statuses(http):
    answer = await http('GET', f'{CMS}/a')
    assert answer.body == {
        'kind': 'Status', 'apiVersion': 'v1', 'metadata': {}, 'status': 'Failure',
        'message': 'configmaps "a" not found', 'reason': 'NotFound',
        'details': {'name': 'a', 'kind': 'configmaps'}, 'code': 404,
    }


@pytest.mark.parametrize('path', ['/', '/version', '/api', '/apis', '/api/v1', '/apis/apps',
                                  '/apis/apps/v1', '/openapi/v2', '/openapi/v3',
                                  '/openapi/v3/api/v1', '/openapi/v3/apis/apps/v1'])
async def test_documents_are_served(http, path):
    answer = await http('GET', path)
    assert answer.status == 200
    assert answer.body


@pytest.mark.parametrize('path', ['/nowhere', '/apis/nowhere', '/apis/nowhere/v1/things'])
async def test_where_nothing_is_nothing_is_found(http, path):
    answer = await http('GET', path)
    assert (answer.status, answer.raw) == (404, b'404 page not found\n')


@pytest.mark.parametrize('plural', ['clusterroles', 'clusterrolebindings', 'namespaces'])
async def test_objects_of_the_start_are_as_if_they_were_created(http, plural):
    path = f'/api/v1/{plural}' if plural == 'namespaces' else (
        f'/apis/rbac.authorization.k8s.io/v1/{plural}')
    known = (await http('GET', path)).body
    # An empty list of rules, as of the aggregated roles, cannot be written: it becomes null.
    items = [obj for obj in known['items'] if obj.get('rules') != []]
    assert items
    for obj in items:
        metadata = obj['metadata']
        name, renamed = metadata['name'], f"new-{metadata['name']}"
        labels = {key: value for key, value in metadata.get('labels', {}).items() if value != name}
        written = {
            **{key: value for key, value in obj.items() if key not in ('spec', 'status')},
            'apiVersion': known['apiVersion'], 'kind': known['kind'].removesuffix('List'),
            'metadata': {'name': renamed, 'labels': labels,
                         'annotations': metadata.get('annotations', {})}}
        made = (await http('POST', path, written, User_Agent='kube-apiserver/v1')).body
        assert comparable(made, renamed) == comparable(obj, name)
        assert metadata['uid'] != made['metadata']['uid']
        assert metadata['creationTimestamp'] <= made['metadata']['creationTimestamp']


def comparable(obj, name):
    metadata = {key: value for key, value in obj['metadata'].items()
                if key not in ('name', 'uid', 'resourceVersion', 'creationTimestamp')}
    metadata['managedFields'] = [entry | {'time': bool(entry['time'])}
                                 for entry in metadata['managedFields']]
    metadata['labels'] = {key: value == name or value for key, value in metadata['labels'].items()}
    return {key: obj[key] for key in obj.keys() - {'apiVersion', 'kind'}} | {'metadata': metadata}


@pytest.mark.parametrize('path', ['/healthz', '/livez', '/readyz'])
async def test_it_is_healthy(http, path):
    assert (await http('GET', path)).raw == b'ok'


async def test_discovery_is_aggregated_for_those_who_ask(http, toys):
    answer = await http('GET', '/apis', Accept='application/json;g=apidiscovery.k8s.io;v=v2;'
                                               'as=APIGroupDiscoveryList,application/json')
    assert answer.headers['Content-Type'].endswith('as=APIGroupDiscoveryList')
    groups = {group['metadata']['name']: group for group in answer.body['items']}
    resource, = groups['sandbox.test']['versions'][0]['resources']
    assert resource['resource'] == 'toys'
    assert resource['shortNames'] == ['ty']


async def test_all_documents_of_openapi_refer_only_to_what_is_in_them(http, toys):
    index = (await http('GET', '/openapi/v3')).body
    assert 'apis/sandbox.test/v1' in index['paths']
    for path in ('/openapi/v2', *(item['serverRelativeURL'] for item in index['paths'].values())):
        document = (await http('GET', path)).body
        known = document.get('definitions') or document['components']['schemas']
        for name in references(document):
            assert name in known, (path, name)


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get('$ref'), str):
            yield value['$ref'].rpartition('/')[2]
        for nested in value.values():
            yield from references(nested)
    elif isinstance(value, list):
        for nested in value:
            yield from references(nested)


async def test_answers_are_yaml_for_those_who_ask(http):
    answer = await http('GET', CMS, Accept='application/yaml')
    assert answer.headers['Content-Type'] == 'application/yaml'
    assert b'kind: ConfigMapList' in answer.raw


async def test_bodies_can_be_yaml(http):
    raw = b'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {time: 2020-01-01}\n'
    answer = await http('POST', CMS, raw, type='application/yaml')
    assert answer.body['data'] == {'time': '2020-01-01'}


async def test_several_requests_go_over_one_connection_after_errors():
    connector = aiohttp.TCPConnector(limit=1)
    async with Sandbox() as sandbox, aiohttp.ClientSession(connector=connector) as session:
        http = Http(session, sandbox.url)
        for _ in range(3):
            assert (await http('POST', CMS, b'{')).status == 400
        assert (await http('POST', CMS, cm('a'))).status == 201


async def test_warnings_are_told_in_headers(http):
    answer = await http('POST', CMS, {**cm('a'), 'unknown': 1})
    assert answer.headers['Warning'] == '299 - "unknown field \\"unknown\\""'


async def test_a_scale_is_a_view_of_an_object(http):
    path = '/apis/apps/v1/namespaces/default/deployments'
    template = {'metadata': {'labels': {'a': 'b'}},
                'spec': {'containers': [{'name': 'a', 'image': 'b'}]}}
    await http('POST', path, {'metadata': {'name': 'a'}, 'spec': {
        'selector': {'matchLabels': {'a': 'b'}}, 'template': template}})
    scale = (await http('GET', f'{path}/a/scale')).body
    assert (scale['kind'], scale['spec']) == ('Scale', {'replicas': 1})
    assert scale['status'] == {'replicas': 0, 'selector': 'a=b'}
    changed = await http('PATCH', f'{path}/a/scale', {'spec': {'replicas': 3}},
                         type='application/merge-patch+json')
    assert changed.body['spec'] == {'replicas': 3}
    assert (await http('GET', f'{path}/a')).body['spec']['replicas'] == 3
    refused = await http('PUT', f'{path}/a/scale', {**scale, 'spec': {'replicas': 5}})
    assert refused.status == 409


async def test_evicted_pods_are_gone(http):
    path = '/api/v1/namespaces/default/pods'
    await http('POST', path, {
        'metadata': {'name': 'a'}, 'spec': {'containers': [{'name': 'a', 'image': 'b'}]}})
    assert (await http('POST', f'{path}/a/eviction', {'metadata': {'name': 'a'}})).status == 201
    assert (await http('GET', f'{path}/a')).status == 404


async def test_events_are_the_same_in_both_groups(http):
    await http('POST', '/api/v1/namespaces/default/events', {
        'metadata': {'name': 'a'}, 'message': 'text', 'reason': 'Why', 'type': 'Normal',
        'involvedObject': {'kind': 'Pod', 'name': 'x', 'namespace': 'default'}})
    event = (await http('GET', '/apis/events.k8s.io/v1/namespaces/default/events/a')).body
    assert event['apiVersion'] == 'events.k8s.io/v1'
    assert event['note'] == 'text'
    assert event['regarding']['name'] == 'x'


async def test_objects_live_on_in_other_versions(sandbox, http, toys):
    await http('POST', toys, toy('a', spec={'x': 1}))
    crd = await sandbox.get('crd', 'toys.sandbox.test')
    version = crd['spec']['versions'][0]
    crd['spec']['versions'] = [{**version, 'storage': False}, {**version, 'name': 'v2'}]
    await sandbox.replace(crd)
    for name in 'v1', 'v2':
        found = (await http('GET', f'{toys}/a'.replace('v1', name))).body
        assert (found['apiVersion'], found['spec']) == (f'sandbox.test/{name}', {'x': 1})


async def test_two_sandboxes_have_nothing_in_common(http, session):
    async with Sandbox() as other:
        await http('POST', CMS, cm('a'))
        assert await other.list('configmaps') == []


async def test_a_sandbox_can_be_started_again(session):
    sandbox = Sandbox()
    async with sandbox:
        pass
    assert not [task for task in asyncio.all_tasks() if 'sandbox' in task.get_name()]


async def test_the_same_port_cannot_be_taken_twice(sandbox):
    port = int(sandbox.url.rpartition(':')[2])
    with pytest.raises(OSError):
        await Sandbox(port=port).start()


def nest(levels):
    return b'{"a":' * levels + b'1' + b'}' * levels


@pytest.mark.parametrize('levels', [148, 149, 150, 151, 240, 300, 700, 3000, 9990])
async def test_objects_are_as_deep_as_the_api_takes_them(http, toys, levels):
    head = b'{"apiVersion":"sandbox.test/v1","kind":"Toy","metadata":{"name":"%s"},"spec":'
    deep = nest(levels)
    for method, path, body, type in [
            ('POST', toys, head % b'a' + deep + b'}', 'application/json'),
            ('PATCH', f'{toys}/a', b'{"spec":{"b":' + deep + b'}}', 'application/merge-patch+json'),
            ('PATCH', f'{toys}/a', b'[{"op":"add","path":"/spec/c","value":' + deep + b'}]',
             'application/json-patch+json'),
            ('PATCH', f'{toys}/b?fieldManager=x', head % b'b' + deep + b'}',
             'application/apply-patch+yaml')]:
        answer = await http(method, path, body, type=type)
        assert answer.status in (200, 201), answer.raw[:300]
        assert deep in answer.raw
    stored = await http('GET', f'{toys}/a')
    assert stored.raw.count(deep) == 2
    updated = await http('PUT', f'{toys}/a', stored.raw.strip().replace(b'"a":1}', b'"a":2}'))
    assert deep.replace(b'1', b'2') in updated.raw
    unchanged = await http('PUT', f'{toys}/a', updated.raw)
    assert unchanged.raw == updated.raw
    assert (await http('GET', toys)).raw.count(deep) == 1
    assert (await http('DELETE', f'{toys}/a')).status == 200


async def test_deep_objects_are_checked_for_being_json(http, toys):
    head = b'{"apiVersion":"sandbox.test/v1","kind":"Toy","metadata":{"name":"a"},"spec":'
    for wrong in (b'x', b'NaN', b'[1,]', b'{"a"}', b'"'):
        answer = await http('POST', toys, head + nest(1000).replace(b'1', wrong) + b'}')
        assert answer.status == 400, wrong


@pytest.mark.parametrize('levels', [10_001, 20_000, 100_000])
async def test_too_deep_bodies_are_bad_requests(http, toys, levels):
    deep = nest(levels)
    await http('POST', toys, toy('a'))
    head = b'{"apiVersion":"sandbox.test/v1","kind":"Toy","metadata":{"name":"b"},"spec":'
    for method, path, body, type in [
            ('POST', toys, head + deep + b'}', 'application/json'),
            ('PATCH', f'{toys}/a', b'{"spec":' + deep + b'}', 'application/merge-patch+json'),
            ('PATCH', f'{toys}/b?fieldManager=x', head + deep + b'}',
             'application/apply-patch+yaml'),
            ('DELETE', f'{toys}/a', b'{"a":' + deep + b'}', 'application/json')]:
        answer = await http(method, path, body, type=type)
        assert (answer.status, answer.body['reason']) == (400, 'BadRequest'), (method, type)
        assert 'exceeded max depth' in answer.body['message']


async def test_definitions_are_checked_and_warned_of_when_they_change(http, sandbox, toys):
    path = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions/toys.sandbox.test'
    place = '/spec/versions/0/schema/openAPIV3Schema'
    refused = await http('PATCH', path, [{'op': 'add', 'path': f'{place}/type', 'value': 'x'}],
                         type='application/json-patch+json')
    assert refused.status == 422
    warned = await http(
        'PATCH', path, [{'op': 'add', 'path': f'{place}/properties', 'value': {
            'spec': {'type': 'string', 'format': 'strange'}}}], type='application/json-patch+json')
    assert warned.headers['Warning'] == '299 - "unrecognized format \\"strange\\""'
