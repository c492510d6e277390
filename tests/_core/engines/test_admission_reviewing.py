"""
Reviews: from a request to the answer, with all the handlers between.
"""
import asyncio
import base64
import copy
import json
import logging

import hypothesis
import jsonpatch
import pytest
from hypothesis import strategies as st

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Context
from kopf._core.engines.admission import answers, questions, webhooks
from kopf._core.engines.admission.reviewing import Reviewer, make_changes

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
ABSENT = object()


def make_request(operation='CREATE', new=ABSENT, old=None, *, version='v1', **fields):
    new = {'metadata': {'name': 'x'}, 'spec': {}} if new is ABSENT else new
    return {
        'apiVersion': f'admission.k8s.io/{version}', 'kind': 'AdmissionReview',
        'request': {
            'uid': 'uid1',
            'kind': {'group': 'kopf.dev', 'version': 'v1', 'kind': 'KopfExample'},
            'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': 'kopfexamples'},
            'operation': operation, 'object': new, 'oldObject': old,
            'userInfo': {'username': 'me'}, 'dryRun': False, **fields,
        },
    }


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def review(registry):
    """Make a review by the handlers of the registry; return the payload of the response."""
    settings = kopf.OperatorSettings()

    async def call(request, **kwargs):
        handlers = list(registry._webhooks)
        reviewer = Reviewer(
            directory=webhooks.Directory(handlers),
            context=Context(
                settings=settings, clock=Clock(), indices={'index': {'key': 'value'}}),
            find=lambda resource: (RESOURCE, handlers) if resource == RESOURCE else None,
            get_memo=lambda resource, uid: kopf.Memo(uid=uid))
        response = await reviewer(request, **kwargs)
        json.dumps(response)
        assert response['kind'] == 'AdmissionReview'
        assert response['apiVersion'] == request.get('apiVersion', 'admission.k8s.io/v1')
        assert response['response']['uid'] == 'uid1'
        return response['response']

    yield call
    settings.execution.executor.shutdown()


def get_patch(response):
    assert response['patchType'] == 'JSONPatch'
    return json.loads(base64.b64decode(response['patch']))


async def test_without_handlers_everything_is_allowed(review):
    assert await review(make_request()) == {'uid': 'uid1', 'allowed': True}


@pytest.mark.parametrize('version', ['v1', 'v1beta1'])
async def test_all_handlers_are_called_if_none_is_named(review, registry, version):
    called = []
    for name in ('one', 'two'):
        @kopf.on.validate('any', id=name, param=name, registry=registry)
        @kopf.on.mutate('any', id=name, param=name, registry=registry)
        async def fn(param, **_):
            called.append(param)
    assert (await review(make_request(version=version)))['allowed']
    assert called == ['one', 'one', 'two', 'two']


async def test_only_the_named_handler_is_called(review, registry):
    @kopf.on.validate('any', id='one', registry=registry)
    async def one(**_):
        raise kopf.AdmissionError("No!")

    @kopf.on.validate('any', id='two', registry=registry)
    async def two(**_):
        pass
    assert not (await review(make_request(), webhook='one'))['allowed']
    assert (await review(make_request(), webhook='two'))['allowed']
    assert not (await review(make_request(), webhook=''))['allowed']


@pytest.mark.parametrize(('error', 'status'), [
    (kopf.AdmissionError("No!"), {'message': 'No!', 'code': 500}),
    (kopf.AdmissionError("No!", code=418), {'message': 'No!', 'code': 418}),
    (kopf.AdmissionError("No!", code=200), {'message': 'No!', 'code': 500}),
    (kopf.AdmissionError("No!", code=10**10), {'message': 'No!', 'code': 500}),
    (kopf.AdmissionError("No!", code=None), {'message': 'No!', 'code': 500}),
    (kopf.AdmissionError("No!", code='418'), {'message': 'No!', 'code': 500}),
    (kopf.AdmissionError(), {'message': '', 'code': 500}),
    (kopf.AdmissionError(None), {'message': '', 'code': 500}),
    (kopf.PermanentError("No!"), {'message': 'No!', 'code': 500}),
    (kopf.TemporaryError("No!"), {'message': 'No!', 'code': 500}),
    (ValueError("No!"), {'message': 'No!', 'code': 500}),
    (ValueError(), {'message': 'ValueError()', 'code': 500}),
    (asyncio.CancelledError("No!"), {'message': 'No!', 'code': 500}),
])
async def test_errors_refuse(review, registry, error, status):
    @kopf.on.validate('any', registry=registry)
    async def fn(**_):
        raise error
    assert await review(make_request()) == {'uid': 'uid1', 'allowed': False, 'status': status}


