"""
Decoding: the values of the API as those of an author's classes.

It is as lenient as the API is with stored objects: only the types are checked, for limits belong to
the schema, and can be newer than an object. The classes of pydantic and msgspec check theirs.
"""
import base64
import copy
import dataclasses
import datetime
import functools
import ipaddress
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from kopf._cogs.structs import bodies, dicts
from kopf._core.intents import typedargs
from kopf._kits.typed import shapes
from kopf._kits.typed.shapes import Field, Kind, Shape
from kopf._kits.typed.vocabulary import Quantity

T = TypeVar('T')
Decoder = Callable[[Any], Any]


class Live(Generic[T]):
    """
    The newest state of a part of an object, for daemons: ``spec: kopf.Live[DatabaseSpec]``.
    """
    __slots__ = ('_decode', '_known', '_source')

    def __init__(self, source: Mapping[str, Any], decode: Decoder) -> None:
        self._source, self._decode = source, decode
        self._known: tuple[Any, Any] | None = None

    @property
    def value(self) -> T:
        """
        The value of the newest state. It does not change: ask again for a newer one.

        :raises kopf.MisfitError: if the newest state does not fit.
        """
        raw, known = unwrap(self._source), self._known
        if known is None or known[0] is not raw:
            known = self._known = raw, self._decode(raw)
        if isinstance(known[1], typedargs.Misfit):
            raise typedargs.MisfitError(*known[1].reasons)
        value: T = known[1]
        return value


class _Mismatch(Exception):
    """Values do not fit: pairs of a path below the decoded value, and a reason."""

    def __init__(self, *found: tuple[str, str]) -> None:
        super().__init__(found)
        self.found = found


def make(shape: Shape, where: str) -> Decoder:
    """
    Make the decoder of a part of an object. It returns a `kopf.Misfit` for what does not fit.

    Values that are absent stay None.
    """
    convert = compile(shape)

    def decode(raw: Any) -> Any:
        if raw is None:
            return None
        try:
            return convert(unwrap(raw))
        except _Mismatch as e:
            reasons = (f"{(where + path).lstrip('.') or 'the object'}: {why}"
                       for path, why in e.found)
            return typedargs.Misfit(raw, tuple(reasons))
        except RecursionError:
            return typedargs.Misfit(raw, (f"{where or 'the object'}: is nested too deeply",))

    return decode


def unwrap(value: Any) -> Any:
    """Get what is behind the views of handlers: reading it through them is slow."""
    if isinstance(value, dicts.MappingView):
        return value._resolve()
    return bodies.get_raw(value)


def compile(shape: Shape) -> Decoder:
    """Make the function that decodes values of this shape; it raises `_Mismatch`."""
    decode = _compile(shape)
    return (lambda raw: None if raw is None else decode(raw)) if shape.is_nullable else decode


_EXACT = {Kind.BOOLEAN: bool, Kind.INTEGER: int, Kind.STRING: str}


def _find_exact(shape: Shape) -> type | None:
    """Find the type whose values stay as they are: checking it inline is the fastest."""
    return _EXACT.get(shape.kind) if shape.format is None else None


def _compile(shape: Shape) -> Decoder:
    match shape.kind:
        case Kind.ANY:  # handlers can change it in place
            return dicts.copy
        case Kind.OBJECT:
            return lambda raw: dicts.copy(_check((dict, Mapping), "a mapping", raw))
        case Kind.BOOLEAN:
            return functools.partial(_check, (bool,), "a boolean")
        case Kind.INTEGER:
            return _to_integer
        case Kind.NUMBER:
            return lambda raw: float(_check((int, float), "a number", raw))
        case Kind.STRING if shape.cls is str:
            return functools.partial(_check, (str,), "a string")
        case Kind.STRING:
            return functools.partial(_parse, _PARSERS[shape.cls], shape.format)
        case Kind.QUANTITY:
            return functools.partial(_parse, Quantity, 'quantity')
        case Kind.INT_OR_STRING:
            return functools.partial(_check, (int, str), "an integer or a string")
        case Kind.ENUM:
            return _compile_enum(shape)
        case Kind.LIST:
            return _compile_list(shape)
        case Kind.MAP:
            return _compile_map(shape)
    return _compile_record(shape)


_NAMES: Mapping[type, str] = {
    type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string",
    list: "a list"}


def _name_type(raw: Any) -> str:
    """Say what a value is, without the value: it can be secret."""
    return _NAMES.get(type(raw), "a mapping")


