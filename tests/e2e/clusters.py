"""
Real Kubernetes APIs on this machine, started by the script at ``$KOPF_CLUSTER``.
"""
import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.ports import find_free_ports

ROOT = pathlib.Path(__file__).parents[2]


@contextlib.contextmanager
def run_cluster(folder: pathlib.Path, **env: str) -> Iterator[str]:
    """
    Start a cluster, and stop it in the end; yield the path of its kubeconfig.

    The options of the script are in ``env``. If there is no script, the test is skipped.
    """
    script = ROOT / os.environ.get('KOPF_CLUSTER', '../shared/cluster/cluster')
    if not script.exists():
        pytest.skip(f"There is no cluster of that kind, and none to start: no {script}.")
    try:
        subprocess.run(
            [script, 'start', folder, str(find_free_ports(3))], env={**os.environ, **env},
            stdin=subprocess.DEVNULL, check=True, timeout=120)
        yield str(folder / 'kubeconfig')
    finally:
        subprocess.run([script, 'stop', folder], stdin=subprocess.DEVNULL, check=True, timeout=60)
