"""
Running an operator: the public functions to run it from synchronous or asynchronous code.

The operator consists of root tasks, which run until they are cancelled. When any of them ends, the
others are cancelled. Each root task stops all that it has started.
"""
import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from kopf._cogs.aiokits import flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import loaders
from kopf._cogs.serving import endpoints
from kopf._cogs.structs import references
from kopf._core.actions import inflight, observers
from kopf._core.intents import registries
from kopf._core.reactor import operating
from kopf._kits import shutdown

if TYPE_CHECKING:
    from kopf._kits.observing import inspection

_P = ParamSpec('_P')
_R = TypeVar('_R')


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Options(operating.Options):
    """The parameters of `kopf.operator`, which describes them."""
    settings: configuration.OperatorSettings | None = None
    memories: Any | None = None
    standalone: bool | None = None
    priority: int | None = None
    peering_name: str | None = None
    metrics_endpoint: str | None = None
    namespace: references.NamespacePattern | None = None
    stop_flag: flags.Flag | None = None
    _command: Coroutine[None, None, None] | None = None
    _observer: observers.Observer | None = None
    _shadow: 'inspection.Shadow | None' = None
    _adjust: Callable[[configuration.OperatorSettings], None] | None = None

    def __post_init__(self) -> None:
        _verify(vars(self))
        if isinstance(self.namespaces, str):  # not a collection of its letters
            self.namespaces = [self.namespaces]
        if self.namespace is not None:
            warnings.warn("namespace= is deprecated; use namespaces=[...].", DeprecationWarning,
                          stacklevel=4)
            self.namespaces = [*self.namespaces, self.namespace]
        if self.clusterwide and self.namespaces:
            raise TypeError("An operator is either cluster-wide, or for namespaces; not both.")
        if not self.clusterwide and not self.namespaces:
            warnings.warn(
                "Neither namespaces= nor clusterwide=True: the operator is cluster-wide; in the "
                "future, one of these will be required.", FutureWarning, stacklevel=4)
            self.clusterwide = True


TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    'registry': (registries.OperatorRegistry, "a kopf.OperatorRegistry"),
    'settings': (configuration.OperatorSettings, "kopf.OperatorSettings"),
    'namespaces': (Iterable, "a collection of names, patterns, or regular expressions"),
    'lifecycle': (Callable, "a function"),  # type: ignore[dict-item]
    'identity': (str, "a string"),
    'liveness_endpoint': (str, "a URL"),
    'loop': (asyncio.AbstractEventLoop, "an event loop of asyncio"),
}
"""The types of the parameters that would fail late otherwise, and far from here."""


def _verify(parameters: Mapping[str, Any]) -> None:
    """
    Verify that an operator may start, and the types of the parameters that are given.

    :raises RuntimeError: if Kopf is importing the file that starts the operator.
    :raises TypeError: if one of the parameters is of a wrong type.
    """
    if loaders.importing.now:
        raise RuntimeError("The file runs an operator when Kopf imports it. Put the call under: "
                           "if __name__ == '__main__':")
    for name, (type_, wanted) in TYPES.items():
        value = parameters.get(name)
        is_right = value is None or isinstance(value, type_)
        if name == 'namespaces' and isinstance(value, Collection):
            is_right = all(isinstance(each, (str, re.Pattern)) for each in value)
        if not is_right:
            raise TypeError(f"{name}= must be {wanted}, not {value!r}.")


