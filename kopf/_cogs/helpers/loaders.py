"""
Importing of the users' files and modules, as the command line names them.
"""

import importlib
import importlib.util
import os
import pathlib
import sys
import traceback
import zlib
from collections.abc import Iterable

_OWN_ROOT = str(pathlib.Path(__file__).parents[2]) + os.sep


class LoadingError(Exception):
    """
    A file or a module could not be imported.

    The text says in one line what and why; ``details`` are the lines of the users' own code that
    led there, or where in the file it is not Python, as Python shows them; empty if there are none.
    """

    def __init__(self, message: str, *, details: str = '') -> None:
        super().__init__(message)
        self.details = details


def preload(paths: Iterable[str | os.PathLike[str]], modules: Iterable[str]) -> None:
    """
    Import the files, and then the modules, each once, in the order as given.

    It is as with Python's own command line: the neighbours of a file can be imported by it, and so
    can those in the current directory by modules. A file's own name does not matter: it hides no
    module of that name, neither of the standard library nor others.

    :raises LoadingError: for the first one that cannot be imported.
    """
    for path in paths:
        load_file(path)
    for name in modules:
        load_module(name)


def load_file(path: str | os.PathLike[str]) -> None:
    """Import a file by its path, under a name of its own."""
    source = pathlib.Path(path)
    if not source.exists():
        raise LoadingError(f"Cannot load {path}: there is no such file.")
    if not source.is_file():
        raise LoadingError(f"Cannot load {path}: it is not a file.")
    source = source.absolute()
    name = f'__kopf_script_{zlib.crc32(os.fsencode(source)):08x}__{source.stem}'
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise LoadingError(f"Cannot load {path}: it is not a file of Python.")

    _ensure_path(str(source.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        del sys.modules[name]
        raise _make_error(str(path), e) from e


def load_module(name: str) -> None:
    """Import a module by its name."""
    _ensure_path(str(pathlib.Path.cwd()))
    try:
        importlib.import_module(name)
    except Exception as e:
        raise _make_error(name, e) from e


def _ensure_path(path: str) -> None:
    if path not in sys.path:
        sys.path.insert(0, path)


def _make_error(what: str, exc: Exception) -> LoadingError:
    lines = str(exc).splitlines()
    reason = f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if _is_of_users(frame)]
    details = ''.join(traceback.format_list(frames))
    if isinstance(exc, SyntaxError):
        details += ''.join(traceback.format_exception_only(exc)[:-1])
    elif len(lines) > 1:
        details += '\n'.join([*lines[1:], ''])
    return LoadingError(f"Cannot load {what}: {reason}", details=details)


def _is_of_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((_OWN_ROOT, '<frozen importlib', importlib.__file__))
