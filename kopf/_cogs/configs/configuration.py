"""
The settings of an operator: what a user may tune, in sections by subject.

Settings are plain mutable objects. They are meant to be changed in startup handlers, before the
operator begins its work; the parts of the framework read them when they need them, so most of them
take effect also when changed later. Every operator has its own object: nothing here is global. All
times are in seconds.

Backoffs are "how long to pause between tries". They are any iterable (also an endless one; only
``iter()`` is called on it, anew for each sequence of tries), or one number for one pause. ``()``
means: no second try.
"""

import concurrent.futures
import dataclasses
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterable

from kopf._cogs.configs import diffbase, progress
from kopf._cogs.structs import references, reviews


@dataclasses.dataclass
class ProcessSettings:
    """How the operator's process as a whole behaves."""

    ultimate_exiting_timeout: float | None = 10 * 60
    """
    From the first signal to exit until the process is ended by force, whatever still runs: stuck
    handlers and threads included. `None` waits for ever. Default: 600 (10 minutes).
    """


@dataclasses.dataclass
class PostingSettings:
    """
    How Kubernetes events about the objects are posted, both those asked for explicitly and those of
    log lines.
    """

    enabled: bool = True
    """
    Whether anything is posted at all. If not, then also `kopf.event()` and its kin do nothing.
    Default: yes.
    """

    loggers: bool = True
    """
    Whether the log lines about an object (those of the handlers' ``logger`` and of the framework)
    are posted as events of that object. It does not affect `kopf.event()` and its kin. Default:
    yes.
    """

    level: int = logging.INFO
    """
    The lowest level of log lines, and of `kopf.event()`'s kin, that is posted. Default:
    `logging.INFO`.
    """

    default_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21)
    """
    Pauses between the tries to post an event that the code asked for. Default: 9 tries in about a
    minute.
    """

    logging_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5)
    """Pauses between the tries to post a log line. Default: 6 tries in 12 seconds."""

    worker_limit: int | None = None
    """
    How many events are posted at the same time at most. Default: `None`, the framework's choice.
    """

    idle_timeout: float = 1.0
    """How long the poster's workers stay around without work before they end. Default: 1."""

    reporting_component: str = 'kopf'
    """The name of the operator in the events' ``reportingComponent``. Default: ``kopf``."""

    reporting_instance: str = 'dev'
    """
    The name of this instance of the operator in the events' ``reportingInstance``. Default:
    ``dev``.
    """

    event_name_prefix: str = 'kopf-event-'
    """
    What the names of the events begin with; the API adds a random end. Default: ``kopf-event-``.
    """


@dataclasses.dataclass
class PeeringSettings:
    """How several operators for the same objects agree on which of them works, and which waits."""

    name: str = 'default'
    """The name of the peering object in which the operators meet. Default: ``default``."""

    stealth: bool = False
    """Whether the keep-alive messages to the peers are kept out of the log. Default: no."""

    priority: int = 0
    """The operator with the highest priority works, the others wait. Any integer. Default: 0."""

    lifetime: int = 60
    """
    For how long an operator counts as alive after its last sign of life, in whole seconds. Default:
    60.
    """

    mandatory: bool = False
    """
    Whether to wait until the peering object exists; otherwise, the operator works without it.
    Default: no.
    """

    standalone: bool = False
    """Whether to work as if there were no other operators, and to look for none. Default: no."""

    clusterwide: bool = False
    """
    Whether the operators meet in a ``ClusterKopfPeering`` rather than in ``KopfPeering`` objects.
    Default: no.
    """

    @property
    def namespaced(self) -> bool:
        """The opposite of `clusterwide`, both for reading and writing."""
        return not self.clusterwide

    @namespaced.setter
    def namespaced(self, value: bool) -> None:
        self.clusterwide = not value


