"""
Posting of Kubernetes events.
"""
import json
from collections.abc import Mapping
from typing import Any

from kopf._cogs.clients import api, patching, pausing
from kopf._cogs.structs import references

EVENTS = references.Resource('', 'v1', 'events', kind='Event', namespaced=True)
DEFAULT_NAMESPACE = 'default'


async def post_event(
        client: api.Client,
        *,
        payload: Mapping[str, Any],
        namespace: references.Namespace,
        logger: api.Logger | None = None,
        backoffs: pausing.Backoffs | None = None,
) -> None:
    """
    Create an event in the namespace; None is for ``default``.

    ``backoffs`` are the pauses between the attempts, in seconds; by default,
    ``settings.networking.error_backoffs``.

    :raises errors.APIError: if the API server refuses the event, or all attempts have failed.
    """
    where = references.NamespaceName(DEFAULT_NAMESPACE) if namespace is None else namespace
    path = f'{patching.get_list_path(EVENTS, where)}?fieldManager={patching.FIELD_MANAGER}'
    body = json.dumps(payload, separators=(',', ':')).encode()
    await client.request('POST', path, body=body, logger=logger, backoffs=backoffs, parsed=False)
