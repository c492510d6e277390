"""
Kubernetes events: their queue, and how log messages become events.

Each operator has a queue, into which events can be put from any thread. Events that handlers ask
for are posted first. Events of log messages are limited, as in client-go: for each object, 25 at
once, then one in 5 minutes. The number of dropped events is added to the next event of that object,
and logged.
"""

import collections
import datetime
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from kopf._cogs.configs import configuration
from kopf._cogs.helpers import ratelimits
from kopf._cogs.structs import bodies
from kopf._core.actions import loggers

logger = logging.getLogger(__name__)

EXPLICIT_LIMIT = 10_000
LOGGING_LIMIT = 1_000

LOGGING = 'Logging'
"""The ``reason`` of the events of log messages."""

Backoffs = float | Iterable[float]

_formatter = logging.Formatter()


class K8sEvent(NamedTuple):
    """A Kubernetes event to post. ``when`` is the time of its cause, not of the posting."""

    ref: bodies.ObjectReference
    type: str
    reason: str
    message: str
    backoffs: Backoffs
    when: datetime.datetime


class EventSink(Protocol):
    """Takes events: an `EventQueue` in operators; any queue in tests."""

    def put_nowait(self, event: K8sEvent, /) -> None: ...


class EventQueue:
    """
    The events of one operator. Any thread can put events; one event loop gets them.

    At most 10,000 events of handlers and 1,000 events of log messages wait; those beyond are
    dropped.
    """

    def __init__(self, settings: configuration.OperatorSettings) -> None:
        self.settings = settings
        self.dropped = 0
        self._explicit: collections.deque[K8sEvent] = collections.deque()
        self._logged: collections.deque[K8sEvent] = collections.deque()
        self._rates = ratelimits.KeyedBuckets(burst=25, period=5 * 60)
        self._notify: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._explicit) + len(self._logged)

    def attach(self, notify: Callable[[], None] | None) -> None:
        """
        Call ``notify`` for every new event, and now for each event that waits; None: stop that.
        """
        self._notify = notify
        for _ in range(len(self)):
            self._announce()

    def put_nowait(self, event: K8sEvent, /) -> None:
        """Put an event that a handler has asked for."""
        if len(self._explicit) >= EXPLICIT_LIMIT:
            self._drop("Too many events are waiting to be posted: some are dropped.")
        else:
            self._explicit.append(event)
            self._announce()

    def put_record(self, record: logging.LogRecord) -> None:
        """
        Put an event of a log message, unless there are too many. The settings are not checked here.
        """
        ref: bodies.ObjectReference = record.k8s_ref  # type: ignore[attr-defined]
        if is_event(ref):
            return
        if len(self._logged) >= LOGGING_LIMIT:
            self._drop("Too many lines are waiting to be posted as events: some are dropped.")
            return
        refused = self._rates.take(ref.get('uid') or ref.get('name') or '', time.monotonic())
        if refused is None:
            self._drop("Some lines are not posted as events: there are too many for one object.")
            return
        message = _formatter.format(record)
        if refused:
            message = f"{message} (and {refused} lines before it, not posted)"
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        self._logged.append(K8sEvent(
            ref, 'Normal' if record.levelno <= logging.INFO else 'Warning', LOGGING, message,
            self.settings.posting.logging_backoffs, when))
        self._announce()

    def get_nowait(self) -> K8sEvent | None:
        """Get the next event; None if there is none."""
        if self._explicit:
            return self._explicit.popleft()
        if self._logged:
            return self._logged.popleft()
        return None

    def _announce(self) -> None:
        notify = self._notify
        if notify is not None:
            notify()

    def _drop(self, complaint: str) -> None:
        self.dropped += 1
        if self.dropped == 1:
            logger.warning(complaint)


class LogPoster(logging.Handler):
    """
    Puts log messages about objects into the queues of their operators.

    There is one instance in the process. It is a handler of the log while at least one operator
    posts. Messages are formatted only if they are going to be posted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queues: tuple[EventQueue, ...] = ()
        """
        The queues of all operators that post now. If operators share settings, the newest one posts
        for all.
        """
        self._mutex = threading.Lock()

    def connect(self, queue: EventQueue) -> None:
        with self._mutex:
            self.queues = (*self.queues, queue)
            loggers.logger.addHandler(self)

    def disconnect(self, queue: EventQueue) -> None:
        with self._mutex:
            self.queues = tuple(other for other in self.queues if other is not queue)
            if not self.queues:
                loggers.logger.removeHandler(self)

    def handle(self, record: logging.LogRecord) -> bool:
        # The parent's method takes a lock and then calls `emit()`. Neither is needed here.
        settings = getattr(record, 'settings', None)
        queues = [queue for queue in self.queues if queue.settings is settings]
        if not queues or getattr(record, 'k8s_skip', False):
            return False
        queue = queues[-1]
        posting = queue.settings.posting
        if not posting.enabled or not posting.loggers or record.levelno < posting.level:
            return False
        try:
            queue.put_record(record)
        except Exception:
            self.handleError(record)
        return True


log_poster = LogPoster()


def is_event(ref: bodies.ObjectReference) -> bool:
    """
    Whether the object is an event itself. Events about events would cause each other endlessly.
    """
    api_version = ref.get('apiVersion') or ''
    return ref.get('kind') == 'Event' and (
        api_version == 'v1' or api_version.startswith('events.k8s.io/'))
