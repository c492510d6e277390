"""
Paths in objects: cheap to extend, and rendered only for messages.
"""
from typing import Any, TypeAlias

Path: TypeAlias = tuple[Any, str | int] | None
"""A place: the place of the container, and the key or index in it; ``None`` is the root."""


class MapKey(str):
    """A key of a map, shown in brackets: ``spec.labels[key]``."""


def render(path: Path) -> str:
    """The place as the API tells it: ``spec.containers[0].name``."""
    parts: list[str] = []
    while path is not None:
        path, key = path
        parts.append(f'[{key}]' if isinstance(key, int | MapKey) else f'.{key}')
    return ''.join(reversed(parts)).removeprefix('.')
