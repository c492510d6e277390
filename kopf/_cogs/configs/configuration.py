"""
The settings of an operator, in sections by subject.

Settings are plain mutable objects, one for each operator. Usually, they are changed in startup
handlers. Kopf reads each setting when it is needed, so most of them take effect also when changed
later. All times are in seconds. Assigning a value of a wrong type is a `TypeError`; a value that
cannot work, a `ValueError`; an unknown setting, a warning.

Backoffs are the pauses between attempts. They are any iterable, also an endless one, or one number
for one pause. ``iter()`` is called on the iterable for each sequence of attempts. ``()`` means that
there is no second attempt.
"""

import concurrent.futures
import dataclasses
import logging
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from kopf._cogs.configs import diffbase, progress, sections
from kopf._cogs.helpers.deprecations import deprecated
from kopf._cogs.structs import references, reviews

_NAME: sections.Rule = (
    re.compile(r'[a-z0-9]([-a-z0-9.]*[a-z0-9])?').fullmatch,
    "a name of Kubernetes (a-z, 0-9, - and .) or None")
_FINALIZER: sections.Rule = (
    re.compile(r'[A-Za-z0-9._/-]+').fullmatch, "a name such as example.com/finalizer or None")


class ProcessSettings(sections.Section):
    """The process of the operator as a whole."""

    ultimate_exiting_timeout: float | None = 10 * 60
    """
    How long after the first signal the process is ended by force, even if handlers or threads hang.
    `None`: it is never ended by force. Default: 600 (10 minutes).
    """


class PostingSettings(
        sections.Section, worker_limit=(lambda value: value >= 0, "at least 1 or None")):
    """
    How Kubernetes events are posted: those that handlers ask for by `kopf.event()`, `kopf.info()`,
    `kopf.warn()`, and `kopf.exception()`, and those made of log messages.
    """

    enabled: bool = True
    """Whether any events are posted. Default: yes."""

    loggers: bool = True
    """
    Whether log messages about an object, both of handlers (by their ``logger``) and of Kopf, are
    posted as events of that object. `kopf.event()` and similar functions are not affected. Default:
    yes.
    """

    level: int = logging.INFO
    """
    The lowest level of log messages that are posted. It also applies to `kopf.info()`,
    `kopf.warn()`, and `kopf.exception()`. Default: `logging.INFO`.
    """

    default_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21)
    """
    Pauses between the attempts to post an event that a handler has asked for. Default: 9 attempts
    in about a minute.
    """

    logging_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5)
    """
    Pauses between the attempts to post a log message. Default: 6 attempts in 12 seconds.
    """

    worker_limit: int | None = None
    """
    The maximal number of events that are posted at the same time. Default: `None`, Kopf's choice
    (4).
    """

    idle_timeout: float = 1.0
    """How long a worker that posts events waits for the next event before it ends. Default: 1."""

    reporting_component: str = 'kopf'
    """
    The field ``reportingComponent`` of the events: the name of the operator. Default: ``kopf``.
    """

    reporting_instance: str = 'dev'
    """
    The field ``reportingInstance`` of the events: the name of this instance of the operator.
    Default: ``dev``.
    """

    event_name_prefix: str = 'kopf-event-'
    """
    The beginning of the events' names; the API server appends a random suffix. Default:
    ``kopf-event-``.
    """


class PeeringSettings(sections.Section):
    """How several operators for the same objects agree on which of them works."""

    name: str = 'default'
    """The name of the peering object, which the operators share. Default: ``default``."""

    stealth: bool = False
    """Whether the log omits the messages about keeping the peering alive. Default: no."""

    priority: int = 0
    """
    The operator with the highest priority works; the others are paused. Any integer. Default: 0.
    """

    lifetime: int = 60
    """
    How long an operator counts as alive after it has renewed its record in the peering, in whole
    seconds. Default: 60.
    """

    mandatory: bool = False
    """
    Whether to wait until the peering object exists. Otherwise, the operator works without it.
    Default: no.
    """

    standalone: bool = False
    """Whether to ignore peering objects, and work regardless of other operators. Default: no."""

    clusterwide: bool = False
    """
    Whether the peering object is a ``ClusterKopfPeering`` instead of a ``KopfPeering`` in each
    namespace. It is set when the operator starts: whether the operator itself is cluster-wide.
    Default: no.
    """

    @property
    def namespaced(self) -> bool:
        """The opposite of `clusterwide`, both for reading and writing."""
        return not self.clusterwide

    @namespaced.setter
    def namespaced(self, value: bool) -> None:
        self.clusterwide = not value


