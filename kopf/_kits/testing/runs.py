"""
Runs of a scenario: each in its own event loop with virtual time, on its own sandbox.

A run notes the story of what has happened, and the writes of the operator. Whoever makes the run
can decide what hits a write, and can kill, stop, and start the operator, or add a replica.
"""
import asyncio
import contextlib
import contextvars
import ctypes
import dataclasses
import datetime
import inspect
import logging
import os
import re
import sys
import threading
import types
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any

from aiohttp import web

from kopf._cogs.aiokits import timeouts
from kopf._core.actions import inflight, loggers, tracebacks
from kopf._core.engines.reconciling import generating
from kopf._core.reactor import waiting
from kopf._kits import redirecting
from kopf._kits.sandbox import faults, requests
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.lagging import Lag
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.sandbox.statuses import Obj
from kopf._kits.sandbox.storage import Change
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing import apis, clients, externals, operators, processes, reporting, snapshots

Source = str | os.PathLike[str] | types.ModuleType
Scenario = Callable[[clients.Client], Awaitable[None]]

DOWNTIME = 1.0
"""How long (seconds) it takes until an operator is back after its end."""

BLOCKING = 2.0
"""How long (real seconds) the event loop can be blocked after the limit of real time."""

WRITES = ('create', 'update', 'patch', 'delete', 'deletecollection')
READS = ('list', 'watch')


serving: contextvars.ContextVar[tuple[int, requests.Target] | None] = contextvars.ContextVar(
    'serving', default=None)
"""In the API server: the latest write of the operator on this connection, and its number."""

MAX_SHOWN = 100
"""How many lines of a story are shown at most."""


def show(story: Sequence[str]) -> list[str]:
    """Show a story. If it is too long, the middle is left out."""
    lines = [f"  {line}" for line in story]
    left_out = len(lines) - MAX_SHOWN
    half = MAX_SHOWN // 2
    return lines if left_out <= 0 else [
        *lines[:half], f"  … {left_out} lines are left out …", *lines[-half:]]


def check_call(name: str, **collections: object) -> None:
    """
    Check how a function was called: with these ``collections``, and not in an event loop.

    :raises TypeError: if an argument is a string, or no collection at all.
    :raises RuntimeError: if an event loop runs in this thread.
    """
    for argument, value in collections.items():
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"{argument}= must be a collection, e.g. [{value!r}].")
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"kopf.testing.{name}() is for sync tests: it makes its event loops.")


@dataclasses.dataclass(frozen=True)
class Setup:
    """
    What all runs have in common: the operator, the objects at the beginning, and the limits.

    ``options`` are those of the operator. A run is at rest if nothing was written for ``rest``
    seconds, and it takes at most ``limit`` seconds, and at most ``real_limit`` seconds in reality.
    """
    sources: Sequence[Source]
    options: Mapping[str, Any]
    load: Sequence[Mapping[str, Any] | Path | str]
    ignore: Collection[str]
    rest: float
    limit: float
    real_limit: float
    external: Sequence[externals.System] = ()
    origin: datetime.datetime = processes.ORIGIN
    """The wall time at the beginning."""


class BlockedError(BaseException):
    """Interrupts what has blocked the event loop, even if it catches all usual errors."""


class KilledError(Exception):
    """The operator was killed while something in its process was waited for."""


