"""
Posting of Kubernetes events: those that handlers ask for, and those made of log messages.

Posting never blocks the handlers: they put the events into the queue of the operator, which this
module posts in the background. `kopf._kits.events` has the functions for handlers.
"""

import asyncio
import functools
import logging
from contextvars import ContextVar
from typing import Any

from kopf._cogs.aiokits import workers
from kopf._cogs.clients import api, errors, events
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, credentials, references, texts
from kopf._core.actions import reports

logger = logging.getLogger(__name__)

DEFAULT_WORKERS = 4
MAX_MESSAGE_LENGTH = 1024
ACTION = 'Handling'
"""What the operator was doing. Kubernetes requires this word in events with ``eventTime``."""

event_queue_var: ContextVar[reports.EventSink] = ContextVar('event_queue_var')
"""
The queue of events of the current operator.

It is set in all handlers, also in synchronous ones; but not in other threads, e.g. those started by
handlers.
"""


async def poster(*, client: api.Client, queue: reports.EventQueue) -> None:
    """
    Post the events of the queue, and the log messages about objects, until cancelled.

    When cancelled, the remaining events are posted for ``settings.queueing.exit_timeout`` at most.
    """
    settings = queue.settings
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
