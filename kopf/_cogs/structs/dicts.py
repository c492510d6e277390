"""
Nested fields of JSON-like dictionaries: parsing of paths, reading, writing.

Paths are tuples of keys. Keys with dots can only be addressed by tuples or lists. A None in the
middle of a path means that everything below is absent: in Kubernetes, null is the same as an absent
field.
"""
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar, cast

FieldPath = tuple[str, ...]
FieldSpec = None | str | FieldPath | list[str]
MappingT = TypeVar('MappingT', bound=Mapping[str, Any])

_UNSET: Final = object()


def parse_field(field: FieldSpec) -> FieldPath:
    """
    Convert a field in any notation to a path: ``'spec.field'``, ``['spec', 'field']``, etc.

    None and the empty string are the empty path: the whole object.

    :raises ValueError: if it is not a string, a list or tuple of strings, or None.
    """
    if field is None:
        return ()
    if isinstance(field, str):
        return tuple(field.split('.')) if field else ()
    if isinstance(field, (list, tuple)) and all(isinstance(key, str) for key in field):
        return tuple(field)
    raise ValueError(f"A field must be a string, or a list or tuple of strings; got {field!r}.")


def resolve(d: Any, field: FieldSpec, default: Any = _UNSET) -> Any:
    """
    Get the value of a nested field. If the value itself is None, None is returned, not the default.

    :raises KeyError: if the field is absent, and there is no default.
    """
    value = d
    path = field if type(field) is tuple else parse_field(field)
    for key in path:
        if (type(value) is not dict and not isinstance(value, Mapping)) or key not in value:
            if default is _UNSET:
                raise KeyError('.'.join(path))
            return default
        value = value[key]
    return value


def ensure(d: MutableMapping[str, Any], field: FieldSpec, value: Any) -> None:
    """
    Set the value of a nested field. Absent parents are created; parents that are no dicts are
    replaced.

    :raises ValueError: if the path is empty.
    """
    path = parse_field(field)
    if not path:
        raise ValueError("The value of the whole object cannot be set; name a field of it.")
    _descend(d, path[:-1])[path[-1]] = value


def _descend(target: MutableMapping[str, Any], path: FieldPath) -> MutableMapping[str, Any]:
    for key in path:
        child = target.get(key)
        if not _is_mutable(child):
            child = target[key] = {}
        target = child
    return target


def remove(d: MutableMapping[str, Any], field: FieldSpec) -> None:
    """
    Remove a nested field if it exists, and then its parents if they are empty.

    :raises ValueError: if the path is empty.
    """
    path = parse_field(field)
    if not path:
        raise ValueError("The whole object cannot be removed; name a field of it.")
    parents = [d]
    for key in path[:-1]:
        child = parents[-1].get(key)
        if not _is_mutable(child):
            return
        parents.append(child)
    if path[-1] not in parents[-1]:
        return
    for parent, key in zip(reversed(parents), reversed(path), strict=True):
        del parent[key]
        if parent:
            break


def without(source: MappingT, path: FieldPath) -> MappingT:
    """
    Copy a dict without a nested field and its emptied parents; the same dict if nothing changes.
    """
    if not path or path[0] not in source:
        return source
    key, below = path[0], path[1:]
    child: Any = source[key]
    if below and not isinstance(child, Mapping):
        return source
    remaining = without(child, below) if below else {}
    if remaining and remaining is child:
        return source
    result = {**source, key: remaining}
    if not remaining:
        del result[key]
    return cast(MappingT, result)


def copy(value: Any) -> Any:
    """Copy a value of JSON, with the dicts and lists in it."""
    if type(value) is dict:
        return {key: copy(val) for key, val in value.items()}
    return [copy(val) for val in value] if type(value) is list else value


def _is_mutable(value: Any) -> TypeGuard[MutableMapping[str, Any]]:
    """Whether the value has fields that can be set. The abstract class knows it, but slowly."""
    return type(value) is dict or (value is not None and isinstance(value, MutableMapping))


class MappingView(Mapping[str, Any]):
    """
    A read-only view of a nested mapping. It is empty if the mapping is absent.

    The view reads the source at every access, so it shows the current state of the source.
    """
    __slots__ = ('_path', '_source')

    def __init__(self, source: Mapping[str, Any], path: FieldSpec = None, /) -> None:
        self._source = source
        self._path = path if type(path) is tuple else parse_field(path)

    def _resolve(self) -> Mapping[str, Any]:
        value: Any = self._source
        for key in self._path:
            value = (value if type(value) is dict else getattr(value, '_fields', value)).get(key)
            if type(value) is not dict and not isinstance(value, Mapping):
                return {}
        return value  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._resolve())

    def __iter__(self) -> Iterator[str]:
        return iter(self._resolve())

    def __getitem__(self, key: str) -> Any:
        value = self._resolve()[key]
        return self._own(key, value) if type(value) is dict or type(value) is list else value

    def __contains__(self, key: object) -> bool:
        return key in self._resolve()

    def get(self, key: str, default: Any = None) -> Any:
        value = self._resolve().get(key, default)
        if (type(value) is dict or type(value) is list) and value is not default:
            return self._own(key, value)
        return value

    @property
    def _fields(self) -> Mapping[str, Any]:
        return self._resolve()

    def _own(self, key: str, value: Any) -> Any:
        """
        Get the value of a key as it may be changed in place: if need be, a copy. If the source has
        lost the key meanwhile, as live bodies can for threads, the value is as it was.
        """
        own = getattr(self._source, '_own', None)
        if own is None or not self._path:
            return value
        own(self._path[0])
        return self._resolve().get(key, value)

    def __repr__(self) -> str:
        return repr(dict(self._resolve()))

    if not TYPE_CHECKING:  # type checkers would accept all fields as attributes, and assignments

        def __getattr__(self, name: str) -> Any:
            advice = (f"Fields are keys: [{name!r}], or .get({name!r}) if the field can be absent."
                      if not hasattr(dict, name) else self._advise('field'))
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}. {advice}",
                name=name, obj=self)

        def __setitem__(self, key: str, value: Any) -> None:
            raise TypeError(f"{type(self).__name__!r} object does not support item assignment. "
                            f"{self._advise(key)}")

        def _advise(self, key: str) -> str:
            outer = self._source._path if isinstance(self._source, MappingView) else ()
            where = '.'.join(['patch', *outer, *self._path])
            return (f"To change the object, use the argument `patch`, for example: "
                    f"{where}[{key!r}] = ...")


class MutableMappingView(MappingView, MutableMapping[str, Any]):
    """
    A view of a nested dict. The first write creates the dict and its parents if they are absent.
    """
    __slots__ = ()
    _source: MutableMapping[str, Any]

    def __setitem__(self, key: str, value: Any) -> None:
        _descend(self._source, self._path)[key] = value

    def __delitem__(self, key: str) -> None:
        target = self._resolve()
        if key not in target:
            raise KeyError(key)
        del target[key]  # type: ignore[attr-defined]
