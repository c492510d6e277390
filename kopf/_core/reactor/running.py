"""
Running of operators: from the startup handlers to the cleanup handlers.

Root tasks run forever; when any of them ends, the operator ends. What they have started, they stop.
"""
import asyncio
import contextlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks, flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.clients import api
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import versions
from kopf._cogs.structs import ids, memos, references, vaults
from kopf._core.actions import lifecycles, reports
from kopf._core.engines import activities, indexing, posting
from kopf._core.engines.daemons import spawning
from kopf._core.intents import causes, registries, stopping
from kopf._core.reactor import (
    admitting,
    authentication,
    handling,
    observation,
    orchestration,
    peerings,
    processing,
    queueing,
)

logger = logging.getLogger(__name__)

HUNG_TASKS_TIMEOUT = 5.0
"""How long (seconds) the tasks that handlers have left behind can live when the operator exits."""


def run(
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        lifecycle: lifecycles.LifeCycleFn | None = None,
        indexers: indexing.OperatorIndexers | None = None,
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        memories: Any | None = None,
        insights: observation.Insights | None = None,
        identity: str | None = None,
        standalone: bool | None = None,
        priority: int | None = None,
        peering_name: str | None = None,
        liveness_endpoint: str | None = None,
        clusterwide: bool = False,
        namespaces: Collection[references.NamespacePattern] = (),
        namespace: references.NamespacePattern | None = None,
        stop_flag: flags.Flag | None = None,
        ready_flag: flags.Flag | None = None,
        vault: vaults.Vault | None = None,
        memo: object | None = None,
        _command: Coroutine[None, None, None] | None = None,
) -> None:
    """
    Run an operator, and return when it has stopped: by a signal, by the flag, or by an error.

    Without a loop, a new one is made for this run, as `asyncio.run` does. For the rest,
    see `operator`.
    """
    coro = operator(
        lifecycle=lifecycle, indexers=indexers, registry=registry, settings=settings,
        memories=memories, insights=insights, identity=identity, standalone=standalone,
        priority=priority, peering_name=peering_name, liveness_endpoint=liveness_endpoint,
        clusterwide=clusterwide, namespaces=namespaces, namespace=namespace,
        stop_flag=stop_flag, ready_flag=ready_flag, vault=vault, memo=memo, _command=_command)
    with contextlib.suppress(asyncio.CancelledError):
        if loop is None:
            asyncio.run(coro)
        else:
            loop.run_until_complete(coro)


async def operator(
        *,
        lifecycle: lifecycles.LifeCycleFn | None = None,
        indexers: indexing.OperatorIndexers | None = None,
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        memories: Any | None = None,
        insights: observation.Insights | None = None,
        identity: str | None = None,
        standalone: bool | None = None,
        priority: int | None = None,
        peering_name: str | None = None,
        liveness_endpoint: str | None = None,
        clusterwide: bool = False,
        namespaces: Collection[references.NamespacePattern] = (),
        namespace: references.NamespacePattern | None = None,
        stop_flag: flags.Flag | None = None,
        ready_flag: flags.Flag | None = None,
        vault: vaults.Vault | None = None,
        memo: object | None = None,
        _command: Coroutine[None, None, None] | None = None,
) -> None:
    """
    Run an operator in the current event loop until it is stopped.

    It is stopped by cancellation, by the stop flag (any event or future of asyncio or threads),
    by SIGINT & SIGTERM if in the main thread, or by errors that it cannot live with: a failed
    startup, no credentials. The ready flag is raised when the startup handlers have succeeded.

    :raises LoginError: if there are no credentials that the API accepts.
    :raises Exception: if the startup or cleanup has failed.
    """
    existing = asyncio.all_tasks()
    root_tasks = await spawn_tasks(
        lifecycle=lifecycle, indexers=indexers, registry=registry, settings=settings,
        memories=memories, insights=insights, identity=identity, standalone=standalone,
        priority=priority, peering_name=peering_name, liveness_endpoint=liveness_endpoint,
        clusterwide=clusterwide, namespaces=namespaces, namespace=namespace,
        stop_flag=stop_flag, ready_flag=ready_flag, vault=vault, memo=memo, _command=_command)
    await run_tasks(root_tasks, ignored=existing)


