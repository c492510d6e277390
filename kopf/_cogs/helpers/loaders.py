"""
Importing of the user's files and modules, as they are given in the command line.
"""

import errno
import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
import threading
import traceback
import types
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_OWN_ROOT = str(pathlib.Path(__file__).parents[2]) + os.sep


class _Importing(threading.local):
    now: bool = False


importing = _Importing()
"""Whether files are being imported in this thread, so that no operator may start in it."""


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
    folder, and a module is also looked for in the current directory. A file does not replace a
    module of the same name: e.g. the operator can be in ``json.py``, and ``import json`` is still
    the standard library.

    :raises LoadingError: for the first file or module that cannot be imported.
    """
    before, importing.now = importing.now, True
    try:
        for path in paths:
            load_file(path)
        for name in modules:
            load_module(name)
    finally:
        importing.now = before


def load_file(path: str | os.PathLike[str]) -> None:
    """
    Import a file by its path. In ``sys.modules``, it has a unique name made of its path.

    :raises LoadingError: if the file cannot be imported.
    """
    source = pathlib.Path(path)
    if not source.exists():
        absence = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        raise LoadingError(
            f"Cannot load {path}: there is no such file.{_suggest_file(source)}") from absence
    if source.is_dir():
        raise LoadingError(
            f"Cannot load {path}: it is not a file, but a folder. Name the files in it, for "
            f"example: {source}/*.py")
    if not source.is_file():
        raise LoadingError(f"Cannot load {path}: it is not a file.")
    source = source.absolute()
    name = f'__kopf_script_{zlib.crc32(os.fsencode(source)):08x}__{source.stem}'
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise LoadingError(f"Cannot load {path}: it is not a file of Python: its name must end "
                           f"with .py.")

    _ensure_path(str(source.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as e:
        del sys.modules[name]
        if not isinstance(e, (Exception, SystemExit)):
            raise
        raise _make_error(str(path), e) from e


def load_module(name: str) -> None:
    """
    Import a module by its name.

    :raises LoadingError: if the module cannot be imported.
    """
    if name.endswith('.py') and pathlib.Path(name).exists():
        raise LoadingError(f"Cannot load {name} as a module: it is a file. Name it without -m.")
    try:
        _ensure_path(str(pathlib.Path.cwd()))  # it can be removed
        importlib.import_module(name)
    except (Exception, SystemExit) as e:
        raise _make_error(name, e) from e


def _ensure_path(path: str) -> None:
    if path not in sys.path:
        sys.path.insert(0, path)


def _make_error(what: str, exc: BaseException) -> LoadingError:
    lines = str(exc).splitlines()
    reason = f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__
    if isinstance(exc, SystemExit):
        reason, lines = f"it has called sys.exit({exc.code!r}).", []
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if _is_of_users(frame)]
    details = ''.join(traceback.format_list(frames))
    if isinstance(exc, SyntaxError):
        details += ''.join(traceback.format_exception_only(exc)[:-1])
    elif len(lines) > 1:
        details += '\n'.join([*lines[1:], ''])
    if 'positional argument' in reason and frames and _is_bare_decorator(frames[-1].line or ''):
        details += f"Write the decorator with parentheses: {frames[-1].line}()\n"
    elif hint := _suggest(exc):
        details += f"{hint}\n"
    return LoadingError(f"Cannot load {what}: {reason}", details=details)


def _suggest_file(absent: pathlib.Path) -> str:
    close = _get_close_matches(absent.name, [path.name for path in absent.parent.glob('*.py')])
    return f" Did you mean {absent.parent / close[0]}?" if close else ""


def _suggest(exc: BaseException) -> str:
    """Suggest what could have been meant by an unknown name, as newer versions of Python do."""
    namespace = _get_namespace(exc)
    match exc:
        case ImportError(name=str(name)) if name.startswith('kopf._'):
            return _suggest_public(str(exc))
        case ImportError() if 'no known parent package' in str(exc):
            return ("Files are imported without their packages. If this one is part of a package, "
                    "name it as a module: -m PACKAGE.MODULE")
        case ModuleNotFoundError(name=str(name)):
            return f"Check the name, or install it into the same environment: {sys.prefix}"
        case AttributeError(name=str(name), obj=obj) if isinstance(obj, types.ModuleType):
            return _suggest_attribute(obj, name)
        case NameError(name=str(name)):
            for title, module in namespace.items():
                if isinstance(module, types.ModuleType) and hasattr(module, name):
                    return f"Did you mean {title}.{name}?"
            return f"If it is a text, write it in quotes: {name!r}"
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(exc))
    if unexpected and (params := _get_params(exc, namespace)):
        close = _get_close_matches(unexpected[1], params, cutoff=0.8)
        return f"Did you mean {close[0]}=?" if close else (
            f"It accepts only: {', '.join(f'{param}=' for param in params)}")
    return ""


def _suggest_public(message: str) -> str:
    wanted = re.search(r"import name '(\w+)'", message)
    public = f'kopf.{wanted[1]}' if wanted and hasattr(sys.modules['kopf'], wanted[1]) else None
    return ("Modules with a leading underscore are private, and not those of the Kopf on PyPI. "
            f"Use {public or 'public names of kopf'} instead.")


def _suggest_attribute(module: types.ModuleType, name: str) -> str:
    members = vars(module)
    for title, member in members.items():
        if isinstance(member, types.ModuleType) and not title.startswith('_') and (
                hasattr(member, name)):
            return f"Did you mean {module.__name__}.{title}.{name}?"
    close = _get_close_matches(name, [key for key in members if key[0] != '_'])
    return f"Did you mean {module.__name__}.{close[0]}?" if close else ""


def _get_close_matches(word: str, names: Sequence[str], cutoff: float = 0.6) -> list[str]:
    import difflib  # only if it is used

    return difflib.get_close_matches(word, names, n=1, cutoff=cutoff)


def _get_namespace(exc: BaseException) -> Mapping[str, Any]:
    """Get the global names where the error was raised."""
    tb = exc.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb.tb_frame.f_globals if tb is not None else {}


def _get_params(exc: BaseException, namespace: Mapping[str, Any]) -> list[str]:
    """Get the keyword parameters of the function that was called in the line of the error."""
    line = traceback.extract_tb(exc.__traceback__)[-1].line or ''
    called = re.match(r'@?(\w+(?:\.\w+)*)\(', line)
    if not called:
        return []
    first, *rest = called[1].split('.')
    fn = functools.reduce(lambda obj, name: getattr(obj, name, None), rest, namespace.get(first))
    if not callable(fn):
        return []
    return [param.name for param in inspect.signature(fn).parameters.values()
            if param.kind in (param.KEYWORD_ONLY, param.POSITIONAL_OR_KEYWORD)]


def _is_bare_decorator(line: str) -> bool:
    return line.startswith('@kopf.') and not line.endswith(')')


def _is_of_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(
        (_OWN_ROOT, '<frozen importlib', '<string>', importlib.__file__))
