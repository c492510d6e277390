"""
Shapes: what the classes of an author say about values, whichever library the classes are of.

Both the schema of a kind and the decoding of its objects are made of these. Dataclasses,
TypedDicts, and plain annotated classes are read always; those of attrs, pydantic, and msgspec are
recognised by their attributes, so that none of these libraries is imported here.
"""
import ast
import collections
import contextlib
import dataclasses
import datetime
import enum
import functools
import inspect
import ipaddress
import itertools
import linecache
import re
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from kopf._cogs.structs import references
from kopf._core.intents import handlers
from kopf._kits.typed import vocabulary
from kopf._kits.typed.vocabulary import CEL, DeclarationError, Word


class Kind(enum.Enum):
    """The kinds of values."""
    ANY = enum.auto()
    BOOLEAN = enum.auto()
    INTEGER = enum.auto()
    NUMBER = enum.auto()
    STRING = enum.auto()
    ENUM = enum.auto()
    QUANTITY = enum.auto()
    INT_OR_STRING = enum.auto()
    LIST = enum.auto()
    MAP = enum.auto()
    OBJECT = enum.auto()
    """A dict of anything, whose fields are kept though no schema mentions them."""
    RECORD = enum.auto()

    def describe(self) -> str:
        return self.name.lower().replace('_', ' ')


class _Missing(enum.Enum):
    MISSING = enum.auto()


MISSING: Final = _Missing.MISSING
"""Instead of a default: there is none."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is known about a value. Which of the attributes have a meaning depends on its kind."""
    kind: Kind
    cls: Any = None
    """The type of Python: of a record, of an enum, of a list or a set, of a formatted string."""
    library: str = ''
    """Of records: ``dataclass``, ``attrs``, ``pydantic``, ``msgspec``, ``typeddict``, ``plain``."""
    fields: tuple['Field', ...] = ()
    item: 'Shape | None' = None
    """That of the items of lists, and of the values of maps."""
    values: tuple[Any, ...] = ()
    format: str | None = None
    list_type: Literal['atomic', 'set', 'map'] | None = None
    keys: tuple[str, ...] = ()
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The keywords of the schema that limit the value: ``minimum``, ``maxLength``, ``pattern``."""
    rules: tuple[CEL, ...] = ()
    description: str | None = None
    is_nullable: bool = False
    is_immutable: bool = False
    is_embedded: bool = False
    is_atomic: bool = False

    @property
    def inner(self) -> 'list[Shape]':
        """The shapes of what is in the value: of its fields, or of its items."""
        return [*(field.shape for field in self.fields), *([self.item] if self.item else [])]


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a record: its names in Python and in the API, and its default, if it has one."""
    name: str
    wire: str
    shape: Shape
    default: Any = MISSING
    """The value in Python; None for optional fields without a default in the API."""
    factory: Callable[[], Any] | None = None
    """What has made the default."""
    is_optional: bool = False
    description: str | None = None


@dataclasses.dataclass(frozen=True)
class _Raw:
    """A field as its library knows it."""
    name: str
    annotation: Any
    wire: str | None = None
    default: Any = MISSING
    factory: Callable[[], Any] | None = None
    markers: tuple[Any, ...] = ()
    description: str | None = None
    is_optional: bool = False


_SCALARS: Mapping[Any, tuple[Kind, str | None]] = {
    bool: (Kind.BOOLEAN, None),
    int: (Kind.INTEGER, None),
    str: (Kind.STRING, None),
    bytes: (Kind.STRING, 'byte'),
    datetime.datetime: (Kind.STRING, 'date-time'),
    datetime.date: (Kind.STRING, 'date'),
    uuid.UUID: (Kind.STRING, 'uuid'),
    ipaddress.IPv4Address: (Kind.STRING, 'ipv4'),
    ipaddress.IPv6Address: (Kind.STRING, 'ipv6'),
    vocabulary.Quantity: (Kind.QUANTITY, None),
}
_LISTS = (list, set, frozenset, collections.abc.Sequence, collections.abc.Set)
_MAPS = (dict, collections.abc.Mapping)