@hypothesis.given(order=st.permutations(range(4)), count=st.integers(1, 4))
def test_the_gravest_error_is_told(order, count):
    classes = [kopf.AdmissionError, kopf.PermanentError, kopf.TemporaryError, ValueError]
    chosen = order[:count]
    failures = [classes[rank](f"#{rank}") for rank in chosen]
    assert str(answers.choose(failures)) == f"#{min(chosen)}"


async def test_all_handlers_are_called_even_if_some_fail(review, registry):
    called = []
    for name in ('one', 'two'):
        @kopf.on.validate('any', id=name, param=name, registry=registry)
        async def fn(param, **_):
            called.append(param)
            raise kopf.AdmissionError(param)
    assert (await review(make_request()))['status']['message'] == 'one'
    assert called == ['one', 'two']


async def test_warnings_are_strings(review, registry):
    @kopf.on.validate('any', registry=registry)
    def fn(warnings, **_):
        warnings.append("One.")
        warnings.append(2)
    assert (await review(make_request()))['warnings'] == ["One.", "2"]


async def test_warnings_have_only_what_a_header_can_carry(review, registry):
    @kopf.on.validate('any', registry=registry)
    def fn(warnings, **_):
        warnings.append("Größe:\n\x1b[1m5")
    assert (await review(make_request()))['warnings'] == ["Größe:  [1m5"]


async def test_handlers_that_return_false_are_told_how_to_refuse(review, registry, caplog):
    @kopf.on.validate('any', registry=registry)
    def fn(**_):
        return False
    assert (await review(make_request()))['allowed'] is True
    assert "fn' has returned False, which does not refuse the request." in caplog.text


async def test_validating_handlers_change_nothing(review, registry, caplog):
    @kopf.on.mutate('any', registry=registry)
    def mutating(patch, **_):
        patch.spec['good'] = 1

    @kopf.on.validate('any', registry=registry)
    def validating(patch, **_):
        patch.spec['bad'] = 1
    assert get_patch(await review(make_request())) == [
        {'op': 'add', 'path': '/spec/good', 'value': 1}]
    assert "only validates; what it wants to be changed, is ignored" in caplog.text


async def test_nothing_is_changed_where_there_is_nothing_to_be_changed(review, registry):
    @kopf.on.mutate('any', operations=['DELETE'], registry=registry)
    def fn(patch, **_):
        patch.spec['field'] = 1
    response = await review(make_request('DELETE', None, {'metadata': {'name': 'x'}}))
    assert response == {'uid': 'uid1', 'allowed': True}


async def test_lists_that_are_changed_in_place_are_changed_if_they_are_in_the_patch(
        review, registry):
    @kopf.on.mutate('any', registry=registry)
    def fn(body, patch, **_):
        items = body['spec']['items']
        items.append({'name': 'side'})
        patch.spec['items'] = items
    response = await review(make_request(new={'spec': {'items': [{'name': 'main'}]}}))
    assert get_patch(response) == [{
        'op': 'replace', 'path': '/spec/items', 'value': [{'name': 'main'}, {'name': 'side'}]}]


async def test_nothing_is_changed_if_it_is_refused(review, registry):
    @kopf.on.mutate('any', registry=registry)
    def fn(patch, **_):
        patch.spec['field'] = 1
        raise kopf.AdmissionError("No!")
    assert 'patch' not in await review(make_request())


@pytest.mark.parametrize('value', [{1, 2}, float('nan'), object(), b'bytes'])
async def test_what_is_not_json_refuses(review, registry, value):
    @kopf.on.mutate('any', registry=registry)
    def fn(patch, **_):
        patch.spec['field'] = value
    response = await review(make_request())
    assert not response['allowed']
    assert response['status']['code'] == 500
    assert 'not JSON' in response['status']['message']