class LeadershipSettings(sections.Section, name=_NAME):
    """
    How the replicas of an operator elect the one that works: by a Lease of Kubernetes, as the
    operators in Go do it (``leaderelection`` of client-go).
    """

    name: str | None = None
    """
    The name of the Lease that the replicas share. Default: `None`, there is no election, and
    every replica works.
    """

    namespace: str | None = None
    """
    The namespace of the Lease. Default: `None`, the namespace of the operator's pod, or of the
    current context in the kubeconfig.
    """

    lease_duration: int = 15
    """
    After which time without a renewal the other replicas count the leader as dead and one of them
    takes over, in whole seconds. Default: 15.
    """

    renew_deadline: float = 10
    """
    For how long the leader goes on working after its last successful renewal. It must be shorter
    than `lease_duration`: the difference is the time for requests under way. Default: 10.
    """

    retry_period: float = 2
    """
    How often the leader renews the Lease. The other replicas look at it after 1 to 2.2 times as
    long, at random. Default: 2.
    """

    release_on_exit: bool = True
    """
    Whether a leader that exits gives the Lease away, when all its work has ended. Otherwise, the
    others wait until the Lease expires. Default: yes.
    """

    exit_on_loss: bool = False
    """
    Whether an operator that has lost the Lease exits, with the exit code 1. Otherwise, it goes on
    as a standby. Default: no.
    """


class ShardingSettings(sections.Section):
    """
    How the replicas of an operator share its objects: by Leases, in the namespace and with the
    durations of `LeadershipSettings`.
    """

    count: int | None = None
    """
    How many shards there are. All replicas must have the same number. Default: `None`, there is no
    sharding, and every replica handles all objects.
    """

    name: str = 'kopf-operator'
    """
    The name of the sharding: the names of its Leases begin with it. Operators in one namespace need
    different names. Default: ``kopf-operator``.
    """

    by: str | Callable[[Mapping[str, Any]], str] = 'uid'
    """
    By what the shard of an object is found: ``uid``, for which an owned object counts as its
    controller; ``own-uid``, for which it does not, so that the API server can select the objects;
    ``namespace``; or a function that returns a string for the body of the object. The string must
    never change for an object. Default: ``uid``.
    """

    handover_timeout: float = 30
    """
    How long the running handlers have to finish before a shard goes to another replica. After that,
    async handlers are interrupted. Default: 30.
    """


class SettingsError(Exception):
    """The settings contradict each other, or something that they need is missing."""


class WatchingSettings(
        sections.Section, chunk_size=(lambda value: value < 2 ** 63, "less than 2 ** 63")):
    """How the objects are listed and watched."""

    server_timeout: float | None = None
    """
    How long a watch request lasts before the API server closes it. The server may ignore it.
    Default: `None`, the server's choice; so is 0.
    """

    client_timeout: float | None = None
    """
    How long a watch request lasts, including the time to connect, before the operator closes it.
    Default: no limit; so is 0.
    """

    connect_timeout: float | None = None
    """
    How long it may take to connect for a watch request. Default: `None`, which means
    `NetworkingSettings.connect_timeout` if that is set, else `NetworkingSettings.request_timeout`.
    """

    reconnect_backoff: float = 0.1
    """
    The minimal pause between two watch requests for the same resource, for whatever reason the
    former has ended. Default: 0.1.
    """

    inactivity_timeout: float = 70.0
    """
    How long a watch request may bring nothing, neither events nor bookmarks, before it counts as
    dead and is repeated. API servers send a bookmark about once a minute. Default: 70. 0: no limit.
    """

    chunk_size: int | None = None
    """
    How many objects are requested in each page of a list, also of CRDs and namespaces. Default:
    `None`, Kopf's choice (500).
    """

    initial_streaming: bool = False
    """
    Whether the initial list of objects comes by the watch request (``sendInitialEvents``,
    KEP-3157). If the API server does not support that, the objects are listed as usual. API servers
    compress lists, but not watches. Default: no.
    """

    label_selectors: references.SelectorMapping = dataclasses.field(
        default_factory=references.SelectorMapping)
    """
    Label selectors in the notation of Kubernetes: the API server sends only the objects that match.
    The keys of the mapping select the resources, as in decorators: a name, a tuple of two or three
    parts, a callable, `kopf.EVERYTHING`. If several keys match a resource, all their label
    selectors apply. Example: ``settings.watching.label_selectors['pods'] = 'app=web'``. Default:
    none.
    """

    field_selectors: references.SelectorMapping = dataclasses.field(
        default_factory=references.SelectorMapping)
    """The same as `label_selectors`, for field selectors. Default: none."""

    shard_selectors: references.SelectorMapping = dataclasses.field(
        default_factory=references.SelectorMapping)
    """
    The same as `label_selectors`, for shards of lists and watches, if the API server supports them.
    If several keys match a resource, only the first one applies. Default: none.
    """


