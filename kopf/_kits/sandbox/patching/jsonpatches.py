import copy
import json
import re
from typing import Any

from kopf._kits.sandbox import statuses, wordings
from kopf._kits.sandbox.schemas import depths

MAX_OPERATIONS = 10_000
MAX_COPIED = 3 * 1024 * 1024
"""How many bytes (of JSON) all copying operations of one patch may add together."""

MEMBERS = frozenset(['op', 'path', 'from', 'value'])


class _Inapplicable(Exception):
    """An operation does not fit the document. The API gives no details."""


def apply_json_patch(obj: statuses.Obj, ops: Any) -> Any:
    """
    Execute the operations one by one; all or none.

    As in the API: paths of lists take negative indices; ``replace`` of an absent key adds it;
    ``copy`` of an absent key, or an operation with no value, puts ``None``; ``test`` of an absent
    key against ``None`` passes. The result can be anything, also a non-object.

    Raises `statuses.BadRequest` if these are no operations, `statuses.Invalid` with no details
    if one does not fit, an error of code 413 for too many of them or too much copied.
    """
    if ops is None:
        return obj
    _verify(ops)
    document = _Document(obj)
    try:
        for op in ops:
            document.execute(op)
    except _Inapplicable:
        raise statuses.Invalid(
            "the server rejected our request due to an error in our request", details={},
        ) from None
    depths.verify_depth(document.root)
    return document.root


def find_unknown_members(ops: Any) -> list[str]:
    """
    The members of operations that mean nothing, as the API names them in its warnings.
    """
    return [
        f"[{index}].{member}"
        for index, op in enumerate(ops if isinstance(ops, list) else [])
        for member in (op or {}) if member not in MEMBERS
    ]


def _verify(ops: Any) -> None:
    if not isinstance(ops, list):
        raise _undecodable(ops, "value of type []handlers.jsonPatchOp")
    if len(ops) > MAX_OPERATIONS:
        raise statuses.RequestEntityTooLarge(
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(ops)}")
    for op in ops:
        if op is not None and not isinstance(op, dict):
            raise _undecodable(op, "value of type handlers.jsonPatchOp")
        for member in ('op', 'path', 'from'):
            value = (op or {}).get(member)
            if value is not None and not isinstance(value, str):
                raise _undecodable(value, f"struct field jsonPatchOp.{member} of type string")


def _undecodable(value: Any, where: str) -> statuses.BadRequest:
    return statuses.BadRequest(f"error decoding patch: {wordings.not_decoded(value, where)}")


class _Document:
    """
    A document under change. Whatever is changed, and all that it is in, is copied before, as it
    can be shared with the object, with the operations, and with other places of the document.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self._copied = 0

    def execute(self, op: Any) -> None:
        op = op or {}
        path, source, value = op.get('path'), op.get('from') or '', op.get('value')
        if path is None:
            raise _Inapplicable
        match op.get('op'):
            case 'add':
                self._insert(path, value)
            case 'remove':
                self._remove(path)
            case 'replace':
                self._replace(path, value)
            case 'move':
                value = self._get(source)
                self._remove(source)
                self._insert(path, value)
            case 'copy':
                self._insert(path, self._copy(source))
            case 'test' if same(self._get(path), value):
                pass
            case _:
                raise _Inapplicable

    def _replace(self, path: str, value: Any) -> None:
        if not path:
            if not isinstance(value, dict | list):
                raise _Inapplicable
            self.root = value
            return
        container, key = self._open(path)
        container[_index(key, len(container)) if isinstance(container, list) else key] = value

    def _copy(self, path: str) -> Any:
        value = self._get(path)
        self._copied += len(json.dumps(value, separators=(',', ':')))
        if self._copied > MAX_COPIED:
            raise statuses.RequestEntityTooLarge(
                "Unable to complete the copy, the accumulated size "
                f"increase of copy is {self._copied}, exceeding the limit {MAX_COPIED}")
        return value

    def _get(self, path: str) -> Any:
        container, key = self._open(path, copying=False)
        if isinstance(container, list):
            return container[_index(key, len(container))]
        return container.get(key)

    def _insert(self, path: str, value: Any) -> None:
        container, key = self._open(path)
        if isinstance(container, dict):
            container[key] = value
        elif key == '-':
            container.append(value)
        else:
            container.insert(_index(key, len(container) + 1), value)

    def _remove(self, path: str) -> None:
        container, key = self._open(path)
        del container[_locate(container, key)]

    def _open(self, path: str, *, copying: bool = True) -> tuple[Any, str]:
        """The container that the path leads into, and the key in it."""
        _, *keys = path.split('/')
        if not keys:
            raise _Inapplicable
        *parents, last = [key.replace('~1', '/').replace('~0', '~') for key in keys]
        container = self.root = copy.copy(self.root) if copying else self.root
        for key in parents:
            at = _locate(container, key)
            if copying:
                container[at] = copy.copy(container[at])
            container = container[at]
        if not isinstance(container, dict | list):
            raise _Inapplicable
        return container, last


def _locate(container: Any, key: str) -> Any:
    """The index or the key of a part that must be there."""
    if isinstance(container, list):
        return _index(key, len(container))
    if isinstance(container, dict) and key in container:
        return key
    raise _Inapplicable


def _index(key: str, length: int) -> int:
    if not re.fullmatch(r'[+-]?[0-9]{1,18}', key, re.ASCII):
        raise _Inapplicable
    index = int(key)
    if not -length <= index < length:
        raise _Inapplicable
    return index + length if index < 0 else index


def same(one: Any, two: Any) -> bool:
    """
    Whether the values are equal in JSON's sense, where ``1``, ``1.0``, and ``true`` all differ.
    """
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)
