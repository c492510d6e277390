"""
Gates: the limits hold in any window of time, the most urgent come first, and nothing is hot.
"""
import asyncio
import random

import pytest

import kopf
from kopf._kits.external.gates import TRAVEL, Caller, Gate, Rate, Urgency
from kopf._kits.testing import virtual
from kopf.testing import virtual_time


def make_gate(rate, share=1.0):
    return Gate('x', rate, get_share=lambda: share, time=asyncio.get_running_loop().time)


async def call(gate, urgency=Urgency.ROUTINE, *, calls, arrives=0.0, lasts=0.0, fails=False,
               is_safe=True, caller=None):
    """Call as soon as it is allowed; return how many times it was asked for."""
    woken, asked = asyncio.Event(), 0
    caller = Caller(woken.set) if caller is None else caller
    caller.wake = woken.set
    while not gate.enter(caller, urgency, is_safe=is_safe):
        asked += 1
        await woken.wait()
        woken.clear()
    gate.begin(caller)
    await asyncio.sleep(arrives)
    calls.append((asyncio.get_running_loop().time(), urgency))
    await asyncio.sleep(lasts)
    gate.leave(caller, has_failed=fails)
    return asked


@pytest.mark.parametrize('seed', range(20))
def test_no_window_has_more_calls_than_the_limit(seed):
    rng = random.Random(seed)
    rate = Rate(rng.randrange(1, 20), per=rng.choice([0.5, 1.0, 3.0]),
                concurrency=rng.choice([None, 1, 3]))

    async def run():
        gate, calls = make_gate(rate), []

        async def arrive():
            await asyncio.sleep(rng.uniform(0, 5))
            return await call(
                gate, rng.choice(list(Urgency)), calls=calls,
                arrives=rng.choice([0, 0.01, rng.uniform(0, TRAVEL - 0.01)]),
                lasts=rng.choice([0, 0.1, 2]))

        asked = await asyncio.gather(*(arrive() for _ in range(100)))
        times = sorted(time for time, _ in calls)
        for time in times:
            assert sum(time <= other < time + rate.per - 1e-9 for other in times) <= rate.count
        assert sum(asked) < 300
        assert len(gate) == 0
    virtual.run(run())


@virtual_time
async def test_who_is_let_in_and_begins_late_counts_from_then():
    gate, calls, late = make_gate(Rate(1)), [], Caller(lambda: None)
    assert gate.enter(late, Urgency.CHANGE, is_safe=True)
    other = asyncio.create_task(call(gate, calls=calls))
    await asyncio.sleep(10)
    assert not calls
    gate.begin(late)
    gate.leave(late, has_failed=False)
    await other
    assert calls == [(11.0, Urgency.ROUTINE)]


@virtual_time
@pytest.mark.parametrize('lasts, following', [(0.1, 1.1), (0.4, 1.4), (5.0, 1.5)])
async def test_a_call_counts_at_its_end_or_when_it_must_have_reached_the_system(lasts, following):
    gate, calls = make_gate(Rate(1)), []
    await asyncio.gather(call(gate, calls=calls, lasts=lasts), call(gate, calls=calls))
    assert [time for time, _ in calls] == [0.0, pytest.approx(following)]


@virtual_time
async def test_the_latest_calls_are_not_kept_if_there_is_no_limit():
    gate, calls = make_gate(None), []
    for _ in range(10):
        await call(gate, calls=calls)
    assert not gate._counted


@virtual_time
async def test_who_is_let_in_and_does_not_call_makes_room():
    gate, calls, late = make_gate(Rate(1)), [], Caller(lambda: None)
    assert gate.enter(late, Urgency.CHANGE, is_safe=True)
    other = asyncio.create_task(call(gate, calls=calls))
    await asyncio.sleep(10)
    gate.leave(late, has_failed=None)
    await other
    assert calls == [(10.0, Urgency.ROUTINE)]


@virtual_time
async def test_the_most_urgent_comes_first():
    gate, calls = make_gate(Rate(1)), []
    await call(gate, calls=calls)
    await asyncio.gather(*(
        call(gate, urgency, calls=calls)
        for urgency in (Urgency.ROUTINE, Urgency.QUESTION, Urgency.ROUTINE, Urgency.CHANGE)))
    assert [urgency for _, urgency in calls[1:]] == [
        Urgency.CHANGE, Urgency.QUESTION, Urgency.ROUTINE, Urgency.ROUTINE]


@virtual_time
async def test_after_failures_in_a_row_there_are_only_probes_until_one_succeeds():
    gate, calls = make_gate(Rate(100)), []
    for _ in range(5):
        await call(gate, calls=calls, fails=True)
    assert gate.is_broken
    calls.clear()
    others = [asyncio.create_task(call(gate, calls=calls, fails=True)) for _ in range(10)]
    await asyncio.sleep(200)
    assert [round(time) for time, _ in calls] == [5, 15, 35, 65, 95, 125, 155, 185]
    await asyncio.gather(*others)
    await call(gate, calls=calls)
    assert not gate.is_broken


@virtual_time
async def test_calls_that_were_not_sent_say_nothing_of_the_system():
    gate, calls = make_gate(None), []
    for _ in range(10):
        await call(gate, calls=calls, fails=None)
    assert not gate.is_broken
    for _ in range(5):
        await call(gate, calls=calls, fails=True)
    calls.clear()
    for _ in range(3):
        await call(gate, calls=calls, fails=None)
    assert gate.is_broken
    assert [round(time) for time, _ in calls] == [5, 10, 15]


