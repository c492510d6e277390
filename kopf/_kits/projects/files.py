"""
Files: objects as YAML, fit for git, in one stream or one file for each concern.
"""
import pathlib
from collections.abc import Mapping, Sequence

from kopf._kits import commanding
from kopf._kits.projects.manifests import FILES, Manifest
from kopf._kits.typed import publishing, roles

KUSTOMIZATION = 'kustomization.yaml'


def dump(files: Mapping[str, Sequence[Manifest]]) -> str:
    """Make one stream of all objects, in an order in which they can be applied."""
    return '---\n'.join(text.removeprefix('---\n') for text in _dump(files).values())


def write(
        files: Mapping[str, Sequence[Manifest]], folder: pathlib.Path, *, kustomize: bool,
) -> None:
    """
    Write each file into the folder, which is made if it is absent, and what Kustomize needs.

    The files of former runs that are not needed any more are removed; all others stay.

    :raises CommandError: if something cannot be written.
    """
    texts = {f'{name}.yaml': text for name, text in _dump(files).items()}
    if kustomize:
        texts[KUSTOMIZATION] = roles.dump([{
            'apiVersion': 'kustomize.config.k8s.io/v1beta1', 'kind': 'Kustomization',
            'resources': [*texts]}])
    try:
        folder.mkdir(exist_ok=True)
        for name in FILES:
            folder.joinpath(f'{name}.yaml').unlink(missing_ok=True)
        for name, text in texts.items():
            folder.joinpath(name).write_text(text, 'utf-8')
    except OSError as e:
        raise commanding.CommandError(f"{folder} cannot be written: {e}") from e


def _dump(files: Mapping[str, Sequence[Manifest]]) -> Mapping[str, str]:
    """Make the YAML of each file; the definitions are as `kopf crd` prints them."""
    return {name: publishing.dump(objs) if name == FILES[0] else roles.dump(objs)
            for name, objs in files.items()}
