"""
Plans: what an operator would change, by object.
"""
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from kopf._cogs.configs import conventions
from kopf._cogs.structs import concealing, diffs, references
from kopf._core.actions import essences
from kopf._kits.planning.attribution import Failure
from kopf._kits.sandbox.overlays import Difference
from kopf._kits.sandbox.statuses import Obj
from kopf._kits.testing import snapshots

Action = Literal['create', 'change', 'replace', 'delete']

ROLLED = ('deployments', 'statefulsets', 'daemonsets')
"""The resources of the group ``apps`` whose pods are replaced when their template changes."""


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """Where an object is: its resource, its namespace (empty if there is none), and its name."""
    resource: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {'/'.join(filter(None, (self.namespace, self.name)))}"


@dataclasses.dataclass(frozen=True)
class Field:
    """A field that would be changed; None is an absent value."""
    path: str
    old: Any
    new: Any


@dataclasses.dataclass(frozen=True)
class Item:
    """What would become of one object, and because of which handlers."""
    place: Place
    action: Action
    handlers: Sequence[str]
    fields: Sequence[Field] = ()
    """All fields that would change, but for those below."""
    finalizers: Sequence[str] = ()
    """The finalizers that would be added (with a plus) and removed (with a minus)."""
    status: Sequence[Field] = ()
    restarts: int = 0
    """How many pods would be restarted."""
    owner: str = ''
    """The deleted owner, if the garbage collector would delete the object."""
    is_waiting: bool = False
    """Whether the object would be marked for deletion, and stay until it has no finalizers."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What an operator would do."""
    items: Sequence[Item]
    problems: Sequence[str] = ()
    """What has gone wrong with the operator as a whole."""
    failures: Sequence[Failure] = ()

    @property
    def deletions(self) -> Sequence[Item]:
        """The objects that would be deleted, also those that would then be created again."""
        return [item for item in self.items if item.action in ('delete', 'replace')]


def make_item(
        difference: Difference, handlers: Collection[str], *, staged: bool,
) -> Item | None:
    """Make the item of an object; None if only Kopf's own annotations differ."""
    kind, base, local = difference.kind, difference.base, difference.local
    resource = references.Resource(
        kind.group, kind.version, kind.plural, kind=kind.kind, namespaced=kind.namespaced)
    place = Place(f'{kind.plural}.{kind.group}' if kind.group else kind.plural, *difference.key)
    if local is None or (base is not None and _is_deleting(local) and not _is_deleting(base)):
        owner = '' if handlers else _name_owner(base or {})
        return Item(place, 'delete', sorted(handlers), owner=owner, is_waiting=local is not None)
    action: Action = 'create' if base is None else 'change'
    if base is not None and base['metadata']['uid'] != local['metadata']['uid']:
        action = 'replace'
    fields = [
        Field(_join(path), concealing.conceal_value(old, path, resource),
              concealing.conceal_value(new, path, resource))
        for path, old, new in _compare(_reduce(base or {}), _reduce(local), ())]
    return Item(
        place, action, sorted(handlers),
        [field for field in fields if not _is_status(field)],
        list(_compare_finalizers(base or {}, local)),
        [] if staged else [field for field in fields if _is_status(field)])


def _is_status(field: Field) -> bool:
    return field.path.partition('.')[0] == 'status'


def _is_deleting(obj: Obj) -> bool:
    return 'deletionTimestamp' in obj['metadata']


def _name_owner(obj: Obj) -> str:
    owners = (obj.get('metadata') or {}).get('ownerReferences') or ()
    return ', '.join(f"{owner['kind']} {owner['name']}" for owner in owners)


def _reduce(obj: Obj) -> Obj:
    """Leave out what is not the operator's, or is shown otherwise."""
    metadata = {
        key: value for key, value in (obj.get('metadata') or {}).items()
        if key not in (*snapshots.IGNORED_METADATA, 'finalizers', 'deletionTimestamp')}
    metadata['annotations'] = {
        key: value for key, value in
        conventions.get_foreign_annotations(metadata.get('annotations') or {}).items()
        if not key.startswith(essences.OWN_PREFIX)}
    return {**{key: value for key, value in obj.items() if key not in ('apiVersion', 'kind')},
            'metadata': metadata}


def _compare_finalizers(base: Obj, local: Obj) -> Iterator[str]:
    old, new = ((obj.get('metadata') or {}).get('finalizers') or () for obj in (base, local))
    yield from (f'+{name}' for name in new if name not in old)
    yield from (f'-{name}' for name in old if name not in new)


def _compare(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Compare field by field, and the items of lists by their names, or else by their places."""
    if old == new:
        return
    pairs = _pair(old, new)
    if pairs is None:
        yield path, old, new
        return
    for key, before, after in pairs:
        yield from _compare(before, after, (*path, key))


def _pair(old: Any, new: Any) -> list[tuple[str, Any, Any]] | None:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [(key, old.get(key), new.get(key)) for key in {**old, **new}]
    if not (isinstance(old, list) and isinstance(new, list) and old and new):
        return None
    if all(isinstance(item, Mapping) and isinstance(item.get('name'), str) for item in [*old, *new]):
        named = [{f"[{item['name']}]": item for item in items} for items in (old, new)]
        if [len(items) for items in named] == [len(old), len(new)]:
            return [(key, named[0].get(key), named[1].get(key)) for key in {**named[0], **named[1]}]
    if len(old) == len(new):
        return [(f'[{i}]', *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    return None


def _join(path: Iterable[str]) -> str:
    """Write a path: ``metadata.labels[example.com/app]``, ``spec.containers[app].image``."""
    text = ''
    for key in path:
        if key.startswith('['):
            text += key
        elif '.' in key or '/' in key:
            text += f'[{key}]'
        else:
            text += f'.{key}' if text else key
    return text
