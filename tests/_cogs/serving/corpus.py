"""
Strange requests: those that two readers could take for different ones.

What two readers make of each: our server, and h11, which is written in Python by the book. A
verdict is the number of complete requests, and how it ends: ``+`` is well, ``?`` is waiting for
more, ``!`` is refused.

The table is in ``corpus.md``; ``python -m tests._cogs.serving.corpus`` makes it anew, reasons kept.
"""
import asyncio
import itertools
import pathlib
import re
import urllib.parse

import h11

from kopf._cogs.serving import exchanges, inbound

TABLE = pathlib.Path(__file__).with_name('corpus.md')
POLICY = exchanges.Policy(
    head=64 * 1024, fields=100, body=1024 * 1024, memory=1024 * 1024, connections=10,
    receiving=10.0, writing=10.0, idle=10.0, leaving=1.0)

LENGTHS = {
    'usual': b'5', 'leading zero': b'05', 'plus': b'+5', 'minus': b'-5', 'minus zero': b'-0',
    'underscore': b'0_5', 'hexadecimal': b'0x5', 'float': b'5.0', 'exponent': b'5e0',
    'empty': b'', 'spaces around': b'  5  ', 'tab after': b'5\t', 'space within': b'5 5',
    'list of the same': b'5, 5', 'list of others': b'5, 6', 'list without space': b'5,5',
    'trailing comma': b'5,', 'quoted': b'"5"', 'semicolon': b'5;', 'superscript': b'\xb2',
    'arabic digit': '٥'.encode(), 'vertical tab': b'\x0b5', 'nul after': b'5\0',
    '2**64': b'18446744073709551616', '2**64+5': b'18446744073709551621', 'huge': b'9' * 1000,
}
CODINGS = {
    'usual': b'chunked', 'capitals': b'CHUNKED', 'spaces around': b'  chunked  ',
    'tab before': b'\tchunked', 'twice': b'chunked, chunked', 'gzip before': b'gzip, chunked',
    'gzip after': b'chunked, gzip', 'identity': b'identity', 'unknown': b'xchunked',
    'parameter': b'chunked;q=1', 'empty': b'', 'quoted': b'"chunked"', 'comma before': b', chunked',
    'vertical tab': b'\x0bchunked', 'nul after': b'chunked\0', 'non-ascii': b'chun\xe9ked',
}
CHUNKS = {
    'usual': b'5\r\nhello\r\n0\r\n\r\n', 'two': b'2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n',
    'none': b'0\r\n\r\n', 'zeros before': b'0005\r\nhello\r\n0\r\n\r\n',
    'many zeros': b'5\r\nhello\r\n' + b'0' * 50 + b'\r\n\r\n',
    'plus': b'+5\r\nhello\r\n0\r\n\r\n', 'minus': b'-5\r\nhello\r\n0\r\n\r\n',
    'minus zero': b'-0\r\n\r\n', 'underscore': b'0_5\r\nhello\r\n0\r\n\r\n',
    'prefix': b'0x5\r\nhello\r\n0\r\n\r\n', 'no digit': b'g\r\nhello\r\n0\r\n\r\n',
    'no size': b'\r\nhello\r\n0\r\n\r\n', 'only extension': b';a=b\r\nhello\r\n0\r\n\r\n',
    '2**64': b'10000000000000000\r\nhello\r\n0\r\n\r\n',
    '2**64+5': b'10000000000000005\r\nhello\r\n0\r\n\r\n',
    'too large': b'7fffffff\r\nhello', 'extension': b'5;a=b\r\nhello\r\n0\r\n\r\n',
    'extension without value': b'5;a\r\nhello\r\n0\r\n\r\n',
    'quoted extension': b'5;a="b;c"\r\nhello\r\n0\r\n\r\n',
    'quoted line break': b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n',
    'empty extension': b'5;\r\nhello\r\n0\r\n\r\n',
    'extension after a space': b'5 ;a\r\nhello\r\n0\r\n\r\n',
    'extension with a line feed': b'5;a\nb\r\nhello\r\n0\r\n\r\n',
    'extension with a return': b'5;a\rb\r\nhello\r\n0\r\n\r\n',
    'extension with a nul': b'5;a\0\r\nhello\r\n0\r\n\r\n',
    'space before': b' 5\r\nhello\r\n0\r\n\r\n', 'space after': b'5 \r\nhello\r\n0\r\n\r\n',
    'tab after': b'5\t\r\nhello\r\n0\r\n\r\n', 'comma': b'5,5\r\nhello\r\n0\r\n\r\n',
    'line feeds only': b'5\nhello\n0\n\n', 'line feed after the size': b'5\nhello\r\n0\r\n\r\n',
    'line feed after the data': b'5\r\nhello\n0\r\n\r\n',
    'line feeds at the end': b'5\r\nhello\r\n0\n\n', 'return only': b'5\rhello\r0\r\r',
    'two characters after the data': b'5\r\nhelloXX0\r\n\r\n',
    'nothing after the data': b'5\r\nhello0\r\n\r\n', 'too little data': b'6\r\nhello\r\n0\r\n\r\n',
    'too much data': b'4\r\nhello\r\n0\r\n\r\n', 'no last chunk': b'5\r\nhello\r\n',
    'trailer': b'5\r\nhello\r\n0\r\nA: b\r\n\r\n',
    'trailer with the length': b'5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n',
    'trailer without a name': b'5\r\nhello\r\n0\r\n: b\r\n\r\n',
    'trailer without a colon': b'5\r\nhello\r\n0\r\nA\r\n\r\n',
    'trailer that never ends': b'5\r\nhello\r\n0\r\nA: ' + b'x' * 80_000,
    'extension that never ends': b'5;' + b'x' * 80_000,
}
FIELDS = {
    'usual': b'A: b', 'no space': b'A:b', 'empty value': b'A:', 'only spaces': b'A:   ',
    'tab': b'A:\tb\t', 'no colon': b'A', 'no name': b': b', 'space before the colon': b'A : b',
    'space before the name': b' A: b', 'folded': b'A: b\r\n c', 'folded by a tab': b'A: b\r\n\tc',
    'folded to nothing': b'A: b\r\n ', 'folded at once': b'A:\r\n b', 'line feed': b'A: b\nC: d',
    'return': b'A: b\rC: d', 'return at the end': b'A: b\r', 'nul in the value': b'A: \0',
    'nul in the name': b'A\0: b', 'bell': b'A: \x07', 'escape': b'A: \x1b[0m', 'del': b'A: \x7f',
    'latin': b'A: \xe9', 'utf-8': 'A: é'.encode(), 'latin name': b'\xe9: b',
    'brackets in the name': b'[A]: b', 'quotes in the name': b'"A": b', 'at in the name': b'A@: b',
    'punctuation in the name': b"A!#$%&'*+-.^_`|~1: b", 'space in the name': b'A B: c',
    'spaces and a nul': b'A:' + b' ' * 4000 + b'\0', 'long name': b'A' * 60_000 + b': b',
    'too long name': b'A' * 70_000 + b': b', 'long value': b'A: ' + b'b' * 60_000,
    'too long value': b'A: ' + b'b' * 70_000, 'many': b'\r\n'.join([b'A: b'] * 90),
    'too many': b'\r\n'.join([b'A: b'] * 200), 'too large together': b'\r\n'.join(
        [b'A: ' + b'b' * 1000] * 80),
    'repeated': b'A: b\r\na: c', 'close': b'Connection: close', 'hop': b'Connection: A\r\nA: b',
    'upgrade': b'Connection: upgrade\r\nUpgrade: h2c', 'upgrade alone': b'Upgrade: h2c',
}
BOTH = {
    'twice the same length': b'Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello',
    'two lengths': b'Content-Length: 5\r\nContent-Length: 4\r\n\r\nhello',
    'two lengths, the second is none': b'Content-Length: 5\r\nContent-Length: x\r\n\r\nhello',
    'length and chunks': b'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'chunks and length': b'Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n',
    'chunks and no length': b'Transfer-Encoding: chunked\r\nContent-Length:\r\n\r\n0\r\n\r\n',
    'two codings': b'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n',
    'chunks twice': b'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'space before the colon of the length': b'Content-Length : 5\r\n\r\nhello',
    'space before the colon of the coding': b'Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n',
    'nul in the name of the coding': b'Transfer-Encoding\0: chunked\r\n\r\n0\r\n\r\n',
    'folded coding': b'Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n',
    'folded length': b'Content-Length: 5\r\n 5\r\n\r\nhello',
    'underscore in the name of the length': b'Content_Length: 0\r\n\r\n',
    'no line break at the end': b'Content-Length: 0\r\n',
    'line feed at the end': b'Content-Length: 0\r\n\n',
    'line feeds at the end': b'Content-Length: 0\n\n',
    'return at the end': b'Content-Length: 0\r\n\r',
    'returns at the end': b'Content-Length: 0\r\r',
    'return and a letter at the end': b'Content-Length: 0\r\n\rX',
    'half a body': b'Content-Length: 5\r\n\r\nhe',
    'too large a body': b'Content-Length: 9999999\r\n\r\nhello',
}
START = b'POST / HTTP/1.1\r\nHost: a\r\n'
LINES = {
    'usual': b'POST / HTTP/1.1', 'old': b'POST / HTTP/1.0', 'older': b'POST / HTTP/0.9',
    'without version': b'POST /', 'newer': b'POST / HTTP/1.2', 'next': b'POST / HTTP/2.0',
    'two digits': b'POST / HTTP/1.10', 'one digit': b'POST / HTTP/1', 'small': b'POST / http/1.1',
    'another protocol': b'POST / RTSP/1.0', 'ice': b'SOURCE / ICE/1.0', 'nothing': b'',
    'two spaces': b'POST  / HTTP/1.1', 'two spaces later': b'POST /  HTTP/1.1',
    'space after': b'POST / HTTP/1.1 ', 'space before': b' POST / HTTP/1.1',
    'tabs': b'POST\t/\tHTTP/1.1',
    'form feed': b'POST /\x0cHTTP/1.1',
    'small method': b'post / HTTP/1.1',
    'unknown method': b'ABRAKADABRA / HTTP/1.1', 'punctuation': b'P!ST / HTTP/1.1',
    'method with a nul': b'PO\0ST / HTTP/1.1', 'get': b'GET / HTTP/1.1', 'head': b'HEAD / HTTP/1.1',
    'options': b'OPTIONS * HTTP/1.1',
    'star': b'POST * HTTP/1.1',
    'connect': b'CONNECT a:1 HTTP/1.1',
    'preface of http/2': b'PRI * HTTP/2.0', 'absolute': b'POST http://b/ HTTP/1.1',
    'without slash': b'POST a HTTP/1.1', 'two slashes': b'POST //a HTTP/1.1',
    'query': b'POST /?a=b&c HTTP/1.1', 'fragment': b'POST /#a HTTP/1.1',
    'space in the path': b'POST /a b HTTP/1.1', 'nul in the path': b'POST /\0 HTTP/1.1',
    'tab in the path': b'POST /\t HTTP/1.1', 'del in the path': b'POST /\x7f HTTP/1.1',
    'latin in the path': b'POST /\xe9 HTTP/1.1', 'encoded nul': b'POST /%00 HTTP/1.1',
    'half encoded': b'POST /% HTTP/1.1', 'brackets': b'POST /[]{}<>"^`|\\ HTTP/1.1',
    'long': b'POST /' + b'a' * 60_000 + b' HTTP/1.1',
    'too long': b'POST /' + b'a' * 70_000 + b' HTTP/1.1',
    'long method': b'P' * 70_000 + b' / HTTP/1.1',
}
REQUESTS = {
    **{f'line: {key}': line + b'\r\nHost: a\r\nContent-Length: 0\r\n\r\n'
       for key, line in LINES.items()},
    **{f'field: {key}': START + field + b'\r\nContent-Length: 2\r\n\r\nok'
       for key, field in FIELDS.items()},
    **{f'length: {key}': START + b'Content-Length: ' + value + b'\r\n\r\nhello'
       for key, value in LENGTHS.items()},
    **{f'coding: {key}': START + b'Transfer-Encoding: ' + value + b'\r\n\r\n5\r\nhello\r\n0\r\n\r\n'
       for key, value in CODINGS.items()},
    **{f'chunks: {key}': START + b'Transfer-Encoding: chunked\r\n\r\n' + value
       for key, value in CHUNKS.items()},
    **{f'message: {key}': START + value for key, value in BOTH.items()},
    'line: first field folded': b'POST / HTTP/1.1\r\n Host: a\r\n\r\n',
    'line: ended by a line feed': b'POST / HTTP/1.1\nHost: a\r\n\r\n',
    'line: ended by a return': b'POST / HTTP/1.1\rHost: a\r\n\r\n',
    'line: after an empty one': b'\r\n' + START + b'\r\n',
    'line: after many empty ones': b'\r\n' * 100 + START + b'\r\n',
    'line: after a line feed': b'\n' + START + b'\r\n',
    'line: after a nul': b'\0' + START + b'\r\n',
    'message: no host': b'POST / HTTP/1.1\r\n\r\n',
    'message: no host, old': b'POST / HTTP/1.0\r\n\r\n',
    'message: two hosts': START + b'Host: b\r\n\r\n',
    'message: empty host': b'POST / HTTP/1.1\r\nHost:\r\n\r\n',
    'message: strange host': b'POST / HTTP/1.1\r\nHost: a b/\\\r\n\r\n',
    'message: no length': START + b'\r\n',
    'message: no length, but a body': START + b'\r\nhello',
    'message: chunks, old': b'POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'message: two in one': (START + b'Content-Length: 2\r\n\r\nok') * 2,
    'message: two with an empty line between': (START + b'Content-Length: 2\r\n\r\nok\r\n') * 2,
    'message: another after the last': (START + b'Connection: close\r\n\r\n') * 2,
    'message: one in the other': START + b'Content-Length: 0\r\n\r\n' + START,
    'message: tls': b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + b'\0' * 200,
    'message: zeros': b'\0' * 1000,
    'message: nothing': b'',
}


