"""
Label selectors and field selectors, as they come in queries.

A parsed selector is a function of labels or of fields. Texts that the API refuses raise
`BadRequest` with the message of the API.
"""
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopf._kits.sandbox.statuses import BadRequest, Obj

Labels = Mapping[str, str]

_TOKENS = re.compile(r'\s*(==|!=|=|>|<|!|,|\(|\)|[^\s=!<>,()]+)')
_NAME = re.compile(r'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
_VALUE = re.compile(r'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
_DNS = re.compile(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
_SYMBOLS = frozenset({'==', '!=', '=', '>', '<', '!', ',', '(', ')', ''})

_BAD_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')")
_BAD_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')")
_BAD_PREFIX = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
    "characters, '-' or '.', and must start and end with an alphanumeric character (e.g. "
    "'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')")


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: str  # in, notin, exists, absent, gt, lt
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case 'in':
                return value in self.values
            case 'notin':
                return value not in self.values
            case 'exists':
                return value is not None
            case 'absent':
                return value is None
        if value is None or not re.fullmatch('[+-]?[0-9]+', value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == 'gt' else int(value) < bound


class LabelSelector:
    """Requirements that must all hold; of nothing, it matches everything."""

    def __init__(self, requirements: list[Requirement]) -> None:
        self.requirements = requirements

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def matches(self, labels: Labels | None) -> bool:
        labels = labels or {}
        return all(requirement.matches(labels) for requirement in self.requirements)


def parse_labels(text: str) -> LabelSelector:
    """A selector like ``a=b,c!=d,e in (f,g),!h,i>5``."""
    return LabelSelector(list(_Parser(text).parse()))


def labels_of(selector: Mapping[str, Any] | None) -> LabelSelector:
    """A selector as objects have it: with ``matchLabels`` and ``matchExpressions``."""
    selector = selector or {}
    operators = {'In': 'in', 'NotIn': 'notin', 'Exists': 'exists', 'DoesNotExist': 'absent'}
    return LabelSelector([
        *(Requirement(key, 'in', frozenset({value}))
          for key, value in (selector.get('matchLabels') or {}).items()),
        *(Requirement(expression.get('key', ''), operators.get(expression.get('operator'), 'in'),
                      frozenset(expression.get('values') or ()))
          for expression in selector.get('matchExpressions') or ()),
    ])


def labels_text(selector: Mapping[str, Any] | None) -> str:
    """A selector of an object as queries have it."""
    selector = selector or {}
    parts = [f'{key}={value}' for key, value in (selector.get('matchLabels') or {}).items()]
    for expression in selector.get('matchExpressions') or ():
        key, values = expression.get('key', ''), ','.join(sorted(expression.get('values') or ()))
        match expression.get('operator'):
            case 'In':
                parts.append(f'{key} in ({values})')
            case 'NotIn':
                parts.append(f'{key} notin ({values})')
            case 'Exists':
                parts.append(key)
            case 'DoesNotExist':
                parts.append(f'!{key}')
    return ','.join(sorted(parts, key=lambda part: part.lstrip('!')))


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _TOKENS.findall(text)
        self.at = 0

    def peek(self) -> str:
        token: str = self.tokens[self.at] if self.at < len(self.tokens) else ''
        return token

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def parse(self) -> Iterator[Requirement]:
        while (token := self.peek()) != '':
            if token in _SYMBOLS and token != '!':
                raise BadRequest(
                    f"found '{token}', expected: !, identifier, or 'end of string'")
            yield self.requirement()
            token = self.next()
            if token == '':
                return
            if token != ',':
                raise BadRequest(f"found '{token}', expected: ',' or 'end of string'")
            if self.peek() in _SYMBOLS and self.peek() != '!':
                raise BadRequest(f"found '{self.peek()}', expected: identifier after ','")

    def requirement(self) -> Requirement:
        negated = self.peek() == '!'
        if negated:
            self.next()
        key = self.next()
        if key in _SYMBOLS:
            raise _unparsed(f"found '{key}', expected: identifier")
        _check_key(key)
        operator = self.peek()
        if negated:
            return Requirement(key, 'absent')
        if operator in ('', ','):
            return Requirement(key, 'exists')
        self.next()
        if operator in ('in', 'notin'):
            values = self.values()
        elif operator in ('=', '==', '!=', '>', '<'):
            values = self.value()
        else:
            raise _unparsed(
                f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in ('>', '<'):
            value = next(iter(values))
            if not re.fullmatch('[+-]?[0-9]{1,18}', value):
                raise _unparsed(
                    f'values[0]: Invalid value: "{value}": '
                    "for 'Gt', 'Lt' operators, the value must be an integer")
            return Requirement(key, 'gt' if operator == '>' else 'lt', values)
        for index, value in enumerate(values):
            if len(value) > 63:
                raise _unparsed(f'values[{index}][{key}]: Invalid value: "{value}": '
                                "must be no more than 63 bytes")
            if not _VALUE.fullmatch(value):
                raise _unparsed(f'values[{index}][{key}]: Invalid value: "{value}": {_BAD_VALUE}')
        return Requirement(key, 'notin' if operator in ('notin', '!=') else 'in', values)

    def value(self) -> frozenset[str]:
        token = self.peek()
        if token in ('', ','):
            return frozenset({''})
        if token in _SYMBOLS:
            raise _unparsed(f"found '{token}', expected: identifier")
        return frozenset({self.next()})

    def values(self) -> frozenset[str]:
        if (token := self.next()) != '(':
            raise _unparsed(f"found '{token}' expected: '('")
        found: list[str] = []
        if self.peek() == ')':
            self.next()
            return frozenset({''})
        while True:
            token = self.next()
            if token == ',':
                found.append('')
                if self.peek() == ')':
                    found.append('')
                    self.next()
                    return frozenset(found)
                continue
            if token in _SYMBOLS:
                raise _unparsed(f"found '{token}', expected: ',', ')' or identifier")
            found.append(token)
            token = self.next()
            if token == ')':
                return frozenset(found)
            if token != ',':
                raise _unparsed(f"found '{token}', expected: ',' or ')'")


def _unparsed(why: str) -> BadRequest:
    return BadRequest(f"unable to parse requirement: {why}")


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition('/')
    if '/' in prefix:
        why = ("a valid label key must consist of alphanumeric characters, '-', '_' or '.', and "
               "must start and end with an alphanumeric character")
    elif slash and not prefix:
        why = "prefix part must be non-empty"
    elif slash and not _DNS.fullmatch(prefix):
        why = _BAD_PREFIX
    elif not name:
        why = "name part must be non-empty"
    elif len(name) > 63:
        why = "name part must be no more than 63 bytes"
    elif not _NAME.fullmatch(name):
        why = _BAD_NAME
    else:
        return
    raise _unparsed(f'<nil>: Invalid value: "{key}": {why}')


@dataclass(frozen=True, slots=True)
class FieldTerm:
    field: str
    value: str
    negated: bool


class FieldSelector:
    """Terms that must all hold; of nothing, it matches everything."""

    def __init__(self, terms: list[FieldTerm]) -> None:
        self.terms = terms

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def name(self) -> str | None:
        """The one name that can match, if there is only one."""
        for term in self.terms:
            if term.field == 'metadata.name' and not term.negated:
                return term.value
        return None

    def matches(self, value_of: Callable[[str], str]) -> bool:
        return all((value_of(term.field) == term.value) != term.negated for term in self.terms)


def parse_fields(text: str, known: Callable[[str], bool], unknown: Callable[[str], str]) \
        -> FieldSelector:
    """A selector like ``metadata.name=a,spec.x!=b``; ``unknown`` tells why a field is refused."""
    terms = []
    for part in filter(None, re.split(r'(?<!\\),', text)):
        found = re.match(r'((?:[^=!\\]|\\.|!(?!=))*)(==|=|!=)(.*)', part, re.DOTALL)
        if found is None:
            raise BadRequest(f"invalid selector: '{text}'; can't understand '{part}'")
        field, operator, value = found.groups()
        value = re.sub(r'\\([\\,=])', r'\1', value)
        if not known(field):
            raise BadRequest(unknown(field))
        terms.append(FieldTerm(field, value, operator == '!='))
    return FieldSelector(terms)


def field_value(obj: Obj, path: str) -> str:
    """A field by its path (``spec.nodeName``), as selectors compare it; empty if absent."""
    value: Any = obj
    for part in path.split('.'):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return ''
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
