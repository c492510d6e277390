"""
Metadata of objects: their names, labels, annotations, finalizers, owners, and how they may change.

It is expected to be decoded: of the proper types, with no unknown fields, no nulls.
"""
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import kinds, naming, statuses, wordings

MAX_NAME = 63
MAX_ANNOTATIONS = 256 * 1024
RANDOM_CHARS = 'bcdfghjklmnpqrstvwxz2456789'
RANDOM_LENGTH = 5

STANDARD_FINALIZERS = ('orphan', 'foregroundDeletion', 'kubernetes')
IMMUTABLES = (
    'name', 'namespace', 'uid', 'creationTimestamp', 'deletionTimestamp',
    'deletionGracePeriodSeconds',
)

Meta = Mapping[str, Any]

_NAMES: Mapping[str, Callable[[str], list[str]]] = {
    'label': naming.check_label, 'segment': naming.check_segment, 'any': lambda name: []}
"""How names are checked that are no subdomains."""


def generate_name(prefix: str, rng: random.Random) -> str:
    """A name for an object that has only ``generateName``; it can turn out as taken or as bad."""
    suffix = ''.join(rng.choices(RANDOM_CHARS, k=RANDOM_LENGTH))
    return prefix[:MAX_NAME - RANDOM_LENGTH] + suffix


def validate(meta: Meta, kind: kinds.Kind) -> list[statuses.Cause]:
    """What is wrong with the metadata of an object to be created, in the API's order."""
    return [
        *_validate_names(meta, kind),
        *_validate_common(meta),
        *_validate_finalizers(meta, 'metadata', is_custom=kind.custom),
        *_validate_managers(meta),
    ]


def validate_embedded(meta: Meta, field: str) -> Iterator[statuses.Cause]:
    """What is wrong with the metadata of a resource in a custom resource; its name can be any."""
    namespace = meta.get('namespace')
    if namespace:
        yield from wordings.all_invalid(
            f'{field}.namespace', namespace, naming.check_label(namespace))
    yield from _validate_common(meta, field)
    yield from _validate_finalizers(meta, field, is_custom=True)
    yield from _validate_managers(meta, field)


def validate_update(new: Meta, old: Meta, kind: kinds.Kind) -> list[statuses.Cause]:
    """
    What is wrong with the metadata of an object to be updated.

    The fields that are the API's own are expected to be set to what they must be: then only
    those are here, and differ, that a client may not change. The API looks at most of it twice,
    and tells most of the causes twice.
    """
    twice = [*_validate_changes(new, old), *_validate_common(new)]
    finalizers = list(_validate_finalizers(new, 'metadata', is_custom=kind.custom))
    return twice + (twice + finalizers if kind.custom else finalizers + twice + finalizers)


def warn(meta: Meta, old: Meta, kind: kinds.Kind) -> list[str]:
    """Texts of warnings on what is accepted anyway: on finalizers with no domain."""
    if not kind.custom:
        return []
    return [
        f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to avoid '
        "accidental conflicts with other finalizer writers"
        for name in meta.get('finalizers') or ()
        if name not in STANDARD_FINALIZERS and '/' not in name
        and name not in (old.get('finalizers') or ())
    ]


def check_name(name: str, kind: kinds.Kind) -> list[str]:
    check = _NAMES.get(kinds.get_traits(kind.resource).get('named', ''), naming.check_subdomain)
    return check(name)


def _validate_names(meta: Meta, kind: kinds.Kind) -> Iterator[statuses.Cause]:
    prefix = meta.get('generateName') or ''
    if prefix:
        masked = f'{prefix[:-2]}a' if len(prefix) > 1 and prefix.endswith('-') else prefix
        yield from wordings.all_invalid('metadata.generateName', prefix, check_name(masked, kind))
    name = meta.get('name') or ''
    if not name:
        yield wordings.required('metadata.name', "name or generateName is required")
    else:
        yield from wordings.all_invalid('metadata.name', name, check_name(name, kind))


