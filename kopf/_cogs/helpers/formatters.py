"""
Formatters of the log as text, with or without the object's name before the message.

A record is about an object if it has the attribute ``k8s_ref``: its reference, a mapping.
"""

import logging
import re


def make_prefix(record: logging.LogRecord) -> str:
    """
    Make the prefix with the object of the record: ``[namespace/name] ``, ``[name] ``, or empty.
    """
    ref = getattr(record, 'k8s_ref', None)
    if not ref:
        return ''
    name, namespace = ref.get('name'), ref.get('namespace')
    return f'[{namespace}/{name}] ' if namespace else f'[{name}] '


class ObjectTextFormatter(logging.Formatter):
    """Formats records as text, with or without the object's name before the message."""

    _second: int | None = None
    _stamp = ''

    def __init__(self, fmt: str | None = None, *, log_prefix: bool = False) -> None:
        super().__init__(fmt)
        self._log_prefix = log_prefix
        self._is_timed = self.usesTime()

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        record.message = record.getMessage()
        if self._is_timed:
            record.asctime = self.formatTime(record, self.datefmt)
        return self.formatMessage(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        if self._log_prefix:
            record.message = make_prefix(record) + record.message
        try:
            return (self._fmt or '') % record.__dict__
        except KeyError:
            return super().formatMessage(record)  # it raises an error that explains the reason

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if datefmt is not None:
            return super().formatTime(record, datefmt)
        second = int(record.created)
        if second != self._second:  # usually, several records come within the same second
            self._stamp = super().formatTime(record)[:-3]
            self._second = second
        return f'{self._stamp}{int(record.msecs):03d}'


LEVELS = ((logging.ERROR, '31;1'), (logging.WARNING, '33'), (logging.INFO, '32'), (0, '2'))
"""The colours of levels: red, yellow, green, and dim."""

OPERATIONS = {'add': '32', 'change': '33', 'remove': '31'}
"""The colours of what diffs consist of."""

MAX_WIDTH = 40
"""How wide the column of the objects can become; longer names push the message to the right."""


class ObjectColorFormatter(ObjectTextFormatter):
    """
    Lines for people at a terminal, with colours: the time, the level, the object, the message.

    The column of objects is as wide as the longest name so far, so that messages are aligned.
    """

    def __init__(self, *, log_prefix: bool) -> None:
        super().__init__('%(asctime)s %(message)s', log_prefix=log_prefix)
        self._width = 0

    def formatMessage(self, record: logging.LogRecord) -> str:
        color = next(color for level, color in LEVELS if record.levelno >= level)
        text = record.message
        if record.levelno <= logging.DEBUG and 'diff' in text:
            text = _OPERATION.sub(lambda found: paint(found[0], OPERATIONS[found[1]]), text)
        parts = [paint(record.asctime[11:], '2'), paint(f'{record.levelname:<8.8}', color)]
        if self._log_prefix:
            name = make_prefix(record).strip('[] ')
            self._width = max(self._width, min(len(name), MAX_WIDTH))
            if self._width:
                parts.append(paint(name, '36') + ' ' * (self._width - len(name)))
        return ' '.join([*parts, text])


_OPERATION = re.compile(r"(?<=\(')(add|change|remove)(?=', \()")
"""The operations in diffs as they are logged: ``('change', ('spec', 'field'), 'old', 'new')``."""


def paint(text: str, color: str) -> str:
    """Show the text of a terminal in a colour: parameters of the escape sequence, as ``31;1``."""
    return f'\033[{color}m{text}\033[0m' if text else text