def split(raw, size):
    return [raw] if size is None else [raw[i:i + size] for i in range(0, len(raw), size)]


class Wire(asyncio.Transport):
    """A transport in memory, of which the other side reads all that is written."""

    def __init__(self):
        super().__init__()
        self.written = b''
        self.is_open = True

    def write(self, data):
        self.written += data

    def writelines(self, parts):
        self.write(b''.join(parts))

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def can_write_eof(self):
        return False

    def is_closing(self):
        return not self.is_open

    def close(self):
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class Keeper:
    """A service that takes all requests."""

    def __init__(self):
        self.requests = []
        self.body = b''

    async def __call__(self, request):
        body = await request.read()
        self.requests.append((request.method, request.path, clean(request.fields), body))
        return exchanges.Response(200, self.body)


def connect(policy=POLICY, respond=None, wire=None):
    """A connection in memory, what it writes, and what it serves."""
    wire, keeper = wire or Wire(), Keeper()
    connection = inbound.Connection(
        None, inbound.Listener([], respond or keeper, policy=policy, title='requests'))
    wire.connection = connection
    connection.connection_made(wire)
    return connection, wire, keeper


async def feed(connection, data):
    """Let the data arrive, and wait until the connection waits for more."""
    connection.data_received(data)
    for _ in range(10):  # iterations of the event loop
        await asyncio.sleep(0)


