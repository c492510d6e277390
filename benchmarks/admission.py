"""
The cost of webhooks: of the operator's time for a review, and of the user's for a change.
"""

import asyncio
import contextlib
import functools
import pathlib
import statistics
import tempfile
import time

import kopf
from benchmarks import rows
from benchmarks.drivers import Driver, flood, make_spec
from tests.e2e.kubes import Kind, Kube, KubeError, Object
from tests.e2e.ports import find_free_ports

CONFIGURATIONS = [
    Kind('admissionregistration.k8s.io', 'v1', plural, '', namespaced=False)
    for plural in ('validatingwebhookconfigurations', 'mutatingwebhookconfigurations')]

REVIEWS = 2
"""How many reviews there are per object: to mutate it, and to validate it."""


async def measure_admission(bench: 'rows.Bench') -> 'rows.Figures':
    """Objects are created: many at once for the costs, then one after another for the latency."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind)
    await wait_creation(bench.kube, kind)
    spec = make_spec(1000)
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = write_certificate(folder)
        with bench.start('admission', kind, BENCH_CERT=certificate, BENCH_KEY=key,
                         BENCH_PORT=str(find_free_ports(1))) as process:
            startup = await wait_creation(bench.kube, kind, mutated=True) - process.started
            async with Driver(bench.kube, kind) as driver:
                names = [f'warm{i}' for i in range(bench.scale.warmup)]
                await flood(functools.partial(driver.create, name, spec) for name in names)
                await process.wait_quiet(bench.scale.settle / 2)
                idle = await process.measure_idle(bench.scale.settle)

                cpu, started = process.get_cpu(), time.monotonic()
                names = [f'object{i}' for i in range(bench.scale.objects)]
                await flood(functools.partial(driver.create, name, spec) for name in names)
                cpu = process.get_cpu() - cpu - idle * (time.monotonic() - started)

                latencies = []
                for i in range(bench.scale.objects):
                    started = time.perf_counter()
                    await driver.create(f'paced{i}', spec)
                    latencies.append(time.perf_counter() - started)
            process.finish()
    await bench.kube.delete_kind(kind)
    for configuration in CONFIGURATIONS:
        await bench.kube.delete(configuration, f'auto.{kind.group}')
    quantiles = statistics.quantiles(latencies, n=100)
    return {
        rows.CPU: cpu / len(names) * 1000,
        'reviews per CPU second': len(names) * REVIEWS / cpu,
        'latency p50, ms': quantiles[49] * 1000,
        'latency p99, ms': quantiles[98] * 1000,
        rows.STARTUP: startup,
    }


async def wait_creation(
        kube: Kube, kind: Kind, *, mutated: bool = False, timeout: float = 30,
) -> float:
    """Wait until objects can be created (and are mutated by that); return when it was."""
    body: Object = {'apiVersion': kind.api_version, 'kind': kind.kind,
                    'metadata': {'name': 'probe'}, 'spec': {}}
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(KubeError):
            obj = await kube.request(
                'POST', kind.get_path(namespace='default'), body=body, params={'dryRun': 'All'})
            if 'mutated' in obj['spec'] or not mutated:
                return time.time()
        await asyncio.sleep(0.01)
    raise TimeoutError("The objects cannot be created as they should be.")


def write_certificate(folder: str) -> tuple[str, str]:
    """Write a self-signed certificate, and its key; return the paths."""
    paths = f'{folder}/cert.pem', f'{folder}/key.pem'
    pair = kopf.WebhookServer.build_certificate(['127.0.0.1'])
    for path, content in zip(paths, pair, strict=True):
        pathlib.Path(path).write_bytes(content)
    return paths
