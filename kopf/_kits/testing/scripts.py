"""
Loading of files with handlers into the registries of tests.

Python imports a file once per process, but each test needs the handlers in its own registry.
"""
import contextlib
import functools
import os
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from kopf._core.intents import registries

PREFIX = '__kopf_script_'

_loaded: 'weakref.WeakKeyDictionary[registries.OperatorRegistry, dict[str, types.ModuleType]]'
_loaded = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def load_into(registry: registries.OperatorRegistry | None) -> Iterator[None]:
    """
    Make the registry the default one for the block. Each file is loaded once per registry.

    If the registry is None, the default registry stays as it is.
    """
    previous = registries.get_default_registry()
    registry = registry if registry is not None else previous
    for modules in list(_loaded.values()):
        for name in modules:
            sys.modules.pop(name, None)
    sys.modules.update(_loaded.get(registry, {}))
    foreign = {name for name in sys.modules if name.startswith(PREFIX)} - {
        *_loaded.get(registry, ())}
    aside = {name: sys.modules.pop(name) for name in foreign if registry is not previous}
    registries.set_default_registry(registry)
    try:
        yield
    finally:
        registries.set_default_registry(previous)
        _loaded[registry] = {
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


def copy_handlers(module: str, target: registries.OperatorRegistry) -> None:
    """Copy the handlers of a module and of its submodules from the default registry."""
    source = registries.get_default_registry()
    for name, handlers in vars(source).items():
        if isinstance(handlers, registries.GenericRegistry):
            for handler in handlers:
                owner = getattr(_unwrap(handler.fn), '__module__', '')
                if owner == module or owner.startswith(f'{module}.'):
                    getattr(target, name).append(handler)


def _unwrap(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn
