"""
Plans: what an operator would do, by object.
"""
import collections
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from kopf._cogs.structs import concealing
from kopf._core.actions import finalizers
from kopf._kits.planning import comparing
from kopf._kits.planning.attribution import Failure
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.overlays import Difference
from kopf._kits.sandbox.statuses import Obj, qualified

_T = TypeVar('_T')

Action = Literal['create', 'change', 'replace', 'delete']

ROLLED = ('deployments.apps', 'statefulsets.apps', 'daemonsets.apps')
"""The resources whose pods are restarted when their template changes."""


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """Where an object is: its resource, its namespace (empty if there is none), and its name."""
    resource: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {'/'.join(filter(None, (self.namespace, self.name)))}"


def locate(kind: Kind, namespace: str, name: str) -> Place:
    return Place(qualified(*kind.resource), namespace, name)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field that would be changed; None is an absent value."""
    path: str
    old: Any
    new: Any


class Placeholder(str):
    """A text instead of a value. It differs from the same text instead of another value."""

    def __new__(cls, text: str, value: object = None) -> Self:
        made = super().__new__(cls, text)
        made._digest = hash(repr(value))
        return made

    _digest: int

    def __eq__(self, other: object) -> bool:
        is_other = isinstance(other, Placeholder) and other._digest != self._digest
        return not is_other and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def make_field(kind: Kind, path: comparing.Path, old: Any, new: Any) -> Field:
    """Make a field of an object. The values of Secrets are concealed, but can be compared."""
    resource = kind.as_resource()
    return Field(comparing.join(path), *(
        _mark(concealing.conceal_value(value, path, resource), value) for value in (old, new)))


def _mark(shown: Any, value: Any) -> Any:
    if shown is value:
        return value
    if isinstance(shown, Mapping):
        return {key: _mark(inner, value[key]) for key, inner in shown.items()}
    return Placeholder(shown, value)


MAX_NAMED = 3
"""How many objects or handlers of the same fate are named."""


def name_some(names: Sequence[str]) -> str:
    """Name the first ones, and count the others."""
    more = len(names) - MAX_NAMED
    return ', '.join(names[:MAX_NAMED]) + (f", and {more} more" if more > 0 else '')


def group_by(items: Iterable[_T], get_key: Callable[[_T], object]) -> Iterable[list[_T]]:
    """Group items, in the order of the first ones."""
    groups: dict[object, list[_T]] = {}
    for item in items:
        groups.setdefault(get_key(item), []).append(item)
    return groups.values()


def show(value: Any, *, size: int) -> str:
    """Show at most so many characters of a value."""
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= size else f"{text[:size]}…"


@dataclasses.dataclass(frozen=True)
class Item:
    """
    What would happen to one object, and because of which handlers.

    ``action`` is ``'create'``, ``'change'``, ``'delete'``, or ``'replace'``: to delete it, and to
    create it again. ``fields`` are all fields that would change, except for those of the
    ``status``, and for the ``finalizers``: those with a plus would be added, those with a minus
    would be removed. ``restarts`` is how many pods would be restarted. ``owner`` is who is
    deleted, if the garbage collector would delete the object for that. With ``is_waiting``, a
    deleted object would stay until others have removed their finalizers.
    """
    place: Place
    action: Action
    handlers: Sequence[str]
    fields: Sequence[Field] = ()
    status: Sequence[Field] = ()
    finalizers: Sequence[str] = ()
    restarts: int = 0
    owner: str = ''
    is_waiting: bool = False

    @property
    def is_deletion(self) -> bool:
        return self.action in ('delete', 'replace')


@dataclasses.dataclass(frozen=True)
class Refused:
    """A write that the API would refuse."""
    place: Place
    verb: str
    message: str
    handlers: Sequence[str]


@dataclasses.dataclass(frozen=True)
class ExternalCall:
    """A call of an external system for an object: `kopf.external`. It is not made."""
    external: str
    """The id of the external."""
    verb: str
    """``'create'``, ``'update'``, or ``'delete'``."""
    key: str
    """What would be changed; empty for what would be created."""
    fields: Sequence[str]
    """What would be set or updated."""
    place: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """
    What an operator would do: the ``items`` by objects, deletions first; the ``calls`` that would
    change external systems; what the API would have ``refused``; the ``failures`` of handlers,
    which make the plan of their objects incomplete; the ``problems`` of the operator as a whole;
    and what is ``unknown``.

    ``only_old`` and ``only_old_calls`` are what only the former version would do, if there is one
    to compare with: then, the items are only those that differ. ``requests`` are the numbers of
    requests of the operator by verbs, and ``upstream`` are those that were sent to the cluster.
    """
    items: Sequence[Item]
    calls: Sequence[ExternalCall] = ()
    refused: Sequence[Refused] = ()
    failures: Sequence[Failure] = ()
    problems: Sequence[str] = ()
    unknown: Sequence[str] = ()
    only_old: Sequence[Item] = ()
    only_old_calls: Sequence[ExternalCall] = ()
    requests: Mapping[str, int] = dataclasses.field(default_factory=dict)
    upstream: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, and no difference from the former version."""
        return not (self.items or self.calls or self.only_old or self.only_old_calls)

    @property
    def deletions(self) -> Sequence[Item]:
        """The objects that would be deleted, also those that would be created again."""
        return [item for item in self.items if item.is_deletion]

    @property
    def restarts(self) -> Sequence[Item]:
        """The objects whose pods would be restarted."""
        return [item for item in self.items if item.restarts]

    def summarize(self) -> Mapping[str, Mapping[Action, int]]:
        """Count the objects by their resources and by what would become of them."""
        found: dict[str, collections.Counter[Action]] = {}
        for item in self.items:
            found.setdefault(item.place.resource, collections.Counter())[item.action] += 1
        return dict(sorted(found.items()))

    def get_code(self, fail_on: Collection[str] = ()) -> int:
        """
        Get the exit code: 0 if there is nothing to do, 2 for changes, 1 for errors.

        :param fail_on: what counts as an error: ``'deletions'``, ``'restarts'``.
        """
        is_deletion = any(call.verb == 'delete' for call in self.calls)
        if self.problems or self.failures or self.refused or any(
                getattr(self, name) or (name == 'deletions' and is_deletion) for name in fail_on):
            return 1
        return 0 if self.is_empty else 2

    def without(self, old: 'Plan') -> 'Plan':
        """Make the plan of what differs from that of the former version, on the same state."""
        known = {item.place: item for item in old.items}
        found = [(item, known.pop(item.place, None)) for item in self.items]
        items = [each if other is None else _relate(each, other) for each, other in found]
        called = {(each.external, each.place) for each in self.calls}
        gists = {(each.handler, each.place, each.gist) for each in old.failures}
        fresh = [each for each in self.failures
                 if (each.handler, each.place, each.gist) not in gists]
        return dataclasses.replace(
            self, items=[item for item in items if item is not None],
            calls=[each for each in self.calls if each not in old.calls],
            only_old=list(known.values()),
            only_old_calls=[
                each for each in old.calls if (each.external, each.place) not in called],
            refused=[each for each in self.refused if each not in old.refused],
            failures=fresh,
            problems=[*self.problems, *(
                f"The other version: {text}" for text in old.problems
                if text not in self.problems)],
            unknown=[*self.unknown, *(
                f"What {handler} for {places} would do, which fails in both versions: {message}"
                for handler, places, message in group_failures(
                    [each for each in self.failures if each not in fresh]))])


