"""
Posting of Kubernetes events: those that handlers ask for, and those made of log messages.

Posting never blocks the handlers. An event can be put into the queue of the operator from any
thread; the queue is posted in the background. The queue is found by a context variable, which is
set in all handlers, also in synchronous ones. In other threads, e.g. those started by handlers,
there is no context; then, the queue of the only operator in the process is used.
"""

import asyncio
import datetime
import functools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, cast

from kopf._cogs.aiokits import workers
from kopf._cogs.clients import api, errors, events
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, credentials, references, texts
from kopf._core.actions import reports

logger = logging.getLogger(__name__)

Objects = Mapping[str, Any] | Iterable[Mapping[str, Any]]

DEFAULT_WORKERS = 4
MAX_MESSAGE_LENGTH = 1024
ACTION = 'Handling'
"""What the operator was doing. Kubernetes requires this word in events with ``eventTime``."""

event_queue_var: ContextVar[reports.EventSink] = ContextVar('event_queue_var')
"""The queue of events of the current operator."""


def event(
        objs: Objects,
        *,
        type: str,
        reason: str,
        message: str = '',
        backoffs: reports.Backoffs | None = None,
) -> None:
    """
    Post a Kubernetes event about one or several objects, in the background.

    Kopf posts nothing if ``settings.posting.enabled`` is off, and nothing about objects that are
    Kubernetes events themselves. See "Read logs and post events" in the documentation.

    :param objs: an object, or an iterable of objects, each of which gets the same event. An object
        is the ``body`` of a handler, or a dict with ``apiVersion`` (or ``api_version``), ``kind``,
        and ``metadata`` with the ``name``, ``namespace``, and ``uid``.
    :param type: the type: ``'Normal'`` or ``'Warning'``. Kubernetes defines no other types, but
        accepts them.
    :param reason: one word in CamelCase for machines, e.g. ``'BackupFinished'``.
    :param message: a text for people. Kopf cuts the middle out of messages longer than 1024 bytes.
        Default: empty.
    :param backoffs: the pauses in seconds between the attempts to post the event. Default:
        ``settings.posting.default_backoffs``.
    :raises LookupError: outside of handlers, unless exactly one operator runs in the process.
    :raises TypeError: if ``objs`` is neither an object nor an iterable of objects.
    """
    _enqueue(objs, type, reason, message, backoffs, level=None)


def info(
        objs: Objects,
        *,
        reason: str,
        message: str = '',
        backoffs: reports.Backoffs | None = None,
) -> None:
    """
    Post a Kubernetes event of the type ``Normal``, unless ``settings.posting.level`` is above INFO.

    `kopf.event` describes the parameters and the errors.
    """
    _enqueue(objs, 'Normal', reason, message, backoffs, level=logging.INFO)


def warn(
        objs: Objects,
        *,
        reason: str,
        message: str = '',
        backoffs: reports.Backoffs | None = None,
) -> None:
    """
    Post a Kubernetes event of the type ``Warning``, unless ``settings.posting.level`` is above
    WARNING.

    `kopf.event` describes the parameters and the errors.
    """
    _enqueue(objs, 'Warning', reason, message, backoffs, level=logging.WARNING)


def exception(
        objs: Objects,
        *,
        reason: str = '',
        message: str = '',
        exc: BaseException | None = None,
        backoffs: reports.Backoffs | None = None,
) -> None:
    """
    Post a Kubernetes event of the type ``Warning``, unless ``settings.posting.level`` is above
    ERROR.

    :param reason: one word in CamelCase. Default: the name of the exception's class, or ``'Error'``
        if there is no exception.
    :param message: a text for people. Kopf appends the text of the exception. Default: empty.
    :param exc: the exception. Default: the exception that is being handled, if any.

    `kopf.event` describes the other parameters and the errors.
    """
    exc = sys.exc_info()[1] if exc is None else exc
    if exc is not None:
        reason = reason or exc.__class__.__name__
        message = f'{message} {exc}' if message else str(exc)
    _enqueue(objs, 'Warning', reason or 'Error', message, backoffs, level=logging.ERROR)


async def poster(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        queue: reports.EventQueue,
) -> None:
    """
    Post the events of the queue, and the log messages about objects, until cancelled.

    When cancelled, the remaining events are posted for ``settings.queueing.exit_timeout`` at most.
    """
    pool = workers.Workers(
        functools.partial(_post, client=client, settings=settings, complaints=set()),
        source=queue.get_nowait,
        limit=settings.posting.worker_limit or DEFAULT_WORKERS,
        idle_timeout=settings.posting.idle_timeout,
    )
    queue.attach(pool.notify_threadsafe)
    reports.log_poster.connect(queue)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        reports.log_poster.disconnect(queue)
        queue.attach(None)
        await pool.close(timeout=settings.queueing.exit_timeout)
        if queue.dropped:
            logger.info(f"In total, {queue.dropped} events were dropped, not posted.")