def get_statuses(wire):
    """The statuses of all responses that are written."""
    return [int(status) for status in re.findall(rb'HTTP/\S+ (\d+)', wire.written)]


async def serve(parts):
    """Serve what comes in these parts; return the requests, and how it ends."""
    connection, wire, keeper = connect()
    for part in parts:
        await feed(connection, part)
    is_refused = any(status >= 400 for status in get_statuses(wire))
    end = '!' if is_refused else '?' if connection._is_begun else '+'
    wire.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return keeper.requests, end


def read_request(raw, size=None):
    """What we make of it: the requests, and how it ends."""
    return asyncio.run(serve(split(raw, size)))


def clean(fields):
    return [(name.lower(), value.lower() if name.lower() == 'transfer-encoding' else value)
            for name, value in fields]


def read_request_by_h11(raw):
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=POLICY.head)
    messages = []
    try:
        connection.receive_data(raw)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head, body = event, b''
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                path = urllib.parse.unquote(head.target.partition(b'?')[0].decode('latin-1'))
                messages.append((head.method.decode(), path, decode(head), body))
                connection.send(h11.Response(status_code=400, headers=[('Content-Length', '0')]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return messages, '+' if not connection.trailing_data[0] else '!'
                connection.start_next_cycle()
            else:
                waiting = connection.their_state is h11.SEND_BODY or connection.trailing_data[0]
                return messages, '?' if waiting else '+'
    except h11.RemoteProtocolError:
        return messages, '!'


def decode(head):
    return [(name.decode().lower(), value.decode('latin-1')) for name, value in head.headers]


def read_all(raw):
    """What ours and h11 make of it."""
    return read_request(raw), read_request_by_h11(raw)


def is_lenient(ours, book):
    """Whether we take what h11 does not take."""
    return (len(ours[0]), '!' not in ours[1]) > (len(book[0]), '!' not in book[1])


def judge(result):
    messages, end = result
    return f'{len(messages)}{end}'


def read_table(path=TABLE):
    """The verdicts and the reasons by messages."""
    rows = re.findall(r'^\| (.+?) \| (..?) \| (..?) \| ?(.*?) ?\|$',
                      path.read_text() if path.exists() else '', re.MULTILINE)
    return {name: (verdicts, why) for name, *verdicts, why in rows}


def write_table(path, what, found):
    """Write the verdicts, ours and that of h11, by messages; the introduction and reasons stay."""
    known = read_table(path)
    lines = [f'| {what} | ours | h11 | why |', '| --- ' * 4 + '|']
    for name, verdicts in found.items():
        why = known.get(name, ((), ''))[1]
        lines.append(f"| {name} | {' | '.join(verdicts)} | {why} |")
    intro = itertools.takewhile(lambda line: not line.startswith('|'),
                                path.read_text().splitlines() if path.exists() else [])
    path.write_text('\n'.join([*intro, *lines]) + '\n')


if __name__ == '__main__':
    write_table(TABLE, 'request', {
        name: map(judge, read_all(raw)) for name, raw in REQUESTS.items()})
