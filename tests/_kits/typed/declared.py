"""
Annotations of fields, each with values that the API must accept and refuse, in all libraries.

The same cases are judged by the sandbox, and by the API itself: ``tests/e2e/test_definitions.py``.
"""
import dataclasses
import datetime
import enum
import functools
import ipaddress
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import annotated_types as at
import attrs
import hypothesis
import msgspec
import pydantic
from hypothesis import strategies as st

import kopf
from kopf._kits.typed import kinds

NOTHING = object()


class Engine(enum.StrEnum):
    MYSQL = 'MySQL'
    POSTGRES = 'Postgres'


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    name: str
    size: Annotated[int, at.Ge(1)] = 1
    note_text: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    deep: Annotated[str, kopf.Immutable] | None = None
    flag: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    retries: int = 3
    flag: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    retries: int = 3
    inner: Inner = Inner()


CONDITION = {
    'type': 'Ready', 'status': 'True', 'reason': 'Up', 'message': 'a',
    'lastTransitionTime': '2026-01-01T00:00:00Z'}


@dataclasses.dataclass
class Case:
    name: str
    annotation: Any
    valid: Sequence[Any]
    invalid: Sequence[Any] = ()
    default: Any = NOTHING
    filled: Any = NOTHING
    """What the API sets if the field is absent."""
    invalid_changes: Sequence[tuple[Any, Any]] = ()
    """Pairs of values: the second one cannot follow the first one. None is for an absent field."""
    valid_changes: Sequence[tuple[Any, Any]] = ()

    @property
    def is_required(self) -> bool:
        return self.default is NOTHING


