import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.helpers.parsing import MessageError, ResponseReader, ResponseStreamReader
from tests._cogs.helpers.corpus import LIMITS, OK, RESPONSES, read_all, read_response, read_table
from tests._cogs.serving.corpus import is_lenient, judge

TABLE = read_table()
BODY = b'Content-Length: 5\r\n\r\nhello'
CODING = b'Transfer-Encoding: chunked\r\n\r\n'
CHUNKS = CODING + b'2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\n'


def test_the_table_has_all_responses_and_no_others():
    assert sorted(TABLE) == sorted(RESPONSES)


@pytest.mark.parametrize(('name', 'raw'), RESPONSES.items(), ids=RESPONSES)
def test_readers_judge_as_the_table_says(name, raw):
    results = ours, _, book = read_all(raw)
    verdicts, why = TABLE[name]
    assert list(map(judge, results)) == verdicts
    assert bool(why) == is_lenient(ours, book)
    assert all(mine == theirs for mine, theirs in zip(ours[0], book[0]))


@pytest.mark.parametrize(('name', 'raw'), RESPONSES.items(), ids=RESPONSES)
@pytest.mark.parametrize('size', [1, 7, 4096])
def test_responses_are_the_same_in_whatever_pieces_they_come(name, raw, size):
    if size < 4096 and len(raw) > 5000:
        size *= 1000
    whole, parts = read_response(raw), read_response(raw, size)
    if whole == ([], '!'):
        assert parts[1] == '!'  # what follows a response can come too late to refuse that, too
    elif whole[1] == '+' and parts[1] == '!':
        assert parts[0] == whole[0]  # the rest is not asked for, and closes the connection
    else:
        assert parts == whole


@pytest.mark.parametrize('raw', [OK + BODY, OK + CHUNKS + b'A: b\r\n\r\n'])
def test_no_beginning_of_a_response_is_a_response(raw):
    for end in range(len(raw)):
        assert read_response(raw[:end]) == ([], '!')
    assert judge(read_response(raw)) == '1+'


@pytest.mark.parametrize(('version', 'connection', 'expected'), [
    (b'1.1', b'', True), (b'1.1', b'close', False), (b'1.1', b'Close, TE', False),
    (b'1.0', b'', False), (b'1.0', b'Keep-Alive', True),
])
def test_connections_last_as_long_as_is_wanted(version, connection, expected):
    reader = ResponseReader(LIMITS)
    reader.feed(b'HTTP/%s 200 OK\r\nConnection: %s\r\nContent-Length: 0\r\n\r\n' % (
        version, connection))
    assert reader.keeps_alive is expected


def test_headers_of_responses_are_found_in_any_case():
    response = ResponseReader(LIMITS).feed(OK + b'retry-AFTER: 5\r\nRetry-After: 6\r\n' + BODY)
    assert response.get_headers('Retry-After') == ['5', '6']
    assert response.get_headers('Warning') == []


def test_bodies_are_decompressed_while_they_come():
    body = b''.join(b'%d ' % i for i in range(10_000))
    packed = gzip.compress(body)
    raw = OK + b'Content-Encoding: GZIP\r\nContent-Length: %d\r\n\r\n' % len(packed) + packed
    reader = ResponseReader(LIMITS)
    responses = [reader.feed(raw[start:start + 1000]) for start in range(0, len(raw), 1000)]
    assert responses[:-1] == [None] * (len(responses) - 1)
    assert responses[-1].body == body
    assert (reader._body, reader._gunzip) == ([], None)  # nothing is kept while it is idle


@pytest.mark.parametrize('size', [0, 10])
def test_responses_without_a_body_are_complete_whatever_their_encoding_is(size):
    response = ResponseReader(LIMITS).feed(
        b'HTTP/1.1 304 Not Modified\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n' % size)
    assert (response.status, response.body) == (304, b'')


def test_what_expands_beyond_the_limit_is_refused_at_once():
    packed = gzip.compress(b'x' * (LIMITS.body + 1))
    reader = ResponseReader(LIMITS)
    with pytest.raises(MessageError) as info:
        reader.feed(OK + b'Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s' % (
            len(packed) + 1, packed))
    assert info.value.status == 413


def test_streams_are_not_compressed():
    with pytest.raises(MessageError, match='stream'):
        ResponseStreamReader(LIMITS).feed(
            OK + b'Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n')


pieces = st.lists(st.sampled_from([
    b'POST', b' ', b'/', b'HTTP/1.1', b'200', b'\r\n', b'\r', b'\n', b':', b'Content-Length', b'1',
    b'chunked', b'Transfer-Encoding', b'\x00', b'\xff', b'\t', b'Host', b'a', b'\r\n\r\n', b'0',
]) | st.binary(max_size=5), max_size=20).map(b''.join)


@given(st.sampled_from([b'', OK]), pieces, st.integers(1, 20))
def test_any_bytes_are_taken_or_refused_in_whatever_pieces_they_come(start, rest, size):
    whole, parts = read_response(start + rest), read_response(start + rest, size)
    assert whole == parts or '!' in (whole[1], parts[1])


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 50))
def test_chunks_make_the_body_however_they_come(chunks, size):
    raw = b''.join(b'%x\r\n%s\r\n' % (len(chunk), chunk) for chunk in chunks if chunk)
    [(_, _, body)], _ = read_response(OK + CODING + raw + b'0\r\n\r\n', size)
    assert body == b''.join(chunks)
