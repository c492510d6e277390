"""
Run the simulation: ``python -m tests.simulation --seeds 10000``.

It is a module of its own, so that other processes can import it.
"""
import argparse
import collections
import dataclasses
import functools
import json
import multiprocessing
import os
import pathlib
import shlex
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.simulation import plans, planting, shrinking, worlds
from tests.simulation.faults import FAULTS
from tests.simulation.plans import Plan

FOUND = pathlib.Path(__file__).with_name('found.json')
"""By which seed each of the planted faults is found, and which guarantee it violates."""

USUAL = range(62)
"""The seeds that CI runs: as many as take some seconds."""


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.simulation', description=__doc__)
    parser.add_argument('--seeds', type=int, help="how many seeds to run")
    parser.add_argument('--first', type=int, default=0, help="the first of these seeds")
    parser.add_argument('--processes', type=int, default=os.cpu_count())
    parser.add_argument('--failures', type=int, default=5, help="when to stop")
    parser.add_argument('--seed', type=int, help="the only seed to run; its story is printed")
    parser.add_argument('--changes', default='{}', help="how its plan is simplified, as JSON")
    parser.add_argument('--shrink', action='store_true', help="simplify the plan of the seed")
    parser.add_argument('--stale', action='store_true',
                        help="older states are served after restarts in all plans")
    parser.add_argument('--pauses', action='store_true', help="users pause objects in all plans")
    parser.add_argument('--mixes', action='store_true',
                        help="handlers have options that are rarely used together in all plans")
    parser.add_argument('--shards', action='store_true',
                        help="several replicas share the objects in all plans")
    parser.add_argument('--faults', action='store_true', help="find the planted faults anew")
    parser.add_argument('--hours', type=int, metavar='N',
                        help="run one operator for so many hours of virtual time")
    parser.add_argument('--verbose', action='store_true', help="with the whole log")
    args = parser.parse_args()
    if args.hours is not None:
        return run_night(args.seed or 0, args.hours)
    if args.seed is not None:
        plan = plans.make(
            args.seed, is_stale=args.stale, is_paused=args.pauses, is_mixed=args.mixes,
            is_sharded=args.shards)
        return run_one(apply_changes(plan, json.loads(args.changes)),
                       is_shrinking=args.shrink, verbose=args.verbose)
    if args.faults:
        return find_faults(args.seeds or 300, args.processes)
    return run_many(
        range(args.first, args.first + (args.seeds or 100)), args.processes, args.failures,
        is_stale=args.stale, is_paused=args.pauses, is_mixed=args.mixes, is_sharded=args.shards)


def run_night(seed: int, hours: int) -> int:
    """Run one operator for many hours; print how much there is of everything after each hour."""
    report = worlds.run(plans.make_night(seed, hours))
    for number, census in enumerate(report.census, start=1):
        objects = sum(census.values()) - census['tasks'] - census['timers']
        print(f"hour {number}: {census['tasks']} tasks, {census['timers']} timers, "
              f"{objects} objects of the framework")
    print(', '.join(f"{kind}: {number}" for kind, number in sorted(report.faults.items())))
    if report.violation is not None:
        print('\n'.join(report.story[-100:]))
    print(f"{report.seconds / 3600:.1f} hours: {report.violation or 'all guarantees hold'}.")
    return int(report.violation is not None)


def run_one(plan: Plan, *, is_shrinking: bool, verbose: bool) -> int:
    report = worlds.run(plan, verbose=verbose)
    if report.violation is not None and is_shrinking:
        report = shrink(report)
    print('\n'.join(report.story))
    print(f"\nSeed {plan.seed}: {report.violation or 'all guarantees hold'}; "
          f"the story is {report.digest}.")
    if report.violation is not None:
        print(f"Run it again: {make_command(report.plan)}")
    return int(report.violation is not None)


def shrink(report: worlds.Report) -> worlds.Report:
    """Find the shortest story with the same violation."""
    assert report.violation is not None
    guarantee, best = report.violation.guarantee, report

    def fails(plan: Plan) -> bool:
        nonlocal best
        found = worlds.run(plan)
        if found.violation is None or found.violation.guarantee != guarantee:
            return False
        best = found
        return True

    shrinking.shrink(report.plan, fails)
    return best


