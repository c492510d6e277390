import base64
import dataclasses
import datetime
import enum
import os
import pathlib
import re
import subprocess
import sys
import uuid
from typing import Annotated, Any, ClassVar, Generic, Literal, NewType, TypeVar

import annotated_types as at
import attrs
import kubernetes
import pydantic
import pytest
import typing_extensions
import yaml
from click.testing import CliRunner

import kopf
from kopf import cli, testing
from kopf._cogs.helpers import loaders
from kopf._kits import sandboxing
from kopf._kits.typed import kinds

PAUSED = {
    'name': 'Paused', 'type': 'string', 'jsonPath': r'.metadata.annotations.kopf\.dev/paused',
    'description': "Why the handlers of the object wait, and until when."}


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is wanted."""
    replicas: Annotated[int, at.Ge(1)] = 1  # How many.
    max_size: int | None = None
    """How large."""
    #: Whether it is
    #: switched on.
    on: bool = True
    quiet: bool = False  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Status:
    ready_replicas: int = 0


def declare(version='v1', *, cls=None, **options):
    if cls is None:
        class Thing:
            spec: Spec
            status: Status = Status()
        cls = Thing
    return kopf.crd('example.com', version, plural='things', **options)(cls)


def define(*args, **options):
    [definition] = kinds.define([declare(*args, **options)])
    return definition


def get_version(definition):
    [version] = definition['spec']['versions']
    return version


def test_names_are_those_of_the_class():
    definition = define(short=['th'], categories=['all'])
    assert definition['metadata'] == {'name': 'things.example.com'}
    assert definition['spec']['scope'] == 'Namespaced'
    assert definition['spec']['names'] == {
        'kind': 'Thing', 'listKind': 'ThingList', 'plural': 'things', 'singular': 'thing',
        'shortNames': ['th'], 'categories': ['all']}


def test_the_status_is_a_subresource_if_there_is_any():
    class Plain:
        spec: Spec

    assert get_version(define())['subresources'] == {'status': {}}
    assert 'subresources' not in get_version(define(cls=Plain))


def test_a_status_must_have_a_default_as_new_objects_have_none():
    class Thing:
        spec: Spec
        status: Status

    with pytest.raises(kopf.DeclarationError, match=(
            "^Thing.status has no default, but new objects have no status. Write 'status: … | None "
            "= None', or give it a default.$")):
        define(cls=Thing)


def test_nothing_is_required_of_a_status_as_others_can_write_to_it_before():
    @dataclasses.dataclass
    class Inner:
        size: int

    @dataclasses.dataclass
    class Ready:
        ready: int
        inner: Inner

    class Thing:
        spec: Spec
        status: Ready | None = None

    schema = get_version(define(cls=Thing))['schema']['openAPIV3Schema']
    assert 'required' not in schema['properties']['status']
    assert schema['properties']['status']['properties']['inner']['required'] == ['size']
    assert 'status' not in schema['required']


def test_descriptions_come_from_docstrings_and_comments():
    spec = get_version(define())['schema']['openAPIV3Schema']['properties']['spec']
    assert spec['description'] == "What is wanted."
    assert {name: field.get('description') for name, field in spec['properties'].items()} == {
        'replicas': "How many.", 'maxSize': "How large.", 'on': "Whether it is switched on.",
        'quiet': None}


def test_columns_have_the_types_of_their_fields():
    columns = get_version(define(columns=[
        kopf.Column('Replicas', '.spec.replicas'), kopf.Column('On', '.spec.on', priority=1),
        kopf.Column('Age', '.metadata.creationTimestamp'),
        kopf.Column('Any', '.metadata.labels.any', description="A label.")]))
    assert columns['additionalPrinterColumns'] == [
        {'name': 'Replicas', 'type': 'integer', 'jsonPath': '.spec.replicas'},
        {'name': 'On', 'type': 'boolean', 'jsonPath': '.spec.on', 'priority': 1},
        {'name': 'Age', 'type': 'date', 'jsonPath': '.metadata.creationTimestamp'},
        {'name': 'Any', 'type': 'string', 'jsonPath': '.metadata.labels.any',
         'description': "A label."},
        PAUSED]


def test_columns_can_show_values_of_maps():
    class Thing:
        spec: Spec
        status: dict[str, int] | None = None

    columns = [kopf.Column('Ready', r'.status.example\.com/ready')]
    version = get_version(define(cls=Thing, columns=columns))
    assert version['additionalPrinterColumns'][0] == {
        'name': 'Ready', 'type': 'integer', 'jsonPath': r'.status.example\.com/ready'}


def test_kinds_without_columns_keep_the_age():
    assert get_version(define())['additionalPrinterColumns'] == [
        PAUSED, {'name': 'Age', 'type': 'date', 'jsonPath': '.metadata.creationTimestamp'}]


def test_a_column_of_the_author_replaces_the_one_of_pauses():
    version = get_version(define(columns=[kopf.Column('Paused', '.spec.on')]))
    assert version['additionalPrinterColumns'] == [
        {'name': 'Paused', 'type': 'boolean', 'jsonPath': '.spec.on'}]


def test_scale_selectable_fields_and_deprecation():
    version = get_version(define(
        scale=kopf.Scale('.spec.replicas', '.status.readyReplicas'), selectable=['.spec.on'],
        deprecated="Use v2."))
    assert version['subresources']['scale'] == {
        'specReplicasPath': '.spec.replicas', 'statusReplicasPath': '.status.readyReplicas'}
    assert version['selectableFields'] == [{'jsonPath': '.spec.on'}]
    assert (version['deprecated'], version['deprecationWarning']) == (True, "Use v2.")


@pytest.mark.parametrize('options', [
    {'columns': [kopf.Column('Wrong', '.spec.max_size')]},
    {'selectable': ['spec.on']},
    {'selectable': ['.spec.off']},
    {'scale': kopf.Scale('.spec.count', '.status.readyReplicas')},
])
def test_paths_of_unknown_fields_are_errors(options):
    with pytest.raises(kopf.DeclarationError, match=r"Thing has no field '"):
        define(**options)


def test_rules_are_about_the_whole_object():
    schema = get_version(define(rules=[
        kopf.CEL('self.spec.replicas < 9', "too many", field='.spec.replicas')]))
    assert schema['schema']['openAPIV3Schema']['x-kubernetes-validations'] == [
        {'rule': 'self.spec.replicas < 9', 'message': "too many", 'fieldPath': '.spec.replicas'}]


def test_versions_are_merged_the_newest_stable_one_first():
    [definition] = kinds.define([
        declare('v1beta1'), declare('v2alpha1'), declare('v1', storage=True), declare('v1beta2')])
    versions = [(each['name'], each['storage']) for each in definition['spec']['versions']]
    assert versions == [
        ('v1', True), ('v1beta2', False), ('v1beta1', False), ('v2alpha1', False)]


@pytest.mark.parametrize('versions, message', [
    ([('v1', {}), ('v2', {})], "things.example.com has 0 versions in which objects are stored"),
    ([('v1', {'storage': True}), ('v2', {'storage': True})], "has 2 versions in which"),
    ([('v1', {}), ('v1', {})], "has two classes of one version"),
    ([('v1', {'short': ['a']}), ('v2', {'storage': True})], "different values of short= in v2"),
])
def test_versions_that_contradict_each_other_are_errors(versions, message):
    with pytest.raises(kopf.DeclarationError, match=message):
        kinds.define([declare(version, **options) for version, options in versions])


def test_two_classes_of_one_version_in_a_module_are_an_error(tmp_path):
    script = tmp_path / 'twice.py'
    script.write_text(TWICE)
    with pytest.raises(loaders.LoadingError, match="for v1: Website and Site. Give one of them"):
        loaders.preload([script], [])


def test_a_module_that_is_loaded_again_replaces_its_classes(tmp_path):
    script = tmp_path / 'again.py'
    for name in ['Website', 'Site']:
        script.write_text(TWICE.partition('\n\n\n')[0].replace('Website', name))
        loaders.preload([script], [])
        [loaded] = [name for name in sys.modules if name.endswith('__again')]
        sys.modules.pop(loaded)


TWICE = '''
import kopf

@kopf.crd('twice.example.com', 'v1', plural='websites')
class Website:
    spec: dict[str, str]


@kopf.crd('twice.example.com', 'v1', plural='websites')
class Site:
    spec: dict[str, str]
'''


@pytest.mark.parametrize('args, message', [
    (('example', 'v1', 'things'), "'example' is no group"),
    (('example.com', '1', 'things'), "'1' is no version"),
    (('example.com', 'v1', 'Things'), "'Things' is no plural name"),
])
def test_wrong_names_are_errors_at_once(args, message):
    group, version, plural = args
    with pytest.raises(kopf.DeclarationError, match=message):
        kopf.crd(group, version, plural=plural)


@pytest.mark.parametrize('options, message', [
    ({'short': ['Thing']}, r"spec.names.shortNames\[0\]: .*'"),
    ({'singular': 'A thing'}, r"spec.names.singular: "),
    ({'scope': 'cluster'}, r'spec.scope: Unsupported value: "cluster"'),
    ({'columns': [kopf.Column('Max', '.spec.maxSize', type='int')]}, r"Columns\[0\].type: "),
    ({'scale': kopf.Scale('.spec.replicas', '.spec.replicas')}, r"statusReplicasPath: "),
    ({'cls': type('Thing', (), {'__annotations__': {'spec': Annotated[
        list[dataclasses.make_dataclass('Item', [('name', str | None, None)])],
        kopf.ListMap('name')]}})}, r"properties\[name\].default: Required value: "),
])
def test_what_else_the_api_refuses_is_an_error_with_its_words(options, message):
    message = rf"The API refuses things.example.com: .*{message}"
    with pytest.raises(kopf.DeclarationError, match=message):
        define(**options)


def test_definitions_with_rules_need_no_library_for_them():
    code = f"""
