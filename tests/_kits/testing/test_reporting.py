import json

import pytest

from kopf._kits.sandbox.storage import Change, Entry
from kopf._kits.testing import exploring, reporting

RESOURCE = ('', 'things')


def make_entry(obj):
    return Entry(('default', 'x'), 'uid', 1, json.dumps(obj).encode(), None)


@pytest.mark.parametrize('old, new, text', [
    ({}, {'spec': {'a': 1}}, "sets spec.a"),
    ({'spec': {'a': 1, 'b': 1}}, {'spec': {'a': 2}}, "sets spec.a, removes spec.b"),
    ({}, {'metadata': {'annotations': {'kopf.dev/x': '1'}}}, "sets annotation kopf.dev/x"),
    ({}, {'status': {}, 'data': []}, "sets status, sets data"),
    ({}, dict.fromkeys('abcde', 1), "sets a, sets b, sets c, and changes 2 more"),
    ({}, {'metadata': {'resourceVersion': '5', 'managedFields': [1]}}, "changes nothing"),
])
def test_changes_are_told_by_their_fields(old, new, text):
    change = Change('MODIFIED', RESOURCE, 2, make_entry(new), make_entry(old))
    assert reporting.describe_change(change) == text


@pytest.mark.parametrize('type, text', [('ADDED', "creates it"), ('DELETED', "deletes it")])
def test_creations_and_deletions_are_told(type, text):
    assert reporting.describe_change(Change(type, RESOURCE, 2, make_entry({}), None)) == text


@pytest.mark.parametrize('strike, expected, actual, repeated, text', [
    ('crash', {'a': '1'}, {'a': '1', 'b': '1'}, True, "make their names from the handled object"),
    ('stale', {'a': '1'}, {'a': '1', 'b': '1'}, True, "Indices and lists can be older"),
    ('crash', {'a': '1'}, {}, True, "do not leave out any"),
    ('crash', {'a': '1'}, {'a': '2'}, True, "must write the same values"),
    ('crash', {'a': '1'}, {'a': '2'}, False, "only in memory is lost"),
    ('stop', {'a': '1'}, {'b': '1'}, False, "only in memory is lost"),
    ('gap', {'a': '1'}, {}, False, "decide by the current objects"),
    ('lose', {'a': '1'}, {}, False, "kopf.TemporaryError"),
    ('refuse-500', {'a': '1'}, {'a': '2'}, False, "kopf.TemporaryError"),
    ('call-timeout', {'a': '1'}, {'a': '2'}, False, "kopf.TemporaryError"),
    ('refuse-409', {'a': '1'}, {'a': '2'}, False, "let only one handler write each of the fields"),
    ('call-stale', {'a': '1'}, {'a': '1', 'b': '1'}, True, "an external system shows can be old"),
])
def test_the_advice_is_by_the_kind_of_difference(strike, expected, actual, repeated, text):
    assert text in reporting.advise(strike, expected, actual, repeated=repeated)


@pytest.mark.parametrize('strike', exploring.STRIKES)
def test_there_is_no_advice_without_differences(strike):
    assert reporting.advise(strike, {'a': '1'}, {'a': '1'}, repeated=True) is None


@pytest.mark.parametrize('body, text', [
    (b'{"id": 1}', '200 {"id": 1}'),
    (b'a\n\n b\xff', '200 a b\ufffd'),
    (b'x' * 81, f"200 {'x' * 79}…"),
    (b'', '200'),
])
def test_answers_are_told_in_short(body, text):
    assert reporting.describe_answer(200, body) == text


WRITES = ['write 1: patch', 'write 2: patch', 'write 3: patch']


@pytest.mark.parametrize('strike, text, writes', [
    ('crash:1', "the operator is killed between write 1 and write 2", WRITES[:2]),
    ('crash:3', "the operator is killed after write 3", WRITES[2:]),
    ('lose:1', "the response to write 1 is lost", WRITES[:1]),
    ('call-after:1', "the operator is killed after call 1", WRITES[:1]),
    ('call-timeout:2', "the answer to call 2 comes after 120 seconds", WRITES[1:2]),
])
def test_a_fault_is_told_with_its_writes(strike, text, writes):
    assert exploring.Strike.parse(strike).locate(WRITES) == (text, writes)
