import copy
import random

import pytest

from kopf._kits.typed.compatibility import compare
from kopf._kits.typed.findings import COMPATIBILITY, RULES, SOURCES
from tests._kits.typed import pairs
from tests._kits.typed.pairs import (
    ANYTHING,
    INTEGER,
    PAIRS,
    ROOT,
    define,
    holding,
    listing,
    rules,
)
from tests._kits.typed.randompairs import make_pair

NAME = 'things.example.com'
V1 = {'name': 'v1', 'served': True, 'storage': True}
V2 = {**V1, 'name': 'v2', 'storage': False}
BY_KEYS = {'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['b', 'a']}
SCALE = {'specReplicasPath': '.spec.replicas', 'statusReplicasPath': '.status.replicas'}


def make_versions(*versions):
    made = define()['spec']['versions'][0]
    return define(versions=[{**made, **version} for version in versions])


def with_conversion(definition):
    return define(**{**definition['spec'], 'conversion': {'strategy': 'Webhook'}})


def with_stored(definition, *names):
    return {**definition, 'status': {'storedVersions': [*names]}}


def with_names(**names):
    return define(names={'plural': 'things', 'kind': 'Thing', **names})


def with_meta(**schema):
    definition = define()
    root = definition['spec']['versions'][0]['schema']['openAPIV3Schema']
    root['properties']['metadata'] = {'type': 'object', 'properties': {
        'name': {'type': 'string', **schema}}}
    return definition


DEFINITIONS = [
    ('another scope', define(), define(scope='Cluster'), [('scope-changed', NAME)]),
    ('another kind', define(), with_names(kind='Stuff'), [
        ('kind-changed', NAME), ('kind-changed', NAME)]),
    ('another kind of lists', define(), with_names(listKind='Things'), [('kind-changed', NAME)]),
    ('the kind of lists, named as it is', define(), with_names(listKind='ThingList'), []),
    ('other names for people', with_names(shortNames=['th']), with_names(singular='thingy'), []),
    ('a version is removed', make_versions(V1, V2), make_versions(V1),
     [('version-gone', f'{NAME}/v2')]),
    ('a version is not served', make_versions(V1, V2), make_versions(V1, {**V2, 'served': False}),
     [('version-gone', f'{NAME}/v2')]),
    ('a version that was not served is removed', make_versions(V1, {**V2, 'served': False}),
     make_versions(V1), []),
    ('a version is new', make_versions(V1), make_versions(V1, V2), []),
    ('another version is stored', make_versions(V1, V2),
     make_versions({**V1, 'storage': False}, {**V2, 'storage': True}),
     [('storage-version-changed', f'{NAME}/v1')]),
    ('a stored version is removed', make_versions({**V1, 'served': False}, V2),
     make_versions({**V2, 'storage': True}), [('stored-version-removed', f'{NAME}/v1')]),
    ('a formerly stored version is removed',
     with_stored(make_versions(V1, {**V2, 'served': False}), 'v1', 'v2'),
     make_versions(V1), [('stored-version-removed', f'{NAME}/v2')]),
    ('the conversion is gone', with_conversion(make_versions(V1, V2)), make_versions(V1, V2),
     [('conversion-removed', NAME)]),
    ('the conversion of the only version is gone', with_conversion(make_versions(V1)),
     make_versions(V1), []),
    ('the conversion is new', define(conversion={'strategy': 'None'}),
     define(conversion={'strategy': 'Webhook'}), []),
    ('unknown fields are removed', define(preserveUnknownFields=True), define(),
     [('unknown-fields-removed', NAME)]),
    ('unknown fields are still kept', define(preserveUnknownFields=True),
     define(preserveUnknownFields=True), []),
    ('subresources stay', define(version={'subresources': {'status': {}, 'scale': SCALE}}),
     define(version={'subresources': {'status': {}, 'scale': SCALE}}), []),
    ('a subresource is gone', define(version={'subresources': {'status': {}, 'scale': SCALE}}),
     define(), [('subresource-removed', ROOT), ('subresource-removed', ROOT)]),
    ('the status becomes a subresource', define(), define(version={'subresources': {'status': {}}}),
     [('status-subresource-added', ROOT)]),
    ('the scale is new', define(), define(version={'subresources': {'scale': SCALE}}), []),
    ('the scale changes', define(version={'subresources': {'scale': SCALE}}),
     define(version={'subresources': {'scale': {**SCALE, 'specReplicasPath': '.spec.size'}}}),
     [('scale-changed', ROOT)]),
    ('a field cannot be selected by',
     define(version={'selectableFields': [{'jsonPath': '.spec.a'}, {'jsonPath': '.spec.b'}]}),
     define(version={'selectableFields': [{'jsonPath': '.spec.b'}]}),
     [('selectable-field-removed', f'{ROOT}.spec.a')]),
    ('names of objects get shorter', with_meta(), with_meta(maxLength=9),
     [('bounds-tightened', f'{ROOT}.metadata.name')]),
    ('names of objects are limited at all', define(), with_meta(maxLength=9),
     [('bounds-tightened', f'{ROOT}.metadata.name')]),
    ('the metadata is mentioned', define(), with_meta(), []),
    ('the metadata is not mentioned any more', with_meta(), define(), []),
]


def get_rules(findings):
    return sorted((finding.rule, finding.path) for finding in findings)


@pytest.mark.parametrize('pair', PAIRS, ids=str)
def test_a_change_of_a_schema_is_found_by_its_rule(pair):
    found = compare(define(pair.old), define(pair.new))
    assert get_rules(found) == sorted(pair.expected)


@pytest.mark.parametrize('pair', PAIRS, ids=str)
def test_a_definition_is_compatible_with_itself(pair):
    assert compare(define(pair.old), define(pair.old)) == []


@pytest.mark.parametrize(
    ('old', 'new', 'expected'), [case[1:] for case in DEFINITIONS],
    ids=[case[0] for case in DEFINITIONS])
def test_a_change_of_a_definition_is_found_by_its_rule(old, new, expected):
    assert get_rules(compare(old, new)) == sorted(expected)


def test_the_level_is_that_of_the_rule():
    found = [finding for pair in PAIRS for finding in compare(define(pair.old), define(pair.new))]
    assert all(finding.level == RULES[finding.rule].level
               for finding in found if 'oldSelf' not in finding.text)


@pytest.mark.parametrize(('rule', 'ratcheting', 'level'), [
    (rules('self < 5'), False, 'error'),
    (rules('self < 5'), True, 'warning'),
    (rules('self == oldSelf'), False, 'warning'),
    (rules('self == oldSelf'), True, 'warning'),
    (rules('self < 5 || oldSelf.hasValue()', optionalOldSelf=True), False, 'error'),
    (rules('self < 5 || oldSelf.hasValue()', optionalOldSelf=True), True, 'warning'),
    (rules('self != 7 && self.oldSelfish'), False, 'error'),
])
def test_a_new_rule_is_an_error_only_if_it_concerns_unchanged_objects(rule, ratcheting, level):
    [finding] = compare(
        define(holding(x=INTEGER)), define(holding(x={**INTEGER, **rule})), ratcheting=ratcheting)
    assert finding.level == level


def test_a_rule_that_becomes_one_for_new_objects_is_a_new_one():
    before, after = ({**INTEGER, **rules('oldSelf == self', optionalOldSelf=flag)}
                     for flag in (False, True))
    [finding] = compare(define(holding(x=before)), define(holding(x=after)))
    assert (finding.rule, finding.level) == ('rule-added', 'error')


@pytest.mark.parametrize('seed', range(200))
def test_random_definitions_are_compatible_with_themselves(seed):
    old, new, _ = make_pair(random.Random(seed))
    assert compare(define(old), define(old)) == []
    compare(define(old), define(new))
    compare(define(new), define(old))


def test_ratcheting_makes_nothing_else_a_warning():
    for pair in PAIRS:
        old, new = define(pair.old), define(pair.new)
        assert [each for each in compare(old, new, ratcheting=True) if each.rule != 'rule-added'
                ] == [each for each in compare(old, new) if each.rule != 'rule-added']


UNUSED = {'served': False, 'storage': False}
STORED = {'served': False, 'storage': True}
SERVED = {'served': True, 'storage': False}


@pytest.mark.parametrize(('before', 'after', 'are_compared'), [
    (SERVED, SERVED, True),
    (STORED, STORED, True),
    (SERVED, STORED, True),
    (UNUSED, SERVED, False),
    (UNUSED, STORED, False),
    (SERVED, UNUSED, False),
])
def test_schemas_are_compared_if_both_versions_are_served_or_stored(before, after, are_compared):
    old, new = make_versions({**V1, **before}), make_versions({**V1, **after})
    new['spec']['versions'][0]['schema'] = define(holding())['spec']['versions'][0]['schema']
    found = {finding.rule for finding in compare(old, new)}
    assert ('unknown-fields-removed' in found) == are_compared


@pytest.mark.parametrize(('old', 'new', 'text'), [
    ({'type': 'string', 'maxLength': 5}, {'type': 'string', 'maxLength': 3},
     "maxLength was 5, and is 3. [bounds-tightened]"),
    ({**INTEGER, 'minimum': 5}, {**INTEGER, 'minimum': 5, 'exclusiveMinimum': True},
     "minimum was 5, and is 5 (exclusive). [bounds-tightened]"),
    (ANYTHING, INTEGER, "The type was anything, and is integer. [type-changed]"),
    ({'x-kubernetes-int-or-string': True}, INTEGER,
     "The type was integer or string, and is integer. [type-changed]"),
    (listing(holding()), listing(holding(), **BY_KEYS),
     "The list was atomic, and is map by a, b. [list-type-changed]"),
])
def test_a_finding_names_what_was_and_what_is(old, new, text):
    [finding] = compare(define(holding(x=old)), define(holding(x=new)))
    assert str(finding) == f"error: things.example.com/v1.spec.x: {text}"


def test_the_definitions_stay_as_they_are():
    for pair in PAIRS:
        old, new = define(pair.old), define(pair.new)
        copies = copy.deepcopy((old, new))
        compare(old, new)
        assert (old, new) == copies


def test_each_rule_finds_something_in_a_test():
    found = {rule for pair in pairs.PAIRS for rule, _ in pair.expected}
    found |= {rule for case in DEFINITIONS for rule, _ in case[-1]}
    assert found == {rule.name for rule in COMPATIBILITY} - {'definition-removed'}


def test_each_rule_has_sources():
    for rule in RULES.values():
        assert rule.sources and {*rule.sources} <= {*SOURCES}


@pytest.mark.parametrize(('was', 'now'), [(0, 0.0), ({'a': [1]}, {'a': [1.0]}), (10 ** 20, 1e20)])
def test_the_same_numbers_are_no_changes(was, now):
    old, new = (define(holding(x={**ANYTHING, 'default': value, 'enum': [value]}))
                for value in (was, now))
    assert compare(old, new) == []
