"""
Garbage collection after deletions: of owned resources, contents of namespaces, and objects of CRDs.

As the controllers of a cluster, it works soon after the requests, as users of the system. Its own
requests go through admission.
"""
import asyncio
import collections
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.cluster import CRDS, NAMESPACES, Cluster, stored_resource
from kopf._kits.sandbox.deleting import CRD_CLEANUP, FOREGROUND, ORPHAN, PROTECTIONS, RELEASED
from kopf._kits.sandbox.kinds import Resource
from kopf._kits.sandbox.requests import Request, User
from kopf._kits.sandbox.statuses import APIError, NotFound, Obj, qualified, set_condition
from kopf._kits.sandbox.storage import Change, Entry, Item
from kopf._kits.sandbox.writing import Writer

logger = logging.getLogger(__name__)

Step = Callable[[Item, Entry], Awaitable[None]]

_MASTERS = ('system:masters', 'system:authenticated')
GARBAGE_COLLECTOR = User('system:serviceaccount:kube-system:generic-garbage-collector', _MASTERS)
NAMESPACE_CONTROLLER = User('system:serviceaccount:kube-system:namespace-controller', _MASTERS)
RETRY_DELAY = 1.0
#: Between a namespace being emptied and its end, in seconds: clients see the former first.
NAMESPACE_DELAY = 1.0


