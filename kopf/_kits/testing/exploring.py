"""
Exploration: a scenario is run without faults first, and then with a fault at each possible point.

Each run has its own event loop with virtual time, its own sandbox, and its own operator. At rest,
the cluster must be the same as after the run without faults.
"""
import asyncio
import dataclasses
import logging
import os
import re
import types
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._core.actions import loggers
from kopf._kits.sandbox import faults
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.sandbox.statuses import Obj
from kopf._kits.sandbox.storage import Change
from kopf._kits.testing import apis, clients, operators, processes, snapshots

Source = str | os.PathLike[str] | types.ModuleType
Scenario = Callable[[clients.Client], Awaitable[None]]

DOWNTIME = 1.0
"""How long (seconds) it takes until an operator is back after its end."""

WRITES = ('create', 'update', 'patch', 'delete', 'deletecollection')

MAX_SHOWN = 3
"""How many findings are shown in full."""

STRIKES: Mapping[str, str] = {
    'crash': "the operator is killed after write {}",
    'stop': "the operator is stopped by a signal after write {}",
    'gap': "the events after write {} are missed",
    'lose': "the response to write {} is lost",
    'refuse-409': "write {} is refused once with HTTP 409",
    'refuse-429': "write {} is refused once with HTTP 429",
    'refuse-500': "write {} is refused once with HTTP 500",
}
"""What can go wrong at a write of the operator."""


@dataclasses.dataclass(frozen=True)
class Strike:
    """What goes wrong in a run, and at which of the operator's writes, beginning with 1."""
    kind: str
    number: int

    def __str__(self) -> str:
        return f'{self.kind}:{self.number}'

    @property
    def text(self) -> str:
        return STRIKES[self.kind].format(self.number)

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
    problems: Sequence[str]
    """What differs or has failed."""
    hints: Sequence[str]
    story: Sequence[str]

    def __str__(self) -> str:
        parts = [
            f"If {self.strike.text}:", *self.problems, *self.hints, "This has happened:",
            *(f"  {line}" for line in self.story),
            f"To run only this: only={str(self.strike)!r}"]
        return '\n'.join(parts)


class ExplorationError(AssertionError):
    """
    The operator does not survive everything. The text shows what differs, and how it came to that.

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
    """
    runs: int
    writes: Sequence[str]