_BATCH_WINDOW_IS_DEPRECATED = (
    "settings.queueing.batch_window is deprecated: only objects that change all the time need it.")


class QueueingSettings(sections.Section):
    """The work queue of objects."""

    worker_limit: int | None = None
    """The maximal number of objects that are handled at the same time. Default: no limit."""

    idle_timeout: float = 5.0
    """
    How long an object must be at rest before its state is packed, to take less memory. It can take
    up to twice that long. Default: 5.
    """

    exit_timeout: float = 2.0
    """
    How long the running handlers of objects have to finish when the operator exits. After that, the
    operator takes 3 more seconds to write the progress and results, and for all the rest. Default:
    2.
    """

    error_delays: float | Iterable[float] = (
        1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
    """
    The throttling of an object: the pauses after consecutive errors of Kopf or of the API, as
    opposed to errors of handlers. The last pause repeats. ``()``: no pauses. Default: Fibonacci
    numbers up to about 10 minutes.
    """

    _batch_window: float = 0.1

    @property
    @deprecated(
        "settings.queueing.batch_window is deprecated: batches are not gathered.", category=None)
    def batch_window(self) -> float:
        """
        How long to wait before an object is handled again if it has changed during the handling
        several times in a row. Default: 0.1.

        It is deprecated: the inbox of an object has only its newest state, so there are no batches
        to gather.
        """
        _deprecate(_BATCH_WINDOW_IS_DEPRECATED)
        return self._batch_window

    @batch_window.setter
    @deprecated(
        "settings.queueing.batch_window is deprecated: batches are not gathered.", category=None)
    def batch_window(self, value: float) -> None:
        _deprecate(_BATCH_WINDOW_IS_DEPRECATED, stacklevel=4)
        self._batch_window = value


class ScanningSettings(sections.Section):
    """How the resources and the namespaces of the cluster are discovered."""

    disabled: bool = False
    """
    Whether to discover the resources and namespaces only once, at the start, and to ignore later
    changes. It is for operators that have no permissions to watch CRDs and namespaces. Default: no.
    """


class AdmissionSettings(sections.Section, managed=_NAME):
    """How admission reviews get from the API server to the admission handlers."""

    server: Callable[[reviews.WebhookFn], AsyncIterator[reviews.WebhookClientConfig]] | None = None
    """
    A webhook server or a tunnel, e.g. `kopf.WebhookServer`. It is called with the function that
    handles admission reviews, and yields the client configs by which the API server can reach it.
    It is required if there are admission handlers. Default: none.
    """

    managed: str | None = None
    """
    The name of the webhook configurations that the operator creates and updates in the cluster,
    e.g. ``my-operator.example.com``. Default: `None`, the operator manages no webhook
    configurations.
    """


class _DefaultExecutor(concurrent.futures.ThreadPoolExecutor):
    pass


def _make_reserve() -> concurrent.futures.Executor:
    from kopf._cogs.aiokits import threads  # not at the import of Kopf: only operators need it
    return threads.ThreadPerCall('kopf-reserve')


class ExecutionSettings(sections.Section):
    """How handlers are called."""

    default_backoff: float = 60
    """
    The pause before a handler is retried after an arbitrary exception, if the handler has no
    ``backoff=``. Default: 60.
    """

    executor: concurrent.futures.Executor = dataclasses.field(default_factory=_DefaultExecutor)
    """
    The executor that calls synchronous handlers of objects. When it is replaced, the handlers that
    run continue in the former executor. Default: a thread pool of this operator, and a separate
    thread for each daemon. Handlers of the operator itself (e.g. for logins and probes) and
    admission handlers always have separate threads.
    """

    _reserve: concurrent.futures.Executor = dataclasses.field(default_factory=_make_reserve)
    """The threads of those handlers that must not wait for the handlers of objects."""

    _max_workers: int | None = None

    @property
    def has_default_executor(self) -> bool:
        """Whether `executor` was not replaced."""
        return isinstance(self.executor, _DefaultExecutor)

    def release_threads(self) -> None:
        """Let the idle threads of the default executor end. New threads are started on demand."""
        if self.has_default_executor:
            self.executor = _DefaultExecutor(self._max_workers)

    @property
    def max_workers(self) -> int | None:
        """
        The maximal number of synchronous handlers of objects that run at the same time, without
        daemons. Default: `None`, Python's choice for thread pools.

        Setting it resizes `executor` in place, so the running handlers are not affected. If
        `executor` is not a thread pool, it cannot be resized, and there is a warning.

        :raises TypeError: if it is not a number.
        :raises ValueError: for numbers below 1.
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
                UserWarning, stacklevel=3)


class BackgroundSettings(sections.Section):
    """How daemons and timers are stopped."""

    cancellation_polling: float = 60
    """
    How often a stopping daemon is checked if it has no ``cancellation_timeout`` and so is not
    cancelled. Default: 60.
    """

    instant_exit_timeout: float | None = None
    """
    How long a daemon has to exit after its ``stopped`` flag is set, before the further stages of
    stopping begin and are logged. Default: `None`, which means `instant_exit_zero_time_cycles`.
    """

    instant_exit_zero_time_cycles: int | None = 10
    """
    The same, in iterations of the event loop instead of seconds. Default: 10.
    """


class NetworkingSettings(sections.Section):
    """How requests to the API server are made, except for watch requests."""

    request_timeout: float | None = 5 * 60
    """
    How long one attempt of a request may take in total. `None` or 0: no limit. Default: 300 (5
    minutes).
    """

    connect_timeout: float | None = None
    """
    How long it may take to connect. Default: `None`, it is limited only by `request_timeout`.
    """

    error_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21)
    """
    Pauses between the attempts of a request that fails because of the network or the API server
    (HTTP 5xx, 429). After the last attempt, the error is raised. Default: 9 attempts in about a
    minute.
    """

    enforce_retry_after: bool = False
    """
    How to pause if the API server sends ``Retry-After``. If yes, exactly that long; if no, that
    long or as `error_backoffs` say, whichever is longer. ``Retry-After`` is limited to 5 minutes.
    Default: no.
    """

    trust_env: bool = False
    """
    Whether ``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``, and ``~/.netrc`` apply to the requests.
    Default: no.
    """


class PersistenceSettings(sections.Section, finalizer=_FINALIZER):
    """What the operator keeps on the objects, and how."""

    finalizer: str | None = 'kopf.zalando.org/KopfFinalizerMarker'
    """
    The finalizer that holds the deletion of an object until its deletion handlers have finished.
    With `None`, no object is held: deletion handlers must be ``optional``, and daemons and timers
    stop after their object is gone. Default: ``kopf.zalando.org/KopfFinalizerMarker``.
    """

    progress_storage: progress.ProgressStorage = dataclasses.field(
        default_factory=progress.SmartProgressStorage)
    """
    Where the progress of handlers is kept. Default: in annotations; progress that older operators
    have kept in the status is also read.
    """

    diffbase_storage: diffbase.DiffBaseStorage = dataclasses.field(
        default_factory=diffbase.AnnotationsDiffBaseStorage)
    """
    Where the last-handled state of an object is kept, which shows what has changed since. Default:
    in an annotation.
    """

    consistency_timeout: float = 5.0
    """
    How long to wait until the latest write of the operator on an object comes back by the watch.
    After that, the object is handled without it. Default: 5.
    """

    flush_delay: float = 1.0
    """
    How long the outcome of a finished handler may wait until it is written, while other handlers of
    the object run. If the process is killed, the handlers that finished within this time are
    repeated. 0: it is written after every handler. Default: 1.
    """


class ReconcilingSettings(sections.Section):
    """How the handlers of `kopf.reconcile` work."""

    manager: str = 'kopf'
    """
    The name of the operator in the field managers of owned resources: ``NAME/HANDLER``. Different
    operators in a cluster need different names if their handlers have the same ids. Keep the name:
    resources that were made under another name do not count as owned. Default: ``kopf``.
    """

    error_delay: float = 0.005
    """
    How long to wait before the second attempt after an error. The delay doubles with each failed
    attempt. Default: 0.005.
    """

    max_error_delay: float = 1000
    """The limit of the growing delay between attempts after errors. Default: 1000."""


class PausingSettings(sections.Section):
    """How people pause single objects."""

    annotation: str | None = 'kopf.dev/paused'
    """
    The annotation that pauses the handlers of an object. If it is `None`, nothing does. Default:
    ``kopf.dev/paused``.
    """


class BrakesSettings(sections.Section):
    """
    Budgets for deletions, so that a wrong filter or a wrong version does not delete everything.

    Each replica of a sharded operator has its share of a budget. What users delete is not counted,
    nor what is deleted with it.
    """

    deletions: int | None = 20
    """
    How many owned resources of a kind reconciling handlers can delete in a minute; from how many
    living objects of a kind the finalizer can be removed; and for how many, what they have in
    external systems can be replaced. If it is `None`, nothing is counted. Default: 20.
    """

    share: float = 0.1
    """
    Which part of what there is can be deleted in a minute, if that is more than `deletions`.
    Default: 0.1.
    """

    restarts: float | None = None
    """
    In which part of the owned workloads of a kind (Deployments, StatefulSets, DaemonSets) the pod
    template can be changed in a minute; one can always be. Default: `None`, in all of them.
    """

    stop: bool = False
    """
    Whether what is over a budget is stopped, until ``kopf brakes release`` or a restart. Default:
    no, it is only logged.
    """

    released: bool = False
    """Whether nothing is stopped for now: ``kopf run --release-brakes`` sets it. Default: no."""


class MetricsSettings(sections.Section):
    """Where the metrics of the operator are served for Prometheus."""

    endpoint: str | None = None
    """
    The URL, e.g. ``http://0.0.0.0:8080/metrics``. The host and port can be those of the health
    checks. It is read after the startup handlers. The metrics need the extra ``kopf[metrics]``.
    Default: `None`, there are no metrics, and they cost nothing.
    """


class TracingSettings(sections.Section):
    """Whether the operator makes spans of OpenTelemetry."""

    enabled: bool = False
    """
    Whether reconciliations, attempts of handlers, and writes are spans, and whether the log and the
    requests have their ids. It is read after the startup handlers. Traces need the extra
    ``kopf[tracing]``. Default: no, and this costs nothing.
    """


class DebuggingSettings(sections.Section):
    """Where the present state of the operator is served for people, as JSON."""

    endpoint: str | None = None
    """
    The URL, e.g. ``http://127.0.0.1:8080/debug``. The host and port can be those of the health
    checks. It is read after the startup handlers. Default: `None`, it is not served.
    """

    remote: bool = False
    """
    Whether other machines also get responses, even by HTTP proxies on the same machine. The
    responses contain names of objects, but neither their contents nor texts of errors. Default: no,
    only the same machine or pod gets them.
    """


class OperatorSettings(sections.Section):
    """
    All settings of one operator, in sections.

    Activity handlers, e.g. those of `kopf.on.startup`, get them as ``settings``, and can change
    them. Tests and programs can also pass them to `kopf.run` or `kopf.operator`. Every setting is
    described in "Configure the operator" in the documentation.
    """

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
    reconciling: ReconcilingSettings = dataclasses.field(default_factory=ReconcilingSettings)
    leadership: LeadershipSettings = dataclasses.field(default_factory=LeadershipSettings)
    pausing: PausingSettings = dataclasses.field(default_factory=PausingSettings)
    brakes: BrakesSettings = dataclasses.field(default_factory=BrakesSettings)
    metrics: MetricsSettings = dataclasses.field(default_factory=MetricsSettings)
    tracing: TracingSettings = dataclasses.field(default_factory=TracingSettings)
    debugging: DebuggingSettings = dataclasses.field(default_factory=DebuggingSettings)
    sharding: ShardingSettings = dataclasses.field(default_factory=ShardingSettings)

    @property
    @deprecated("settings.batching is deprecated: use settings.queueing.", category=None)
    def batching(self) -> QueueingSettings:
        """The former name of `queueing`. Deprecated."""
        _deprecate("settings.batching is deprecated: use settings.queueing.")
        return self.queueing


def _deprecate(message: str, *, stacklevel: int = 3) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