def _with_parameters_of(
        other: Callable[_P, object],
) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Give a function the signature of another one, except for what it returns."""
    def decorate(fn: Callable[..., _R]) -> Callable[_P, _R]:
        own = inspect.signature(fn).return_annotation
        fn.__signature__ = inspect.signature(  # type: ignore[attr-defined]
            other).replace(return_annotation=own)
        return fn
    return decorate


def _observe(options: Options, operator: operating.Operator) -> Iterator[operating.Extension]:
    """
    Make the extensions of an operator: for traces, for metrics, and for its present state.

    :raises SettingsError: if the library for any of them is absent.
    :raises EndpointError: if an endpoint is not a valid URL.
    """
    settings, shadow = operator.settings, options._shadow
    if options._adjust is not None:
        options._adjust(settings)
    if options._observer is not None:
        yield operating.Extension(observer=options._observer)
    if shadow is not None:
        operator.client.add_headers(shadow.make_headers)
        yield operating.Extension(observer=shadow)
    if settings.tracing.enabled:
        from kopf._kits.observing import tracing  # only if it is used
        tracing.follow(operator.client)
        yield operating.Extension(observer=tracing.Tracer())
    if settings.metrics.endpoint is not None:
        from kopf._kits.observing import inspection, metrics  # only if they are used
        measures = metrics.Measures(inspection.Inspector(operator, shadow))
        operator.client.count_requests(measures.meter.count_request)
        yield operating.Extension(
            observer=measures.meter,
            page=endpoints.Page(
                'metrics', '--metrics',
                endpoints.Endpoint.parse(settings.metrics.endpoint, default_path='/metrics'),
                measures.respond, measures.close),
            wrap_reviews=measures.observe_reviews, run=measures.meter.run)
    if settings.debugging.endpoint is not None:
        from kopf._kits.observing import debug, inspection  # only if they are used
        debugger = debug.Debugger(inspection.Inspector(operator, shadow))
        yield operating.Extension(page=endpoints.Page(
            'insides of the operator', '--debug-endpoint',
            endpoints.Endpoint.parse(settings.debugging.endpoint, default_path='/debug'),
            debugger.respond, debugger.close))


@_with_parameters_of(Options)
async def spawn_tasks(**parameters: Any) -> Collection[asyncio.Task[Any]]:
    """
    Start an operator, and return its root tasks, which are for `kopf.run_tasks`.

    To stop the operator, cancel any of the root tasks.

    ::

        tasks = await kopf.spawn_tasks(clusterwide=True)
        await kopf.run_tasks(tasks)

    See "Embed an operator in a program" in the documentation.

    :param clusterwide: whether to serve all namespaces. It excludes ``namespaces``. Default: no;
        but if there are no ``namespaces`` either, the operator is cluster-wide, with a warning.
    :param namespaces: the namespaces to serve: names, patterns such as ``'dev-*'``, or regular
        expressions. Default: none.
    :param namespace: one more item of ``namespaces``. Deprecated: use ``namespaces``.
    :param registry: the handlers. Default: the default registry, which gets the handlers of all
        decorators without ``registry=``.
    :param lifecycle: which of the due handlers of an object Kopf calls, and in which order; see
        `kopf.lifecycles`. Default: the lifecycle of `kopf.set_default_lifecycle`.
    :param settings: the settings. The peering parameters below change them. Default: new
        `kopf.OperatorSettings`.
    :param memo: what activity handlers get as ``memo``. Each object gets its own shallow copy.
        Default: an empty `kopf.Memo`.
    :param standalone: whether to ignore peerings. Default: ``settings.peering.standalone``.
    :param priority: the priority in the peering, an integer. Default:
        ``settings.peering.priority``.
    :param peering_name: the name of the peering, which becomes mandatory. Default:
        ``settings.peering.name``.
    :param identity: the name of this operator in the peering, or in its Lease. Default: ``$POD_ID``
        if it is set, otherwise a name made of the user, the host, and the time.
    :param liveness_endpoint: where to serve health checks, e.g. ``'http://0.0.0.0:8080/healthz'``.
        Default: Kopf serves none.
    :param metrics_endpoint: where to serve metrics for Prometheus, e.g.
        ``'http://0.0.0.0:8080/metrics'``. Default: ``settings.metrics.endpoint``.
    :param stop_flag: an event or a future, of asyncio or of threads. The operator stops when it is
        set, and raises the error of a future. Default: none.
    :param ready_flag: an event or a future, of asyncio or of threads. The operator sets it when the
        startup handlers have succeeded and the credentials are available. Default: none.
    :param vault: the credentials. Default: the login handlers provide them.
    :param indexers: the indices, if the application reads them. Default: internal ones.
    :param insights: the observed resources and namespaces, if the application reads them. Default:
        internal ones.
    :param memories: ignored; accepted for compatibility.
    :param _command: a coroutine to run instead of the operator. Internal.
    :param _observer: what is notified of attempts and writes. Internal.
    :param _shadow: what compares the operator with another one. Internal.
    :param _adjust: what changes the settings after the startup handlers. Internal.
    :returns: the root tasks.
    :raises TypeError: if both ``clusterwide`` and ``namespaces`` are given, or if a parameter is of
        a wrong type, e.g. if a flag is neither an event nor a future.
    :raises RuntimeError: if a command of Kopf, or `kopf.testing`, is importing the calling file.
    :raises LoginError: if there are no credentials that the API server accepts.
    :raises EndpointError: if Kopf cannot serve the health checks or the metrics at the endpoint.
    """
    options = Options(**parameters)
    settings = configuration.OperatorSettings() if options.settings is None else options.settings
    settings.peering.clusterwide = options.clusterwide
    if options.standalone is not None:
        settings.peering.standalone = options.standalone
    if options.peering_name is not None:
        settings.peering.name, settings.peering.mandatory = options.peering_name, True
    if options.priority is not None:
        settings.peering.priority = options.priority
    if options.metrics_endpoint is not None:
        settings.metrics.endpoint = options.metrics_endpoint

    loop = asyncio.get_running_loop()
    underway = inflight.Calls()
    context = contextvars.copy_context()
    core = options._command
    if core is None:
        # Made in the context of its task: the operator's context variables must not leak from here.
        core = context.run(
            operating.Operator, options, settings=settings, underway=underway,
            extend=functools.partial(_observe, options)).run()
    core_task = loop.create_task(core, name="operator", context=context)
    ending = shutdown.start(core_task, underway, settings)
    return [core_task, loop.create_task(ending.wait(options.stop_flag), name="stop-flag checker")]


@_with_parameters_of(Options)
async def operator(**parameters: Any) -> None:
    """
    Run an operator in the current event loop, and return when it has stopped.

    The operator stops when its task is cancelled; when the ``stop_flag`` is set; on SIGINT and
    SIGTERM, if it runs in the main thread; or on an error that it cannot recover from, e.g. when a
    startup handler fails permanently.

    ::

        async with asyncio.TaskGroup() as group:
            group.create_task(kopf.operator(clusterwide=True))

    See "Embed an operator in a program" in the documentation.

    :param clusterwide: whether to serve all namespaces. It excludes ``namespaces``. Default: no;
        but if there are no ``namespaces`` either, the operator is cluster-wide, with a warning.
    :param namespaces: the namespaces to serve: names, patterns such as ``'dev-*'``, or regular
        expressions. Default: none.
    :param namespace: one more item of ``namespaces``. Deprecated: use ``namespaces``.
    :param registry: the handlers. Default: the default registry, which gets the handlers of all
        decorators without ``registry=``.
    :param lifecycle: which of the due handlers of an object Kopf calls, and in which order; see
        `kopf.lifecycles`. Default: the lifecycle of `kopf.set_default_lifecycle`.
    :param settings: the settings. The peering parameters below change them. Default: new
        `kopf.OperatorSettings`.
    :param memo: what activity handlers get as ``memo``. Each object gets its own shallow copy.
        Default: an empty `kopf.Memo`.
    :param standalone: whether to ignore peerings. Default: ``settings.peering.standalone``.
    :param priority: the priority in the peering, an integer. Default:
        ``settings.peering.priority``.
    :param peering_name: the name of the peering, which becomes mandatory. Default:
        ``settings.peering.name``.
    :param identity: the name of this operator in the peering, or in its Lease. Default: ``$POD_ID``
        if it is set, otherwise a name made of the user, the host, and the time.
    :param liveness_endpoint: where to serve health checks, e.g. ``'http://0.0.0.0:8080/healthz'``.
        Default: Kopf serves none.
    :param metrics_endpoint: where to serve metrics for Prometheus, e.g.
        ``'http://0.0.0.0:8080/metrics'``. Default: ``settings.metrics.endpoint``.
    :param stop_flag: an event or a future, of asyncio or of threads. The operator stops when it is
        set, and raises the error of a future. Default: none.
    :param ready_flag: an event or a future, of asyncio or of threads. The operator sets it when the
        startup handlers have succeeded and the credentials are available. Default: none.
    :param vault: the credentials. Default: the login handlers provide them.
    :param indexers: the indices, if the application reads them. Default: internal ones.
    :param insights: the observed resources and namespaces, if the application reads them. Default:
        internal ones.
    :param memories: ignored; accepted for compatibility.
    :param _command: a coroutine to run instead of the operator. Internal.
    :param _observer: what is notified of attempts and writes. Internal.
    :param _shadow: what compares the operator with another one. Internal.
    :param _adjust: what changes the settings after the startup handlers. Internal.
    :raises TypeError: if both ``clusterwide`` and ``namespaces`` are given, or if a parameter is of
        a wrong type, e.g. if a flag is neither an event nor a future.
    :raises RuntimeError: if a command of Kopf, or `kopf.testing`, is importing the calling file.
    :raises LoginError: if there are no credentials that the API server accepts.
    :raises EndpointError: if Kopf cannot serve the health checks or the metrics at the endpoint.
    :raises Exception: if a startup or cleanup handler has failed permanently.
    """
    existing = asyncio.all_tasks()
    await run_tasks(await spawn_tasks(**parameters), ignored=existing)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class _RunOptions(Options):
    loop: asyncio.AbstractEventLoop | None = None


@_with_parameters_of(_RunOptions)
def run(**parameters: Any) -> None:
    """
    Run an operator from synchronous code, and return when it has stopped.

    It stops for the reasons for which `kopf.operator` stops.

    ::

        kopf.run(namespaces=['default'], standalone=True)

    See "Embed an operator in a program" in the documentation.

    :param loop: the event loop to run in. Default: a new loop, as `asyncio.run` makes it.
    :param clusterwide: whether to serve all namespaces. It excludes ``namespaces``. Default: no;
        but if there are no ``namespaces`` either, the operator is cluster-wide, with a warning.
    :param namespaces: the namespaces to serve: names, patterns such as ``'dev-*'``, or regular
        expressions. Default: none.
    :param namespace: one more item of ``namespaces``. Deprecated: use ``namespaces``.
    :param registry: the handlers. Default: the default registry, which gets the handlers of all
        decorators without ``registry=``.
    :param lifecycle: which of the due handlers of an object Kopf calls, and in which order; see
        `kopf.lifecycles`. Default: the lifecycle of `kopf.set_default_lifecycle`.
    :param settings: the settings. The peering parameters below change them. Default: new
        `kopf.OperatorSettings`.
    :param memo: what activity handlers get as ``memo``. Each object gets its own shallow copy.
        Default: an empty `kopf.Memo`.
    :param standalone: whether to ignore peerings. Default: ``settings.peering.standalone``.
    :param priority: the priority in the peering, an integer. Default:
        ``settings.peering.priority``.
    :param peering_name: the name of the peering, which becomes mandatory. Default:
        ``settings.peering.name``.
    :param identity: the name of this operator in the peering, or in its Lease. Default: ``$POD_ID``
        if it is set, otherwise a name made of the user, the host, and the time.
    :param liveness_endpoint: where to serve health checks, e.g. ``'http://0.0.0.0:8080/healthz'``.
        Default: Kopf serves none.
    :param metrics_endpoint: where to serve metrics for Prometheus, e.g.
        ``'http://0.0.0.0:8080/metrics'``. Default: ``settings.metrics.endpoint``.
    :param stop_flag: an event or a future, of asyncio or of threads. The operator stops when it is
        set, and raises the error of a future. Default: none.
    :param ready_flag: an event or a future, of asyncio or of threads. The operator sets it when the
        startup handlers have succeeded and the credentials are available. Default: none.
    :param vault: the credentials. Default: the login handlers provide them.
    :param indexers: the indices, if the application reads them. Default: internal ones.
    :param insights: the observed resources and namespaces, if the application reads them. Default:
        internal ones.
    :param memories: ignored; accepted for compatibility.
    :param _command: a coroutine to run instead of the operator. Internal.
    :param _observer: what is notified of attempts and writes. Internal.
    :param _shadow: what compares the operator with another one. Internal.
    :param _adjust: what changes the settings after the startup handlers. Internal.
    :raises TypeError: if both ``clusterwide`` and ``namespaces`` are given, or if a parameter is of
        a wrong type, e.g. if a flag is neither an event nor a future.
    :raises RuntimeError: if a command of Kopf, or `kopf.testing`, is importing the calling file.
    :raises LoginError: if there are no credentials that the API server accepts.
    :raises EndpointError: if Kopf cannot serve the health checks or the metrics at the endpoint.
    :raises Exception: if a startup or cleanup handler has failed permanently.
    """
    loop: asyncio.AbstractEventLoop | None = parameters.pop('loop', None)
    _verify({'loop': loop})
    coro = operator(**parameters)
    with contextlib.suppress(asyncio.CancelledError):
        if loop is None:
            asyncio.run(coro)
        else:
            loop.run_until_complete(coro)


async def run_tasks(
        root_tasks: Collection[asyncio.Task[Any]],
        *,
        ignored: Container[asyncio.Task[Any]] = frozenset(),
        return_when: str = asyncio.FIRST_COMPLETED,
) -> None:
    """
    Wait until any of the root tasks ends; then, stop all other tasks of the event loop.

    Kopf cancels the root tasks at once. The other tasks are those that handlers have started: they
    have 5 seconds to end, and then Kopf cancels them; at once, if this call is cancelled. Asyncio
    does not know which task has started which, so Kopf stops all tasks of the event loop except the
    ``ignored`` ones.

    ::

        tasks = await kopf.spawn_tasks(clusterwide=True)
        await kopf.run_tasks(tasks)

    See "Embed an operator in a program" in the documentation.

    :param root_tasks: the tasks that `kopf.spawn_tasks` has returned.
    :param ignored: the tasks of your application, which Kopf must not stop. Default: none.
    :param return_when: when to stop the tasks, as in `asyncio.wait`. Default: when the first root
        task ends.
    :raises Exception: the first error of the root tasks.
    """
    timeout = shutdown.HUNG_TASKS_TIMEOUT
    with shutdown.prolong(root_tasks) as underway:
        try:
            await asyncio.wait(root_tasks, return_when=return_when)
        except asyncio.CancelledError:
            timeout = 0.0  # the one who cancels waits, and is often one of these tasks
            raise
        finally:
            await aiotasks.cancel(root_tasks)
            await shutdown.finish_tasks(ignored=ignored, underway=underway, timeout=timeout)
    for task in root_tasks:
        if not task.cancelled():
            task.result()
