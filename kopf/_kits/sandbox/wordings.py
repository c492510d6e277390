"""
Findings of validations, worded as the API does.
"""
import decimal
import json
import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kopf._kits.sandbox.statuses import Cause


def required(field: str, why: str = '') -> Cause:
    return Cause('FieldValueRequired', field, _with("Required value", why))


def invalid(field: str, value: Any, why: str) -> Cause:
    return Cause('FieldValueInvalid', field, _with(f"Invalid value: {shown(value)}", why))


def all_invalid(field: str, value: Any, whys: Iterable[str]) -> Iterator[Cause]:
    """All that is wrong with one value."""
    return (invalid(field, value, why) for why in whys)


def mistyped(field: str, value: Any, why: str) -> Cause:
    return Cause('FieldValueTypeInvalid', field, _with(f"Invalid value: {shown(value)}", why))


def unsupported(field: str, value: Any, supported: Iterable[Any]) -> Cause:
    values = ', '.join(map(shown, supported))
    return Cause('FieldValueNotSupported', field,
                 f"Unsupported value: {shown(value)}: supported values: {values}")


def one_of(field: str, value: Any, supported: Collection[Any], why: str = '') -> Iterator[Cause]:
    """What is wrong with a value that must be there, and be one of these."""
    if not value:
        yield required(field, why)
    elif value not in supported:
        yield unsupported(field, value, supported)


def duplicate(field: str, value: Any) -> Cause:
    return Cause('FieldValueDuplicate', field, f"Duplicate value: {shown(value)}")


def forbidden(field: str, why: str) -> Cause:
    return Cause('FieldValueForbidden', field, f"Forbidden: {why}")


def too_long(field: str, limit: int) -> Cause:
    return Cause('FieldValueTooLong', field,
                 f"Too long: may not be more than {limit} byte{_s(limit)}")


def too_many(field: str, actual: int, limit: int) -> Cause:
    return Cause('FieldValueTooMany', field,
                 f"Too many: {actual}: must have at most {limit} item{_s(limit)}")


def immutable(field: str, value: Any) -> Cause:
    return invalid(field, value, "field is immutable")


def shown(value: Any) -> str:
    """A value as messages show it: compact JSON, but for floats."""
    if isinstance(value, float):
        return shown_float(value)
    text = json.dumps(_with_plain_floats(value), separators=(',', ':'), ensure_ascii=False)
    if isinstance(value, dict | list):
        text = text.replace('<', r'\u003c').replace('>', r'\u003e').replace('&', r'\u0026')
    return text


def json_type(value: Any) -> str:
    """The type of a value, as the API's decoder names it."""
    if isinstance(value, bool):
        return 'bool'
    names = {dict: 'object', list: 'array', str: 'string', int: 'number', float: 'number'}
    return names.get(type(value), 'null')


def not_decoded(value: Any, where: str, shown: str = '') -> str:
    """What the API's decoder tells of a value of a wrong type."""
    return f"json: cannot unmarshal {json_type(value)}{shown} into Go {where}"


def go_type(value: Any) -> str:
    """The type of a value, as Go names it."""
    names = {bool: 'bool', int: 'int64', float: 'float64', str: 'string',
             list: '[]interface {}', dict: 'map[string]interface {}'}
    return names.get(type(value), '<nil>')


def printed(value: Any) -> str:
    """A value as Go prints it."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{printed(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(printed, value))}]"
    return '<nil>' if value is None else value if isinstance(value, str) else json.dumps(value)


def arranged(value: Any) -> Any:
    """A value of no known type, with its keys in the order in which messages show them."""
    if isinstance(value, dict):
        return {key: arranged(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [arranged(item) for item in value]
    return value


def _with_plain_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_plain_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_plain_floats(item) for item in value]
    if isinstance(value, float) and abs(value) < 1e21 and value.is_integer():
        return int(value)
    return value


def shown_float(value: float) -> str:
    """A float as Go prints it: 0.5, 3, 1e+06."""
    if not math.isfinite(value):
        return {'inf': '+Inf', '-inf': '-Inf'}.get(str(value), 'NaN')
    sign, digits, _ = decimal.Decimal(repr(value)).normalize().as_tuple()
    exponent = decimal.Decimal(repr(value)).adjusted() if value else 0
    if -4 <= exponent < 6:
        return f'{value:.17g}' if value.is_integer() else repr(value)
    fraction = ''.join(map(str, digits[1:]))
    mantissa = f'{digits[0]}.{fraction}' if fraction else str(digits[0])
    return f"{'-' if sign else ''}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _s(number: int) -> str:
    return '' if number == 1 else 's'


def _with(text: str, why: str) -> str:
    return f"{text}: {why}" if why else text
