"""
Bodies in protobuf, as Go clients send them for the built-in kinds (`kubectl create` does).

They are only read: answers are JSON, which these clients accept as well.
"""
import base64
import datetime
import functools
import gzip
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.kinds import DATA
from kopf._kits.sandbox.statuses import Obj

MEDIA_TYPE = 'application/vnd.kubernetes.protobuf'
MAGIC = b'k8s\0'
MAX_DEPTH = 200

_MACHINERY = 'k8s.io.apimachinery.pkg'
_META = f'{_MACHINERY}.apis.meta.v1'
_CRD = 'k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1'
_EXCEPTIONS = {
    'apiextensions.k8s.io': _CRD, 'flowcontrol.apiserver.k8s.io': 'k8s.io.api.flowcontrol.v1'}
_META_KINDS = ('DeleteOptions', 'Status', 'CreateOptions', 'PatchOptions', 'UpdateOptions')

Fields = Mapping[str, Sequence[str]]


def decode(body: bytes) -> Obj:
    """The object as it would be in JSON. Raises `DecodingError` if it is no known object."""
    try:
        if not body.startswith(MAGIC):
            raise ValueError("provided data does not appear to be a protobuf message, "
                             "expected prefix [107 56 115 0]")
        outer = body[len(MAGIC):]
        typed = _part(outer, 1)
        api_version, kind = _part(typed, 1).decode(), _part(typed, 2).decode()
        message = _message_of(api_version, kind)
        if message is None:
            raise ValueError(f'no kind "{kind}" is registered for version "{api_version}"')
        obj = _decode(message, _part(outer, 2), 0)
        return {'kind': kind, 'apiVersion': api_version, **obj}
    except (ValueError, struct.error, IndexError, OverflowError) as e:
        raise encoding.DecodingError(str(e)) from None


@functools.cache
def _table() -> Mapping[str, Fields]:
    table: Mapping[str, Fields] = json.loads(
        gzip.decompress((DATA / 'protobuf.json.gz').read_bytes()))
    return table


def _message_of(api_version: str, kind: str) -> str | None:
    group, _, version = api_version.rpartition('/')
    package = _EXCEPTIONS.get(group, f"k8s.io.api.{group.partition('.')[0] or 'core'}.{version}")
    for name in (f'{package}.{kind}', f'{_META}.{kind}' if kind in _META_KINDS else ''):
        if name in _table():
            return name
    return None


def _split(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message as they are on the wire."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(raw, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = raw[at:at + size], at + size
        elif wire == 2:
            size, at = _varint(raw, at)
            value, at = raw[at:at + size], at + size
        else:
            raise ValueError(f"proto: illegal wireType {wire}")
        if at > len(raw):
            raise ValueError("unexpected EOF")
        yield number, value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(raw):
            raise ValueError("unexpected EOF")
        byte = raw[at]
        at += 1
        result |= (byte & 0x7f) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise ValueError("proto: integer overflow")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("proto: wrong wireType")
    return value


def _part(raw: bytes, number: int) -> bytes:
    """The bytes in a field of a message; empty if they are absent."""
    return _bytes(dict(_split(raw)).get(number, b''))


def _signed(value: int | bytes) -> int:
    number = value if isinstance(value, int) else 0
    return number - (1 << 64) if number >= 1 << 63 else number


def _decode(message: str, raw: bytes, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("proto: exceeded max depth")
    special = _SPECIAL.get(message)
    if special is not None:
        return special(raw)
    fields = _table().get(message)
    if fields is None:
        raise ValueError(f"proto: unknown message {message}")
    result: Obj = {}
    for number, value in _split(raw):
        field = fields.get(str(number))
        if field is None:
            continue
        name, type, *told = field
        if type.startswith('[]'):
            result.setdefault(name, []).append(_value(type[2:], value, depth))
        elif type.startswith('{}'):
            pair = dict(_split(_bytes(value)))
            key = _bytes(pair.get(1, b'')).decode('utf-8', 'replace')
            result.setdefault(name, {})[key] = _value(type[2:], pair.get(2, b''), depth)
        else:
            found = _value(type, value, depth)
            if not name:
                result.update(found)
            elif told or found not in (None, '', 0, False):
                result[name] = found
    if [*fields] == ['1'] and fields['1'][0] == 'items':
        return result.get('items', [])  # a list with a name of its own
    return result


def _value(type: str, value: int | bytes, depth: int) -> Any:
    match type:
        case 'string':
            return _bytes(value).decode('utf-8', 'replace')
        case 'bytes':
            return base64.b64encode(_bytes(value)).decode()
        case 'bool':
            return bool(value)
        case 'int32' | 'int64':
            return _signed(value)
        case 'double':
            number = struct.unpack('<d', _bytes(value))[0]
            return int(number) if float(number).is_integer() else number
    return _decode(type, _bytes(value), depth + 1)


def _time(raw: bytes, *, micro: bool = False) -> str | None:
    parts = dict(_split(raw))
    time = datetime.datetime(1970, 1, 1) + datetime.timedelta(
        seconds=_signed(parts.get(1, 0)), microseconds=_signed(parts.get(2, 0)) // 1000)
    if not parts or time.year < 2:
        return None
    text = time.strftime('%Y-%m-%dT%H:%M:%S')
    return f'{text}.{time.microsecond:06}Z' if micro else f'{text}Z'


def _string(raw: bytes) -> str:
    return _part(raw, 1).decode('utf-8', 'replace')


def _int_or_string(raw: bytes) -> int | str:
    parts = dict(_split(raw))
    return _part(raw, 3).decode('utf-8', 'replace') if parts.get(1) else _signed(parts.get(2, 0))


def _duration(raw: bytes) -> str:
    return f'{_signed(dict(_split(raw)).get(1, 0)) / 1e9:g}s'


def _json(raw: bytes) -> Any:
    found = _part(raw, 1)
    return encoding.decode(found) if found else None


def _schema(raw: int | bytes) -> Any:
    return _decode(f'{_CRD}.JSONSchemaProps', _bytes(raw), 1)


def _either(field: int, other: Callable[[list[int | bytes]], Any]) -> Callable[[bytes], Any]:
    """A schema in this field, or else what the values of the other field are made into."""
    def special(raw: bytes) -> Any:
        parts = list(_split(raw))
        found = dict(parts)
        return _schema(found[field]) if field in found else other([value for _, value in parts])
    return special


_SPECIAL: Mapping[str, Callable[[bytes], Any]] = {
    f'{_META}.Time': _time,
    f'{_META}.MicroTime': functools.partial(_time, micro=True),
    f'{_META}.Duration': _duration,
    f'{_META}.FieldsV1': _json,
    f'{_MACHINERY}.api.resource.Quantity': _string,
    f'{_MACHINERY}.util.intstr.IntOrString': _int_or_string,
    f'{_MACHINERY}.runtime.RawExtension': _json,
    f'{_CRD}.JSON': _json,
    f'{_CRD}.JSONSchemaPropsOrArray': _either(1, lambda values: [*map(_schema, values)]),
    f'{_CRD}.JSONSchemaPropsOrBool': _either(2, lambda values: bool(values and values[-1])),
    f'{_CRD}.JSONSchemaPropsOrStringArray': _either(
        1, lambda values: [_bytes(value).decode() for value in values]),
}
