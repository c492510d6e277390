"""
Server-side apply (KEP-555), and deletion of what was applied.
"""
import json
from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import bodies, references

CONTENT_TYPE = 'application/apply-patch+yaml'  # JSON is also YAML

_encode = json.JSONEncoder(separators=(',', ':'), allow_nan=False).encode


async def apply(
        client: api.Client,
        *,
        resource: references.Resource,
        manifest: Mapping[str, Any],
        manager: str,
        force: bool,
        permit: Callable[[], None] | None = None,
        logger: api.Logger | None = None,
) -> bodies.RawBody:
    """
    Create or change an object, so that it has the fields of the manifest; return its new state.

    Fields that the manager has applied before and that the manifest does not have are removed. With
    ``force``, the manager takes fields over from other managers. ``permit`` is as in
    `api.Client.request`.

    :raises errors.APIConflictError: without ``force``, if other managers have the same fields with
        other values.
    :raises errors.APIError: if the API server refuses the manifest, or cannot be reached.
    """
    params = {'fieldManager': manager, 'force': 'true' if force else 'false'}
    return api.verify_object(await client.request(
        'PATCH', _get_path(resource, manifest['metadata']), params=params, logger=logger,
        body=_encode(manifest).encode(), content_type=CONTENT_TYPE, permit=permit))


async def verify_creation(
        client: api.Client,
        *,
        resource: references.Resource,
        manifest: Mapping[str, Any],
        logger: api.Logger | None = None,
) -> None:
    """
    Check, as a dry run, that an object with this manifest could be created, but for its name.

    :raises errors.APIError: if the API server refuses the manifest, or cannot be reached.
    """
    metadata = {key: val for key, val in manifest['metadata'].items() if key != 'name'}
    content = {**manifest, 'metadata': {**metadata, 'generateName': 'kopf-'}}
    await client.request(
        'POST', resource.get_url(namespace=metadata.get('namespace')), params={'dryRun': 'All'},
        body=_encode(content).encode(), content_type='application/json', logger=logger)


async def delete(
        client: api.Client,
        *,
        resource: references.Resource,
        metadata: Mapping[str, Any],
        logger: api.Logger | None = None,
) -> bodies.RawBody | None:
    """
    Delete exactly the object with this name, namespace, and uid, if it is there. Return its state
    if it waits for finalizers; otherwise, None.

    :raises errors.APIError: if the API server refuses the deletion, or cannot be reached.
    """
    options = {'kind': 'DeleteOptions', 'apiVersion': 'v1', 'propagationPolicy': 'Background',
               'preconditions': {'uid': metadata['uid']}}
    try:
        result = await client.request(
            'DELETE', _get_path(resource, metadata), body=_encode(options).encode(), logger=logger)
    except errors.APINotFoundError:
        return None
    except errors.APIConflictError as e:
        if 'precondition' not in str(e):  # another conflict: the object is still there
            raise
        return None  # another object has its name
    is_done = isinstance(result, dict) and result.get('kind') == 'Status'
    return None if is_done else api.verify_object(result)


def _get_path(resource: references.Resource, metadata: Mapping[str, Any]) -> str:
    return resource.get_url(namespace=metadata.get('namespace'), name=metadata['name'])
