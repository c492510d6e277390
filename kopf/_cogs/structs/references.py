"""
Resources, selectors of resources, and patterns of namespaces.

A `Resource` is served by a cluster. A `Selector` is made of the arguments of a decorator. Selectors
are resolved to resources when the resources of the cluster are discovered.
"""
import dataclasses
import enum
import fnmatch
import inspect
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final, NewType, Protocol

NamespaceName = NewType('NamespaceName', str)

Namespace = NamespaceName | None
"""A namespace, or None for the whole cluster."""

NamespacePattern = str | re.Pattern[str]
"""A comma-separated list of globs, or a regular expression that must match the whole name."""


def match_namespace(name: NamespaceName, pattern: NamespacePattern) -> bool:
    """
    Check whether the name of a namespace matches a pattern.

    The first glob selects the namespaces; the next globs exclude (with ``!``) and include some of
    them again. The last glob that matches the name decides. If the first glob has ``!``, it
    excludes from all namespaces. Example: ``'dev-*, !dev-secret*, dev-secret-public'``.
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
    """Get those patterns that are exact names, without duplicates, in an arbitrary order."""
    return frozenset(
        NamespaceName(pattern) for pattern in patterns
        if isinstance(pattern, str) and not set(pattern) & set(',*?!')
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Resource:
    """
    A resource in a specific version, as a cluster serves it.

    Two resources are equal if their groups, versions, and plural names are equal: these identify
    the resource in URLs. A resource can be unpacked into these: ``group, version, plural =
    resource``.
    """

    group: str
    """The API group, e.g. ``"apps"``. Empty for the core API (pods, namespaces, etc)."""

    version: str
    """The API version, e.g. ``"v1"``, ``"v1beta1"``."""

    plural: str
    """The name in URLs, e.g. ``"pods"``."""

    kind: str | None = None
    """The name in manifests, e.g. ``"Pod"``."""

    singular: str | None = None
    """The name for people, e.g. ``"pod"``."""

    shortcuts: frozenset[str] = frozenset()
    """The short names, e.g. ``{"po"}``."""

    categories: frozenset[str] = frozenset()
    """The categories of the resource, e.g. ``{"all"}``."""

    subresources: frozenset[str] = frozenset()
    """The subresources, e.g. ``{"status", "scale"}``."""

    namespaced: bool | None = None
    """Whether the resource is namespaced or cluster-scoped; None if it is not known."""

    preferred: bool = True
    """Whether this version is the preferred version of the resource in its API group."""

    verbs: frozenset[str] = frozenset()
    """
    The verbs that the API server supports, e.g. ``{"list", "watch", "patch"}``.

    The permissions of the operator can be narrower. An empty set means that the verbs are not
    known.
    """

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Resource):
            return (self.plural == other.plural and self.group == other.group
                    and self.version == other.version)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.plural))

    def __iter__(self) -> Iterator[str]:
        return iter((self.group, self.version, self.plural))

    def __repr__(self) -> str:
        return '.'.join(part for part in (self.plural, self.version, self.group) if part)

    @property
    def api_version(self) -> str:
        """The group and the version, as in manifests: ``"apps/v1"``, ``"v1"``."""
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
        Make the URL of an object, or of a list of objects if there is no ``name``.

        :param server: the URL of the API server. Default: none, the result is only the path and the
            query.
        :param namespace: the namespace. Default: the whole cluster.
        :param name: the name of an object. Default: none, the URL is that of a list.
        :param subresource: a subresource of the object, e.g. ``'status'``. Default: the object
            itself.
        :param params: the parameters of the query. Default: none.
        :raises ValueError: if a cluster-scoped resource has a namespace; if an object of a
            namespaced resource has no namespace; if there is a subresource but no name; if a name
            is a dot or two. If it is not known whether the resource is namespaced, the namespace is
            not checked.
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
            url += f'/namespaces/{quote_name(namespace)}'
        url += f'/{self.plural}'
        if name is not None:
            url += f'/{quote_name(name)}'
        if subresource is not None:
            url += f'/{subresource}'
        if params:
            url += f'?{urllib.parse.urlencode(params)}'
        return url


def quote_name(name: str) -> str:
    """
    Quote a name in a path: it can come from a field of any object, as a reference to another.

    :raises ValueError: if it is a dot or two, which mean something else in paths.
    """
    if name in ('.', '..'):
        raise ValueError(f"{name!r} is not a name.")
    return name if _PLAIN(name) else urllib.parse.quote(name, safe='')


_PLAIN = re.compile(r'[A-Za-z0-9.:_-]*').fullmatch


class Marker(enum.Enum):
    """Special values that are used instead of names of resources."""
    EVERYTHING = enum.auto()


CRDS: Final = Resource(
    'apiextensions.k8s.io', 'v1', 'customresourcedefinitions', kind='CustomResourceDefinition',
    namespaced=False)
"""The definitions of custom resources."""

EVERYTHING: Final = Marker.EVERYTHING
"""Instead of a name: all resources of a group, or of the cluster."""

SelectorFn = Callable[[Resource], bool]
SelectorKey = SelectorFn | Marker | str | type[Any] | None

DECLARATION: Final = '__kopf_crd__'
"""The attribute of a class that is declared as a kind. It is not inherited."""


class Declaration(Protocol):
    """Of which resource the objects of a declared class are. It is read only."""
    group: str
    version: str
    plural: str

    def bind(
            self, fn: Callable[..., Any], field: tuple[str, ...] | None, *,
            is_lasting: bool, is_whole: bool = False,
    ) -> Any:
        """Find the typed arguments of a handler of this kind; None if there are none."""

    def find_fault(self) -> str | None:
        """Say why it cannot be defined in the API; None if it can."""

    def lacks(self, path: str) -> bool:
        """Whether the API does not store the field (``.status.replicas``); its class lacks it."""

    async def compare(self, client: Any) -> str | None:
        """Say in a line if the cluster has another definition; None if it has the same, or none."""


def get_declaration(cls: object) -> Declaration | None:
    """Get what is declared of a class itself, not of its bases; None if nothing is."""
    return vars(cls).get(DECLARATION) if isinstance(cls, type) else None

_VERSION = r'v\d+(?:(?:alpha|beta)\d+)?'
_DOTTED_NAME = re.compile(rf'(?P<name>[^.]+)\.(?:(?P<version>{_VERSION})(?:\.|$))?(?P<group>.*)')


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Selector:
    """
    A specification of one or several resources, as in the arguments of decorators.

    The positional arguments can be:

    * A name: ``'pods'``. It can be plural, singular, short, or the kind; or it can be `EVERYTHING`.
    * A name with the group, maybe with the version: ``'deployments.apps'``,
      ``'deployments.v1.apps'``.
    * The group and the version before the name: ``'apps', 'v1', 'deployments'``, or
      ``'apps/v1', 'deployments'``; or only the group: ``'apps', 'deployments'``. The core API is
      ``'v1'``.
    * A class that ``@kopf.crd`` declares as a kind.
    * A callable that gets a `Resource` and returns whether the resource is selected.

    :raises TypeError: if no resource is named, or if it is named twice.
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
            _verify_order(api)
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
        elif (declared := get_declaration(arg1)) is not None:
            own_group, own_version = declared.group, declared.version
            any_name = declared.plural
        elif isinstance(arg1, type):
            raise TypeError(f"{_name(arg1)} is a class, but no kind of the API. Decorate it: "
                            f"@kopf.crd('example.com', 'v1', plural='…')")
        elif callable(arg1):
            _verify_callable(arg1)
            fn = arg1
        else:
            raise TypeError(
                f"Not a selector of resources: {arg1!r}. Name one resource. For several resources, "
                f"decorate the function several times.")

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
        for name in names:
            _verify_name(name)
        if '' in names or '' in (version, own_version):
            raise TypeError("Names and versions of resources cannot be empty strings.")

        self.__dict__.update(  # it is immutable otherwise
            group=own_group if group is None else group,
            version=own_version if version is None else version,
            kind=kind, plural=plural, singular=singular, shortcut=shortcut, category=category,
            any_name=any_name, fn=fn)

    def __repr__(self) -> str:
        params = ', '.join(f'{key}={val!r}' for key, val in vars(self).items() if val is not None)
        return f'{self.__class__.__name__}({params})'

    def __str__(self) -> str:
        """Make a name for people: ``pods``, ``deployments.v1.apps``, ``category=all``."""
        values = {key: val for key, val in vars(self).items() if val is not None}
        if isinstance(self.any_name, str) and values.keys() <= {'any_name', 'group', 'version'}:
            return '.'.join(part for part in (self.any_name, self.version, self.group) if part)
        if self.any_name is EVERYTHING:
            values['any_name'] = 'EVERYTHING'
        if self.fn is not None:
            values['fn'] = getattr(self.fn, '__qualname__', self.fn)
        return ','.join(f'{key}={val}' for key, val in values.items())

    @property
    def is_named(self) -> bool:
        """Whether resources are selected by a name, not by a category or by `EVERYTHING`."""
        return self.category is None and self.any_name is not EVERYTHING and (
            self.fn is None or any((self.kind, self.plural, self.singular, self.shortcut)))

    @property
    def is_specific(self) -> bool:
        """Whether the selector is meant for one resource, in one or several versions."""
        return self.fn is None and self.is_named

    def check(self, resource: Resource) -> bool:
        """
        Check whether the resource matches, without regard to other resources.

        Only preferred versions match, unless the version is specified, or a callable decides. The
        two resources of Kubernetes events match only by name: otherwise, handlers of `EVERYTHING`
        would handle the events that are posted about their objects.
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
        Get the matching resources, in the same order.

        If a name matches in several groups, the core API is preferred: e.g. ``pods`` are not the
        pods of ``metrics.k8s.io``. If there are several other groups, the selector is ambiguous:
        the caller has to check this for selectors that are `is_specific`.
        """
        fitting = tuple(dict.fromkeys(resource for resource in resources if self.check(resource)))
        if self.is_specific and len(fitting) > 1:
            return tuple(resource for resource in fitting if not resource.group) or fitting
        return fitting

    def find_similar(self, resources: Iterable[Resource]) -> Resource | None:
        """Get the resource that was probably meant by a selector that matches none."""
        wanted = next((name for name in (
            self.any_name, self.plural, self.singular, self.kind) if isinstance(name, str)), None)
        if wanted is None:
            return None
        names: dict[str, Resource] = {}
        for resource in resources:
            for name in (resource.plural, resource.singular, resource.kind):
                if name and (name.lower() not in names or resource.group == self.group):
                    names[name.lower()] = resource
        import difflib  # only for an error
        close = difflib.get_close_matches(wanted.lower(), names, n=1, cutoff=0.8)
        return names[close[0]] if close else None


_HANDLER_ARGS = frozenset({
    'annotations', 'body', 'diff', 'event', 'labels', 'logger', 'memo', 'meta', 'name', 'namespace',
    'new', 'old', 'patch', 'spec', 'status', 'type', 'uid'})
"""The arguments by which handlers differ from functions that select resources."""


def _verify_callable(fn: Callable[..., object]) -> None:
    """Refuse the handlers of those who have forgotten the parentheses of the decorator."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError:
        is_selector = False
    else:
        is_selector = not signature.parameters.keys() & _HANDLER_ARGS
    if inspect.iscoroutinefunction(fn) or not is_selector:
        raise TypeError(
            f"{_name(fn)}() is given instead of a resource. Name the resource in the parentheses "
            f"of the decorator, for example: @kopf.on.create('kopfexamples')")


def _verify_name(name: object) -> None:
    """Refuse what no resource can be named."""
    if callable(name):
        raise TypeError(
            f"The names of resources must be strings, but one is the function {_name(name)}(). "
            f"Handlers follow the decorator, @kopf.on.create(...), and filters are when=...")
    if not isinstance(name, (str, Marker)):
        raise TypeError(f"The names of resources must be strings, not {name!r}.")
    if name == '*':
        raise TypeError("'*' is no name of a resource. For all resources, use kopf.EVERYTHING.")
    if isinstance(name, str) and name and not re.fullmatch(r'[\w.:-]+', name):
        raise TypeError(
            f"{name!r} is no name of a resource: there are only letters, digits, and hyphens in "
            f"such names. For several resources, decorate the function several times.")


def _name(fn: Callable[..., object]) -> str:
    return str(getattr(fn, '__name__', repr(fn)))


def _verify_order(args: Collection[str | Marker]) -> None:
    """Refuse what can be no resource, but would be one in another order: group, version, name."""
    texts = [arg for arg in args if isinstance(arg, str)]
    if len(texts) != len(args) or not texts:
        return
    versions = [text for text in texts if re.fullmatch(_VERSION, text)]
    groups = [text for text in texts if text not in versions and ('.' in text or '/' in text)]
    names = [text for text in texts if text not in versions and text not in groups]
    if len(texts) == 1 and (parts := re.fullmatch(rf'(.+/{_VERSION}|v1)/([^/]+)', texts[0])):
        raise TypeError(f"The resource {texts[0]!r} is one string; "
                        f"did you mean {_list(parts.groups())}?")
    if len(texts) == 1 and '/' in texts[0]:
        raise TypeError(f"{texts[0]!r} is a group and a version. Name the resource after it, "
                        f"for example: {texts[0]!r}, 'kopfexamples'")
    if len(texts) == 3 and not groups and len(versions) == 1:
        groups = [names.pop(0)]
    right = [*groups, *versions, *names]
    if len(texts) > 1 and len(names) == 1 and len(groups) <= 1 and right != texts:
        raise TypeError(f"The resource is specified in a wrong order: {_list(texts)}; "
                        f"did you mean {_list(right)}?")


def _list(texts: Iterable[str]) -> str:
    return ', '.join(map(repr, texts))


SelectorLike = Selector | SelectorFn | Marker | str | type[Any] | tuple[str | Marker, ...]


def make_selector(key: SelectorLike) -> Selector:
    """Make a selector of what stands for one: a name, several of them in a tuple, a class, etc."""
    match key:
        case Selector():
            return key
        case tuple():
            return Selector(*key)
        case _:
            return Selector(key)


class SelectorMapping(MutableMapping[SelectorLike, str]):
    """
    Values by selectors of resources, in the order of their addition.

    The keys are selectors, or the positional arguments of decorators: a string, a tuple of two or
    three strings, a callable, `EVERYTHING`.
    """

    def __init__(self, items: Mapping[SelectorLike, str] | None = None, /) -> None:
        self._items: dict[Selector, str] = {}
        self.update(items or {})

    def __repr__(self) -> str:
        return f'{self.__class__.__name__}({self._items!r})'

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Selector]:
        return iter(self._items)

    def __getitem__(self, key: SelectorLike) -> str:
        return self._items[make_selector(key)]

    def __setitem__(self, key: SelectorLike, value: str) -> None:
        if not isinstance(value, str):  # it would fail much later, when the objects are listed
            raise TypeError(f"Selectors must be strings in the notation of Kubernetes, for example "
                            f"'app=web', not {value!r}.")
        self._items[make_selector(key)] = value

    def __delitem__(self, key: SelectorLike) -> None:
        del self._items[make_selector(key)]

    def collect(self, resource: Resource) -> list[str]:
        """Get the values of all selectors that the resource matches."""
        return [value for selector, value in self._items.items() if selector.check(resource)]
