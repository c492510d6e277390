"""
Everything in use: handlers of changes, events, and deletions, daemons, timers, an index, and
owned resources. The journal says what the handlers have seen: ``C`` for changes, ``E`` for events.
"""

import asyncio
import os
import sys
import time
from typing import Any

import prometheus_client

import kopf

KIND = (os.environ['BENCH_GROUP'], 'v1', os.environ['BENCH_PLURAL'])
JOURNAL = open(os.environ['BENCH_JOURNAL'], 'a', buffering=1, encoding='utf-8')  # noqa: SIM115
TASKS = prometheus_client.Gauge('endurance_tasks', "The tasks of the event loop")
BLOCKS = prometheus_client.Gauge('endurance_blocks', "The allocated blocks of memory")
SCHEDULED = prometheus_client.Gauge('endurance_scheduled', "The timers of the event loop")

_shown: dict[str, int] = {}


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.loggers = False
    loop: Any = asyncio.get_running_loop()
    TASKS.set_function(lambda: len(asyncio.all_tasks(loop)))
    BLOCKS.set_function(sys.getallocatedblocks)
    SCHEDULED.set_function(
        lambda: sum(not handle.cancelled() for handle in loop._scheduled))


@kopf.on.create(*KIND)
@kopf.on.update(*KIND, field='spec')
async def change(name: str, spec: kopf.Spec, **_: Any) -> str:
    JOURNAL.write(f'C {name} {spec["n"]} {time.time() - spec["at"]:.4f}\n')
    return f'n={spec["n"]}'


@kopf.on.event(*KIND)
async def event(name: str, type: str, spec: kopf.Spec, **_: Any) -> None:
    if type == 'DELETED':
        _shown.pop(name, None)
    elif _shown.get(name) != spec['n']:
        _shown[name] = spec['n']
        JOURNAL.write(f'E {name} {spec["n"]} 0\n')


@kopf.on.delete(*KIND)
async def release(**_: Any) -> None:
    pass


@kopf.daemon(*KIND, cancellation_timeout=5)
async def accompany(stopped: kopf.DaemonStopped, **_: Any) -> None:
    while not stopped:
        await stopped.wait(20)


@kopf.timer(*KIND, interval=30, initial_delay=15)
async def tick(patch: kopf.Patch, status: kopf.Status, **_: Any) -> None:
    patch.status['ticks'] = status.get('ticks', 0) + 1


@kopf.index(*KIND)
async def groups(name: str, spec: kopf.Spec, **_: Any) -> dict[int, str]:
    return {spec['n'] % 10: name}


@kopf.reconcile(*KIND, owns=['configmaps'])
async def pages(name: str, spec: kopf.Spec, **_: Any) -> list[dict[str, Any]]:
    return [
        {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-{i}'},
         'data': {'pages': str(spec['pages'])}}
        for i in range(spec['pages'])]
