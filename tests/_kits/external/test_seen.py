"""
What people see of things in external systems.
"""
import datetime

import pytest

import kopf
from kopf import testing
from kopf._kits.external.records import Phase, Record, decode, find_contradiction, recover
from tests._kits.external.clouds import Cloud, declare

BASE = {'apiVersion': 'example.com/v1', 'kind': 'Thing'}


def explain(record, **meta):
    registry = kopf.OperatorRegistry()
    declare(Cloud(), registry=registry)
    annotations = {'external.kopf.dev/account': record}
    return testing.explain({**BASE, 'metadata': {
        'name': 'a', 'namespace': 'ns', 'annotations': annotations, **meta}}, registry=registry)


@pytest.mark.parametrize(['record', 'text'], [
    (Record(), "it is not created yet"),
    (Record(phase=Phase.CREATING, token='t', attempt=2),
     "a call to create it was announced with the token t, attempt 2, and its result is not known"),
    (Record(phase=Phase.UNKNOWN, token='t'),
     "it may exist by the token t: look, and use `kopf external adopt` or `kopf external retry`"),
    (Record(phase=Phase.UNKNOWN, adopted='k'),
     "it was adopted by the key k, which the system does not have: look, and use `kopf external "
     "adopt` or `kopf external retry`"),
    (Record(phase=Phase.KNOWN, key='k'), "it exists by the key k"),
    (Record(phase=Phase.KNOWN, key='k', previous=('p',)),
     "it exists by the key k; to be deleted: p"),
    (Record(phase=Phase.DELETING, key='k', previous=('p',)), "it is being deleted: p, k"),
])
def test_phases_are_explained(record, text):
    verdict, = explain(record.encode()).handlers
    assert (verdict.decorator, verdict.id, verdict.because) == ('external', 'account', text)


def test_a_record_that_was_removed_is_explained_by_the_status():
    registry = kopf.OperatorRegistry()
    declare(Cloud(), registry=registry)
    raw = {**BASE, 'metadata': {'name': 'a', 'namespace': 'ns'},
           'status': {'account': {'phase': 'known', 'key': 'k'}}}
    verdict, = testing.explain(raw, registry=registry).handlers
    assert verdict.because == (
        "it may exist by the key k, and its record was removed while no operator ran: look, and "
        "use `kopf external adopt` or `kopf external retry`")


UNKNOWN = Record(phase=Phase.UNKNOWN, token='t')
KNOWN = Record(phase=Phase.KNOWN, token='t', key=5)


@pytest.mark.parametrize(['record', 'key', 'problem'], [
    (None, 'k', None),
    (None, None, "There is no record of 'account'"),
    (UNKNOWN, 'k', None),
    (UNKNOWN, None, None),
    (UNKNOWN, '', "The key is empty"),
    (Record(phase=Phase.UNKNOWN, key=5), 'k', None),
    (KNOWN, '5', None),
    (KNOWN, 'k', "This cannot be, as it exists by the key 5"),
    (KNOWN, None, "This cannot be, as it exists by the key 5"),
    (Record(phase=Phase.CREATING, token='t', attempt=1), None,
     "This cannot be, as a call to create it was announced with the token t, attempt 1, and its "
     "result is not known"),
])
def test_answers_that_cannot_be_right_are_refused(record, key, problem):
    annotations = {} if record is None else {'external.kopf.dev/account': record.encode()}
    raw = {'metadata': {'annotations': annotations}}
    assert find_contradiction(raw, 'account', key) == problem


@pytest.mark.parametrize(['key', 'hint'], [
    ('k', ". For an external that is not declared yet, add --new"), (None, "")])
def test_misspelt_ids_are_refused_with_the_known_ones(key, hint):
    raw = {'metadata': {'annotations': {
        'external.kopf.dev/kopf-managed': 'yes', 'external.kopf.dev/account.adopt': 'k',
        **{f'external.kopf.dev/{id}': KNOWN.encode() for id in ('network', 'account')}}}}
    problem = "There is no record of 'acount', but of: account, network" + hint
    assert find_contradiction(raw, 'acount', key) == problem


def test_an_external_can_be_new_on_an_object_with_others():
    raw = {'metadata': {'annotations': {'external.kopf.dev/old': KNOWN.encode()}}}
    assert find_contradiction(raw, 'account', 'k', is_new=True) is None


@pytest.mark.parametrize('record', [
    '{}',
    '{"phase": "deleting", "previous": "abc"}',  # it is not the keys a, b, c
    '{"phase": "creating", "token": "t", "attempt": "1"}',
    '{"phase": "known", "key": ["k"]}',
    '{"phase": "known", "key": "k", "since": 1}',
])
def test_answers_about_strange_records_are_refused(record):
    raw = {'metadata': {'annotations': {'external.kopf.dev/account': record}}}
    problem = f"The record of an external system is not readable: {record!r}"
    assert find_contradiction(raw, 'account', 'k') == problem


@pytest.mark.parametrize('status', [
    {}, {'account': None}, {'account': 'known'}, {'account': {'phase': 'wanted'}},
    {'account': {'phase': ['known'], 'key': 'k'}}, {'account': {'phase': 'Running', 'key': 'k'}}])
def test_the_status_of_others_tells_nothing_of_records(status):
    assert recover({'metadata': {}, 'status': status}, 'account') is None


def test_copies_have_no_record_that_was_removed():
    raw = {'metadata': {'name': 'b', 'annotations': {
        'external.kopf.dev/account': Record(phase=Phase.KNOWN, key='k', of='a').encode()}},
        'status': {'account': {'phase': 'known', 'key': 'k'}}}
    assert recover(raw, 'account') is None


def test_times_without_a_zone_can_be_compared():
    assert decode('{"phase": "creating", "since": "2026-01-01T00:00:00"}').since < (
        datetime.datetime.now(datetime.UTC))


def test_strange_records_are_explained():
    verdict, = explain('{}').handlers
    assert verdict.because == "The record of an external system is not readable: '{}'"


def test_the_finalizer_is_explained():
    found = explain(Record().encode(), finalizers=['kopf.dev/external'])
    assert found.finalizers == {
        'kopf.dev/external': "of this operator, which deletes what is in external systems first"}


@pytest.mark.parametrize(['record', 'is_called', 'text'], [
    (Record(), False, "it waits for account"),
    (Record(phase=Phase.KNOWN, key='k'), True, None),
])
def test_what_a_reconciling_handler_waits_for_is_explained(record, is_called, text):
    registry = kopf.OperatorRegistry()
    external = declare(Cloud(), registry=registry)
    kopf.reconcile('things', id='fn', registry=registry, after=[external])(lambda **_: None)
    found = testing.explain({**BASE, 'metadata': {'name': 'a', 'namespace': 'ns', 'annotations': {
        'external.kopf.dev/account': record.encode()}}}, registry=registry)
    verdict = found.handlers[-1]
    assert (verdict.id, verdict.is_called) == ('fn', is_called)
    assert text is None or verdict.because == text
