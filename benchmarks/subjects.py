"""
What is measured: this Kopf, also with uvloop, on other versions of Python, and while it serves
metrics or makes traces; the release on PyPI, and the bare client; and the peers in other languages:
controller-runtime in Go, kube-rs in Rust.

The environments and programs are made outside of the project. The environments have no extras in
them, apart from what their names say: neither uvloop nor the libraries for logging in.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
OPERATORS = HERE / 'operators'
CACHE = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache')
RELEASE = 'kopf==1.45.2'

PEERS = {'go': 'go', 'rust': 'cargo'}
"""The peers, and the tools that build them."""

INTERPRETERS = tuple(f'python3.{minor}' for minor in range(11, 16))
"""The interpreters with which this Kopf can be measured, too."""

OTHERS = {
    'release': f"Kopf {RELEASE.partition('==')[2]} on PyPI",
    'go': 'controller-runtime 0.25',
    'rust': 'kube-rs 5.0',
}
"""With whom this Kopf is compared, and their versions."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """One of those that are compared: its interpreter or program, and how it runs an operator."""

    name: str
    program: str

    @property
    def is_bare(self) -> bool:
        return self.name == 'bare'

    @property
    def is_kopf(self) -> bool:
        return not self.is_bare and self.name not in PEERS

    def get_command(self, operator: str) -> list[str]:
        if self.name in PEERS:
            return [self.program, operator]
        if self.is_bare:
            return [self.program, str(OPERATORS / 'bare.py')]
        options = {
            'metered': ['--metrics=http://127.0.0.1:0/metrics'],
            'traced': ['--tracing', str(OPERATORS / 'recording.py')],
        }.get(self.name, [])
        return [
            self.program, '-m', 'kopf', 'run', '--standalone', '--all-namespaces', *options,
            str(OPERATORS / f'{operator}.py')]


def prepare(names: list[str], *, pythons: dict[str, str]) -> list[Subject]:
    """
    Prepare those named; ``pythons`` are the interpreters for which no environment is to be made.

    The peers whose tools are not installed are left out, which is said, and so are interpreters.
    """
    requirements = {
        'bare': RELEASE, 'release': RELEASE, 'this': f'--editable={ROOT}',
        'uvloop': f'--editable={ROOT}[uvloop]', 'metered': f'--editable={ROOT}[metrics]',
        'traced': f'--editable={ROOT}[tracing]',
        **dict.fromkeys(INTERPRETERS, f'--editable={ROOT}')}
    folders = {'bare': 'release'}
    subjects = []
    for name in names:
        tool = PEERS.get(name, name if name in INTERPRETERS and name not in pythons else None)
        if tool is not None and shutil.which(tool) is None:
            print(f"{name} is left out: there is no {tool}.", file=sys.stderr)
            continue
        if name in PEERS:
            subjects.append(Subject(name, str(build(name))))
            continue
        python = pythons.get(name)
        if python is None:
            folder = CACHE / 'kopf-benchmarks' / folders.get(name, name)
            others = ['opentelemetry-sdk'] if name == 'traced' else []
            python = str(make_environment(
                folder, requirements[name], *others, base=tool or sys.executable))
        subjects.append(Subject(name, python))
    return subjects


def make_environment(
        folder: pathlib.Path, *requirements: str, base: str = sys.executable,
) -> pathlib.Path:
    """
    Make a virtual environment with packages and their dependencies, unless it is there already.

    ``base`` is the interpreter that makes it, and will be in it.
    """
    python = folder / 'bin' / 'python'
    stamp = folder / 'stamp'
    requirement = ' '.join(requirements)
    project = (ROOT / 'pyproject.toml').read_text() if str(ROOT) in requirement else ''
    wanted = f'{base}\n{requirement}\n{project}'
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([base, '-m', 'venv', '--clear', folder], check=True)
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check',
                        *requirements], check=True)
        stamp.write_text(wanted)
    return python


def build(name: str, folder: str = 'operators') -> pathlib.Path:
    """Build the operators of a peer from the sources in a folder here; return the program."""
    source, target = HERE / f'{name}-{folder}', CACHE / 'kopf-benchmarks' / f'{name}-{folder}'
    if name == 'rust':
        subprocess.run(['cargo', 'build', '--release', '--locked', '--target-dir', target],
                       cwd=source, check=True)
        return target / 'release' / folder
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(['go', 'build', '-o', target, '.'], cwd=source, check=True)
    return target