def explore(
        scenario: Scenario,
        *sources: Source,
        load: Sequence[Mapping[str, Any] | Path | str] = (),
        ignore: Collection[str] = (),
        strikes: Collection[str] = tuple(STRIKES),
        only: str | None = None,
        rest: float = 150.0,
        limit: float = 3600.0,
        **options: Any,
) -> Exploration:
    """
    Run a scenario without faults, and then again with each fault at each write of the operator.

    At rest, the objects in the cluster must be the same as after the run without faults. Uids,
    versions, times, and Kubernetes events can differ. The time is virtual. See "Test operators" in
    the documentation.

    :param scenario: an async function that gets a `kopf.testing.Client`: it creates, changes, and
        deletes objects, and waits for what the operator does.
    :param sources: the files and modules with the handlers, as in `kopf.testing.Operator`. Files
        are executed again for each start of the operator.
    :param load: YAML files and objects to apply before the operator starts, e.g. the CRDs.
    :param ignore: the fields that may differ: ``'status.attempts'``, or of one resource only:
        ``'configmaps:data.time'``.
    :param strikes: the kinds of faults: ``'crash'``, ``'stop'``, ``'gap'``, ``'lose'``,
        ``'refuse-409'``, ``'refuse-429'``, ``'refuse-500'``. Default: all.
    :param only: the only fault, as the errors show it, e.g. ``'crash:7'``. Default: all.
    :param rest: for how long (virtual seconds) nothing must be written until the objects are
        compared.
    :param limit: how long (virtual seconds) a run can take.
    :param options: the other arguments of `kopf.testing.Operator`, except for ``credentials``.
    :returns: the number of runs, and the writes of the operator.
    :raises ExplorationError: if any run has ended differently.
    :raises AssertionError: if the scenario fails without faults.
    :raises ValueError: for an unknown kind of faults.
    :raises RuntimeError: in async tests, because each run has its own event loop.
    """
    __tracebackhide__ = True
    for kind in strikes:
        if kind not in STRIKES:
            raise ValueError(f"{kind!r} is none of the faults: {', '.join(STRIKES)}.")
    chosen = Strike.parse(only) if only is not None else None
    if _is_in_loop():
        raise RuntimeError("kopf.testing.explore() is for sync tests: it makes its event loops.")

    def run(strike: Strike | None) -> _Run:
        current = _Run(scenario, sources, options, load=load, ignore=ignore, strike=strike,
                       rest=rest, limit=limit)
        with asyncio.Runner(loop_factory=lambda: processes.SeededLoop(0)) as runner:
            runner.run(current.live())
        return current

    origin = run(None)
    if origin.problems:
        raise AssertionError('\n'.join(
            ["The scenario fails without faults:", *origin.problems, *origin.story]))
    planned = [chosen] if chosen is not None else [
        Strike(kind, number) for kind in strikes for number in range(1, len(origin.writes) + 1)]
    findings: list[Finding] = []
    for strike in planned:
        result = run(strike)
        problems = [*result.problems, *snapshots.compare(origin.snapshot, result.snapshot)]
        if problems:
            hints = list(_get_hints(origin, result))
            findings.append(Finding(strike, problems, hints, result.story))
    if findings:
        raise ExplorationError(findings, runs=len(planned))
    return Exploration(len(planned), tuple(origin.writes))


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Run:
    """One run of the scenario, with one fault or without."""

    def __init__(
            self,
            scenario: Scenario,
            sources: Sequence[Source],
            options: Mapping[str, Any],
            *,
            load: Sequence[Mapping[str, Any] | Path | str],
            ignore: Collection[str],
            strike: Strike | None,
            rest: float,
            limit: float,
    ) -> None:
        self.story: list[str] = []
        self.writes: list[str] = []
        self.problems: list[str] = []
        self.snapshot: snapshots.Snapshot = {}
        self.calls: dict[str, int] = {}
        """How often each handler was called for each object."""
        self._scenario = scenario
        self._sources = sources
        self._options = options
        self._load = load
        self._ignore = ignore
        self._strike = strike
        self._rest = rest
        self._limit = limit
        self._loop: processes.SeededLoop | None = None
        self._process: processes.Process | None = None
        self._operator: operators.Operator | None = None
        self._past: list[processes.Process] = []
        self._sandbox = _ObservedSandbox(self)
        self._restarting: list[asyncio.Task[None]] = []
        self._latest = 0.0
        self._is_over = False

    @property
    def loop(self) -> processes.SeededLoop:
        assert self._loop is not None
        return self._loop

    def note(self, text: str) -> None:
        if not self._is_over:
            self.story.append(f"{self.loop.time():9.3f}  {text}")

    def log(self, record: logging.LogRecord, text: str) -> None:
        """Note what handlers do."""
        called = re.fullmatch(r"(.*)Handler (\S+) is invoked\.", text)
        if self._process is None or processes.current.get() is not self._process:
            return
        if called is not None:
            key = f"{called[2]} for {called[1].strip() or 'an object'}"
            self.calls[key] = self.calls.get(key, 0) + 1
        if called is not None or record.levelno >= logging.INFO:
            self.note(text.splitlines()[0])

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, processes.SeededLoop)
        self._loop = loop
        handler = _LogHandler(self)
        logging.getLogger().addHandler(handler)
        try:
            async with self._sandbox:
                await self._sandbox.load(*self._load)
                api = apis.API(self._sandbox.kubeconfig(), self._sandbox)
                async with api.client:
                    await self._play(api)
                    self._is_over = True
                    await self._bury()
        finally:
            logging.getLogger().removeHandler(handler)

    async def _play(self, api: apis.API) -> None:
        self._api = api
        try:
            async with asyncio.timeout(self._limit):
                await self._start()
                self._sandbox.listen(self._hear)
                await self._scenario(api.client)
                await self._wait_rest()
        except TimeoutError:
            self.problems.append(f"There is no rest in {self._limit:g} seconds.")
        except Exception as e:
            self.problems.append(f"The scenario fails: {e}")
        self.snapshot = snapshots.take(self._sandbox.dump(), ignore=self._ignore)

    async def _start(self) -> None:
        self._process = process = processes.Process('operator', self.loop)
        self._operator = operator = self._api.operator(*self._sources, **self._options)
        task = process.run(lambda: self.loop.create_task(operator.start()))
        await asyncio.wait([task])
        if process.alive:
            task.result()

    async def _wait_rest(self) -> None:
        self._latest = self.loop.time()
        while self._restarting or self.loop.time() < self._latest + self._rest:
            if self._restarting:
                await asyncio.gather(*self._restarting)
                self._restarting.clear()
            await asyncio.sleep(max(0.1, self._latest + self._rest - self.loop.time()))

    async def _bury(self) -> None:
        if self._operator is not None and self._process is not None and self._process.alive:
            await self._operator.stop()
        for process in self._past:
            await process.bury()

    # Striking.

    def meet(self, target: faults.Target) -> faults.Fault | None:
        """Note a request of the operator that writes; return what hits it."""
        if target.verb not in WRITES or processes.peer.get() is not self._process or (
                self._process is None or self._is_ignored(target.resources[0])):
            return None
        name = f"{target.namespace}/{target.name}" if target.namespace else target.name
        self.writes.append(f"{target.verb} {target.resources[0]} {name}".strip())
        self.note(f"write {len(self.writes)}: {self.writes[-1]}")
        strike = self._strike
        if strike is None or strike.number != len(self.writes) or not (
                strike.kind.startswith('refuse')):
            return None
        self._announce()
        return faults.Fault(action='refuse', status=int(strike.kind.rpartition('-')[2]))

    def answer(self, target: faults.Target) -> faults.Fault | None:
        """Decide what happens to the response to a request of the operator that was carried out."""
        strike = self._strike
        if strike is None or strike.number != len(self.writes) or target.verb not in WRITES or (
                processes.peer.get() is not self._process
                or self._is_ignored(target.resources[0])):
            return None
        self._strike = None
        self._announce(strike)
        match strike.kind:
            case 'crash':
                self._crash()
            case 'stop':
                self._restarting.append(self.loop.create_task(self._stop()))
                return None
            case 'gap':
                self._sandbox.forget_history()
                return None
        return faults.Fault(action='lose')

    def _announce(self, strike: Strike | None = None) -> None:
        strike = strike if strike is not None else self._strike
        assert strike is not None
        self.note(f"*** {strike.text} ***")
        self._strike = None

    def _crash(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        self._past.append(process)
        self._restarting.append(self.loop.create_task(self._restart()))

    async def _stop(self) -> None:
        assert self._operator is not None
        await self._operator.stop()
        await self._restart()

    async def _restart(self) -> None:
        await asyncio.sleep(DOWNTIME)
        self.note("the operator starts again")
        await self._start()

    def _hear(self, change: Change) -> None:
        if not self._is_ignored(change.resource[1]):
            self._latest = self.loop.time()

    def _is_ignored(self, plural: str) -> bool:
        return plural in snapshots.IGNORED_RESOURCES


class _ObservedSandbox(Sandbox):
    """A sandbox whose requests and changes are observed."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.faults = _Strikes(run)

    def listen(self, hear: Callable[[Change], None]) -> None:
        self._cluster.store.listeners.append(hear)

    def dump(self) -> list[tuple[str, Obj]]:
        """All objects, with the plural names of their resources."""
        return [(resource[1], entry.decode()) for resource, entry in self._cluster.store.dump()]

    def forget_history(self) -> None:
        """End all watches; they cannot be continued, so that only lists show the changes."""
        self._cluster.store.compact()
        self._watches.end()


class _Strikes(faults.Faults):
    """The faults that a run decides on, for one request after another."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run

    def hitting(self, target: faults.Target, *actions: faults.Action) -> list[faults.Fault]:
        found = None
        if 'refuse' in actions:
            found = self._run.meet(target)
        elif 'lose' in actions:
            found = self._run.answer(target)
        return [] if found is None else [found]


class _LogHandler(logging.Handler):

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run
        self.setFormatter(loggers.make_formatter(loggers.LogFormat.PLAIN, log_prefix=True))

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith('kopf.objects'):
            self._run.log(record, self.format(record))


def _get_hints(origin: _Run, result: _Run) -> Iterator[str]:
    """Name the handlers that were called more often: they must be idempotent."""
    for key, count in result.calls.items():
        if count > origin.calls.get(key, 0):
            yield (f"The handler {key} was called {count} times, not "
                   f"{origin.calls.get(key, 0)}: what it does must be the same if it is repeated.")
