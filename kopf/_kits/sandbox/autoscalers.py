"""
What tables tell of the targets of horizontal pod autoscalers.
"""
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.sandbox.builtins import converting
from kopf._kits.sandbox.statuses import Obj

SHOWN = 2


def targets(obj: Obj, now: datetime.datetime) -> str:
    """The current and the wanted values of the first metrics: ``cpu: <unknown>/80%``."""
    obj = converting.convert(obj, 'autoscaling/v2')
    current = (obj.get('status') or {}).get('currentMetrics') or []
    metrics = (obj.get('spec') or {}).get('metrics') or []
    texts = list(_texts(metrics, current))
    more = f' + {len(texts) - SHOWN} more...' if len(texts) > SHOWN else ''
    return ', '.join(texts[:SHOWN]) + more or '<none>'


def _texts(metrics: list[Obj], current: list[Obj]) -> Iterator[str]:
    for index, metric in enumerate(metrics):
        type = str(metric.get('type'))
        source = type[:1].lower() + type[1:]
        wanted = (metric.get(source) or {}).get('target') or {}
        known = current[index] if index < len(current) else {}
        now = (known.get(source) or {}).get('current') or {}
        name = (metric.get(source) or {}).get('name')
        prefix = f'{name}: ' if source in ('resource', 'containerResource') else ''
        average = ' (avg)' if source in ('external', 'object') and 'averageValue' in wanted else ''
        yield f'{prefix}{_shown(now)}/{_shown(wanted, "<auto>")}{average}'


def _shown(value: Mapping[str, Any], unknown: str = '<unknown>') -> str:
    for key in 'averageValue', 'value':
        if value.get(key) is not None:
            return str(value[key])
    percentage = value.get('averageUtilization')
    return unknown if percentage is None else f'{percentage}%'
