"""The page of the deployment shows what is printed."""
import shlex

import pytest
from click.testing import CliRunner

import kopf
from kopf import cli
from kopf._kits.projects import manifests
from kopf._kits.typed import kinds
from tests.docs import snippets

PAGES = {name: list(snippets.read(name, (snippets.DOCS / name).read_text()))
         for name in ('deployment.md', 'metrics.md')}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the reader, with the files of the page."""
    monkeypatch.setattr(kinds, '_declared', {})
    default = kopf.get_default_registry()
    kopf.set_default_registry(kopf.OperatorRegistry())
    for snippet in PAGES['deployment.md']:
        if 'file' in snippet.marks:
            (tmp_path / snippet.marks['file']).write_text(snippet.text)
    (tmp_path / 'crd.yaml').write_text(
        (snippets.DOCS.parent / 'examples' / 'crd.yaml').read_text())
    monkeypatch.chdir(tmp_path)
    yield
    kopf.set_default_registry(default)


def show(*args):
    """Run the first command of the page with more arguments; returns what is printed."""
    command = next(snippet.text for snippet in PAGES['deployment.md']
                   if snippet.text.startswith('$ kopf manifests'))
    _, _, *words = shlex.split(command.replace('\\\n', ' '))
    result = CliRunner().invoke(cli.main, [*words, *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def get_yaml(page):
    return next(snippet.text for snippet in PAGES[page] if snippet.language == 'yaml')


def test_the_objects_are_printed_as_shown():
    assert show() == get_yaml('deployment.md')


def test_the_monitor_is_printed_as_shown():
    assert show('--pod-monitor').endswith(get_yaml('metrics.md'))


def test_all_files_are_listed():
    page = (snippets.DOCS / 'deployment.md').read_text()
    rows = [line.split('`')[1] for line in page.splitlines() if line.startswith('| `')
            and '.yaml`' in line]
    assert rows == [f'{name}.yaml' for name in manifests.FILES]
