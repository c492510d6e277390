"""
Loading of files with handlers into the registries of tests.

Python imports a file once per process, but each test needs the handlers in its own registry. Files
are executed for each registry. The modules that they import are not: their handlers are copied.
"""
import builtins
import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from kopf._core.intents import registries

PREFIX = '__kopf_script_'

_lock = threading.RLock()

_loaded: 'weakref.WeakKeyDictionary[registries.OperatorRegistry, dict[str, types.ModuleType]]'
_loaded = weakref.WeakKeyDictionary()

_declared: 'weakref.WeakKeyDictionary[types.ModuleType, list[tuple[str, Any]]]'
_declared = weakref.WeakKeyDictionary()
"""
What the imports of modules have declared, including that of the modules that these import: the
attributes of the registry, and the handlers.
"""


@contextlib.contextmanager
def load_into(registry: registries.OperatorRegistry | None) -> Iterator[None]:
    """
    Make the registry the default one for the block. Each file is loaded once per registry.

    If the registry is None, the default registry stays as it is. Other threads wait until the end
    of the block: modules, and the functions that import them, are those of the process.
    """
    default = registries.get_default_registry()
    target = registry if registry is not None else default
    with _lock:
        for modules in list(_loaded.values()):
            for name in modules:
                sys.modules.pop(name, None)
        sys.modules.update(_loaded.get(target, {}))
        foreign = {name for name in sys.modules if name.startswith(PREFIX)} - {
            *_loaded.get(target, ())}
        aside = {name: sys.modules.pop(name) for name in foreign if target is not default}
        token = None if registry is None else registries.default_registry_var.set(registry)
        try:
            with _following(target, default):
                yield
        finally:
            if token is not None:
                registries.default_registry_var.reset(token)
            _loaded[target] = {
                name: module for name, module in sys.modules.items() if name.startswith(PREFIX)}
            sys.modules.update(aside)


def find_imported(path: str | os.PathLike[str]) -> str | None:
    """Find the name of the module that was imported from this file; None if there is none."""
    real = os.path.realpath(path)
    for name, module in list(sys.modules.items()):
        file = getattr(module, '__file__', None)
        if file and not name.startswith(PREFIX) and name == getattr(module, '__name__', None) and (
                os.path.basename(file) == os.path.basename(path)
                and os.path.realpath(file) == real):
            return name
    return None


@contextlib.contextmanager
def _following(
        target: registries.OperatorRegistry, default: registries.OperatorRegistry,
) -> Iterator[None]:
    """Let the target have the handlers of imported modules, also if these are imported already."""
    find_module, find = importlib.import_module, builtins.__import__
    inner: list[list[tuple[str, Any]]] = [[]]
    """What is declared in the modules being imported, by the modules that they import."""

    def take(name: str) -> types.ModuleType:
        is_known = name in sys.modules
        before = {attr: len(handlers) for attr, handlers in _iterate(target)}
        inner.append([])
        try:
            module = find_module(name)
        finally:
            found = inner.pop()
        if is_known:
            found = _declared.get(module) or [*_find(default, name)]
            _copy(found, target)
        else:
            found += [(attr, handler) for attr, handlers in _iterate(target)
                      for handler in [*handlers][before[attr]:]]
            if found:
                _declared[module] = found
        inner[-1] += found
        return module

    def import_module(name: str, package: str | None = None) -> types.ModuleType:
        name = importlib.util.resolve_name(name, package)
        for end in (at for at, char in enumerate(name) if char == '.'):
            take(name[:end])
        return take(name)

    def import_(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0,
    ) -> types.ModuleType:
        package = (globals or {}).get('__package__')
        if level and not package:
            return find(name, globals, locals, fromlist, level)  # it raises the error
        module = import_module('.' * level + name, package)
        for item in fromlist or ():
            if item != '*' and not hasattr(module, item):
                with contextlib.suppress(ModuleNotFoundError):  # the import itself raises it
                    take(f'{module.__name__}.{item}')
        return find(name, globals, locals, fromlist, level)

    importlib.import_module, builtins.__import__ = import_module, import_
    try:
        yield
    finally:
        importlib.import_module, builtins.__import__ = find_module, find


def copy_handlers(module: str, target: registries.OperatorRegistry) -> None:
    """Copy the handlers of a module, of its submodules, and of what it has imported."""
    default = registries.get_default_registry()
    known = sys.modules.get(module)
    declared = () if known is None else _declared.get(known, ())
    _copy([*declared, *_find(default, module, submodules=True)], target)


def copy_registry(source: registries.OperatorRegistry, target: registries.OperatorRegistry) -> None:
    """Copy all handlers and conversions of a registry."""
    target._converters.update(source._converters)
    _copy([(attr, each) for attr, handlers in _iterate(source) for each in handlers], target)


def _copy(found: Iterable[tuple[str, Any]], target: registries.OperatorRegistry) -> None:
    for attr, handler in found:
        handlers = getattr(target, attr)
        if all(other is not handler for other in handlers):
            handlers.append(handler)


def _find(
        registry: registries.OperatorRegistry, module: str, *, submodules: bool = False,
) -> Iterator[tuple[str, Any]]:
    for attr, handlers in _iterate(registry):
        for handler in handlers:
            owner = _get_owner(handler)
            if owner == module or (submodules and owner.startswith(f'{module}.')):
                yield attr, handler


def _iterate(
        registry: registries.OperatorRegistry,
) -> Iterator[tuple[str, registries.GenericRegistry[Any]]]:
    for attr, handlers in vars(registry).items():
        if isinstance(handlers, registries.GenericRegistry):
            yield attr, handlers


def _get_owner(handler: Any) -> str:
    fn = handler.fn
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, '__module__', None) or ''