import sys
from {__name__} import declare, kinds, kopf
kinds.define([declare(rules=[kopf.CEL('self.spec.replicas < 5')])])
assert 'cel' not in sys.modules
"""
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize('option', ['short', 'categories'])
def test_single_names_are_no_collections(option):
    with pytest.raises(kopf.DeclarationError, match=rf"{option}= .* e.g. \['thing'\]"):
        declare(**{option: 'thing'})


def test_a_class_is_no_kind_by_its_base():
    class Derived(declare()):
        pass

    with pytest.raises(kopf.DeclarationError, match="Derived is no kind of the API. Decorate it"):
        kinds.define([Derived])
    with pytest.raises(kopf.DeclarationError, match="'things' is no kind of the API"):
        kopf.convert('things', Derived)


T = TypeVar('T')


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


@dataclasses.dataclass
class Initial:
    x: dataclasses.InitVar[int]


class Root(pydantic.RootModel[list[int]]):
    pass


class Flags(enum.IntFlag):
    A = 1
    B = 2


@pytest.mark.parametrize('annotation, message', [
    (Initial, r"Thing.spec.x.x is an InitVar without a default.* Make it a field"),
    (Root, r"Thing.spec.x is of Root, which is a RootModel. Write the type of its root instead"),
    (Flags, r"Thing.spec.x is of flags, and .* Write a set of an Enum"),
    (dict[str, Annotated[str, kopf.Immutable]],
     r"Thing.spec.x can have any number of items with a kopf.Immutable value.* Limit the items"),
    (Annotated[dict[str, dict[str, Annotated[kopf.Quantity, kopf.Immutable]]], at.MaxLen(9)],
     r"Thing.spec.x\[\] can have any number of items with a kopf.Immutable value"),
    (float, r"Thing.spec.x is a float.* Write int or kopf.Quantity"),
    (tuple[int, int], r"Thing.spec.x is a tuple"),
    (int | bool, r"Thing.spec.x is one of several types.* kopf.CEL"),
    (dict[int, str], r"Thing.spec.x has keys of the type .*int.* write dict\[str"),
    (complex, r"Thing.spec.x is of the type .*complex"),
    (object(), r"Thing.spec.x is of the type"),
    (Box[int], r"Thing.spec.x is of the type .*Box\[int\].* Write a class without type variables"),
    (Box, r"Thing.spec.x.content is of the type ~T.* Write a class without type variables"),
    (list[int | None], r"Thing.spec.x\[\] can be None.* kopf.Nullable"),
    (Annotated[str, at.Ge(1)], "Thing.spec.x has the limit ge=1, which has no meaning"),
    (Annotated[str, kopf.Pattern('(?=a)')], r"Thing.spec.x has the pattern .*look-arounds"),
    (Annotated[str, kopf.Pattern(r'(a)\1')], "Thing.spec.x has the pattern .*references"),
    (Annotated[str, kopf.Pattern(r'a\Z')], r"Thing.spec.x has the pattern .*Python.* '\\\\Z'"),
    (Annotated[str, kopf.Pattern(r'(?x) a')], r"Thing.spec.x has the pattern .*Python"),
    (Annotated[str, kopf.Pattern(r'\pL(')], r"Thing.spec.x has the pattern .*, which is wrong"),
    (Annotated[str, kopf.Pattern('a\\')], r"Thing.spec.x has the pattern .*, which is wrong"),
    (Annotated[int, at.Ge(1.5)], r"Thing.spec.x has the limit ge=1.5, which is none for integers"),
    (set[kopf.Nullable[str]], r"Thing.spec.x is a set, but its items are no simple values"),
    (Annotated[str, kopf.Pattern('(')], r"Thing.spec.x has the pattern '\(', which is wrong"),
    (Annotated[list[Spec], kopf.ListMap('name')], r"Thing.spec.x is a list by 'name'.* replicas"),
    (Annotated[list[Spec], kopf.ListSet], r"Thing.spec.x is a set, but.* kopf.ListMap"),
    (Annotated[Any, kopf.Immutable], r"Thing.spec.x can contain anything.* Write dict\[str, Any\]"),
    (Annotated[list, kopf.CEL('self != []')], r"Thing.spec.x can contain anything.* have rules"),
    (int | None, r"Thing.spec.x can be None, but has no default. Write '= None'"),
    (pytest.Item, r"Thing.spec.x is of the class Item, whose fields are not known"),
])
def test_what_the_api_does_not_have_is_an_error_with_the_field_and_the_way_out(annotation, message):
    spec = dataclasses.make_dataclass('XSpec', [('x', annotation)])
    with pytest.raises(kopf.DeclarationError, match=f'(?s){message}'):
        define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))


@pytest.mark.parametrize('annotation', [
    dict[str, Annotated[int, kopf.Immutable]],
    dict[str, Annotated[Spec, kopf.Immutable]],
    dict[str, Annotated[str, kopf.Immutable, at.MaxLen(10)]],
    dict[str, Annotated[datetime.datetime, kopf.Immutable]],
    Annotated[dict[str, Annotated[str, kopf.Immutable]], at.MaxLen(30)],
    Annotated[dict[str, Annotated[list[str], kopf.Immutable, at.MaxLen(10)]], at.MaxLen(10)],
])
def test_what_the_api_can_compare_is_immutable_in_items(annotation):
    spec = dataclasses.make_dataclass('XSpec', [('x', annotation)])
    define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))


@pytest.mark.parametrize('annotation, default, message', [
    (int, None, r"Thing.spec.x is None by default, but its type says otherwise"),
    (kopf.Nullable[int], None, r"Thing.spec.x is null by default.* kopf.ABSENT"),
    (Any, object(), r"Thing.spec.x has the default <object"),
])
def test_wrong_defaults_are_errors(annotation, default, message):
    spec = dataclasses.make_dataclass(
        'XSpec', [('x', annotation, dataclasses.field(default=default))])
    with pytest.raises(kopf.DeclarationError, match=message):
        define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))


@pytest.mark.parametrize('pattern', [
    r'^[\pL\p{Greek}\P{^Lu}_]+$', r'^[[:alpha:]]+\z', r'^(?P<name>a)(?:b)(?i:c)$', r'\\1', r'\\Z'])
def test_patterns_of_the_api_are_taken_also_if_python_does_not_know_them(pattern):
    spec = dataclasses.make_dataclass('XSpec', [('x', Annotated[str, kopf.Pattern(pattern)])])
    assert make_properties(spec)['x'] == {'type': 'string', 'pattern': pattern}


TenantName = NewType('TenantName', str)


def test_new_types_are_what_they_are_made_of():
    spec = dataclasses.make_dataclass('XSpec', [
        ('tenant', TenantName), ('quotas', dict[TenantName, Annotated[int, at.Ge(1)]])])
    definition = define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))
    schema = get_version(definition)['schema']['openAPIV3Schema']['properties']['spec']
    assert schema['properties'] == {
        'tenant': {'type': 'string'},
        'quotas': {'type': 'object', 'additionalProperties': {'type': 'integer', 'minimum': 1}}}


class Extended(typing_extensions.TypedDict):
    x: int
    y: typing_extensions.NotRequired[str]
    z: typing_extensions.ReadOnly[bool]


def test_typed_dicts_can_be_those_of_typing_extensions():
    definition = define(cls=type('Thing', (), {'__annotations__': {'spec': Extended}}))
    schema = get_version(definition)['schema']['openAPIV3Schema']['properties']['spec']
    assert schema == {'type': 'object', 'required': ['x', 'z'], 'properties': {
        'x': {'type': 'integer'}, 'y': {'type': 'string'}, 'z': {'type': 'boolean'}}}


def test_any_value_can_be_absent():
    spec = dataclasses.make_dataclass('XSpec', [('x', Any, dataclasses.field(default=None))])
    definition = define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))
    schema = get_version(definition)['schema']['openAPIV3Schema']['properties']['spec']
    assert schema == {
        'type': 'object', 'properties': {'x': {'x-kubernetes-preserve-unknown-fields': True}}}


def test_variables_of_classes_are_no_fields():
    class Thing:
        spec: Spec
        known: ClassVar[dict[str, int]] = {}
        count: ClassVar = 0

    schema = get_version(define(cls=Thing))['schema']['openAPIV3Schema']
    assert schema['properties'].keys() == {'spec'}


def test_lengths_of_bytes_are_those_of_base64():
    @dataclasses.dataclass
    class XSpec:
        key: Annotated[bytes, at.Len(32, 32)]
        more: Annotated[bytes, at.Len(0, 6)] = b'm'

    properties = make_properties(XSpec)
    key, more = base64.b64encode(b'k' * 32), base64.b64encode(b'm' * 6)
    assert properties['key']['minLength'] == properties['key']['maxLength'] == len(key)
    assert properties['more'] == {
        'type': 'string', 'format': 'byte', 'maxLength': len(more), 'default': 'bQ=='}


def test_defaults_that_differ_each_time_are_errors():
    spec = dataclasses.make_dataclass('XSpec', [
        ('x', uuid.UUID, dataclasses.field(default_factory=uuid.uuid4))])
    with pytest.raises(kopf.DeclarationError, match="Thing.spec.x has another default each time"):
        make_properties(spec)


@pytest.mark.parametrize('annotation, default', [
    (str, 3), (int, True), (int, 1.5), (Literal['a', 'b'], 'c'), (Annotated[int, at.Ge(5)], 1),
    (Annotated[str, kopf.Pattern('^a$')], 'b'), (list[int], ['a']), (dict[str, int], {'a': ''}),
    (bytes, b''),  # the API wants some
])
def test_defaults_that_the_api_would_refuse_are_errors(annotation, default):
    spec = attrs.make_class('XSpec', {'x': attrs.field(type=annotation, default=default)})
    with pytest.raises(kopf.DeclarationError, match=re.escape(
            f"Thing.spec.x has the default {default!r}, which does not fit: ")):
        make_properties(spec)


def test_defaults_are_not_refused_by_rules_that_only_the_api_can_evaluate():
    spec = attrs.make_class('XSpec', {'x': attrs.field(default='1Gi', type=Annotated[
        str, kopf.CEL("quantity(self).isGreaterThan(quantity('1Mi'))")])})
    assert make_properties(spec)['x']['default'] == '1Gi'


def test_defaults_of_base_classes_are_those_of_the_kind():
    class Base:
        status: dict[str, Any] = {}

    kind = type('Thing', (Base,), {'__annotations__': {'spec': dict[str, Any]}})
    schema = get_version(define(cls=kind))['schema']['openAPIV3Schema']
    assert schema['required'] == ['spec']
    assert schema['properties']['status']['default'] == {}


@pydantic.dataclasses.dataclass
class ModelData:
    max_size: int = pydantic.Field(ge=1, description="How much.")
    limit: int = pydantic.Field(5, le=9, alias='theLimit')
    inner: 'list[ModelInner]' = pydantic.Field(default_factory=list)
    own: int = pydantic.Field(1, init=False)


@pydantic.dataclasses.dataclass
class ModelInner:
    pass


def test_dataclasses_of_pydantic_have_its_fields_and_the_names_of_dataclasses():
    assert make_properties(ModelData) == {
        'maxSize': {'type': 'integer', 'minimum': 1, 'description': "How much."},
        'theLimit': {'type': 'integer', 'maximum': 9, 'default': 5},
        'inner': {'type': 'array', 'items': {'type': 'object'}, 'default': []}}


class Later(pydantic.BaseModel):
    size: int = 1
    double: int = pydantic.Field(default_factory=lambda data: data['size'] * 2)
    inner: 'Latest | None' = None


class Latest(pydantic.BaseModel):
    x: int = pydantic.Field(1, validation_alias=pydantic.AliasChoices('theX', 'x'))
    y: int = pydantic.Field(1, alias='theY')


def test_models_can_name_classes_below_them_and_derive_defaults():
    assert make_properties(Later) == {
        'size': {'type': 'integer', 'default': 1}, 'double': {'type': 'integer'},
        'inner': {'type': 'object', 'properties': {
            'theX': {'type': 'integer', 'default': 1}, 'theY': {'type': 'integer', 'default': 1}}}}


def test_aliases_that_are_paths_are_errors():
    spec = pydantic.create_model('XSpec', x=(
        int, pydantic.Field(1, validation_alias=pydantic.AliasPath('a', 'x'))))
    with pytest.raises(kopf.DeclarationError, match="Thing.spec.x has the alias AliasPath"):
        make_properties(spec)


def test_attrs_can_derive_defaults_and_have_old_types():
    @attrs.define
    class XSpec:
        x = attrs.field(type=int, default=1)
        y: int = attrs.field(default=attrs.Factory(lambda self: self.x, takes_self=True))

    assert make_properties(XSpec) == {
        'x': {'type': 'integer', 'default': 1}, 'y': {'type': 'integer'}}
    untyped = attrs.make_class('Untyped', {'x': attrs.field(default=1)})
    with pytest.raises(kopf.DeclarationError, match="Thing.spec.x has no type"):
        make_properties(untyped)


def make_properties(spec):
    definition = define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))
    schema = get_version(definition)['schema']['openAPIV3Schema']['properties']['spec']
    return schema['properties']


def test_fields_of_dataclasses_are_no_defaults_of_other_classes():
    class Thing:
        spec: Spec = dataclasses.field(default_factory=Spec)

    with pytest.raises(kopf.DeclarationError, match=r'Thing.spec has dataclasses.field\(\) as its'):
        define(cls=Thing)


def test_names_that_collide_are_errors():
    spec = dataclasses.make_dataclass('XSpec', [('max_size', int), ('maxSize', int)])
    with pytest.raises(kopf.DeclarationError, match=r"'max_size' and 'maxSize' are both 'maxSize'"):
        define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))


@dataclasses.dataclass
class Tree:
    children: list['Tree']


def test_recursion_is_an_error():
    with pytest.raises(kopf.DeclarationError, match=r"Thing.spec.children\[\]: Tree contains"):
        define(cls=type('Thing', (), {'__annotations__': {'spec': Tree}}))


def test_other_names_in_the_api():
    spec = dataclasses.make_dataclass('XSpec', [
        ('size_gb', Annotated[int, kopf.Wire('sizeGB')]), ('from_', str)])
    definition = define(cls=type('Thing', (), {'__annotations__': {'spec': spec}}))
    properties = get_version(definition)['schema']['openAPIV3Schema']['properties']['spec']
    assert {*properties['properties']} == {'sizeGB', 'from'}


@testing.virtual_time
async def test_a_class_selects_its_resource():
    registry, seen = kopf.OperatorRegistry(), []
    thing = declare()

    @kopf.on.create(thing, registry=registry)
    def create_fn(name, spec, resource, **_):
        seen.append((name, dict(spec), resource.plural))

    async with testing.open_api('sandbox') as api:
        async with api.operator(registry=registry):
            await api.client.create({
                'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {'name': 'one'},
                'spec': {}})
            await testing.wait_for(lambda: seen)
    assert seen == [('one', {'replicas': 1, 'on': True, 'quiet': False}, 'things')]


def test_a_class_that_is_no_kind_selects_nothing():
    with pytest.raises(TypeError, match=r"Spec is a class, but no kind of the API.* @kopf.crd"):
        @kopf.on.create(Spec, registry=kopf.OperatorRegistry())
        def create_fn(**_):
            pass


OPERATOR = '''
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    size: int = 1

@kopf.crd('example.com', 'v1', plural='sizes')
class Size:
    spec: Spec
    status: Spec = Spec()  # to have a subresource

@kopf.on.create(Size)
def create_fn(**_):
    pass
'''


@pytest.fixture()
def script(tmp_path, monkeypatch):
    default, registry = kopf.get_default_registry(), kopf.OperatorRegistry()
    kopf.set_default_registry(registry)
    monkeypatch.setattr(kinds, '_declared', {})
    path = tmp_path / 'handlers.py'
    path.write_text(OPERATOR)
    yield str(path)
    kopf.set_default_registry(default)


def test_roles_need_no_files_for_typed_kinds(script):
    result = CliRunner().invoke(cli.main, ['rbac', '-A', '--standalone', script])
    [role] = yaml.safe_load_all(result.stdout)
    assert {'apiGroups': ['example.com'], 'resources': ['sizes/status'], 'verbs': ['patch']} in (
        role['rules'])


def test_a_sandbox_of_the_command_line_has_the_typed_kinds(script):
    loaders.preload([script], [])
    with sandboxing.accompany():
        config = kubernetes.config.new_client_from_config(os.environ['KUBECONFIG'])
        custom = kubernetes.client.CustomObjectsApi(config)
        assert custom.list_cluster_custom_object('example.com', 'v1', 'sizes')['items'] == []


def test_faults_of_typed_kinds_are_told_by_the_commands(script):
    with open(script, 'a') as file:
        file.write('Spec.__annotations__["size"] = float')
    for command in ['rbac', 'crd', 'check']:
        result = CliRunner().invoke(cli.main, [command, script])
        assert result.exit_code == 1
        assert 'Error: Size.spec.size is a float' in result.stderr


def test_kinds_without_faults_are_checked(script):
    result = CliRunner().invoke(cli.main, ['check', script])
    assert (result.exit_code, result.output) == (0, 'sizes.v1.example.com: create create_fn\n')


def test_a_file_without_kinds_is_an_error(script):
    with open(script, 'w') as file:
        file.write('import kopf')
    result = CliRunner().invoke(cli.main, ['crd', script])
    assert result.exit_code == 1
    assert 'There are no kinds in ' in result.stderr


def test_definitions_are_written_to_a_folder(script, tmp_path):
    result = CliRunner().invoke(cli.main, ['crd', script, '-o', str(tmp_path)])
    assert result.exit_code == 0
    [definition] = yaml.safe_load_all((tmp_path / 'sizes.example.com.yaml').read_text())
    assert definition == yaml.safe_load(CliRunner().invoke(cli.main, ['crd', script]).stdout)


def test_files_that_cannot_be_written_are_named(script, tmp_path):
    path = tmp_path / 'absent' / 'crd.yaml'
    result = CliRunner().invoke(cli.main, ['crd', script, '-o', str(path)])
    assert result.exit_code == 1
    assert f"Error: {path} cannot be written: " in result.output


def test_command_prints_the_kinds_of_peerings():
    result = CliRunner().invoke(cli.main, ['crd', '--peering'])
    printed = list(yaml.safe_load_all(result.stdout))
    peering = pathlib.Path(kopf.__file__).parents[1] / 'peering.yaml'
    assert printed[-2:] == list(yaml.safe_load_all(peering.read_text()))


def declare_version(version, of=None, **options):
    options = options if of is not None else {'plural': 'separate', **options}
    return kopf.crd('example.com', version, of=of, **options)(
        type('Separate', (), {'__annotations__': {'spec': Spec}}))


def get_versions(cls):
    return [each['name'] for definition in kinds.define(
        each.cls for each in kinds.get_declaration(cls).family.values())
        for each in definition['spec']['versions']]


def test_kinds_that_are_declared_apart_have_only_their_own_versions(monkeypatch):
    monkeypatch.setattr(kinds, '_declared', {})
    early = declare_version('v1beta1')
    with kinds.separated():
        new = declare_version('v1')
        declare_version('v1beta1', of=new, storage=True)
    with kinds.separated():
        old = declare_version('v1beta1')
    assert get_versions(new) == ['v1', 'v1beta1']
    assert get_versions(old) == get_versions(early) == ['v1beta1']
    assert kinds.get_declared() == [old]


def test_kinds_that_are_declared_apart_can_be_versions_of_earlier_ones(monkeypatch):
    monkeypatch.setattr(kinds, '_declared', {})
    new = declare_version('v1')
    with kinds.separated():
        old = declare_version('v1beta1', of=new, storage=True)
    assert get_versions(old) == get_versions(new) == ['v1', 'v1beta1']
    assert kinds.get_declared() == [new, old]


def test_whole_numbers_are_defined_as_the_api_stores_them():
    number = Annotated[float, kopf.Float]
    with kinds.separated():
        @kopf.crd('example.com', 'v1', plural='things')
        class Thing:
            spec: dataclasses.make_dataclass('Spec', [
                ('x', number, 1.0), ('y', number, 0.5), ('z', int, 2 ** 63 - 1)], frozen=True)

    [definition] = kinds.define([Thing])
    schema = definition['spec']['versions'][0]['schema']['openAPIV3Schema']
    found = [each['default'] for each in schema['properties']['spec']['properties'].values()]
    assert [(value, type(value)) for value in found] == [
        (1, int), (0.5, float), (2 ** 63 - 1, int)]
