"""
Patching of objects.
"""
import functools
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import bodies, references

FIELD_MANAGER = 'kopf'

_encode = json.JSONEncoder(separators=(',', ':'), allow_nan=False).encode

ContentType = Literal['merge', 'json']

_CONTENT_TYPES: Mapping[ContentType, str] = {
    'merge': 'application/merge-patch+json',
    'json': 'application/json-patch+json',
}


async def patch(
        client: api.Client,
        *,
        resource: references.Resource,
        namespace: references.Namespace,
        name: str,
        payload: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        content_type: ContentType = 'merge',
        subresource: str | None = None,
        timeout: float | None = None,
        retry: bool = True,
        logger: api.Logger | None = None,
) -> bodies.RawBody | None:
    """
    Patch an object, and return its newest state; or None if there is no such object any more.

    Raises `errors.APIError` and its kin for everything else that the API refuses, and `TypeError`
    or `ValueError` if the payload is not serialisable to JSON. The timeout (seconds) and the
    retrying are as in `api.Client.request`.
    """
    path = (
        f'{get_list_path(resource, namespace)}/{urllib.parse.quote(name, safe=":")}'
        f'{"" if subresource is None else "/" + subresource}?fieldManager={FIELD_MANAGER}'
    )
    body = _encode(payload).encode()
    try:
        patched: bodies.RawBody | None = await client.request(
            'PATCH', path, body=body, content_type=_CONTENT_TYPES[content_type], timeout=timeout,
            retry=retry, logger=logger)
    except errors.APINotFoundError:
        return None
    return patched


@functools.lru_cache(maxsize=10_000)
def get_list_path(resource: references.Resource, namespace: references.Namespace) -> str:
    """The path of the list, remembered: building it again and again would cost."""
    return resource.get_url(namespace=namespace)
