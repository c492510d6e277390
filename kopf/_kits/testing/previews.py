"""
Previews: what handlers of `kopf.reconcile` would create, change, and delete, without a cluster.
"""
import copy
import dataclasses
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, diffs, references
from kopf._core.engines.reconciling import children, desired
from kopf._core.intents import causes, handlers
from kopf._kits.sandbox import kinds

MANAGER = 'kopf/testing'

OWN_LABELS = frozenset({desired.OWNER_LABEL, desired.HANDLER_LABEL})


class GivenChildren(children.OperatorChildren):
    """The owned resources that exist in a test, with all fields of their manifests."""
    __slots__ = ('manifests',)

    def __init__(self, parent: bodies.Body, manifests: Iterable[Mapping[str, Any]]) -> None:
        store, uid = children.ChildStore(), str(parent.metadata.uid)
        super().__init__(store, uid, parent.metadata.namespace)
        self.manifests: dict[desired.Key, Mapping[str, Any]] = {}
        label = store.register(MANAGER)
        for manifest in manifests:
            raw: Any = copy.deepcopy(dict(manifest))
            group, kind = raw['apiVersion'].rpartition('/')[0], raw['kind']
            resource = guess_resource(group, kind)
            given = raw.get('metadata') or {}
            place = {'namespace': parent.metadata.namespace} if resource.namespaced else {}
            meta = raw['metadata'] = {'name': parent.metadata.name, **place, **given}
            key = desired.Key(group, kind, meta.get('namespace'), meta['name'])
            self.manifests[key] = raw
            labels = {desired.OWNER_LABEL: uid, desired.HANDLER_LABEL: label}
            known: Any = {**raw, 'metadata': {
                'uid': str(uuid.uuid4()), **meta,
                'labels': {**(meta.get('labels') or {}), **labels},
                'managedFields': [{
                    'manager': MANAGER, 'operation': 'Apply',
                    'fieldsV1': {f'f:{key}': {} for key in raw}}]}}
            store.accept(resource, known)


@dataclasses.dataclass(frozen=True)
class Preview:
    """What the result of a handler means, by the names of the owned resources."""
    children: tuple[bodies.RawBody, ...] = ()
    created: tuple[str, ...] = ()
    changed: Mapping[str, diffs.Diff] = dataclasses.field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Why there are no owned resources for some of the manifests."""


def preview(
        result: object,
        given: GivenChildren,
        *,
        cause: causes.ReconcilingCause,
        handler: handlers.ReconcilingHandler,
        settings: configuration.OperatorSettings,
) -> Preview:
    """Find what Kopf would do if these owned resources were as the handler has left them."""
    if result is None:
        return Preview()

    def find(key: tuple[str, str]) -> references.Resource | None:
        resource = guess_resource(*key)
        is_known = any(key == (item.group, item.kind) for item in kinds.builtin_kinds())
        is_unowned = is_known and not any(selector.check(resource) for selector in handler.owns)
        return None if is_unowned else resource

    wanted, errors = desired.prepare(
        result, parent=cause.body, find=find,
        manager=desired.get_manager(settings.reconciling.manager, handler.id))
    uid = str(cause.body.metadata.uid)
    known = {
        key: raw for key, raw in given.manifests.items()
        if 'deletionTimestamp' not in raw['metadata']}  # it is left alone until it is gone
    found = {
        str(key): diffs.diff(_reduce(known[key], uid), _reduce(item.manifest, uid))
        for key, item in wanted.items() if key in known}
    is_pruning = handler.prune and not errors
    manifests: Any = [item.manifest for item in wanted.values()]
    return Preview(
        children=tuple(manifests),
        created=tuple(str(key) for key in wanted if key not in given.manifests),
        changed={name: diff for name, diff in found.items() if diff},
        deleted=tuple(str(key) for key in known if is_pruning and key not in wanted),
        problems=tuple(map(str, errors)))


def _reduce(raw: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    """Leave out what only Kopf or the API server sets, and empty mappings in the metadata."""
    meta = {key: val for key, val in raw['metadata'].items() if key not in desired.SYSTEM_FIELDS}
    for field in ('labels', 'annotations'):
        meta[field] = {
            key: val for key, val in (meta.get(field) or {}).items()
            if key not in OWN_LABELS and key != desired.DIGEST_ANNOTATION}
    meta['ownerReferences'] = [
        ref for ref in meta.get('ownerReferences') or () if ref.get('uid') != uid]
    content = {key: val for key, val in raw.items() if key != 'status'}
    return {**content, 'metadata': {key: val for key, val in meta.items() if val}}


def guess_resource(group: str, kind: str, version: str | None = None) -> references.Resource:
    """Get the resource of a kind: as the sandbox has it, or else as most CRDs would."""
    found = next(
        (item.as_resource() for item in kinds.builtin_kinds()
         if (item.group, item.kind) == (group, kind)),
        references.Resource(group, 'v1', f'{kind.lower()}s', kind=kind, namespaced=True))
    return found if version is None else dataclasses.replace(found, version=version)