@dataclasses.dataclass
class WatchingSettings:
    """How the objects are listed and watched."""

    server_timeout: float | None = None
    """
    How long a watching request lasts before the server closes it. It is asked of the server, which
    does as it likes. Default: `None`, the server's choice.
    """

    client_timeout: float | None = None
    """
    How long a watching request lasts, connecting included, before this side closes it. Default: no
    limit.
    """

    connect_timeout: float | None = None
    """
    How long connecting for a watching request may take. Default: `None`, then
    `NetworkingSettings.connect_timeout` counts if it is set, else
    `NetworkingSettings.request_timeout`.
    """

    reconnect_backoff: float = 0.1
    """
    The least pause between two watching requests for the same resource, after whatever end.
    Default: 0.1.
    """

    inactivity_timeout: float = 70.0
    """
    How long a watching request may stay silent (neither events nor bookmarks) before it is taken
    for dead and made anew. The API sends a bookmark about once a minute. Default: 70.
    """

    chunk_size: int | None = None
    """
    How many objects are asked for in each page when listing; also of CRDs and namespaces. Default:
    all at once.
    """

    initial_streaming: bool = False
    """
    Whether the first state comes by the watch itself (``sendInitialEvents``) instead of a list.
    Where the server does not know how, the objects are listed. Default: no.
    """

    label_selectors: references.SelectorMapping[str] = dataclasses.field(
        default_factory=references.SelectorMapping)
    """
    Label selectors, in Kubernetes' notation, by which the server chooses the objects to list and
    watch, for the resources that match the mapping's keys. A key is what decorators accept: a name,
    a tuple of two or three parts, a callable, `kopf.EVERYTHING`. All that match apply together.
    Default: none.
    """

    field_selectors: references.SelectorMapping[str] = dataclasses.field(
        default_factory=references.SelectorMapping)
    """The same as `label_selectors`, for field selectors. Default: none."""

    shard_selectors: references.SelectorMapping[str] = dataclasses.field(
        default_factory=references.SelectorMapping)
    """
    The same as `label_selectors`, for shards of lists and watches, where the API supports them; of
    several that match only the first applies. Default: none.
    """


@dataclasses.dataclass
class QueueingSettings:
    """How the changes of the objects wait for their turn."""

    worker_limit: int | None = None
    """How many objects are handled at the same time at most. Default: no limit."""

    idle_timeout: float = 5.0
    """How long the line of an object is kept when nothing is in it. Default: 5."""

    exit_timeout: float = 2.0
    """
    How long the objects being handled when the operator exits have to finish by themselves.
    Default: 2.
    """

    error_delays: Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
    """
    Pauses of an object after each consecutive failure of the framework or of the API (not of
    handlers) while handling it; the last one repeats for ever. ``()``: no pauses. Default:
    Fibonacci numbers up to about 10 minutes.
    """

    _batch_window: float = 0.1

    @property
    def batch_window(self) -> float:
        """
        How long to wait for more changes of the same object before handling the newest. Default:
        0.1.

        It is deprecated: only the newest state of an object waits in its line, so there is nothing
        to gather.
        """
        _deprecate("settings.queueing.batch_window is deprecated: batches are not gathered.")
        return self._batch_window

    @batch_window.setter
    def batch_window(self, value: float) -> None:
        _deprecate("settings.queueing.batch_window is deprecated: batches are not gathered.")
        self._batch_window = value


@dataclasses.dataclass
class ScanningSettings:
    """How the resource kinds and the namespaces of the cluster are discovered."""

    disabled: bool = False
    """
    Whether to look at the kinds and namespaces only once, at the start, and to ignore those that
    come and go later: for operators that may not watch CRDs and namespaces. Default: no.
    """


@dataclasses.dataclass
class AdmissionSettings:
    """How admission requests get from the cluster to the webhook handlers."""

    server: Callable[[reviews.WebhookFn], AsyncIterator[reviews.WebhookClientConfig]] | None = None
    """
    A server or a tunnel: it gets the function to be called with every admission request, and yields
    the client configs by which the cluster can reach it. Default: none; it is needed if there are
    webhook handlers.
    """

    managed: str | None = None
    """
    The name of the webhook configurations that the operator keeps up to date in the cluster.
    Default: `None`, they are managed by someone else.
    """


class _DefaultExecutor(concurrent.futures.ThreadPoolExecutor):
    pass


@dataclasses.dataclass
class ExecutionSettings:
    """How handlers are executed."""

    default_backoff: float = 60
    """
    The pause of a handler after an arbitrary exception, if the handler has no ``backoff=``.
    Default: 60.
    """

    executor: concurrent.futures.Executor = dataclasses.field(default_factory=_DefaultExecutor)
    """
    Where the synchronous handlers run. Handlers that run when it is replaced, finish where they
    have begun. Default: a thread pool of this operator's own.
    """

    _max_workers: int | None = None

    @property
    def has_default_executor(self) -> bool:
        """Whether the author has not chosen another executor."""
        return isinstance(self.executor, _DefaultExecutor)

    def release_threads(self) -> None:
        """Let the idle threads of the default executor end; there will be new ones when needed."""
        if self.has_default_executor:
            self.executor = _DefaultExecutor(self._max_workers)

    @property
    def max_workers(self) -> int | None:
        """
        How many synchronous handlers run at the same time. Default: `None`, Python's choice for
        thread pools.

        It re-sizes the executor in place, so running handlers are not affected. Raises a
        `ValueError` for numbers below 1. Warns if `executor` is not a thread pool: those have sizes
        of their own, and cannot be re-sized.
        """
        return self._max_workers

    @max_workers.setter
    def max_workers(self, value: int | None) -> None:
        if value is not None and value < 1:
            raise ValueError("The number of workers must be at least 1.")
        self._max_workers = value
        if isinstance(self.executor, concurrent.futures.ThreadPoolExecutor):
            default = concurrent.futures.ThreadPoolExecutor()._max_workers
            self.executor._max_workers = default if value is None else value
        else:
            warnings.warn(
                "Only thread pools can be re-sized: max_workers has no effect on this executor.",
                UserWarning, stacklevel=2)


