"""
Memos: containers in memory for arbitrary data of handlers, for each object and for the operator.
"""
import copy
from typing import Any, NoReturn

AnyMemo = Any
"""The type of the kwarg ``memo``: `Memo` by default, or any other type given to `kopf.run`."""


class Memo(dict[Any, Any]):
    """
    A dict whose keys are also attributes: ``memo.x`` is ``memo['x']``.

    Handlers get it as ``memo``: one instance for each object, as long as the object exists and the
    operator runs. Keys with the names of dict methods, e.g. ``items``, can only be accessed as
    keys. See "Keep data in memory" in the documentation.

    >>> memo = Memo(x=1)
    >>> memo.y = memo.x + 1
    >>> memo
    {'x': 1, 'y': 2}
    """

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            _complain(key)

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        try:
            del self[key]
        except KeyError:
            _complain(key)


def make_own(shared: AnyMemo) -> AnyMemo:
    """Make the memo of an object: a shallow copy of the operator's memo."""
    return Memo(shared) if type(shared) is Memo else copy.copy(shared)


def _complain(key: str) -> NoReturn:
    raise AttributeError(f"There is no {key!r} in the memo.") from None
