"""
Logging about objects, and what the log looks like.

Whatever is said about an object goes to the logger ``kopf.objects``, with attributes on the
records: ``k8s_ref`` is the reference of the object, ``k8s_skip`` tells that the line must not be
posted as an event, ``settings`` are those of the operator. With these, handlers of the log can be
filtered, or the lines sent elsewhere.
"""

import enum
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies
from kopf._core.actions import formatters

logger = logging.getLogger('kopf.objects')
"""Where all the lines about all the objects go."""

DEFAULT_REFKEY = 'object'


class LogFormat(enum.Enum):
    """How the lines of the log look."""

    PLAIN = '%(message)s'
    FULL = '[%(asctime)s] %(name)-20.20s [%(levelname)-8.8s] %(message)s'
    JSON = '-json-'


class ObjectLogger(logging.LoggerAdapter[logging.Logger]):
    """
    A logger that knows which object it talks about.

    One is made for every pass over an object, so making it costs nearly nothing: the reference is
    built when the first line is logged. From then on, neither later changes of the object nor its
    end affect it.
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
        """What is added to every record."""
        if self._body is not None:
            reference = bodies.build_object_reference(self._body)
            self._extra = {
                'settings': self._settings, 'k8s_skip': self._skip, 'k8s_ref': reference}
            self._body = None
        return self._extra

    def process(
            self,
            msg: str,
            kwargs: MutableMapping[str, Any],
    ) -> tuple[str, MutableMapping[str, Any]]:
        """
        Add the object to the record, unlike the standard adapters: next to the ``extra=`` of the
        call.
        """
        extra = kwargs.get('extra')
        kwargs['extra'] = {**self.extra, **extra} if extra else self.extra
        return msg, kwargs

    def debug(self, msg: object, *args: object, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(logging.DEBUG):
            self._tell(logging.DEBUG, msg, args, kwargs)

    def info(self, msg: object, *args: object, **kwargs: Any) -> None:
        if self.logger.isEnabledFor(logging.INFO):
            self._tell(logging.INFO, msg, args, kwargs)

    def _tell(self, level: int, msg: object, args: Any, kwargs: MutableMapping[str, Any]) -> None:
        """Log on a short way, for this is done for every object; the result is the same."""
        if kwargs or logging.getLogRecordFactory() is not logging.LogRecord:
            kwargs['stacklevel'] = kwargs.get('stacklevel', 1) + 2
            self.log(level, msg, *args, **kwargs)
            return
        caller = sys._getframe(2)
        record = logging.LogRecord(
            self.logger.name, level, caller.f_code.co_filename, caller.f_lineno, msg, args, None,
            caller.f_code.co_name)
        record.__dict__.update(self.extra)
        self.logger.handle(record)


class LocalObjectLogger(ObjectLogger):
    """
    The same, but its lines are never posted as events: for handlers that are called too often for
    that.
    """

    _skip = True


class KopfStreamHandler(logging.StreamHandler[Any]):
    """
    The output to stderr that is configured by `configure`, to be told from those that others have
    added.
    """

    def emit(self, record: logging.LogRecord) -> None:
        # As the parent does it, but flushing without the lock, which is held already.
        try:
            self.stream.write(self.format(record) + self.terminator)
            self.stream.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)


def configure(
        debug: bool | None = None,
        verbose: bool | None = None,
        quiet: bool | None = None,
        log_format: LogFormat | str = LogFormat.FULL,
        log_prefix: bool | None = False,
        log_refkey: str | None = None,
) -> None:
    """
    Log to stderr, in a format, and from a level up: all of the process, not only of the operator.

    ``quiet`` shows only warnings and errors, ``verbose`` also what is done in detail; ``debug``
    also adds the insides of asyncio and of the HTTP library. ``log_format`` is one of the
    well-known formats, or a template of Python's logging. ``log_prefix`` puts the object's name in
    front of messages; if `None`, then in text but not in JSON. ``log_refkey`` is the field for the
    object in JSON (``object`` if not given).

    It can be called again, and then replaces what it did before. Other handlers of the root logger
    are left as is.
    """
    handler = KopfStreamHandler()
    handler.setFormatter(make_formatter(log_format, log_prefix, log_refkey))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, KopfStreamHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(
        logging.DEBUG if debug or verbose else logging.WARNING if quiet else logging.INFO)

    logging.getLogger('asyncio').setLevel(logging.NOTSET if debug else logging.ERROR)
    logging.getLogger('aiohttp').setLevel(logging.NOTSET if debug else logging.INFO)


def make_formatter(
        log_format: LogFormat | str = LogFormat.FULL,
        log_prefix: bool | None = False,
        log_refkey: str | None = None,
) -> logging.Formatter:
    """Make the formatter for the options of `configure`."""
    if log_format is LogFormat.JSON:
        from kopf._core.actions import jsonformatters
        json_class = (
            jsonformatters.ObjectPrefixingJsonFormatter if log_prefix
            else jsonformatters.ObjectJsonFormatter)
        return json_class(refkey=log_refkey or DEFAULT_REFKEY)

    text_class = (
        formatters.ObjectTextFormatter if log_prefix is not None and not log_prefix
        else formatters.ObjectPrefixingTextFormatter)
    return text_class(log_format.value if isinstance(log_format, LogFormat) else log_format)
