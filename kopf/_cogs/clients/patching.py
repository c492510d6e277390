"""
Patching of objects.
"""
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import bodies, encoders, nesting, references

FIELD_MANAGER = 'kopf'

_encode = encoders.make_encode(json.JSONEncoder(separators=(',', ':'), allow_nan=False))

ContentType = Literal['merge', 'json']


async def patch(
        client: api.Client,
        *,
        resource: references.Resource,
        namespace: references.Namespace,
        name: str,
        payload: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        content_type: ContentType = 'merge',
        subresource: str | None = None,
        is_verified: bool = False,
        timeout: float | None = None,
        retry: bool = True,
        permit: Callable[[], None] | None = None,
        logger: api.Logger | None = None,
) -> bodies.RawBody | None:
    """
    Patch an object, and return its newest state; None if the object does not exist (any more).

    ``content_type`` is ``merge`` for a JSON merge patch (RFC 7396), ``json`` for a JSON patch (RFC
    6902). With ``is_verified``, the caller finds what the API server drops: the API server does not
    warn of unknown fields. The timeout (seconds), the retries, and the permit are as in
    `api.Client.request`.

    :raises errors.APIError: if the API server refuses the patch, or answers with no proper object.
    :raises TypeError: if the payload has values of other types than those of JSON.
    :raises ValueError: if the payload has values that JSON lacks, e.g. NaN.
    :raises nesting.TooDeepError: if the payload is nested too deeply.
    :raises RecursionError: if the payload is nested so deeply that it cannot even be encoded.
    """
    path = (
        f'{get_list_path(resource, namespace)}/{references.quote_name(name)}'
        f'{"" if subresource is None else "/" + subresource}?fieldManager={FIELD_MANAGER}'
        f'{"&fieldValidation=Ignore" if is_verified else ""}'
    )
    encoded = _encode(payload)
    nesting.verify_encoded(encoded, payload)
    try:
        return api.verify_object(await client.request(
            'PATCH', path, body=encoded.encode(), timeout=timeout, retry=retry, permit=permit,
            content_type=f'application/{content_type}-patch+json', logger=logger))
    except errors.APINotFoundError:
        return None


@functools.lru_cache(maxsize=10_000)
def get_list_path(resource: references.Resource, namespace: references.Namespace) -> str:
    """Get the path of the list. It is cached, as it is needed for every request."""
    return resource.get_url(namespace=namespace)
