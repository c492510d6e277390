"""
Moves: fields that have another place, or another notation, in another version of a kind.
"""
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from kopf._cogs.structs import dicts
from kopf._kits.typed.vocabulary import IMPLIED, DeclarationError

Object = dict[str, Any]

_ABSENT: Any = object()


class ConversionError(ValueError):
    """An object cannot be converted. The message names the field."""


class Lossy(ConversionError):
    """
    A conversion is refused, because the other version cannot express the object.

    Functions of a conversion raise it with a message for the users of the API.
    """


@dataclasses.dataclass(frozen=True)
class Move:
    """
    A field that has another place or another notation in the newer version.

    A field that is absent stays absent.

    ::

        kopf.convert(OldVolume, Volume, kopf.Move(
            '.spec.sizeGB', '.spec.size', up='{}G'.format, down=to_gigabytes))

    See "Serve several versions of a kind" in the documentation.

    :param old: the path in the older version, with the names in the API.
    :param new: the path in the newer version.
    :param up: a function that converts the value for the newer version. Default: the value remains.
    :param down: a function that converts the value for the older version. Default: the same.
    :raises DeclarationError: if a path is none, or is one of the metadata.
    """
    old: str
    new: str
    up: Callable[[Any], Any] | None = dataclasses.field(default=None, kw_only=True)
    down: Callable[[Any], Any] | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for path in (self.old, self.new):
            keys = _parse(path)
            if not path.startswith('.') or not all(keys) or keys[0] in IMPLIED:
                raise DeclarationError(
                    f"{path!r} is no path of a field to move. Write the names in the API, such as "
                    f"'.spec.replicas'. Metadata cannot be moved.")


def _parse(path: str) -> dicts.FieldPath:
    return tuple(path[1:].split('.'))


def apply(moves: Iterable[Move], obj: Object, *, up: bool) -> None:
    """
    Move the fields of an object, in place. Moves can swap fields: all are taken before any is put.

    :raises ConversionError: if a function fails, or if a place is taken by something else.
    """
    taken = []
    for move in moves:
        source, target = (move.old, move.new) if up else (move.new, move.old)
        path = _parse(source)
        value = dicts.resolve(obj, path, _ABSENT)
        if value is not _ABSENT:
            taken.append((source, target, move.up if up else move.down, value))
            dicts.remove(obj, path)
            if len(path) > 1:
                obj.setdefault(path[0], {})  # what is at the top stays
    for source, target, fn, value in taken:
        if fn is not None and value is not None:
            value = call(fn, value, f"{source[1:]} cannot be converted")
        _put(obj, _parse(target), value)


def call(fn: Callable[[Any], Any], value: Any, failure: str) -> Any:
    """Call a function of the author; its errors are failures of the conversion."""
    try:
        return fn(value)
    except Lossy:
        raise
    except Exception as e:
        raise ConversionError(f"{failure}: {e!r}") from e


def _put(obj: Object, path: dicts.FieldPath, value: Any) -> None:
    for key in path[:-1]:
        child = obj.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConversionError(f"{'.'.join(path)} cannot be set, as {key} is no mapping")
        obj = child
    obj[path[-1]] = value
