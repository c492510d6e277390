"""
What is measured: this Kopf, also while it serves metrics; the release on PyPI, and the bare client;
each in an environment of its own.

The environments are made once, outside of the project, and have no extras in them: neither uvloop
nor the libraries for logging in.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
OPERATORS = pathlib.Path(__file__).parent / 'operators'
CACHE = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache')
RELEASE = 'kopf==1.45.2'


@dataclasses.dataclass(frozen=True)
class Subject:
    """One of those that are compared: its interpreter, and how it runs an operator."""

    name: str
    python: str

    @property
    def is_bare(self) -> bool:
        return self.name == 'bare'

    def get_command(self, operator: str) -> list[str]:
        if self.is_bare:
            return [self.python, str(OPERATORS / 'bare.py')]
        metrics = ['--metrics=http://127.0.0.1:0/metrics'] if self.name == 'metered' else []
        return [
            self.python, '-m', 'kopf', 'run', '--standalone', '--all-namespaces', *metrics,
            str(OPERATORS / f'{operator}.py')]


def prepare(names: list[str], *, pythons: dict[str, str]) -> list[Subject]:
    """
    Prepare those named; ``pythons`` are the interpreters for which no environment is to be made.
    """
    requirements = {
        'bare': RELEASE, 'release': RELEASE, 'this': f'--editable={ROOT}',
        'metered': f'--editable={ROOT}[metrics]'}
    folders = {'bare': 'release', 'release': 'release', 'this': 'this', 'metered': 'metered'}
    subjects = []
    for name in names:
        python = pythons.get(name)
        if python is None:
            folder = CACHE / 'kopf-benchmarks' / folders[name]
            python = str(make_environment(folder, requirements[name]))
        subjects.append(Subject(name, python))
    return subjects


def make_environment(folder: pathlib.Path, requirement: str) -> pathlib.Path:
    """
    Make a virtual environment with one package and its dependencies, unless it is there already.
    """
    python = folder / 'bin' / 'python'
    stamp = folder / 'stamp'
    project = (ROOT / 'pyproject.toml').read_text() if str(ROOT) in requirement else ''
    wanted = f'{requirement}\n{project}'
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, '-m', 'venv', '--clear', folder], check=True)
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check',
                        requirement], check=True)
        stamp.write_text(wanted)
    return python