CASES = [
    Case('text', str, ['a', 'b c'], [1, True, None, [], {}]),
    Case('number', int, [0, -1, 2**53], ['1', 1.5, True]),
    Case('flag', bool, [True, False], ['true', 1]),
    Case('real', Annotated[float, kopf.Float], [1, 1.5, -2.25], ['1.5']),
    Case('moment', datetime.datetime, ['2026-01-01T00:00:00Z'], ['yesterday', 1]),
    Case('day', datetime.date, ['2026-01-01'], ['01.01.2026']),
    Case('identity', uuid.UUID, ['8f14e45f-ceea-467f-ab0e-3c4d5e6f7081'], ['x']),
    Case('address', ipaddress.IPv4Address, ['10.0.0.1'], ['10.0.0', 'a']),
    Case('address6', ipaddress.IPv6Address, ['::1'], ['zz::']),
    Case('data', bytes, ['YQ=='], ['***']),
    Case('engine', Engine, ['MySQL', 'Postgres'], ['mysql', 1]),
    Case('level', Level, [1, 2], [3, '1']),
    Case('literal', Literal['a', 'b'], ['a', 'b'], ['c']),
    Case('numbers', Literal[1, 2], [1], [3]),
    Case('storage', kopf.Quantity, ['500Mi', '0.1', '1e3', 5, '-1', '.5'], ['x', '5 Mi', True, '']),
    Case('port', kopf.IntOrString, [80, 'http'], [1.5, True, []]),
    Case('union', int | str, [80, 'http'], [1.5, True]),
    Case('at_least', Annotated[int, at.Ge(1)], [1, 5], [0, -1]),
    Case('at_most', Annotated[int, at.Le(9)], [9, 0], [10]),
    Case('above', Annotated[int, at.Gt(1)], [2], [1]),
    Case('below', Annotated[int, at.Lt(9)], [8], [9]),
    Case('between', Annotated[int, at.Interval(ge=1, lt=9)], [1, 8], [0, 9]),
    Case('even', Annotated[int, at.MultipleOf(2)], [2, 0], [3]),
    Case('long', Annotated[str, at.MinLen(2)], ['ab'], ['a']),
    Case('short', Annotated[str, at.MaxLen(2)], ['ab', 'a'], ['abc']),
    Case('length', Annotated[str, at.Len(1, 3)], ['a', 'abc'], ['', 'abcd']),
    Case('pattern', Annotated[str, kopf.Pattern('^a+$')], ['a', 'aa'], ['b', '']),
    Case('items', list[int], [[], [1, 1]], [['a'], {}, 'a', [None]]),
    Case('few', Annotated[list[int], at.MaxLen(2)], [[1, 2]], [[1, 2, 3]]),
    Case('some', Annotated[list[int], at.MinLen(1)], [[1]], [[]]),
    Case('limited', list[Annotated[int, at.Ge(0)]], [[0]], [[-1]]),
    Case('nested', list[list[str]], [[['a']], [[]]], [['a']]),
    Case('unique', Annotated[list[str], kopf.ListSet], [['a', 'b']], [['a', 'a']]),
    Case('aset', frozenset[int], [[1, 2]], [[1, 1]]),
    Case('keyed', Annotated[list[Item], kopf.ListMap('name')],
         [[{'name': 'a'}, {'name': 'b', 'noteText': 'c'}]],
         [[{'name': 'a'}, {'name': 'a'}], [{}], [{'name': 'a', 'size': 0}]]),
    Case('labels', dict[str, str], [{}, {'a': 'b'}], [{'a': 1}, []]),
    Case('limits', dict[str, kopf.Quantity], [{'cpu': '100m'}], [{'cpu': 'x'}]),
    Case('sizes', Annotated[dict[str, int], at.Len(1, 2)], [{'a': 1}],
         [{}, {'a': 1, 'b': 2, 'c': 3}]),
    Case('groups', dict[str, list[Item]], [{'a': [{'name': 'a'}]}],
         [{'a': [{}]}, {'a': [{'name': 'a', 'size': 0}]}]),
    Case('free', dict[str, Any], [{}, {'a': [1, {'b': None}]}], [[], 'a']),
    Case('bare', dict, [{'a': 1}], [1]),
    Case('anything', Any, [1, 'a', {'a': 1}, [1]]),
    Case('embedded', kopf.Embedded,
         [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'a'}, 'data': {'a': 'b'}}],
         [{'kind': 'ConfigMap'}, {'apiVersion': 'v1'}, []]),
    Case('secret', kopf.SecretKeyRef, [{'name': 'a', 'key': 'b'}], [{'name': 'a'}, {'key': 'b'}]),
    Case('config', kopf.ConfigMapKeyRef, [{'name': 'a', 'key': 'b', 'optional': True}], [{}]),
    Case('conditions', kopf.Conditions, [[], [CONDITION]], [
        [{'type': 'Ready'}], [CONDITION, CONDITION], *([{**CONDITION, **change}] for change in [
            {'type': 'a b'}, {'type': 'a' * 317}, {'status': 'Maybe'}, {'reason': ''},
            {'reason': 'a b'}, {'reason': 'a' * 1025}, {'message': 'a' * 32769},
            {'lastTransitionTime': 'now'}, {'observedGeneration': -1}])]),
    Case('record', Item, [{'name': 'a'}, {'name': 'a', 'size': 2, 'noteText': 'b'}],
         [{}, {'name': 1}, {'name': 'a', 'size': 0}, {'name': 'a', 'noteText': None, 'size': 'b'}]),
    Case('ruled', Annotated[int, kopf.CEL('self % 2 == 0', "must be even")], [2], [3]),
    Case('nullable', kopf.Nullable[int], [1, None], ['a']),
    Case('nullable_choice', kopf.Nullable[Annotated[str, kopf.Pattern('^(a|b)$')]], ['a', None],
         ['c']),
    Case('maybe_null', kopf.Nullable[str], ['a', None], [1], default=kopf.ABSENT),
    Case('optional', str | None, ['a'], [1], default=None),
    Case('three', int, [1], ['a'], default=3, filled=3),
    Case('default_text', str | None, ['a'], [1], default='x', filled='x'),
    Case('default_engine', Engine, ['MySQL'], ['a'], default=Engine.POSTGRES, filled='Postgres'),
    Case('default_size', kopf.Quantity, ['1Gi'], ['a'], default=kopf.Quantity('2Gi'),
         filled='2Gi'),
    Case('default_record', Options, [{}], [{'retries': 'a'}], default=Options(),
         filled={'retries': 3, 'inner': {'flag': True}},
         invalid_changes=[({'inner': {'deep': 'a'}}, {'inner': {'deep': 'b'}}),
                          ({'inner': {'deep': 'a'}}, {}), ({'inner': {'deep': 'a'}}, None)]),
    Case('other_record', Plain, [{}], default=Plain(retries=5),
         filled={'retries': 5, 'flag': True}),
    Case('fixed', Annotated[int, kopf.Immutable], [1], ['a'], invalid_changes=[(1, 2)],
         valid_changes=[(1, 1)]),
    Case('fixed_later', Annotated[str, kopf.Immutable] | None, ['a'], [1], default=None,
         invalid_changes=[('a', 'b'), ('a', None)], valid_changes=[(None, 'a'), ('a', 'a')]),
    Case('fixed_inside', Inner | None, [{}], default=None,
         invalid_changes=[({'deep': 'a'}, {'deep': 'b'}), ({'deep': 'a'}, {}),
                          ({'deep': 'a'}, None)],
         valid_changes=[({}, {'deep': 'a'})]),
]


def make_dataclass(name: str, case: Case) -> Any:
    field = dataclasses.field() if case.default is NOTHING else (
        dataclasses.field(default=case.default))
    return dataclasses.make_dataclass(name, [('value', case.annotation, field)], frozen=True)


def make_attrs(name: str, case: Case) -> Any:
    default = attrs.NOTHING if case.default is NOTHING else case.default
    return attrs.make_class(name, {'value': attrs.field(type=case.annotation, default=default)})


