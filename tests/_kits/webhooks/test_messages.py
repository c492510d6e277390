import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._kits.webhooks.messages import (
    MAX_BODY,
    Chunks,
    HTTPError,
    Response,
    build_response,
    parse_head,
)

GOOD = b'POST /path/id?timeout=10s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5'


def test_heads_are_parsed():
    head = parse_head(GOOD + b'\r\nX-Some-Thing:  a \t b \r\nEmpty:')
    assert head.method == 'POST'
    assert head.path == '/path/id'
    assert head.length == 5
    assert head.lasting
    assert not head.expecting
    assert head.headers == {
        'Host': 'localhost', 'Content-Length': '5', 'X-Some-Thing': 'a \t b', 'Empty': ''}


def test_paths_are_decoded():
    assert parse_head(b'POST /a%2Fb%20c/%C3%BC HTTP/1.1').path == '/a/b c/ü'


def test_repeated_headers_are_joined_under_the_first_of_their_names():
    head = parse_head(GOOD + b'\r\nVia: a\r\nvia: b')
    assert head.headers['Via'] == 'a, b'
    assert 'via' not in head.headers


@pytest.mark.parametrize(('version', 'connection', 'expected'), [
    (b'1.1', b'', True), (b'1.1', b'close', False), (b'1.1', b'Close, TE', False),
    (b'1.0', b'', False), (b'1.0', b'Keep-Alive', True),
])
def test_connections_last_as_long_as_is_wanted(version, connection, expected):
    head = parse_head(b'POST / HTTP/%s\r\nConnection: %s' % (version, connection))
    assert head.lasting is expected


@pytest.mark.parametrize(('raw', 'status'), [
    (b'', 400),
    (b'POST', 400),
    (b'POST /', 400),
    (b'POST  / HTTP/1.1', 400),
    (b'POST / HTTP/2.0', 400),
    (b'POST / HTTP/1.1 ', 400),
    (b'POST http://localhost/ HTTP/1.1', 400),
    (b'P\xd6ST / HTTP/1.1', 400),
    (b'POST /\x00 HTTP/1.1', 400),
    (b'POST /\xff HTTP/1.1', 400),
    (GOOD + b'\r\n folded: 1', 400),
    (GOOD + b'\r\nno-colon', 400),
    (GOOD + b'\r\n: no-name', 400),
    (GOOD + b'\r\nspace : x', 400),
    (GOOD + b'\r\nnull: \x00', 400),
    (GOOD + b'\r\nbare: a\nb: c', 400),
    (GOOD + b'\r\nbare: a\rb: c', 400),
    (GOOD + b'\r\ncontent-length: 5', 400),
    (GOOD + b'\r\nTransfer-Encoding: chunked', 400),
    (GOOD + b'\r\nHost: other', 400),
    (b'POST / HTTP/1.1\r\nContent-Length: -1', 400),
    (b'POST / HTTP/1.1\r\nContent-Length: +1', 400),
    (b'POST / HTTP/1.1\r\nContent-Length: 1,1', 400),
    (b'POST / HTTP/1.1\r\nContent-Length: 0x1', 400),
    (b'POST / HTTP/1.1\r\nContent-Length: \xb2', 400),
    (b'POST / HTTP/1.1\r\nContent-Length:', 400),
    (b'POST / HTTP/1.1\r\nContent-Length: 99999999999999999999', 400),
    (b'POST / HTTP/1.1\r\nContent-Length: %d' % (MAX_BODY + 1), 413),
    (b'POST / HTTP/1.0\r\nTransfer-Encoding: chunked', 400),
    (b'POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked', 501),
    (b'POST / HTTP/1.1\r\nTransfer-Encoding: identity', 501),
    (b'POST / HTTP/1.1\r\nExpect: miracles', 417),
    (b'POST / HTTP/1.1' + b'\r\nx: y' * 101, 431),
])
def test_whatever_is_not_understood_is_refused(raw, status):
    with pytest.raises(HTTPError) as info:
        parse_head(raw)
    assert info.value.status == status


@hypothesis.given(raw=st.binary(max_size=200) | st.lists(st.sampled_from([
    b'POST', b' ', b'/', b'HTTP/1.1', b'\r\n', b'\r', b'\n', b':', b'Content-Length', b'chunked',
    b'Transfer-Encoding', b'1', b'\x00', b'\xff', b'\t', b'Host', b'Expect', b'%', b'?',
]), max_size=30).map(b''.join))
def test_any_bytes_are_parsed_or_refused(raw):
    try:
        head = parse_head(raw)
    except HTTPError:
        return
    assert head.path.startswith('/')
    assert head.length is None or 0 <= head.length <= MAX_BODY


@hypothesis.given(parts=st.lists(st.binary(min_size=1, max_size=300)), data=st.data())
def test_chunks_make_the_body_however_they_come(parts, data):
    raw = b''.join(b'%x;ext=1\r\n%s\r\n' % (len(part), part) for part in parts) + b'0\r\n\r\n'
    rest = b'POST /next'
    raw += rest
    chunks, buffer = Chunks(), bytearray()
    complete = False
    while raw:
        step = data.draw(st.integers(1, 50))
        buffer += raw[:step]
        raw = raw[step:]
        complete = complete or chunks.feed(buffer)
    assert complete
    assert bytes(chunks.body) == b''.join(parts)
    assert bytes(buffer) == rest


@pytest.mark.parametrize(('raw', 'status'), [
    (b'x\r\n', 400),
    (b'-1\r\n', 400),
    (b'\r\n', 400),
    (b'0x1\r\n', 400),
    (b'1\r\nab\r\n', 400),
    (b'1\r\na\n\n', 400),
    (b'1' * 300, 400),
    (b'1;' + b'x' * 300, 400),
    (b'0\r\nTrailer: x\r\n', 400),
    (b'ffffffff\r\n', 413),
    (b'fffffffff\r\n', 400),
    (b'%x\r\n' % (MAX_BODY + 1), 413),
])
def test_malformed_chunks_are_refused(raw, status):
    with pytest.raises(HTTPError) as info:
        Chunks().feed(bytearray(raw))
    assert info.value.status == status


def test_responses_tell_all_that_clients_need():
    raw = build_response(Response(200, b'{}', is_json=True), lasting=True)
    assert raw == (b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n'
                   b'Connection: keep-alive\r\n\r\n{}')
    raw = build_response(Response(405, b''), lasting=False)
    assert b'\r\nAllow: POST\r\n' in raw
    assert b'\r\nConnection: close\r\n' in raw
