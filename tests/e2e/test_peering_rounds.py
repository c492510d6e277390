"""
Three operators in one peering go through rounds of what happens to processes and networks, while
objects are changed all the time: who handles what is written down and counted.

``$KOPF_PEERING_ROUNDS`` is how many rounds there are; in 20 of them everything happens several
times. The counts are printed at the end: ``pytest -s``.
"""
import asyncio
import collections
import contextlib
import dataclasses
import os
import random
import signal
import time

import pytest

from tests.e2e.proxy import Proxy
from tests.e2e.rounds import HANDLERS, CallLog, Load, find_repeats
from tests.e2e.test_peering import NARROW, name, peering  # noqa: F401

ROUNDS = int(os.environ.get('KOPF_PEERING_ROUNDS', '7'))
LIFETIME = 2
"""That of the records in the peering, in seconds; if not said otherwise."""
DURATION = 0.03
"""How long a handler works, in seconds; if not said otherwise."""

TEXT = f'''{HANDLERS}
@kopf.on.startup()
def configure_peering(settings, **_):
    settings.peering.lifetime = int(os.environ['LIFETIME'])
'''

FAULTS = ['exit', 'kill', 'freeze', 'partition', 'half-open', 'higher', 'equal']
CALM = frozenset({'exit', 'higher', 'equal'})


@dataclasses.dataclass
class Round:
    """What has come of a fault; times in seconds."""
    fault: str
    gap: float
    stalls: float
    """How much of the gap the API answered nobody: no operator can be faster."""
    overlaps: int
    """How many calls of one operator began while one of another operator ran."""
    overlap: float
    repeats: int
    """How many calls were about what was handled completely by another call."""


class Team:
    """The operators, each behind a proxy of its own."""

    def __init__(
            self, operator, cluster, kind, peering, tmp_path,  # noqa: F811
            duration=DURATION, lifetime=LIFETIME):
        self.priorities = {'low': 1, 'middle': 2, 'high': 3}
        self.operators = {}
        self.proxies = {}
        self._start = operator
        self._cluster = cluster
        self._kind = kind
        self._peering = peering
        self._folder = tmp_path
        self._duration = duration
        self._lifetime = lifetime
        self._stack = contextlib.ExitStack()
        self.journal = CallLog(tmp_path / 'journal')

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for op in self.operators.values():
            op.send(signal.SIGCONT)
            op.kill()
        self._stack.close()

    def start(self, who):
        if who not in self.proxies:
            self.proxies[who] = self._stack.enter_context(Proxy(self._cluster))
        kubeconfig = self.proxies[who].write_kubeconfig(self._folder / f'{who}.config')
        self.operators[who] = self._start(
            TEXT, '--priority', str(self.priorities[who]), kind=self._kind, kubeconfig=kubeconfig,
            scope=('--namespace', 'default', '--peering', self._peering, '--verbose'),
            env={'POD_ID': who, 'JOURNAL': str(self.journal.path),
                 'DURATION': str(self._duration), 'LIFETIME': str(self._lifetime)})

    async def wait_working(self, who, *, since, timeout=20):
        """Wait for the first call that the operator has begun after that; return when it was."""
        call = await self.journal.wait_call(
            lambda other: other == who, since=since, timeout=timeout)
        return call.begin


