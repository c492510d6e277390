"""
Versions: a kind with an old and a new version, whose objects the operator converts for the API
server. In ``v1alpha1``, an archive has a size in gigabytes and one owner; in ``v1``, a size in any
unit and several owners. The handlers know only ``v1``, whatever version a user writes. What the old
version cannot express is kept in an annotation, so it survives an edit in the old version. Type
``kopf run --sandbox -A examples/24-versions/example.py``, then ``kubectl apply -f
examples/24-versions/obj.yaml``, which is of the old version. See the object in both versions with
``kubectl get archives.v1.example.com -o yaml`` and ``kubectl get archives.v1alpha1.example.com -o
yaml``. On a cluster, the API server must reach the operator, as for admission handlers (see
``examples/13-admission``); apply ``crd.yaml`` first. The tests are in ``test_example.py``.
"""
import dataclasses
import decimal

import kopf

GB = decimal.Decimal(1000 ** 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveSpec:
    size: kopf.Quantity = kopf.Quantity('1G')
    owners: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OldArchiveSpec:
    size_gb: int = 1  # In the API: sizeGb.
    owner: str | None = None


@kopf.crd('example.com', 'v1', plural='archives', storage=True)
class Archive:
    spec: ArchiveSpec = ArchiveSpec()


@kopf.crd('example.com', 'v1alpha1', of=Archive, deprecated="Use v1 of archives.")
class OldArchive:
    spec: OldArchiveSpec = OldArchiveSpec()


def to_gb(size):
    return max(1, int(kopf.Quantity(size).value / GB))


def to_v1(archive):
    spec = archive.get('spec', {})
    if 'owner' in spec:
        spec['owners'] = [spec.pop('owner')]


def to_v1alpha1(archive):
    spec = archive.get('spec', {})
    owners = spec.pop('owners', [])
    if owners:
        spec['owner'] = owners[0]


kopf.convert(
    OldArchive, Archive, kopf.Move('.spec.sizeGb', '.spec.size', up='{}G'.format, down=to_gb),
    up=to_v1, down=to_v1alpha1)


@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = 'archives.example.com'


@kopf.on.create(Archive)
def create(spec: ArchiveSpec, name, logger, **_):
    logger.info(f"{name} has {spec.size} for {', '.join(spec.owners) or 'nobody'}.")


@kopf.on.update(Archive, field='spec.size')
def resize(old: kopf.Quantity, new: kopf.Quantity, logger, **_):
    logger.info(f"Resized from {old} to {new}.")