_LIMITS = {
    **{f'{end}_length': {
        Kind.STRING: f'{end}Length', Kind.LIST: f'{end}Items',
        Kind.MAP: f'{end}Properties', Kind.OBJECT: f'{end}Properties'} for end in ('min', 'max')},
    **dict.fromkeys(('ge', 'gt'), dict.fromkeys((Kind.INTEGER, Kind.NUMBER), 'minimum')),
    **dict.fromkeys(('le', 'lt'), dict.fromkeys((Kind.INTEGER, Kind.NUMBER), 'maximum')),
    'multiple_of': dict.fromkeys((Kind.INTEGER, Kind.NUMBER), 'multipleOf'),
    'pattern': {Kind.STRING: 'pattern'},
}
"""The attributes of constraints, as annotated-types has them, and their keywords by the kinds."""


@functools.cache
def read(cls: type) -> Shape:
    """
    Read a class, with all classes in its fields.

    :raises DeclarationError: if it cannot be expressed in a schema.
    """
    return _read_record(cls, cls.__name__, ())


def read_value(annotation: Any, path: str) -> Shape:
    """
    Read the annotation of a value. The path is for messages.

    :raises DeclarationError: if it cannot be expressed in a schema.
    """
    return _read_inner(annotation, path, ())


def _read_record(cls: Any, path: str, outer: tuple[Any, ...]) -> Shape:
    if cls in outer:
        raise DeclarationError(
            f"{path}: {cls.__name__} contains itself, which schemas cannot express. Write "
            f"dict[str, Any] for the inner value.")
    library, raws = _list_fields(cls, path)
    comments = _read_comments(cls)
    fields = [_read_field(raw, path, library, comments, (*outer, cls)) for raw in raws]
    seen: dict[str, str] = {}
    for field in fields:
        if field.wire in seen:
            raise DeclarationError(
                f"{path}: {seen[field.wire]!r} and {field.name!r} are both {field.wire!r} in the "
                f"API. Name one of them otherwise, e.g. Annotated[…, kopf.Wire('otherName')].")
        seen[field.wire] = field.name
    return Shape(
        Kind.RECORD, cls=cls, library=library, fields=tuple(fields), description=_get_doc(cls),
        is_atomic=cls in vocabulary.ATOMIC_TYPES)


def _read_field(
        raw: _Raw, path: str, library: str, comments: Mapping[str, str], outer: tuple[Any, ...],
) -> Field:
    place = f'{path}.{raw.name}'
    annotation, markers, optional = _unwrap(raw.annotation, [*raw.markers])
    shape = _read_value(annotation, markers, place, outer)
    wires = [marker.name for marker in markers if isinstance(marker, vocabulary.Wire)]
    wire = wires[-1] if wires else raw.wire if raw.wire is not None else (
        _to_camel_case(raw.name) if library in ('dataclass', 'attrs', 'plain') else raw.name)
    default = raw.default
    if raw.factory is not None:
        default = raw.factory()
    is_absent = default is None or default is handlers.ABSENT or is_unset(default)
    if shape.is_nullable and default is None:
        raise DeclarationError(
            f"{place} is null by default, which the API does not have. Write '= kopf.ABSENT'.")
    if optional and default is MISSING and not (raw.is_optional or shape.is_nullable):
        raise DeclarationError(
            f"{place} can be None, but has no default. Write '= None' if it is optional, or "
            f"kopf.Nullable[…] if null is a value of its own.")
    if default is None and not optional and shape.kind is not Kind.ANY:
        raise DeclarationError(f"{place} is None by default, but its type says otherwise. "
                               f"Write '… | None = None'.")
    described = [text for marker in markers for text in [getattr(marker, 'description', None) or
                 getattr(marker, 'documentation', None)] if isinstance(text, str)]
    return Field(
        name=raw.name, wire=wire, shape=shape,
        default=None if is_absent and not shape.is_nullable else default, factory=raw.factory,
        is_optional=raw.is_optional or default is not MISSING,
        description=next(iter(described), None) or raw.description or comments.get(raw.name))


def _to_camel_case(name: str) -> str:
    """``max_connections`` to ``maxConnections``; ``from_`` to ``from``."""
    head, *rest = name.strip('_').split('_')
    return head + ''.join(part[:1].upper() + part[1:] for part in rest)


