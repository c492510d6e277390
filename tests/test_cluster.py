"""The script that starts clusters for contributors finds the binaries of the wanted version."""
import os
import pathlib
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / 'scripts' / 'cluster'


@pytest.fixture()
def run():
    def fn(*args, **env):
        env = {'PATH': os.environ['PATH'], **env}
        return subprocess.run([SCRIPT, *args], env=env, capture_output=True, text=True)

    return fn


@pytest.fixture()
def assets(tmp_path):
    """Folders as setup-envtest makes them, one per version."""
    for version in ('1.20.2', '1.36.0'):
        folder = tmp_path / f'{version}-linux-amd64'
        folder.mkdir()
        for name in ('etcd', 'kubectl', 'kube-apiserver'):
            (folder / name).write_text(f'#!/bin/sh\necho Kubernetes v{version}\n')
            (folder / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize('wanted, found', [
    ('', '1.36.0'), ('1.36.3', '1.36.0'), ('1.36', '1.36.0'), ('1.20.2', '1.20.2')])
def test_any_patch_of_the_wanted_version_is_found(run, assets, wanted, found):
    process = run('assets', KUBEBUILDER_ASSETS=f'{assets}/1.36.0-linux-amd64', KUBE=wanted)
    assert process.stdout == f'{assets}/{found}-linux-amd64\n'


def test_an_absent_version_is_an_error(run, assets):
    process = run('assets', KUBEBUILDER_ASSETS=f'{assets}/1.36.0-linux-amd64', KUBE='1.3.0')
    assert process.returncode == 1
    assert process.stdout == '' and "there is no Kubernetes 1.3 in" in process.stderr


def test_without_binaries_it_says_what_to_do(run):
    process = run('assets')
    assert process.returncode == 1 and "set KUBEBUILDER_ASSETS" in process.stderr


def test_without_a_controller_manager_it_says_what_to_do(run, assets, tmp_path):
    process = run('start', tmp_path / 'state', KUBEBUILDER_ASSETS=f'{assets}/1.36.0-linux-amd64')
    assert process.returncode == 1
    assert "there is no kube-controller-manager" in process.stderr


def test_without_arguments_it_prints_its_help(run):
    process = run()
    assert process.returncode == 2 and "scripts/cluster start DIR" in process.stderr
