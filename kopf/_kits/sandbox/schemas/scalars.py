"""
Single values as the API decodes them: scalars, times, quantities; and what it tells of others.
"""
import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kopf._kits.sandbox import wordings
from kopf._kits.sandbox.schemas import nodes

QUANTITY = 'io.k8s.apimachinery.pkg.api.resource.Quantity'
INT_LIMITS = {'int32': 2 ** 31, 'int64': 2 ** 63}
TIME_FORMAT = '2006-01-02T15:04:05Z07:00'
MICROTIME_FORMAT = '2006-01-02T15:04:05.000000Z07:00'

_TIME = re.compile(r'\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}([.,]\d+)?(Z|[+-]\d{2}:\d{2})', re.ASCII)
_BASE64 = re.compile(
    r'([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})?', re.ASCII)
_QUANTITY = re.compile(r'[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eEinumkKMGTP]*[-+]?[0-9]*)', re.ASCII)
_SUFFIX = re.compile(r'[KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]+', re.ASCII)


class Undecodable(ValueError):
    """A value is not of the type it must be; the text is the API's, to be put into its errors."""


@dataclass(slots=True)
class Field:
    """A field as errors tell it: its struct's name, and the names on the way to it."""
    struct: str
    names: tuple[str, ...]


def is_omitted(schema: nodes.Schema, value: Any, required: bool, key: str) -> bool:
    """Whether the value is as good as none: it is not there when the object is read again."""
    if required:
        return False
    if value == '' and isinstance(value, str):
        return schema.type == 'string' and key not in KEPT_EMPTY
    if value == 0 and schema.type in ('integer', 'number'):
        return key in DROPPED_ZERO
    if schema.default is not nodes.NOTHING:
        return False
    if value is False:
        return key in DROPPED_FALSE
    return value in ([], {}) and (schema.type == 'array' or (
        schema.type == 'object' and schema.has_additional))


#: Strings that differ from nothing if they are empty.
KEPT_EMPTY = frozenset(['storageClassName', 'ingressClassName', 'volumeAttributesClassName'])
#: Booleans that do not differ from nothing if they are false.
DROPPED_FALSE = frozenset([
    'hostNetwork', 'hostPID', 'hostIPC', 'paused', 'publishNotReadyAddresses', 'readOnly', 'stdin',
    'stdinOnce', 'tty', 'unschedulable', 'globalDefault',
])
#: Numbers that do not differ from nothing if they are zero.
DROPPED_ZERO = frozenset([
    'hostPort', 'nodePort', 'healthCheckNodePort', 'minReadySeconds', 'initialDelaySeconds',
    'timeoutSeconds', 'periodSeconds', 'successThreshold', 'failureThreshold', 'observedGeneration',
    'updatedReplicas', 'readyReplicas', 'unavailableReplicas', 'active', 'succeeded', 'failed',
    'number', 'signal', 'count',
])


def zero(schema: nodes.Schema) -> Any:
    """What a null is in a list or a map."""
    if schema.name == QUANTITY:
        return '0'
    zeros: dict[str, Any] = {
        'object': {}, 'array': [], 'string': '', 'integer': 0, 'number': 0, 'boolean': False}
    return zeros.get(schema.type)


def mismatch(schema: nodes.Schema, value: Any, field: Field | None) -> Undecodable:
    shown = f' {wordings.shown(value)}' if isinstance(value, int | float) and (
        schema.type in ('integer', 'number') and not isinstance(value, bool)) else ''
    where = (f"struct field {field.struct}.{'.'.join(field.names)} of type {_go_type(schema)}"
             if field else f"value of type {_go_type(schema)}")
    return Undecodable(wordings.not_decoded(value, where, shown))


def _go_type(schema: nodes.Schema) -> str:
    if schema.name:
        package, _, name = schema.name.rpartition('.')
        return f"{package.rpartition('.')[2]}.{name}"
    if schema.type == 'array' and schema.items is not None:
        return f'[]{_go_type(schema.items)}'
    if schema.type == 'object' and schema.additional is not None:
        return f'map[string]{_go_type(schema.additional)}'
    if schema.raw.get('format') == 'byte':
        return '[]uint8'
    if schema.type == 'integer':
        return str(schema.raw.get('format', 'int64'))
    return {'boolean': 'bool', 'number': 'float64'}.get(schema.type, schema.type)


TYPES: dict[str, tuple[type, ...]] = {
    'object': (dict,), 'array': (list,), 'string': (str,), 'boolean': (bool,),
    'number': (int, float), 'integer': (int,),
}
"""The types of values here, by their types in schemas."""


def check(schema: nodes.Schema, value: Any, field: Field | None) -> None:
    """Raises `Undecodable` for a scalar of another type, or beyond the limits of its type."""
    format = schema.raw.get('format', '')
    limit = INT_LIMITS.get(format, 2 ** 63)
    if type(value) not in TYPES[schema.type] or (
            schema.type == 'integer' and not -limit <= value < limit):
        raise mismatch(schema, value, field)
    if schema.type == 'string' and format == 'byte' and not _BASE64.fullmatch(value):
        good = re.match(r'([A-Za-z0-9+/]{4})*[A-Za-z0-9+/]*', value)
        raise Undecodable(f"illegal base64 data at input byte {good.end() if good else 0}")


def _decode_time(schema: nodes.Schema, value: Any, field: Field | None) -> Any:
    """Times are kept in UTC, and in whole seconds, or else in microseconds, of 6 digits always."""
    if not isinstance(value, str):
        place = f"struct field {field.struct}.{'.'.join(field.names)}" if field else "value"
        raise Undecodable(wordings.not_decoded(value, f"{place} of type string"))
    micro = schema.name.endswith('MicroTime')
    match = _TIME.fullmatch(value)
    form, part, rest = MICROTIME_FORMAT if micro else TIME_FORMAT, '2006', value
    if match and micro and len(match[1] or '') != 7:
        match, part, rest = None, '.000000', value[19:]
    if not match:
        raise Undecodable(f'parsing time "{value}" as "{form}": cannot parse "{rest}" as "{part}"')
    if value.endswith('Z') and (micro or match[1] is None):
        return value
    try:
        moment = datetime.datetime.fromisoformat(value).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise Undecodable(f'parsing time "{value}": day out of range') from None
    return moment.strftime('%Y-%m-%dT%H:%M:%S.%fZ' if micro else '%Y-%m-%dT%H:%M:%SZ')


def _decode_quantity(schema: nodes.Schema, value: Any, field: Field | None) -> Any:
    text = value if isinstance(value, str) else wordings.shown(value)
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise Undecodable(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    if not _SUFFIX.fullmatch(match[2]):
        raise Undecodable("unable to parse quantity's suffix")
    return text


def _decode_int_or_string(schema: nodes.Schema, value: Any, field: Field | None) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Undecodable(wordings.not_decoded(value, "value of type string"))
    return value


SPECIAL: dict[str, Callable[[nodes.Schema, Any, Field | None], Any]] = {
    'io.k8s.apimachinery.pkg.apis.meta.v1.Time': _decode_time,
    'io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime': _decode_time,
    QUANTITY: _decode_quantity,
    'io.k8s.apimachinery.pkg.util.intstr.IntOrString': _decode_int_or_string,
}
