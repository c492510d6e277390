"""
Binding: which arguments of a handler are given as values of the author's classes.
"""
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from kopf._cogs.structs import bodies, dicts
from kopf._core.intents import typedargs
from kopf._kits.typed import decoding, shapes, writing
from kopf._kits.typed.shapes import Kind, Shape
from kopf._kits.typed.vocabulary import IMPLIED, DeclarationError

ARGUMENTS = ('body', 'spec', 'status', 'old', 'new')
"""The arguments that can be typed."""


def bind(
        cls: type, fn: Callable[..., Any], field: dicts.FieldPath | None, *,
        is_lasting: bool, is_whole: bool = False,
) -> Mapping[str, typedargs.Argument] | None:
    """
    Find the typed arguments of a handler of this kind; None if there are none.

    The functions of ``is_lasting`` handlers run on and on, so they must ask for live values. Those
    of ``is_whole`` handlers get the whole objects as ``old`` and ``new``, even with a field.

    :raises DeclarationError: if an annotation is none of the kind, or if there is no such field.
    """
    if field:
        _find(cls, field)
    part = None if is_whole else field
    found = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        if name in ARGUMENTS and parameter.annotation is not parameter.empty:
            argument = _bind(cls, fn, name, parameter.annotation, part, is_lasting)
            if argument is not None:
                found[name] = argument
        elif name == 'patch' and (status := writing.find(shapes.read(cls).fields)) is not None:
            found[name] = typedargs.Argument(functools.partial(writing.equip, status))
    return found or None


def _bind(
        cls: type, fn: Callable[..., Any], name: str, annotation: Any,
        field: dicts.FieldPath | None, is_lasting: bool,
) -> typedargs.Argument | None:
    place = f"{getattr(fn, '__qualname__', fn)}({name}: …)"
    annotation = _resolve_alias(_evaluate(cls, fn, annotation, place))
    is_live = get_origin(annotation) is decoding.Live
    if is_live:
        [annotation] = get_args(annotation)
    args = [*_iter_alternatives(annotation)]
    takes_misfits = typedargs.Misfit in args
    inner = [arg for arg in args if arg not in (typedargs.Misfit, types.NoneType)]
    if not inner:
        return None
    annotation = functools.reduce(lambda a, b: a | b, inner)
    path = {'body': (), 'spec': ('spec',), 'status': ('status',)}.get(name, field or ())
    if any(_is_untyped(arg) for arg in inner) and not _is_map(annotation, cls, path, place):
        return None
    shape = _find(cls, path)
    if shape is None or not _is_same(annotation, shape, place):
        expected = "not typed" if shape is None else (
            shape.cls.__name__ if isinstance(shape.cls, type) else shape.kind.describe())
        where = '.'.join(path) or "the object"
        raise DeclarationError(
            f"{place} is annotated with another type than the class of the handler has: in "
            f"{cls.__name__}, {where} is {expected}.")
    if is_lasting and not is_live:
        raise DeclarationError(
            f"{place} would be given once, and be outdated soon, as daemons run on. Write "
            f"kopf.Live[…], and ask for its value when you need it.")
    if is_live and (not is_lasting or name in ('old', 'new')):
        raise DeclarationError(f"{place} cannot be live: only body, spec, and status of daemons "
                               f"can. Write the type itself.")
    decode = make_decoder(cls, path)
    if is_live:
        return typedargs.Argument(functools.partial(decoding.Live, decode=decode))
    return typedargs.Argument(decode, takes_misfits=takes_misfits)


def _resolve_alias(annotation: Any) -> Any:
    while type(annotation).__name__ == 'TypeAliasType':  # Python 3.12
        annotation = annotation.__value__
    return annotation


def _iter_alternatives(annotation: Any) -> Iterator[Any]:
    annotation = _resolve_alias(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        for arg in get_args(annotation):
            yield from _iter_alternatives(arg)
    else:
        yield annotation


@functools.cache
def make_decoder(cls: type, path: dicts.FieldPath) -> decoding.Decoder:
    shape = _find(cls, path)
    assert shape is not None
    decode = decoding.make(shape, '.'.join(path))
    status = writing.find(shapes.read(cls).fields)
    required = {field.wire for field in status.fields if not field.is_optional} if status else set()
    if not required or path not in ((), ('status',)):
        return decode
    # An object has no status at first, and then what others have written, whatever is required.

    def decode_status(raw: Any) -> Any:
        is_partial = not raw or (isinstance(raw, Mapping) and not required <= raw.keys())
        return None if is_partial else decode(raw)

    def decode_object(raw: Any) -> Any:
        status = raw.get('status') if isinstance(raw, Mapping) else None
        if isinstance(status, Mapping) and not required <= status.keys():
            raw = {key: value for key, value in raw.items() if key != 'status'}
        return decode(raw)

    return decode_status if path else decode_object


def _evaluate(cls: type, fn: Callable[..., Any], annotation: Any, place: str) -> Any:
    """Evaluate what is quoted of an annotation: the whole, or names in it."""
    names = {cls.__name__: cls, **{
        field.shape.cls.__name__: field.shape.cls for field in shapes.read(cls).fields
        if isinstance(field.shape.cls, type)}}
    try:
        return typing.get_type_hints(
            types.SimpleNamespace(__annotations__={'': annotation}),
            getattr(inspect.unwrap(fn), '__globals__', {}), names, include_extras=True)['']
    except Exception as e:  # it is any code
        raise DeclarationError(f"{place}: the annotation {annotation!r} cannot be evaluated: {e!r}."
                               f" Import what it names, not only for type checkers.") from e


def _is_untyped(annotation: Any) -> bool:
    """Whether an annotation means what it means for handlers of other resources."""
    cls = get_origin(annotation) or annotation
    if cls in (Any, object) or getattr(cls, '__module__', '') == bodies.__name__:
        return True
    return isinstance(cls, type) and not hasattr(cls, '__total__') and issubclass(cls, Mapping)


def _is_map(annotation: Any, cls: type, path: dicts.FieldPath, place: str) -> bool:
    """Whether it is the type of a map in the class, as other dicts can be meant without one."""
    try:
        shape = _find(cls, path)
    except DeclarationError:
        return False
    return (shape is not None and shape.kind is Kind.MAP and annotation is not dict
            and _is_same(annotation, shape, place))


def _find(cls: type, path: dicts.FieldPath) -> Shape | None:
    """
    Find the shape of a field; None if the class says nothing about it.

    :raises DeclarationError: if there is no such field.
    """
    shape: Shape | None = shapes.read(cls)
    if path[:1] and path[0] in IMPLIED:
        return None
    for key in path:
        if shape is None or shape.kind in (Kind.ANY, Kind.OBJECT):
            return None
        if shape.kind is Kind.MAP:
            shape = shape.item
            continue
        known = {field.wire: field for field in shape.fields}
        if key not in known:
            raise DeclarationError(
                f"{cls.__name__} has no field {'.'.join(path)!r}. The names are those of the API"
                + (f": {', '.join(known)}." if known else "."))
        shape = known[key].shape
    return shape


def _is_same(annotation: Any, shape: Shape, place: str) -> bool:
    """Whether the annotation says the same as the one in the class."""
    if annotation is shape.cls:
        return True
    try:
        return _compare(shapes.read_value(annotation, place), shape)
    except DeclarationError:
        return False


def _compare(one: Shape | None, two: Shape | None) -> bool:
    if one is None or two is None:
        return one is two
    return one.kind is two.kind and one.cls is two.cls and one.values == two.values and (
        _compare(one.item, two.item))