def make_typeddict(name: str, case: Case) -> Any:
    annotation = case.annotation
    if case.default is None:  # keys can be absent, and they are never None
        args = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        annotation = typing.NotRequired[args[0]]
    elif case.default is kopf.ABSENT:
        annotation = typing.NotRequired[annotation]
    return typing.TypedDict(name, {'value': annotation})  # type: ignore[operator]


def make_pydantic(name: str, case: Case) -> Any:
    default = ... if case.default is NOTHING else case.default
    return pydantic.create_model(
        name, __config__=pydantic.ConfigDict(arbitrary_types_allowed=True),
        value=(case.annotation, default))


def make_msgspec(name: str, case: Case) -> Any:
    field = ('value', case.annotation) if case.default is NOTHING else (
        'value', case.annotation, case.default)
    return msgspec.defstruct(name, [field])


LIBRARIES = {
    'dataclass': make_dataclass, 'attrs': make_attrs, 'typeddict': make_typeddict,
    'pydantic': make_pydantic, 'msgspec': make_msgspec}


def fits(library: str, case: Case) -> bool:
    """Whether a library has such fields: TypedDicts have no defaults."""
    return library != 'typeddict' or case.default in (NOTHING, None, kopf.ABSENT)


def list_cases(library: str) -> Sequence[Case]:
    return [case for case in CASES if fits(library, case)]


@functools.cache
def define(library: str) -> Mapping[str, Any]:
    """Make the definition of a kind with all cases."""
    return define_cases(library, list_cases(library))


def define_cases(library: str, cases: Sequence[Case]) -> Mapping[str, Any]:
    """Make the definition of a kind with these cases: each is the field of an optional record."""
    spec_class = dataclasses.make_dataclass('Spec', [
        (case.name, LIBRARIES[library](f'Case{case.name}', case) | None,
         dataclasses.field(default=None)) for case in cases])

    @kopf.crd('typed.example.com', 'v1', plural=f'{library}s', kind=library.capitalize())
    class Kind:
        spec: spec_class  # type: ignore[valid-type]

    [definition] = kinds.define([Kind])
    return definition


def to_wire(name: str) -> str:
    head, *rest = name.split('_')
    return head + ''.join(part.capitalize() for part in rest)


def hold(case: Case, value: Any) -> Any:
    """Make a spec with this value of the case."""
    return {to_wire(case.name): {'value': value}}


def leave(case: Case) -> Any:
    return {to_wire(case.name): {}}


@functools.cache
def draw_cases(count: int) -> Sequence[Case]:
    """Draw random annotations of several levels, each with its values; always the same ones."""
    drawn: list[Case] = []

    @hypothesis.settings(
        max_examples=count, database=None, derandomize=True, deadline=None,
        phases=[hypothesis.Phase.generate])
    @hypothesis.given(_cases(depth=3))
    def collect(case: Case) -> None:
        drawn.append(dataclasses.replace(case, name=f'random{len(drawn)}'))

    collect()
    return drawn


UNFIT = ('nullable', 'nullable_choice', 'ruled', 'fixed', 'fixed_later', 'fixed_inside',
         'default_record')
"""The cases that cannot be optional, cost too much in lists, or need keys there."""

LEAVES = [case for case in CASES if case.is_required and case.name not in UNFIT]


@st.composite
def _cases(draw: st.DrawFn, depth: int) -> Case:
    match draw(st.sampled_from(['leaf', 'list', 'map', 'record']) if depth else st.just('leaf')):
        case 'leaf':
            return draw(st.sampled_from(LEAVES))
        case 'list':
            item = draw(_cases(depth - 1))
            return Case('', list[item.annotation], [[], [*item.valid]],
                        ['a', {}, *([item.valid[0], value] for value in item.invalid)])
        case 'map':
            item = draw(_cases(depth - 1))
            return Case('', dict[str, item.annotation], [{}, {'a': item.valid[0]}],
                        ['a', [], *({'a': item.valid[0], 'b': value} for value in item.invalid
                                   if value is not None)])  # the API drops null there
    return _make_record(draw, draw(st.lists(_cases(depth - 1), min_size=1, max_size=4)))


def _make_record(draw: st.DrawFn, items: Sequence[Case]) -> Case:
    optional = [draw(st.booleans()) for _ in items]
    names = [f'a{number}' for number, _ in enumerate(items)]
    fields = [(name, item.annotation | None if is_optional else item.annotation, dataclasses.field(
        default=None) if is_optional else dataclasses.field())
        for name, item, is_optional in zip(names, items, optional, strict=True)]
    cls = dataclasses.make_dataclass('Record', fields, kw_only=True)
    whole = {name: item.valid[0] for name, item in zip(names, items, strict=True)}
    least = {name: whole[name] for name, is_optional in zip(names, optional, strict=True)
             if not is_optional}
    mutated = [{**whole, name: value} for name, item in zip(names, items, strict=True)
               for value in item.invalid if value is not None]
    lacking = [{key: val for key, val in whole.items() if key != name} for name in least]
    return Case('', cls, [whole, least], ['a', [], *mutated, *lacking])