@virtual_time
async def test_probes_are_calls_that_can_be_repeated():
    gate, calls = make_gate(None), []
    for _ in range(5):
        await call(gate, calls=calls, fails=True)
    calls.clear()
    creation = asyncio.create_task(call(gate, Urgency.CHANGE, calls=calls, is_safe=False))
    await asyncio.sleep(1)
    observation = asyncio.create_task(call(gate, Urgency.ROUTINE, calls=calls))
    await asyncio.gather(creation, observation)
    assert [urgency for _, urgency in calls] == [Urgency.ROUTINE, Urgency.CHANGE]


@virtual_time
async def test_probes_are_first_reads_and_calls_of_those_who_have_not_failed():
    gate, calls, bad = make_gate(None), [], [Caller(lambda: None) for _ in range(5)]
    for caller in bad:
        await call(gate, calls=calls, fails=True, caller=caller)
    calls.clear()
    waiting = [asyncio.create_task(call(
        gate, Urgency.ROUTINE, calls=calls, fails=True, caller=caller)) for caller in bad]
    await asyncio.sleep(1)
    waiting += [asyncio.create_task(call(gate, urgency, calls=calls, fails=True))
                for urgency in (Urgency.CHANGE, Urgency.ROUTINE, Urgency.QUESTION)]
    await asyncio.sleep(100)
    assert [urgency for _, urgency in calls[:4]] == [
        Urgency.ROUTINE, Urgency.QUESTION, Urgency.CHANGE, Urgency.ROUTINE]
    await asyncio.gather(*waiting)


@virtual_time
async def test_those_who_fail_while_others_succeed_are_no_failure_of_the_system():
    gate, calls, bad = make_gate(None), [], [Caller(lambda: None) for _ in range(5)]
    for caller in bad:
        await call(gate, calls=calls, fails=True, caller=caller)
    assert gate.is_broken
    await call(gate, calls=calls)
    for _ in range(10):
        for caller in bad:
            await call(gate, calls=calls, fails=True, caller=caller)
        assert not gate.is_broken
        await call(gate, calls=calls)
    for _ in range(2):  # now, nobody succeeds
        for caller in bad:
            await call(gate, calls=calls, fails=True, caller=caller)
    assert gate.is_broken


@virtual_time
async def test_one_who_does_not_come_is_passed_over():
    gate, calls = make_gate(Rate(1)), []
    await call(gate, calls=calls)
    assert not gate.enter(Caller(lambda: None), Urgency.CHANGE, is_safe=True)
    await asyncio.wait_for(call(gate, calls=calls), 20)


def test_shares():
    assert Rate(10).share(1.0) == (10, 1.0)
    assert Rate(10).share(0.5) == (5, 1.0)
    count, per = Rate(10).share(1 / 16)
    assert count == 1
    assert per == pytest.approx(1.6)


@pytest.mark.parametrize('options', [
    {'count': 0}, {'count': 1, 'per': 0}, {'count': 1, 'concurrency': 0}])
def test_wrong_rates(options):
    with pytest.raises(ValueError):
        kopf.Rate(**options)


@virtual_time
async def test_gates_are_idle_when_nobody_calls_and_no_call_counts():
    gate, caller, other = make_gate(Rate(1, per=10)), Caller(lambda: None), Caller(lambda: None)
    assert gate.is_idle
    assert gate.enter(caller, Urgency.ROUTINE, is_safe=True)
    assert not gate.is_idle
    gate.begin(caller)
    assert not gate.enter(other, Urgency.ROUTINE, is_safe=True)
    gate.leave(caller, has_failed=False)
    gate.forget(other)
    assert not gate.is_idle
    await asyncio.sleep(9)
    assert not gate.is_idle
    await asyncio.sleep(1)
    assert gate.is_idle
    assert gate.enter(caller, Urgency.ROUTINE, is_safe=True)
    gate.begin(caller)
    gate.leave(caller, has_failed=True)
    await asyncio.sleep(100)
    assert not gate.is_idle  # it counts the failures in a row
    assert gate.enter(caller, Urgency.ROUTINE, is_safe=True)
    gate.leave(caller, has_failed=False, until=asyncio.get_running_loop().time() + 50)
    assert not gate.is_idle
    await asyncio.sleep(50)
    assert gate.is_idle


@pytest.mark.parametrize('options', [
    {'count': 0}, {'count': float('nan')}, {'count': float('inf')}, {'count': 1, 'per': 0},
    {'count': 1, 'per': float('nan')}, {'count': 1, 'per': float('inf')},
    {'count': 1, 'concurrency': 0}, {'count': 1, 'concurrency': float('nan')}])
def test_the_numbers_of_a_rate_are_positive_and_finite(options):
    with pytest.raises(ValueError, match='positive and finite'):
        Rate(**options)


@pytest.mark.parametrize('options', [{'count': '5'}, {'count': 5, 'per': '1'}], ids=repr)
def test_the_parts_of_a_rate_are_numbers(options):
    with pytest.raises(TypeError, match='are numbers'):
        Rate(**options)
