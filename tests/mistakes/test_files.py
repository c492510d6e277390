"""
What is read by those who make a mistake in a file with handlers.
"""
import os
import re

import pytest
from click.testing import CliRunner

import kopf
from kopf import cli
from tests.mistakes.files import DECLARATIONS

PACKAGE = os.path.dirname(kopf.__file__) + os.sep


@pytest.mark.parametrize('typed, read', DECLARATIONS, ids=[typed for typed, _ in DECLARATIONS])
def test_mistakes_in_files_are_explained(tmp_path, typed, read):
    path = tmp_path / 'handlers.py'
    path.write_text(f'import datetime\n\nimport kopf\n{typed}\n')
    result = CliRunner().invoke(cli.main, ['check', str(path)])
    assert result.exit_code == 1
    assert re.search(read, result.output), result.output
    assert result.output.count('Error: ') <= result.output.count('\n')
    assert PACKAGE not in result.output  # no frames of the framework


def test_every_mistake_is_another_one():
    assert len({typed for typed, _ in DECLARATIONS}) == len(DECLARATIONS) >= 45
