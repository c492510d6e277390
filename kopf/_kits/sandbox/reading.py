"""
Getting and listing: what is stored, selected, paged and put into the shape asked for.
"""
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kopf._kits.sandbox import (
    encoding,
    fields,
    objects,
    paging,
    selecting,
    shardranges,
    tables,
    wordings,
)
from kopf._kits.sandbox.cluster import Cluster, stored_resource
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.requests import META_GROUP, Request, selected_name
from kopf._kits.sandbox.statuses import BadRequest, Cause, Expired, GatewayTimeout, Invalid, Obj
from kopf._kits.sandbox.storage import Entry, Key, TooOld


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects a list, a watch or a deletion of a collection is about."""
    kind: Kind
    namespace: str
    labels: selecting.LabelSelector
    fields: selecting.FieldSelector
    shards: shardranges.ShardSelector

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields or self.shards)

    def matches(self, entry: Entry) -> bool:
        if self.namespace and entry.key[0] != self.namespace:
            return False
        if self.labels and not self.labels.matches(entry.labels):
            return False
        if self.shards and not self.shards.matches(namespace=entry.key[0], uid=entry.uid):
            return False
        return not self.fields or fields.matches(self.fields, self.kind, entry)


def selection_of(request: Request) -> Selection:
    """Raises `APIError` for selectors that are none."""
    return Selection(
        kind=request.kind,
        namespace=request.namespace,
        labels=selecting.parse_labels(request.option('labelSelector')),
        fields=fields.parse_for(request.kind, request.option('fieldSelector')),
        shards=shardranges.parse(request.option('shardSelector')),
    )


def get(cluster: Cluster, request: Request) -> bytes:
    entry = cluster.get(request.kind, (request.namespace, request.name))
    revision = request.revision()
    if revision is not None and revision > cluster.store.revision:
        raise too_large(revision, cluster.store.revision)
    return shaped(cluster, request, objects.view(request.kind, entry.raw))


def shaped(cluster: Cluster, request: Request, raw: bytes, *, headed: bool = True) -> bytes:
    """One object in the shape that the client accepts; a table is ``headed`` by its columns."""
    match request.accepted.shape:
        case '':
            return raw
        case 'Table':
            obj = encoding.decode_own(raw)
            table = tables.Maker(request, cluster.clock()).table([obj], {
                'resourceVersion': obj.get('metadata', {}).get('resourceVersion', '')},
                headed=headed)
            return encoding.encode(table)
    return encoding.encode(tables.partial(encoding.decode_own(raw), request.accepted.version))


def too_large(revision: int, current: int) -> GatewayTimeout:
    return GatewayTimeout(
        f"Timeout: Too large resource version: {revision}, current: {current}",
        details={'causes': [{'reason': 'ResourceVersionTooLarge',
                             'message': "Too large resource version"}]},
        retry_after=1)


def check_list_options(request: Request) -> None:
    """Refuse combinations of options that make no sense, as the API does."""
    match = request.option('resourceVersionMatch')
    revision = request.option('resourceVersion')
    watching = request.verb == 'watch'
    request.number('timeoutSeconds')
    causes: list[Cause] = []

    def forbid(field: str, why: str) -> None:
        causes.append(wordings.forbidden(field, why))

    field = 'resourceVersionMatch'
    initial = request.option('sendInitialEvents')
    supported = ['NotOlderThan'] if watching else ['Exact', 'NotOlderThan', '']
    if watching and match and not initial:
        forbid(field, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is "
                      "provided")
    if not watching and match and not revision:
        forbid(field, "resourceVersionMatch is forbidden unless resourceVersion is provided")
    if request.option('continue') and (watching or match):
        forbid(field, "resourceVersionMatch is forbidden when continue is provided")
    if watching and initial and match != 'NotOlderThan':
        forbid(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if match and match not in supported:
        causes.append(wordings.unsupported(field, match, supported))
    if not watching and match == 'Exact' and revision == '0':
        forbid(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if not watching and initial:
        forbid('sendInitialEvents', "sendInitialEvents is forbidden for list")
    if causes:
        raise Invalid.on(META_GROUP, 'ListOptions', '', causes)


def list_(cluster: Cluster, request: Request) -> bytes:
    """The list that a request asks for, as it goes over the wire."""
    check_list_options(request)
    selection = selection_of(request)
    found, metadata = page(cluster, request, selection)
    return encode_list(cluster, request, found, metadata)


def page(cluster: Cluster, request: Request, selection: Selection) -> tuple[list[Entry], Obj]:
    """One page of what is selected, with the list's metadata."""
    store, resource = cluster.store, stored_resource(request.kind)
    limit = max(request.number('limit') or 0, 0)
    revision = request.revision()
    token, match = request.option('continue'), request.option('resourceVersionMatch')
    is_exact = match == 'Exact' or (limit > 0 and not match)
    if revision == 0:
        limit = 0  # as in a cache, which has no pages
    shown = request.known(store.revision)
    if revision is not None and revision > shown:
        raise too_large(revision, shown)
    at = shown if shown < store.revision else 0
    last: Key | None = None
    if token:
        if revision:
            raise BadRequest("specifying resource version is not allowed when using continue")
        at, last = paging.parse_token(token)
    elif is_exact and revision:
        at = revision
    name = selected_name(request.query)
    try:
        if name and at <= 0 and (request.namespace or not request.kind.namespaced):
            entries = list(filter(None, [store.get(resource, (request.namespace, name))]))
        else:
            entries = list(store.select_at(at, resource, request.namespace, last) if at > 0 else
                           store.select(resource, request.namespace, last))
    except TooOld:
        raise paging.expired(last) if last is not None else Expired(
            "The resourceVersion for the provided list is too old.") from None
    shown = at if at > 0 else shown
    metadata: Obj = {'resourceVersion': str(shown)}
    if selection.shards and not request.kind.custom and not request.accepted.shape:
        metadata['shardInfo'] = {'selector': str(selection.shards)}
    chosen = filter(selection.matches, entries) if selection else iter(entries)
    found = list(itertools.islice(chosen, limit or None))
    if next(chosen, None) is not None:
        metadata['continue'] = paging.make_token(shown, found[-1].key)
        if not (selection.labels or selection.fields):  # that shards are selected does not count
            metadata['remainingItemCount'] = len(entries) - limit
    return found, metadata