@dataclasses.dataclass
class BackgroundSettings:
    """How daemons and timers are stopped."""

    cancellation_polling: float = 60
    """
    How often a daemon that was told to end, and that cannot be cancelled, is checked upon. Default:
    60.
    """

    instant_exit_timeout: float | None = None
    """
    How long a daemon has to end at once after it was told to, before it is polled and reported.
    Default: `None`, then `instant_exit_zero_time_cycles` decides.
    """

    instant_exit_zero_time_cycles: int | None = 10
    """The same, in turns of the event loop instead of seconds. Default: 10."""


@dataclasses.dataclass
class NetworkingSettings:
    """How regular (not watching) requests to the API are made."""

    request_timeout: float | None = 5 * 60
    """
    How long one try of a request may take in total. `None`: no limit. Default: 300 (5 minutes).
    """

    connect_timeout: float | None = None
    """
    How long connecting may take. Default: `None`, no limit of its own but the one of the request.
    """

    error_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21)
    """
    Pauses between the tries of a request that failed because of the network or the server (5xx,
    429). When they are over, the last error escalates. Default: 9 tries in about a minute.
    """

    enforce_retry_after: bool = False
    """
    What to do with the server's ``Retry-After``: pause exactly that long, or (by default) whichever
    is longer, that or the backoff. Never less than the server asked for.
    """

    trust_env: bool = False
    """
    Whether ``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``, and ``~/.netrc`` apply to the requests.
    Default: no.
    """


@dataclasses.dataclass
class PersistenceSettings:
    """What the operator writes on the objects to remember what was done, and how."""

    finalizer: str = 'kopf.zalando.org/KopfFinalizerMarker'
    """The finalizer that holds an object back from being gone until its deletion is handled."""

    progress_storage: progress.ProgressStorage = dataclasses.field(
        default_factory=progress.SmartProgressStorage)
    """
    Where the progress of handlers is kept. Default: in the annotations; what older operators have
    kept in the status is taken over.
    """

    diffbase_storage: diffbase.DiffBaseStorage = dataclasses.field(
        default_factory=diffbase.AnnotationsDiffBaseStorage)
    """
    Where the last handled state of an object is kept, to tell what has changed. Default: in an
    annotation.
    """

    consistency_timeout: float = 5.0
    """
    How long an object waits for its own latest write to come back by the watch, before it is
    handled without it. Default: 5.
    """

    flush_delay: float = 1.0
    """
    How old the outcome of a finished handler may become before it is written while the object's
    other handlers still run. It is how much may be repeated if the process is killed. 0: written
    after every handler. Default: 1.
    """


@dataclasses.dataclass
class OperatorSettings:
    """All settings of one operator, in sections. Handlers of activities get it as ``settings``."""

    process: ProcessSettings = dataclasses.field(default_factory=ProcessSettings)
    posting: PostingSettings = dataclasses.field(default_factory=PostingSettings)
    peering: PeeringSettings = dataclasses.field(default_factory=PeeringSettings)
    watching: WatchingSettings = dataclasses.field(default_factory=WatchingSettings)
    queueing: QueueingSettings = dataclasses.field(default_factory=QueueingSettings)
    scanning: ScanningSettings = dataclasses.field(default_factory=ScanningSettings)
    admission: AdmissionSettings = dataclasses.field(default_factory=AdmissionSettings)
    execution: ExecutionSettings = dataclasses.field(default_factory=ExecutionSettings)
    background: BackgroundSettings = dataclasses.field(default_factory=BackgroundSettings)
    networking: NetworkingSettings = dataclasses.field(default_factory=NetworkingSettings)
    persistence: PersistenceSettings = dataclasses.field(default_factory=PersistenceSettings)

    @property
    def batching(self) -> QueueingSettings:
        """The former name of `queueing`; it is deprecated."""
        _deprecate("settings.batching is deprecated: use settings.queueing.")
        return self.queueing


def _deprecate(message: str) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=3)
