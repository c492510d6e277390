"""
The fixtures of the end-to-end tests: a cluster, kinds of objects of the test's own, and operators.

The cluster is that of ``$KOPF_E2E_KUBECONFIG``; if not given, one is started by the script at
``$KOPF_CLUSTER`` (by default ``../shared/cluster/cluster``, from the root of the project), and
stopped at the end. Where there is none, the tests are skipped.
"""

import asyncio
import fcntl
import os
import pathlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import kopf
from tests.e2e.clusters import run_cluster
from tests.e2e.journals import Journal
from tests.e2e.judges import Judge
from tests.e2e.kubes import Kind, Kube
from tests.e2e.operators import EmbeddedOperator, Operator
from tests.e2e.replicas import Replicas, delete_lease

POOL_SIZE = 3
"""How many kinds of each sort the tests can borrow at once."""


FORGOTTEN = r'ignore:unclosed (transport|<s(sl|ocket)\.):ResourceWarning'
"""Connections that are cancelled while they are made are sometimes forgotten by asyncio."""


LONGEST = (
    'test_killing', 'test_planning', 'test_peering', 'test_leadership', 'test_takeover',
    'test_examples', 'test_consistency', 'test_sharding', 'test_large_objects',
    'test_peering_rounds', 'test_leaving', 'test_certificates', 'test_storages', 'test_versions',
    'test_watching', 'test_reconciling', 'test_manifests', 'test_compatibility',
    'test_leadership_rounds', 'test_migrating', 'test_authentication', 'test_resources',
    'test_shadowing', 'test_background', 'test_leadership_clientgo', 'test_causes',
    'test_embedding', 'test_storm')
"""
The files that last longest. They begin first, so that no process is left alone with one of them.

It needs ``--no-loadscope-reorder``: by itself, xdist begins with the files that have most tests.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    for item in items:
        if item.nodeid.startswith('tests/e2e/'):
            item.add_marker('e2e')
            item.add_marker(pytest.mark.filterwarnings(FORGOTTEN))


@pytest.fixture(scope='session')
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of the kubeconfig of a real Kubernetes API."""
    given = os.environ.get('KOPF_E2E_KUBECONFIG')
    if given:
        yield given
        return

    with run_cluster(tmp_path_factory.mktemp('cluster')) as kubeconfig:
        yield kubeconfig


@pytest.fixture()
async def kube(cluster: str) -> AsyncIterator[Kube]:
    """A plain client of the API, independent of the framework, with all the rights."""
    async with Kube(cluster) as kube:
        yield kube


@pytest.fixture()
async def make_kind(kube: Kube) -> AsyncIterator[Callable[..., Awaitable[Kind]]]:
    """
    Make kinds of objects that nobody else uses; they are gone after the test.

    The options are those of `Kube.create_kind`. If the kind is not given, it is a unique one.
    """
    kinds: list[Kind] = []

    async def make(
            kind: Kind | None = None, *, namespaced: bool = True, **options: object,
    ) -> Kind:
        kind = kind if kind is not None else Kind.make_unique(namespaced=namespaced)
        kinds.append(kind)
        await kube.create_kind(kind, **options)
        return kind

    yield make
    for kind in kinds:
        await kube.delete_kind(kind)


@pytest.fixture()
async def minor(kube: Kube) -> int:
    """The minor version of Kubernetes."""
    version = await kube.request('GET', '/version')
    return int(version['minor'].rstrip('+'))


@pytest.fixture()
async def is_sandbox(kube: Kube) -> bool:
    version = await kube.request('GET', '/version')
    return 'sandbox' in version['gitVersion']


@pytest.fixture()
async def judge(kube: Kube, make_kind: Callable[..., Awaitable[Kind]]) -> Judge:
    """A kind whose schema the test can change."""
    return Judge(kube, await make_kind())


@pytest.fixture(scope='session')
def pool(cluster: str) -> Iterator[dict[bool, list[Kind]]]:
    """
    Kinds to be used by one test after another, by whether their status is a subresource.

    The API lets nobody create objects in the first 2 seconds of a kind, so they are made once.
    """
    kinds = {
        status: [Kind.make_unique() for _ in range(POOL_SIZE)] for status in (False, True)}

    async def make() -> None:
        async with Kube(cluster) as kube:
            await asyncio.gather(*(
                kube.create_kind(kind, status=status)
                for status, members in kinds.items() for kind in members))
            await asyncio.gather(*(
                kube.create(kind, 'first') for members in kinds.values() for kind in members))
            await asyncio.gather(*(
                kube.delete(kind, 'first') for members in kinds.values() for kind in members))

    async def unmake() -> None:
        async with Kube(cluster) as kube:
            for kind in everything:
                await kube.delete_kind(kind)

    everything = [kind for members in kinds.values() for kind in members]
    asyncio.run(make())
    yield kinds
    asyncio.run(unmake())


