"""
The imports of the versions of an operator in one process: modules of the same name in the folders
of different versions are different modules, and none sees those of another one.
"""
import contextlib
import pathlib
import sys
import types
from collections.abc import Collection, Iterator, Sequence

from kopf._kits.testing import runs, scripts

PROJECT_FILES = ('pyproject.toml', 'setup.py', '.git')
"""By which the root folder of a project is known."""


def find_folders(sources: Collection[runs.Source]) -> list[pathlib.Path]:
    """
    Find the folders from which the files can import modules: theirs, and those of their projects.

    The packages of a project can be installed, but only one version of them.
    """
    folders: list[pathlib.Path] = []
    for source in sources:
        if not isinstance(source, types.ModuleType) and pathlib.Path(source).is_file():
            folder = pathlib.Path(source).resolve().parent
            root = next((each for each in (folder, *folder.parents) if any(
                (each / name).exists() for name in PROJECT_FILES)), None)
            folders += [folder] if root is None else [folder, root / 'src', root]
    return folders


class Imports:
    """The modules of a version, as far as they are from a folder that other versions do not use."""

    def __init__(self, folders: Sequence[pathlib.Path], others: Sequence[pathlib.Path]) -> None:
        """The folders of this version, and those of the other one, if there is any."""
        self._own = [each for each in folders if others and each not in others]
        self._foreign = [each for each in others if each not in folders]
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
    return top != 'kopf' and place.is_relative_to(folder) and place != folder and (
        place.relative_to(folder).parts[0].partition('.')[0] == top)


def _forget_metrics(module: types.ModuleType) -> None:
    """Let other versions declare the same metrics: the library refuses duplicates."""
    if 'prometheus_client' in sys.modules:
        from prometheus_client import REGISTRY, metrics  # the operator has imported it
        for value in list(vars(module).values()):
            if isinstance(value, metrics.MetricWrapperBase):
                with contextlib.suppress(KeyError):
                    REGISTRY.unregister(value)
