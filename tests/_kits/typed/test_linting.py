import copy

import pytest

from kopf._kits.typed.findings import LINT
from kopf._kits.typed.linting import lint
from tests._kits.typed.pairs import (
    INTEGER,
    ROOT,
    STRING,
    X,
    define,
    holding,
    listing,
    mapping,
    rules,
)

STATUS = {'subresources': {'status': {}}}
ATOMIC = {'x-kubernetes-list-type': 'atomic'}
BY_TYPE = {'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['type']}


def describe(schema):
    """Add descriptions to all fields in a schema."""
    schema = copy.deepcopy(schema)
    for sub in schema.get('properties', {}).values():
        sub.update({'description': 'A field.', **describe(sub)})
    for key in ('items', 'additionalProperties'):
        if key in schema:
            schema[key] = describe(schema[key])
    return schema


def define_all(schema, **options):
    definition = define(**options)
    definition['spec']['versions'][0]['schema']['openAPIV3Schema'] = schema
    return definition


def with_x(schema):
    return define_all(describe(holding(spec=holding(x=schema))))


def with_status(schema, *, subresources=True):
    return define_all(
        describe(holding(spec=holding(x=STRING), status=schema)),
        version=STATUS if subresources else {})


def with_versions(*schemas, **options):
    definition = define(**options)
    [version] = definition['spec']['versions']
    definition['spec']['versions'] = [
        {**version, 'name': f'v{index}', 'storage': index == 1, 'schema': {
            'openAPIV3Schema': describe(holding(spec=schema))}}
        for index, schema in enumerate(schemas, 1)]
    return definition


CASES = [
    ('no description', define_all(holding(spec=holding(x=STRING))),
     [('description-missing', f'{ROOT}.spec'), ('description-missing', X)]),
    ('the fields of all objects', define_all(holding(
        apiVersion=STRING, kind=STRING, metadata={'type': 'object'})), []),
    ('a field that is named as one of all objects', define_all(holding(
        spec={**holding(kind=STRING), 'description': 'The spec.'})),
     [('description-missing', f'{ROOT}.spec.kind')]),
    ('words in a name', define_all(describe(holding(max_size=STRING))),
     [('name-not-camel-case', f'{ROOT}.max_size')]),
    ('capital names', define_all(describe(holding(Size=STRING))),
     [('name-not-camel-case', f'{ROOT}.Size')]),
    ('good names', define_all(describe(holding(maxSize=STRING, sizeGB=STRING, v2=STRING))), []),
    ('a boolean', with_x({'type': 'boolean'}), [('boolean-field', X)]),
    ('a float', with_x({'type': 'number'}), [('float-field', X)]),
    ('a list', with_x(listing(STRING)), [('list-without-type', X)]),
    ('a list of lists', with_x(listing(listing(STRING), **ATOMIC)),
     [('list-without-type', f'{X}[*]')]),
    ('a list with a type', with_x(listing(STRING, **ATOMIC)), []),
    ('a status', with_status(holding(a=STRING), subresources=False),
     [('status-without-subresource', f'{ROOT}.status')]),
    ('a status as a subresource', with_status(holding(a=STRING)), []),
    ('a phase', with_status(holding(phase=STRING)), [('phase-field', f'{ROOT}.status.phase')]),
    ('conditions as a list', with_status(holding(conditions=listing(holding(), **ATOMIC))),
     [('conditions-not-by-type', f'{ROOT}.status.conditions')]),
    ('conditions by another key', with_status(holding(conditions=listing(holding(), **{
        **BY_TYPE, 'x-kubernetes-list-map-keys': ['name']}))),
     [('conditions-not-by-type', f'{ROOT}.status.conditions')]),
    ('conditions by type', with_status(holding(conditions=listing(holding(), **BY_TYPE))), []),
    ('a rule for a string', with_x({**STRING, **rules('self != "a"')}),
     [('rule-without-bounds', X)]),
    ('a rule for a limited string', with_x({**STRING, 'maxLength': 9, **rules('self != "a"')}), []),
    ('a rule for an enum', with_x({**STRING, 'enum': ['a', 'b'], **rules('self != "a"')}), []),
    ('a rule for a number', with_x({**INTEGER, **rules('self > 1')}), []),
    ('a rule for items', with_x(listing({**INTEGER, **rules('self > 1')}, **ATOMIC)),
     [('rule-without-bounds', X)]),
    ('a rule for limited items',
     with_x(listing({**INTEGER, **rules('self > 1')}, maxItems=9, **ATOMIC)), []),
    ('a rule for values', with_x(mapping({**INTEGER, **rules('self > 1')})),
     [('rule-without-bounds', X)]),
    ('a rule that visits strings', with_x({
        **listing(STRING, maxItems=9, **ATOMIC), **rules('self.all(x, x != "a")')}),
     [('rule-without-bounds', f'{X}[*]')]),
    ('a rule that visits objects', with_x({
        **listing(holding(n=INTEGER, s=STRING), maxItems=9, **ATOMIC),
        **rules('self.all(x, x.n > 1)')}), []),
    ('a rule that visits another list', with_x({
        **holding(a=listing(INTEGER, maxItems=9, **ATOMIC), b=listing(STRING, **ATOMIC)),
        **rules('self.a.all(x, x > 1)')}), []),
    ('a rule that visits no strings', with_x({
        **listing(STRING, maxItems=9, **ATOMIC), **rules('self.size() > 1')}), []),
    ('a rule that names a list',
     with_x({**holding(a=holding(b=listing(INTEGER, **ATOMIC), c=listing(INTEGER, **ATOMIC))),
             **rules('self.a.b.size() > 1')}),
     [('rule-without-bounds', f'{X}.a.b')]),
    ('versions with other fields', with_versions(holding(x=STRING, y=STRING), holding(y=STRING)),
     [('versions-differ', X)]),
    ('versions with other types', with_versions(holding(x=STRING), holding(x=INTEGER)),
     [('versions-differ', X), ('versions-differ', f'{X[:-len(".spec.x") - 1]}2.spec.x')]),
    ('versions with other defaults',
     with_versions(holding(x=STRING), holding(x={**STRING, 'default': 'a'})), []),
    ('versions with a webhook', with_versions(
        holding(x=STRING), holding(x=INTEGER), conversion={'strategy': 'Webhook'}), []),
    ('versions that are the same', with_versions(holding(x=STRING), holding(x=STRING)), []),
]


def test_versions_that_are_not_served_may_differ():
    definition = with_versions(holding(x=STRING), holding(x=INTEGER))
    definition['spec']['versions'][1]['served'] = False
    assert lint(definition) == []


@pytest.mark.parametrize(
    ('definition', 'expected'), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_advised_against_is_found_by_its_rule(definition, expected):
    found = lint(definition)
    assert sorted((finding.rule, finding.path) for finding in found) == sorted(expected)
    assert all(finding.level == 'warning' for finding in found)


def test_each_rule_finds_something_in_a_test():
    assert {rule for *_, found in CASES for rule, _ in found} == {rule.name for rule in LINT}


def test_the_difference_of_versions_is_explained():
    [finding] = lint(with_versions(holding(x=STRING, y=STRING), holding(y=STRING)))
    assert finding.text == ("In v2, objects of v1 differ. The field is gone. "
                            "Convert the versions by a webhook.")
