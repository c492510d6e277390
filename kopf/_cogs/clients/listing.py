"""
Listing of objects, page by page.
"""
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from kopf._cogs.clients import api, errors
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references

DEFAULT_CHUNK_SIZE = 500

ACCEPT_METADATA_LIST = (
    'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json')
"""What to accept from a list when nothing but the metadata of its objects is needed."""

_decoder = json.JSONDecoder()


@dataclasses.dataclass(frozen=True)
class Page:
    """
    A part of a list. Its items are parsed while they are iterated over, which can be done once.

    ``restarted`` means that the list could not be continued, and begins anew with this page.
    """
    resource_version: str
    items: Iterator[bodies.RawBody]
    restarted: bool = False


async def list_objects(
        client: api.Client,
        *,
        resource: references.Resource,
        namespace: references.Namespace,
        settings: configuration.OperatorSettings,
        field_selector: str | None = None,
        metadata_only: bool = False,
        retry: bool = True,
) -> AsyncIterator[Page]:
    """
    List the objects consistently: as they are now, not as some cache remembers them.

    All pages are of one moment. If it passes too far away while listing (410), the list begins
    anew, in one page. Selectors of the settings apply, and the one that is given. With
    ``retry=False``, the first request is not tried again when it fails. With ``metadata_only``, the
    objects are nothing but their metadata.
    """
    path = resource.get_url(namespace=namespace)
    accept = ACCEPT_METADATA_LIST if metadata_only else api.JSON
    selectors = get_selectors(settings, resource, field_selector=field_selector)
    limit = settings.watching.chunk_size or DEFAULT_CHUNK_SIZE
    params = {**selectors, 'limit': str(limit)}
    restarted = False
    while True:
        continued = 'continue' in params
        try:
            raw = await client.fetch(
                'GET', path, params=params, accept=accept, retry=retry or continued)
        except errors.APIGoneError:
            if not continued:
                raise
            params, restarted = dict(selectors), True
            continue
        head, items = parse_list(raw, resource)
        yield Page(head['resourceVersion'], items, restarted)
        if not head.get('continue'):
            return
        params, restarted = {**params, 'continue': head['continue']}, False


def get_selectors(
        settings: configuration.OperatorSettings,
        resource: references.Resource,
        *,
        field_selector: str | None = None,
) -> dict[str, str]:
    """The parameters by which the server chooses the objects, both for lists and for watches."""
    watching = settings.watching
    labels = watching.label_selectors.collect(resource)
    fields = watching.field_selectors.collect(resource)
    shards = watching.shard_selectors.collect(resource)
    if field_selector is not None:
        fields = [*fields, field_selector]
    params = {
        'labelSelector': ','.join(filter(None, labels)),
        'fieldSelector': ','.join(filter(None, fields)),
        'shardSelector': shards[0] if shards else '',
    }
    return {key: val for key, val in params.items() if val}


def parse_list(
        raw: bytes,
        resource: references.Resource,
) -> tuple[dict[str, Any], Iterator[bodies.RawBody]]:
    """
    Parse the metadata of the list, and prepare to parse its items one by one.

    Huge lists would block the event loop for long if they were parsed at once. Raises an
    `errors.APIServerError` if it is no list; the iterator does so too.
    """
    try:
        text = raw.decode()
        fields, start = _parse_head(text)
    except (ValueError, IndexError) as e:
        raise errors.APIServerError("The API has answered with no valid list.") from e
    metadata = fields.get('metadata')
    if not isinstance(metadata, dict) or not isinstance(metadata.get('resourceVersion'), str):
        raise errors.APIServerError("The API has answered with a list without a version.")
    kind = resource.kind or str(fields.get('kind', '')).removesuffix('List')
    return metadata, _iterate_items(
        text, start, {'apiVersion': resource.api_version, 'kind': kind})


def _parse_head(text: str) -> tuple[dict[str, Any], int | None]:
    """Parse all fields but the items; and find where these are, if there are any."""
    fields: dict[str, Any] = {}
    start: int | None = None
    index = _skip(text, 0)
    if text[index] != '{':
        raise ValueError("Not a JSON object.")
    index = _skip(text, index + 1)
    while text[index] != '}':
        key, index = _decoder.raw_decode(text, index)
        index = _skip(text, index)
        if text[index] != ':':
            raise ValueError("A colon is expected.")
        index = _skip(text, index + 1)
        if key == 'items' and text[index] == '[':
            start = index + 1
            if 'metadata' in fields:  # nothing of interest follows
                break
        fields[key], index = _decoder.raw_decode(text, index)
        index = _skip(text, index)
        if text[index] == ',':
            index = _skip(text, index + 1)
    return fields, start


def _iterate_items(
        text: str,
        index: int | None,
        defaults: Any,
) -> Iterator[bodies.RawBody]:
    """Parse the items one by one. In lists of built-in kinds, these lack the kind and version."""
    if index is None:
        return
    try:
        index = _skip(text, index)
        while text[index] != ']':
            item, index = _decoder.raw_decode(text, index)
            if not is_object(item):
                raise ValueError("Not an object.")
            yield item if 'kind' in item and 'apiVersion' in item else defaults | item
            if text[index] != ',':
                index = _skip(text, index)
            if text[index] == ',':
                index = _skip(text, index + 1)
    except (ValueError, IndexError) as e:
        raise errors.APIServerError("The API has answered with no valid list.") from e


def is_object(value: object) -> bool:
    """Whether it is worth being passed on as an object of Kubernetes."""
    if not isinstance(value, dict):
        return False
    metadata = value.get('metadata')
    return isinstance(metadata, dict) and 'name' in metadata


def _skip(text: str, index: int) -> int:
    while text[index] in ' \t\r\n':
        index += 1
    return index
