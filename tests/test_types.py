"""
The types, as type checkers see them from the outside.
"""
import functools
import json
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent.resolve() / 'types'
RIGHT, WRONG, OUTDATED = (FOLDER / f'{name}.py' for name in ('right', 'wrong', 'outdated'))
EXAMPLES = FOLDER.parents[1] / 'examples'


@functools.cache
def run_mypy():
    """The lines with errors, by the files. One run for all of the tests, for it takes seconds."""
    done = subprocess.run(
        [sys.executable, '-m', 'mypy', '--strict', '--no-error-summary', '--cache-dir',
         '.mypy_cache/types', '--config-file=',
         *(path.relative_to(pathlib.Path.cwd()) for path in (RIGHT, WRONG))],
        capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return collect(
        (pathlib.Path(path).resolve(), int(line))
        for path, line in re.findall(r'^(.+?):(\d+): error', done.stdout, re.MULTILINE))


@functools.cache
def run_pyright():
    """The same as `run_mypy`, also for the examples and for what is outdated."""
    done = subprocess.run(
        [sys.executable, '-m', 'pyright', '--outputjson', '--pythonpath', sys.executable,
         RIGHT, WRONG, OUTDATED, EXAMPLES],
        capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return collect(
        (pathlib.Path(item['file']).resolve(), item['range']['start']['line'] + 1)
        for item in json.loads(done.stdout)['generalDiagnostics'] if item['severity'] == 'error')


def collect(errors):
    found = {}
    for path, line in errors:
        found.setdefault(path, set()).add(line)
    return found


def find_marked(path, mark):
    lines = path.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(mark)}


@pytest.mark.parametrize('check', [run_mypy, run_pyright])
def test_right_code_passes(check):
    assert RIGHT not in check()


def test_the_examples_pass():
    assert not [path for path in run_pyright() if EXAMPLES in path.parents]


@pytest.mark.parametrize('check', [run_mypy, run_pyright])
def test_wrong_code_is_refused(check):
    assert check()[WRONG] == find_marked(WRONG, '# refused')


def test_outdated_code_is_told_from_the_rest():
    assert run_pyright()[OUTDATED] == find_marked(OUTDATED, '# deprecated')
