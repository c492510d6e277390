"""
Operators in the event loop of the test.
"""
import asyncio
import contextlib
import contextvars
import ctypes
import os
import re
import signal
import threading
import time
import types
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from kopf._cogs.aiokits import alarms
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import loaders
from kopf._cogs.structs import credentials
from kopf._core.actions import inflight
from kopf._core.intents import causes, registries
from kopf._core.reactor import waiting as describing
from kopf._kits import running, shutdown
from kopf._kits.testing import capturing, scripts, virtual, waiting

if TYPE_CHECKING:
    from kopf._kits.typed.confining import Confinement

START_TIMEOUT = 600.0
"""How long (seconds, also virtual ones) an operator has to start."""

FAREWELL = 60.0
"""How long (real seconds) async handlers can go on after they are cancelled."""

MAX_CANCELLATIONS = 10
"""How often a task of an operator is cancelled until it is left alone."""

_current: contextvars.ContextVar['Operator | None'] = contextvars.ContextVar(
    'current_operator', default=None)
"""The operator under test to which the current task or handler belongs."""


class Operator:
    """
    An operator that runs in the event loop of an async test until the end of the block.

    The end of the block raises the error of the operator, if there is one. ``log`` contains the
    messages of the log, ``settings`` the settings. See "Test operators" in the documentation.

    :param sources: the handlers: paths of files (``'*.py'``), names of modules, modules, or
        other registries. Default: those of the ``registry``.
    :param credentials: the credentials. The operator uses them even if it has login handlers.
    :param registry: the registry with the handlers, to which those of the ``sources`` are added.
        Default: a new registry for ``sources``; without them, the default registry.
    :param settings: the settings. Default: new `kopf.OperatorSettings`.
    :param namespaces: the namespaces to serve. Default: the operator is cluster-wide.
    :param standalone: whether to ignore other operators.
    :param options: more parameters of `kopf.operator`.
    """

    def __init__(
            self,
            *sources: str | os.PathLike[str] | types.ModuleType | registries.OperatorRegistry,
            credentials: credentials.Credentials,
            registry: registries.OperatorRegistry | None = None,
            settings: configuration.OperatorSettings | None = None,
            namespaces: Collection[str] = (),
            standalone: bool = True,
            **options: Any,
    ) -> None:
        self.log: list[str] = []
        """All log messages in their order. Messages about objects begin with the object's name."""
        self.settings: configuration.OperatorSettings = (
            settings if settings is not None else configuration.OperatorSettings())
        self.is_fresh = False
        """Whether to execute files that are imported already, so that nothing is in the memory."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.before_start: Callable[[registries.OperatorRegistry], Awaitable[None]] | None = None
        self._sources = sources
        self._registry = registry
        self.namespaces: Collection[str] = (
            [namespaces] if isinstance(namespaces, str) else namespaces)
        self.is_standalone: bool = standalone
        self.confinement: Confinement | None = None
        """What the operator may do, and what it has tried, if it has only the rights it needs."""
        self._credentials = credentials
        self._options: dict[str, Any] = {
            'namespaces': self.namespaces, 'clusterwide': not namespaces, 'standalone': standalone,
            **options}
        self._stop: asyncio.Event
        self._task: asyncio.Task[None] | None = None
        self._roots: Collection[asyncio.Task[Any]] = ()
        self._underway = inflight.Calls()

    def log_in(self, item: credentials.Credentials) -> None:
        """Use these credentials from the next start on."""
        self._credentials = item

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """
        Start the operator, and wait until its startup handlers have succeeded.

        After its end, it can be started again. If this is cancelled, it stops.

        :raises Exception: the error with which the operator has failed to start.
        :raises TimeoutError: if it has not started in 10 minutes; in virtual time, virtual ones.
            The text shows the errors of the startup handlers.
        :raises RuntimeError: if it runs already.
        """
        if self._task is not None and not self._task.done():
            raise RuntimeError("The operator runs already. Stop it first, or make another one.")
        loop = asyncio.get_running_loop()
        registry = self._registry
        if self._sources:
            registry = load(self._sources, registry, is_fresh=self.is_fresh)
        if self.before_start is not None:
            await self.before_start(
                registry if registry is not None else registries.get_default_registry())
        if not isinstance(loop.get_task_factory(), _TaskFactory):
            loop.set_task_factory(_TaskFactory(loop.get_task_factory()))
        self._stop, ready = asyncio.Event(), loop.create_future()
        context = contextvars.copy_context()
        context.run(_current.set, self)
        if registry is not None:  # its startup handlers can declare others
            context.run(registries.default_registry_var.set, registry)
        self._task = loop.create_task(
            self._run(registry, ready), name='operator under test', context=context)
        late = loop.create_task(self._wait_too_long())
        try:
            await asyncio.wait([ready, self._task, late], return_when=asyncio.FIRST_COMPLETED)
            if late.done():
                raise TimeoutError(
                    f"{late.result()}The operator has not started in {START_TIMEOUT:g} seconds.")
        finally:
            await aiotasks.cancel([late])
            if not ready.done() or self._task.done():
                await self.stop()

    async def stop(self) -> None:
        """
        Stop the operator as by a signal, if it runs, and wait for its end.

        :raises Exception: the error with which the operator has ended.
        """
        if self._task is not None:
            task, self._task = self._task, None
            self._stop.set()
            with self._interrupting_hung(task):
                await task

    @contextlib.contextmanager
    def _interrupting_hung(self, root: asyncio.Task[None]) -> Iterator[None]:
        """Cancel all tasks again and again if async handlers go on after their cancellation."""
        loop, since = asyncio.get_running_loop(), time.monotonic()

        def check(_: float) -> None:
            nonlocal since
            if not any(map(_is_hung, self._underway)):
                since = time.monotonic()
            elif time.monotonic() - since > FAREWELL:
                is_root_stuck = any(map(_is_stuck, self._roots))
                for task in self.tasks if is_root_stuck else self.tasks - {root}:
                    task.cancel()
            else:
                time.sleep(0.01)  # so that virtual time does not fill the log meanwhile
            alarm.set(loop.time() + describing.REMINDER_INTERVAL)

        alarm = alarms.Alarm(check)
        alarm.set(loop.time() + describing.REMINDER_INTERVAL)
        try:
            yield
        finally:
            alarm.cancel()

    @property
    def text(self) -> str:
        """The whole log as one text."""
        return '\n'.join(self.log)

    async def wait_log(
            self, pattern: str, *, count: int = 1, timeout: float = waiting.TIMEOUT,
    ) -> list[str]:
        """
        Wait until the log contains messages that match a pattern.

        :param pattern: a regular expression, which is searched in each message.
        :param count: how many messages must match.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :returns: the messages that match.
        :raises AssertionError: if there are not enough messages in time; the text shows the log.
        """
        def find() -> list[str]:
            found = [line for line in self.log if re.search(pattern, line)]
            return found if len(found) >= count else []

        def explain(_: object) -> str:
            return (f"The log has {len(find()) or 'no'} lines with {pattern!r} after {timeout:g} "
                    f"seconds:\n{self.text}")

        lines: list[str] = await waiting.wait_for(find, timeout=timeout, explain=explain)
        return lines

    async def _wait_too_long(self) -> str:
        """Wait until the startup handlers have had enough time; say which have not succeeded."""
        loop, why = asyncio.get_running_loop(), ''
        until = loop.time() + START_TIMEOUT
        while not why:
            if isinstance(loop, virtual.VirtualLoop):  # only what the operator does moves the time
                await loop.wait_idle(after=max(until, loop.time()))
            else:
                await asyncio.sleep(max(until - loop.time(), 1.0))
            why = capturing.describe_failures(self.log) or ''.join(
                f"{call.describe(loop.time())} has not ended.\n" for call in self._underway)
        return why

    async def _run(
            self, registry: registries.OperatorRegistry | None, ready: 'asyncio.Future[Any]',
    ) -> None:
        with capturing.capture(self.log):
            with _keep_signals():
                self._roots = await running.spawn_tasks(
                    registry=registry, settings=self.settings, ready_flag=ready,
                    stop_flag=self._stop,
                    **{'vault': vaults.Vault({'test': self._credentials}), **self._options})
            with shutdown.prolong(self._roots) as self._underway:
                try:
                    await running.run_tasks(self._roots, ignored=_Foreign(self))
                finally:
                    if stuck := [task for task in self.tasks if _is_stuck(task)]:
                        virtual.forget(stuck)
                        for task in stuck:  # kept for ever: if destroyed, some would go on for ever
                            ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
                        raise RuntimeError(
                            "The operator has not stopped: its handlers go on: "
                            f"{describing.describe_tasks(stuck, self._underway)}.")


def load(
        sources: Iterable[
            str | os.PathLike[str] | types.ModuleType | registries.OperatorRegistry],
        registry: registries.OperatorRegistry | None = None,
        *,
        is_fresh: bool = False,
) -> registries.OperatorRegistry:
    """
    Collect the handlers of files, modules, and registries.

    Modules are imported once per process, and their handlers are copied. So are those of files that
    the test has imported as modules, unless ``is_fresh``. Other files are executed again for each
    registry.
    """
    registry = registry if registry is not None else registries.OperatorRegistry()
    for source in sources:
        if isinstance(source, types.ModuleType):
            scripts.copy_handlers(source.__name__, registry)
        elif isinstance(source, registries.OperatorRegistry):
            scripts.copy_registry(source, registry)
        elif isinstance(source, str) and not source.endswith('.py') and os.sep not in source:
            with scripts.load_into(registry):
                loaders.preload(paths=[], modules=[source])
            scripts.copy_handlers(source, registry)
        elif not is_fresh and (imported := scripts.find_imported(source)) is not None:
            scripts.copy_handlers(imported, registry)
        else:
            with scripts.load_into(registry):
                loaders.preload(paths=[source], modules=[])
    return registry


class _Foreign(shutdown.Foreign):
    """The tasks of the loop that the operator has not started, or cannot end."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self._operator = operator

    def __contains__(self, task: object) -> bool:
        return not isinstance(task, asyncio.Task) or (
            task not in self._operator.tasks or _is_stuck(task))


def _is_stuck(task: asyncio.Task[Any]) -> bool:
    """Whether the task was cancelled often, in vain: most probably, it waits for a thread."""
    return not task.done() and task.cancelling() > MAX_CANCELLATIONS


def _is_hung(call: inflight.Call) -> bool:
    """Whether an async handler goes on after its cancellation. Cleanup handlers begin after it."""
    return (call.executor is None and call.task is not None and call.task.cancelling() > 0
            and getattr(call.handler, 'activity', None) is not causes.Activity.CLEANUP)


class _TaskFactory:
    """Makes tasks, and collects the tasks of each operator."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory or (
            lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))

    def __call__(
            self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any,
    ) -> 'asyncio.Task[Any]':
        task: asyncio.Task[Any] = self._factory(loop, coro, **options)
        context: contextvars.Context | None = options.get('context')
        operator = _current.get() if context is None else context.get(_current)
        if operator is not None:
            operator.tasks.add(task)
        return task


@contextlib.contextmanager
def _keep_signals() -> Iterator[None]:
    """Restore the signal handlers of the test runner after the operator has set its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    known = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        loop = asyncio.get_running_loop()
        for number, action in known.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, action)
