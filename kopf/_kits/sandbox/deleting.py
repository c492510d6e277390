"""
Deleting: at once, or by a timestamp where finalizers, grace or contents hold the object back.
"""
import datetime
from dataclasses import dataclass

from kopf._kits.sandbox import encoding, objects, wordings
from kopf._kits.sandbox.cluster import CRDS, NAMESPACES, Cluster
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.requests import META_GROUP, Request, dry_run_causes
from kopf._kits.sandbox.schemas import decoding, definitions
from kopf._kits.sandbox.statuses import BadRequest, Cause, Conflict, Invalid, Obj, described
from kopf._kits.sandbox.storage import Entry

FOREGROUND = 'foregroundDeletion'
ORPHAN = 'orphan'
CRD_CLEANUP = 'customresourcecleanup.apiextensions.k8s.io'
#: Finalizers of what other controllers of a cluster protect while it is used: nothing uses it here.
PROTECTIONS = ('kubernetes.io/pvc-protection', 'kubernetes.io/pv-protection')
RELEASED = (FOREGROUND, ORPHAN, *PROTECTIONS)
POLICIES = ('Foreground', 'Background', 'Orphan')
OPTIONS = 'io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions'


@dataclass(frozen=True, slots=True)
class Deletion:
    """The options of a deletion, however they were given."""
    policy: str = ''
    grace: int | None = None
    dry_run: bool = False
    uid: str = ''
    revision: str = ''

    def check(self, kind: Kind, entry: Entry) -> None:
        """Raise `Conflict` if the preconditions of the deletion do not hold."""
        for what, wanted, actual, done in (
                ('UID', self.uid, entry.uid, "deleted and then recreated"),
                ('ResourceVersion', self.revision, str(entry.revision), "modified")):
            if wanted and wanted != actual:
                raise Conflict.on(
                    '', kind.kind, entry.key[1],
                    f"the {what} in the precondition ({wanted}) does not match the {what} in "
                    f"record ({actual}). The object might have been {done}")


def parse_deletion(request: Request) -> Deletion:
    """The options in the body; without a body, those in the query."""
    options: Obj = {
        'propagationPolicy': request.option('propagationPolicy') or None,
        'gracePeriodSeconds': request.number('gracePeriodSeconds'),
        'dryRun': list(request.query.get('dryRun', ())),
        'orphanDependents':
            request.flag('orphanDependents') if request.option('orphanDependents') else None,
    }
    if request.body.strip():
        try:
            found = objects.decode_dict(request.body, request.media_type)
            options, _ = decoding.decode(definitions.define(OPTIONS), found)
        except (encoding.DecodingError, decoding.Undecodable) as e:
            raise BadRequest(str(e)) from None
        if (options.get('kind') or 'DeleteOptions') != 'DeleteOptions':
            raise BadRequest(
                f'no kind "{options["kind"]}" is registered for version '
                f'"{options.get("apiVersion", "meta.k8s.io/v1")}" '
                'in scheme "pkg/runtime/scheme.go:111"')
    policy, orphans = options.get('propagationPolicy'), options.get('orphanDependents')
    grace, dry_run = options.get('gracePeriodSeconds'), options.get('dryRun') or []
    preconditions = options.get('preconditions') or {}
    causes: list[Cause] = []
    if policy and orphans is not None:
        causes.append(wordings.invalid(
            'propagationPolicy', policy,
            "orphanDependents and deletionPropagation cannot be both set"))
    elif policy and policy not in POLICIES:
        causes.append(wordings.unsupported('propagationPolicy', policy, [*POLICIES, 'nil']))
    causes += dry_run_causes(dry_run)
    if causes:
        raise Invalid.on(META_GROUP, 'DeleteOptions', '', causes)
    if orphans is not None:
        policy = 'Orphan' if orphans else 'Background'
    return Deletion(
        policy=policy or '',
        grace=None if grace is None else max(grace, 1) if grace < 0 else grace,
        dry_run=bool(dry_run) or request.dry_run,
        uid=preconditions.get('uid') or '',
        revision=preconditions.get('resourceVersion') or '',
    )