async def spawn_tasks(
        *,
        lifecycle: lifecycles.LifeCycleFn | None = None,
        indexers: indexing.OperatorIndexers | None = None,
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        memories: Any | None = None,
        insights: observation.Insights | None = None,
        identity: str | None = None,
        standalone: bool | None = None,
        priority: int | None = None,
        peering_name: str | None = None,
        liveness_endpoint: str | None = None,
        clusterwide: bool = False,
        namespaces: Collection[references.NamespacePattern] = (),
        namespace: references.NamespacePattern | None = None,
        stop_flag: flags.Flag | None = None,
        ready_flag: flags.Flag | None = None,
        vault: vaults.Vault | None = None,
        memo: object | None = None,
        _command: Coroutine[None, None, None] | None = None,
) -> Collection[asyncio.Task[Any]]:
    """
    Start an operator, and return its root tasks: to be given to `run_tasks`, or to be awaited.

    Cancel them to stop the operator. For the arguments, see `operator`.
    """
    registry = registry if registry is not None else registries.get_default_registry()
    settings = settings if settings is not None else configuration.OperatorSettings()
    memo = memo if memo is not None else memos.Memo()
    if namespace is not None:
        warnings.warn("namespace= is deprecated; use namespaces=[...].", DeprecationWarning,
                      stacklevel=2)
        namespaces = [*namespaces, namespace]
    if clusterwide and namespaces:
        raise TypeError("An operator is either cluster-wide, or for namespaces; not both.")
    if not clusterwide and not namespaces:
        warnings.warn("Neither namespaces= nor clusterwide=True: the operator is cluster-wide; "
                      "in the future, one of these will be required.", FutureWarning, stacklevel=2)
        clusterwide = True
    settings.peering.clusterwide = clusterwide
    if standalone is not None:
        settings.peering.standalone = standalone
    if peering_name is not None:
        settings.peering.name, settings.peering.mandatory = peering_name, True
    if priority is not None:
        settings.peering.priority = priority

    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[signal.Signals] = loop.create_future()
    core = _command if _command is not None else _run_core(
        lifecycle=lifecycle, indexers=indexers, registry=registry, settings=settings,
        insights=insights, clusterwide=clusterwide, namespaces=namespaces, ready_flag=ready_flag,
        vault=vault, memo=memo, identity=identity)
    core_task = loop.create_task(core, name="operator")
    _handle_signals(signalled, until=core_task)
    stopper = _wait_for_stop(stop_flag, signalled, settings)
    return [core_task, loop.create_task(stopper, name="stop-flag checker")]


