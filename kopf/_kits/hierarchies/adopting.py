"""
Adoption: set the labels, names, namespaces, and owners of objects before their creation.

By default, all these values are those of the object that is handled now.
"""
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast, overload

from kopf._cogs.helpers.deprecations import deprecated
from kopf._cogs.structs import bodies, dicts
from kopf._core.actions import invocation
from kopf._kits.hierarchies import manifests

_UNSET: Final = object()

Objects = Any
"""An object, or any iterable of objects: dicts, objects of pykube-ng, models of the clients."""

Owner = Mapping[str, object]
"""The body of an object, as handlers get it, or as a dict from the API."""

Nested = str | Iterable[dicts.FieldSpec] | None
"""One or several fields with templates of objects, e.g. ``spec.template``."""


def append_owner_reference(
        objs: Objects,
        owner: Owner | None = None,
        *,
        controller: bool | None = True,
        block_owner_deletion: bool | None = True,
) -> None:
    """
    Add an owner to the objects: when the owner is deleted, Kubernetes deletes the objects.

    An owner that the objects already have is not added again. The objects are changed in place.

    ::

        kopf.append_owner_reference(service, owner=body, controller=False)

    See "Create owned resources" in the documentation.

    :param objs: an object, or any iterable of objects: dicts, objects of pykube-ng, models of the
        official clients.
    :param owner: the owner, as handlers get it or as the API server sends it. Default: the object
        that is being handled.
    :param controller: the value of ``controller`` in the reference; `None` omits it.
    :param block_owner_deletion: the value of ``blockOwnerDeletion`` in the reference; `None` omits
        it.
    :raises LookupError: outside of handlers, if there is no ``owner``.
    :raises TypeError: if ``objs`` contains something that is not an object, or the ``owner`` is
        none.
    """
    reference = bodies.build_owner_reference(
        _get_owner(owner), controller=controller, block_owner_deletion=block_owner_deletion)
    for manifest in manifests.flatten(objs):
        owners = manifest.read_owners()
        if not any(uid == reference['uid'] for uid, _ in owners):
            manifest.write_owners([ref for _, ref in owners], cast(Mapping[str, Any], reference))


def remove_owner_reference(objs: Objects, owner: Owner | None = None) -> None:
    """
    Remove an owner from objects, if they have it; in place.

    ::

        kopf.remove_owner_reference(service, owner=body)

    See "Create owned resources" in the documentation.

    :param objs: an object, or any iterable of objects, as in `kopf.append_owner_reference`.
    :param owner: the owner. Default: the object that is being handled.
    :raises LookupError: outside of handlers, if there is no ``owner``.
    :raises TypeError: if ``objs`` contains something that is not an object, or the ``owner`` is
        none.
    """
    gone = bodies.build_owner_reference(_get_owner(owner))['uid']
    for manifest in manifests.flatten(objs):
        owners = manifest.read_owners()
        if any(uid == gone for uid, _ in owners):
            manifest.write_owners([ref for uid, ref in owners if uid != gone])


@overload
def label(
        objs: Objects,
        labels: Mapping[str, str | None] | None = None,
        *,
        forced: bool = False,
        nested: Nested = None,
) -> None: ...


@overload
@deprecated("force= is deprecated in kopf.label(); use forced=.", category=None)
def label(
        objs: Objects,
        labels: Mapping[str, str | None] | None = None,
        *,
        forced: bool = False,
        nested: Nested = None,
        force: bool,
) -> None: ...


def label(
        objs: Objects,
        labels: Mapping[str, str | None] | None = None,
        *,
        forced: bool = False,
        nested: Nested = None,
        force: bool | None = None,
) -> None:
    """
    Add labels to objects, and to the templates inside of them; in place.

    ::

        kopf.label(deployment, {'app': 'web'}, nested='spec.template')

    See "Create owned resources" in the documentation.

    :param objs: an object, or any iterable of objects, as in `kopf.append_owner_reference`.
    :param labels: the labels. Default: those of the object that is being handled.
    :param forced: whether these labels replace existing labels of the same names.
    :param nested: a field with a template of objects, e.g. ``'spec.template'``, or several of them.
        Absent templates are skipped. Default: none.
    :param force: the former name of ``forced``. Deprecated.
    :raises LookupError: outside of handlers, if there are no ``labels``.
    :raises TypeError: if ``objs`` contains something that is not an object.
    """
    if force is not None:
        warnings.warn("force= is deprecated in kopf.label(); use forced=.", DeprecationWarning,
                      stacklevel=2)
        forced = force
    if labels is None:
        labels = _get_owner().metadata.labels
    paths = _parse_nested(nested)
    for manifest in manifests.flatten(objs):
        for each in [manifest, *(each for path in paths for each in manifest.find(path))]:
            known = each.read('labels') or {}
            merged = {**known, **labels} if forced else {**labels, **known}
            each.write('labels', {**{key: merged[key] for key in known}, **merged})


