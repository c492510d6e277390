"""
Kinds that the API serves: the built-in ones, declared as data, and those of CRDs.

A `Kind` is the same for all its objects, and does not depend on them.
"""
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopf._cogs.structs import references

DATA = Path(__file__).parent / 'data'
VERBS = ('create', 'delete', 'deletecollection', 'get', 'list', 'patch', 'update', 'watch')

#: Group and plural: what objects are stored under, whatever version they are asked in.
Resource = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Table; ``path`` is a JSON path in an object, empty if computed otherwise."""
    name: str
    type: str = 'string'
    format: str = ''
    priority: int = 0
    path: str = ''
    description: str = ''


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource with the kind that it speaks: its own (``Scale``) or the object's."""
    name: str
    verbs: tuple[str, ...]
    kind: str
    group: str = ''
    version: str = ''


@dataclass(frozen=True, slots=True)
class Scaling:
    """Where a custom resource's scale is: JSON paths, e.g. ``.spec.replicas``."""
    spec_path: str
    status_path: str
    selector_path: str = ''


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """
    One version of one resource. ``schema`` is of custom resources (those of the built-in ones
    are loaded when needed); ``storage_version`` is what its objects are stored as.
    """
    group: str
    version: str
    plural: str
    kind: str
    singular: str = ''
    list_kind: str = ''
    namespaced: bool = True
    verbs: tuple[str, ...] = VERBS
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    selectable: tuple[str, ...] = ()
    scaling: Scaling | None = None
    custom: bool = False
    #: Whether its definition is being deleted: nothing can be created.
    terminating: bool = False
    storage_version: str = ''
    warning: str = ''
    schema: Mapping[str, Any] | None = None
    #: The webhook that converts its objects to other versions, if there is one.
    conversion: Mapping[str, Any] | None = None
    api_version: str = field(init=False, default='')
    #: What the JSON of every object of the kind starts with.
    prefix: bytes = field(init=False, default=b'')

    def __post_init__(self) -> None:
        api_version = f'{self.group}/{self.version}' if self.group else self.version
        head = {'apiVersion': api_version, 'kind': self.kind} if self.custom else \
            {'kind': self.kind, 'apiVersion': api_version}
        text = json.dumps(head, separators=(',', ':'), ensure_ascii=False)
        object.__setattr__(self, 'api_version', api_version)
        object.__setattr__(self, 'prefix', text[:-1].encode() + b',')

    @property
    def resource(self) -> Resource:
        return self.group, self.plural

    @property
    def gvk(self) -> dict[str, str]:
        """The group, the version, and the kind, as in JSON."""
        return {'group': self.group, 'version': self.version, 'kind': self.kind}

    def as_resource(self, *, preferred: bool = True) -> references.Resource:
        """The same for clients. ``preferred`` is whether this version is the preferred one."""
        return references.Resource(
            self.group, self.version, self.plural, kind=self.kind, singular=self.singular,
            shortcuts=frozenset(self.short_names), categories=frozenset(self.categories),
            subresources=frozenset(self.subresources), namespaced=self.namespaced,
            preferred=preferred, verbs=frozenset(self.verbs))

    @property
    def told_verbs(self) -> tuple[str, ...]:
        """
        The verbs as discovery tells them. While a definition is being deleted, the API server
        leaves out those that write, although the objects can still be changed.
        """
        hidden = ('create', 'patch', 'update') if self.terminating else ()
        return tuple(verb for verb in self.verbs if verb not in hidden)

    @property
    def has_status(self) -> bool:
        return 'status' in self.subresources


class Kinds:
    """All that is served now: the built-in kinds, and what CRDs add and take away."""

    def __init__(self, kinds: Iterable[Kind] = ()) -> None:
        self._by_version: dict[tuple[str, str], dict[str, Kind]] = {}
        #: Rises with every change, so that what is derived from the kinds can be kept until then.
        self.generation: int = 0
        for kind in kinds:
            self.add(kind)

    def __iter__(self) -> Iterator[Kind]:
        for kinds in self._by_version.values():
            yield from kinds.values()

    def add(self, kind: Kind) -> None:
        self._by_version.setdefault((kind.group, kind.version), {})[kind.plural] = kind
        self.generation += 1

    def remove(self, group: str, plural: str) -> None:
        for key in [key for key in self._by_version if key[0] == group]:
            self._by_version[key].pop(plural, None)
            if not self._by_version[key]:
                del self._by_version[key]
        self.generation += 1

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        return self.of_version(group, version).get(plural)

    def of_version(self, group: str, version: str) -> dict[str, Kind]:
        """The kinds of one version of a group by their plurals; empty if it is not served."""
        return self._by_version.get((group, version), {})

    def versions(self) -> list[tuple[str, str]]:
        """All pairs of a group and a version, in the order of preference."""
        return list(self._by_version)

    def of_resource(self, group: str, plural: str) -> list[Kind]:
        return [kinds[plural] for (other, _), kinds in self._by_version.items()
                if other == group and plural in kinds]

    def named(self, api_version: str, kind: str) -> Kind | None:
        """The kind that an object's ``apiVersion`` and ``kind`` name."""
        group, _, version = api_version.rpartition('/')
        kinds = self.of_version(group, version).values()
        return next((found for found in kinds if found.kind == kind), None)


@functools.cache
def load(path: str) -> dict[str, Mapping[str, Any]]:
    """Load a file of the data, once: facts by names."""
    facts: dict[str, Mapping[str, Any]] = json.loads((DATA / path).read_bytes())
    return facts


def get_traits(resource: Resource) -> Mapping[str, Any]:
    """
    Get what distinguishes a built-in resource from others: whether its changes are ``counted`` in
    ``metadata.generation``; whether replacing an absent object makes it ``creatable``; whether
    deletions are answered by the ``returned`` object, not by a status; how objects are ``named``;
    its ``immutable`` and ``selectable`` fields; the ``cells`` of tables.
    """
    group, plural = resource
    return load('traits.json').get(f'{plural}.{group}' if group else plural, {})


@functools.cache
def builtin_kinds() -> tuple[Kind, ...]:
    """The kinds that are there before any CRD, in the order that discovery tells them."""
    facts = json.loads((DATA / 'kinds.json').read_bytes())
    return tuple(
        _builtin(group_version['group'], group_version['version'], facts)
        for group_version in facts
        for facts in group_version['resources']
    )


def _builtin(group: str, version: str, facts: Mapping[str, Any]) -> Kind:
    return Kind(
        group=group,
        version=version,
        plural=facts['plural'],
        kind=facts['kind'],
        singular=facts['singular'],
        list_kind=f"{facts['kind']}List",
        namespaced=facts['namespaced'],
        verbs=tuple(facts.get('verbs', VERBS)),
        short_names=tuple(facts.get('shortNames', ())),
        categories=tuple(facts.get('categories', ())),
        subresources={
            sub['name']: Subresource(**{**sub, 'verbs': tuple(sub['verbs'])})
            for sub in facts.get('subresources', ())
        },
        columns=tuple(Column(*column) for column in facts.get('columns', ())),
        storage_version=version,
    )