async def _post(
        event: reports.K8sEvent,
        /,
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        complaints: set[str],
) -> None:
    try:
        await events.post_event(
            client, payload=make_payload(event, settings=settings),
            namespace=references.NamespaceName(_get_namespace(event.ref)),
            backoffs=event.backoffs, logger=logger)
    except (errors.APIError, credentials.LoginError) as e:
        # The events of log messages usually fail all for the same reason, e.g. a lack of
        # permissions. So, each class of errors is warned of once.
        complaint = type(e).__name__ if event.reason == reports.LOGGING else None
        level = logging.DEBUG if complaint in complaints else logging.WARNING
        logger.log(level, f"Failed to post an event: {event.reason}: {e}")
        complaints.update([complaint] if complaint else [])


def make_payload(
        event: reports.K8sEvent,
        *,
        settings: configuration.OperatorSettings,
) -> dict[str, Any]:
    """
    Make the event for the API server, of ``core/v1``.

    Events are namespaced, cluster-scoped objects are not. The events about the latter are in the
    namespace ``default``, and refer to an object without a namespace, as those of client-go:
    ``kubectl describe`` finds no others.
    """
    when = event.when.replace(tzinfo=None)
    payload = {
        'metadata': {
            'namespace': _get_namespace(event.ref),
            'generateName': settings.posting.event_name_prefix,
        },
        'action': ACTION,
        'type': event.type,
        'reason': event.reason,
        'message': texts.cut(event.message, MAX_MESSAGE_LENGTH),
        'reportingComponent': settings.posting.reporting_component,
        'reportingInstance': settings.posting.reporting_instance,
        'source': {'component': settings.posting.reporting_component},
        'involvedObject': {**event.ref},
        'firstTimestamp': f"{when.isoformat(timespec='seconds')}Z",
        'lastTimestamp': f"{when.isoformat(timespec='seconds')}Z",
    }
    # With this field, Kubernetes 1.20 refuses an event whose object has no namespace.
    if event.ref.get('namespace'):
        payload['eventTime'] = f"{when.isoformat(timespec='microseconds')}Z"
    return payload


def _get_namespace(ref: bodies.ObjectReference) -> str:
    return ref.get('namespace') or events.DEFAULT_NAMESPACE


def make_reference(obj: Mapping[str, Any]) -> bodies.ObjectReference:
    """
    Make a reference to an object. ``api_version`` is accepted for ``apiVersion``.
    """
    ref = bodies.build_object_reference(cast(bodies.Body, obj))
    if 'apiVersion' not in ref and obj.get('api_version'):
        ref['apiVersion'] = obj['api_version']
    return ref


def _enqueue(
        objs: Objects,
        type: str,
        reason: str,
        message: str,
        backoffs: reports.Backoffs | None,
        level: int | None,
) -> None:
    queue = _get_queue()
    settings = queue.settings if isinstance(queue, reports.EventQueue) else None
    posting = settings.posting if settings is not None else configuration.PostingSettings()
    if not posting.enabled or (level is not None and level < posting.level):
        return
    backoffs = posting.default_backoffs if backoffs is None else backoffs
    when = datetime.datetime.now(datetime.UTC)
    for ref in _iter_references(objs):
        if not ref.get('kind') or not ref.get('name'):
            logger.warning(
                f"The event {reason!r} will not be found at its object, as the object has no kind "
                f"or no name. Pass the whole object, for example `body`.")
        if not reports.is_event(ref):
            queue.put_nowait(reports.K8sEvent(ref, type, reason, message, backoffs, when))


def _get_queue() -> reports.EventSink:
    queue = event_queue_var.get(None)
    if queue is not None:
        return queue
    queues = reports.log_poster.queues
    if not queues:
        raise LookupError("There is no operator running that could post the event.")
    if len(queues) > 1:
        raise LookupError("Several operators are running: it is unclear which one has to post.")
    return queues[0]


def _iter_references(objs: Any) -> Iterator[bodies.ObjectReference]:
    if isinstance(objs, Mapping):
        yield make_reference(objs)
    elif isinstance(objs, Iterable) and not isinstance(objs, str | bytes):
        for obj in objs:
            yield from _iter_references(obj)
    else:
        raise TypeError(f"Expected an object or several of them to post an event, got {objs!r}.")
