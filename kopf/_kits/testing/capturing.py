"""
Capturing of log messages: separately for each test, operator, or invocation.
"""
import contextlib
import contextvars
import logging
from collections.abc import Iterator

from kopf._core.actions import loggers

_sink: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar('log_sink', default=None)

_level = logging.NOTSET
_users = 0


class _Handler(logging.Handler):
    """Captures the messages of the tasks and threads that were started in one context."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(loggers.make_formatter(loggers.LogFormat.PLAIN, log_prefix=True))

    def emit(self, record: logging.LogRecord) -> None:
        if _sink.get() is self._lines:
            self._lines.append(self.format(record))


@contextlib.contextmanager
def capture(lines: list[str]) -> Iterator[None]:
    """Capture the messages of all levels from the block, and from its tasks and threads."""
    global _level, _users
    own, handler = logging.getLogger('kopf'), _Handler(lines)
    if not _users:
        _level = own.level
        own.setLevel(logging.DEBUG)
    _users += 1
    logging.getLogger().addHandler(handler)
    token = _sink.set(lines)
    try:
        yield
    finally:
        _sink.reset(token)
        logging.getLogger().removeHandler(handler)
        _users -= 1
        if not _users:
            own.setLevel(_level)
