"""
The rules of kinds: what an object is made into, and what is wrong with it.

Here the schemas of custom resources and the knowledge of the built-in kinds meet the server.
"""
from kopf._kits.sandbox import builtins, crdrules, crds, scaling, schemas
from kopf._kits.sandbox import metadata as metadata_rules
from kopf._kits.sandbox.cluster import CRDS, NAMESPACES, Cluster
from kopf._kits.sandbox.kinds import Kind, Resource
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.schemas import nodes
from kopf._kits.sandbox.statuses import Cause, Forbidden, Invalid, Obj
from kopf._kits.sandbox.storage import Entry

SERVICES: Resource = ('', 'services')
_PROTECTED = ('default', 'kube-system', 'kube-public')


def complete(kind: Kind, obj: Obj, *, nulls: bool = False) -> Obj:
    """
    Fill in what is there by default; the metadata stays the object's own.

    With ``nulls``, those of custom resources are kept to be refused, as in what is applied.
    """
    if kind.custom:
        made = schemas.default(schemas.schema_of(kind), obj, nulls=nulls)
    elif kind.resource == CRDS:
        made = crds.complete(obj)
    else:
        made = builtins.complete(kind, obj)
    return made if made is obj else {**made, 'metadata': dict(made['metadata'])}


def prepare_creation(cluster: Cluster, kind: Kind, obj: Obj) -> Obj:
    """Make of a (completed) object what the API makes of every new one, before it is admitted."""
    made = builtins.prepare_creation(kind, obj, used=_addresses(cluster, kind))
    if kind.resource == CRDS:
        spec = made.get('spec') or {}
        return {**made, 'status': crds.initial_status(made)} if spec.get('versions') else made
    return made if kind.custom else complete(kind, made)


def prepare_update(cluster: Cluster, kind: Kind, new: Obj, old: Obj, subresource: str) -> Obj:
    """A write to the status changes nothing else; one to the object, everything else."""
    if subresource == 'status':
        return _with_status_of(new, old)
    if subresource == 'finalize':
        return {**old, 'spec': {**old.get('spec', {}), 'finalizers': list(
            (new.get('spec') or {}).get('finalizers') or ())}}
    made = builtins.prepare_update(kind, new, old, used=_addresses(cluster, kind))
    if kind.resource == CRDS:  # a definition remembers what its objects were ever stored as
        stored = {'storedVersions': crds.stored_versions(made)}
        made['status'] = {**(made.get('status') or {}), **stored}
    return made


def _with_status_of(new: Obj, old: Obj) -> Obj:
    made = {**old, 'metadata': dict(old['metadata'])}
    made.pop('status', None)
    if 'status' in new:
        made['status'] = new['status']
    if 'managedFields' in new['metadata']:
        made['metadata']['managedFields'] = new['metadata']['managedFields']
    return made


def _addresses(cluster: Cluster, kind: Kind) -> frozenset[str]:
    if kind.resource != SERVICES:
        return frozenset()
    return frozenset(entry.decode().get('spec', {}).get('clusterIP', '')
                     for entry in cluster.store.select(SERVICES))


def validate(kind: Kind, new: Obj, old: Obj | None, subresource: str = '') -> None:
    """Raises `Invalid` with all that is wrong."""
    causes: list[Cause] = []
    if old is None:
        causes += metadata_rules.validate(new['metadata'], kind)
    else:
        causes += metadata_rules.validate_update(new['metadata'], old['metadata'], kind)
    if kind.custom:
        causes += schemas.validate(
            schemas.schema_of(kind), new, nodes.NOTHING if old is None else old)
        if kind.scaling is not None:
            causes += scaling.validate(kind.scaling, new)
    elif kind.resource == CRDS and subresource != 'status':
        causes += crdrules.validate(new, old)
    elif not subresource:
        causes += builtins.validate(kind, new)
        if old is not None:
            causes += builtins.validate_update(kind, new, old)
    if causes:
        name = new['metadata'].get('name') or ''
        raise Invalid.on(kind.group, kind.kind, name, causes)


def warn(kind: Kind, new: Obj, old: Obj | None) -> list[str]:
    """List the warnings about an accepted object."""
    texts = metadata_rules.warn(new['metadata'], {} if old is None else old['metadata'], kind)
    if kind.resource == CRDS:
        texts += crdrules.warn(new)
    return [*texts, kind.warning] if kind.warning else texts


def check_deletion(request: Request, entry: Entry) -> None:
    """Raises `Forbidden` for what must not be deleted."""
    if request.kind.resource == NAMESPACES and entry.key[1] in _PROTECTED:
        raise Forbidden.to("this namespace may not be deleted",
                           group='', plural='namespaces', name=entry.key[1])
