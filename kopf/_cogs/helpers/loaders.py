"""
Importing of the user's files and modules, as they are given in the command line.
"""

import errno
import importlib
import importlib.util
import os
import pathlib
import sys
import traceback
import zlib
from collections.abc import Iterable

_OWN_ROOT = str(pathlib.Path(__file__).parents[2]) + os.sep


class LoadingError(ImportError):
    """
    A file or a module cannot be imported. The original error, if any, is in ``__cause__``.

    The message says in one line what cannot be imported, and why. ``details`` is the traceback
    reduced to the user's code, or the place of a syntax error; empty if there is neither.
    """

    def __init__(self, message: str, *, details: str = '') -> None:
        super().__init__(message)
        self.details = details


def preload(paths: Iterable[str | os.PathLike[str]], modules: Iterable[str]) -> None:
    """
    Import the files, and then the modules, each once, in the given order.

    As with ``python file.py`` and ``python -m module``: a file can import other files of its
    folder, and a module is looked for in the current directory, too. A file does not replace a
    module of the same name: e.g. the operator can be in ``json.py``, and ``import json`` is still
    the standard library.

    :raises LoadingError: for the first file or module that cannot be imported.
    """
    for path in paths:
        load_file(path)
    for name in modules:
        load_module(name)


def load_file(path: str | os.PathLike[str]) -> None:
    """
    Import a file by its path. In ``sys.modules``, it has a unique name made of its path.

    :raises LoadingError: if the file cannot be imported.
    """
    source = pathlib.Path(path)
    if not source.exists():
        absence = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        raise LoadingError(f"Cannot load {path}: there is no such file.") from absence
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
    """
    Import a module by its name.

    :raises LoadingError: if the module cannot be imported.
    """
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
    if 'positional argument' in reason and frames and _is_bare_decorator(frames[-1].line or ''):
        details += f"Write the decorator with parentheses: {frames[-1].line}()\n"
    return LoadingError(f"Cannot load {what}: {reason}", details=details)


def _is_bare_decorator(line: str) -> bool:
    return line.startswith('@kopf.') and not line.endswith(')')


def _is_of_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(
        (_OWN_ROOT, '<frozen importlib', '<string>', importlib.__file__))