async def test_failing_functions_of_patches_refuse(review, registry):
    @kopf.on.mutate('any', registry=registry)
    def fn(patch, **_):
        patch.fns.append(lambda body: 1 / 0)
    assert (await review(make_request()))['status']['message'] == 'division by zero'


@pytest.mark.parametrize('decorator', [kopf.on.validate, kopf.on.mutate])
@pytest.mark.parametrize(('operations', 'operation', 'called'), [
    (None, 'CREATE', True), (None, 'CONNECT', True), (['CREATE'], 'CREATE', True),
    (['CREATE', 'DELETE'], 'UPDATE', False), (['CREATE', 'DELETE'], 'DELETE', True)])
async def test_operations_are_checked(review, registry, decorator, operations, operation, called):
    @decorator('any', operations=operations, registry=registry)
    async def fn(**_):
        raise kopf.AdmissionError
    assert (await review(make_request(operation)))['allowed'] is not called


@pytest.mark.parametrize(('decorator', 'called'), [
    (kopf.on.validate, True), (kopf.on.mutate, False)])
async def test_by_default_only_validating_handlers_are_for_deletions(
        review, registry, decorator, called):
    @decorator('any', registry=registry)
    async def fn(**_):
        raise kopf.AdmissionError
    response = await review(make_request('DELETE', None, {'metadata': {'name': 'x'}}))
    assert response['allowed'] is not called


@pytest.mark.parametrize(('declared', 'requested', 'called'), [
    (None, None, True), (None, '', True), (None, 'status', False), ('status', None, False),
    ('status', 'status', True), ('status', 'scale', False), ('*', None, True),
    ('*', 'status', True)])
async def test_subresources_are_checked(review, registry, declared, requested, called):
    @kopf.on.validate('any', subresource=declared, registry=registry)
    async def fn(**_):
        raise kopf.AdmissionError
    response = await review(make_request(subResource=requested))
    assert response['allowed'] is not called


async def test_kwargs_are_what_the_request_tells(review, registry):
    seen = {}

    @kopf.on.validate('any', registry=registry)
    async def fn(**kwargs):
        seen.update(kwargs)
    old = {'metadata': {'name': 'x', 'uid': 'uid2'}, 'spec': {'a': 1}}
    new = {'metadata': {'name': 'x', 'uid': 'uid2'}, 'spec': {'a': 2}}
    await review(make_request('UPDATE', new, old, dryRun=True), headers={'a': 'b'},
                 sslpeer={'subject': ()})
    assert (seen['old'], seen['new'], seen['body']) == (old, new, new)
    assert seen['diff'] == (('change', ('spec', 'a'), 1, 2),)
    assert seen['headers'] == {'a': 'b'}
    assert seen['sslpeer'] == {'subject': ()}
    assert seen['userinfo'] == {'username': 'me'}
    assert seen['dryrun'] is True
    assert seen['memo'] == {'uid': 'uid2'}
    assert seen['index'] == {'key': 'value'}
    assert seen['resource'] is RESOURCE


async def test_memos_of_creations_are_passing(review, registry):
    seen = []

    @kopf.on.validate('any', registry=registry)
    async def fn(memo, **_):
        seen.append(memo.uid)
    await review(make_request('CREATE', {'metadata': {'uid': 'uid2'}}))
    await review(make_request('DELETE', None, {'metadata': {'uid': 'uid2'}}))
    assert seen == [None, 'uid2']


async def test_names_are_those_of_the_request_where_the_body_has_none(review, registry):
    seen = []

    @kopf.on.validate('any', registry=registry)
    async def fn(name, namespace, **_):
        seen.append((name, namespace))
    options = {'kind': 'PodExecOptions'}
    await review(make_request('CONNECT', options, name='x', namespace='ns'))
    await review(make_request('CONNECT', None, name='x', namespace='ns'))
    assert seen == [('x', 'ns')] * 2


async def test_a_function_declared_twice_for_the_same_is_called_once(review, registry):
    called = []

    @kopf.on.validate('any', registry=registry)
    @kopf.on.validate('any', labels={'l': kopf.ABSENT}, registry=registry)
    async def fn(**_):
        called.append(1)
    await review(make_request())
    assert called == [1]


