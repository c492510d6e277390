"""
Kubernetes events that handlers ask for: they are put into the queue of their operator.

That is possible in any thread. Outside of the context of handlers, the queue of the only operator
in the process is used.
"""
import datetime
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies
from kopf._core.actions import reports
from kopf._core.engines import posting

logger = logging.getLogger(__name__)

Objects = Any
"""
An object, or any iterable of objects: dicts, objects of pykube-ng, models of the clients. None is
skipped.
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
    Post a Kubernetes event about one or several objects, in the background.

    Kopf posts nothing if ``settings.posting.enabled`` is off, and nothing about objects that are
    Kubernetes events themselves.

    ::

        kopf.event(body, type='Normal', reason='Uploaded', message="The pages are uploaded.")

    See "Read logs and post events" in the documentation.

    :param objs: an object, or an iterable of objects, each of which gets the same event. An object
        is the ``body`` of a handler, a dict with ``apiVersion`` (or ``api_version``), ``kind``,
        and ``metadata`` with the ``name``, ``namespace``, and ``uid``, an object of pykube-ng, or
        a model of the official client. None is skipped.
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
    Post a Kubernetes event of the type ``Normal``.

    Kopf posts nothing if ``settings.posting.level`` is above INFO.

    ::

        kopf.info(body, reason='Uploaded', message="The pages are uploaded.")

    See "Read logs and post events" in the documentation.

    :param objs: an object, or an iterable of objects, each of which gets the same event. An object
        is the ``body`` of a handler, a dict with ``apiVersion`` (or ``api_version``), ``kind``, and
        ``metadata`` with the ``name``, ``namespace``, and ``uid``, an object of pykube-ng, or a
        model of the official client. None is skipped.
    :param reason: one word in CamelCase for machines, e.g. ``'BackupFinished'``.
    :param message: a text for people. Kopf cuts the middle out of messages longer than 1024 bytes.
        Default: empty.
    :param backoffs: the pauses in seconds between the attempts to post the event. Default:
        ``settings.posting.default_backoffs``.
    :raises LookupError: outside of handlers, unless exactly one operator runs in the process.
    :raises TypeError: if ``objs`` is neither an object nor an iterable of objects.
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
    Post a Kubernetes event of the type ``Warning``.

    Kopf posts nothing if ``settings.posting.level`` is above WARNING.

    ::

        kopf.warn(body, reason='Full', message="The disk is nearly full.")

    See "Read logs and post events" in the documentation.

    :param objs: an object, or an iterable of objects, each of which gets the same event. An object
        is the ``body`` of a handler, a dict with ``apiVersion`` (or ``api_version``), ``kind``, and
        ``metadata`` with the ``name``, ``namespace``, and ``uid``, an object of pykube-ng, or a
        model of the official client. None is skipped.
    :param reason: one word in CamelCase for machines, e.g. ``'BackupFinished'``.
    :param message: a text for people. Kopf cuts the middle out of messages longer than 1024 bytes.
        Default: empty.
    :param backoffs: the pauses in seconds between the attempts to post the event. Default:
        ``settings.posting.default_backoffs``.
    :raises LookupError: outside of handlers, unless exactly one operator runs in the process.
    :raises TypeError: if ``objs`` is neither an object nor an iterable of objects.
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
    Post a Kubernetes event about an exception, of the type ``Warning``.

    Kopf posts nothing if ``settings.posting.level`` is above ERROR.

    ::

        try:
            upload(body)
        except OSError:
            kopf.exception(body, message="The pages are not uploaded:")

    See "Read logs and post events" in the documentation.

    :param exc: the exception. Default: the exception that is being handled, if any.
    :param objs: an object, or an iterable of objects, each of which gets the same event. An object
        is the ``body`` of a handler, a dict with ``apiVersion`` (or ``api_version``), ``kind``, and
        ``metadata`` with the ``name``, ``namespace``, and ``uid``, an object of pykube-ng, or a
        model of the official client. None is skipped.
    :param reason: one word in CamelCase. Default: the name of the exception's class, or ``'Error'``
        if there is no exception.
    :param message: a text for people. Kopf appends the text of the exception. Default: empty.
    :param backoffs: the pauses in seconds between the attempts to post the event. Default:
        ``settings.posting.default_backoffs``.
    :raises LookupError: outside of handlers, unless exactly one operator runs in the process.
    :raises TypeError: if ``objs`` is neither an object nor an iterable of objects.
    """
    exc = sys.exc_info()[1] if exc is None else exc
    if exc is not None:
        reason = reason or exc.__class__.__name__
        message = f'{message} {exc}' if message else str(exc)
    _enqueue(objs, 'Warning', reason or 'Error', message, backoffs, level=logging.ERROR)


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
    own = settings.posting if settings is not None else configuration.PostingSettings()
    if not own.enabled or (level is not None and level < own.level):
        return
    backoffs = own.default_backoffs if backoffs is None else backoffs
    type, reason, message = (  # many pass an exception as the message
        '' if value is None else str(value) for value in (type, reason, message))
    when = datetime.datetime.now(datetime.UTC)
    for ref in _iter_references(objs):
        if not ref.get('kind') or not ref.get('name'):
            logger.warning(
                f"The event {reason!r} will not be found at its object, as the object has no kind "
                f"or no name. Pass the whole object, for example `body`.")
        if not reports.is_event(ref):
            queue.put_nowait(reports.K8sEvent(ref, type, reason, message, backoffs, when))


def _get_queue() -> reports.EventSink:
    queue = posting.event_queue_var.get(None)
    if queue is not None:
        return queue
    queues = reports.log_poster.queues
    if not queues:
        raise LookupError("There is no operator running that could post the event.")
    if len(queues) > 1:
        raise LookupError("Several operators are running: it is unclear which one has to post.")
    return queues[0]


def _iter_references(objs: Any) -> Iterator[bodies.ObjectReference]:
    if objs is None:
        return
    if isinstance(objs, Mapping):
        yield make_reference(objs)
    elif bodies.is_of_pykube(objs):
        yield make_reference({'apiVersion': objs.version, 'kind': objs.kind, **objs.obj})
    elif bodies.is_model(objs):
        yield make_reference(objs.to_dict())
    elif isinstance(objs, Iterable) and not isinstance(objs, str | bytes):
        for obj in objs:
            yield from _iter_references(obj)
    else:
        raise TypeError(f"Expected an object or several of them to post an event, got {objs!r}.")
