"""
pytest in pytest: forked from a process that has the most imported, which saves half of the time.
"""
import multiprocessing
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

import pytest

CONTEXT = multiprocessing.get_context('forkserver')
CONTEXT.set_forkserver_preload([
    'pytest', 'hypothesis', 'kopf.cli', 'kopf.testing', 'kopf._kits.running',
    'kopf._kits.sandbox.server', 'kopf._kits.testing.exploring', 'kopf._kits.testing.previews'])

TIMEOUT = 600
"""How long (seconds) a run can take. It only ends what hangs: busy machines fail no tests."""


def run(
        args: Sequence[str], *, folder: pathlib.Path, output: pathlib.Path,
        env: Mapping[str, str] = {},
) -> int | None:
    """Run pytest in the folder, with no configuration; return its exit code."""
    process = CONTEXT.Process(target=_run, args=(args, folder, output, env), daemon=True)
    process.start()
    process.join(TIMEOUT)
    process.kill()
    return process.exitcode


def _run(
        args: Sequence[str], folder: pathlib.Path, output: pathlib.Path, env: Mapping[str, str],
) -> None:
    os.environ.update(env)
    for name in [name for name in os.environ if name.startswith('PYTEST_XDIST')]:
        del os.environ[name]
    with output.open('wb') as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
    os.chdir(folder)
    sys.path.insert(0, '')  # as `python -m pytest` does
    config = output.with_name('empty.ini')
    config.touch()
    sys.exit(pytest.main(['-q', '-c', str(config), '--rootdir', str(folder), *args]))
