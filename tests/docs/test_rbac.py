"""The page of the least roles has the table of the code, and shows what is printed."""
import re

import pytest
import yaml
from click.testing import CliRunner

import kopf
from kopf import cli
from kopf._kits.typed.rights import FEATURES
from tests.docs import snippets

PAGE = (snippets.DOCS / 'rbac.md').read_text()


def test_features_are_those_of_the_code():
    rows = [tuple(line.strip('| ').split(' | ')) for line in PAGE.splitlines()
            if re.match(r'\| [a-z].*\|$', line)]
    assert all(all(row[:2]) for row in rows)  # what it is for, and who uses it
    assert [row[2:] for row in rows] == [
        ('resource', 'verbs', 'where'),
        *((f'`{feature.resource}`',
           ', '.join(f'`{verb}`' for verb in feature.verbs) + ' by name' * feature.named,
           feature.place.value)
          for feature in FEATURES.values())]


@pytest.fixture()
def registry():
    default, registry = kopf.get_default_registry(), kopf.OperatorRegistry()
    kopf.set_default_registry(registry)
    yield registry
    kopf.set_default_registry(default)


def test_the_first_role_is_printed_as_shown(registry, tmp_path):
    operator, shown = (
        next(snippet.text for snippet in snippets.read('rbac.md', PAGE)
             if snippet.language == language) for language in ('python', 'yaml'))
    path = tmp_path / 'handlers.py'
    path.write_text(operator)
    crd = snippets.DOCS.parent / 'examples' / 'crd.yaml'
    result = CliRunner().invoke(
        cli.main, ['rbac', '-A', '--standalone', f'--crd={crd}', str(path)],
        obj=cli.CLIControls(registry=registry))
    assert result.exit_code == 0
    assert [*yaml.safe_load_all(result.stdout)] == [yaml.safe_load(shown)]
    assert result.stdout == shown
