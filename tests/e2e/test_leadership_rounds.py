"""
Three replicas with one Lease go through rounds of what happens to processes and networks, while
objects are changed all the time: who handles and who writes what is recorded and counted.

``$KOPF_LEADERSHIP_ROUNDS`` is how many rounds there are. The counts are printed at the end:
``pytest -s``. If there is an audit log beside the kubeconfig, it is checked, too.
"""
import asyncio
import collections
import dataclasses
import os
import pathlib
import random
import signal
import time
import uuid

import pytest

from tests.e2e.replicas import (
    DURATION,
    PAUSE,
    SETTINGS,
    Replicas,
    delete_lease,
    find_intruders_in_audit,
)
from tests.e2e.rounds import HANDLERS, CallLog, Load, find_repeats

ROUNDS = int(os.environ.get('KOPF_LEADERSHIP_ROUNDS', '6'))
NAMES = ['a', 'b', 'c']

TEXT = HANDLERS + SETTINGS

FAULTS = ['exit', 'kill', 'freeze', 'partition', 'half-open', 'flapping']
LIMITS = {'exit': PAUSE}
"""The longest gaps (seconds); by default, that of an expired Lease."""

SLACK = 10.0
"""How much longer (seconds) a gap can be on a busy machine."""


@dataclasses.dataclass
class Round:
    """What has come of a fault; times in seconds."""
    fault: str
    leader: str
    heir: str
    gap: float
    repeats: int


async def pass_round(replicas, journal, fault, leader):
    """Let it happen to the leader; return who has taken over, and how long that took."""
    op, proxy = replicas.operators[leader], replicas.proxies[leader]
    begun = time.time()
    match fault:
        case 'exit':
            op.send(signal.SIGTERM)
            await op.wait()
        case 'kill':
            op.kill()
        case 'freeze':
            op.send(signal.SIGSTOP)
        case 'partition':
            outage = proxy.refuse()
            proxy.cut_streams()
        case 'half-open':
            outage = proxy.hang(times=None)
            proxy.stall_streams()
        case 'flapping':
            until = time.time() + DURATION + 1
            while time.time() < until:
                outage = proxy.refuse()
                proxy.cut_streams()
                await asyncio.sleep(random.uniform(0.2, 2.5))
                outage.end()
                await asyncio.sleep(random.uniform(0.05, 0.3))
            outage = proxy.refuse()
    since = time.time() if fault in ('exit', 'flapping') else begun
    taken = await journal.wait_call(lambda who: who != leader, since=since - 1)
    await asyncio.sleep(random.uniform(0.0, DURATION))
    match fault:
        case 'exit' | 'kill':
            await replicas.start(leader, base=TEXT).wait_for('is held by')
        case 'freeze':
            op.send(signal.SIGCONT)
        case _:
            outage.end()
    await asyncio.sleep(1)
    return begun, taken.who, taken.begin - begun


@pytest.mark.timeout(60 + 40 * ROUNDS)
async def test_only_the_holder_of_the_lease_writes_and_nothing_is_lost(
        kube, kind, cluster, operator, tmp_path, monkeypatch):
    random.seed(int(os.environ.get('KOPF_LEADERSHIP_SEED', '0')))
    monkeypatch.setenv('JOURNAL', str(tmp_path / 'journal'))
    journal, load, lease = CallLog(tmp_path / 'journal'), Load(kube, kind), uuid.uuid4().hex
    rounds = []
    with Replicas(operator, cluster, kind, tmp_path, lease) as replicas:
        await replicas.start('a', base=TEXT).wait_for('Leading')
        for who in 'bc':
            await replicas.start(who, base=TEXT).wait_for('is held by')
        await load.create()
        async with load.running():
            leader = (await journal.wait_call(lambda who: True, since=0)).who
            for fault in (FAULTS * ROUNDS)[:ROUNDS]:
                begun, heir, gap = await pass_round(replicas, journal, fault, leader)
                repeats = find_repeats(journal.read())
                rounds.append(Round(
                    fault, leader, heir, gap, sum(call.begin >= begun for call in repeats)))
                print(rounds[-1])
                leader = heir
        lost = await journal.find_lost(load.newest, timeout=20)
        intruders = replicas.find_intruders()
    await delete_lease(kube, lease)
    for fault in FAULTS:
        gaps = [item.gap for item in rounds if item.fault == fault]
        if gaps:
            print(f"{fault}: {len(gaps)} rounds, gaps {min(gaps):.1f}..{max(gaps):.1f} s, "
                  f"{sum(item.repeats for item in rounds if item.fault == fault)} repeats")
    total = collections.Counter((call.name, call.n) for call in journal.read())
    print(f"{len(total)} states handled; {len(lost)} lost; {len(intruders)} writes of others.")
    assert intruders == []
    audit = pathlib.Path(cluster).with_name('audit.log')
    if audit.exists():
        intruders, writes = find_intruders_in_audit(audit, lease=lease, plural=kind.plural)
        print(f"{writes} writes in the audit log; {len(intruders)} of others.")
        assert intruders == [] and writes > len(rounds)
    assert not lost
    assert all(item.repeats == 0 for item in rounds if item.fault == 'exit')
    assert all(item.gap < LIMITS.get(item.fault, DURATION + PAUSE) + SLACK for item in rounds
               if item.fault != 'flapping')
