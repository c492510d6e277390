import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from kopf._kits.sandbox import statuses

MAX_DEPTH = 250
"""
How deep objects can be once they are folded, see `encoding`. Patches could make them deeper.
"""

P = ParamSpec('P')
R = TypeVar('R')


def verify_depth(value: Any) -> None:
    """
    Refuse what is too deep to be gone through recursively. Raises `statuses.BadRequest`.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ] if level and isinstance(level[0], dict | list) else []
        if not level:
            return
    raise _too_deep()


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, to which values can come that nobody has verified."""
    @functools.wraps(function)
    def guard(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RecursionError:
            raise _too_deep() from None

    return guard


def _too_deep() -> statuses.BadRequest:
    return statuses.BadRequest("exceeded max depth")