@pytest.fixture()
async def borrow(kube: Kube, pool: dict[bool, list[Kind]]) -> AsyncIterator[Callable[..., Kind]]:
    """
    Borrow kinds of namespaced objects with any content: ``borrow(status=True)`` if their status is
    to be a subresource. They have no objects before the test, and none are left after it.
    """
    borrowed: list[tuple[bool, Kind]] = []

    def take(*, status: bool = False) -> Kind:
        borrowed.append((status, pool[status].pop()))
        return borrowed[-1][1]

    yield take
    for status, kind in borrowed:
        await kube.clear_kind(kind)
        pool[status].append(kind)


@pytest.fixture()
def kind(borrow: Callable[..., Kind]) -> Kind:
    """A kind of namespaced objects with any content, whose status is no subresource."""
    return borrow()


@pytest.fixture()
def status_kind(borrow: Callable[..., Kind]) -> Kind:
    """A kind of namespaced objects with any content, whose status is a subresource."""
    return borrow(status=True)


@pytest.fixture(scope='module')
def examples_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """
    Let one file at once handle the objects of the examples: some do it in all namespaces.
    """
    with open(tmp_path_factory.getbasetemp().parent / 'examples.lock', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture()
async def lease(kube: Kube) -> AsyncIterator[str]:
    """The name of a Lease of the test's own."""
    name = f'lease-{uuid.uuid4().hex[:8]}'
    yield name
    await delete_lease(kube, name)


@pytest.fixture()
def replicas(
        operator: Callable[..., Operator], cluster: str, kind: Kind, tmp_path: pathlib.Path,
        lease: str,
) -> Iterator[Replicas]:
    with Replicas(operator, cluster, kind, tmp_path, lease) as replicas:
        yield replicas


@pytest.fixture()
def journal() -> Journal:
    """For the handlers to write down what they see."""
    return Journal()


@pytest.fixture()
def registry() -> Iterator[kopf.OperatorRegistry]:
    """The default registry of the test: where decorators put handlers, and `embedded` has them."""
    previous = kopf.get_default_registry()
    registry = kopf.OperatorRegistry()
    kopf.set_default_registry(registry)
    yield registry
    kopf.set_default_registry(previous)


@pytest.fixture()
def settings() -> kopf.OperatorSettings:
    """The settings of `embedded` operators: as by default, but they post no events."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    return settings


PRINT = '''
import sys; print = lambda *args, **_: sys.stdout.write(' '.join(map(str, args)) + chr(10))
'''.strip()
"""The built-in function writes the line and its end separately: lines of two threads get mixed."""


@pytest.fixture()
def operator(
        cluster: str,
        tmp_path: pathlib.Path,
        borrow: Callable[..., Kind],  # to be given back only when the operators are stopped
) -> Iterator[Callable[..., Operator]]:
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
            kubeconfig: str | None = None,
            **kwargs: Any,
    ) -> Operator:
        path = tmp_path / f'handlers{len(started)}.py'
        path.write_text(
            f'import kopf; {PRINT}\nKIND = {kind.selector if kind else None!r}\n{text}')
        instance = Operator(
            [*scope, *options, str(path)], kubeconfig=kubeconfig or cluster, env=env, **kwargs)
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
        registry: kopf.OperatorRegistry,
        settings: kopf.OperatorSettings,
        borrow: Callable[..., Kind],  # to be given back only when the operators are stopped
) -> Iterator[Callable[..., EmbeddedOperator]]:
    """
    Run an operator in a thread of this process: ``embedded()``, with arguments of `kopf.operator`.

    By default, it has the handlers that are declared in the test, and the ``settings`` of the test.
    It is ready when this returns. It is stopped after the test, and its error is raised, if any.
    """
    monkeypatch.setenv('KUBECONFIG', cluster)
    started: list[EmbeddedOperator] = []

    def start(**kwargs: object) -> EmbeddedOperator:
        kwargs = {'registry': registry, 'settings': settings, **kwargs}
        instance = EmbeddedOperator(**kwargs)
        started.append(instance)
        instance.wait_ready()
        return instance

    yield start
    for instance in started:
        instance.stop()