def _check(types: tuple[type, ...], name: str, raw: Any) -> Any:
    if type(raw) in types or (Mapping in types and isinstance(raw, Mapping)):
        return raw
    raise _Mismatch(('', f"is {_name_type(raw)}, not {name}"))


def _to_integer(raw: Any) -> int:
    if type(raw) is int:
        return raw
    if type(raw) is float and raw.is_integer():  # JSON has only numbers
        return int(raw)
    raise _Mismatch(('', f"is {_name_type(raw)}, not an integer"))


def _parse_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _parse_moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.upper())  # the API also takes a small z


_PARSERS: Mapping[Any, Callable[[Any], Any]] = {
    bytes: _parse_bytes,
    datetime.datetime: _parse_moment,
    datetime.date: datetime.date.fromisoformat,
    uuid.UUID: uuid.UUID,
    ipaddress.IPv4Address: ipaddress.IPv4Address,
    ipaddress.IPv6Address: ipaddress.IPv6Address,
}


def _parse(parser: Callable[[Any], Any], name: str | None, raw: Any) -> Any:
    if type(raw) is not str and (parser is not Quantity or type(raw) is not int):
        raise _Mismatch(('', f"is {_name_type(raw)}, not a {name}"))
    try:
        return parser(raw)
    except ValueError:
        raise _Mismatch(('', f"is no {name}")) from None


def _compile_enum(shape: Shape) -> Decoder:
    members = {value: value if shape.cls is None else shape.cls(value) for value in shape.values}
    base = str if isinstance(shape.values[0], str) else int

    def decode(raw: Any) -> Any:
        if type(raw) is base and raw in members:
            return members[raw]
        raise _Mismatch(('', f"is none of {', '.join(map(repr, shape.values))}"))

    return decode


def _gather(parts: Iterable[tuple[str, Decoder, Any]]) -> _Mismatch:
    """Find all that does not fit, after something has not."""
    found: list[tuple[str, str]] = []
    for path, decode, raw in parts:
        try:
            decode(raw)
        except _Mismatch as e:
            found.extend((path + inner, why) for inner, why in e.found)
    return _Mismatch(*found)


def _compile_list(shape: Shape) -> Decoder:
    assert shape.item is not None
    item, exact = compile(shape.item), _find_exact(shape.item)
    build = shape.cls if shape.cls in (set, frozenset) else None

    def decode(raw: Any) -> Any:
        if type(raw) is not list:
            raise _Mismatch(('', f"is {_name_type(raw)}, not a list"))
        try:
            values = [each if type(each) is exact else item(each) for each in raw]
        except _Mismatch:
            raise _gather((f'[{n}]', item, each) for n, each in enumerate(raw)) from None
        return values if build is None else _build(build, values)

    return decode


def _compile_map(shape: Shape) -> Decoder:
    assert shape.item is not None
    item, exact = compile(shape.item), _find_exact(shape.item)

    def decode(raw: Any) -> Any:
        _check((dict, Mapping), "a mapping", raw)
        try:
            return {key: each if type(each) is exact else item(each) for key, each in raw.items()}
        except _Mismatch:
            raise _gather((f'.{key}', item, each) for key, each in raw.items()) from None

    return decode


def _compile_record(shape: Shape) -> Decoder:
    fields = [(field.wire, _name(shape, field), compile(field.shape), field.shape.is_nullable,
               _find_exact(field.shape)) for field in shape.fields]
    required = {_name(shape, field): field for field in shape.fields if not field.is_optional}
    build = _find_builder(shape)
    convert = _find_msgspec(shape)

    def decode(raw: Any) -> Any:
        if type(raw) is not dict:
            _check((dict, Mapping), "a mapping", raw)
        if convert is not None:
            try:
                return convert(raw)
            except Exception:  # it tells only one reason
                pass
        values = {}
        try:
            for wire, name, inner, is_nullable, exact in fields:
                if wire in raw:
                    value = raw[wire]
                    if type(value) is exact:
                        values[name] = value
                    elif value is not None or is_nullable:
                        values[name] = inner(value)
        except _Mismatch:
            raise gather(raw) from None
        if not required.keys() <= values.keys():
            raise gather(raw)
        return build(values)

    def gather(raw: Any) -> _Mismatch:
        given = {wire: inner for wire, _, inner, is_nullable, _ in fields
                 if wire in raw and (raw[wire] is not None or is_nullable)}
        found = _gather((f'.{wire}', inner, raw[wire]) for wire, inner in given.items()).found
        absent = [(f'.{field.wire}', "is absent") for field in required.values()
                  if field.wire not in given]
        return _Mismatch(*found, *absent)

    return decode


