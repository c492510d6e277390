"""
Strange requests are refused, or are harmless.
"""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests._cogs.serving.corpus import (
    REQUESTS,
    START,
    is_lenient,
    judge,
    read_all,
    read_request,
    read_table,
)

TABLE = read_table()
BODY = b'Content-Length: 5\r\n\r\nhello'
CODING = b'Transfer-Encoding: chunked\r\n\r\n'
CHUNKS = CODING + b'2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n'


def test_the_table_has_all_requests_and_no_others():
    assert sorted(TABLE) == sorted(REQUESTS)


@pytest.mark.parametrize(('name', 'raw'), REQUESTS.items(), ids=REQUESTS)
def test_requests_are_judged_as_the_table_says(name, raw):
    results = ours, book = read_all(raw)
    verdicts, why = TABLE[name]
    assert list(map(judge, results)) == verdicts
    assert bool(why) == is_lenient(ours, book)
    assert all(mine == theirs for mine, theirs in zip(ours[0], book[0]))


@pytest.mark.parametrize(('name', 'raw'), REQUESTS.items(), ids=REQUESTS)
@pytest.mark.parametrize('size', [1, 7, 4096])
def test_no_request_becomes_another_one_in_whatever_pieces_it_comes(name, raw, size):
    if size < 4096 and len(raw) > 5000:
        size *= 1000
    whole, parts = read_request(raw), read_request(raw, size)
    if '!' in whole[1]:  # what is wrong can come too late to refuse what precedes it
        assert parts[0][:len(whole[0])] == whole[0]
        assert parts[1] in '!?'
    else:
        assert parts[0] == whole[0]


@pytest.mark.parametrize('raw', [START + BODY, START + CHUNKS])
def test_no_beginning_of_a_request_is_a_request(raw):
    for end in range(1, len(raw)):
        assert read_request(raw[:end]) == ([], '?')
    assert judge(read_request(raw)) == '1+'


pieces = st.lists(st.sampled_from([
    b'POST', b' ', b'/', b'HTTP/1.1', b'200', b'\r\n', b'\r', b'\n', b':', b'Content-Length', b'1',
    b'chunked', b'Transfer-Encoding', b'\x00', b'\xff', b'\t', b'Host', b'a', b'\r\n\r\n', b'0',
    b'http://', b'[', b'Upgrade', b'websocket', b'Connection',
]) | st.binary(max_size=5), max_size=20).map(b''.join)


@given(st.sampled_from([b'', b'POST ', START]), pieces, st.integers(1, 20))
def test_any_bytes_are_taken_or_refused_in_whatever_pieces_they_come(start, rest, size):
    whole, parts = read_request(start + rest), read_request(start + rest, size)
    assert parts[0][:len(whole[0])] == whole[0]


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 50))
def test_chunks_make_the_body_however_they_come(chunks, size):
    raw = b''.join(b'%x\r\n%s\r\n' % (len(chunk), chunk) for chunk in chunks if chunk)
    [(_, _, _, body)], _ = read_request(START + CODING + raw + b'0\r\n\r\n', size)
    assert body == b''.join(chunks)
