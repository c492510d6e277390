"""
The types, as type checkers see them from the outside.
"""
import json
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent / 'types'
BIN = pathlib.Path(sys.executable).parent


def run_mypy(path):
    done = subprocess.run(
        [sys.executable, '-m', 'mypy', '--strict', '--no-error-summary', '--cache-dir',
         '.mypy_cache/types', '--config-file=', path.relative_to(pathlib.Path.cwd())],
        capture_output=True, text=True, timeout=200)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line) for line in re.findall(rf'{path.name}:(\d+): error', done.stdout)}


def run_pyright(path):
    done = subprocess.run(
        [sys.executable, '-m', 'pyright', '--outputjson', '--pythonpath', sys.executable, path],
        capture_output=True, text=True, timeout=200)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)['generalDiagnostics']
    return {item['range']['start']['line'] + 1 for item in found if item['severity'] == 'error'}


@pytest.mark.timeout(200)
@pytest.mark.parametrize('check', [run_mypy, run_pyright])
def test_right_code_passes(check):
    assert check(FOLDER / 'right.py') == set()


@pytest.mark.timeout(200)
def test_the_examples_pass():
    assert run_pyright(FOLDER.parents[1] / 'examples') == set()


@pytest.mark.timeout(200)
@pytest.mark.parametrize('check', [run_mypy, run_pyright])
def test_wrong_code_is_refused(check):
    path = FOLDER / 'wrong.py'
    lines = path.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith('# refused')}
    assert check(path) == marked


@pytest.mark.timeout(200)
def test_outdated_code_is_told_from_the_rest():
    path = FOLDER / 'outdated.py'
    lines = path.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith('# deprecated')}
    assert run_pyright(path) == marked
