import json

import pytest

from kopf._cogs.clients import errors, patching
from kopf._cogs.structs import references
from tests._cogs.clients.servers import refuse, say

OBJECT = {'metadata': {'name': 'obj', 'resourceVersion': '5'}}


async def patch(client, resource, **kwargs):
    kwargs = {'namespace': 'ns', 'name': 'obj', 'payload': {'a': 'b'}, **kwargs}
    return await patching.patch(client, resource=resource, **kwargs)


async def test_the_newest_state_is_returned(server, client, resource):
    server.script(say(OBJECT))
    assert await patch(client, resource) == OBJECT


async def test_patches_are_merged_by_default(server, client, resource):
    server.script(say(OBJECT))
    await patch(client, resource, payload={'a': {'b': None}})
    request = server.requests[0]
    assert request.method == 'PATCH'
    assert request.path == '/apis/g.test/v1/namespaces/ns/things/obj'
    assert request.query == {'fieldManager': 'kopf'}
    assert request.headers['Content-Type'] == 'application/merge-patch+json'
    assert json.loads(request.body) == {'a': {'b': None}}


async def test_the_api_does_not_warn_of_what_the_caller_verifies(server, client, resource):
    server.script(say(OBJECT))
    await patch(client, resource, is_verified=True)
    assert server.requests[0].query == {'fieldManager': 'kopf', 'fieldValidation': 'Ignore'}


async def test_json_patches_are_possible(server, client, resource):
    server.script(say(OBJECT))
    payload = [{'op': 'test', 'path': '/metadata/resourceVersion', 'value': '5'}]
    await patch(client, resource, payload=payload, content_type='json')
    assert server.requests[0].headers['Content-Type'] == 'application/json-patch+json'
    assert json.loads(server.requests[0].body) == payload


async def test_subresources_are_patched(server, client, resource):
    server.script(say(OBJECT))
    await patch(client, resource, subresource='status')
    assert server.requests[0].path == '/apis/g.test/v1/namespaces/ns/things/obj/status'


async def test_cluster_scoped_objects_have_no_namespace(server, client):
    server.script(say(OBJECT))
    resource = references.Resource('', 'v1', 'namespaces', namespaced=False)
    await patch(client, resource, namespace=None)
    assert server.requests[0].path == '/api/v1/namespaces/obj'


async def test_unusual_names_are_quoted(server, client, resource):
    server.script(say(OBJECT))
    await patch(client, resource, name='system:some role')
    assert server.requests[0].path.endswith('/things/system:some role')


async def test_absent_objects_are_nothing(server, client, resource):
    server.script(refuse(404))
    assert await patch(client, resource) is None


@pytest.mark.parametrize('status, cls', [
    (403, errors.APIForbiddenError), (409, errors.APIConflictError),
    (413, errors.APITooLargeError), (422, errors.APIUnprocessableError),
])
async def test_refusals_are_raised(server, client, resource, status, cls):
    server.script(refuse(status))
    with pytest.raises(cls):
        await patch(client, resource)


@pytest.mark.parametrize('value', [object(), float('nan'), {1, 2}])
async def test_what_is_no_json_is_not_sent(server, client, resource, value):
    with pytest.raises((TypeError, ValueError)):
        await patch(client, resource, payload={'x': value})
    assert not server.requests


@pytest.mark.parametrize('answer', [None, [], {}, {'metadata': {'name': 5}}])
async def test_what_is_no_object_is_an_error(server, client, resource, answer):
    server.script(say(answer))
    with pytest.raises(errors.APIServerError, match="no proper object"):
        await patch(client, resource)
