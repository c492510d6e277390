"""
Adopting: labels, names, namespaces, and owners of the objects to be created.

Whatever is not given is taken from the object that is being handled at the moment.
"""
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from kopf._cogs.structs import bodies, dicts
from kopf._core.actions import invocation
from kopf._kits.hierarchies import manifests

_UNSET: Final = object()

Objects = Any
"""An object, or any iterable of objects: dicts, objects of pykube-ng, models of the clients."""

Owner = Mapping[str, object]
"""An object as handlers get it, or as it came from the API."""

Nested = str | Iterable[dicts.FieldSpec] | None
"""A field with a template of objects, or several of those."""


def append_owner_reference(
        objs: Objects,
        owner: Owner | None = None,
        *,
        controller: bool | None = True,
        block_owner_deletion: bool | None = True,
) -> None:
    """
    Let the objects be owned by the owner: they are deleted with it. It is done once per owner.

    :raises LookupError: without an owner outside of handlers.
    """
    reference = bodies.build_owner_reference(
        _get_owner(owner), controller=controller, block_owner_deletion=block_owner_deletion)
    for manifest in manifests.flatten(objs):
        owners = manifest.read_owners()
        if not any(uid == reference['uid'] for uid, _ in owners):
            manifest.write_owners([ref for _, ref in owners], cast(Mapping[str, Any], reference))


def remove_owner_reference(objs: Objects, owner: Owner | None = None) -> None:
    """
    Let the objects not be owned by the owner any more.

    :raises LookupError: without an owner outside of handlers.
    """
    gone = bodies.build_owner_reference(_get_owner(owner))['uid']
    for manifest in manifests.flatten(objs):
        owners = manifest.read_owners()
        if any(uid == gone for uid, _ in owners):
            manifest.write_owners([ref for uid, ref in owners if uid != gone])


def label(
        objs: Objects,
        labels: Mapping[str, str | None] | None = cast(Any, _UNSET),
        *,
        forced: bool = False,
        nested: Nested = None,
        force: bool | None = None,
) -> None:
    """
    Add the labels to the objects, and to those templates in the nested fields that are there.

    Labels that are there already win, unless forced.

    :raises LookupError: without the labels outside of handlers.
    """
    if force is not None:
        warnings.warn("force= is deprecated in kopf.label(); use forced=.", DeprecationWarning,
                      stacklevel=2)
        forced = force
    if labels is _UNSET or labels is None:
        labels = _get_owner().metadata.labels
    paths = _parse_nested(nested)
    for manifest in manifests.flatten(objs):
        for each in [manifest, *(each for path in paths for each in manifest.find(path))]:
            known = each.read('labels') or {}
            merged = {**known, **labels} if forced else {**labels, **known}
            each.write('labels', {**{key: merged[key] for key in known}, **merged})


def harmonize_naming(
        objs: Objects,
        name: str | None = cast(Any, _UNSET),
        *,
        forced: bool = False,
        strict: bool = False,
) -> None:
    """
    Name the objects after the owner, or as given: exactly if strict, else with a random suffix.

    Names that are there already win, unless forced.

    :raises LookupError: without the name outside of handlers.
    """
    if name is _UNSET or name is None:
        name = cast(str, _get_owner().metadata.get('name'))
    for manifest in manifests.flatten(objs):
        if forced or not (manifest.read('name') or manifest.read('generateName')):
            unused, used = ('generateName', 'name') if strict else ('name', 'generateName')
            manifest.remove(unused)
            manifest.write(used, name if strict else f'{name}-')


def adjust_namespace(
        objs: Objects,
        namespace: str | None = cast(Any, _UNSET),
        *,
        forced: bool = False,
) -> None:
    """
    Put the objects to the namespace of the owner, or to the given one.

    Namespaces that are there already win, unless forced.

    :raises LookupError: without the namespace outside of handlers.
    """
    if namespace is _UNSET or namespace is None:
        namespace = _get_owner().metadata.get('namespace')
    _place(objs, namespace, forced=forced)


def _place(objs: Objects, namespace: str | None, *, forced: bool) -> None:
    for manifest in manifests.flatten(objs):
        if forced or not manifest.read('namespace'):
            manifest.write('namespace', namespace)


def adopt(
        objs: Objects,
        owner: Owner | None = None,
        *,
        forced: bool = False,
        strict: bool = False,
        nested: Nested = None,
) -> None:
    """
    Make the objects children of the owner: with its labels, name, namespace, and a reference to it.

    :raises LookupError: without an owner outside of handlers.
    """
    owner = _get_owner(owner)
    objs = list(manifests.flatten(objs))  # it can be an iterator
    append_owner_reference(objs, owner=owner)
    harmonize_naming(objs, name=owner.metadata.get('name'), forced=forced, strict=strict)
    _place(objs, owner.metadata.get('namespace'), forced=forced)  # None if it is cluster-wide
    label(objs, labels=owner.metadata.labels, forced=forced, nested=nested)


def _get_owner(owner: Owner | None = None) -> bodies.Body:
    if owner is not None:
        return owner if isinstance(owner, bodies.Body) else bodies.Body(cast(Any, owner))
    current = invocation.kwargs_var.get({}).get('body')
    if current is None:
        raise LookupError("There is no object being handled at the moment: name the owner.")
    return cast(bodies.Body, current)


def _parse_nested(nested: Nested) -> list[dicts.FieldPath]:
    fields = [nested] if nested is None or isinstance(nested, str) else nested
    return [dicts.parse_field(field) for field in fields if field]
