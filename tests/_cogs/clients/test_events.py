import json

import pytest

from kopf._cogs.clients import errors, events
from tests._cogs.clients.servers import refuse, say


@pytest.mark.parametrize('namespace, expected', [('ns', 'ns'), (None, 'default')])
async def test_events_are_created_in_namespaces(server, client, namespace, expected):
    server.script(say({}, status=201))
    await events.post_event(client, payload={'reason': 'x'}, namespace=namespace)
    request = server.requests[0]
    assert request.method == 'POST'
    assert request.path == f'/api/v1/namespaces/{expected}/events'
    assert request.query == {'fieldManager': 'kopf'}
    assert json.loads(request.body) == {'reason': 'x'}


async def test_events_have_backoffs_of_their_own(server, client):
    server.script(refuse(500))
    with pytest.raises(errors.APIServerError):
        await events.post_event(client, payload={}, namespace='ns', backoffs=[0.01])
    assert len(server.requests) == 2