class Collector:
    """Runs while the sandbox runs. `hear` is called for every change, at once and in order."""

    def __init__(self, cluster: Cluster, writer: Writer) -> None:
        self._cluster = cluster
        self._writer = writer
        self._owners: dict[Item, tuple[str, ...]] = {}
        self._dependents: collections.defaultdict[str, dict[Item, None]] = \
            collections.defaultdict(dict)
        self._due: dict[tuple[Step, Item], None] = {}
        self._held: dict[str, Item] = {}
        self._woken = asyncio.Event()

    def hear(self, change: Change) -> None:
        item = (change.resource, change.new.key)
        has_new_owners = self._index(item, change)
        if change.type == 'DELETED':
            for dependent in self._dependents.get(change.new.uid, ()):
                self._enqueue(self._check, dependent)
            for step, container in (
                    (self._empty_namespace, (NAMESPACES, ('', change.new.key[0]))),
                    (self._empty_definition, (CRDS, ('', qualified(*change.resource))))):
                entry = self._cluster.store.get(*container)
                if entry is not None and b'"deletionTimestamp"' in entry.raw:
                    self._enqueue(step, container)
            return
        if has_new_owners:  # they can be absent
            self._enqueue(self._check, item)
        if b'"deletionTimestamp"' not in change.new.raw:
            return
        if change.resource == NAMESPACES:
            self._enqueue(self._empty_namespace, item)
        elif change.resource == CRDS:
            self._enqueue(self._empty_definition, item)
        if any(finalizer.encode() in change.new.raw for finalizer in RELEASED):
            self._enqueue(self._release, item)

    def restore(self) -> None:
        """Continue with the objects that were stored before."""
        for resource, entry in self._cluster.store.dump():
            self.hear(Change('ADDED', resource, entry.revision, entry, None))

    async def run(self) -> None:
        """Never ends by itself."""
        while True:
            while self._due:
                step, item = next(iter(self._due))
                del self._due[step, item]
                await self._carry_out(step, item)
            self._woken.clear()
            await self._woken.wait()

    async def _carry_out(self, step: Step, item: Item) -> None:
        entry = self._cluster.store.get(*item)
        if entry is None:
            return
        try:
            await step(item, entry)
        except NotFound:
            pass
        except APIError as e:
            logger.debug("Will try again to collect %s: %s", item, e)
            asyncio.get_running_loop().call_later(RETRY_DELAY, self._enqueue, step, item)
        except Exception:
            logger.exception("The sandbox has failed to collect %s.", item)

    def _enqueue(self, step: Step, item: Item) -> None:
        self._due[step, item] = None
        self._woken.set()

    def _index(self, item: Item, change: Change) -> bool:
        """Note the owners of the object; return whether there are new ones."""
        old = self._owners.pop(item, ())
        new: tuple[str, ...] = ()
        if change.type != 'DELETED' and b'"ownerReferences":[' in change.new.raw:
            refs = encoding.decode_own(change.new.raw)['metadata'].get('ownerReferences') or ()
            new = tuple(ref['uid'] for ref in refs)
            self._owners[item] = new
        for uid in set(old) - set(new):
            dependents = self._dependents[uid]
            dependents.pop(item, None)
            if not dependents:
                del self._dependents[uid]
            owner = self._held.pop(uid, None)
            if owner is not None:
                self._enqueue(self._release, owner)
        for uid in new:
            self._dependents[uid][item] = None
        return not set(new) <= set(old)

    # Owners and dependents.

    async def _check(self, item: Item, entry: Entry) -> None:
        """Delete a dependent that has lost its owners, or drop those that it has lost."""
        obj = entry.decode()
        refs = obj['metadata'].get('ownerReferences') or []
        if not refs:
            return
        owners = [(ref, *self._find_owner(item, entry, ref)) for ref in refs]
        if any(unknown for _, _, unknown in owners):
            return
        absent = [ref['uid'] for ref, owner, _ in owners if owner is None]
        waiting = [ref['uid'] for ref, owner, _ in owners
                   if owner is not None and _is_waiting(owner) and ref.get('blockOwnerDeletion')]
        if len(absent) + len(waiting) < len(refs):
            if absent or waiting:
                await self._drop_owners(item, {*absent, *waiting})
            return
        if 'deletionTimestamp' in obj['metadata']:
            return
        finalizers = obj['metadata'].get('finalizers') or ()
        policy = 'Orphan' if ORPHAN in finalizers else 'Foreground' \
            if FOREGROUND in finalizers or (waiting and self._dependents.get(entry.uid)) \
            else 'Background'
        await self._delete(item, GARBAGE_COLLECTOR, policy, entry.uid)

    def _find_owner(
            self, item: Item, entry: Entry, ref: Mapping[str, Any],
    ) -> tuple[Obj | None, bool]:
        """The owner, if it is there, and whether nobody can know."""
        kind = self._cluster.kinds.named(ref.get('apiVersion', ''), ref.get('kind', ''))
        namespace = item[1][0]
        if kind is None or (kind.namespaced and not namespace):
            return None, True
        key = (namespace if kind.namespaced else '', ref.get('name', ''))
        owner = stored_resource(kind)
        found = self._cluster.store.get(owner, key)
        if found is None or found.uid != ref.get('uid'):
            return None, self._cluster.origin.can_have(entry, item[0], owner, str(ref.get('uid')))
        return found.decode(), False

    async def _release(self, item: Item, entry: Entry) -> None:
        """Remove the finalizer of an object whose dependents are deleted or orphaned."""
        metadata = entry.decode()['metadata']
        finalizers = metadata.get('finalizers') or []
        if 'deletionTimestamp' not in metadata or self._is_left(item):
            return
        dependents = list(self._dependents.get(entry.uid, ()))
        for protection in set(finalizers) & set(PROTECTIONS):
            await self._drop_finalizer(item, protection)
        if ORPHAN in finalizers:
            for dependent in dependents:
                with contextlib.suppress(NotFound):
                    await self._drop_owners(dependent, {entry.uid})
            await self._drop_finalizer(item, ORPHAN)
        elif FOREGROUND in finalizers:
            blocking = [dependent for dependent in dependents if self._blocks(dependent, entry.uid)]
            if not blocking:
                await self._drop_finalizer(item, FOREGROUND)
            else:
                self._held[entry.uid] = item
                for dependent in blocking:
                    self._enqueue(self._check, dependent)

    def _blocks(self, item: Item, uid: str) -> bool:
        entry = self._cluster.store.get(*item)
        refs = [] if entry is None else entry.decode()['metadata'].get('ownerReferences') or []
        return any(ref['uid'] == uid and ref.get('blockOwnerDeletion') for ref in refs)

    def _is_left(self, item: Item) -> bool:
        """
        Whether the cluster that the object comes from deletes it, and its contents and dependents.
        """
        obj = self._cluster.origin.get(*item)
        return obj is not None and 'deletionTimestamp' in obj['metadata']

    # Namespaces and definitions.

    async def _empty_namespace(self, item: Item, entry: Entry) -> None:
        if 'deletionTimestamp' not in entry.decode()['metadata']:
            return

        is_left = self._is_left(item)

        def contents() -> list[tuple[Resource, Entry]]:
            store = self._cluster.store
            return [(resource, found) for resource in store.resources()
                    for found in store.select(resource, entry.key[1])
                    if not is_left or self._cluster.origin.get(resource, found.key) is None]

        items = contents()
        if items:
            for resource, found in items:
                with contextlib.suppress(NotFound):
                    await self._delete((resource, found.key), NAMESPACE_CONTROLLER, 'Background')
            asyncio.get_running_loop().call_later(
                NAMESPACE_DELAY, self._enqueue, self._empty_namespace, item)
        if is_left:
            return
        remaining = contents()
        if remaining:
            await self._change(item, lambda obj: _told(obj, remaining, self._cluster.now()),
                               'status', NAMESPACE_CONTROLLER)
        if remaining or items:
            return

        def finalize(obj: Obj) -> Obj:
            kept = [f for f in obj.get('spec', {}).get('finalizers') or () if f != 'kubernetes']
            return {**obj, 'spec': {**obj.get('spec', {}), 'finalizers': kept}}

        await self._change(item, finalize, 'finalize', NAMESPACE_CONTROLLER)

    async def _empty_definition(self, item: Item, entry: Entry) -> None:
        crd = entry.decode()
        if CRD_CLEANUP not in (crd['metadata'].get('finalizers') or ()):
            return
        resource = (crd['spec']['group'], crd['spec']['names']['plural'])
        is_left = self._is_left(item)
        for found in list(self._cluster.store.select(resource)):
            if is_left and self._cluster.origin.get(resource, found.key) is not None:
                continue
            with contextlib.suppress(NotFound):
                await self._delete((resource, found.key), GARBAGE_COLLECTOR, 'Background')
        if not is_left and not self._cluster.store.count(resource):
            await self._drop_finalizer(item, CRD_CLEANUP)

    # Writing.

    async def _delete(self, item: Item, user: User, policy: str, uid: str = '') -> None:
        options: Obj = {'propagationPolicy': policy}
        if uid:
            options['preconditions'] = {'uid': uid}
        request = self._request('delete', item, user)
        request.body = encoding.encode(options)
        await self._writer.delete(request)

    async def _drop_owners(self, item: Item, uids: Iterable[str]) -> None:
        await self._keep(item, 'ownerReferences', lambda ref: ref['uid'] not in uids)

    async def _drop_finalizer(self, item: Item, finalizer: str) -> None:
        await self._keep(item, 'finalizers', lambda name: name != finalizer)

    async def _keep(self, item: Item, field: str, is_kept: Callable[[Any], bool]) -> None:
        def change(obj: Obj) -> Obj:
            kept = list(filter(is_kept, obj['metadata'].pop(field, None) or ()))
            if kept:
                obj['metadata'][field] = kept
            return obj

        await self._change(item, change, '', GARBAGE_COLLECTOR)

    async def _change(
            self, item: Item, change: Callable[[Obj], Obj], subresource: str, user: User,
    ) -> None:
        request = self._request('patch', item, user)
        request.subresource = subresource
        await self._writer.change(request, change)

    def _request(self, verb: str, item: Item, user: User) -> Request:
        resource, (namespace, name) = item
        return Request(
            verb=verb, kind=self._cluster.kind(resource), namespace=namespace, name=name,
            user=user, agent='kube-controller-manager')


