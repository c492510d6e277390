"""
Posting of Kubernetes events about objects: those that the code asks for, and the lines of the log.

Nothing here ever blocks the handlers: events are put into a queue of the operator, from any thread,
and posted in the background. The queue is found by the context (handlers have it, sync ones and in
threads too); where there is no context, e.g. in threads that the user started, it is that of the
only operator in the process.
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
from kopf._cogs.structs import bodies, credentials, references
from kopf._core.actions import reports

logger = logging.getLogger(__name__)

Objects = Mapping[str, Any] | Iterable[Mapping[str, Any]]

DEFAULT_WORKERS = 4
MAX_MESSAGE_LENGTH = 1024

event_queue_var: ContextVar[reports.EventSink] = ContextVar('event_queue_var')
"""
Where the events of the current operator go; it is set for everything that runs in the operator.
"""


def event(
        objs: Objects,
        *,
        type: str,
        reason: str,
        message: str = '',
        backoffs: reports.Backoffs | None = None,
) -> None:
    """
    Post an event about an object, or the same about several objects: soon, in the background.

    Objects are bodies, or dicts with what is needed of them; also dicts with the keys of the
    official client's ``to_dict()``; or iterables of these. Nothing is posted about events
    themselves, nor if ``settings.posting.enabled`` is off. Messages longer than the API takes are
    cut in the middle. ``backoffs`` are the pauses between tries instead of those in
    ``settings.posting.default_backoffs``.

    :raises LookupError: if there is no operator to post it, or no telling which of several.
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
    Post an event of type ``Normal``, unless ``settings.posting.level`` is higher; see `event`.
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
    Post an event of type ``Warning``, unless ``settings.posting.level`` is higher; see `event`.
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
    Post an event of type ``Error`` about an exception: the given one, or the one being handled.

    The text of the exception is added to the message; its class is the reason if no other is given.
    It is not posted if ``settings.posting.level`` is higher than for errors; see `event`.
    """
    exc = sys.exc_info()[1] if exc is None else exc
    if exc is not None:
        reason = reason or exc.__class__.__name__
        message = f'{message} {exc}' if message else str(exc)
    _enqueue(objs, 'Error', reason or 'Error', message, backoffs, level=logging.ERROR)


async def poster(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        queue: reports.EventQueue,
) -> None:
    """
    Post what is in the queue, and the lines of the log about objects, until cancelled.

    When cancelled, it posts what still waits, but not longer than
    ``settings.queueing.exit_timeout``.
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
        # What is wrong with one line of the log is usually wrong with all of them: it is said once.
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
    Make the event as the API takes it.

    Events about objects that are in no namespace go to the namespace ``default``, as ``kubectl``
    has it.
    """
    namespace = _get_namespace(event.ref)
    when = event.when.replace(tzinfo=None)
    return {
        'metadata': {
            'namespace': namespace,
            'generateName': settings.posting.event_name_prefix,
        },
        'action': 'Action?',
        'type': event.type,
        'reason': event.reason,
        'message': cut_message(event.message),
        'reportingComponent': settings.posting.reporting_component,
        'reportingInstance': settings.posting.reporting_instance,
        'source': {'component': settings.posting.reporting_component},
        'involvedObject': {**event.ref, 'namespace': namespace},
        'firstTimestamp': f"{when.isoformat(timespec='seconds')}Z",
        'lastTimestamp': f"{when.isoformat(timespec='seconds')}Z",
        'eventTime': f"{when.isoformat(timespec='microseconds')}Z",
    }


def _get_namespace(ref: bodies.ObjectReference) -> str:
    return ref.get('namespace') or events.DEFAULT_NAMESPACE


def cut_message(message: str, limit: int = MAX_MESSAGE_LENGTH) -> str:
    """
    Cut out the middle of the message, so that it fits into the limit, which is in bytes of UTF-8.
    """
    encoded = message.encode('utf-8', errors='replace')
    if len(encoded) <= limit:
        return encoded.decode()
    infix = b'...'
    tail = (limit - len(infix) + 1) // 2
    head = limit - len(infix) - tail
    parts = (encoded[:head], infix, encoded[-tail:])
    return ''.join(part.decode(errors='ignore') for part in parts)


def make_reference(obj: Mapping[str, Any]) -> bodies.ObjectReference:
    """
    Make a reference to an object, also to one with Python's notation of keys: ``api_version``.
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
    sink = _get_sink()
    settings = sink.settings if isinstance(sink, reports.EventQueue) else None
    posting = settings.posting if settings is not None else configuration.PostingSettings()
    if not posting.enabled or (level is not None and level < posting.level):
        return
    backoffs = posting.default_backoffs if backoffs is None else backoffs
    when = datetime.datetime.now(datetime.UTC)
    for ref in _iter_references(objs):
        if not reports.is_event(ref):
            sink.put_nowait(reports.K8sEvent(ref, type, reason, message, backoffs, when))


def _get_sink() -> reports.EventSink:
    sink = event_queue_var.get(None)
    if sink is not None:
        return sink
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
