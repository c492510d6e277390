"""
What is read by those who freeze operators where there is no peering.
"""
import pathlib

import pytest
from click.testing import CliRunner

from kopf import cli, testing
from kopf._cogs.clients import vaults

PEERING_KINDS = pathlib.Path(__file__).parents[2] / 'peering.yaml'


@pytest.fixture()
def freeze():
    """Run ``kopf freeze`` on a sandbox, and return the last line of the output."""
    def freeze(*args):
        vault = vaults.Vault({'sandbox': thread.credentials})
        result = CliRunner().invoke(
            cli.main, ['freeze', '--lifetime=10', *args], obj=cli.CLIControls(vault=vault))
        assert result.exit_code == 1, result.output
        return result.output.splitlines()[-1]

    with testing.run_sandbox() as thread:
        freeze.sandbox = thread
        yield freeze


def test_kinds_of_peering_must_exist(freeze):
    assert freeze('-A', '--peering=x') == (
        "Error: The cluster has no such kind as ClusterKopfPeering. "
        "Type first: kopf crd --peering --apply")


def test_namespaces_must_exist(freeze):
    freeze.sandbox.client.load(PEERING_KINDS)
    assert freeze('-n', 'defualt', '-n', 'test-*', '--peering=x') == (
        "Error: No namespace matches 'defualt', 'test-*'. "
        "Check the name: kubectl get namespaces")


def test_peerings_must_exist(freeze):
    freeze.sandbox.client.load(PEERING_KINDS)
    assert freeze('-n', 'default', '--peering=x') == (
        "Error: Peering 'x' not found. Create it first: apply a KopfPeering with this name.")
