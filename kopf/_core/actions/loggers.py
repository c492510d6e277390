"""
Loggers of objects, and the configuration of the log.

All messages about objects go to the logger ``kopf.objects``. Their records have these attributes,
which filters of the log can use:

* ``k8s_ref``: the reference of the object.
* ``k8s_skip``: whether the message must not be posted as a Kubernetes event.
* ``settings``: the settings of the operator.
"""

import asyncio
import contextlib
import enum
import logging
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.helpers import formatters
from kopf._cogs.structs import bodies

logger = logging.getLogger('kopf.objects')
"""The logger of all messages about objects."""

DEFAULT_REFKEY = 'object'


class LogFormat(enum.Enum):
    """
    The predefined formats of the log.

    ``PLAIN`` is only the message; ``FULL`` is the time, the logger, the level, and the message;
    ``JSON`` is a JSON object in each line.
    """

    PLAIN = '%(message)s'
    FULL = '[%(asctime)s] %(name)-20.20s [%(levelname)-8.8s] %(message)s'
    JSON = '-json-'


class ObjectLogger(logging.LoggerAdapter[logging.Logger]):
    """
    The logger of an object, which handlers get as ``logger``. It adds a reference to the object to
    every log record.

    Kopf posts its messages as Kubernetes events, see ``settings.posting``. There is a new logger
    for every reconciliation of an object. Later changes of the object do not affect the reference.
    """

    logger = logger
    _skip = False
    _extra: Mapping[str, object] = {}

    def __init__(self, *, body: bodies.Body, settings: configuration.OperatorSettings) -> None:
        # The parent's constructor only sets its attributes; here, they belong to the class.
        self._body: bodies.Body | None = body
        self._settings = settings

    @property
    def extra(self) -> Mapping[str, object]:  # type: ignore[override]
        """The attributes that are added to every record."""
        if self._body is not None:
            reference = bodies.build_object_reference(self._body)
            self._extra = {'settings': self._settings, 'k8s_skip': self._skip, 'k8s_ref': reference}
            self._body = None
        return self._extra

    def process(
            self,
            msg: str,
            kwargs: MutableMapping[str, Any],
    ) -> tuple[str, MutableMapping[str, Any]]:
        """
        Add the attributes to the record. Unlike in the standard adapter, ``extra=`` of the call is
        kept.
        """
        extra = kwargs.get('extra')
        kwargs['extra'] = {**self.extra, **extra} if extra else self.extra
        return msg, kwargs

    def debug(self, msg: object, *args: object, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(logging.DEBUG):
            self._log_quickly(logging.DEBUG, msg, args, kwargs)

    def info(self, msg: object, *args: object, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(logging.INFO):
            self._log_quickly(logging.INFO, msg, args, kwargs)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(level):
            self._log_quickly(level, msg, args, kwargs)

    def _log_quickly(
            self, level: int, msg: object, args: Any, kwargs: MutableMapping[str, Any],
    ) -> None:
        """Log as the parent does, but quickly: without the steps that are not needed here."""
        if kwargs or logging.getLogRecordFactory() is not logging.LogRecord:
            kwargs['stacklevel'] = kwargs.get('stacklevel', 1) + 2
            super().log(level, msg, *args, **kwargs)
            return
        caller = sys._getframe(2)
        if caller.f_globals is vars(logging) and caller.f_back is not None:
            caller = caller.f_back  # e.g. `warning()` of the parent, which calls `log()`
        self.logger.handle(_make_record(
            self.logger.name, level, msg, args, self.extra, caller=caller))


_templates: dict[tuple[str, int, int, int], tuple[types.CodeType, Mapping[str, Any]]] = {}
"""
The attributes of the first record of each logger, of each place in the code, and of each level.

The code is kept with them: otherwise, other code could get the same ``id()`` later.
"""

MAX_TEMPLATES = 1000
"""How many such records are kept: there can be any number of places, e.g. in generated code."""

os.register_at_fork(after_in_child=_templates.clear)


def _make_record(
        name: str,
        level: int,
        msg: object,
        args: Any,
        extra: Mapping[str, object],
        *,
        caller: types.FrameType,
) -> logging.LogRecord:
    """
    Make a record as its class does, and add the ``extra`` attributes, in half the time.

    What depends only on the place in the code and on the process is taken from an earlier record,
    including the attributes that future versions of Python may add.
    """
    code = caller.f_code
    key = name, id(code), caller.f_lasti, level
    known = None if args else _templates.get(key)
    if known is None:
        record = logging.LogRecord(
            name, level, code.co_filename, caller.f_lineno, msg, args, None, code.co_name)
        if not args and len(_templates) < MAX_TEMPLATES:
            _templates[key] = code, dict(vars(record))
        record.__dict__.update(extra)
        return record
    _, template = known
    now = time.time()
    attributes = {
        **template,
        **extra,
        'msg': msg,
        'created': now,
        'msecs': float(int((now - int(now)) * 1000)),
        'relativeCreated': template['relativeCreated'] + (now - template['created']) * 1000,
    }
    if template['thread'] is not None:
        attributes['thread'] = threading.get_ident()
        attributes['threadName'] = threading.current_thread().name
    if 'taskName' in template:
        attributes['taskName'] = _get_task_name()
    record = logging.LogRecord.__new__(logging.LogRecord)
    record.__dict__.update(attributes)
    return record


def _get_task_name() -> str | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread
        return None
    return None if task is None else task.get_name()


class LocalObjectLogger(ObjectLogger):
    """
    The logger of an object whose messages are not posted as Kubernetes events.

    Functions that Kopf calls often get it as ``logger``, e.g. for indexing.
    """

    _skip = True


class KopfStreamHandler(logging.StreamHandler[Any]):
    """
    The handler that is added by `configure`. The class distinguishes it from all other handlers.
    """

    _status = ''
    """The line that is shown below the log, at a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        # As in the parent class, but `flush()` would take the lock, which is already taken here.
        try:
            text = self.format(record) + self.terminator
            self.stream.write(f'{_ERASE}{text}{self._status}' if self._status else text)
            self.stream.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def show_status(self, text: str) -> None:
        """Show a line below the log, instead of the previous such line."""
        with self.lock or contextlib.nullcontext():
            width = os.get_terminal_size(self.stream.fileno()).columns or 80
            self._status = text[:width - 1]  # a broken line could not be erased
            self.stream.write(f'{_ERASE}{self._status}')
            self.stream.flush()


_ERASE = '\r\x1b[K'
"""Returns to the beginning of the line, and erases it."""


def find_terminal() -> KopfStreamHandler | None:
    """Find the handler of the log that goes to a terminal; None if the log goes elsewhere."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, KopfStreamHandler) and (
                handler.stream.isatty() and os.environ.get('TERM') != 'dumb'):
            return handler
    return None


def configure(
        debug: bool | None = None,
        verbose: bool | None = None,
        quiet: bool | None = None,
        log_format: LogFormat | str = LogFormat.FULL,
        log_prefix: bool | None = False,
        log_refkey: str | None = None,
        color: bool = False,
) -> None:
    """
    Configure the log of the whole process, which goes to stderr. The command ``kopf run`` calls it.

    By default, the log shows messages from INFO up. Another call replaces the previous
    configuration. Other handlers of the root logger are not affected.

    ::

        kopf.configure(verbose=True, log_format=kopf.LogFormat.JSON)
        kopf.run(clusterwide=True)

    See "Configure the operator" in the documentation.

    :param debug: whether to also show debugging messages, including those of asyncio and of the
        HTTP library. Default: no.
    :param verbose: whether to also show debugging messages. Default: no.
    :param quiet: whether to show only warnings and errors. Default: no.
    :param log_format: a `kopf.LogFormat`, or a format string of Python's `logging`.
    :param log_prefix: whether the name of the object precedes the message; `None` means yes for
        text, no for JSON.
    :param log_refkey: the field with the reference to the object in JSON. Default: ``'object'``.
    :param color: whether the lines of ``LogFormat.FULL`` are for people at a terminal: shorter,
        aligned, and coloured.
    """
    handler = KopfStreamHandler()
    handler.setFormatter(make_formatter(log_format, log_prefix, log_refkey, color))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, KopfStreamHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if debug or verbose else logging.WARNING if quiet else logging.INFO)

    logging.getLogger('asyncio').setLevel(logging.NOTSET if debug else logging.ERROR)
    logging.getLogger('aiohttp').setLevel(logging.NOTSET if debug else logging.INFO)


def add_filter(fn: Callable[[logging.LogRecord], bool]) -> None:
    """Let the function see, and change, each record of the log that `configure` has configured."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, KopfStreamHandler):
            handler.addFilter(fn)


def make_formatter(
        log_format: LogFormat | str = LogFormat.FULL,
        log_prefix: bool | None = False,
        log_refkey: str | None = None,
        color: bool = False,
) -> logging.Formatter:
    """Make the formatter for the options of `configure`."""
    if color and log_format is LogFormat.FULL:
        return formatters.ObjectColorFormatter(log_prefix=log_prefix is None or log_prefix)
    if log_format is LogFormat.JSON:
        from kopf._cogs.helpers import jsonformatters
        return jsonformatters.ObjectJsonFormatter(
            refkey=log_refkey or DEFAULT_REFKEY, log_prefix=bool(log_prefix))
    return formatters.ObjectTextFormatter(
        log_format.value if isinstance(log_format, LogFormat) else log_format,
        log_prefix=log_prefix is None or log_prefix)
