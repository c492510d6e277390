"""
Kinds of resources, selectors of them, and patterns of namespaces.

A `Resource` is what a cluster serves; a `Selector` is what an author wrote in a decorator.
Selectors are resolved only when the resources of the cluster are known.
"""
import dataclasses
import enum
import fnmatch
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Final, Generic, NewType, TypeVar

NamespaceName = NewType('NamespaceName', str)

Namespace = NamespaceName | None
"""A specific namespace, or None for the cluster as a whole."""

NamespacePattern = str | re.Pattern[str]
"""A comma-separated list of globs, or a regular expression for the whole name."""


def match_namespace(name: NamespaceName, pattern: NamespacePattern) -> bool:
    """
    Check a name of a namespace against a pattern.

    The first glob of a pattern is decisive: what it does not match, the pattern does not match.
    Of all the globs that match the name, the last one wins. A glob with ``!`` excludes;
    if it comes first, it excludes from all namespaces.
    """
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    globs = [glob.strip() for glob in pattern.split(',')]
    if not globs[0].startswith('!') and not fnmatch.fnmatchcase(name, globs[0]):
        return False
    for glob in reversed(globs):
        if fnmatch.fnmatchcase(name, glob.removeprefix('!')):
            return not glob.startswith('!')
    return True


def select_specific_namespaces(patterns: Iterable[NamespacePattern]) -> Collection[NamespaceName]:
    """Get the names out of the patterns: those that can only be names. No order, no duplicates."""
    return frozenset(
        NamespaceName(pattern) for pattern in patterns
        if isinstance(pattern, str) and not set(pattern) & set(',*?!')
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Resource:
    """
    A kind of objects in a specific version, as it is served by a cluster.

    Two resources are equal if their group, version, and plural name are: these make the URL.
    Everything else is for matching with selectors and for information.
    """

    group: str
    """The API group, e.g. ``"apps"``. Empty for the core API (pods, namespaces, etc)."""

    version: str
    """The API version, e.g. ``"v1"``, ``"v1beta1"``."""

    plural: str
    """The name in the URLs, e.g. ``"pods"``."""

    kind: str | None = None
    """The name in the manifests, e.g. ``"Pod"``."""

    singular: str | None = None
    """The name for people, e.g. ``"pod"``."""

    shortcuts: frozenset[str] = frozenset()
    """The short names, e.g. ``{"po"}``."""

    categories: frozenset[str] = frozenset()
    """The categories that the resource is in, e.g. ``{"all"}``."""

    subresources: frozenset[str] = frozenset()
    """The subresources that are served, e.g. ``{"status", "scale"}``."""

    namespaced: bool | None = None
    """Whether the objects live in namespaces or in the cluster as a whole; None if not known."""

    preferred: bool = True
    """Whether it is in that version of its group which is used when none is asked for."""

    verbs: frozenset[str] = frozenset()
    """What the API can do with it, e.g. ``{"list", "watch", "patch"}``; permissions aside."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Resource):
            return (self.plural == other.plural and self.group == other.group
                    and self.version == other.version)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.plural))

    def __repr__(self) -> str:
        return '.'.join(part for part in (self.plural, self.version, self.group) if part)

    @property
    def api_version(self) -> str:
        """The version with the group, as in the manifests: ``"apps/v1"``, ``"v1"``."""
        return f'{self.group}/{self.version}' if self.group else self.version

    def get_url(
            self,
            *,
            server: str | None = None,
            namespace: Namespace = None,
            name: str | None = None,
            subresource: str | None = None,
            params: dict[str, str] | None = None,
    ) -> str:
        """
        Build the URL of one object (with a name) or of a list of objects (without).

        Without a server, it is only the path with the query. With a namespace, the list is
        of that namespace, otherwise of the whole cluster.

        :raises ValueError: if the namespace is given for a cluster-scoped resource; if there is
            a name but no namespace for a namespaced one; if there is a subresource of no name.
            While it is not known whether the resource is namespaced, both ways are accepted.
        """
        if self.namespaced is False and namespace is not None:
            raise ValueError("Specific namespaces are not supported for cluster-scoped resources.")
        if self.namespaced and name is not None and namespace is None:
            raise ValueError("Objects of namespaced resources have no URL without a namespace.")
        if subresource is not None and name is None:
            raise ValueError("Only objects have subresources: the name of an object is needed.")

        url = '' if server is None else server.rstrip('/')
        url += f"/{'apis' if self.group else 'api'}/{self.api_version}"
        if namespace is not None:
            url += f'/namespaces/{namespace}'
        url += f'/{self.plural}'
        if name is not None:
            url += f'/{name}'
        if subresource is not None:
            url += f'/{subresource}'
        if params:
            url += f'?{urllib.parse.urlencode(params)}'
        return url


class Marker(enum.Enum):
    """Special values in place of the names of resources."""
    EVERYTHING = enum.auto()


EVERYTHING: Final = Marker.EVERYTHING
"""In place of a name: all the resources of a group, or of the cluster."""

SelectorFn = Callable[[Resource], bool]
SelectorKey = SelectorFn | Marker | str | None

_VERSION = r'v\d+(?:(?:alpha|beta)\d+)?'
_DOTTED_NAME = re.compile(rf'(?P<name>[^.]+)\.(?:(?P<version>{_VERSION})(?:\.|$))?(?P<group>.*)')


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Selector:
    """
    A specification of one or several kinds of resources, as in the decorators.

    The last positional argument is a name of any sort (plural, singular, kind, short),
    `EVERYTHING`, or a callable, which is then the only one. The group and the version go before
    the name, separately or as ``group/version``; or, for single strings, after it
    as in ``plural.group`` or ``plural.version.group``. ``v1`` alone is the core API.

    :raises TypeError: if nothing, or more than one thing, is named.
    """

    group: str | None
    version: str | None
    kind: str | None
    plural: str | None
    singular: str | None
    shortcut: str | None
    category: str | None
    any_name: str | Marker | None
    fn: SelectorFn | None

    def __init__(
            self,
            arg1: SelectorKey = None,
            arg2: str | Marker | None = None,
            arg3: str | Marker | None = None,
            /,
            *,
            group: str | None = None,
            version: str | None = None,
            kind: str | None = None,
            plural: str | None = None,
            singular: str | None = None,
            shortcut: str | None = None,
            category: str | None = None,
    ) -> None:
        fn: SelectorFn | None = None
        any_name: str | Marker | None = None
        own_group: str | Marker | None = None
        own_version: str | Marker | None = None
        if arg1 is None or isinstance(arg1, (str, Marker)):
            api = [arg for arg in (arg1, arg2, arg3) if arg is not None]
            any_name = api.pop() if api else None
            match api:
                case []:
                    if isinstance(any_name, str) and (parts := _DOTTED_NAME.fullmatch(any_name)):
                        any_name, own_version, own_group = parts.group('name', 'version', 'group')
                        own_group = own_group or None
                case ['v1']:
                    own_group, own_version = '', 'v1'
                case [str(prefix)] if '/' in prefix:
                    own_group, _, own_version = prefix.rpartition('/')
                case [prefix]:
                    own_group = prefix
                case [prefix, infix]:
                    own_group, own_version = prefix, infix
        elif arg2 is not None or arg3 is not None:
            raise TypeError("A callable must be the only positional selector of resources.")
        elif callable(arg1):
            fn = arg1
        else:
            raise TypeError(f"Not a selector of resources: {arg1!r}")

        for theirs, ours in [(group, own_group), (version, own_version)]:
            if isinstance(ours, Marker):
                raise TypeError("Only the name of a resource can be EVERYTHING, but not the API.")
            if theirs is not None and ours is not None and theirs != ours:
                raise TypeError(f"The API is specified twice: {ours!r} and {theirs!r}.")
        names = [
            name for name in (any_name, kind, plural, singular, shortcut, category)
            if name is not None
        ]
        if not names and fn is None:
            raise TypeError("The resource is not specified; name it, or use kopf.EVERYTHING.")
        if len(names) > 1:
            raise TypeError(f"The resource is named more than once: {names!r}")
        if not all(isinstance(name, (str, Marker)) for name in names):
            raise TypeError(f"The names of resources must be strings: {names!r}")
        if '' in names or '' in (version, own_version):
            raise TypeError("Names and versions of resources cannot be empty strings.")

        values = {
            'group': own_group if group is None else group,
            'version': own_version if version is None else version,
            'kind': kind,
            'plural': plural,
            'singular': singular,
            'shortcut': shortcut,
            'category': category,
            'any_name': any_name,
            'fn': fn,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        params = ', '.join(f'{key}={val!r}' for key, val in values.items() if val is not None)
        return f'{self.__class__.__name__}({params})'

    def __str__(self) -> str:
        """How people would name it: ``pods``, ``deployments.v1.apps``, ``category=all``."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values = {key: val for key, val in values.items() if val is not None}
        if isinstance(self.any_name, str) and values.keys() <= {'any_name', 'group', 'version'}:
            return '.'.join(part for part in (self.any_name, self.version, self.group) if part)
        if self.any_name is EVERYTHING:
            values['any_name'] = 'EVERYTHING'
        if self.fn is not None:
            values['fn'] = getattr(self.fn, '__qualname__', self.fn)
        return ','.join(f'{key}={val}' for key, val in values.items())

    @property
    def is_named(self) -> bool:
        """Whether there is a name of a resource, not of a category, and not `EVERYTHING`."""
        return self.category is None and self.any_name is not EVERYTHING and (
            self.fn is None or any((self.kind, self.plural, self.singular, self.shortcut)))

    @property
    def is_specific(self) -> bool:
        """Whether it is meant to match one resource at most (in one version or several)."""
        return self.fn is None and self.is_named

    def check(self, resource: Resource) -> bool:
        """
        Check if the resource fits, all other resources aside.

        Only preferred versions fit, unless the version is named, or a callable decides.
        Kubernetes events, in any of their two APIs, fit only when they are named.
        """
        if self.group is not None and self.group != resource.group:
            return False
        if self.version != resource.version and (
                self.version is not None or not (resource.preferred or self.fn is not None)):
            return False
        is_event = resource.plural == 'events' and resource.group in ('', 'events.k8s.io')
        if is_event and not self.is_named:
            return False
        return (
            (self.kind is None or self.kind == resource.kind) and
            (self.plural is None or self.plural == resource.plural) and
            (self.singular is None or self.singular == resource.singular) and
            (self.shortcut is None or self.shortcut in resource.shortcuts) and
            (self.category is None or self.category in resource.categories) and
            (not isinstance(self.any_name, str) or
             self.any_name in (resource.plural, resource.singular, resource.kind) or
             self.any_name in resource.shortcuts) and
            (self.fn is None or bool(self.fn(resource)))
        )

    def select(self, resources: Iterable[Resource]) -> Collection[Resource]:
        """
        Get those resources that fit, in the same order.

        By name, the core API goes before all other APIs: pods are pods, not the pods' metrics.
        More than one group for a selector that `is_specific` is an ambiguity: it is up
        to the caller to refuse it.
        """
        fitting = tuple(dict.fromkeys(resource for resource in resources if self.check(resource)))
        if self.is_specific and len(fitting) > 1:
            return tuple(resource for resource in fitting if not resource.group) or fitting
        return fitting


SelectorLike = Selector | SelectorFn | Marker | str | tuple[str | Marker, ...]
_V = TypeVar('_V')


class SelectorMapping(MutableMapping[SelectorLike, _V], Generic[_V]):
    """
    Values by selectors of resources, in the order of their addition.

    The keys are selectors, or whatever can go to a decorator as its positional arguments:
    a string, a tuple of two or three, a callable, `EVERYTHING`.
    """

    def __init__(self, items: Mapping[SelectorLike, _V] | None = None, /) -> None:
        self._items: dict[Selector, _V] = {}
        self.update(items or {})

    def __repr__(self) -> str:
        return f'{self.__class__.__name__}({self._items!r})'

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Selector]:
        return iter(self._items)

    def __getitem__(self, key: SelectorLike) -> _V:
        return self._items[_as_selector(key)]

    def __setitem__(self, key: SelectorLike, value: _V) -> None:
        self._items[_as_selector(key)] = value

    def __delitem__(self, key: SelectorLike) -> None:
        del self._items[_as_selector(key)]

    def collect(self, resource: Resource) -> list[_V]:
        """Get the values of all the selectors that the resource fits."""
        return [value for selector, value in self._items.items() if selector.check(resource)]


def _as_selector(key: SelectorLike) -> Selector:
    match key:
        case Selector():
            return key
        case tuple():
            return Selector(*key)
        case _:
            return Selector(key)
