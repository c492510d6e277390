"""
Listing of objects, by pages ("Retrieving large results sets in chunks" in the Kubernetes docs).
"""
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from kopf._cogs.clients import api, errors, shardselectors
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, nesting, references

DEFAULT_CHUNK_SIZE = 500

TAIL_LENGTH = 4096
"""In how many last characters of a list its metadata is looked for."""

_TAIL = re.compile(
    r'\],((?:"kind":"[A-Za-z0-9]*",)?'
    r'"metadata":\{(?:"[A-Za-z]+":(?:"[^"\\{}]*"|[0-9]+),?)*\}\})\s*\Z')
"""
How the lists of custom resources end. Objects of users are never last, so they cannot feign this.
"""

_BEGINNING, _GAP, _END = map(re.compile, (r'\s*\{', r'\s*,?\s*', r'\s*\}'))
_KEY = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')

ACCEPT_METADATA_LIST = (
    'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json')
"""The ``Accept`` header for lists of the objects' metadata only."""


Skip = Callable[[bodies.RawBody, str], None]
"""
Takes an object that cannot be processed, and the reason.

An object that is nested too deeply is reduced to its upper levels (see `nesting.skim`), a damaged
one to what identifies it (see `bodies.identify`).
"""


@dataclasses.dataclass(frozen=True)
class Page:
    """
    A page of a list.

    ``items`` are parsed during the iteration, so they can be iterated over only once. ``restarted``
    means that the list could not be continued: forget the previous pages. ``remaining`` is about
    how many objects follow on the next pages; None if the API server does not say.
    """
    resource_version: str
    items: Iterator[bodies.RawBody]
    restarted: bool = False
    remaining: int | None = None


async def list_objects(
        client: api.Client,
        *,
        resource: references.Resource,
        namespace: references.Namespace,
        settings: configuration.OperatorSettings,
        field_selector: str | None = None,
        shard_selector: shardselectors.ShardSelector | None = None,
        metadata_only: bool = False,
        retry: bool = True,
        skip: Skip | None = None,
) -> AsyncIterator[Page]:
    """
    List the newest state of the objects, not a cached one.

    All pages show the objects at one and the same moment. If that moment expires on the server
    before the last page (HTTP 410), the list is restarted in one page.

    The objects are selected by the settings, by ``field_selector``, and by ``shard_selector``,
    which the API server can ignore. With ``metadata_only``, only the metadata of the objects is
    requested. With ``retry=False``, the first request is not retried.

    Objects that cannot be processed are not in the pages: ``skip`` is called for them.

    :raises errors.APITooDeepError: if an object is nested too deeply, and there is no ``skip``.
    :raises errors.APIError: if the list cannot be retrieved.
    """
    path = resource.get_url(namespace=namespace)
    accept = ACCEPT_METADATA_LIST if metadata_only else api.JSON
    selectors = get_selectors(
        settings, resource, field_selector=field_selector, shard_selector=shard_selector)
    limit = settings.watching.chunk_size or DEFAULT_CHUNK_SIZE
    params = {**selectors, 'limit': str(limit)}
    restarted = False
    while True:
        continued = 'continue' in params
        try:
            raw = await client.request(
                'GET', path, params=params, accept=accept, retry=retry or continued, parsed=False)
        except errors.APIGoneError:
            if not continued:
                raise
            params, restarted = dict(selectors), True
            continue
        head, items = parse_list(raw, resource, skip)
        remaining = head.get('remainingItemCount') if head.get('continue') else 0
        if remaining and shard_selector is not None:
            remaining = None  # it includes the objects that are not selected
        yield Page(head['resourceVersion'], items, restarted,
                   remaining if isinstance(remaining, int) else None)
        if not head.get('continue'):
            return
        if head['continue'] == params.get('continue'):
            raise errors.APIServerError("The API repeats a page of the list instead of the next.")
        params, restarted = {**params, 'continue': head['continue']}, False


async def find_object(
        client: api.Client,
        *,
        resource: references.Resource,
        namespace: str | None,
        name: str,
        settings: configuration.OperatorSettings,
) -> bodies.RawBody | None:
    """
    Get the newest state of an object by its name; None if there is none, or it is not selected.

    It is listed: operators are not permitted to get single objects.

    :raises errors.APIError: if it cannot be retrieved.
    """
    async for page in list_objects(
            client, settings=settings, resource=resource,
            namespace=None if namespace is None else references.NamespaceName(namespace),
            field_selector=f'metadata.name={name}'):
        for item in page.items:
            return item
    return None


