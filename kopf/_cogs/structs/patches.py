"""
Patches: the changes of objects that handlers request.

A patch is a merge patch (RFC 7396): dicts are merged, None removes a field, and any other value
replaces the field. In addition, a patch can have functions that change the newest body in place;
Kopf sends their effect as a JSON patch (RFC 6902).
"""
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from kopf._cogs.structs import bodies, dicts

PatchFn = Callable[[bodies.RawBody], None]
"""
A function that changes the raw body of an object in place.

Kopf can call the function several times: e.g. again with a newer body after a conflict. If a
response was lost, this body can have the change already, so the function must be idempotent.
"""

JSONPatch = list[dict[str, Any]]


if TYPE_CHECKING:
    part = property
else:
    class part(property):
        """A part of a patch. Its fields can be assigned, but not the part itself."""

        def __set__(self, patch: object, value: object) -> None:
            if self.fset is not None and patch._assign_status is not None:
                self.fset(patch, value)
                return
            outer = 'patch.meta' if isinstance(patch, MetaPatch) else 'patch'
            name = f'{outer}.{self.fget.__name__}'
            raise AttributeError(
                f"{name} cannot be assigned. Set its fields instead, for example: "
                f"{name}['field'] = ...")


class MetaPatch(dicts.MutableMappingView):
    __slots__ = ()

    def __init__(self, patch: 'Patch') -> None:
        super().__init__(patch, ('metadata',))

    @part
    def labels(self) -> dicts.MutableMappingView:
        return dicts.MutableMappingView(self._source, ('metadata', 'labels'))

    @part
    def annotations(self) -> dicts.MutableMappingView:
        return dicts.MutableMappingView(self._source, ('metadata', 'annotations'))


class SpecPatch(dicts.MutableMappingView):
    __slots__ = ()


class StatusPatch(dicts.MutableMappingView):
    __slots__ = ()


class Patch(dict[str, Any]):
    """
    The changes that a handler makes to its object: a dict of a merge patch, and functions.

    Put values into ``patch.spec``, ``patch.status``, ``patch.meta``, ``patch.meta.labels``,
    ``patch.meta.annotations``, or into the dict itself. Absent parts are created. `None` removes a
    field. Kopf sends the changes to the API server: see "Change objects" in the documentation.

    :param src: the merge patch. Default: empty.
    :param body: the object, to which `as_json_patch` is relative. Default: none.
    :param fns: the functions for ``patch.fns``. Default: none.
    """

    __slots__ = ('_assign_status', '_fns', '_original')  # so that misspelled parts are errors

    def __init__(
            self,
            src: dict[str, Any] | None = None,
            /,
            body: bodies.Body | None = None,
            fns: Iterable[PatchFn] = (),
    ) -> None:
        self._original = body
        self._fns: list[PatchFn] = [*fns]
        self._assign_status: Callable[[object], None] | None = None
        """How a typed status is assigned; None if the handler is for no typed kind."""
        if src is not None:
            self.update(src)
            if isinstance(src, Patch):
                self._original = body if body is not None else src._original
                self._fns[:0] = src._fns

    def __bool__(self) -> bool:
        return len(self) > 0 or bool(self._fns)

    def __repr__(self) -> str:
        fns = f", fns={self._fns!r}" if self._fns else ""
        return f"{dict.__repr__(self)}{fns}"

    def clear(self) -> None:
        """Remove everything from the patch, also the functions."""
        super().clear()
        self._fns.clear()

    @property
    def fns(self) -> list[PatchFn]:
        """
        Functions that get the newest raw body of the object, and change the body in place. A
        function that returns another body instead is an error.

        Use functions if a change depends on the current state, e.g. to append to a list. Kopf can
        call a function several times, also with a body that has its change already.
        """
        return self._fns

    @part
    def metadata(self) -> MetaPatch:
        """The changes of ``metadata``, with the attributes ``labels`` and ``annotations``."""
        return MetaPatch(self)

    @part
    def meta(self) -> MetaPatch:
        """The changes of ``metadata``, under a shorter name."""
        return MetaPatch(self)

    @part
    def spec(self) -> SpecPatch:
        """The changes of ``spec``."""
        return SpecPatch(self, ('spec',))

    @part
    def status(self) -> StatusPatch:
        """
        The changes of ``status``.

        In handlers of typed kinds, a value of the type of the status can be assigned: all its
        fields are set, and those that are None are removed.
        """
        return StatusPatch(self, ('status',))

    @status.setter
    def status(self, value: object) -> None:
        assert self._assign_status is not None
        self._assign_status(value)

    def as_json_patch(self, body: bodies.Body | bodies.RawBody | None = None) -> JSONPatch:
        """
        Convert the patch to a JSON patch (RFC 6902).

        :param body: the object to which the patch is relative. Default: the object with which the
            patch was created.
        :returns: a list of operations.
        :raises ValueError: if there is no object.
        """
        original = bodies.get_raw(body if body is not None else self._original)
        if original is None:
            raise ValueError("A JSON patch is relative to a body, and no body is known; pass one.")
        return make_json_patch(original, self.apply(original))

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """
        Apply the patch to an object, and return the result. The object itself is not changed.

        :param body: the object.
        :returns: a new dict.
        """
        target = merge(bodies.get_raw(body), self)
        if self._fns:
            target = copy.deepcopy(target)
            for fn in self._fns:
                returned: object = fn(cast(bodies.RawBody, target))
                if inspect.iscoroutine(returned):
                    returned.close()
                    raise TypeError(f"{fn!r} is async; functions of patches cannot be.")
                if (isinstance(returned, Mapping) and 'metadata' in returned
                        and returned.get('kind') == target.get('kind') and returned != target):
                    raise TypeError(f"{fn!r} returns a new body; functions of patches must change "
                                    "the body in place.")
        return target


