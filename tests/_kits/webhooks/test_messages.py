import pytest

from kopf._cogs.helpers.parsing import MessageError, RequestHead
from kopf._kits.webhooks.messages import Response, build_response, read_head, read_path

JSON = ('Content-Type', 'application/json')


def make_raw(*fields, method='POST', length=5):
    return RequestHead(method, '/', list(fields), length, lasting=True)


def test_paths_are_decoded_and_without_the_query():
    assert read_path('/a%2Fb%20c/%C3%BC?d=e') == '/a/b c/ü'


def test_repeated_headers_are_joined_under_the_first_of_their_names():
    head = read_head(make_raw(JSON, ('Via', 'a'), ('X', 'y'), ('via', 'b')))
    assert head.headers == dict([JSON, ('Via', 'a, b'), ('X', 'y')])


def test_credentials_are_not_ambiguous():
    with pytest.raises(MessageError) as info:
        read_head(make_raw(JSON, ('Authorization', 'a'), ('authorization', 'a')))
    assert info.value.status == 400


@pytest.mark.parametrize(('value', 'expected'), [('', False), ('100-Continue', True)])
def test_expectations_are_known(value, expected):
    assert read_head(make_raw(JSON, ('Expect', value))).expecting is expected


def test_other_expectations_are_refused():
    with pytest.raises(MessageError) as info:
        read_head(make_raw(JSON, ('Expect', 'miracles')))
    assert info.value.status == 417


@pytest.mark.parametrize('content_type', [
    'application/json', 'Application/JSON; charset=utf-8', 'application/x-www-form-urlencoded'])
def test_reviews_are_let_through(content_type):
    read_head(make_raw(('content-type', content_type)))


@pytest.mark.parametrize(('raw', 'status'), [
    (make_raw(JSON, method='OPTIONS'), 405),
    (make_raw(JSON, ('Origin', 'null')), 403),
    (make_raw(('Content-Type', 'application/x-www-form-urlencoded'), ('ORIGIN', 'a')), 403),
    (make_raw(), 415),
    (make_raw(('Content-Type', '')), 415),
    (make_raw(('Content-Type', 'text/plain')), 415),
    (make_raw(('Content-Type', 'multipart/form-data; application/json')), 415),
    (make_raw(JSON, ('content-type', 'text/plain')), 415),
    (make_raw(JSON, length=0), 411),
])
def test_what_is_no_review_or_of_a_web_page_is_refused(raw, status):
    with pytest.raises(MessageError) as info:
        read_head(raw)
    assert info.value.status == status


def test_responses_tell_all_that_clients_need():
    raw = build_response(Response(200, b'{}', is_json=True), lasting=True)
    assert raw == (b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n'
                   b'Connection: keep-alive\r\n\r\n{}')
    raw = build_response(Response(405, b''), lasting=False)
    assert b'\r\nAllow: POST\r\n' in raw
    assert b'\r\nConnection: close\r\n' in raw