def group_failures(failures: Iterable[Failure]) -> Iterator[tuple[str, str, str]]:
    """Group the same failures for several objects: the handlers, some objects, the messages."""
    for group in group_by(failures, lambda each: (each.handler, each.gist)):
        places = name_some([each.place or 'the operator' for each in group])
        yield group[0].handler, places, group[0].message


def make_items(
        differences: Iterable[tuple[Difference, Collection[str] | None, bool]],
) -> list[Item]:
    """
    Make the items, deletions first. Of each object, it is known which handlers have written to it
    (None if no request has), and whether its status is not that of the operator.
    """
    found = list(differences)
    names: dict[str, str] = {}
    places: dict[str, Place] = {}
    counts: collections.Counter[str] = collections.Counter()
    for difference, _, _ in found:
        if difference.local is not None:
            metadata = difference.local['metadata']
            name = metadata['name']
            if difference.base is None and metadata.get('generateName'):
                name = f"{metadata['generateName']}*"
                counts[name] += 1
                name += f" #{counts[name]}" if counts[name] > 1 else ''
            place = locate(difference.kind, difference.key[0], name)
            places[metadata['uid']] = place
            if difference.base is None or difference.base['metadata']['uid'] != metadata['uid']:
                names[metadata['uid']] = f'(uid of {place})'
    items = [_make_item(difference, handlers, names, places, staged=staged)
             for difference, handlers, staged in found]
    return sorted(
        (item for item in items if item is not None),
        key=lambda item: (not item.is_deletion, not item.restarts, item.place))


