"""
Patches: what handlers want to be changed on their objects.

A patch is a JSON merge-patch (RFC 7386): dicts are merged, None removes, everything else replaces.
In addition, functions can change the newest body in place; these go as JSON patches (RFC 6902).
"""
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from kopf._cogs.structs import bodies, dicts

PatchFn = Callable[[bodies.RawBody], None]
"""A function that changes an object's raw body in place. It can be called several times."""

JSONPatch = list[dict[str, Any]]


class MetaPatch(dicts.MutableMappingView):
    __slots__ = ()

    def __init__(self, patch: 'Patch') -> None:
        super().__init__(patch, ('metadata',))

    @property
    def labels(self) -> dicts.MutableMappingView:
        return dicts.MutableMappingView(self._source, ('metadata', 'labels'))

    @property
    def annotations(self) -> dicts.MutableMappingView:
        return dicts.MutableMappingView(self._source, ('metadata', 'annotations'))


class SpecPatch(dicts.MutableMappingView):
    __slots__ = ()


class StatusPatch(dicts.MutableMappingView):
    __slots__ = ()


class Patch(dict[str, Any]):
    """
    Changes to be made to the object: a dict of a merge-patch, and functions in ``patch.fns``.

    ``patch.spec``, ``patch.status``, ``patch.meta`` (and its labels & annotations) create
    their stanzas when something is put into them. A value of None removes a field.
    """

    def __init__(
            self,
            src: dict[str, Any] | None = None,
            /,
            body: bodies.Body | None = None,
            fns: Iterable[PatchFn] = (),
    ) -> None:
        super().__init__(src if src is not None else {})
        self._original = body
        self._fns: list[PatchFn] = list(fns)
        if isinstance(src, Patch):
            self._original = self._original if self._original is not None else src._original
            self._fns[:0] = src._fns

    def __bool__(self) -> bool:
        return len(self) > 0 or bool(self._fns)

    def __repr__(self) -> str:
        fns = f", fns={self._fns!r}" if self._fns else ""
        return f"{dict.__repr__(self)}{fns}"

    def clear(self) -> None:
        super().clear()
        self._fns.clear()

    @property
    def fns(self) -> list[PatchFn]:
        return self._fns

    @property
    def metadata(self) -> MetaPatch:
        return MetaPatch(self)

    @property
    def meta(self) -> MetaPatch:
        return MetaPatch(self)

    @property
    def spec(self) -> SpecPatch:
        return SpecPatch(self, ('spec',))

    @property
    def status(self) -> StatusPatch:
        return StatusPatch(self, ('status',))

    def as_json_patch(self, body: bodies.Body | bodies.RawBody | None = None) -> JSONPatch:
        """
        Convert to a JSON patch of the body, by default of the one with which it was created.

        :raises ValueError: without any body.
        """
        original = body if body is not None else self._original
        if original is None:
            raise ValueError("A JSON patch is relative to a body, and no body is known; pass one.")
        return make_json_patch(original, self.apply(original))

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What the body becomes. The body itself is not changed."""
        target = merge(body, self)
        if self._fns:
            target = copy.deepcopy(target)
            for fn in self._fns:
                fn(cast(bodies.RawBody, target))
        return target


def merge(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """
    Apply a merge-patch (RFC 7386) and return the result; nothing is changed in place.

    What the patch does not touch is shared with the target, not copied.
    """
    result = dict(target) if isinstance(target, Mapping) else {}
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
    Make one merge-patch of two: applying it equals applying the one and then the other.

    None if no merge-patch can say it: where the first one removes or replaces a field,
    and the second one puts a dict there, the object's own old keys would survive in it.
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
    """The JSON patch that makes b of a. Lists are replaced as a whole."""
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
    """Whether it is the same in JSON, where true is not 1."""
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