def _unwrap(annotation: Any, markers: list[Any]) -> tuple[Any, list[Any], bool]:
    """Take the annotation apart: the type itself, the markers, and whether it can be None."""
    optional = False
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *added = get_args(annotation)
            markers = [*_flatten(added), *markers]
        elif origin in (typing.Required, typing.NotRequired, typing.ClassVar, typing.Final) or (
                getattr(origin, '_name', None) == 'ReadOnly'):  # Python 3.13
            [annotation] = get_args(annotation)
        elif origin in (Union, types.UnionType):
            args = [arg for arg in get_args(annotation) if arg is not types.NoneType
                    and arg != Literal[handlers.ABSENT] and not _is_unset_type(arg)]
            if len(args) == len(get_args(annotation)) or not args:
                return annotation, markers, optional
            optional |= any(arg is types.NoneType or _is_unset_type(arg)
                            for arg in get_args(annotation))
            annotation = functools.reduce(lambda a, b: a | b, args)
        elif type(annotation).__name__ == 'TypeAliasType':  # Python 3.12
            annotation = annotation.__value__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        else:
            return annotation, markers, optional


def is_unset(value: Any) -> bool:
    """Whether it is the value of msgspec for fields that are absent."""
    return _is_unset_type(type(value))


def _is_unset_type(annotation: Any) -> bool:
    return getattr(annotation, '__name__', None) == 'UnsetType'


def _flatten(markers: Iterable[Any]) -> Iterator[Any]:
    """Take groups apart: those of annotated-types, and the fields of pydantic."""
    for marker in markers:
        inner = getattr(marker, 'metadata', None)
        if isinstance(inner, list):
            yield from _flatten(inner)
        yield marker


def _read_value(annotation: Any, markers: list[Any], path: str, outer: tuple[Any, ...]) -> Shape:
    shape = _read_type(annotation, markers, path, outer)
    limits = {**shape.limits, **dict(_read_limits(markers, shape, path))}
    rules = tuple(marker for marker in markers if isinstance(marker, CEL))
    if (rules or Word.IMMUTABLE in markers) and _is_typeless(shape):
        raise DeclarationError(f"{path} can contain anything, for which the API cannot have rules. "
                               f"Write dict[str, Any], or a class.")
    is_nullable = Word.NULLABLE in markers
    if is_nullable and shape.kind is Kind.ENUM:
        raise DeclarationError(f"{path} is an enum that can be null, which the API does not have. "
                               f"Write kopf.Nullable[Annotated[str, kopf.Pattern('^(A|B)$')]].")
    return dataclasses.replace(
        shape, limits=limits, rules=rules, is_nullable=is_nullable,
        is_immutable=Word.IMMUTABLE in markers, is_atomic=shape.is_atomic or Word.ATOMIC in markers)


def _is_typeless(shape: Shape) -> bool:
    return shape.kind is Kind.ANY or (shape.item is not None and _is_typeless(shape.item))


def _read_type(annotation: Any, markers: list[Any], path: str, outer: tuple[Any, ...]) -> Shape:
    origin, args = get_origin(annotation) or annotation, get_args(annotation)
    if annotation in (Any, object):
        return Shape(Kind.ANY)
    if Word.INT_OR_STRING in markers or (
            origin in (Union, types.UnionType) and {*args} == {int, str}):
        return Shape(Kind.INT_OR_STRING)
    if annotation in _SCALARS:
        kind, fmt = _SCALARS[annotation]
        return Shape(kind, cls=annotation, format=fmt)
    if annotation is float:
        if Word.FLOAT not in markers:
            raise DeclarationError(
                f"{path} is a float, which not all clients keep exactly. Write int or "
                f"kopf.Quantity; or Annotated[float, kopf.Float] if you mean it.")
        return Shape(Kind.NUMBER, cls=float)
    if origin is Literal:
        return _read_enum(None, args, path)
    if isinstance(annotation, type) and issubclass(annotation, enum.Flag):
        raise DeclarationError(f"{path} is of flags, and the API has no combinations of them. "
                               f"Write a set of an Enum.")
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _read_enum(annotation, [member.value for member in annotation], path)
    if origin in _LISTS:
        return _read_list(origin, args, markers, path, outer)
    if origin in _MAPS:
        return _read_map(args, markers, path, outer)
    if origin in (tuple, collections.abc.Iterable):
        raise DeclarationError(f"{path} is a tuple, whose length schemas cannot express. "
                               f"Write a list, or a class with a field for each item.")
    if origin in (Union, types.UnionType):
        raise DeclarationError(
            f"{path} is one of several types, which schemas cannot express. Write a field for each "
            f"of them, and a kopf.CEL rule that one is set; kopf.IntOrString is the exception.")
    if isinstance(annotation, type) and annotation not in (int, str, complex):
        return _read_record(annotation, path, outer)
    is_generic = isinstance(annotation, TypeVar) or bool(getattr(origin, '__parameters__', ()))
    instead = "a class without type variables" if is_generic else "a dataclass, dict[str, Any]"
    raise DeclarationError(f"{path} is of the type {annotation!r}, which is none of the API. Write "
                           f"{instead}, or Any.")