def select_only(
        settings: configuration.OperatorSettings, labels: str = '', *, fields: str = '',
) -> configuration.OperatorSettings:
    """
    Copy the settings without the author's selectors, which are for the objects with handlers.

    ``labels`` and ``fields`` are the selectors instead; by default, all objects are selected.
    """
    return dataclasses.replace(settings, watching=dataclasses.replace(
        settings.watching,
        label_selectors=references.SelectorMapping({references.EVERYTHING: labels}),
        field_selectors=references.SelectorMapping({references.EVERYTHING: fields}),
        shard_selectors=references.SelectorMapping()))


def get_selectors(
        settings: configuration.OperatorSettings,
        resource: references.Resource,
        *,
        field_selector: str | None = None,
        shard_selector: shardselectors.ShardSelector | None = None,
) -> dict[str, str]:
    """Get the query parameters that select the objects, both for lists and for watches."""
    watching = settings.watching
    labels = watching.label_selectors.collect(resource)
    fields = watching.field_selectors.collect(resource)
    shards = watching.shard_selectors.collect(resource)
    if field_selector is not None:
        fields = [*fields, field_selector]
    params = {
        'labelSelector': ','.join(filter(None, labels)),
        'fieldSelector': ','.join(filter(None, fields)),
        'shardSelector': shards[0] if shards else shard_selector.query if shard_selector else '',
    }
    return {key: val for key, val in params.items() if val}


def parse_list(
        raw: bytes,
        resource: references.Resource,
        skip: Skip | None = None,
) -> tuple[dict[str, Any], Iterator[bodies.RawBody]]:
    """
    Parse the metadata of a list, and make an iterator that parses the items one by one.

    Parsing a huge list at once would block the event loop.

    :raises errors.APIServerError: if the response is not a list; also by the iterator.
    """
    try:
        text = raw.decode()
        fields, start = _parse_head(text)
    except (ValueError, IndexError) as e:
        raise errors.APIServerError("The API has answered with no valid list.") from e
    metadata = fields.get('metadata')
    if not isinstance(metadata, dict) or not isinstance(metadata.get('resourceVersion'), str):
        raise errors.APIServerError("The API has answered with a list without a version.")
    if not isinstance(metadata.get('continue', ''), str):
        raise errors.APIServerError("The API has answered with a list that cannot be continued.")
    kind = resource.kind or str(fields.get('kind', '')).removesuffix('List')
    return metadata, _iterate_items(
        text, start, {'apiVersion': resource.api_version, 'kind': kind}, skip)


def _parse_head(text: str) -> tuple[dict[str, Any], int | None]:
    """
    Parse all fields except for the items; find the index in the text where the items begin.

    The lists of custom resources have their metadata at the end. It is found there without parsing
    the items. Only if it is not there, all items are parsed, once more than needed.
    """
    fields: dict[str, Any] = {}
    start: int | None = None
    index = _match(_BEGINNING, text, 0).end()
    while key := _KEY.match(text, index):
        name, index = json.loads(key[1]), key.end()
        if name == 'items' and text[index] == '[':
            start = index + 1
            if 'metadata' not in fields and (tail := _TAIL.search(text, len(text) - TAIL_LENGTH)):
                fields |= nesting.parse('{' + tail[1])
            if 'metadata' in fields:  # the other fields after the items are not needed
                return fields, start
        try:
            fields[name], index = nesting.parse_at(text, index)
        except nesting.TooDeepError:
            fields[name], index = nesting.skim_at(text, index)
    _match(_END, text, index)
    if not isinstance(fields.get('items', []), list | None):
        raise ValueError("The items are no list.")
    return fields, start


def _iterate_items(
        text: str,
        index: int | None,
        defaults: Any,
        skip: Skip | None,
) -> Iterator[bodies.RawBody]:
    """
    Parse the items one by one.

    The items of built-in resources lack ``kind`` and ``apiVersion``, which are added here.
    """
    if index is None:
        return
    try:
        index = _match(_GAP, text, index).end()
        while text[index] != ']':
            reason: str | None = None
            try:
                item, index = nesting.parse_at(text, index)
            except nesting.TooDeepError as e:
                if skip is None:
                    raise errors.APITooDeepError(f"An object is of no use: {e}.") from e
                reason = str(e)
                item, index = nesting.skim_at(text, index)
            damage = bodies.find_damage(item)
            if damage is not None:
                if skip is None:
                    raise ValueError(damage)
                item, reason = bodies.identify(item), damage
            item = item if 'kind' in item and 'apiVersion' in item else defaults | item
            if reason is None:
                yield item
            elif skip is not None:
                skip(item, reason)
            index = _match(_GAP, text, index).end()
    except (ValueError, IndexError) as e:
        raise errors.APIServerError("The API has answered with no valid list.") from e


def _match(pattern: re.Pattern[str], text: str, index: int) -> re.Match[str]:
    found = pattern.match(text, index)
    if found is None:
        raise ValueError("The JSON has another form.")
    return found