def delete_entry(
        cluster: Cluster, request: Request, entry: Entry, deletion: Deletion,
) -> tuple[bool, bytes]:
    """
    Delete a stored object, or begin to. Returns whether it is gone, and its last state.
    """
    kind = request.kind
    obj = cluster.load(kind, entry)
    metadata = obj['metadata']
    finalizers = _finalizers(metadata.get('finalizers') or [], deletion.policy)
    if kind.resource == CRDS and CRD_CLEANUP not in finalizers and cluster.is_served(obj):
        finalizers.append(CRD_CLEANUP)
    metadata.pop('finalizers', None)
    if finalizers:
        metadata['finalizers'] = finalizers
    grace = _grace(kind, obj, deletion.grace)
    if grace and cluster.origin.get(kind.resource, entry.key) is not None:
        grace = 0  # it runs elsewhere, where nobody hears of its deletion
    held = bool(finalizers) or grace > 0 or (
        kind.resource == NAMESPACES and bool(obj.get('spec', {}).get('finalizers')))
    if held:
        _mark(cluster, kind, obj, grace)
        if not deletion.dry_run and obj != cluster.load(kind, entry):
            obj = cluster.put(kind, obj)
        return False, objects.encode_object(kind, obj)
    if deletion.dry_run:
        return True, objects.view(kind, entry.raw)
    if deletion.grace == 0 and 'deletionGracePeriodSeconds' in metadata:
        metadata['deletionGracePeriodSeconds'] = 0
    gone = cluster.remove(kind, entry.key, obj)
    if kind.conversion is not None:  # another conversion would repeat the deletion
        return True, objects.encode_object(
            kind, {**obj, 'metadata': {**metadata, 'resourceVersion': str(gone.revision)}})
    return True, objects.view(kind, gone.raw)


def _mark(cluster: Cluster, kind: Kind, obj: Obj, grace: int) -> None:
    metadata = obj['metadata']
    if 'deletionTimestamp' in metadata:
        if grace < metadata.get('deletionGracePeriodSeconds', 0):
            metadata['deletionGracePeriodSeconds'] = grace
        return
    time = cluster.clock() + datetime.timedelta(seconds=grace)
    metadata['deletionTimestamp'] = time.strftime('%Y-%m-%dT%H:%M:%SZ')
    if kind.resource == CRDS:
        return
    if kind.resource == NAMESPACES:
        obj['status'] = {**(obj.get('status') or {}), 'phase': 'Terminating'}
        return
    metadata['deletionGracePeriodSeconds'] = grace
    if metadata.get('generation'):
        metadata['generation'] += 1


def _finalizers(finalizers: list[str], policy: str) -> list[str]:
    if not policy:
        return list(finalizers)
    added = {'Foreground': [FOREGROUND], 'Orphan': [ORPHAN]}.get(policy, [])
    return [name for name in finalizers if name not in (FOREGROUND, ORPHAN)] + added


def _grace(kind: Kind, obj: Obj, wanted: int | None) -> int:
    """Only pods on nodes are given time, as only they run."""
    spec, status = obj.get('spec') or {}, obj.get('status') or {}
    if kind.resource != ('', 'pods') or not spec.get('nodeName') \
            or status.get('phase') in ('Failed', 'Succeeded'):
        return 0
    if wanted is not None:
        return wanted
    given = spec.get('terminationGracePeriodSeconds')
    return 30 if given is None else max(int(given), 0)


def is_released(kind: Kind, obj: Obj) -> bool:
    """Whether nothing holds an object any more that is being deleted."""
    metadata = obj['metadata']
    return bool(
        metadata.get('deletionTimestamp')
        and not metadata.get('finalizers')
        and not metadata.get('deletionGracePeriodSeconds')
        and not (kind.resource == NAMESPACES and (obj.get('spec') or {}).get('finalizers')))


def succeeded(kind: Kind, entry: Entry) -> Obj:
    """The status that tells of a successful deletion."""
    return {'kind': 'Status', 'apiVersion': 'v1', 'metadata': {}, 'status': 'Success', 'details': {
        **described(entry.key[1], kind.group, kind.plural), 'uid': entry.uid}}