async def pass_round(team, fault):
    """
    Let it happen to the working operator; return when it began, when the next operator worked, and
    when the former one was back. How long Python takes to start does not count.
    """
    begun = time.time()
    match fault:
        case 'exit':
            team.operators['high'].send(signal.SIGTERM)
            await team.operators['high'].wait()
        case 'kill':
            team.operators['high'].kill()
        case 'freeze':
            team.operators['high'].send(signal.SIGSTOP)
        case 'partition':
            outage = team.proxies['high'].refuse()
            team.proxies['high'].cut_streams()
        case 'half-open':
            outage = team.proxies['high'].hang(times=None)
            team.proxies['high'].stall_streams()
        case 'higher':
            team.priorities['higher'] = 4
            team.start('higher')
            await team.operators['higher'].wait_for('Starting Kopf')
            begun = time.time()
        case 'equal':
            team.priorities['equal'] = 3
            team.start('equal')
            await team.operators['equal'].wait_for('same priority')
            await team.operators['high'].wait_for('same priority')
            frozen = time.time()
            await asyncio.sleep(1.0)
            assert not [call for call in team.journal.read() if call.begin > frozen + 0.2]
            begun = time.time()
            team.operators['equal'].send(signal.SIGTERM)
            await team.operators['equal'].wait()
    heir = {'higher': 'higher', 'equal': 'high'}.get(fault, 'middle')
    taken = await team.wait_working(heir, since=begun)
    await asyncio.sleep(random.uniform(0.5, LIFETIME))
    match fault:
        case 'exit' | 'kill':
            team.start('high')
        case 'freeze':
            team.operators['high'].send(signal.SIGCONT)
        case 'partition' | 'half-open':
            outage.end()
        case 'higher':
            team.operators['higher'].send(signal.SIGTERM)
            await team.operators['higher'].wait()
    back = time.time()
    if fault != 'equal':
        await team.wait_working('high', since=back)
    await asyncio.sleep(0.5)
    return begun, taken, back


def count(calls, load, fault, begun, taken, back):
    """
    What the calls tell of a round that began, and was over, at these times.

    The calls of a frozen process that were under way are not counted as overlaps with all others.
    """
    recent = sorted((call for call in calls if call.begin >= begun - 1 and call.end is not None),
                    key=lambda call: call.begin)
    repeated = find_repeats(recent)  # those of the round before are its own
    clashes = [
        min(a.end, b.end) - b.begin
        for i, a in enumerate(recent)
        for b in recent[i + 1:]
        if a.who != b.who and begun <= b.begin < a.end and (
            a.begin > begun or fault != 'freeze')]
    return Round(fault=fault, gap=taken - begun,
                 stalls=load.measure_stalls(begun, taken),
                 overlaps=len(clashes), overlap=sum(clashes),
                 repeats=sum(call.begin >= begun for call in repeated))


@pytest.mark.timeout(60 + 20 * ROUNDS)
async def test_nothing_is_lost_and_nothing_is_handled_twice_in_calm(
        kube, kind, cluster, operator, peering, tmp_path):  # noqa: F811
    random.seed(int(os.environ.get('KOPF_PEERING_SEED', '0')))
    faults = (FAULTS * ROUNDS)[:ROUNDS]
    rounds = []
    load = Load(kube, kind)
    with Team(operator, cluster, kind, peering, tmp_path) as team:
        for who in ['low', 'middle', 'high']:
            team.start(who)
        await load.create()
        async with load.running():
            await team.wait_working('high', since=0)
            await asyncio.sleep(1)
            for fault in faults:
                times = await pass_round(team, fault)
                rounds.append(count(team.journal.read(), load, fault, *times))
                print(rounds[-1])

        lost = await team.journal.find_lost(load.newest, timeout=15)
        total = collections.Counter((call.name, call.n) for call in team.journal.read())
        print(f"{len(total)} states handled, {sum(n - 1 for n in total.values())} of them again; "
              f"{len(lost)} lost.")
        assert not lost
        assert all(item.repeats == item.overlaps == 0 for item in rounds if item.fault in CALM)
        assert all(item.gap - item.stalls < 2 * LIFETIME + 1.5 for item in rounds)


@pytest.mark.parametrize('seed', range(3))
async def test_who_comes_back_waits_for_the_handlers_of_the_others(
        kube, kind, cluster, operator, peering, tmp_path, seed):  # noqa: F811
    random.seed(seed)
    load = Load(kube, kind)
    # It waits for its lifetime at most, and the API server can be slow for seconds.
    with Team(operator, cluster, kind, peering, tmp_path, duration=3.0, lifetime=10) as team:
        for who in ['middle', 'high']:
            team.start(who)
        await load.create()
        async with load.running():
            await team.wait_working('high', since=0)
            await asyncio.sleep(2)
            _, taken, back = await pass_round(team, 'partition')
            await asyncio.sleep(3.5)
        # Who is cut off cannot stop what runs already: that is no matter of coming back.
        calls = team.journal.read()
        result = count(calls, load, 'partition', back, taken, back)
    assert result.overlaps == result.repeats == 0, f"Back at {back}: {calls}"
