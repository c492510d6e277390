"""
How lines of the log look as text: with or without the object's name in front of the message.

A line is about an object if its record has ``k8s_ref``, the reference of that object (see
`loggers.ObjectLogger`).
"""

import logging


def make_prefix(record: logging.LogRecord) -> str:
    """
    Name the object of the record: ``[namespace/name] ``, ``[name] `` without a namespace, or
    nothing at all.
    """
    ref = getattr(record, 'k8s_ref', None)
    if not ref:
        return ''
    name, namespace = ref.get('name'), ref.get('namespace')
    return f'[{namespace}/{name}] ' if namespace else f'[{name}] '


class ObjectTextFormatter(logging.Formatter):
    """Lines of text that do not mention the object."""

    _second: int | None = None
    _stamp = ''

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        return self.formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if datefmt is not None:
            return super().formatTime(record, datefmt)
        second = int(record.created)
        if second != self._second:  # most lines are of the same second as the one before
            self._stamp = super().formatTime(record)[:-3]
            self._second = second
        return f'{self._stamp}{int(record.msecs):03d}'


class ObjectPrefixingTextFormatter(ObjectTextFormatter):
    """Lines of text with the object's name in front of the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = make_prefix(record) + record.message
        return super().formatMessage(record)
