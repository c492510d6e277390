"""
Exploration: a scenario is run without faults first, and then with a fault at each possible point.

Each run has its own event loop with virtual time, its own sandbox, and its own operator. At rest,
the cluster must be the same as after the run without faults.
"""
import asyncio
import contextlib
import dataclasses
import gc
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._kits.sandbox import faults
from kopf._kits.sandbox.lagging import Lag
from kopf._kits.sandbox.storage import Change
from kopf._kits.testing import externals, handovers, reporting, runs, snapshots

LOST_PATCHES = (
    "failed permanently: its patch is refused", "The patch of event handlers is refused")
"""
What Kopf logs when it gives up a patch of a daemon, a timer, or event handlers. Such a patch is
refused because of its values, whenever it is sent: the author cannot guard against this.
"""

STALENESS = 10.0
"""How long (seconds) an operator that was restarted can be served an older state."""

CALL_TIMEOUT = 120.0
"""After which time (seconds) an external system answers if most clients do not wait that long."""

VAIN_DELETION = re.compile(r'DELETE \S+: 404\b')

MAX_SHOWN = 3
"""How many findings are shown in full."""

STRIKES: Mapping[str, str] = {
    'crash': "the operator is killed {place}",
    'stale': "the operator is killed {place}, and then it is served an older state",
    'stop': "the operator is stopped by a signal {place}",
    'handover': "another replica of the operator takes over {place}",
    'gap': "the watches break {place}, and miss events",
    'lose': "the response to write {number} is lost",
    'refuse-409': "write {number} is refused once with HTTP 409",
    'refuse-422': "write {number} is refused once with HTTP 422",
    'refuse-429': "write {number} is refused once with HTTP 429",
    'refuse-500': "write {number} is refused once with HTTP 500",
    'call-before': "the operator is killed before call {number}",
    'call-after': "the operator is killed after call {number}",
    'call-lose': "the answer to call {number} is lost",
    'call-stale': "call {number} is answered with an older state",
    'call-429': "call {number} is refused once with HTTP 429",
    'call-500': "call {number} is refused once with HTTP 500",
    'call-timeout': "the answer to call {number} comes after {timeout:g} seconds",
}
"""
What can go wrong at a write of the operator, or after it, where there is a place; and at a call of
an external system.
"""


