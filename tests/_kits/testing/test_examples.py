import pathlib

import pytest

from tests import pytests

EXAMPLES = pathlib.Path(__file__).parents[3] / 'examples'


@pytest.mark.parametrize('name', sorted(
    path.parent.name for path in EXAMPLES.glob('*/test_example.py')))
def test_the_tests_in_the_examples_pass(name, tmp_path):
    folder = EXAMPLES / name
    output = tmp_path / 'output'
    config = EXAMPLES / 'pytest.ini'  # which readers get, instead of that of the repository
    code = pytests.run(
        ['-p', 'no:cacheprovider', '-c', str(config), str(folder)], folder=folder, output=output)
    assert code == 0, output.read_text()