def harmonize_naming(
        objs: Objects,
        name: str | None = None,
        *,
        forced: bool = False,
        strict: bool = False,
) -> None:
    """
    Name objects after their owner, or as given; in place.

    ::

        kopf.harmonize_naming(service, strict=True)

    See "Create owned resources" in the documentation.

    :param objs: an object, or any iterable of objects, as in `kopf.append_owner_reference`.
    :param name: the name. Default: the name of the object that is being handled.
    :param forced: whether to replace existing names.
    :param strict: whether the objects get exactly this name (``name``). Otherwise, the API server
        appends a random suffix (``generateName``).
    :raises LookupError: outside of handlers, if there is no ``name``.
    :raises TypeError: if ``objs`` contains something that is not an object.
    """
    if name is None:
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
    Put objects into the namespace of their owner, or as given; in place.

    ::

        kopf.adjust_namespace(service)

    See "Create owned resources" in the documentation.

    :param objs: an object, or any iterable of objects, as in `kopf.append_owner_reference`.
    :param namespace: the namespace; None is for cluster-scoped objects. Default: the namespace of
        the object that is being handled.
    :param forced: whether to replace existing namespaces.
    :raises LookupError: outside of handlers, if there is no ``namespace``.
    :raises TypeError: if ``objs`` contains something that is not an object.
    """
    if namespace is _UNSET:
        namespace = _get_owner().metadata.get('namespace')
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
    Make objects owned resources of an owner.

    They get an owner reference, and the owner's name, namespace, and labels. This combines
    `kopf.append_owner_reference`, `kopf.harmonize_naming`, `kopf.adjust_namespace`, and
    `kopf.label`. Call it before you create the objects: they are changed in place, and nothing is
    sent to the API server.

    ::

        @kopf.on.create('websites')
        def created(**_):
            service = {'apiVersion': 'v1', 'kind': 'Service', 'spec': {'ports': [{'port': 80}]}}
            kopf.adopt(service, strict=True)

    See "Create owned resources" in the documentation.

    :param objs: an object, or any iterable of objects: dicts, objects of pykube-ng, models of the
        official clients.
    :param owner: the owner, as handlers get it or as the API server sends it. Default: the object
        that is being handled.
    :param forced: whether to replace existing names, namespaces, and labels.
    :param strict: whether the objects get exactly the name of the owner. Otherwise, the API server
        appends a random suffix.
    :param nested: a field with a template of objects that also gets the labels, e.g.
        ``'spec.template'``; or several of them. Default: none.
    :raises LookupError: outside of handlers, if there is no ``owner``.
    :raises TypeError: if ``objs`` contains something that is not an object, or the ``owner`` is
        none.
    """
    owner = _get_owner(owner)
    objs = list(manifests.flatten(objs))  # an iterator can be consumed only once
    append_owner_reference(objs, owner=owner)
    harmonize_naming(objs, name=owner.metadata.get('name'), forced=forced, strict=strict)
    adjust_namespace(objs, owner.metadata.get('namespace'), forced=forced)
    label(objs, labels=owner.metadata.labels, forced=forced, nested=nested)


def _get_owner(owner: Owner | None = None) -> bodies.Body:
    if owner is not None and not isinstance(owner, Mapping):
        raise TypeError(f"An owner is the body of an object, or a dict, not {owner!r}. If it is "
                        f"the object that is being handled, name no owner.")
    if owner is not None:
        return owner if isinstance(owner, bodies.Body) else bodies.Body(cast(Any, owner))
    current = invocation.kwargs_var.get({}).get('body')
    if current is None:
        raise LookupError("No object is handled at the moment: name the owner.")
    return cast(bodies.Body, current)


def _parse_nested(nested: Nested) -> list[dicts.FieldPath]:
    fields = [nested] if nested is None or isinstance(nested, str) else nested
    return [dicts.parse_field(field) for field in fields if field]