def _name(shape: Shape, field: Field) -> str:
    """The name of a field for the constructor of its class."""
    name: str | None = None
    match shape.library:
        case 'attrs':
            name = next(attr.alias for attr in shape.cls.__attrs_attrs__ if attr.name == field.name)
        case 'pydantic' | 'dataclass' if infos := shapes.get_infos(shape.cls):
            name = shapes.get_alias(infos[field.name])
        case 'msgspec':
            names = zip(shape.cls.__struct_fields__, shape.cls.__struct_encode_fields__,
                        strict=True)
            name = dict(names)[field.name]
    return name or field.name


def _find_builder(shape: Shape) -> Callable[[dict[str, Any]], Any]:
    cls = shape.cls
    match shape.library:
        case 'typeddict':
            return lambda values: values
        case 'plain':
            return functools.partial(_build_simple, cls, {
                field.name: functools.partial(copy.deepcopy, getattr(cls, field.name))
                for field in shape.fields if hasattr(cls, field.name)})
        case 'pydantic':
            return lambda values: _build(cls.model_validate, values)
        case 'msgspec':
            return functools.partial(_build_msgspec, cls, {
                _name(shape, field): field.name for field in shape.fields})
    if shape.library == 'dataclass' and _is_simple(cls):
        return functools.partial(_build_simple, cls, {
            field.name: field.default_factory for field in dataclasses.fields(cls)
            if field.default_factory is not dataclasses.MISSING})
    return lambda values: _build(cls, **values)


def _is_simple(cls: Any) -> bool:
    """Whether the constructor of a dataclass does nothing but set the fields."""
    constructor = getattr(vars(cls).get('__init__'), '__code__', None)
    return (constructor is not None and constructor.co_filename == '<string>'  # it is generated
            and (cls.__dataclass_params__.frozen or cls.__setattr__ is object.__setattr__)
            and cls.__new__ is object.__new__ and not hasattr(cls, '__post_init__')
            and not any('__slots__' in vars(base) for base in cls.__mro__[:-1])
            and all(field.init for field in dataclasses.fields(cls))
            and not any(hasattr(vars(cls).get(field.name), '__set__')
                        for field in dataclasses.fields(cls)))


def _build_simple(
        cls: Any, factories: Mapping[str, Callable[[], Any]], values: dict[str, Any],
) -> Any:
    """
    Make a value without its constructor: there is none, or it is slow, as the class is frozen.

    The other defaults are attributes of the class.
    """
    for name, factory in factories.items():
        if name not in values:
            values[name] = factory()
    made = object.__new__(cls)
    made.__dict__.update(values)
    return made


def _build_msgspec(cls: Any, names: Mapping[str, str], values: Mapping[str, Any]) -> Any:
    msgspec = sys.modules['msgspec']
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as e:
        raise _Mismatch(('', f"{e}")) from None
    except TypeError:  # it has no such types, so it has no rules for them
        return _build(cls, **{names[key]: value for key, value in values.items()})


def _build(make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Let the class check the values by its own rules."""
    try:
        return make(*args, **kwargs)
    except Exception as e:  # the errors of libraries have no common class
        errors = getattr(e, 'errors', None)
        if callable(errors):  # of pydantic
            raise _Mismatch(*[(_join(each['loc']), each['msg']) for each in errors()]) from None
        raise _Mismatch(('', f"{e}")) from None


def _join(path: Iterable[int | str]) -> str:
    return ''.join(f'[{key}]' if isinstance(key, int) else f'.{key}' for key in path)


def _find_msgspec(shape: Shape) -> Decoder | None:
    """Get the decoder of msgspec itself, if all the records are its own ones: it is the fastest."""
    if not _is_pure(shape):
        return None
    return functools.partial(sys.modules['msgspec'].convert, type=shape.cls, dec_hook=_hook)


def _hook(cls: type, value: Any) -> Any:
    return cls(value)


def _is_pure(shape: Shape) -> bool:
    if shape.kind in (Kind.QUANTITY, Kind.INT_OR_STRING, Kind.ANY) or shape.is_nullable:
        return False
    if shape.kind is Kind.RECORD and not (shape.library == 'msgspec' and all(
            field.wire == _name(shape, field) for field in shape.fields)):
        return False
    return (shape.item is None or _is_pure(shape.item)) and all(
        _is_pure(field.shape) for field in shape.fields)
