import json

import pytest

from kopf._cogs.clients import errors


@pytest.mark.parametrize('status, cls', [
    (400, errors.APIBadRequestError),
    (401, errors.APIUnauthorizedError),
    (403, errors.APIForbiddenError),
    (404, errors.APINotFoundError),
    (409, errors.APIConflictError),
    (410, errors.APIGoneError),
    (413, errors.APITooLargeError),
    (418, errors.APIClientError),
    (422, errors.APIUnprocessableError),
    (429, errors.APITooManyRequestsError),
    (500, errors.APIServerError),
    (503, errors.APIServerError),
    (302, errors.APIError),
])
def test_statuses_have_their_classes(status, cls):
    error = errors.make_error(status, b'')
    assert type(error) is cls
    assert error.status == error.code == status


def test_everything_is_an_api_error():
    assert issubclass(errors.APIConnectionError, errors.APIError)
    assert issubclass(errors.APIForbiddenError, errors.APIClientError)
    assert issubclass(errors.APIClientError, errors.APIError)
    assert issubclass(errors.APIServerError, errors.APIError)


def test_kubernetes_statuses_are_parsed():
    payload = {
        'kind': 'Status', 'code': 409, 'message': 'changed', 'reason': 'Conflict',
        'details': {'name': 'x', 'causes': [{'field': 'metadata.name'}]}}
    error = errors.make_error(409, json.dumps(payload).encode())
    assert error.message == str(error) == 'changed'
    assert error.reason == 'Conflict'
    assert error.details == payload['details']
    assert error.causes == [{'field': 'metadata.name'}]
    assert error.payload == payload


def test_texts_are_taken_for_messages():
    assert str(errors.make_error(404, b'404 page not found\n')) == '404 page not found'


@pytest.mark.parametrize('raw', [b'', b'<html><body>Oops</body></html>', b'{}', b'[]', b'\xff'])
def test_there_is_always_something_to_say(raw):
    assert str(errors.make_error(502, raw))


def test_the_longer_of_both_delays_counts():
    payload = {'kind': 'Status', 'details': {'retryAfterSeconds': 5}}
    raw = json.dumps(payload).encode()
    assert errors.make_error(429, raw, retry_after='3').retry_after == 5
    assert errors.make_error(429, raw, retry_after='7').retry_after == 7
    assert errors.make_error(429, raw).retry_after == 5


@pytest.mark.parametrize('payload', [
    {'code': 410}, {'code': 410, 'reason': 'Expired'}, {'reason': 'Expired'}, {'reason': 'Gone'},
])
def test_expirations_in_streams_are_recognised(payload):
    assert isinstance(errors.make_status_error(payload), errors.APIGoneError)


@pytest.mark.parametrize('payload', [
    {}, {'code': 'x'}, {'code': None, 'details': 3, 'message': 5, 'reason': 7},
    {'details': {'retryAfterSeconds': 'x'}}, {'details': {'causes': ['x']}},
    {'details': {'causes': 5}},
])
def test_broken_statuses_are_errors_too(payload):
    error = errors.make_status_error(payload)
    assert error.status == 0
    assert error.message is None
    assert error.reason is None
    assert error.retry_after is None
    assert not error.causes
    assert str(error)


@pytest.mark.parametrize('message', [
    "etcdserver: request is too large",
    "rpc error: code = ResourceExhausted desc = trying to send message larger than max (3 vs. 2)",
])
def test_objects_too_large_for_the_database_are_too_large_also_if_the_api_calls_it_its_own_error(
        message):
    error = errors.make_status_error({'code': 500, 'message': message}, status=500)
    assert isinstance(error, errors.APITooLargeError)
    assert error.status == 413
    assert error.code == 500


@pytest.mark.parametrize('message', [
    "failed to create typed patch object (default/a; /v1, Kind=ConfigMap): .data.a: expected "
    "string, got …",
    "failed to convert new object (default/a; apps/v1, Kind=Deployment) to proper version: unable "
    "to convert unstructured object to apps/v1, Kind=Deployment: quantities must match …",
])
def test_applied_fields_of_wrong_types_are_bad_requests_though_the_api_calls_them_its_own_error(
        message):
    error = errors.make_status_error({'code': 500, 'message': message}, status=500)
    assert isinstance(error, errors.APIBadRequestError)
    assert (error.status, error.code) == (400, 500)


@pytest.mark.parametrize('depth', [900, 10_000])
def test_answers_nested_too_deeply_are_errors_without_details(depth):
    error = errors.make_error(404, b'{"kind":"Status","details":%s1%s}' % (
        b'{"k":' * depth, b'}' * depth))
    assert type(error) is errors.APINotFoundError
    assert error.details == {}


@pytest.mark.parametrize('header, seconds', [
    ('2147483647', None), ('1e300', None), ('Wed, 21 Oct 9999 07:28:00 GMT', None),
    (None, 2147483647), (None, 10 ** 400), ('1', 1e300), ('301', 301),
])
def test_retry_after_is_obeyed_for_minutes_but_no_longer(header, seconds):
    raw = json.dumps({'kind': 'Status', 'details': {'retryAfterSeconds': seconds}}).encode()
    assert errors.make_error(429, raw, retry_after=header).retry_after == 300


@pytest.mark.parametrize('seconds', [-1, 0, False, '7', [], float('nan')])
def test_retry_after_that_makes_no_sense_is_ignored(seconds):
    raw = json.dumps({'kind': 'Status', 'details': {'retryAfterSeconds': seconds}}).encode()
    assert errors.make_error(429, raw).retry_after is None
    assert errors.make_error(429, raw, retry_after='3').retry_after == 3


@pytest.mark.parametrize('message, expected', [
    ('pods "x" is forbidden: User "me" cannot patch resource "pods" in API group ""', True),
    ('forbidden: User "system:anonymous" cannot get path "/apis"', True),
    ('pods "x" is forbidden: unable to create new content in namespace ns because it is being '
     'terminated', False),
    ("pods \"x\" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no",
     False),
    ('admission webhook "a.b" denied the request: no', False),
    ('pods "x" is forbidden: exceeded quota: q', False),
])
def test_rights_are_advised_only_if_they_are_lacking(message, expected):
    error = errors.make_error(403, json.dumps({'kind': 'Status', 'message': message}).encode())
    assert errors.advise(error) == (
        ". Print the roles that the operator needs: kopf rbac" if expected else '')
