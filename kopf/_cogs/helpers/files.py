"""
Files that can change at any time, e.g. those of certificates and tokens.
"""
import os
from collections.abc import Iterable

Mark = tuple[tuple[int, ...], ...]
"""The modification times, inodes, and sizes of files."""


def look(paths: Iterable[str | bytes | os.PathLike[str] | os.PathLike[bytes]]) -> Mark:
    """Make a value that differs when any file is changed, replaced, or linked to another one."""
    marks: list[tuple[int, ...]] = []
    for path in paths:
        try:
            stat = os.stat(path)
        except (OSError, ValueError):  # absent, or no path at all: e.g. with a null byte
            marks.append(())
        else:
            marks.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return tuple(marks)
