"""
The pages for the first hour, to the letter: all files, all commands, and all that is shown, one
page after the other, in a bare environment.
"""
import os
import shutil
import subprocess
import sys

import pytest

from tests.docs import readers

CLUSTER = os.environ.get('KOPF_E2E_KUBECONFIG')

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    *(pytest.mark.skipif(shutil.which(name) is None, reason=f"There is no {name}.")
      for name in ('kubectl', 'curl')),
]


@pytest.fixture(scope='module')
def installed():
    """The virtual environments with Kopf: the one of the first sitting is enough."""
    return []


@pytest.fixture()
def play(installed):
    """Play the pages in one sitting."""
    readers_made = []

    def play(home, **options):
        reader = readers.Reader(home, installed=installed[0] if installed else None, **options)
        readers_made.append(reader)
        reader.read('quickstart.md')
        reader.read('walkthrough.md')
        installed.append(home / 'my-operator' / '.venv')

    yield play
    for reader in readers_made:
        reader.close()


@pytest.fixture()
def home(tmp_path_factory):
    """The home of the reader, which stays for the next sitting."""
    home = tmp_path_factory.mktemp('home')
    (home / '.kube').mkdir()
    return home


@pytest.fixture()
def sandbox(home):
    """What the current kubeconfig of the reader is for, where there is no cluster."""
    terminal = readers.Terminal(home, dict(os.environ))
    terminal.type(f'{sys.executable} -m kopf sandbox --kubeconfig-out .kube/config')
    terminal.wait(lambda: 'export KUBECONFIG=' in terminal.output, 'sandbox')
    yield
    terminal.close()


@pytest.fixture()
def cluster(home):
    if CLUSTER is None:
        pytest.skip("There is no cluster.")
    shutil.copy(CLUSTER, home / '.kube' / 'config')
    yield
    for command in [
            ['patch', 'website', 'hello', '--type=merge', '-p', '{"metadata":{"finalizers":null}}'],
            ['delete', 'crd', 'websites.example.com', '--ignore-not-found'],
            ['delete', 'events', '--all']]:
        subprocess.run(['kubectl', '--kubeconfig', CLUSTER, *command])  # the first one after errors


def test_the_tutorial_is_true_on_a_sandbox(play, home, sandbox):
    play(home)


def test_the_tutorial_is_true_on_a_cluster(play, home, cluster):
    play(home, is_on_cluster=True)
