"""
Formatters of the log as JSON: the message, the severity, the time in UTC, and the object.

This module is imported only if the log is in JSON: importing its library takes some milliseconds.
"""

import logging
from typing import Any

from pythonjsonlogger import core, json

from kopf._cogs.helpers import formatters

SEVERITIES = (
    (logging.DEBUG, 'debug'), (logging.INFO, 'info'), (logging.WARNING, 'warn'),
    (logging.ERROR, 'error'))
"""The highest level of each severity, except for ``fatal``."""

INTERNAL_ATTRS = ('k8s_ref', 'k8s_skip', 'settings')


class ObjectJsonFormatter(json.JsonFormatter):
    """
    Formats records as JSON. The reference of the object is in the field named by ``refkey``. With
    ``log_prefix``, the object's name is also before the message.
    """

    def __init__(self, *, refkey: str, log_prefix: bool) -> None:
        super().__init__(
            '%(message)s', timestamp=True, reserved_attrs=[*core.RESERVED_ATTRS, *INTERNAL_ATTRS])
        self._refkey = refkey
        self._log_prefix = log_prefix

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
        if self._log_prefix:
            log_data['message'] = formatters.make_prefix(record) + str(log_data.get('message', ''))


def name_severity(level: int) -> str:
    """
    Get the name of a level as most log collectors have it. Levels in between are rounded up.
    """
    return next((name for limit, name in SEVERITIES if level <= limit), 'fatal')
