"""
The command ``kopf init``: the folder of a new operator, with all that it needs, and no more.
"""
import pathlib
import string
from collections.abc import Sequence

from kopf._kits import commanding
from kopf._kits.projects import labels

TEMPLATES = pathlib.Path(__file__).with_name('templates')
SUFFIX = '.template'


class StartError(commanding.CommandError):
    """The folder cannot be made. The message says what to do instead."""


def start(name: str, folder: pathlib.Path) -> Sequence[str]:
    """
    Make the folder of an operator with this name; returns the commands to type next.

    :raises StartError: if it is no name for an operator, if there is something in the folder
        already, or if the folder cannot be written.
    """
    if not labels.is_label(name):
        raise StartError(f"{name!r} is {labels.FAULT} For example: kopf init my-operator")
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise StartError(f"There are files in {folder} already. Choose another name.")
        for path in sorted(TEMPLATES.glob(f'*{SUFFIX}')):
            text = string.Template(path.read_text('utf-8')).substitute(name=name)
            folder.joinpath(path.name.removesuffix(SUFFIX)).write_text(text, 'utf-8')
    except OSError as e:
        raise StartError(f"{folder} cannot be written: {e}") from e
    return [
        f'cd {name}',
        'pip install pytest',
        'pytest',
        'kopf run --sandbox --load object.yaml --all-namespaces handlers.py',
        f'kopf manifests --all-namespaces --name {name} --image registry.example.com/{name}:1 '
        f'handlers.py',
    ]
