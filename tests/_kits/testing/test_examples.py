import pathlib
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).parents[3] / 'examples' / '02-testing'


def test_the_example_of_tests_passes():
    options = ['-q', '-c', '/dev/null', '--rootdir', EXAMPLE]
    command = [sys.executable, '-m', 'pytest', *options, EXAMPLE]
    result = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=50)
    assert result.returncode == 0, result.stdout
