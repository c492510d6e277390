"""
Handlers of many objects: as ``BENCH_HANDLERS`` says, for all kinds of ``BENCH_PLURALS``.

The journal has a line for each handled change (``C`` and the seconds since the change), and for
each time that the event loop was late (``S`` and the seconds).
"""

import asyncio
import os
import time
from typing import Any

import common
import kopf
import settings  # noqa: F401

HANDLERS = os.environ['BENCH_HANDLERS']
JOURNAL = open(os.environ['BENCH_JOURNAL'], 'a', buffering=1, encoding='utf-8')  # noqa: SIM115
PRECISION = 0.005


@kopf.on.startup()
async def watch_loop(**_: Any) -> None:
    if HANDLERS == 'churn':
        asyncio.create_task(note_stalls())  # noqa: RUF006


async def note_stalls() -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PRECISION
        await asyncio.sleep(PRECISION)
        if loop.time() > due + PRECISION:
            JOURNAL.write(f'S {loop.time() - due:.4f}\n')


async def change(
        name: str, namespace: str, resource: kopf.Resource, spec: kopf.Spec, **_: Any) -> None:
    if 'at' in spec:
        JOURNAL.write(f'C {time.time() - spec["at"]:.4f}\n')
    else:
        common.record(f'{resource.plural}/{namespace}/{name}')


async def tick(**_: Any) -> None:
    pass


async def index(name: str, spec: kopf.Spec, **_: Any) -> dict[str, str]:
    return {name: spec['counter']}


async def accompany(stopped: kopf.DaemonStopped, **_: Any) -> None:
    await stopped.wait()


for plural in os.environ['BENCH_PLURALS'].split(','):
    kind = (common.GROUP, common.VERSION, plural)
    kopf.on.create(*kind)(change)
    kopf.on.update(*kind, field='spec')(change)
    match HANDLERS:
        case 'timers':
            kopf.timer(*kind, interval=60)(tick)
        case 'index':
            kopf.index(*kind)(index)
        case 'daemons':
            kopf.daemon(*kind)(accompany)
