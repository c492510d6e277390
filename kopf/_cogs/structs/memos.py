"""In-memory containers of operators' authors, attached to objects and to the whole operator."""
import copy
from typing import Any, NoReturn

AnyMemo = Any
"""A memo in handlers: `Memo` by default, but authors may use an object of any other type."""


class Memo(dict[Any, Any]):
    """
    A dict with its keys as attributes: ``memo.x`` is ``memo['x']``.

    It is passed to handlers as ``memo``: one container for each object while it exists.
    Keys that are named as methods of dicts can only be accessed as keys.

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
    """The memo of an object: a copy of the operator's one, as shallow as its class makes it."""
    return Memo(shared) if type(shared) is Memo else copy.copy(shared)


def _complain(key: str) -> NoReturn:
    raise AttributeError(f"There is no {key!r} in the memo.") from None
