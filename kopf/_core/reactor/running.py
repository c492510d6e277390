"""
Running of operators: from the startup handlers to the cleanup handlers.

Root tasks run forever; when any of them ends, the operator ends. What they have started, they stop.
"""
import asyncio
import contextlib
import contextvars
import warnings
from collections.abc import Collection, Coroutine
from typing import Any

from kopf._cogs.aiokits import flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import memos, references
from kopf._core.actions import calls, lifecycles
from kopf._core.engines import indexing
from kopf._core.engines.probing import endpoints
from kopf._core.intents import registries
from kopf._core.reactor import leaving, observation, operating


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

    The health checks are served at ``liveness_endpoint``: ``http://host:port/path``; see
    `kopf._core.engines.probing`.

    :raises LoginError: if there are no credentials that the API accepts.
    :raises EndpointError: if the health checks cannot be served there.
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

    endpoint = None if liveness_endpoint is None else endpoints.Endpoint.parse(liveness_endpoint)
    loop = asyncio.get_running_loop()
    known = calls.Calls()
    context = contextvars.copy_context()
    core = _command
    if core is None:
        # Made in the context of its task: what it sets there is for its own tasks only.
        core = context.run(
            operating.Operator, known=known, endpoint=endpoint, lifecycle=lifecycle,
            indexers=indexers, registry=registry, settings=settings, insights=insights, vault=vault,
            memo=memo, identity=identity,
        ).run(clusterwide=clusterwide, namespaces=namespaces, ready_flag=ready_flag)
    core_task = loop.create_task(core, name="operator", context=context)
    exiting = leaving.start(core_task, known, settings)
    return [core_task, loop.create_task(exiting.wait(stop_flag), name="stop-flag checker")]


async def run_tasks(
        root_tasks: Collection[asyncio.Task[Any]],
        *,
        ignored: Collection[asyncio.Task[Any]] = frozenset(),
        return_when: str = asyncio.FIRST_COMPLETED,
) -> None:
    """
    Wait until any of the root tasks ends, then stop the others, and all that they have left behind.
    The latter has 5 seconds to end by itself, then it is cancelled.

    All tasks of the loop that are not ignored are considered as left behind: nobody can tell
    who has started them. So, do not run operators in the same loop with anything else.

    :raises Exception: the first of the errors of the root tasks.
    """
    with leaving.prolong(root_tasks) as known:
        try:
            await asyncio.wait(root_tasks, return_when=return_when)
        finally:
            await aiotasks.cancel(root_tasks)
            await leaving.finish_tasks(ignored=ignored, known=known)
    for task in root_tasks:
        if not task.cancelled():
            task.result()
