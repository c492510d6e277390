"""
The fixtures of the end-to-end tests: a cluster, kinds of objects of the test's own, and operators.

The cluster is that of ``$KOPF_E2E_KUBECONFIG``; if not given, one is started by the script at
``$KOPF_CLUSTER`` (by default ``../shared/cluster/cluster``, from the root of the project), and
stopped at the end. Where there is none, the tests are skipped.
"""

import os
import pathlib
import random
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from tests.e2e.kubes import Kind, Kube
from tests.e2e.operators import EmbeddedOperator, Operator

ROOT = pathlib.Path(__file__).parents[2]
HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker('e2e')
            item.add_marker(pytest.mark.timeout(120))


@pytest.fixture(scope='session')
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of the kubeconfig of a real Kubernetes API."""
    given = os.environ.get('KOPF_E2E_KUBECONFIG')
    if given:
        yield given
        return

    script = ROOT / os.environ.get('KOPF_CLUSTER', '../shared/cluster/cluster')
    if not script.exists():
        pytest.skip(f"There is neither $KOPF_E2E_KUBECONFIG nor a cluster to start: no {script}.")
    folder = tmp_path_factory.mktemp('cluster')
    try:
        subprocess.run(
            [script, 'start', folder, str(find_free_ports(3))],
            stdin=subprocess.DEVNULL, check=True, timeout=120)
        yield str(folder / 'kubeconfig')
    finally:
        subprocess.run([script, 'stop', folder], stdin=subprocess.DEVNULL, check=True, timeout=60)


def find_free_ports(count: int) -> int:
    """Find so many free ports in a row; returns the first one."""
    while True:
        port = random.randrange(20000, 30000)
        try:
            for offset in range(count):
                with socket.socket() as sock:
                    sock.bind(('127.0.0.1', port + offset))
        except OSError:
            continue
        return port


@pytest.fixture()
async def kube(cluster: str) -> AsyncIterator[Kube]:
    """A plain client of the API, independent of the framework, with all the rights."""
    async with Kube(cluster) as kube:
        yield kube


@pytest.fixture()
async def make_kind(kube: Kube) -> AsyncIterator[Callable[..., Awaitable[Kind]]]:
    """Make kinds of objects that nobody else uses; they are gone after the test."""
    kinds: list[Kind] = []

    async def make(
            *,
            namespaced: bool = True,
            status: bool = False,
            schema: dict[str, object] | None = None,
    ) -> Kind:
        kind = Kind.make_unique(namespaced=namespaced)
        kinds.append(kind)
        await kube.create_kind(kind, status=status, schema=schema)
        return kind

    yield make
    for kind in kinds:
        await kube.delete_kind(kind)


@pytest.fixture()
async def kind(make_kind: Callable[..., Awaitable[Kind]]) -> Kind:
    """A kind of namespaced objects with any content, whose status is no subresource."""
    return await make_kind()


@pytest.fixture()
def operator(cluster: str, tmp_path: pathlib.Path) -> Iterator[Callable[..., Operator]]:
    """
    Start ``kopf run`` with the given text of the handlers' file, and the options; see `Operator`.

    The text has ``kopf`` imported, and ``KIND`` is what to give to decorators:
    ``@kopf.on.create(*KIND)``. It can be called several times, also with the same text. All are
    stopped after the test.
    """
    started: list[Operator] = []

    def start(
            text: str,
            *options: str,
            kind: Kind | None = None,
            env: dict[str, str] | None = None,
            scope: tuple[str, ...] = ('--all-namespaces', '--standalone', '--verbose'),
    ) -> Operator:
        path = tmp_path / f'handlers{len(started)}.py'
        path.write_text(f'import kopf\nKIND = {kind.selector if kind else None!r}\n{text}')
        instance = Operator([*scope, *options, str(path)], kubeconfig=cluster, env=env)
        started.append(instance)
        return instance

    yield start
    for instance in started:
        instance.stop()
        print(instance.text)


@pytest.fixture()
def embedded(
        cluster: str,
        monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., EmbeddedOperator]]:
    """
    Run an operator in a thread of this process: ``embedded(registry=..., settings=...)``.

    It is ready when this returns. It is stopped after the test, and its error is raised, if any.
    """
    monkeypatch.setenv('KUBECONFIG', cluster)
    started: list[EmbeddedOperator] = []

    def start(**kwargs: object) -> EmbeddedOperator:
        instance = EmbeddedOperator(**kwargs)
        started.append(instance)
        instance.wait_ready()
        return instance

    yield start
    for instance in started:
        instance.stop()
