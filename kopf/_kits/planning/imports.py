"""
The imports of the versions of an operator in one process: modules of the same name in the folders
of different versions are different modules, and none sees those of another one.
"""
import contextlib
import pathlib
import sys
import types
from collections.abc import Collection, Iterator

from kopf._kits.testing import runs, scripts


def find_folders(sources: Collection[runs.Source]) -> frozenset[pathlib.Path]:
    """Find the folders of the files, from which these can import modules."""
    return frozenset(
        pathlib.Path(source).resolve().parent for source in sources
        if not isinstance(source, types.ModuleType) and pathlib.Path(source).is_file())


class Imports:
    """The modules of a version, as far as they are from a folder that other versions do not use."""

    def __init__(self, folders: frozenset[pathlib.Path], others: frozenset[pathlib.Path]) -> None:
        """The folders of this version, and those of the other one, if there is any."""
        self._own, self._foreign = folders - others if others else others, others - folders
        self._modules: dict[str, types.ModuleType] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Import from the own folders in this block, and not from those of the other version."""
        modules, path = sys.modules.copy(), sys.path[:]
        _take(self._foreign)
        sys.path[:] = [*map(str, self._own), *(
            each for each in path if pathlib.Path(each).resolve() not in self._foreign)]
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._modules = _take(self._own)
            sys.modules.update(
                {name: module for name, module in modules.items() if name not in sys.modules})
            if self._own or self._foreign:
                sys.path[:] = path


def _take(folders: Collection[pathlib.Path]) -> dict[str, types.ModuleType]:
    """Take the modules that are imported from these folders out of the imported ones."""
    taken = {name: module for name, module in list(sys.modules.items())
             if any(_is_from(folder, name, module) for folder in folders)}
    for name, module in taken.items():
        del sys.modules[name]
        _forget_metrics(module)
    return taken


def _is_from(folder: pathlib.Path, name: str, module: types.ModuleType) -> bool:
    places = [getattr(module, '__file__', None), *getattr(module, '__path__', ())]
    place = pathlib.Path(next(filter(None, places), '')).resolve()
    if name.startswith(scripts.PREFIX):
        return place.parent == folder
    top = name.partition('.')[0]  # it is in the folder itself: libraries are deeper
    return place.is_relative_to(folder) and place != folder and (
        place.relative_to(folder).parts[0].partition('.')[0] == top)


def _forget_metrics(module: types.ModuleType) -> None:
    """Let other versions declare the same metrics: the library refuses duplicates."""
    if 'prometheus_client' in sys.modules:
        from prometheus_client import REGISTRY, metrics  # the operator has imported it
        for value in list(vars(module).values()):
            if isinstance(value, metrics.MetricWrapperBase):
                with contextlib.suppress(KeyError):
                    REGISTRY.unregister(value)
