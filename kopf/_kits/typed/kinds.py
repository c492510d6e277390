"""
Kinds: classes that are declared as kinds of the API, and the definitions that are made of them.
"""
import contextlib
import copy
import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from kopf._cogs.structs import dicts, references
from kopf._core.intents import typedargs
from kopf._kits.typed import shapes
from kopf._kits.typed.shapes import Kind, Shape
from kopf._kits.typed.vocabulary import CEL, IMPLIED, Column, DeclarationError, Scale

ClsT = TypeVar('ClsT', bound=type)

_VERSION = r'v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?'
_COMMON = ('kind', 'singular', 'short', 'categories', 'scope')
"""What all versions of a kind have in common."""
PAUSED = Column(
    'Paused', r'.metadata.annotations.kopf\.dev/paused',
    description="Why the handlers of the object wait, and until when.")
"""The column of ``kubectl get`` that all kinds have, unless they have another one of this name."""
AGE = Column('Age', '.metadata.creationTimestamp')
"""The only column of the API where a kind declares none."""
_LABEL = r'[a-z0-9]([-a-z0-9]*[a-z0-9])?'


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What `crd` has declared of a class."""
    cls: type
    group: str
    version: str
    kind: str
    plural: str
    singular: str
    short: Sequence[str]
    categories: Sequence[str]
    scope: str
    storage: bool
    served: bool
    deprecated: bool | str
    columns: Sequence[Column]
    rules: Sequence[CEL]
    selectable: Sequence[str]
    scale: Scale | None
    family: 'dict[str, Declaration]' = dataclasses.field(
        default_factory=dict, repr=False, compare=False)
    """The newest declarations of all versions of the kind."""

    @property
    def name(self) -> str:
        """The name of the definition."""
        return f'{self.plural}.{self.group}'

    def bind(
            self, fn: Callable[..., Any], field: dicts.FieldPath | None, *,
            is_lasting: bool, is_whole: bool = False,
    ) -> Mapping[str, typedargs.Argument] | None:
        """Find the typed arguments of a handler; see `binding.bind`."""
        from kopf._kits.typed import binding  # what only prints definitions does not need it
        return binding.bind(self.cls, fn, field, is_lasting=is_lasting, is_whole=is_whole)

    async def compare(self, client: Any) -> str | None:
        """
        Say in a line if the cluster has another definition; None if it has the same, or none.

        :raises APIError: if the definition cannot be read.
        """
        from kopf._kits.typed import publishing
        try:
            definition = self._define()
        except DeclarationError:  # `find_fault` says so
            return None
        return await publishing.compare(client, definition)

    def find_fault(self) -> str | None:
        """Say why it cannot be defined in the API; None if it can."""
        try:
            self._define()
        except DeclarationError as e:
            return str(e)
        return None

    def lacks(self, path: str) -> bool:
        """Whether the API does not store the field (``.status.replicas``); its class lacks it."""
        try:
            return _find(shapes.read(self.cls), path) is None
        except DeclarationError:  # `find_fault` says so
            return False

    def _define(self) -> dict[str, Any]:
        """Make the definition, with all versions."""
        [definition] = define(declared.cls for declared in self.family.values())
        return definition


_declared: dict[str, dict[str, Declaration]] = {}
"""The newest declarations by the definitions and the versions: a module can be loaded again."""


@overload
def crd(
        group: str,
        version: str,
        *,
        plural: str,
        kind: str | None = None,
        singular: str | None = None,
        short: Collection[str] = (),
        categories: Collection[str] = (),
        scope: Literal['Namespaced', 'Cluster'] = 'Namespaced',
        storage: bool = False,
        served: bool = True,
        deprecated: bool | str = False,
        columns: Collection[Column] = (),
        rules: Collection[CEL] = (),
        selectable: Collection[str] = (),
        scale: Scale | None = None,
) -> Callable[[ClsT], ClsT]: ...


@overload
def crd(
        group: str,
        version: str,
        *,
        of: type,
        storage: bool = False,
        served: bool = True,
        deprecated: bool | str = False,
        columns: Collection[Column] = (),
        rules: Collection[CEL] = (),
        selectable: Collection[str] = (),
        scale: Scale | None = None,
) -> Callable[[ClsT], ClsT]: ...


def crd(
        group: str,
        version: str,
        *,
        of: type | None = None,
        plural: str | None = None,
        kind: str | None = None,
        singular: str | None = None,
        short: Collection[str] = (),
        categories: Collection[str] = (),
        scope: Literal['Namespaced', 'Cluster'] = 'Namespaced',
        storage: bool = False,
        served: bool = True,
        deprecated: bool | str = False,
        columns: Collection[Column] = (),
        rules: Collection[CEL] = (),
        selectable: Collection[str] = (),
        scale: Scale | None = None,
) -> Callable[[ClsT], ClsT]:
    """
    Declare a class as a kind of the API: the annotations ``spec`` and ``status`` are its schema.

    ``kopf crd`` prints the definition (CustomResourceDefinition). Kopf reads the annotations
    of the class and of its fields only when the class is used.

    ::

        @kopf.crd('example.com', 'v1', plural='websites')
        class Website:
            spec: WebsiteSpec

    See "Declare typed kinds" in the documentation.

    :param group: the API group, e.g. ``'example.com'``.
    :param version: the version, e.g. ``'v1'``. Several classes with the same group and plural are
        versions of one kind.
    :param of: the class of another version of the same kind. Then ``plural``, ``kind``,
        ``singular``, ``short``, ``categories``, and ``scope`` are those of that class. See
        `kopf.convert` for how objects of one version become those of the other.
    :param plural: the name of the resource, in lower case. It is required without ``of``.
    :param kind: the name of the kind. Default: the name of the class.
    :param singular: the name for one object in ``kubectl``. Default: the kind in lower case.
    :param short: short names for ``kubectl``.
    :param categories: groups of resources for ``kubectl``, e.g. ``'all'``.
    :param scope: whether the objects are in namespaces.
    :param storage: whether objects are stored in this version. It must be true for
        exactly one version; for a single version, this is the default.
    :param served: whether the version is served.
    :param deprecated: whether clients are warned when they use the version; or the warning.
    :param columns: the columns of ``kubectl get``.
    :param rules: rules in CEL about the whole object.
    :param selectable: the paths of fields by which clients can select objects.
    :param scale: the paths of the subresource ``scale``.
    :raises DeclarationError: if a name is none of the API, or if the module has another class for
        the same version.
    """
    for option, names in (('short', short), ('categories', categories)):
        if isinstance(names, str):
            raise DeclarationError(f"{option}= must be a collection of names, e.g. [{names!r}].")
    base = None if of is None else get_declaration(of)
    if base is not None:
        if (plural, kind, singular, tuple(short), tuple(categories), scope) != (
                None, None, None, (), (), 'Namespaced') or group != base.group:
            raise DeclarationError(
                f"{base.name} says already what its versions have in common: the group, plural=, "
                f"kind=, singular=, short=, categories=, and scope=. Leave them out with of=.")
        plural = base.plural
    elif plural is None:
        raise DeclarationError("A kind needs the name of its resource: plural='databases'.")
    check_names(group, version, plural)

    def decorate(cls: ClsT) -> ClsT:
        name = kind if kind is not None else cls.__name__
        declaration = Declaration(
            cls=cls, group=group, version=version, kind=name, plural=plural,
            singular=singular if singular is not None else name.lower(), short=tuple(short),
            categories=tuple(categories), scope=scope, storage=storage, served=served,
            deprecated=deprecated, columns=tuple(columns), rules=tuple(rules),
            selectable=tuple(selectable), scale=scale)
        if base is not None:
            declaration = dataclasses.replace(declaration, **{
                field: getattr(base, field) for field in _COMMON})
        family = _declared.setdefault(declaration.name, {} if base is None else base.family)
        if version in family and _is_in_use(family[version].cls, beside=cls):
            raise DeclarationError(
                f"{declaration.name} has two classes for {version}: {family[version].cls.__name__} "
                f"and {cls.__name__}. Give one of them another version or another plural=, or "
                f"remove it.")
        family[version] = declaration = dataclasses.replace(declaration, family=family)
        setattr(cls, references.DECLARATION, declaration)
        return cls
    return decorate


def _is_in_use(cls: type, *, beside: type) -> bool:
    """
    Whether the module declares another class beside this one, both at its top level.

    Otherwise, the module is loaded again, or a function declares a class, e.g. in a test.
    """
    module = sys.modules.get(beside.__module__)
    return '.' not in beside.__qualname__ and beside.__qualname__ != cls.__qualname__ and (
        getattr(module, cls.__qualname__, None) is cls)


def check_names(group: str, version: str, plural: str) -> None:
    """:raises DeclarationError: if a name is none of the API."""
    for value, pattern, what in [
            (group, rf'{_LABEL}(\.{_LABEL})+', "group, such as 'example.com'"),
            (version, _VERSION, "version, such as 'v1' or 'v1beta1'"),
            (plural, _LABEL, "plural name, such as 'databases'")]:
        if not re.fullmatch(pattern, value):
            raise DeclarationError(f"{value!r} is no {what}.")


def get_declaration(cls: type) -> Declaration:
    """
    Get the declaration of the class itself, not of those that it inherits from.

    :raises DeclarationError: if it has none.
    """
    found: Any = references.get_declaration(cls)
    if found is None:
        name = getattr(cls, '__name__', repr(cls))
        raise DeclarationError(f"{name} is no kind of the API. Decorate it: "
                               f"@kopf.crd('example.com', 'v1', plural='…')")
    declaration: Declaration = found
    return declaration


def get_declared() -> list[type]:
    """Get all classes that are declared, in the order of their declarations."""
    return [each.cls for family in _declared.values() for each in family.values()]


@contextlib.contextmanager
def separated() -> Iterator[None]:
    """
    Keep the declarations of the block apart from earlier ones: a kind that is declared in the block
    has no other versions than those that are declared there.
    """
    known = dict(_declared)
    _declared.clear()
    try:
        yield
    finally:
        _declared.update({**known, **_declared})


def find(selectors: Iterable[references.Selector]) -> list[type]:
    """Find the declared classes whose resources are selected, with all of their versions."""
    names = {(selector.group, selector.any_name or selector.plural) for selector in selectors}
    return [each.cls for family in _declared.values() for each in family.values()
            if (each.group, each.plural) in names]


def define(classes: Iterable[type]) -> list[dict[str, Any]]:
    """
    Make the definitions of the classes, sorted by their names.

    :raises DeclarationError: if a class cannot be expressed, or if versions contradict each other.
    """
    grouped: dict[str, list[Declaration]] = {}
    for cls in classes:
        declaration = get_declaration(cls)
        grouped.setdefault(declaration.name, []).append(declaration)
    return [_define(name, grouped[name]) for name in sorted(grouped)]


def _define(name: str, versions: list[Declaration]) -> dict[str, Any]:
    from kopf._kits.sandbox import crdrules, crds  # only for definitions
    from kopf._kits.typed import findings
    versions = sorted(versions, key=lambda each: crds.priority_of(each.version))
    first = versions[0]
    if len({each.version for each in versions}) < len(versions):
        raise DeclarationError(f"{name} has two classes of one version.")
    for each in versions:
        for field in _COMMON:
            if getattr(each, field) != getattr(first, field):
                raise DeclarationError(
                    f"{name} has different values of {field}= in {first.version} and "
                    f"{each.version}. Declare the same for all versions.")
    stored = [each.version for each in versions if each.storage or len(versions) == 1]
    if len(stored) != 1:
        raise DeclarationError(
            f"{name} has {len(stored)} versions in which objects are stored. Write storage=True "
            f"for exactly one of {', '.join(each.version for each in versions)}.")
    names = _drop_empty({
        'kind': first.kind, 'listKind': f'{first.kind}List', 'plural': first.plural,
        'singular': first.singular, 'shortNames': [*first.short],
        'categories': [*first.categories]})
    made: dict[str, Any] = {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': name},
        'spec': {
            'group': first.group, 'names': names, 'scope': first.scope,
            'versions': [_define_version(each, stored[0]) for each in versions]},
    }
    plain = copy.deepcopy(made)  # rules need a big library, and not all functions are known there
    for version in plain['spec']['versions']:
        schemas: Any = findings.iter_schemas('', version['schema']['openAPIV3Schema'])
        for _, schema in schemas:
            schema.pop('x-kubernetes-validations', None)
    for cause in crdrules.validate(crds.complete(plain)):
        raise DeclarationError(f"The API refuses {name}: {cause.field}: {cause.message}")
    return made


def _drop_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


def _define_version(declared: Declaration, stored: str) -> dict[str, Any]:
    from kopf._kits.typed import schemas  # it has to know much of the sandbox
    path = declared.cls.__name__
    shape = shapes.read(declared.cls)
    own = [field for field in shape.fields if field.wire not in IMPLIED]
    schema = schemas.normalise(schemas.make(dataclasses.replace(
        shape, fields=tuple(own), rules=tuple(declared.rules)), path))
    subresources: dict[str, Any] = {}
    status = next((field for field in own if field.wire == 'status'), None)
    if status is not None:
        if not status.is_optional:  # the API drops a status at the creation, and then requires it
            raise DeclarationError(
                f"{path}.status has no default, but new objects have no status. Write "
                f"'status: … | None = None', or give it a default.")
        schema['properties']['status'].pop('required', None)  # conditions can be written before
        subresources['status'] = {}
    if declared.scale is not None:
        paths = {'specReplicasPath': declared.scale.replicas,
                 'statusReplicasPath': declared.scale.status,
                 'labelSelectorPath': declared.scale.selector}
        subresources['scale'] = {
            key: _check_path(shape, value, path) for key, value in paths.items() if value}
    columns = [*declared.columns, PAUSED] if declared.columns else [PAUSED, AGE]
    if any(each.name == PAUSED.name for each in declared.columns):
        columns.remove(PAUSED)
    warning = declared.deprecated if isinstance(declared.deprecated, str) else None
    optional = _drop_empty({
        'subresources': subresources, 'deprecated': bool(declared.deprecated),
        'deprecationWarning': warning, 'selectableFields': [
            {'jsonPath': _check_path(shape, each, path)} for each in declared.selectable]})
    return {
        'name': declared.version, 'schema': {'openAPIV3Schema': schema},
        'served': declared.served, 'storage': declared.version == stored, **optional,
        'additionalPrinterColumns': [_define_column(each, shape, path) for each in columns]}


_COLUMN_TYPES = {Kind.BOOLEAN: 'boolean', Kind.INTEGER: 'integer', Kind.NUMBER: 'number'}


def _define_column(column: Column, shape: Shape, path: str) -> dict[str, Any]:
    found = _find(shape, column.path)
    if found is None and not re.match(r'\.(metadata|kind|apiVersion)\b|.*\[', column.path):
        _check_path(shape, column.path, path)
    kind: str | None = column.type
    if kind is None:
        kind = _COLUMN_TYPES.get(found.kind, 'string') if found is not None else 'string'
        if (found is not None and found.format == 'date-time') or (
                column.path == '.metadata.creationTimestamp'):
            kind = 'date'
    return _drop_empty({'name': column.name, 'type': kind, 'jsonPath': column.path,
                        'description': column.description, 'priority': column.priority})


def _find(shape: Shape, path: str) -> Shape | None:
    found: Shape | None = shape
    for name in re.split(r'(?<!\\)\.', path.strip('.')):
        if found is None or found.kind in (Kind.ANY, Kind.OBJECT):
            return found
        found = found.item if found.kind is Kind.MAP else next(
            (each.shape for each in found.fields if each.wire == name), None)
    return found


def _check_path(shape: Shape, path: str, where: str) -> str:
    """Return the path, if the class has such a field."""
    if not path.startswith('.') or _find(shape, path) is None:
        raise DeclarationError(
            f"{where} has no field {path!r}. Write a path of the names in the API, such as "
            f"'.spec.replicas'.")
    return path