@dataclasses.dataclass(frozen=True)
class Replica:
    """A process with an operator."""
    process: processes.Process
    operator: operators.Operator

    async def wait(self, task: asyncio.Task[None]) -> None:
        """
        Wait for a task of the process.

        :raises KilledError: if the process is killed meanwhile, so that the task never ends.
        """
        await asyncio.wait([task, self.process.death], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise KilledError("The operator was killed meanwhile.")
        task.result()

    def stop(self) -> asyncio.Task[None]:
        """Stop the operator as by a signal, in its process, so that it can be killed meanwhile."""
        return self.process.run(lambda: self.process.loop.create_task(self.operator.stop()))


class Run:
    """
    One run of a scenario. Overridden methods decide what hits the writes of the operator.

    Afterwards, there are the ``story``, the ``writes`` with their ``effects``, the
    ``external_calls``, the ``problems``, the ``errors`` in the log of the
    operator, the ``calls`` of each handler for each object, and the final ``snapshot``.
    """

    loop: processes.ProcessLoop

    def __init__(
            self, setup: Setup, *, upstream: Upstream | None = None,
            place: redirecting.Place | None = None,
    ) -> None:
        self.story: list[str] = []
        self.writes: list[str] = []
        self.effects: list[str] = []
        """What each write has changed, in words."""
        self.external_calls: list[str] = []
        """The calls of external systems, with what was answered."""
        self.duplicates: list[str] = []
        """Of which things there are several in external systems, in words."""
        self.problems: list[str] = []
        self.errors: list[str] = []
        self.calls: dict[str, int] = {}
        self.made: list[Any] = []
        """The values that `kopf.generated` has made."""
        self.snapshot: snapshots.Snapshot = {}
        self.is_abandoned = False
        """Whether the run was broken off at the limit of real time."""
        self.setup = setup
        self._main: asyncio.Task[None] | None = None
        self._replicas: list[Replica] = []
        self._past: list[processes.Process] = []
        self.sandbox = ObservedSandbox(self, upstream=upstream)
        if place is not None:
            self.sandbox.occupy(place)
        self._lag: Lag | None = None
        self._restarting: list[asyncio.Task[None]] = []
        self._things: list[tuple[str, Obj]] = []
        """What is in the external systems in the end, as objects."""
        self._places: list[int] = []
        """Where in the story the calls of external systems are."""
        self._context = contextvars.copy_context()
        self._numbers: dict[int, int] = {}
        """The numbers of the writes that are being carried out, by the ids of their targets."""
        self._latest = 0.0
        self._is_over = False

    def play(self, scenario: Scenario) -> None:
        """Run the scenario, and wait for the rest. In its end, nothing is left of the operator."""
        self.loop = processes.ProcessLoop(origin=self.setup.origin)
        with (contextlib.suppress(BlockedError),
              asyncio.Runner(loop_factory=lambda: self.loop) as runner, self._limit_real_time()):
            runner.run(self._live(scenario))

    # To be overridden.

    async def open(self) -> None:
        """Begin: the sandbox is ready, and the scenario has not begun."""
        await self.start()

    async def close(self) -> None:
        """End: the scenario has ended, and the cluster is at rest."""

    def conclude(self) -> None:
        """Keep the result, whether the run has come to its end or not."""
        self.snapshot = self.take_snapshot()

    def hit_request(self, number: int) -> faults.Fault | None:
        """Decide what happens to a write, the first of which is 1. It was not carried out yet."""
        return None

    def hit_response(self, number: int) -> faults.Fault | None:
        """Decide what happens to the response to a write that was carried out."""
        return None

    def hit_call(self, number: int) -> externals.Strike:
        """Decide what happens to a call of an external system, the first of which is 1."""
        return None

    def hit_answer(self, call: externals.Call) -> faults.Fault | None:
        """Decide what happens to the answer of an external system to a call."""
        return None

    # The story.

    def note(self, text: str, process: processes.Process | None = None) -> None:
        if not self._is_over:
            who = f"{process.name}: " if process is not None and process.name else ''
            self.story.append(f"{self.loop.time():9.3f}  {who}{text}")

    def log(self, record: logging.LogRecord, text: str) -> None:
        """Note what the operator logs."""
        process = processes.current.get()
        if not self._is_own(process):
            return
        if record.levelno >= logging.ERROR and not self._is_over:
            self.errors.append(text)
        if not record.name.startswith('kopf.objects'):
            return
        called = re.fullmatch(r"(.*)Handler (\S+) is invoked\.", text)
        if called is not None:
            key = f"{called[2]} for {called[1].strip() or 'an object'}"
            self.calls[key] = self.calls.get(key, 0) + 1
        if called is not None or record.levelno >= logging.INFO:
            self.note(text.splitlines()[0], process)

    def take_snapshot(self) -> snapshots.Snapshot:
        """Take a snapshot of the cluster as it is now, without the rights of confined operators."""
        users = tuple(
            f'{each.confinement.user}-' for each in self._api.operators if each.confinement)
        found = [(plural, obj) for plural, obj in self.sandbox.dump()
                 if not obj['metadata']['name'].startswith(users)]
        return snapshots.take(
            [*found, *self._things], ignore=self.setup.ignore, made=self.made)

    async def _make(self, make: Callable[[], Any]) -> Any:
        """Make a generated value, and note it: it is different in each run."""
        value = make()
        self.made.append(await value if inspect.isawaitable(value) else value)
        return self.made[-1]

    # The course of things.

    async def _live(self, scenario: Scenario) -> None:
        self._main = asyncio.current_task()
        generating.making_var.set(self._make)
        self._context = contextvars.copy_context()
        try:
            async with contextlib.AsyncExitStack() as stack:
                handler = _LogHandler(self)
                logging.getLogger().addHandler(handler)
                stack.callback(logging.getLogger().removeHandler, handler)
                await stack.enter_async_context(self.sandbox)
                for system in self.setup.external:
                    await stack.enter_async_context(system)
                    system.meet_call, system.meet_answer = self.meet_call, self.meet_answer
                await self.sandbox.load(*self.setup.load)
                self._api = apis.API(self.sandbox.kubeconfig(), self.sandbox)
                await stack.enter_async_context(self._api.client)
                stack.push_async_callback(self._bury)
                await self._perform(scenario)
                self._is_over = True
                await self._stop_all()
        except asyncio.CancelledError:
            if not self.is_abandoned:
                raise

    async def _perform(self, scenario: Scenario) -> None:
        try:
            async with timeouts.timeout(self.setup.limit):
                self.sandbox.cluster.store.listeners.append(self.hear)
                await self.open()
                scene: object = scenario(self._api.client)
                if not isinstance(scene, Awaitable):
                    raise TypeError("The scenario must be an async function.")
                await scene
                await self.wait_rest()
                await self.close()
                for system in self.setup.external:
                    self._things += await system.survey(self.duplicates)
                self.problems += self.duplicates
        except TimeoutError:
            latest = f" The latest write: {self.writes[-1]}" if self.writes else ''
            self.problems.append(f"There is no rest in {self.setup.limit:g} seconds.{latest}")
        except Exception as e:
            self.problems.append(f"The scenario fails: {e}")
        finally:
            for task in self._restarting:
                if not task.cancel() and not task.cancelled() and task.exception() is not None:
                    self.problems.append(f"The operator has failed: {task.exception()}")
        self.conclude()

    async def wait_rest(self) -> None:
        """Wait until nothing was written for long enough."""
        self._latest = self.loop.time()
        while self._restarting or self.loop.time() < self._latest + self.setup.rest:
            if self._restarting:
                restarting, self._restarting = self._restarting, []
                await asyncio.gather(*restarting)
            await asyncio.sleep(max(0.1, self._latest + self.setup.rest - self.loop.time()))

    async def _stop_all(self) -> None:
        """Stop the operator. Nothing is compared after that, so its writes are not hit."""
        for replica in list(self._replicas):
            stopping = replica.stop()
            await asyncio.wait([stopping], timeout=self.setup.limit)
            if not stopping.done():
                self.problems.append(
                    f"The operator has not stopped in {self.setup.limit:g} seconds. "
                    f"{waiting.describe(inflight.Calls(), self.loop)}")
            elif (e := stopping.exception()) is not None:
                self.problems.append(f"The operator fails: {e!r}")

    async def _bury(self) -> None:
        self._is_over = True
        while self._replicas:
            self.kill()
        for process in self._past:
            await process.bury()

    # The real time.

    @contextlib.contextmanager
    def _limit_real_time(self) -> Iterator[None]:
        over = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=[threading.get_ident(), over], daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, ident: int, over: threading.Event) -> None:
        """Break off the run in the thread ``ident`` if it is not over in time."""
        if over.wait(self.setup.real_limit):
            return
        self.is_abandoned = True
        self.problems.append(
            f"It has not ended in {self.setup.real_limit:g} seconds of real time. "
            f"{self.loop.describe_time()} {waiting.describe(inflight.Calls(), self.loop)}")
        while not over.is_set():
            reaction = threading.Event()
            self.loop.call_soon_threadsafe(self._abandon, reaction)
            if not reaction.wait(BLOCKING) and not over.is_set():
                place = tracebacks.locate(sys._current_frames().get(ident), own=True)
                self.problems.append(f"The event loop is blocked at {place}.")
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(ident), ctypes.py_object(BlockedError))
            over.wait(BLOCKING)

    def _abandon(self, reaction: threading.Event) -> None:
        reaction.set()
        if self._main is not None and self.loop.is_patient:
            self.loop.is_patient = False
            self._main.cancel()

    # The operator.

    async def start(self, name: str = '', **options: Any) -> None:
        """
        Start the operator, or another replica of it, with these options instead of others.

        :raises KilledError: if it is killed meanwhile.
        """
        process = processes.Process(name, self.loop)
        operator = self.make_operator(**{**self.setup.options, **options})
        replica = Replica(process, operator)
        self._replicas.append(replica)
        await replica.wait(process.run(lambda: self.loop.create_task(operator.start())))

    def make_operator(self, **options: Any) -> operators.Operator:
        """Make the operator, or another replica of it."""
        operator = self._api.operator(*self.setup.sources, **options)
        operator.is_fresh = True
        return operator

    def kill(self) -> None:
        """Kill the operator as ``kill -9`` does."""
        process = self._replicas.pop(0).process
        process.kill()
        self._past.append(process)

    async def stop(self, replica: int = 0) -> None:
        """
        Stop the operator as by a signal.

        :raises KilledError: if it is killed meanwhile.
        """
        stopped = self._replicas[replica]
        await stopped.wait(stopped.stop())
        self._past.append(self._replicas.pop(replica).process)

    async def restart(self) -> None:
        """Start the operator after a while."""
        await asyncio.sleep(DOWNTIME)
        self.note("the operator starts again")
        await self.start()

    def change(self, action: Coroutine[Any, Any, None]) -> None:
        """Change the replicas in the background; there is no rest before this has ended."""
        self._restarting.append(self.loop.create_task(action, context=self._context.copy()))

    # The external systems.

    def meet_call(self, call: externals.Call) -> externals.Strike:
        """Note a call of an external system; return what hits it."""
        process = processes.peer.get() or processes.current.get()
        # A thread is of the operator, as the test is in the loop; but maybe of a killed process.
        is_own = bool(self._replicas) if call.is_threaded else self._is_own(process)
        if self._is_over or not is_own:
            return None
        self.external_calls.append(call.text)
        call.number = len(self.external_calls)
        self.note(f"call {call.number}: {call.text}", process)
        self._places.append(len(self.story) - 1)
        if call.method not in externals.READS:
            self._latest = self.loop.time()
        return self.hit_call(call.number)

    def meet_answer(self, call: externals.Call, answer: web.Response) -> faults.Fault | None:
        """Note what an external system has answered; return what hits the answer."""
        if call.number is None:
            return None
        text = reporting.describe_answer(answer.status, externals.get_body(answer))
        self.external_calls[call.number - 1] += f": {text}"
        self.story[self._places[call.number - 1]] += f": {text}"
        return None if self._is_over else self.hit_answer(call)

    # The API server.

    def lag(self, revision: int) -> Lag:
        """Let the server behind the operator lag behind, until the end of this lag."""
        self._lag = Lag(revision)
        return self._lag

    def get_lag(self, target: requests.Target) -> Lag | None:
        """Get how far the server lags behind for a request."""
        is_lagging = target.verb in READS and self._is_own(processes.peer.get())
        return self._lag if is_lagging else None

    def meet(self, target: requests.Target) -> faults.Fault | None:
        """Note a request of the operator that writes; return what hits it."""
        if not self._is_write(target):
            return None
        is_within = target.namespace and target.resources[0] != 'namespaces'
        name = f"{target.namespace}/{target.name}" if is_within else target.name
        self.writes.append(f"{target.verb} {target.resources[0]} {name}".strip())
        self.note(f"write {len(self.writes)}: {self.writes[-1]}", processes.peer.get())
        self.effects.append(reporting.NO_CHANGE)
        self._numbers[id(target)] = len(self.writes)
        serving.set((len(self.writes), target))
        return self.hit_request(len(self.writes))

    def answer(self, target: requests.Target) -> faults.Fault | None:
        """Decide what happens to the response to a request of the operator that was carried out."""
        number = self._numbers.pop(id(target), None)
        return None if number is None or not self._is_write(target) else self.hit_response(number)

    def _is_write(self, target: requests.Target) -> bool:
        return (
            not self._is_over and target.verb in WRITES and self._is_own(processes.peer.get())
            and not _is_ignored(target.resources[0].partition('/')[0]))

    def _is_own(self, process: processes.Process | None) -> bool:
        return process is not None and any(process is replica.process for replica in self._replicas)

    def hear(self, change: Change) -> None:
        """Note a change of the objects."""
        if not _is_ignored(change.resource[1]):
            self._latest = self.loop.time()
        match serving.get():
            case number, target if _is_about(target, change):
                self.effects[number - 1] = reporting.describe_change(change)
                serving.set(None)  # later changes are not of the write itself