def _validate_changes(new: Meta, old: Meta) -> Iterator[statuses.Cause]:
    if old.get('deletionTimestamp') is not None:
        known = old.get('finalizers') or ()
        added = sorted({name for name in new.get('finalizers') or () if name not in known})
        if added:
            yield wordings.forbidden(
                'metadata.finalizers',
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{', '.join(map(wordings.shown, added))}}}")
    if new.get('generation', 0) < old.get('generation', 0):
        yield wordings.invalid(
            'metadata.generation', new.get('generation', 0), "must not be decremented")
    for key in IMMUTABLES:
        if new.get(key) != old.get(key):
            yield wordings.immutable(f'metadata.{key}', new.get(key))


def _validate_common(meta: Meta, field: str = 'metadata') -> Iterator[statuses.Cause]:
    if meta.get('generation', 0) < 0:
        yield wordings.invalid(
            f'{field}.generation', meta['generation'], "must be greater than or equal to 0")
    yield from _validate_labels(meta.get('labels') or {}, f'{field}.labels')
    yield from _validate_annotations(meta.get('annotations') or {}, f'{field}.annotations')
    yield from _validate_owners(meta.get('ownerReferences') or [], f'{field}.ownerReferences')


def _validate_labels(labels: Mapping[str, str], field: str) -> Iterator[statuses.Cause]:
    for key, value in labels.items():
        yield from wordings.all_invalid(field, key, naming.check_qualified(key))
        yield from wordings.all_invalid(field, value, naming.check_label_value(value))


def _validate_annotations(annotations: Mapping[str, str], field: str) -> Iterator[statuses.Cause]:
    for key in annotations:
        yield from wordings.all_invalid(field, key, naming.check_qualified(key.lower()))
    # A character is up to 4 bytes: most annotations need not be encoded to be measured.
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size * 4 > MAX_ANNOTATIONS:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        if size > MAX_ANNOTATIONS:
            yield wordings.too_long(field, MAX_ANNOTATIONS)


def _validate_owners(owners: list[dict[str, Any]], field: str) -> Iterator[statuses.Cause]:
    controllers = []
    for owner in owners:
        api_version = owner.get('apiVersion') or ''
        group, _, version = api_version.rpartition('/')
        if not version or '/' in group:
            yield wordings.invalid(f'{field}.apiVersion', api_version, "version must not be empty")
        for key in ('kind', 'name', 'uid'):
            if not owner.get(key):
                yield wordings.invalid(f'{field}.{key}', owner.get(key) or '', "must not be empty")
        if (api_version, owner.get('kind')) == ('v1', 'Event'):
            yield wordings.invalid(
                field, owner, "/v1, Kind=Event is disallowed from being an owner")
        if owner.get('controller'):
            controllers.append(f"{owner.get('kind', '')}/{owner.get('name', '')}")
            if len(controllers) > 1:
                yield wordings.invalid(
                    field, owners,
                    "Only one reference can have Controller set to true. "
                    f'Found "true" in references for {controllers[0]} and {controllers[-1]}')


def _validate_finalizers(meta: Meta, within: str, *, is_custom: bool) -> Iterator[statuses.Cause]:
    field = f'{within}.finalizers'
    finalizers: Iterable[str] = meta.get('finalizers') or ()
    for name in finalizers:
        yield from wordings.all_invalid(field, name, naming.check_qualified(name))
    if 'orphan' in finalizers and 'foregroundDeletion' in finalizers:
        yield wordings.invalid(
            field, finalizers, "finalizer orphan and foregroundDeletion cannot be both set")
    if not is_custom:
        for index, name in enumerate(finalizers):
            if '/' not in name and name not in STANDARD_FINALIZERS:
                yield wordings.invalid(
                    f'{field}[{index}]', name,
                    "name is neither a standard finalizer name nor is it fully qualified")


def _validate_managers(meta: Meta, field: str = 'metadata') -> Iterator[statuses.Cause]:
    for index, entry in enumerate(meta.get('managedFields') or ()):
        if len((entry.get('manager') or '').encode()) > 128:
            yield wordings.too_long(f'{field}.managedFields[{index}].manager', 128)