@dataclasses.dataclass(frozen=True)
class Strike:
    """What goes wrong in a run, and at which of the writes or calls, beginning with 1."""
    kind: str
    number: int

    def __str__(self) -> str:
        return f'{self.kind}:{self.number}'

    @property
    def is_call(self) -> bool:
        """Whether it is about a call of an external system, and not about a write."""
        return self.kind.startswith('call-')

    @property
    def text(self) -> str:
        return self._describe(f"after write {self.number}")

    def _describe(self, place: str) -> str:
        return STRIKES[self.kind].format(number=self.number, place=place, timeout=CALL_TIMEOUT)

    def locate(self, writes: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Say what goes wrong between which of these writes, and choose those writes."""
        following = self.number + 1
        if '{place}' not in STRIKES[self.kind] or following > len(writes):
            return self.text, writes[self.number - 1:self.number]
        place = f"between write {self.number} and write {following}"
        return self._describe(place), writes[self.number - 1:following]

    @classmethod
    def parse(cls, text: str) -> 'Strike':
        """
        Parse the notation of ``only=``, e.g. ``'crash:7'``.

        :raises ValueError: if it is something else.
        """
        kind, _, number = text.partition(':')
        if kind not in STRIKES or not number.isdecimal():
            raise ValueError(f"{text!r} is none of: {', '.join(f'{kind}:1' for kind in STRIKES)}.")
        return cls(kind, int(number))


@dataclasses.dataclass(frozen=True)
class Finding:
    """A run that has ended in another way than the run without faults."""
    strike: Strike
    writes: Sequence[str]
    """
    The writes of the run without faults, with what they have changed; or its calls of external
    systems, with the answers, if the strike is about those.
    """
    problems: Sequence[str]
    """What differs or has failed."""
    hints: Sequence[str]
    """Which handlers were called more often, and what to change."""
    story: Sequence[str]

    def __str__(self) -> str:
        text, writes = self.strike.locate(self.writes)
        parts = [
            f"If {text}:", *(f"  {write}" for write in writes), *self.problems, *self.hints,
            "This has happened:", *runs.show(self.story),
            f"To run only this: only={str(self.strike)!r}"]
        return '\n'.join(parts)


class ExplorationError(AssertionError):
    """
    The operator does not survive everything. The text shows what differs, and what has led to it.

    :param findings: the runs that have ended differently.
    :param runs: how many runs there were.
    """

    def __init__(self, findings: Sequence[Finding], *, runs: int) -> None:
        self.findings: Sequence[Finding] = findings
        shown = '\n\n'.join(map(str, findings[:MAX_SHOWN]))
        others = ', '.join(str(item.strike) for item in findings[MAX_SHOWN:])
        more = f"\n\nThe others: {others}" if others else ''
        super().__init__(f"{len(findings)} of {runs} runs have ended differently.\n\n{shown}{more}")


@dataclasses.dataclass(frozen=True)
class Exploration:
    """
    What was explored: the number of runs, and the writes of the operator without faults.

    ``calls`` are its calls of external systems, with the answers.
    """
    runs: int
    writes: Sequence[str]
    calls: Sequence[str] = ()


@contextlib.contextmanager
def _leaving_things_open() -> Iterator[None]:
    """Do not warn of what killed processes have not closed, such as the sessions of clients."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


@_leaving_things_open()
def explore(
        scenario: runs.Scenario,
        *sources: runs.Source,
        load: Sequence[Mapping[str, Any] | Path | str] = (),
        ignore: Collection[str] = (),
        strikes: Collection[str] = tuple(STRIKES),
        external: Sequence[externals.System] = (),
        only: str | None = None,
        rest: float = 150.0,
        limit: float = 3600.0,
        real_limit: float = 120.0,
        **options: Any,
) -> Exploration:
    """
    Run a scenario without faults, and then again with each possible fault.

    There is a fault at each write of the operator, and at each call of external systems. At rest,
    the objects in the cluster must be the same as after the run without faults. Uids, versions,
    times, and Kubernetes events can differ. The time is virtual.

    ::

        async def scenario(client):
            await client.create('websites', 'hello', spec={'title': 'Hello'})
            await client.wait('configmaps', 'hello')

        kopf.testing.explore(scenario, 'handlers.py', load=['crd.yaml'])

    See "Test operators" in the documentation.

    :param scenario: an async function that gets a `kopf.testing.Client`: it creates, changes, and
        deletes objects, and waits for what the operator does.
    :param sources: the files and modules with the handlers, as in `kopf.testing.Operator`. Files
        are executed again for each start of the operator.
    :param load: YAML files and objects to apply before the operator starts, e.g. the CRDs.
    :param ignore: the fields that may differ: ``'status.attempts'``, or of one resource only:
        ``'configmaps:data.time'``.
    :param strikes: the kinds of faults: ``'crash'``, ``'stale'``, ``'stop'``, ``'handover'``,
        ``'gap'``, ``'lose'``, ``'refuse-409'``, ``'refuse-422'``, ``'refuse-429'``,
        ``'refuse-500'``; for calls of external systems, ``'call-before'``, ``'call-after'``,
        ``'call-lose'``, ``'call-stale'``, ``'call-429'``, ``'call-500'``, ``'call-timeout'``.
        Default: all.
    :param external: the external systems whose calls are hit: `kopf.testing.FakeCloud`, and results
        of `kopf.testing.intercept`. Each run resets them first. In the end, there must be the
        same things in them, and none twice.
    :param only: the only fault, as the errors show it, e.g. ``'crash:7'``. Default: all.
    :param rest: for how long (virtual seconds) nothing must be written until the objects are
        compared.
    :param limit: how long (virtual seconds) a run can take.
    :param real_limit: how long (real seconds) a run can take. The first run that takes longer is
        the last one.
    :param options: the other arguments of `kopf.testing.Operator`, except for ``credentials``.
    :returns: the number of runs, and the writes of the operator.
    :raises ExplorationError: if any run has ended differently.
    :raises AssertionError: if the scenario fails without faults.
    :raises ValueError: for an unknown kind of faults; if there is nothing that they could hit.
    :raises TypeError: if a string or a single thing is given instead of a collection.
    :raises RuntimeError: in async tests, because each run has its own event loop.
    """
    __tracebackhide__ = True
    runs.check_call('explore', load=load, ignore=ignore, strikes=strikes, external=external)
    for kind in strikes:
        if kind not in STRIKES:
            raise ValueError(f"{kind!r} is none of the faults: {', '.join(STRIKES)}.")
    chosen = Strike.parse(only) if only is not None else None
    kinds = strikes if chosen is None else {chosen.kind}
    if 'handover' in kinds:
        from kopf._kits.projects import manifests  # only for this fault
        load = [manifests.PEERING, *load]
    setup = runs.Setup(
        sources, options, load=load, ignore=ignore, rest=rest, limit=limit,
        real_limit=real_limit, external=external)

    def run(strike: Strike | None) -> _StruckRun:
        current = _StruckRun(setup, strike)
        current.play(scenario)
        return current

    reporting.show_progress("Exploring: the run without faults …")
    origin = run(None)
    if origin.problems:
        raise AssertionError('\n'.join(
            ["The scenario fails without faults:", *origin.problems, *origin.story]))
    planned = [each for each in _plan(kinds, origin) if chosen in (None, each)]
    if chosen is not None and not planned:
        raise ValueError(f"Nothing is hit by {only!r}: there are {len(origin.writes)} writes, and "
                         f"{len(origin.external_calls)} calls of external systems.")
    if not planned and kinds:
        raise ValueError("Nothing was hit: the operator has written nothing, and has called no "
                         "external system. Let the scenario wait for what it does.")
    writes = [
        f"write {number}: {write}: {effect}"
        for number, (write, effect) in enumerate(
            zip(origin.writes, origin.effects, strict=True), start=1)]
    calls = [f"call {number}: {call}" for number, call in enumerate(origin.external_calls, start=1)]
    findings: list[Finding] = []
    for count, strike in enumerate(planned, start=1):
        reporting.show_progress(f"Exploring: run {count} of {len(planned)}, {strike} …")
        result = run(strike)
        problems = list(result.problems)
        if not result.is_abandoned:
            problems += snapshots.compare(origin.snapshot, result.snapshot)
        if problems and not (strike.kind == 'refuse-422' and result.has_lost_patch):
            hints = list(_get_hints(strike, origin, result))
            findings.append(Finding(
                strike, calls if strike.is_call else writes, problems, hints, result.story))
        if result.is_abandoned:
            break
    reporting.show_progress('')
    if findings:
        raise ExplorationError(findings, runs=count)
    return Exploration(len(planned), tuple(origin.writes), tuple(origin.external_calls))


def _plan(kinds: Collection[str], origin: runs.Run) -> Iterator[Strike]:
    for kind in kinds:
        items = origin.external_calls if kind.startswith('call-') else origin.writes
        for number, item in enumerate(items, start=1):
            if kind != 'call-stale' or item.startswith(externals.READS):
                yield Strike(kind, number)


class _StruckRun(runs.Run):
    """A run of the scenario with one fault, or without."""

    def __init__(self, setup: runs.Setup, strike: Strike | None) -> None:
        super().__init__(setup)
        self._strike = strike
        self._is_shared = strike is not None and strike.kind == 'handover'
        self._revision = 0
        """The version of the objects just before the write of the strike."""

    @property
    def has_lost_patch(self) -> bool:
        """Whether Kopf has given up a patch because it was refused."""
        return any(text in error for error in self.errors for text in LOST_PATCHES)

    async def open(self) -> None:
        if self._is_shared:
            await self._join(None)
            for namespace in await self.sandbox.list('namespaces'):
                await self._join(namespace['metadata']['name'])
            await self._start_replica(0)
        else:
            with contextlib.suppress(runs.KilledError):  # by the strike, which starts it again
                await self.start()

    async def close(self) -> None:
        if self._is_shared and self._strike is None:
            self.note("replica 2 is stopped by a signal")
            await self.stop(1)
            await self.wait_rest()

    def hit_request(self, number: int) -> faults.Fault | None:
        if self._strike is not None and self._strike.number == number:
            self._revision = self.sandbox.cluster.store.revision
        kind = self._take(number, 'refuse-409', 'refuse-422', 'refuse-429', 'refuse-500')
        return _refuse(kind) if kind else None

    def hit_response(self, number: int) -> faults.Fault | None:
        match self._take(number, 'crash', 'stale', 'stop', 'handover', 'gap', 'lose'):
            case '':
                return None
            case 'crash':
                self._crash()
            case 'stale':
                self.kill()
                self.change(self._restart_stale())
            case 'stop':
                self.change(self._stop_and_restart())
                return None
            case 'handover':
                self.change(self._start_replica(1))
                return None
            case 'gap':
                self.sandbox.forget_history()
                return None
        return faults.Fault(action='lose')

    def hit_call(self, number: int) -> externals.Strike:
        match self._take(number, 'call-before', 'call-stale', 'call-429', 'call-500'):
            case '':
                return None
            case 'call-before':
                self._crash()
                return faults.Fault(action='drop')
            case 'call-stale':
                return 'stale'
            case kind:
                return _refuse(kind)

    def hit_answer(self, call: externals.Call) -> faults.Fault | None:
        match self._take(call.number, 'call-after', 'call-lose', 'call-timeout'):
            case '':
                return None
            case 'call-after':
                self._crash()
            case 'call-timeout' if not call.is_threaded:  # the time stands still for threads
                self.change(asyncio.sleep(CALL_TIMEOUT))
                return faults.Fault(action='slow', seconds=CALL_TIMEOUT)
        return faults.Fault(action='lose')

    def _take(self, number: int | None, *kinds: str) -> str:
        """Take the strike, if it is of this write or call, and one of these; else, it is empty."""
        strike = self._strike
        if strike is None or strike.number != number or strike.kind not in kinds:
            return ''
        self.note(f"*** {strike.text} ***")
        self._strike = None
        return strike.kind

    def _crash(self) -> None:
        self.kill()
        self.change(self.restart())

    async def _stop_and_restart(self) -> None:
        await self.stop()
        await self.restart()

    async def _restart_stale(self) -> None:
        lag = self.lag(self._revision)
        self.loop.call_later(runs.DOWNTIME + STALENESS, self._catch_up, lag)
        await self.restart()

    def _catch_up(self, lag: Lag) -> None:
        self.note("the operator is served the newest state again")
        lag.end()

    def hear(self, change: Change) -> None:
        super().hear(change)
        if self._is_shared and change.type == 'ADDED' and change.resource[1] == 'namespaces':
            self.change(self._join(change.new.key[1]))

    async def _join(self, namespace: str | None) -> None:
        """Let the replicas see each other in a namespace, or in the cluster."""
        await self.sandbox.load(handovers.make_peering(self.setup.options, namespace))

    async def _start_replica(self, number: int) -> None:
        await self.start(
            f'replica {number + 1}', **handovers.make_options(self.setup.options, number))


def _refuse(kind: str) -> faults.Fault:
    return faults.Fault(action='refuse', status=int(kind.rpartition('-')[2]))


def _get_hints(strike: Strike, origin: runs.Run, result: runs.Run) -> Iterator[str]:
    """Name the handlers that were called more often, and say what the author can change."""
    repeated = {
        key: count for key, count in result.calls.items() if count > origin.calls.get(key, 0)}
    for key, count in repeated.items():
        yield (f"Because of this, the handler {key} was called {count} times, "
               f"not {origin.calls.get(key, 0)}.")
    vain = [call for call in result.external_calls if VAIN_DELETION.match(call)]
    advice = (
        reporting.DUPLICATES if result.duplicates else
        reporting.VAIN_DELETIONS if len(vain) > len(set(vain)) else
        reporting.advise(
            strike.kind, origin.snapshot, result.snapshot, repeated=bool(repeated)))
    if advice is not None:
        yield f"What to change: {advice}"
