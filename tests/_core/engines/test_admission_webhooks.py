"""
How handlers are addressed by the API, and described to it.
"""
import re

import hypothesis
import pytest
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.engines.admission.webhooks import (
    Directory,
    arrange,
    build_configuration,
    build_selector,
    make_full_name,
    make_slug,
)

R1 = Resource('kopf.dev', 'v1', 'kopfexamples', namespaced=True)
R2 = Resource('', 'v1', 'pods', namespaced=True)
SUBDOMAIN = r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'


def declare(*declarations, fn=lambda **_: None):
    """Make handlers of tuples: the decorator's name, and its options."""
    registry = kopf.OperatorRegistry()
    for reason, options in declarations:
        getattr(kopf.on, reason)('any', registry=registry, **options)(options.pop('fn', fn))
    return list(registry._webhooks)


def build(handlers, bound=None, *, managed='auto.kopf.dev', config=None):
    return build_configuration(
        arrange(handlers), {R1: handlers} if bound is None else bound, managed=managed,
        client_config={'url': 'https://host/root'} if config is None else config)


def test_the_defaults_are_strict_and_for_everything_but_subresources():
    [record] = build(declare(('validate', {'id': 'fn'})))
    assert record == {
        'name': 'fn.auto.kopf.dev',
        'sideEffects': 'None',
        'failurePolicy': 'Fail',
        'matchPolicy': 'Equivalent',
        'rules': [{'apiGroups': ['kopf.dev'], 'apiVersions': ['v1'],
                   'resources': ['kopfexamples'], 'operations': ['*'], 'scope': '*'}],
        'clientConfig': {'url': 'https://host/root/fn'},
        'timeoutSeconds': 30,
        'admissionReviewVersions': ['v1', 'v1beta1'],
    }


@pytest.mark.parametrize(('options', 'field', 'value'), [
    ({'side_effects': True}, 'sideEffects', 'NoneOnDryRun'),
    ({'ignore_failures': True}, 'failurePolicy', 'Ignore'),
    ({'labels': {'l': 'v'}}, 'objectSelector', {
        'matchExpressions': [{'key': 'l', 'operator': 'In', 'values': ['v']}]}),
])
def test_options_are_told(options, field, value):
    [record] = build(declare(('mutate', options)))
    assert record[field] == value


@pytest.mark.parametrize(('options', 'field', 'value'), [
    ({'operations': {'DELETE', 'CREATE'}}, 'operations', ['CREATE', 'DELETE']),
    ({'subresource': 'status'}, 'resources', ['kopfexamples/status']),
    ({'subresource': '*'}, 'resources', ['kopfexamples', 'kopfexamples/*']),
])
def test_rules_are_told(options, field, value):
    [record] = build(declare(('mutate', options)))
    assert record['rules'][0][field] == value


def test_webhooks_are_for_all_their_resources_in_a_stable_order():
    handlers = declare(('validate', {}))
    [record] = build(handlers, {R1: handlers, R2: handlers})
    assert [record] == build(handlers, {R2: handlers, R1: handlers})
    assert [rule['resources'] for rule in record['rules']] == [['pods'], ['kopfexamples']]


def test_webhooks_without_resources_are_left_out():
    handlers = declare(('validate', {}))
    assert build(handlers, {R1: []}) == []


def test_services_have_paths_that_are_names():
    config = {'service': {'namespace': 'ns', 'name': 'svc', 'path': '/root/', 'port': 8443},
              'caBundle': 'xyz'}
    [record] = build(declare(('validate', {'id': 'some_fn/spec.field'})), config=config)
    assert record['clientConfig'] == {
        'caBundle': 'xyz',
        'service': {'namespace': 'ns', 'name': 'svc', 'path': '/root/some-fn.spec.field',
                    'port': 8443}}
    [record] = build(declare(('validate', {'id': 'fn'})), config={'service': {'name': 'svc'}})
    assert record['clientConfig']['service']['path'] == '/fn'