def encode_list(
        cluster: Cluster, request: Request, entries: Sequence[Entry], metadata: Obj,
) -> bytes:
    kind = request.kind
    objects.demand(kind, (entry.raw for entry in entries))
    if request.accepted.shape == 'Table':
        found = [encoding.decode_own(objects.view(kind, entry.raw)) for entry in entries]
        return encoding.encode(tables.Maker(request, cluster.clock()).table(found, metadata))
    if request.accepted.shape:
        version = request.accepted.version
        return encoding.encode({
            'kind': 'PartialObjectMetadataList', 'apiVersion': f'{META_GROUP}/{version}',
            'metadata': metadata,
            'items': [tables.partial(encoding.decode_own(objects.view(kind, entry.raw)), version)
                      for entry in entries],
        })
    return encode_items(kind, [objects.item(kind, entry.raw) for entry in entries], metadata)


def encode_items(kind: Kind, items: list[bytes], metadata: Obj) -> bytes:
    listed = b','.join(items)
    if kind.custom:
        metadata = {'continue': '', **metadata}
        head = encoding.encode({'apiVersion': kind.api_version})[:-1]
        tail = encoding.encode_sorted({'kind': kind.list_kind, 'metadata': metadata})[1:]
        return b'%s,"items":[%s],%s' % (head, listed, tail)
    head = encoding.encode({
        'kind': kind.list_kind, 'apiVersion': kind.api_version, 'metadata': metadata})[:-1]
    return b'%s,"items":[%s]}' % (head, listed)
