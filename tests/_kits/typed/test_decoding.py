import dataclasses
import datetime
from typing import Annotated, Any

import annotated_types as at
import attrs
import msgspec
import pydantic
import pytest

import kopf
from kopf._kits.typed import decoding, encoding, schemas, shapes
from tests._kits.typed import declared

PAIRS = [(library, case) for library in declared.LIBRARIES for case in declared.list_cases(library)]


def decode(cls, raw):
    return decoding.make(shapes.read(cls), 'spec')(raw)


def complete(raw, shape):
    """Add what the types say of absent fields, as encoding does."""
    match raw:
        case dict() if shape.kind is shapes.Kind.RECORD:
            fields = {field.wire: field for field in shape.fields}
            filled = {
                wire: encoding.encode(field.default, field.shape) for wire, field in fields.items()
                if field.default not in (None, kopf.ABSENT, shapes.MISSING)}
            return {**filled, **{key: complete(val, fields[key].shape) for key, val in raw.items()}}
        case dict() if shape.item is not None:
            return {key: complete(val, shape.item) for key, val in raw.items()}
        case list():
            return [complete(val, shape.item) for val in raw]
    return raw


@dataclasses.dataclass(frozen=True)
class ListedStatus:
    names: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ('library', 'case'), PAIRS, ids=lambda value: getattr(value, 'name', value))
def test_round_trips_lose_nothing(library, case):
    cls = declared.LIBRARIES[library]('Case', case)
    shape = shapes.read(cls)
    for value in case.valid:
        raw = {'value': value}
        decoded = decode(cls, raw)
        assert not isinstance(decoded, kopf.Misfit), decoded
        if library != 'typeddict':
            assert isinstance(decoded, cls)
        assert encoding.encode(decoded, shape) == complete(raw, shape)


@pytest.mark.parametrize('text', ['2020-01-02T03:04:05Z', '2020-01-02t03:04:05.000000001z'])
def test_moments_are_read_in_all_notations_of_the_api(text):
    spec = dataclasses.make_dataclass('XSpec', [('x', datetime.datetime)])
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert decode(spec, {'x': text}).x == moment


LIMITED = {'at_least', 'at_most', 'above', 'below', 'between', 'even', 'long', 'short', 'length',
           'pattern', 'few', 'some', 'limited', 'unique', 'aset', 'keyed', 'sizes', 'groups',
           'embedded', 'conditions', 'record', 'ruled', 'nullable_choice'}
"""The cases of which some invalid values are of the right type."""


@pytest.mark.parametrize(('library', 'case'), [
    pair for pair in PAIRS if pair[1].name not in LIMITED],
    ids=lambda value: getattr(value, 'name', value))
def test_values_of_other_types_do_not_fit(library, case):
    cls = declared.LIBRARIES[library]('Case', case)
    for value in case.invalid:
        if value is None and not case.is_required:
            continue
        misfit = decode(cls, {'value': value})
        assert isinstance(misfit, kopf.Misfit), (value, misfit)
        assert misfit.raw == {'value': value}
        assert all(reason.startswith('spec.value') for reason in misfit.reasons)
    assert isinstance(decode(cls, {}), kopf.Misfit) == case.is_required


@pytest.mark.parametrize('case', [case for case in declared.CASES if case.name in LIMITED],
                         ids=lambda case: case.name)
def test_limits_of_the_schema_are_not_those_of_dataclasses(case):
    cls = declared.make_dataclass('Case', case)
    assert any(not isinstance(decode(cls, {'value': value}), kopf.Misfit)
               for value in case.invalid)


@pytest.mark.parametrize('library', declared.LIBRARIES)
def test_random_shapes_lose_nothing(library):
    for case in declared.draw_cases(100):
        cls = declared.LIBRARIES[library](f'Case{case.name}', case)
        shape = shapes.read(cls)
        for value in case.valid:
            decoded = decode(cls, {'value': value})
            assert not isinstance(decoded, kopf.Misfit), (case, value, decoded)
            assert encoding.encode(decoded, shape) == complete({'value': value}, shape)


class ModelUser(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)
    secret: int = pydantic.Field(alias='secretNumber', default=1)


class ModelSpec(pydantic.BaseModel):
    size: Annotated[int, at.Ge(1)]
    users: list[ModelUser] = []
    storage: str = ''


def test_pydantic_checks_its_limits():
    made = decode(ModelSpec, {'size': 1, 'users': [{'name': 'ab', 'secretNumber': 5}], 'more': 1})
    assert made == ModelSpec(size=1, users=[ModelUser(name='ab', secretNumber=5)])
    misfit = decode(ModelSpec, {'size': 0, 'users': [{'name': 'ab'}]})
    assert misfit.reasons == ('spec.size: Input should be greater than or equal to 1',)
    misfit = decode(ModelSpec, {'size': 'a', 'users': [{'name': 'ab'}, {'name': 'b'}]})
    assert misfit.reasons == (
        'spec.size: is a string, not an integer',
        'spec.users[1].name: String should have at least 2 characters')


@pydantic.dataclasses.dataclass
class ModelData:
    max_size: Annotated[int, at.Ge(1)] = 1
    secret: int = pydantic.Field(alias='secretNumber', default=1)


def test_dataclasses_of_pydantic_check_their_limits():
    made = decode(ModelData, {'maxSize': 2, 'secretNumber': 5})
    assert (made.max_size, made.secret) == (2, 5)
    assert decode(ModelData, {'maxSize': 0}).reasons == (
        'spec.max_size: Input should be greater than or equal to 1',)