@pytest.mark.parametrize(('labels', 'expected'), [
    (None, []),
    ({'l': kopf.PRESENT}, [{'key': 'l', 'operator': 'Exists'}]),
    ({'l': kopf.ABSENT}, [{'key': 'l', 'operator': 'DoesNotExist'}]),
    ({'a.b/l': ''}, [{'key': 'a.b/l', 'operator': 'In', 'values': ['']}]),
    ({'l': lambda value, **_: True}, []),
    ({'l': 'no label value'}, []),
    ({'l': 'x' * 64}, []),
    ({'no label': 'v'}, []),
    ({'No.Prefix/l': 'v'}, []),
    ({'a/b/c': 'v'}, []),
    ({'': 'v'}, []),
])
def test_labels_are_told_as_far_as_the_api_understands_them(labels, expected):
    assert build_selector(labels) == expected


@pytest.mark.parametrize(('id_', 'path', 'name'), [
    ('fn', 'fn', 'fn'),
    ('some_fn', 'some_fn', 'some-fn'),
    ('fn/spec.field', 'fn/spec.field', 'fn.spec.field'),
    ('Upper', 'Upper', r'upper-[0-9a-f]{8}'),
    ('_leading', '_leading', r'leading-[0-9a-f]{8}'),
    ('lambda:/some/file.py:12', r'lambda.some.file.py-12-[0-9a-f]{8}',
     r'lambda.some.file.py-12-[0-9a-f]{8}'),
    ('a?b#c', r'a-b-c-[0-9a-f]{8}', r'a-b-c-[0-9a-f]{8}'),
    ('../..', r'[0-9a-f]{8}', r'[0-9a-f]{8}'),
])
def test_ids_are_paths_and_names_where_they_can_be(id_, path, name):
    [webhook] = arrange(declare(('validate', {'id': id_})))
    assert re.fullmatch(path, webhook.path)
    assert re.fullmatch(name, webhook.name)


@hypothesis.given(ids=st.lists(st.text(max_size=300) | st.text('aA_-./', max_size=5)))
def test_names_and_paths_are_unique_acceptable_and_stable(ids):
    ids = [id_ or 'x' for id_ in ids]
    handlers = declare(*(('validate', {'id': id_}) for id_ in ids))
    webhooks = arrange(handlers)
    names = [webhook.name for webhook in webhooks]
    paths = [webhook.path for webhook in webhooks]
    slugs = [webhook.slug for webhook in webhooks]
    assert len(set(names)) == len(set(paths)) == len(set(slugs)) == len(set(ids))
    assert all(re.fullmatch(SUBDOMAIN, name) for name in [*names, *slugs])
    assert arrange(handlers) == webhooks
    directory = Directory(handlers)
    for handler in handlers:
        [webhook] = [webhook for webhook in webhooks if handler in webhook.members]
        assert directory.find(webhook.path) == directory.find(webhook.slug)
        assert directory.find(handler.id) == set(webhook.members)


@hypothesis.given(id_=st.text(min_size=1, max_size=300), managed=st.sampled_from(
    ['auto.kopf.dev', 'short', 'two.parts', 'x' * 90]))
def test_full_names_are_acceptable(id_, managed):
    name = make_full_name(make_slug(id_), managed)
    assert re.fullmatch(SUBDOMAIN, name)
    assert len(name) <= 253
    assert name.count('.') >= 2


def test_handlers_of_one_id_share_a_webhook_if_their_options_are_the_same():
    handlers = declare(('validate', {'id': 'fn', 'operations': ['CREATE']}),
                       ('validate', {'id': 'fn', 'operations': ['DELETE']}))
    [record] = build(handlers)
    assert [rule['operations'] for rule in record['rules']] == [['CREATE'], ['DELETE']]


def test_handlers_of_one_id_have_webhooks_of_their_own_if_their_options_differ():
    handlers = declare(('validate', {'id': 'fn'}),
                       ('validate', {'id': 'fn', 'ignore_failures': True}),
                       ('mutate', {'id': 'fn'}),
                       ('validate', {'id': 'fn-1'}))
    webhooks = arrange(handlers)
    directory = Directory(handlers)
    assert [webhook.path for webhook in webhooks] == ['fn-2', 'fn-3', 'fn-4', 'fn-1']
    assert [webhook.name for webhook in webhooks] == ['fn', 'fn-3', 'fn', 'fn-1']
    assert [directory.find(webhook.path) for webhook in webhooks] == [{h} for h in handlers]
    assert directory.find('fn') == {*handlers[:3]}


def test_nothing_is_found_where_there_is_nothing():
    assert Directory(declare(('validate', {'id': 'fn'}))).find('other') == frozenset()
