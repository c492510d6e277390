"""
Validation of single values: their types, strings, numbers.
"""
import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

from kopf._kits.sandbox import wordings
from kopf._kits.sandbox.schemas import formats, nodes, paths, patterns
from kopf._kits.sandbox.schemas.findings import Check, Findings

INT32 = 2 ** 31
INT64 = 2 ** 63
MAX_SAFE = 2 ** 53
"""Beyond this, floats are not taken for integers."""
MAX_FLOAT32 = 3.4028234663852886e38


def format_of(schema: nodes.Schema) -> str:
    """The format of the values; those that the API does not know mean nothing."""
    format: str = schema.raw.get('format') or ''
    return format if format in formats.FORMATS or format in formats.NUMERIC else ''


def _type_of(value: Any) -> tuple[str, str]:
    """The type and the format of a value, in the schemas' terms."""
    if type(value) is int and -INT64 <= value < INT64:
        return 'integer', 'int64'
    types = {dict: ('object', ''), list: ('array', ''), str: ('string', 'string'),
             bool: ('boolean', '')}
    return types.get(type(value), ('number', 'float64'))


def check_type(
        value: Any, path: paths.Path, expected: str, allowed: frozenset[str], format: str,
        findings: Findings,
) -> None:
    actual, actual_format = _type_of(value)
    fits = actual in allowed or (actual == 'integer' and 'number' in allowed) or (
        actual == 'number' and 'integer' in allowed and float(value).is_integer()
        and abs(value) < INT64)
    if format:
        if actual in ('string', 'array'):
            if not allowed & {'number', 'integer'}:
                return  # an oddity of the API: lists pass where strings of a format are expected
        elif not fits:
            findings.add_mistyped(path, format, actual_format)
            return
    if not fits:
        findings.add_mistyped(path, expected, actual)


def check_enumerated(
        value: Any, path: paths.Path, supported: list[Any], findings: Findings,
) -> None:
    if value is not None:
        for one in supported:
            if isinstance(value, float) and isinstance(one, int):
                found: Any = int(value) if math.isfinite(value) else value  # as the API compares
            else:
                found = value
            if one == found and isinstance(one, bool) is isinstance(value, bool):
                return
    names = [one if isinstance(one, str) else wordings.shown(one) for one in supported]
    findings.by_schema.append(wordings.unsupported(
        paths.render(path), wordings.arranged(value), names))


def make_for_strings(schema: nodes.Schema) -> Iterator[Check]:
    most, least = schema.raw.get('maxLength'), schema.raw.get('minLength')
    pattern = schema.raw.get('pattern')
    format = format_of(schema)
    is_format = formats.FORMATS.get(format)
    search = None
    with contextlib.suppress(patterns.UnknownPattern):
        search = patterns.compile(pattern) if pattern else None

    def check(value: str, path: paths.Path, old: Any, findings: Findings) -> None:
        if most is not None and len(value) > most:
            findings.by_schema.append(wordings.too_long(paths.render(path), most))
        elif least is not None and len(value) < least:
            findings.add_invalid(path, value, f"be at least {least} chars long")
        elif search is not None and not search(value):
            findings.add_invalid(path, value, f"match '{pattern}'")
        if is_format is not None and not is_format(value):
            findings.add_mistyped(path, format, value)

    if most is not None or least is not None or search is not None or is_format is not None:
        yield check


def make_for_numbers(schema: nodes.Schema) -> Iterator[Check]:
    raw = schema.raw
    if schema.type in ('integer', 'number'):
        yield functools.partial(_check_range, schema.type, raw.get('format') or '')
    multiple, most, least = raw.get('multipleOf'), raw.get('maximum'), raw.get('minimum')
    below, above = raw.get('exclusiveMaximum', False), raw.get('exclusiveMinimum', False)

    def check(value: float, path: paths.Path, old: Any, findings: Findings) -> None:
        cast = int if isinstance(value, int) else float  # the API cuts limits for integers
        wrong = []
        if multiple is not None and cast(multiple) <= 0:
            field = paths.render(path)
            findings.by_schema.append(wordings.invalid(
                field, cast(multiple), f"factor MultipleOf declared for {field} must be positive: "
                                       f"{wordings.shown(cast(multiple))}"))
        elif multiple is not None and not _is_multiple(value, cast(multiple)):
            wrong.append(f"a multiple of {_shown(cast(multiple))}")
        if most is not None and (value >= cast(most) if below else value > cast(most)):
            wrong.append(f"less than {'' if below else 'or equal to '}{_shown(cast(most))}")
        if least is not None and (value <= cast(least) if above else value < cast(least)):
            wrong.append(f"greater than {'' if above else 'or equal to '}{_shown(cast(least))}")
        for text in wrong:
            findings.add_invalid(path, value, f"be {text}")

    if multiple is not None or most is not None or least is not None:
        yield check


def _is_multiple(value: float, of: float) -> bool:
    if isinstance(value, int) and isinstance(of, int):
        return of != 0 and value % of == 0
    ratio = float(value) / float(of) if of else math.nan
    return ratio.is_integer() and abs(ratio) < MAX_SAFE


def _check_range(
        type: str, format: str, value: float, path: paths.Path, old: Any, findings: Findings,
) -> None:
    if type == 'integer':
        limit = INT32 if format == 'int32' else INT64
        fits = float(value).is_integer() and -limit <= value < limit
        shown = f"with format {format}" if format in ('int32', 'int64') else "(default format)"
    else:
        limit_float = MAX_FLOAT32 if format == 'float' else math.inf
        fits = abs(value) <= limit_float
        shown = f"with format {format}" if format in ('float', 'double') else "(default format)"
    if not fits:
        findings.add_unplaced(
            f"Checked value must be of type {type} {shown} in {paths.render(path)}")


def _shown(limit: float) -> str:
    return wordings.shown_float(float(limit))