def _read_enum(cls: Any, values: Iterable[Any], path: str) -> Shape:
    values = tuple(values)
    if not values or len({type(value) for value in values}) != 1 or (
            not isinstance(values[0], (str, int)) or isinstance(values[0], bool)):
        raise DeclarationError(f"{path} is an enum of {values!r}. All values must be strings, or "
                               f"all integers.")
    return Shape(Kind.ENUM, cls=cls, values=values)


def _read_list(
        origin: Any, args: tuple[Any, ...], markers: list[Any], path: str, outer: tuple[Any, ...],
) -> Shape:
    item = _read_inner(args[0], f'{path}[]', outer) if args else Shape(Kind.ANY)
    keys = [marker.keys for marker in markers if isinstance(marker, vocabulary.ListMap)]
    is_set = Word.SET in markers or origin in (set, frozenset, collections.abc.Set)
    if keys:
        known = {field.wire: field for field in item.fields}
        for key in keys[-1]:
            if key not in known or known[key].shape.kind in (Kind.LIST, Kind.MAP, Kind.RECORD):
                raise DeclarationError(f"{path} is a list by {key!r}, which is no simple field of "
                                       f"its items. Their fields: {', '.join(known) or 'none'}.")
    if is_set and (item.is_nullable or (
            item.kind in (Kind.RECORD, Kind.MAP, Kind.LIST) and not item.is_atomic)):
        raise DeclarationError(f"{path} is a set, but its items are no simple values. Write "
                               f"Annotated[list[…], kopf.ListMap('name')].")
    if not keys and _has_immutable(item):
        raise DeclarationError(f"{path} has items with a kopf.Immutable field, which the API can "
                               f"tell apart only by keys. Write Annotated[list[…], "
                               f"kopf.ListMap('name')].")
    return Shape(
        Kind.LIST, cls=origin, item=item, keys=keys[-1] if keys else (),
        list_type='map' if keys else 'set' if is_set else None)


def _has_immutable(shape: Shape) -> bool:
    return shape.is_immutable or any(map(_has_immutable, shape.inner))


def _read_map(
        args: tuple[Any, ...], markers: list[Any], path: str, outer: tuple[Any, ...],
) -> Shape:
    key, value = args or (str, Any)
    if _unwrap(key, [])[0] is not str:
        raise DeclarationError(f"{path} has keys of the type {key!r}. All keys of the API are "
                               f"strings: write dict[str, …].")
    if value is Any:
        return Shape(Kind.OBJECT, cls=dict, is_embedded=Word.EMBEDDED in markers)
    return Shape(Kind.MAP, cls=dict, item=_read_inner(value, f'{path}[]', outer))


def _read_inner(annotation: Any, path: str, outer: tuple[Any, ...]) -> Shape:
    annotation, markers, optional = _unwrap(annotation, [])
    if optional and Word.NULLABLE not in markers:
        raise DeclarationError(f"{path} can be None. Items cannot be absent: write "
                               f"kopf.Nullable[…] if null is a value of its own.")
    return _read_value(annotation, markers, path, outer)


