import asyncio

import pytest

from kopf._cogs.serving.exchanges import Refusal, Request
from kopf._kits.webhooks.httpreviews import Reviews, join_fields

JSON = ('Content-Type', 'application/json')


def check(*fields, method='POST', length=5, body=b'{}'):
    async def fn(*_, **__):
        return {}

    def read():
        return asyncio.sleep(0, body)

    asyncio.run(Reviews(fn, root='')(Request(method, '/', fields, length, read=read)))


def test_repeated_headers_are_joined_under_the_first_of_their_names():
    joined = join_fields([JSON, ('Via', 'a'), ('X', 'y'), ('via', 'b')])
    assert joined == dict([JSON, ('Via', 'a, b'), ('X', 'y')])


def test_credentials_are_not_ambiguous():
    with pytest.raises(Refusal) as info:
        check(JSON, ('Authorization', 'a'), ('authorization', 'a'))
    assert info.value.status == 400


@pytest.mark.parametrize('content_type', [
    'application/json', 'Application/JSON; charset=utf-8', 'application/x-www-form-urlencoded'])
def test_reviews_are_let_through(content_type):
    check(('content-type', content_type))


@pytest.mark.parametrize(('fields', 'options', 'status'), [
    ([JSON], {'method': 'OPTIONS'}, 405),
    ([JSON, ('Origin', 'null')], {}, 403),
    ([JSON, ('Origin', '')], {}, 403),
    ([('Content-Type', 'application/x-www-form-urlencoded'), ('ORIGIN', 'a')], {}, 403),
    ([], {}, 415),
    ([('Content-Type', '')], {}, 415),
    ([('Content-Type', 'text/plain')], {}, 415),
    ([('Content-Type', 'multipart/form-data; application/json')], {}, 415),
    ([JSON, ('content-type', 'text/plain')], {}, 415),
    ([JSON], {'length': 0}, 411),
])
def test_what_is_no_review_or_of_a_web_page_is_refused(fields, options, status):
    with pytest.raises(Refusal) as info:
        check(*fields, **options)
    assert info.value.status == status


@pytest.mark.parametrize('body', [b'[]', b'1', b'null', b'"text"', b'NaN'])
def test_other_json_than_objects_is_refused(body):
    with pytest.raises(Refusal) as info:
        check(JSON, body=body)
    assert info.value.status == 400
