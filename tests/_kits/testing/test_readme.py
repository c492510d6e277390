"""
The README is followed to the letter, by a reader who has Python, and nothing else.

What installs packages takes long, so it is a part of the first hour of the documentation in CI.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import kopf

ROOT = pathlib.Path(__file__).parents[3]
README = (ROOT / 'README.md').read_text()
SHELL = re.findall(r'^```bash\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
INSTALL, RUN, TEST, DEVELOP = SHELL


def get_block(language):
    block, = re.findall(rf'^```{language}\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
    return block


@pytest.fixture()
def checkout(tmp_path):
    """A copy of the repository, without anything that was made there."""
    made = shutil.ignore_patterns('.*', 'build', 'dist', '__pycache__')
    return shutil.copytree(ROOT, tmp_path / 'checkout', ignore=made)


@pytest.fixture()
def shell(tmp_path, checkout):
    """A terminal of a reader, in which commands are typed one after another."""
    programs = tmp_path / 'bin'
    programs.mkdir()
    (programs / 'python3').symlink_to(sys._base_executable)
    env = {name: val for name, val in os.environ.items()
           if re.fullmatch(r'HOME|PIP_\w+|https?_proxy|no_proxy', name, re.IGNORECASE)}
    env['PATH'] = f"{programs}:{os.environ['PATH']}"
    before = []

    def run(commands, *, folder=tmp_path, keep=False):
        commands = commands.replace('path/to/kopf', str(checkout))
        process = subprocess.run(
            ['bash', '-ec', '\n'.join([*before, commands])], cwd=folder, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.returncode == 0, process.stdout
        return process.stdout

    def enter():
        before.append('cd my-operator; source .venv/bin/activate')

    run.enter = enter
    return run


def test_the_handler_is_that_of_the_first_example():
    assert get_block('python') == (ROOT / 'examples' / 'website' / 'handlers.py').read_text()


@pytest.mark.parametrize('name', ['handlers.py', 'crd.yaml', 'website.yaml'])
def test_the_first_example_is_that_of_the_quick_start(name):
    quickstart = (ROOT / 'docs' / 'quickstart.md').read_text()
    shown = re.findall(
        rf'^% file: {name}\n\n```\w+\n(.*?)^```$', quickstart, re.MULTILINE | re.DOTALL)
    assert shown[0] == (ROOT / 'examples' / 'website' / name).read_text()


def test_the_status_has_the_version():
    assert f'**Status:** {kopf.__version__},' in README


@pytest.mark.e2e
def test_the_demo_runs_in_a_fresh_checkout(shell, checkout):
    output = shell('scripts/demo', folder=checkout)
    assert "Welcome, kopf-example-1!" in output
    assert "Good-bye, kopf-example-1." in output


@pytest.mark.e2e
def test_the_first_operator_and_its_test_run_in_their_own_folder(shell, tmp_path):
    shell(INSTALL)
    shell.enter()
    folder = tmp_path / 'my-operator'
    (folder / 'handlers.py').write_text(get_block('python'))
    (folder / 'test_handlers.py').write_text(get_block('py'))
    output = shell(f'''
        {RUN.strip()} > log 2>&1 & operator=$!
        until grep "Reconciler 'website' succeeded" log; do kill -0 $operator; sleep 0.1; done
        kill -INT $operator; wait $operator; cat log
    ''')
    assert "The sandbox is at" in output
    assert "1 passed" in shell(TEST)


def test_the_command_for_contributors_exists():
    assert os.access(ROOT / DEVELOP.strip(), os.X_OK)


def test_the_links_lead_somewhere():
    links = re.findall(r'\]\((?!https?:)([^)#]+)', README)
    assert {'docs/takeover.md', 'docs/policy.md', 'docs/guarantees.md'} <= set(links)
    assert [link for link in links if not (ROOT / link).exists()] == []
