import pytest

from kopf._cogs.clients import applying, errors
from tests._cogs.clients.servers import refuse, say

OBJECT = {'metadata': {'name': 'obj', 'namespace': 'ns', 'uid': 'uid1', 'resourceVersion': '5'}}
GARBAGE = [None, [], {}, 'x', {'metadata': {'name': 5}}]


async def apply(client, resource):
    return await applying.apply(
        client, resource=resource, manifest=OBJECT, manager='me', force=True)


async def delete(client, resource):
    return await applying.delete(client, resource=resource, metadata=OBJECT['metadata'])


@pytest.mark.parametrize('write', [apply, delete])
async def test_the_newest_state_is_returned(server, client, resource, write):
    server.script(say(OBJECT))
    assert await write(client, resource) == OBJECT


async def test_what_is_deleted_at_once_has_no_state(server, client, resource):
    server.script(say({'kind': 'Status', 'metadata': {}, 'status': 'Success'}))
    assert await delete(client, resource) is None


async def test_what_is_absent_has_no_state(server, client, resource):
    server.script(refuse(404))
    assert await delete(client, resource) is None


@pytest.mark.parametrize('write', [apply, delete])
@pytest.mark.parametrize('answer', GARBAGE)
async def test_what_is_no_object_is_an_error(server, client, resource, write, answer):
    server.script(say(answer))
    with pytest.raises(errors.APIServerError, match="no proper object"):
        await write(client, resource)
