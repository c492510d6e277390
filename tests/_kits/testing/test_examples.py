import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / 'examples'


@pytest.mark.parametrize('name', ['13-admission', '17-testing', '22-exploring'])
def test_the_tests_in_the_examples_pass(name):
    folder = EXAMPLES / name
    command = [sys.executable, '-m', 'pytest', '-q', '-c', '/dev/null', '--rootdir', folder, folder]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stdout
