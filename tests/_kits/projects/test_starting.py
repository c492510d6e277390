import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from kopf import cli
from kopf._kits.projects import starting
from tests import pytests

NAME = 'my-operator'


@pytest.fixture(scope='module')
def project(tmp_path_factory):
    """The folder of a new operator, which no test changes."""
    folder = tmp_path_factory.mktemp('projects') / NAME
    starting.start(NAME, folder)
    return folder


@pytest.fixture()
def init(tmp_path, monkeypatch):
    """Run ``kopf init`` in an empty folder; returns click's result."""
    monkeypatch.chdir(tmp_path)
    return lambda name: CliRunner().invoke(cli.main, ['init', name])


def execute(project, *args):
    """Run a module of Python as a program in the project; returns what it has printed."""
    process = subprocess.run(
        [sys.executable, '-m', *args], cwd=project, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_the_folder_has_all_that_is_needed(project):
    assert sorted(path.name for path in project.iterdir() if path.is_file()) == [
        'AGENTS.md', 'Dockerfile', 'handlers.py', 'object.yaml', 'pyproject.toml',
        'test_handlers.py']


def test_its_tests_pass(project, tmp_path):
    output = tmp_path / 'output'
    code = pytests.run(
        ['-p', 'no:cacheprovider', '-p', 'pytest_kopf'], folder=project, output=output,
        env={'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'})
    assert code == 0, output.read_text()
    assert '1 passed' in output.read_text()


def test_its_types_are_right(project, tmp_path):
    execute(project, 'mypy', '--strict', '--cache-dir', tmp_path, 'handlers.py', 'test_handlers.py')


def test_nothing_is_wrong_with_it(project):
    assert execute(project, 'kopf', 'check', 'handlers.py') == (
        f'pages.v1.{NAME}.example.com: reconcile publish owns=configmaps\n')


def test_it_can_be_deployed(project):
    commands = starting.start(NAME, project.parent / 'another')
    _, *args = commands[-1].split()
    kinds = [obj['kind'] for obj in yaml.safe_load_all(execute(project, 'kopf', *args))]
    assert kinds[0] == 'CustomResourceDefinition' and 'Deployment' in kinds


def test_the_image_runs_what_the_deployment_runs(project):
    dockerfile = (project / 'Dockerfile').read_text()
    assert re.search(r'^COPY handlers.py \.$', dockerfile, re.MULTILINE)
    assert re.search(r'^USER [1-9]', dockerfile, re.MULTILINE)


@pytest.mark.parametrize('file', ['AGENTS.md', 'Dockerfile', 'pyproject.toml'])
def test_kopf_is_not_taken_from_elsewhere(project, file):
    text = (project / file).read_text()
    assert "he project named kopf on PyPI is another code base" in text
    assert not re.search(r'install [^`\n]*?(?<![/-])kopf\b', text)


def test_the_commands_that_are_named_exist(project):
    lines = (project / 'AGENTS.md').read_text()
    named = re.findall(r'`kopf (\w+)[^`]*`', lines)
    assert len(named) >= 5
    assert {*named} <= {*cli.main.commands}


def test_the_next_commands_are_printed(init):
    lines = init(NAME).output.splitlines()
    assert lines[:2] == [f"Created {NAME}. Type next:", f"    cd {NAME}"]


@pytest.mark.parametrize('name', ['', '.', 'a.b', 'A', '1a', 'a-', '../a', 'a/b', 'a' * 64])
def test_other_names_are_refused(init, tmp_path, name):
    result = init(name)
    assert result.exit_code == 1
    assert "is no DNS label" in result.output
    assert not [*tmp_path.iterdir()]


def test_files_of_others_stay_as_they_are(init):
    folder = pathlib.Path(NAME)
    folder.mkdir()
    (folder / 'handlers.py').write_text('mine')
    result = init(NAME)
    assert result.exit_code == 1
    assert f"There are files in {NAME} already." in result.output
    assert [path.read_text() for path in folder.iterdir()] == ['mine']


def test_empty_folders_are_used(init):
    pathlib.Path(NAME).mkdir()
    assert init(NAME).exit_code == 0


def test_files_are_no_folders(init):
    pathlib.Path(NAME).touch()
    assert f"{NAME} cannot be written: " in init(NAME).output
