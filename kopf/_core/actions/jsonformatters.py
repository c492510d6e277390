"""
How lines of the log look as JSON: the message, the severity, the time in UTC, and the object in a
field of its own.

The module is imported only by those who log in JSON: the library behind it takes a few
milliseconds.
"""

import logging
from typing import Any

from pythonjsonlogger import core, json

from kopf._core.actions import formatters

INTERNAL_ATTRS = ('k8s_ref', 'k8s_skip', 'settings')


class ObjectJsonFormatter(json.JsonFormatter):
    """Lines of JSON with the reference of the object, if there is one, in the field ``refkey``."""

    def __init__(self, *, refkey: str) -> None:
        super().__init__(
            '%(message)s', timestamp=True, reserved_attrs=[*core.RESERVED_ATTRS, *INTERNAL_ATTRS])
        self._refkey = refkey

    def add_fields(
            self,
            log_data: dict[str, Any],
            record: logging.LogRecord,
            message_dict: dict[str, Any],
    ) -> None:
        super().add_fields(log_data, record, message_dict)
        ref = getattr(record, 'k8s_ref', None)
        if ref:
            log_data[self._refkey] = ref
        log_data['severity'] = name_severity(record.levelno)


class ObjectPrefixingJsonFormatter(ObjectJsonFormatter):
    """The same, with the object's name also in front of the message."""

    def add_fields(
            self,
            log_data: dict[str, Any],
            record: logging.LogRecord,
            message_dict: dict[str, Any],
    ) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data['message'] = formatters.make_prefix(record) + str(log_data.get('message', ''))


def name_severity(level: int) -> str:
    """
    Give a level the name by which most log collectors know it; levels in between count as the next
    higher one.
    """
    if level <= logging.DEBUG:
        return 'debug'
    if level <= logging.INFO:
        return 'info'
    if level <= logging.WARNING:
        return 'warn'
    if level <= logging.ERROR:
        return 'error'
    return 'fatal'