def _read_limits(markers: Iterable[Any], shape: Shape, path: str) -> Iterator[tuple[str, Any]]:
    kind = shape.kind
    for marker in markers:
        for attr, keywords in _LIMITS.items():
            value = getattr(marker, attr, None)
            if value is None or callable(value) or (attr == 'min_length' and value == 0):
                continue
            if kind not in keywords:
                raise DeclarationError(f"{path} has the limit {attr}={value!r}, which has no "
                                       f"meaning for {kind.describe()}s.")
            if attr == 'pattern':
                _check_pattern(value, path)
            elif kind is Kind.INTEGER and value != int(value):
                raise DeclarationError(f"{path} has the limit {attr}={value!r}, which is none for "
                                       f"integers.")
            elif shape.cls is bytes:  # four letters in base64 are up to three bytes
                value = -(-value // 3) * 4
            yield keywords[kind], value
            if attr in ('gt', 'lt'):
                yield f'exclusive{keywords[kind].capitalize()}', True


_TOKEN = re.compile(r"""
    (?P<python> \\[1-9NUuZ] | \(\?(?:[=!>(#]|<[=!]|P=|-?\w*[aLux]))
    | (?P<re2> \\[pP](?:\{\^?\w+\}|\w) | \\z | \[:\^?\w+:\])
    | \\. | .""", re.VERBOSE | re.DOTALL)
"""The parts of patterns that only one of Python and RE2 knows, and all others."""


def _check_pattern(pattern: str, path: str) -> None:
    """Refuse what RE2 does not have, or has with another meaning than Python."""
    tokens = [*_TOKEN.finditer(pattern)]
    if alien := next((token[0] for token in tokens if token.lastgroup == 'python'), None):
        raise DeclarationError(
            f"{path} has the pattern {pattern!r}: look-arounds, references to groups, and others "
            f"of Python are not in RE2, which the API uses: {alien!r}. Write a kopf.CEL rule.")
    try:
        re.compile(''.join('x' if token.lastgroup == 're2' else token[0] for token in tokens))
    except re.error as e:
        raise DeclarationError(f"{path} has the pattern {pattern!r}, which is wrong: {e}.") from e


# What the libraries know of fields.

def _list_fields(cls: Any, path: str) -> tuple[str, list[_Raw]]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as e:
        raise DeclarationError(
            f"{path}: the annotations of {cls.__name__} cannot be resolved: {e}. Define what they "
            f"name at the level of the module.") from e
    if dataclasses.is_dataclass(cls):
        for name, hint in hints.items():
            if isinstance(hint, dataclasses.InitVar) and not hasattr(cls, name):
                raise DeclarationError(f"{path}.{name} is an InitVar without a default, which no "
                                       f"object of the API has. Make it a field.")
        if get_infos(cls):
            sys.modules['pydantic.dataclasses'].rebuild_dataclass(cls, raise_errors=False)
            return 'dataclass', [_read_pydantic(field.name, get_infos(cls)[field.name], path)
                                 for field in dataclasses.fields(cls) if field.init]
        return 'dataclass', [
            _read_default(_Raw(field.name, hints[field.name]), field, dataclasses.MISSING)
            for field in dataclasses.fields(cls) if field.init]
    if hasattr(cls, '__optional_keys__'):  # also those of typing_extensions
        return 'typeddict', [_Raw(name, hint, is_optional=name in cls.__optional_keys__)
                             for name, hint in hints.items()]
    if hasattr(cls, '__attrs_attrs__'):
        return 'attrs', [
            _read_attrs(attr, hints, path) for attr in cls.__attrs_attrs__ if attr.init]
    if hasattr(cls, '__struct_fields__'):
        msgspec = sys.modules['msgspec']
        return 'msgspec', [
            _read_default(_Raw(field.name, hints[field.name], wire=field.encode_name), field,
                          msgspec.NODEFAULT) for field in msgspec.structs.fields(cls)]
    if hasattr(cls, 'model_fields'):
        if getattr(cls, '__pydantic_root_model__', False):
            raise DeclarationError(f"{path} is of {cls.__name__}, which is a RootModel. Write the "
                                   f"type of its root instead.")
        cls.model_rebuild(raise_errors=False)  # it may name classes that are defined below it
        return 'pydantic', [
            _read_pydantic(name, info, path) for name, info in cls.model_fields.items()]
    if references.get_declaration(cls) is not None:
        for name, value in vars(cls).items():
            if isinstance(value, dataclasses.Field):
                raise DeclarationError(f"{path}.{name} has dataclasses.field() as its default, but "
                                       f"the class is no dataclass. Write the value itself.")
        return 'plain', [
            _Raw(name, hint, default=getattr(cls, name, MISSING)) for name, hint in hints.items()
            if typing.ClassVar not in (hint, get_origin(hint))]
    raise DeclarationError(
        f"{path} is of the class {cls.__name__}, whose fields are not known. Make it a dataclass, "
        f"a TypedDict, or a class of attrs, pydantic, or msgspec.")


def _read_attrs(attr: Any, hints: Mapping[str, Any], path: str) -> _Raw:
    annotation = hints.get(attr.name, attr.type)
    if annotation is None:
        raise DeclarationError(f"{path}.{attr.name} has no type. Write an annotation.")
    factory = getattr(attr.default, 'factory', None)
    default = MISSING if factory is not None or repr(attr.default) == 'NOTHING' else attr.default
    if getattr(attr.default, 'takes_self', False):  # it depends on other fields
        return _Raw(attr.name, annotation, is_optional=True)
    return _Raw(attr.name, annotation, default=default, factory=factory)


def _read_default(raw: _Raw, field: Any, absent: object) -> _Raw:
    """Add the default of a dataclass or a struct, which have ``absent`` if there is none."""
    return dataclasses.replace(
        raw, default=MISSING if field.default is absent else field.default,
        factory=None if field.default_factory is absent else field.default_factory)


def _read_pydantic(name: str, info: Any, path: str) -> _Raw:
    alias = get_alias(info)
    if alias is None and info.validation_alias is not None:
        raise DeclarationError(f"{path}.{name} has the alias {info.validation_alias!r}, which is "
                               f"no name. Write one as a string.")
    # A default that depends on other fields is none of the API.
    is_derived = getattr(info, 'default_factory_takes_validated_data', None) is True
    factory = None if is_derived else info.default_factory
    is_undefined = info.is_required() or info.default_factory is not None
    return _Raw(
        name, info.annotation, wire=alias, factory=factory, is_optional=is_derived,
        default=MISSING if is_undefined else info.default,
        markers=tuple(_flatten(info.metadata)), description=info.description)


def get_infos(cls: Any) -> Mapping[str, Any]:
    """Get what pydantic knows of the fields: of its models, and of its dataclasses."""
    is_dataclass = dataclasses.is_dataclass(cls)
    found: Mapping[str, Any] = (
        vars(cls).get('__pydantic_fields__', {}) if is_dataclass else cls.model_fields)
    return found


def get_alias(info: Any) -> str | None:
    """Get the name that pydantic reads a field by; of several ones, the first."""
    alias = info.validation_alias
    aliases = [each for each in getattr(alias, 'choices', [alias]) if isinstance(each, str)]
    return aliases[0] if aliases else info.alias


# Descriptions.

_FOR_TOOLS = re.compile(r'#\s*(?:type:|noqa|pyright:|mypy:|pragma|pylint:|ruff:)')


def _get_doc(cls: Any) -> str | None:
    doc = vars(cls).get('__doc__')
    if not isinstance(doc, str) or doc.startswith(f'{cls.__name__}('):  # of the dataclass itself
        return None
    return inspect.cleandoc(doc).strip() or None


def _read_comments(cls: Any) -> Mapping[str, str]:
    """
    Read the descriptions of the fields: the strings below them, ``#:`` above, or ``#`` beside them.

    Without the source there are none, e.g. for classes that were made at runtime.
    """
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        with contextlib.suppress(OSError, TypeError):
            path = inspect.getsourcefile(base) or ''
            linecache.checkcache(path)
            lines = linecache.getlines(path, vars(sys.modules[base.__module__]))
            comments.update(_read_source(''.join(lines)).get(base.__qualname__, {}))
    return comments


@functools.lru_cache(maxsize=32)
def _read_source(source: str) -> Mapping[str, Mapping[str, str]]:
    """Read the comments in all classes of a module, by the qualified names of the classes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    lines = source.split('\n')
    return {name: dict(_iter_comments(node, lines)) for name, node in _iter_classes(tree)}


def _iter_classes(tree: ast.AST, prefix: str = '') -> Iterator[tuple[str, ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef(name=name):
                yield prefix + name, node
                yield from _iter_classes(node, f'{prefix}{name}.')
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _iter_classes(node, f'{prefix}{name}.<locals>.')
            case _:
                yield from _iter_classes(node, prefix)


def _iter_comments(tree: ast.ClassDef, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        assert statement.end_lineno is not None
        last = lines[statement.end_lineno - 1].encode()  # the columns are those of bytes
        beside = last[statement.end_col_offset:].decode().strip()
        if beside.startswith('#') and not _FOR_TOOLS.match(beside):
            yield name, beside.lstrip('#: ')
        above = itertools.takewhile(
            re.compile(r'\s*#:').match, reversed(lines[:statement.lineno - 1]))
        if texts := [line.strip().removeprefix('#:').strip() for line in above]:
            yield name, ' '.join(reversed(texts))
        match following:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, inspect.cleandoc(text)
