"""
Rules of custom resources in CEL, the Common Expression Language (``x-kubernetes-validations``).

The rules need the package ``common-expression-language``. Without the package, all rules count as
fulfilled, so the sandbox stores objects that a real API would refuse. There are no estimates of
costs, and no checks of types before the evaluation. Of the functions of Kubernetes, only those for
lists and strings are available; rules with others also count as fulfilled.
"""
import base64
import contextlib
import datetime
import functools
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import statuses, wordings
from kopf._kits.sandbox.schemas import formats, nodes, paths

KEYWORDS = frozenset([
    'true', 'false', 'null', 'in', 'as', 'break', 'const', 'continue', 'else', 'for', 'function',
    'if', 'import', 'let', 'loop', 'package', 'namespace', 'return', 'var', 'void', 'while',
])
UNCHECKED = ("some validation rules were not checked because the object was invalid; "
             "correct the existing errors to complete validation")
BLOCKING = frozenset([
    'FieldValueNotSupported', 'FieldValueRequired', 'FieldValueTooLong', 'FieldValueTooMany',
    'FieldValueTypeInvalid',
])


def check_rules(
        schema: nodes.Schema, value: Any, old: Any, path: paths.Path, is_kept: bool = False,
) -> Iterator[statuses.Cause]:
    """
    What rules are broken by a value that fits its schema otherwise.

    Of values that have not changed, only the rules about their old values are checked. ``is_kept``
    is whether the parent has not changed.
    """
    if not schema.with_rules:
        return
    is_kept = is_kept or (old is not nodes.NOTHING and old == value)
    for rule in schema.raw.get('x-kubernetes-validations') or ():
        yield from _check_rule(rule, schema, value, old, path, is_kept)
    if isinstance(value, dict):
        known = old if isinstance(old, dict) else {}
        for key, item in value.items():
            named = schema.properties.get(key)
            child = named if named is not None else schema.additional
            if child is not None:
                place = key if named is not None else paths.MapKey(key)
                yield from check_rules(
                    child, item, known.get(key, nodes.NOTHING), (path, place), is_kept)
    elif isinstance(value, list) and schema.items is not None:
        for index, (item, known) in enumerate(find_former(schema, value, old)):
            yield from check_rules(schema.items, item, known, (path, index), is_kept)


def find_former(schema: nodes.Schema, value: list[Any], old: Any) -> Iterator[tuple[Any, Any]]:
    """The items of a list, and what they were if they can be found by their keys."""
    def identify(item: Any) -> str:
        return wordings.shown([item.get(key) for key in schema.map_keys]) \
            if isinstance(item, dict) else ''

    is_correlated = schema.list_type == 'map' and isinstance(old, list)
    before = {identify(item): item for item in old} if is_correlated else {}
    for item in value:
        yield item, before.get(identify(item), nodes.NOTHING) if before else nodes.NOTHING


def _check_rule(
        rule: Mapping[str, Any], schema: nodes.Schema, value: Any, old: Any, path: paths.Path,
        is_kept: bool,
) -> Iterator[statuses.Cause]:
    text, is_optional = rule['rule'], rule.get('optionalOldSelf')
    is_transition = re.search(r'\boldSelf\b', text) is not None
    if is_kept if not is_transition else old is nodes.NOTHING and not is_optional:
        return
    variables = {'self': _convert(schema, value)}
    field = paths.render(path) or '<nil>'
    try:
        if is_transition:
            variables['oldSelf'] = _convert_former(schema, old, is_optional)
        kept = evaluate(text, variables)
    except Unavailable:
        return
    except Exception as e:  # whatever the library makes of it
        why = f"no such key: {e.args[0]}" if isinstance(e, KeyError) else str(e)
        yield wordings.invalid(field, schema.type or 'object',
                               f"{why} evaluating rule: {rule.get('message') or text}")
        return
    if kept is True:
        return
    message = rule.get('message') or f"failed rule: {text.strip()}"
    if rule.get('messageExpression'):
        with contextlib.suppress(Exception):
            message = str(evaluate(rule['messageExpression'], variables)) or message
    shown = rule.get('fieldPath') is None and not isinstance(value, dict | list)
    yield _make_cause(rule.get('reason') or 'FieldValueInvalid',
                      field + (rule.get('fieldPath') or ''), message.strip(),
                      f": {wordings.shown(value)}" if shown else "")


def _make_cause(reason: str, field: str, message: str, shown: str) -> statuses.Cause:
    texts = {
        'FieldValueForbidden': f"Forbidden: {message}",
        'FieldValueRequired': f"Required value: {message}",
        'FieldValueDuplicate': f"Duplicate value{shown}",
    }
    return statuses.Cause(reason, field, texts.get(reason, f"Invalid value{shown}: {message}"))


