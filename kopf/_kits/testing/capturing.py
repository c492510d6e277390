"""
Capturing of log messages: separately for each test, operator, or invocation.
"""
import contextlib
import contextvars
import itertools
import logging
import re
from collections.abc import Iterable, Iterator

from kopf._core.actions import loggers

ENDED = re.compile(r"(?P<who>(\[\S+\] )?\w+ '[^']+') (?P<how>succeeded|failed)\b")
"""The log messages about the end of a call of a handler."""

MAX_FAILURES = 3
"""How many errors of handlers are shown."""

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


def describe_failures(*logs: Iterable[str]) -> str:
    """Show the errors of the handlers whose latest calls have failed."""
    failures: dict[str, str] = {}
    for line in itertools.chain(*logs):
        found = ENDED.match(line)
        if found is not None:
            failures.pop(found['who'], None)
            if found['how'] == 'failed':
                failures[found['who']] = line
    return ''.join(f"{line}\n" for line in [*failures.values()][-MAX_FAILURES:])