async def run_tasks(
        root_tasks: Collection[asyncio.Task[Any]],
        *,
        ignored: Collection[asyncio.Task[Any]] = frozenset(),
) -> None:
    """
    Wait until any of the root tasks ends, then stop the others, and all that they have left behind.

    All tasks of the loop that are not ignored are considered as left behind: nobody can tell
    who has started them. So, do not run operators in the same loop with anything else.

    :raises Exception: the first of the errors of the root tasks.
    """
    try:
        await asyncio.wait(root_tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await aiotasks.cancel(root_tasks)
        current = asyncio.current_task()
        hung = [task for task in asyncio.all_tasks() if task not in ignored and task is not current]
        if hung:
            await asyncio.wait(hung, timeout=HUNG_TASKS_TIMEOUT)
            await aiotasks.cancel([task for task in hung if not task.done()])
    for task in root_tasks:
        if not task.cancelled():
            task.result()


async def _run_core(
        *,
        lifecycle: lifecycles.LifeCycleFn | None,
        indexers: indexing.OperatorIndexers | None,
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        insights: observation.Insights | None,
        clusterwide: bool,
        namespaces: Collection[references.NamespacePattern],
        ready_flag: flags.Flag | None,
        vault: vaults.Vault | None,
        memo: Any,
        identity: str | None,
) -> None:
    """The operator's life: startup, serving, cleanup."""
    logger.debug(f"Starting Kopf {versions.version}.")
    clock = clocks.Clock()
    indices = indexers if indexers is not None else indexing.OperatorIndexers()
    indices.ensure(registry._indexing)
    _complain(registry)

    async def run_activity(activity: causes.Activity) -> Mapping[ids.HandlerId, Any]:
        return await activities.run_activity(
            registry=registry, settings=settings, activity=activity, clock=clock, memo=memo,
            indices=indices)

    queue = reports.EventQueue(settings)
    posting.event_queue_var.set(queue)
    vault = vault if vault is not None else vaults.Vault()
    authentication.prepare(vault, registry=registry, run=lambda registry: activities.run_activity(
        registry=registry, settings=settings, activity=causes.Activity.AUTHENTICATION, clock=clock,
        memo=memo, indices=indices))
    client = api.Client(credentials=vault, settings=settings)
    env = handling.Environment(
        client=client, settings=settings, clock=clock, memo=memo, indices=indices,
        lifecycle=lifecycle)
    processor = processing.Processor(env, indices)
    lines = queueing.Lines(
        settings=settings, process=processor.process, settle=processor.settle,
        is_congested=processor.is_congested, index=processor.index, discard=processor.discard,
        reconsider=processor.reconsider, confirm=lambda: peers.confirm())
    peers = peerings.Peerings(
        client=client, settings=settings, clock=clock, identity=identity,
        pausables=[lines, processor.spawner])
    insights = observation.Insights() if insights is None else insights
    admission = admitting.Admission(env=env, registry=registry, insights=insights, lines=lines)
    poster: asyncio.Task[None] | None = None
    try:
        await run_activity(causes.Activity.STARTUP)
        poster = asyncio.create_task(
            posting.poster(client=client, settings=settings, queue=queue), name="poster of events")
        await vault.obtain()
        admission.start(client)
        if ready_flag is not None:
            flags.raise_flag(ready_flag)
        await aiotasks.gather(vault.guard(), admission.serve(), orchestration.serve(
            client=client, settings=settings, registry=registry, lines=lines,
            namespaces=namespaces, clusterwide=clusterwide, insights=insights, peers=peers,
            logger=logger))
    finally:
        await _clean_up(
            lines, processor.spawner, admission, poster, peers, client,
            run_activity(causes.Activity.CLEANUP))


async def _clean_up(
        lines: queueing.Lines,
        spawner: spawning.Spawner,
        admission: admitting.Admission,
        poster: asyncio.Task[None] | None,
        peers: peerings.Peerings,
        client: api.Client,
        cleanup: Coroutine[Any, Any, Any],
) -> None:
    try:
        try:
            await aiotasks.gather(
                lines.stop(), spawner.stop(stopping.DaemonStoppingReason.OPERATOR_EXITING))
        finally:
            await admission.stop()
        await cleanup
    finally:
        cleanup.close()
        if poster is not None:
            await aiotasks.cancel([poster])
        await peers.leave()
        await client.close()


def _complain(registry: registries.OperatorRegistry) -> None:
    """Say what is declared but not served by this version."""
    names = ', '.join(
        repr(handler.id) for handler in registry.get_activity_handlers(causes.Activity.PROBE))
    if names:
        logger.warning(f"This version of Kopf does not run probes yet; ignored: {names}.")


async def _wait_for_stop(
        stop_flag: flags.Flag | None,
        signalled: 'asyncio.Future[signal.Signals]',
        settings: configuration.OperatorSettings,
) -> None:
    waiting: set[asyncio.Future[Any]] = {signalled}
    if stop_flag is not None:
        waiting.add(asyncio.ensure_future(flags.wait_flag(stop_flag)))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await aiotasks.cancel([item for item in waiting if isinstance(item, asyncio.Task)])
    if signalled.done():
        logger.info(f"Signal {signalled.result().name} is received. Operator is stopping.")
        _limit_exiting(settings.process.ultimate_exiting_timeout)
    else:
        logger.info("Stop-flag is raised. Operator is stopping.")


def _handle_signals(
        signalled: 'asyncio.Future[signal.Signals]', *, until: asyncio.Task[Any],
) -> None:
    """Tell of the first signal; the others change nothing: they must not kill what is finishing."""
    if threading.current_thread() is not threading.main_thread():
        logger.warning("OS signals are ignored: running not in the main thread.")
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError):  # e.g. on Windows
            loop.add_signal_handler(number, _raise_once, signalled, number)
            until.add_done_callback(
                lambda _, number=number: loop.remove_signal_handler(number))  # type: ignore[misc]


def _raise_once(signalled: 'asyncio.Future[signal.Signals]', number: signal.Signals) -> None:
    if not signalled.done():
        signalled.set_result(number)


def _limit_exiting(timeout: float | None) -> None:
    """Leave in any case, even if something hangs: Python would wait for its threads forever."""
    if timeout is None:
        return
    timer = threading.Timer(timeout, _exit_hard, [timeout])
    timer.daemon = True
    timer.start()


def _exit_hard(timeout: float) -> None:
    names = sorted(thread.name for thread in threading.enumerate() if not thread.daemon)
    logger.error(f"The operator has not exited in {timeout} seconds; leaving regardless. "
                 f"These threads are still running: {', '.join(names)}.")
    logging.shutdown()
    os._exit(1)