def check_syntax(rule: Mapping[str, Any], field: str) -> Iterator[statuses.Cause]:
    """Whether a rule of a CRD can be evaluated at all."""
    text = rule.get('rule') or ''
    if not text.strip():
        yield wordings.required(f'{field}.rule', "rule is not specified")
        return
    if '\n' in (rule.get('message') or ''):
        yield wordings.invalid(f'{field}.message', rule['message'], "must not contain line breaks")
    try:
        _compile(text)
    except Unavailable:
        pass
    except Exception as e:  # whatever the library makes of it
        shown = {
            'Rule': text, 'Message': rule.get('message') or '',
            'MessageExpression': rule.get('messageExpression') or '',
            'Reason': rule.get('reason'), 'FieldPath': rule.get('fieldPath') or '',
            'OptionalOldSelf': rule.get('optionalOldSelf'),
        }
        why = re.sub(r"^.*?(?=ERROR: )", '', str(e), flags=re.DOTALL)
        yield wordings.invalid(f'{field}.rule', shown, f"compilation failed: {why}")


class Unavailable(Exception):
    """There is nothing to evaluate CEL with, or a function is absent."""


def _load() -> Any:
    try:
        return importlib.import_module('cel')  # it is big: only if there are rules
    except ImportError:
        raise Unavailable from None


@functools.lru_cache(maxsize=1024)
def _compile(text: str) -> Any:
    return _load().compile(text)


def evaluate(text: str, variables: Mapping[str, Any]) -> Any:
    """
    The value of an expression. Raises `Unavailable`, or whatever the library does on errors.
    """
    program = _compile(text)
    try:
        return program.execute(
            _load().Context(variables=dict(variables), functions=dict(_FUNCTIONS)))
    except RuntimeError as e:
        if str(e).startswith("Undefined variable or function"):
            raise Unavailable from None
        raise


def _convert_former(schema: nodes.Schema, value: Any, is_optional: bool | None) -> Any:
    if not is_optional:
        return _convert(schema, value)
    optional = _load().OptionalValue
    return optional.none() if value is nodes.NOTHING else optional.of(_convert(schema, value))


def _convert(schema: nodes.Schema | None, value: Any) -> Any:
    """A value as expressions see it: fields of odd names under others, times as times, etc."""
    if schema is None:
        return value
    if isinstance(value, dict):
        return {
            escape(key) if key in schema.properties else key: _convert(schema.of(key), item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_convert(schema.items, item) for item in value]
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        match schema.raw.get('format'):
            case 'date-time' | 'date':
                moment = datetime.datetime.fromisoformat(value)
                return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
            case 'duration':
                return formats.parse_duration(value)
            case 'byte':
                return base64.b64decode(value)
    return value


def escape(name: str) -> str:
    """The name of a field in expressions: ``a-b`` is ``a__dash__b``."""
    if name in KEYWORDS:
        return f'__{name}__'
    for plain, escaped in (('__', '__underscores__'), ('.', '__dot__'), ('-', '__dash__'),
                           ('/', '__slash__')):
        name = name.replace(plain, escaped)
    return name


def _format(text: str, args: list[Any]) -> str:
    rest = iter(args)
    return re.sub(r'%(%|[a-z])', lambda match: '%' if match[1] == '%' else str(next(rest)), text)


def _last_index(items: Any, item: Any) -> int:
    if isinstance(items, str):
        return items.rfind(item)
    return max((index for index, one in enumerate(items) if one == item), default=-1)


def _index(items: Any, item: Any) -> int:
    if isinstance(items, str):
        return items.find(item)
    return items.index(item) if item in items else -1


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    'sum': lambda items: sum(items),
    'isSorted': lambda items: all(one <= two for one, two in itertools.pairwise(items)),
    'indexOf': _index,
    'lastIndexOf': _last_index,
    'join': lambda items, sep='': sep.join(items),
    'split': lambda text, sep: text.split(sep) if sep else list(text),
    'replace': lambda text, old, new: text.replace(old, new),
    'substring': lambda text, start, end=None: text[start:end],
    'charAt': lambda text, index: text[index:index + 1],
    'trim': lambda text: text.strip(),
    'lowerAscii': lambda text: text.lower(),
    'upperAscii': lambda text: text.upper(),
    'format': _format,
    'find': lambda text, pattern: (re.search(pattern, text) or [''])[0],
    'findAll': lambda text, pattern: [match[0] for match in re.finditer(pattern, text)],
}
