"""
Label selectors and field selectors, as they come in queries.

A parsed selector is a function of labels or of fields. Texts that the API refuses raise
`BadRequest` with the message of the API.
"""
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopf._kits.sandbox import naming, wordings
from kopf._kits.sandbox.statuses import BadRequest, Cause, Obj, dig

Labels = Mapping[str, str]

_TOKENS = re.compile(r'\s*(==|!=|=|>|<|!|,|\(|\)|[^\s=!<>,()]+)')
_SYMBOLS = frozenset({'==', '!=', '=', '>', '<', '!', ',', '(', ')', ''})


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt, Lt
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case 'NotIn':
                return value not in self.values
            case 'Exists':
                return value is not None
            case 'DoesNotExist':
                return value is None
            case 'Gt' | 'Lt':
                if value is None or not re.fullmatch('[+-]?[0-9]+', value):
                    return False
                bound = int(next(iter(self.values)))
                return int(value) > bound if self.operator == 'Gt' else int(value) < bound
        return value in self.values


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold; of nothing, it matches everything."""
    requirements: list[Requirement]

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
    return LabelSelector([
        *(Requirement(key, 'In', frozenset({value}))
          for key, value in (selector.get('matchLabels') or {}).items()),
        *(Requirement(expression.get('key', ''), expression.get('operator', ''),
                      frozenset(expression.get('values') or ()))
          for expression in selector.get('matchExpressions') or ()),
    ])


def check_expressions(selector: Mapping[str, Any] | None, field: str) -> Iterator[Cause]:
    """All that the API finds wrong with the ``matchExpressions`` of a selector."""
    for index, expression in enumerate((selector or {}).get('matchExpressions') or ()):
        place = f'{field}.matchExpressions[{index}]'
        key, operator = expression.get('key', ''), expression.get('operator', '')
        values = expression.get('values') or ()
        if operator not in ('In', 'NotIn', 'Exists', 'DoesNotExist'):
            yield wordings.invalid(f'{place}.operator', operator, "not a valid selector operator")
        elif operator in ('In', 'NotIn') and not values:
            yield wordings.required(
                f'{place}.values', "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ('Exists', 'DoesNotExist') and values:
            yield wordings.forbidden(
                f'{place}.values',
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        yield from wordings.all_invalid(f'{place}.key', key, naming.check_qualified(key))
        for number, value in enumerate(values):
            yield from wordings.all_invalid(
                f'{place}.values[{number}]', value, naming.check_label_value(value))


def labels_text(selector: Mapping[str, Any] | None) -> str:
    """A selector of an object as queries have it."""
    selector = selector or {}
    parts = [f'{key}={value}' for key, value in (selector.get('matchLabels') or {}).items()]
    for expression in selector.get('matchExpressions') or ():
        key, values = expression.get('key', ''), ','.join(sorted(expression.get('values') or ()))
        texts = {'In': f'{key} in ({values})', 'NotIn': f'{key} notin ({values})',
                 'Exists': key, 'DoesNotExist': f'!{key}'}
        parts.append(texts.get(expression.get('operator', ''), ''))
    return ','.join(sorted(filter(None, parts), key=lambda part: part.lstrip('!')))


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = [*_TOKENS.findall(text), '']
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at]

    def next(self) -> str:
        token = self.peek()
        self.at += bool(token)
        return token

    def parse(self) -> Iterator[Requirement]:
        while (token := self.peek()) != '':
            if token in _SYMBOLS and token != '!':
                raise BadRequest(f"found '{token}', expected: !, identifier, or 'end of string'")
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
        _check(key, naming.check_qualified, '<nil>')
        operator = self.peek()
        if negated:
            return Requirement(key, 'DoesNotExist')
        if operator in ('', ','):
            return Requirement(key, 'Exists')
        self.next()
        if operator in ('in', 'notin'):
            values = self.values()
        elif operator in ('=', '==', '!=', '>', '<'):
            values = self.value()
        else:
            raise _unparsed(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in ('>', '<'):
            value = next(iter(values))
            if not re.fullmatch('[+-]?[0-9]{1,18}', value):
                raise _unparsed(
                    f'values[0]: Invalid value: "{value}": '
                    "for 'Gt', 'Lt' operators, the value must be an integer")
            return Requirement(key, 'Gt' if operator == '>' else 'Lt', values)
        for index, value in enumerate(values):
            _check(value, naming.check_label_value, f'values[{index}][{key}]')
        return Requirement(key, 'NotIn' if operator in ('notin', '!=') else 'In', values)

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
        words = ['']
        while (token := self.next()) != ')':
            if token == ',':
                words.append('')
            elif words[-1]:
                raise _unparsed(f"found '{token}', expected: ',' or ')'")
            elif token in _SYMBOLS:
                end = "" if len(words) > 1 else " ')'"
                raise _unparsed(f"found '{token}', expected: ',',{end} or identifier")
            else:
                words[-1] = token
        return frozenset(words)


def _check(value: str, find_problems: Callable[[str], list[str]], field: str) -> None:
    problems = find_problems(value)
    if problems:
        raise _unparsed(f'{field}: Invalid value: "{value}": {"; ".join(problems)}')


def _unparsed(why: str) -> BadRequest:
    return BadRequest(f"unable to parse requirement: {why}")


FieldSelector = list[tuple[str, str, bool]]
"""Fields, their values, and whether they must have these, not others; all of it must hold."""


def parse_fields(text: str) -> FieldSelector:
    """A selector like ``metadata.name=a,spec.x!=b``."""
    terms: FieldSelector = []
    for part in filter(None, re.split(r'(?<!\\),', text)):
        found = re.match(r'((?:[^=!\\]|\\.|!(?!=))*)(==|=|!=)(.*)', part, re.DOTALL)
        if found is None:
            raise BadRequest(f"invalid selector: '{text}'; can't understand '{part}'")
        field, operator, value = found.groups()
        value = re.sub(r'\\([\\,=])', r'\1', value)
        terms.append((field, value, operator != '!='))
    return terms


def field_value(obj: Obj, path: str) -> str:
    """A field by its path (``spec.nodeName``), as selectors compare it; empty if absent."""
    value = dig(obj, path)
    if value is None:
        return ''
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
