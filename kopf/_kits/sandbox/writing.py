"""
Writing: creating, replacing, patching and deleting objects, with all that the API does to them.

A write is based on the state that was read before. If the object changes in between, while
admission webhooks are called, the whole operation is repeated.
"""
import contextlib
import copy
import random
from collections.abc import Callable

from kopf._kits.sandbox import encoding, managedfields, objects, reading, rules, wordings
from kopf._kits.sandbox.admission import Admission
from kopf._kits.sandbox.cluster import Cluster, stored_resource
from kopf._kits.sandbox.conversions import prepare_write
from kopf._kits.sandbox.deleting import (
    Deletion,
    delete_entry,
    is_released,
    parse_deletion,
    succeeded,
)
from kopf._kits.sandbox.kinds import get_traits
from kopf._kits.sandbox.metadata import generate_name
from kopf._kits.sandbox.patchrequests import Patch
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.statuses import (
    AlreadyExists,
    APIError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Obj,
)
from kopf._kits.sandbox.storage import Entry

ATTEMPTS = 5
_rng = random.Random()


class Writer:
    """Carries out the writing verbs; each returns the code and the object or status as JSON."""

    def __init__(self, cluster: Cluster, admission: Admission) -> None:
        self._cluster = cluster
        self.admission = admission

    async def create(self, request: Request) -> tuple[int, bytes]:
        request.check_options('CreateOptions')
        obj = objects.decode_object(request, self._cluster.kinds)
        return 201, self._shown(request, await self.create_object(request, obj))

    async def create_object(self, request: Request, obj: Obj) -> Obj:
        """Create a decoded object; returns it as it is stored (or would be, on a dry run)."""
        cluster, kind = self._cluster, request.kind
        self._place(request, obj)
        metadata = obj['metadata']
        if request.name and not metadata.get('name'):
            metadata['name'] = request.name
        if metadata.get('resourceVersion'):
            raise APIError("resourceVersion should not be set on objects to be created", reason='')
        self._check_namespace(request, metadata.get('name', ''))
        if kind.terminating:
            raise Forbidden.to(
                "create not allowed while custom resource definition is terminating",
                group=kind.group, plural=kind.plural, name=metadata.get('name', ''))
        for field in ('deletionTimestamp', 'deletionGracePeriodSeconds', 'selfLink'):
            metadata.pop(field, None)
        metadata['uid'] = cluster.new_uid()
        metadata['creationTimestamp'] = cluster.now()
        if not metadata.get('name') and metadata.get('generateName'):
            metadata['name'] = generate_name(metadata['generateName'], _rng)
        obj = self._completed(request, obj, None)
        if not request.applies:
            managedfields.track(request, None, obj, cluster.now())
        obj = rules.prepare_creation(cluster, kind, obj)
        obj = await self._admitted(request, obj, None)
        if self.admission.concerns(request, 'CREATE'):  # that took some time
            self._check_namespace(request, metadata.get('name', ''))
        key = (request.namespace, obj['metadata']['name'])
        present = cluster.store.get(stored_resource(kind), key)
        if present is not None:
            raise AlreadyExists(
                kind.group, kind.plural, key[1],
                is_being_deleted='deletionTimestamp' in present.decode()['metadata'])
        if request.dry_run:
            return obj
        return cluster.put(kind, obj)

    async def update(self, request: Request) -> tuple[int, bytes]:
        request.check_options('UpdateOptions')
        obj = objects.decode_object(request, self._cluster.kinds)
        check_name(request, obj)
        self._place(request, obj)
        if self.creates(request):
            obj['metadata'].pop('resourceVersion', None)
            return 201, self._shown(request, await self.create_object(request, obj))
        return 200, self._shown(
            request, await self.change(request, lambda old: copy.deepcopy(obj), replacing=True))

    async def patch(self, request: Request) -> tuple[int, bytes]:
        patch = Patch(self._cluster, request)
        if self.creates(request):
            obj = patch.apply(None)
            return 201, self._shown(request, await self.create_object(request, obj))
        return 200, self._shown(request, await self.change(request, patch.apply))

    def creates(self, request: Request) -> bool:
        """Whether the request, if it is an update or a patch, creates the object."""
        can_create = request.applies or bool(
            request.verb == 'update' and get_traits(request.kind.resource).get('creatable'))
        key = (request.namespace, request.name)
        return can_create and not request.subresource and (
            self._cluster.store.get(stored_resource(request.kind), key) is None)

    async def change(
            self, request: Request, changed: Callable[[Obj], Obj], *, replacing: bool = False,
    ) -> Obj:
        """
        Make an object into what ``changed`` makes of a copy of it; returns it as it is then.

        ``replacing`` is for a whole object sent by the client: it may be based on nothing.
        """
        cluster, kind = self._cluster, request.kind
        key = (request.namespace, request.name)
        for attempt in range(ATTEMPTS):
            entry = cluster.get(kind, key)
            old = cluster.load(kind, entry)
            new = changed(cluster.load(kind, entry))
            self._check_revision(request, new, entry, replacing)
            if not replacing:
                check_name(request, new)
                self._place(request, new)
            new = self._completed(request, new, old)
            if not request.applies:
                managedfields.track(request, old, new, cluster.now())
            new = await self._admitted(request, new, old)
            if cluster.store.get(stored_resource(kind), key) is entry:
                break
            if attempt == ATTEMPTS - 1 or (replacing and new['metadata'].get('resourceVersion')):
                raise Conflict.on(kind.group, kind.plural, request.name)
        return self._commit(request, new, old, entry)

    async def _admitted(self, request: Request, new: Obj, old: Obj | None) -> Obj:
        """The object as webhooks make it; it is completed again after them, and validated."""
        operation = 'UPDATE' if old is not None else 'CREATE'
        changed = await self.admission.mutate(request, operation, new, old)
        if changed is not None and changed is not new:
            self._place(request, changed)
            new = self._completed(request, changed, old)
            if old is None:
                new = rules.prepare_creation(self._cluster, request.kind, new)
        rules.validate(request.kind, new, old, request.subresource)
        request.warnings.extend(rules.warn(request.kind, new, old))
        await self.admission.validate(request, operation, new, old)
        await prepare_write(self._cluster, request.kind, new)
        return new

    def _completed(self, request: Request, new: Obj, old: Obj | None) -> Obj:
        new = rules.complete(request.kind, new, nulls=request.applies)
        if old is None:
            return new
        _keep_metadata(new, old)
        return rules.prepare_update(self._cluster, request.kind, new, old, request.subresource)

    def _commit(self, request: Request, new: Obj, old: Obj, entry: Entry) -> Obj:
        cluster, kind = self._cluster, request.kind
        new['metadata']['resourceVersion'] = old['metadata']['resourceVersion']
        managedfields.keep_times(new, old)
        if request.dry_run:
            return new
        if is_released(kind, new):
            cluster.remove(kind, entry.key, copy.deepcopy(new))
            return new
        if new == old and cluster.is_current(kind, entry):
            return new
        return cluster.put(kind, new)

    async def delete(self, request: Request) -> tuple[int, bytes]:
        cluster, kind = self._cluster, request.kind
        deletion = parse_deletion(request)
        entry = cluster.get(kind, (request.namespace, request.name))
        deletion.check(kind, entry)
        gone, raw = await self._delete(request, entry, deletion)
        if gone and not get_traits(kind.resource).get('returned'):
            return 200, encoding.encode(succeeded(kind, entry))
        return 200, reading.shaped(cluster, request, raw)

    async def delete_collection(self, request: Request) -> tuple[int, bytes]:
        cluster, kind = self._cluster, request.kind
        deletion = parse_deletion(request)
        reading.check_list_options(request)
        selection = reading.selection_of(request)
        found, metadata = reading.page(cluster, request, selection)
        objects.demand(kind, [entry.raw for entry in found])
        shown: list[bytes] = []
        for entry in found:
            with contextlib.suppress(NotFound):
                _, raw = await self._delete(request, entry, deletion)
                shown.append(objects.item(kind, raw))
        return 200, reading.encode_items(kind, shown, {'resourceVersion': str(
            cluster.store.revision), **{k: v for k, v in metadata.items()
                                       if k in ('continue', 'shardInfo')}})

    async def _delete(
            self, request: Request, entry: Entry, deletion: Deletion,
    ) -> tuple[bool, bytes]:
        """Delete an object if it may be; returns as `delete_entry`."""
        cluster, kind, admission = self._cluster, request.kind, self.admission
        old = cluster.load(kind, entry)
        await prepare_write(cluster, kind, old)
        rules.check_deletion(request, entry)
        if admission.concerns(request, 'DELETE'):
            await admission.mutate(request, 'DELETE', None, old)
            await admission.validate(request, 'DELETE', None, old)
        current = cluster.get(kind, entry.key)
        deletion.check(kind, current)
        return delete_entry(cluster, request, current, deletion)

    # Checks that need the request.

    def _place(self, request: Request, obj: Obj) -> None:
        metadata = obj['metadata']
        namespace = metadata.get('namespace') or ''
        if namespace and namespace != request.namespace:
            raise BadRequest("the namespace of the provided object does not match "
                             "the namespace sent on the request")
        if request.kind.namespaced:
            metadata['namespace'] = request.namespace
        else:
            metadata.pop('namespace', None)

    def _check_revision(self, request: Request, new: Obj, entry: Entry, replacing: bool) -> None:
        kind, metadata = request.kind, new['metadata']
        revision = metadata.get('resourceVersion') or ''
        if replacing and metadata.get('uid') and metadata['uid'] != entry.uid:
            path = '/'.join(filter(None, (kind.group, kind.plural, *entry.key)))
            raise Conflict.on(
                kind.group, kind.plural, request.name,
                f"StorageError: invalid object, Code: 4, Key: /registry/{path}, ResourceVersion: "
                f"0, AdditionalErrorMsg: Precondition failed: UID in precondition: "
                f"{metadata['uid']}, UID in object meta: {entry.uid}")
        if not revision or revision == '0':
            if replacing and kind.custom:
                raise Invalid.on(kind.group, kind.plural, request.name, [
                    wordings.invalid(
                        'metadata.resourceVersion', 0, "must be specified for an update")])
        elif not (revision.isdecimal() and revision.isascii()):
            raise APIError(f'strconv.ParseUint: parsing "{revision}": invalid syntax', reason='')
        elif int(revision) != entry.revision:
            raise Conflict.on(kind.group, kind.plural, request.name)

    def _check_namespace(self, request: Request, name: str) -> None:
        if not request.namespace:
            if request.kind.namespaced:
                raise BadRequest("an empty namespace may not be set during creation")
            return
        namespace = self._cluster.namespace(request.namespace)
        if namespace is None:
            raise NotFound('', 'namespaces', request.namespace)
        if namespace['metadata'].get('deletionTimestamp'):
            kind = request.kind
            why = (f"unable to create new content in namespace {request.namespace} "
                   "because it is being terminated")
            error = Forbidden.to(why, group=kind.group, plural=kind.plural, name=name)
            error.details = {**(error.details or {}), 'causes': [{
                'reason': 'NamespaceTerminating',
                'message': f"namespace {request.namespace} is being terminated",
                'field': 'metadata.namespace'}]}
            raise error

    def _shown(self, request: Request, obj: Obj) -> bytes:
        raw = objects.encode_object(request.kind, obj)
        return reading.shaped(self._cluster, request, raw)


def check_name(request: Request, obj: Obj) -> None:
    """Raises `BadRequest` if the object has another name than the URL, or none."""
    name = obj['metadata'].get('name') or ''
    if not name:
        raise BadRequest(f"the name of the object ({request.name} based on URL) was "
                         "undeterminable: name must be provided")
    if name != request.name:
        raise BadRequest(f"the name of the object ({name}) does not match "
                         f"the name on the URL ({request.name})")


#: What clients cannot change; where they leave it out, it stays.
_KEPT = ('uid', 'deletionTimestamp', 'deletionGracePeriodSeconds')


def _keep_metadata(new: Obj, old: Obj) -> None:
    metadata, kept = new['metadata'], old['metadata']
    metadata.pop('selfLink', None)
    for key in _KEPT:
        if not metadata.get(key) and key in kept:
            metadata[key] = kept[key]
    for key in ('creationTimestamp', 'generation', 'resourceVersion'):
        if key in kept:
            metadata[key] = kept[key]
        else:
            metadata.pop(key, None)