async def test_lines_of_reviews_are_not_posted(review, registry, caplog):
    caplog.set_level(logging.DEBUG)

    @kopf.on.validate('any', registry=registry)
    async def fn(logger, **_):
        logger.info("Here.")
    await review(make_request())
    records = [record for record in caplog.records if record.name == 'kopf.objects']
    assert len(records) == 3
    assert all(record.k8s_skip for record in records)


MALFORMED = [
    None, [], 'x', 1, {}, {'request': None}, {'request': []},
    {**make_request(), 'kind': 'Pod'},
    {**make_request(), 'apiVersion': 'v1'},
    {**make_request(), 'apiVersion': []},
    *(make_request(**{key: value}) for key, value in [
        ('uid', None), ('uid', 1), ('resource', None), ('resource', {}), ('resource', 'pods'),
        ('resource', {'group': 1, 'version': 'v1', 'resource': 'x'}),
        ('kind', 'x'), ('operation', None), ('operation', 'PATCH'), ('operation', ['CREATE']),
        ('operation', {}), ('new', None), ('new', 'x'), ('new', [{}]), ('new', {'metadata': []}),
        ('new', {'metadata': {'labels': []}}), ('new', {'metadata': {'annotations': 'x'}}),
        ('new', {'metadata': {'name': {}}}), ('new', {'metadata': {'uid': []}}),
        ('old', 'x'), ('dryRun', 'no'), ('userInfo', 'me'), ('subResource', 1), ('name', {}),
        ('namespace', 1), ('name', 'new\nline'), ('new', {'metadata': {'name': '\ud800'}}),
    ]),
]


@pytest.mark.parametrize('request_', MALFORMED, ids=range(len(MALFORMED)))
async def test_malformed_requests_are_told_as_such(review, registry, request_):
    @kopf.on.validate('any', registry=registry)
    async def fn(**_):
        raise AssertionError
    with pytest.raises(questions.MalformedRequestError):
        await review(request_)


async def test_unknown_resources_are_told_as_such(review, registry):
    request = make_request(resource={'group': '', 'version': 'v1', 'resource': 'pods'})
    with pytest.raises(questions.UnknownResourceError, match="pods.v1"):
        await review(request)


async def test_webhooks_of_other_versions_of_the_operator_are_not_allowed_unseen(review, registry):
    @kopf.on.validate('any', id='renamed', registry=registry)
    async def fn(**_):
        raise AssertionError
    with pytest.raises(questions.UnknownResourceError, match="no webhook 'named'"):
        await review(make_request(), webhook='named')


async def test_deep_objects_are_refused_or_reviewed(review, registry):
    @kopf.on.validate('any', registry=registry)
    async def fn(**_):
        pass
    old, new = {}, {'a': 1}
    for _ in range(5000):
        old, new = {'a': old}, {'a': new}
    with pytest.raises(questions.MalformedRequestError, match="too deeply"):
        await review(make_request('UPDATE', new, old))


keys = st.text('ab/~-"\u20ac0', max_size=3)
scalars = (st.none() | st.booleans() | st.integers(-2, 2) | st.just(1.5) |
           st.text('a\U0001f600', max_size=2))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))
objects = st.dictionaries(st.sampled_from(['spec', 'status', 'metadata', 'data', '']),
                          st.dictionaries(keys, values, max_size=4), max_size=3)


def merge(target, patch):
    """The rules of RFC 7396, independently."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


@hypothesis.given(body=objects, patch=objects, changes=objects)
def test_patches_make_exactly_what_was_meant(body, patch, changes):
    def transform(raw):
        raw.clear()
        raw.update(copy.deepcopy(changes))

    target = {**body, 'metadata': {}}
    question = questions.parse(make_request(new=copy.deepcopy(target)))
    for fns, expected in [((), merge(target, patch)), ([transform], changes)]:
        ops = make_changes(question, kopf.Patch(patch, fns=fns))
        sent = json.loads(base64.b64decode(answers.encode(ops)))
        assert dump(jsonpatch.apply_patch(target, sent)) == dump(expected)
        assert question.new == target


def dump(value):
    """As a text, where true is not 1."""
    return json.dumps(value, sort_keys=True)
