"""
Operators in the loop of the test, beside other things that run in it.
"""
import asyncio
import contextlib
import contextvars
import os
import re
import signal
import threading
import types
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Self

from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import loaders
from kopf._cogs.structs import credentials
from kopf._core.intents import registries
from kopf._core.reactor import running
from kopf._kits.testing import capturing, scripts, virtual, waiting

_current: contextvars.ContextVar['Operator | None'] = contextvars.ContextVar(
    'current_operator', default=None)
"""The operator under test to which the current task or handler belongs."""


class Operator:
    """
    An operator that runs until the end of the block, or until it is stopped.

    Its handlers are those of the files (``*.py``); of the modules, given by names or as they are;
    of the registry; without any of these, of the default registry. It is alone in its cluster
    unless told otherwise, and serves all of it unless there are namespaces. The rest is as in
    `kopf.operator`. It logs in with the credentials of the test, also if it has login handlers.

    The end raises the error of the operator if there is one.
    """

    def __init__(
            self,
            *sources: str | os.PathLike[str] | types.ModuleType,
            credentials: credentials.Credentials,
            registry: registries.OperatorRegistry | None = None,
            settings: configuration.OperatorSettings | None = None,
            namespaces: Collection[str] = (),
            standalone: bool = True,
            **options: Any,
    ) -> None:
        super().__init__()
        self.log: list[str] = []
        """The messages of the log, all levels, in their order; those about objects name them."""
        self.settings: configuration.OperatorSettings = (
            settings if settings is not None else configuration.OperatorSettings())
        self._owns_settings = settings is None
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._sources = sources
        self._registry = registry
        self._options: dict[str, Any] = {
            'vault': vaults.Vault({'test': credentials}), 'namespaces': namespaces,
            'clusterwide': not namespaces, 'standalone': standalone, **options}
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """
        Start it, and wait until its startup handlers have succeeded.

        :raises Exception: the error with which it has failed to start.
        """
        loop = asyncio.get_running_loop()
        registry = self._registry
        if self._sources:
            registry = load(self._sources, registry)
        if isinstance(loop, virtual.VirtualLoop):
            virtual.hold(loop, self.settings.execution.executor)
        if not isinstance(loop.get_task_factory(), _TaskFactory):
            loop.set_task_factory(_TaskFactory(loop.get_task_factory()))
        ready = asyncio.Event()
        context = contextvars.copy_context()
        context.run(_current.set, self)
        self._task = loop.create_task(
            self._run(registry, ready), name='operator under test', context=context)
        waiter = loop.create_task(ready.wait())
        await asyncio.wait([waiter, self._task], return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self._task.done():
            await self.stop()

    async def stop(self) -> None:
        """
        Stop it as by a signal, if it still runs, and wait until it has ended.

        :raises Exception: the error with which it has ended.
        """
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    @property
    def text(self) -> str:
        """The whole log."""
        return '\n'.join(self.log)

    async def wait_log(
            self, pattern: str, *, count: int = 1, timeout: float = waiting.TIMEOUT,
    ) -> list[str]:
        """Wait until the regular expression is found in so many messages; return these."""
        def find() -> list[str]:
            found = [line for line in self.log if re.search(pattern, line)]
            return found if len(found) >= count else []

        def explain(_: object) -> str:
            return (f"The log has {len(find()) or 'no'} lines with {pattern!r} after {timeout:g} "
                    f"seconds:\n{self.text}")

        lines: list[str] = await waiting.wait_for(find, timeout=timeout, explain=explain)
        return lines

    async def _run(
            self, registry: registries.OperatorRegistry | None, ready: asyncio.Event) -> None:
        with capturing.capture(self.log):
            with _keep_signals():
                roots = await running.spawn_tasks(
                    registry=registry, settings=self.settings, ready_flag=ready,
                    stop_flag=self._stop, **self._options)
            try:
                await running.run_tasks(roots, ignored=_Foreign(self))
            finally:
                if self._owns_settings:
                    self.settings.execution.executor.shutdown(wait=False)


def load(
        sources: Iterable[str | os.PathLike[str] | types.ModuleType],
        registry: registries.OperatorRegistry | None = None,
) -> registries.OperatorRegistry:
    """
    Collect the handlers of files and modules. Files are executed anew; modules are imported once
    in a process, into the default registry, where their handlers are taken from.
    """
    registry = registry if registry is not None else registries.OperatorRegistry()
    for source in sources:
        if isinstance(source, types.ModuleType):
            scripts.copy_handlers(source.__name__, registry)
        elif isinstance(source, str) and not source.endswith('.py') and os.sep not in source:
            loaders.preload(paths=[], modules=[source])
            scripts.copy_handlers(source, registry)
        else:
            with scripts.load_into(registry):
                loaders.preload(paths=[source], modules=[])
    return registry


class _Foreign(Collection[asyncio.Task[Any]]):
    """All the tasks of the loop which the operator has not started."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self._operator = operator

    def __contains__(self, task: object) -> bool:
        return task not in self._operator.tasks

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(task for task in asyncio.all_tasks() if task in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _TaskFactory:
    """Makes tasks, and remembers those of the operators."""

    def __init__(self, factory: Any) -> None:
        super().__init__()
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
    """Leave the signals to whoever runs the tests."""
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