def merge(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """
    Apply a merge patch (RFC 7396), and return the result. The target is not changed.

    Values outside of the patch are shared with the target, not copied.
    """
    is_mapping = type(target) is dict or isinstance(target, Mapping)
    result = dict(target) if is_mapping else {}
    for key, val in patch.items():
        if val is None:
            result.pop(key, None)
        elif isinstance(val, dict):
            result[key] = merge(result.get(key), val)
        else:
            result[key] = val
    return result


def combine(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
    """
    Combine two merge patches into one with the same effect as the first and then the second.

    The result is None if no merge patch has this effect. For example, if the first patch removes
    a field, and the second sets the same field to a dict: one merge patch would merge this dict
    into the old value, and keep the old keys.
    """
    result = dict(first)
    for key, val in second.items():
        if isinstance(val, dict) and key in result:
            old = result[key]
            merged = combine(old, val) if isinstance(old, dict) else None
            if merged is None:
                return None
            result[key] = merged
        else:
            result[key] = val
    return result


def make_json_patch(a: Any, b: Any) -> JSONPatch:
    """Make the JSON patch from ``a`` to ``b``. Lists are replaced as a whole."""
    return list(_iterate_json_patch(a, b, ''))


def _iterate_json_patch(a: Any, b: Any, path: str) -> Iterator[dict[str, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in a:
            if key not in b:
                yield {'op': 'remove', 'path': f'{path}/{escape(key)}'}
        for key in b:
            if key not in a:
                yield {'op': 'add', 'path': f'{path}/{escape(key)}', 'value': b[key]}
            else:
                yield from _iterate_json_patch(a[key], b[key], f'{path}/{escape(key)}')
    elif not _is_same(a, b):
        yield {'op': 'replace', 'path': path, 'value': b}


def _is_same(a: Any, b: Any) -> bool:
    """Whether the values are the same in JSON: e.g. ``True`` is not ``1``."""
    if a is b:
        return True
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(key in b and _is_same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


def escape(key: str) -> str:
    """Escape a key for JSON pointers (RFC 6901)."""
    return key.replace('~', '~0').replace('/', '~1')


def parse_pointer(pointer: str) -> dicts.FieldPath:
    """Convert a JSON pointer (RFC 6901) to the path of a field."""
    keys = pointer.split('/')[1:]
    return tuple(key.replace('~1', '/').replace('~0', '~') for key in keys)