@dataclasses.dataclass
class OwnConstructor:
    size: int = 1

    def __init__(self, size: int = 1) -> None:
        self.size, self.more = size, 'more'


@dataclasses.dataclass
class OwnSetter:
    size: int = 1
    more: str = ''

    def __setattr__(self, key: str, value: object) -> None:
        super().__setattr__(key, value or 'more')


@pytest.mark.parametrize('cls', [OwnConstructor, OwnSetter])
def test_dataclasses_are_made_by_what_they_define(cls):
    made = decode(cls, {'size': 2})
    assert (made.size, made.more) == (2, 'more')


def test_objects_do_not_share_the_defaults_of_their_class():
    @kopf.crd('example.com', 'v1', plural='things')
    class Thing:
        status: ListedStatus = ListedStatus()

    decoder = decoding.make(shapes.read(Thing), '')
    one, two = decoder({}), decoder({})
    one.status.names.append('x')
    assert two.status.names == Thing.status.names == []


class ChoosingSpec(pydantic.BaseModel):
    size: int = pydantic.Field(1, validation_alias=pydantic.AliasChoices('newSize', 'oldSize'))
    double: int = pydantic.Field(default_factory=lambda data: data['size'] * 2)


def test_pydantic_has_aliases_to_choose_from_and_derived_defaults():
    made = decode(ChoosingSpec, {'newSize': 5})
    assert (made.size, made.double) == (5, 10)
    assert encoding.encode(made, shapes.read(ChoosingSpec)) == {'newSize': 5, 'double': 10}


class StructUser(msgspec.Struct, rename='camel'):
    user_name: Annotated[str, msgspec.Meta(min_length=2)]


class StructSpec(msgspec.Struct, rename='camel'):
    max_size: Annotated[int, msgspec.Meta(ge=1)]
    users: list[StructUser] = []


class MixedSpec(StructSpec, kw_only=True):
    storage: kopf.Quantity


@pytest.mark.parametrize(('cls', 'more'), [(StructSpec, {}), (MixedSpec, {'storage': '1Gi'})])
def test_msgspec_checks_its_limits(cls, more):
    made = decode(cls, {**more, 'maxSize': 1, 'users': [{'userName': 'ab'}]})
    assert (made.max_size, made.users) == (1, [StructUser('ab')])
    [reason] = decode(cls, {**more, 'maxSize': 0}).reasons
    assert reason.startswith('spec: Expected `int` >= 1')
    [reason] = decode(cls, {**more, 'maxSize': 1, 'users': [{'userName': 'a'}]}).reasons
    assert reason == 'spec.users[0]: Expected `str` of length >= 2 - at `$.userName`'


class UnsetSpec(msgspec.Struct):
    size: int | msgspec.UnsetType = msgspec.UNSET
    storage: kopf.Quantity | msgspec.UnsetType = msgspec.UNSET


def test_msgspec_has_a_value_for_absent_fields():
    shape = shapes.read(UnsetSpec)
    assert schemas.make(shape, 'spec')['properties']['size'] == {'type': 'integer'}
    for raw in {}, {'size': 1}, {'storage': '1Gi'}:
        made = decode(UnsetSpec, raw)
        assert (made.size is msgspec.UNSET) is ('size' not in raw)
        assert encoding.encode(made, shape) == raw


@attrs.define
class Private:
    _hidden: int
    made: int = attrs.field(init=False, default=5)


def test_attrs_have_private_fields():
    assert decode(Private, {'hidden': 2}) == Private(hidden=2)


@dataclasses.dataclass
class Judging:
    low: int
    high: int = 10

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("low is above high")


@dataclasses.dataclass(slots=True)
class Slotted:
    inner: Judging
    names: list[str] = dataclasses.field(default_factory=list)


def test_classes_can_check_themselves():
    assert decode(Slotted, {'inner': {'low': 1}}) == Slotted(Judging(1))
    assert decode(Slotted, {'inner': {'low': 11}}).reasons == ('spec.inner: low is above high',)


@dataclasses.dataclass
class Simple:
    text: str
    number: int = 1
    names: list[str] = dataclasses.field(default_factory=list)
    free: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_what_is_made_without_the_constructor_is_the_same():
    made = decode(Simple, {'text': 'a', 'unknown': 1})
    assert made == Simple('a') and repr(made) == repr(Simple('a'))
    assert dataclasses.replace(made, number=2) == Simple('a', 2)
    assert dataclasses.asdict(made) == dataclasses.asdict(Simple('a'))
    assert made.names is not decode(Simple, {'text': 'a'}).names


def test_reasons_never_show_values():
    misfit = decode(declared.make_dataclass('Case', declared.CASES[0]), {'value': {'a': 'secret'}})
    assert misfit.reasons == ('spec.value: is a mapping, not a string',)
    for case in declared.CASES:
        for value in case.invalid:
            made = decode(declared.make_dataclass('Case', case), {'value': value})
            if isinstance(made, kopf.Misfit) and isinstance(value, str) and len(value) > 1:
                assert value not in ''.join(made.reasons)


def test_null_counts_as_absent_unless_it_is_a_value():
    assert decode(Simple, {'text': 'a', 'number': None}) == Simple('a')
    assert decode(Simple, {'text': None}).reasons == ('spec.text: is absent',)