def _is_ignored(plural: str) -> bool:
    return plural in snapshots.IGNORED_RESOURCES


def _is_about(target: requests.Target, change: Change) -> bool:
    """
    Whether a request can have made a change.

    Its target has no name if the server chooses it. The target of a namespace is in this namespace,
    but the namespace itself is in none.
    """
    namespace, name = change.new.key
    return (
        target.resources[0].partition('/')[0] == change.resource[1]
        and namespace in ('', target.namespace) and name == (target.name or name))


class ObservedSandbox(Sandbox):
    """A sandbox whose requests and changes are observed."""

    def __init__(self, run: Run, *, upstream: Upstream | None) -> None:
        super().__init__(upstream=upstream)
        self.faults = _Faults(run)

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def dump(self) -> list[tuple[str, Obj]]:
        """All objects, with the plural names of their resources."""
        return [(resource[1], entry.decode()) for resource, entry in self._cluster.store.dump()]

    def forget_history(self) -> None:
        """End all watches; they cannot be continued, so that only lists show the changes."""
        self._cluster.store.compact()
        self._watches.end()


class _Faults(faults.Faults):
    """The faults that a run decides on, for one request after another."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def hitting(self, target: requests.Target, *actions: faults.Action) -> list[faults.Fault]:
        found = None
        if 'refuse' in actions:
            found = self._run.meet(target)
        elif 'lose' in actions:
            found = self._run.answer(target)
        return [] if found is None else [found]

    def get_lag(self, target: requests.Target) -> Lag | None:
        return self._run.get_lag(target)


class _LogHandler(logging.Handler):

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self.setFormatter(loggers.make_formatter(loggers.LogFormat.PLAIN, log_prefix=True))

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.INFO or record.getMessage().endswith(' is invoked.'):
            self._run.log(record, self.format(record))  # of other messages, it takes too long