def _make_item(
        difference: Difference, writers: Collection[str] | None, names: Mapping[str, str],
        places: Mapping[str, Place], *, staged: bool,
) -> Item | None:
    """Make the item of an object; None if only Kopf's own annotations would change."""
    kind, base, local = difference.kind, difference.base, difference.local
    place, handlers = locate(kind, *difference.key), sorted(writers or ())
    is_ending = base is not None and finalizers.is_deleting(base)
    if local is None and is_ending:  # only its finalizers hold it
        return Item(place, 'change', handlers, finalizers=list(
            comparing.compare_finalizers(base or {}, {})))
    if local is None or (base is not None and finalizers.is_deleting(local) and not is_ending):
        owner = '' if writers is not None or base is None else _name_owners(base)
        return Item(place, 'delete', handlers, owner=owner, is_waiting=local is not None)
    action: Action = 'create' if base is None else 'change'
    if base is not None and base['metadata']['uid'] != local['metadata']['uid']:
        action = 'replace'
    theirs = comparing.reduce({}) if base is None else (
        comparing.normalize(kind, base, is_new=False))
    ours = comparing.name_uids(comparing.normalize(kind, local, is_new=action != 'change'), names)
    fields = [make_field(kind, *found) for found in comparing.compare(theirs, ours, ())]
    of_status = [field for field in fields if re.match(r'status\b', field.path)]
    item = Item(
        places[local['metadata']['uid']], action, handlers,
        [field for field in fields if field not in of_status], [] if staged else of_status,
        list(comparing.compare_finalizers(base or {}, local)))
    if base is not None:
        item = dataclasses.replace(item, restarts=_count_restarts(item, base, local))
    is_own = action == 'change' and not (item.fields or item.status or item.finalizers)
    return None if is_own else item


def _count_restarts(item: Item, base: Obj, obj: Obj) -> int:
    """How many pods of the object would be restarted."""
    if item.place.resource not in ROLLED:
        return 0
    number = _count_pods(base)
    if item.action == 'replace':
        return number
    spec, status = obj.get('spec') or {}, base.get('status') or {}
    strategy, changed = spec.get('updateStrategy') or {}, [field.path for field in item.fields]
    if spec.get('paused') or strategy.get('type') == 'OnDelete':
        return 0
    number -= (strategy.get('rollingUpdate') or {}).get('partition') or 0
    if any(re.match(r'spec\.template\b', path) for path in changed):
        return max(0, number)
    if status.get('observedGeneration') and any(
            re.match(r'spec\.(paused|updateStrategy)\b', path) for path in changed):
        updated = status.get('updatedReplicas', status.get('updatedNumberScheduled', 0))
        return max(0, number - int(updated))  # what was held back until now
    return 0


def _count_pods(obj: Obj) -> int:
    number = (obj.get('status') or {}).get('desiredNumberScheduled')
    return int(obj['spec'].get('replicas', 1) if number is None else number)


def _relate(item: Item, old: Item) -> Item | None:
    """Reduce an item to what differs from what the former version would do."""
    if item.action != old.action:
        return item
    fields, status = (list(_relate_fields(*pair)) for pair in (
        (item.fields, old.fields), (item.status, old.status)))
    if not fields and not status and item.finalizers == old.finalizers:
        return None
    return dataclasses.replace(
        item, fields=fields, status=status,
        restarts=item.restarts if not old.restarts or fields else 0)


def _relate_fields(new: Sequence[Field], old: Sequence[Field]) -> Iterator[Field]:
    """Find the fields whose values would not be the same: those of the old version come first."""
    ours, theirs = ({field.path: field for field in fields} for fields in (new, old))
    for path in {**theirs, **ours}:
        before = theirs[path].new if path in theirs else ours[path].old
        after = ours[path].new if path in ours else theirs[path].old
        pair = [comparing.hide_times(value) for value in (before, after)]
        for inner, *values in comparing.compare(pair[0], pair[1], ()):
            yield Field('.'.join(filter(None, (path, comparing.join(inner)))), *values)


def _name_owners(obj: Obj) -> str:
    owners = obj['metadata'].get('ownerReferences') or ()
    return ', '.join(f"{owner['kind']} {owner['name']}" for owner in owners)