def run_many(
        seeds: Iterable[int], processes: int, max_failures: int, **options: bool,
) -> int:
    began = time.monotonic()
    count, seconds = 0, 0.0
    faults: collections.Counter[str] = collections.Counter()
    failures = []
    for seed, failure, hits, lasted in _run_all(seeds, processes, options):
        count += 1
        seconds += lasted
        faults.update(hits)
        if failure is not None:
            failures.append(seed)
            print(f"seed {seed}: {failure}", flush=True)
            if len(failures) >= max_failures:
                break
    spent = time.monotonic() - began
    print(f"{count} seeds in {spent:.0f} s ({count / spent * 3600:,.0f} an hour), "
          f"{seconds / 3600:.1f} hours of virtual time, {len(failures)} failures.")
    print(', '.join(f"{kind}: {number}" for kind, number in sorted(faults.items())))
    for seed in failures[:1]:
        print()
        run_one(plans.make(seed, **options), is_shrinking=True, verbose=False)
    return int(bool(failures))


Result = tuple[int, str | None, dict[str, int], float]


def _run_all(
        seeds: Iterable[int], processes: int, options: dict[str, bool],
) -> Iterator[Result]:
    run = functools.partial(_run_seed, **options)
    if processes <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context('spawn').Pool(processes, maxtasksperchild=200) as pool:
        yield from pool.imap(run, seeds, chunksize=4)


def _run_seed(seed: int, **options: bool) -> Result:
    try:
        report = worlds.run(plans.make(seed, **options))
    except Exception as e:
        raise RuntimeError(f"the simulation of seed {seed} has failed: {e!r}") from e
    failure = None if report.violation is None else str(report.violation)
    return seed, failure, dict(report.faults), report.seconds


def find_faults(limit: int, processes: int) -> int:
    """
    Find each planted fault, print by what, and note the seeds for the tests.

    The known seed of a fault is tried first: most of them still find it after a change.
    """
    found: dict[str, Any] = {}
    jobs = [(number, limit) for number in range(len(FAULTS))]
    with multiprocessing.get_context('spawn').Pool(processes) as pool:
        for number, seed, guarantee in pool.imap_unordered(_find_fault, jobs):
            name = FAULTS[number].name
            if seed is None:
                print(f"{name:60} not in {limit} seeds", flush=True)
            else:
                print(f"{name:60} by seed {seed:4}: {guarantee}", flush=True)
                found[name] = {'seed': seed, 'guarantee': guarantee}
    ordered = {fault.name: found[fault.name] for fault in FAULTS if fault.name in found}
    FOUND.write_text(json.dumps(ordered, indent=2) + '\n')
    print(f"{len(found)} of {len(FAULTS)} are found.")
    return int(len(found) < len(FAULTS))


def make_plan(seed: int, fault: planting.Fault) -> Plan:
    """Make the plan of a seed in which the fault can be found."""
    return plans.make(seed, **dict.fromkeys(fault.get_options(), True))


def _find_fault(job: tuple[int, int]) -> tuple[int, int | None, str]:
    number, limit = job
    fault = FAULTS[number]
    known = json.loads(FOUND.read_text()).get(fault.name)
    for seed in (*([known['seed']] if known else ()), *range(limit)):
        plan = make_plan(seed, fault)
        with planting.planted(fault):
            violation = worlds.run(plan).violation
        if violation is not None and worlds.run(plan).violation is None:
            return number, seed, violation.guarantee
    return number, None, ''


def make_command(plan: Plan) -> str:
    changes = get_changes(plan)
    options = (" --stale" if plan.is_stale else '') + (" --pauses" if plan.is_paused else '')
    options += (" --mixes" if plan.is_mixed else '') + (" --shards" if plan.is_sharded else '')
    options += f" --changes {shlex.quote(json.dumps(changes))}" if changes else ''
    return f"python -m tests.simulation --seed {plan.seed}{options}"


def get_changes(plan: Plan) -> dict[str, Any]:
    """How the plan differs from the one that its seed makes."""
    origin = plans.make(plan.seed, is_stale=plan.is_stale, is_paused=plan.is_paused,
                        is_mixed=plan.is_mixed, is_sharded=plan.is_sharded)
    changes: dict[str, Any] = {}
    if plan.steps != origin.steps:
        changes['steps'] = [i for i, step in enumerate(origin.steps) if step in plan.steps]
    if plan.features != origin.features:
        changes['features'] = sorted(plan.features)
    for key in ('disorder', 'lag', 'latency'):
        if getattr(plan, key) != getattr(origin, key):
            changes[key] = getattr(plan, key)
    return changes


def apply_changes(plan: Plan, changes: dict[str, Any]) -> Plan:
    if 'steps' in changes:
        plan = plan.keep(changes['steps'])
    values = {key: changes[key] for key in ('disorder', 'lag') if key in changes}
    if 'features' in changes:
        values['features'] = frozenset(changes['features'])
    if 'latency' in changes:
        values['latency'] = tuple(changes['latency'])
    return dataclasses.replace(plan, **values)
