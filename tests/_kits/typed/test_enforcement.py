import copy

import pytest

from kopf._kits.typed.enforcement import find_unenforced, parse_version, remove_ignored
from tests._kits.typed.pairs import INTEGER, STRING, X, define, holding, listing, rules


def find(schema, minor):
    return [(finding.rule, finding.path, finding.text)
            for finding in find_unenforced(define(holding(x=schema)), minor)]


@pytest.mark.parametrize(('schema', 'since', 'expected'), [
    ({**INTEGER, **rules('self > 1')}, 25, "the rule, until 1.25: self > 1"),
    ({**STRING, 'format': 'k8s-short-name'}, 34, "the format 'k8s-short-name', until 1.34."),
    ({**STRING, 'format': 'k8s-long-name'}, 34, "the format 'k8s-long-name', until 1.34."),
    ({**INTEGER, 'format': 'int32'}, 36, "the format 'int32', until 1.36."),
    ({'type': 'number', 'format': 'float'}, 36, "the format 'float', until 1.36."),
    ({**STRING, 'format': 'quantity'}, 99,
     "the format 'quantity', as all versions do. Use a pattern instead."),
    ({**INTEGER, 'format': 'ipv4'}, 99,
     "the format 'ipv4', as all versions do. Use a pattern instead."),
])
def test_what_is_not_enforced_yet_is_listed(schema, since, expected):
    assert find(schema, since - 1) == [
        ('not-enforced', X, f"Kubernetes 1.{since - 1} ignores {expected}")]
    assert find(schema, since) == [] or since == 99


def test_rules_for_new_objects_need_a_later_version_than_rules():
    schema = {**INTEGER, **rules('self > 1 || oldSelf.hasValue()', optionalOldSelf=True)}
    assert [text for _, _, text in find(schema, 29)] == [
        "Kubernetes 1.29 ignores the rule, until 1.30: self > 1 || oldSelf.hasValue()"]
    assert find(schema, 30) == []


SELECTABLE = {'selectableFields': [{'jsonPath': '.spec.x'}]}
RULE, NEW_RULE = ({'rule': 'self > 1'}, {'rule': 'self > 2', 'optionalOldSelf': True})


@pytest.mark.parametrize(('minor', 'kept', 'version'), [
    (24, [], {}), (25, [RULE], {}), (30, [RULE, NEW_RULE], {}), (31, [RULE, NEW_RULE], SELECTABLE),
])
def test_what_is_ignored_is_removed(minor, kept, version):
    schema = {**INTEGER, 'x-kubernetes-validations': [RULE, NEW_RULE]}
    definition = define(holding(x=schema, y=STRING), version=SELECTABLE)
    copied = copy.deepcopy(definition)
    remaining = {**INTEGER, **({'x-kubernetes-validations': kept} if kept else {})}
    assert remove_ignored(definition, minor) == define(
        holding(x=remaining, y=STRING), version=version)
    assert definition == copied


def test_selectable_fields_are_listed():
    definition = define(version={'selectableFields': [{'jsonPath': '.spec.x'}]})
    [finding] = find_unenforced(definition, 30)
    assert finding.path == X
    assert finding.text == (
        "Kubernetes 1.30 ignores that objects are selected by the field, until 1.31.")
    assert find_unenforced(definition, 31) == []


def test_what_is_inside_is_listed():
    [(_, path, _)] = find(listing(holding(a={**INTEGER, 'format': 'int32'})), 20)
    assert path == f'{X}[*].a'


@pytest.mark.parametrize('schema', [
    {**STRING, 'format': 'ipv4', 'pattern': 'a', 'maxLength': 3},
    {**INTEGER, 'format': 'int64', 'minimum': 1, 'default': 3},
    {'type': 'number', 'format': 'double'},
    {'x-kubernetes-int-or-string': True, 'anyOf': [INTEGER, STRING]},
])
def test_what_is_enforced_is_not_listed(schema):
    assert find(schema, 20) == []


@pytest.mark.parametrize('text', ['1.20', 'v1.20.2', '1.20+'])
def test_a_version_is_parsed(text):
    assert parse_version(text) == 20


@pytest.mark.parametrize('text', ['', '1', '2.0', 'latest', '20'])
def test_what_is_no_version_is_an_error(text):
    with pytest.raises(ValueError, match=f"'{text}' is no version of Kubernetes. Write it like"):
        parse_version(text)