def _is_waiting(owner: Obj) -> bool:
    metadata = owner['metadata']
    return 'deletionTimestamp' in metadata and FOREGROUND in (metadata.get('finalizers') or ())


def _told(namespace: Obj, remaining: list[tuple[Resource, Entry]], now: str) -> Obj:
    """The namespace with conditions that tell what is still in it."""
    counts = collections.Counter(resource for resource, _ in remaining)
    finalizers = collections.Counter(
        finalizer for _, entry in remaining
        for finalizer in entry.decode()['metadata'].get('finalizers') or ())
    resources = ', '.join(
        f"{qualified(*resource)} has {count} resource instances"
        for resource, count in sorted(counts.items()))
    held = ', '.join(f"{name} in {count} resource instances"
                     for name, count in sorted(finalizers.items()))
    told = [
        ('NamespaceDeletionDiscoveryFailure', 'False', 'ResourcesDiscovered',
         "All resources successfully discovered"),
        ('NamespaceDeletionGroupVersionParsingFailure', 'False', 'ParsedGroupVersions',
         "All legacy kube types successfully parsed"),
        ('NamespaceDeletionContentFailure', 'False', 'ContentDeleted',
         "All content successfully deleted, may be waiting on finalization"),
        ('NamespaceContentRemaining', 'True', 'SomeResourcesRemain',
         f"Some resources are remaining: {resources}"),
        ('NamespaceFinalizersRemaining', 'True', 'SomeFinalizersRemain',
         f"Some content in the namespace has finalizers remaining: {held}") if held else
        ('NamespaceFinalizersRemaining', 'False', 'ContentHasNoFinalizers',
         "All content-preserving finalizers finished"),
    ]
    status = namespace.get('status', {})
    conditions = list(status.get('conditions') or ())
    for condition in told:
        set_condition(conditions, now, *condition)
    return {**namespace, 'status': {**status, 'conditions': conditions}}
