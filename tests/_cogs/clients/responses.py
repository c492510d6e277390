"""
Strange responses: what the client makes of them, and what h11 does, which is written by the book.

A verdict is ``+`` for a response, and ``!`` for an error. After it, the connection is closed.

The table is in ``responses.md``; ``python -m tests._cogs.clients.responses`` makes it anew, reasons
kept.
"""
import asyncio
import pathlib

import h11

from kopf._cogs.clients import httpsessions
from kopf._cogs.clients.transfers import TransferError
from kopf._kits.testing import virtual
from tests._cogs.serving.corpus import (
    BOTH,
    CHUNKS,
    CODINGS,
    FIELDS,
    LENGTHS,
    decode,
    split,
    write_table,
)

TABLE = pathlib.Path(__file__).with_name('responses.md')
PATIENCE = 60
"""How long (seconds of virtual time) the client may be busy with a response that has ended."""

STATUS = {
    'usual': b'HTTP/1.1 200 OK', 'old': b'HTTP/1.0 200 OK', 'older': b'HTTP/0.9 200 OK',
    'newer': b'HTTP/1.2 200 OK', 'next': b'HTTP/2.0 200 OK', 'one digit of version': b'HTTP/2 200',
    'no reason': b'HTTP/1.1 200 ', 'no reason nor space': b'HTTP/1.1 200',
    'long reason': b'HTTP/1.1 200 ' + b'x' * 60_000,
    'too long reason': b'HTTP/1.1 200 ' + b'x' * 70_000,
    'latin reason': b'HTTP/1.1 200 \xe9', 'nul in the reason': b'HTTP/1.1 200 \0',
    'return in the reason': b'HTTP/1.1 200 a\rb', 'line feed in the reason': b'HTTP/1.1 200 a\nb',
    'two digits': b'HTTP/1.1 20 OK',
    'four digits': b'HTTP/1.1 2000 OK',
    'letters': b'HTTP/1.1 abc OK',
    'plus': b'HTTP/1.1 +20 OK', 'zero': b'HTTP/1.1 000 OK', '099': b'HTTP/1.1 099 OK',
    '600': b'HTTP/1.1 600 OK', '999': b'HTTP/1.1 999 OK', 'two spaces': b'HTTP/1.1  200 OK',
    'tab': b'HTTP/1.1\t200 OK', 'space before': b' HTTP/1.1 200 OK', 'small': b'http/1.1 200 OK',
    'ice': b'ICY 200 OK', 'ssh': b'SSH-2.0-OpenSSH_9.0', 'without version': b'200 OK',
    'a request': b'POST / HTTP/1.1', 'html': b'<html>', 'nothing': b'',
}
OK = b'HTTP/1.1 200 OK\r\n'
RESPONSES = {
    **{f'line: {key}': line + b'\r\nContent-Length: 0\r\n\r\n' for key, line in STATUS.items()},
    **{f'field: {key}': OK + field + b'\r\nContent-Length: 2\r\n\r\nok'
       for key, field in FIELDS.items()},
    **{f'length: {key}': OK + b'Content-Length: ' + value + b'\r\n\r\nhello'
       for key, value in LENGTHS.items()},
    **{f'coding: {key}': OK + b'Transfer-Encoding: ' + value + b'\r\n\r\n5\r\nhello\r\n0\r\n\r\n'
       for key, value in CODINGS.items()},
    **{f'chunks: {key}': OK + b'Transfer-Encoding: chunked\r\n\r\n' + value
       for key, value in CHUNKS.items()},
    **{f'message: {key}': OK + value for key, value in BOTH.items()},
    'line: ended by a line feed': b'HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n',
    'line: after an empty one': b'\r\n' + OK + b'Content-Length: 0\r\n\r\n',
    'message: 100 before': b'HTTP/1.1 100 Continue\r\n\r\n' + OK + b'Content-Length: 2\r\n\r\nok',
    'message: 100, 102, 103 before':
        b'HTTP/1.1 100 C\r\n\r\nHTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 E\r\n'
                                     b'Link: a\r\n\r\n' + OK + b'Content-Length: 2\r\n\r\nok',
    'message: 103 with the length of the next': b'HTTP/1.1 103 E\r\nContent-Length: 2\r\n\r\n' + OK
                                                + b'Content-Length: 2\r\n\r\nok',
    'message: 100 in chunks':
        b'HTTP/1.1 100 C\r\nTransfer-Encoding: chunked\r\n\r\n' + OK + b'\r\n',
    'message: 100 for ever': b'HTTP/1.1 100 Continue\r\nA: b\r\n\r\n' * 10_000,
    'message: 100 and the end': b'HTTP/1.1 100 Continue\r\n\r\n',
    'message: 101': b'HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\nbytes',
    'message: 101 without upgrade': b'HTTP/1.1 101 S\r\n\r\n',
    'message: 204': b'HTTP/1.1 204 No\r\n\r\n',
    'message: 204 with no length': b'HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n',
    'message: 204 with a length': b'HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n',
    'message: 204 with a body': b'HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello',
    'message: 204 in chunks': b'HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'message: 205 with a body': b'HTTP/1.1 205 No\r\nContent-Length: 5\r\n\r\nhello',
    'message: 304': b'HTTP/1.1 304 No\r\n\r\n',
    'message: 304 with a length': b'HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n',
    'message: 304 with a body': b'HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\nhello',
    'message: until the end': OK + b'\r\nhello',
    'message: until the end, and empty': OK + b'\r\n',
    'message: until the end, old': b'HTTP/1.0 200 OK\r\n\r\nhello',
    'message: until the end, but kept': OK + b'Connection: keep-alive\r\n\r\nhello',
    'message: until the end, too much': OK + b'\r\n' + b'x' * 2_000_000,
    'message: kept, old':
        b'HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok',
    'message: chunks, old': b'HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'message: an empty line after': OK + b'Content-Length: 2\r\n\r\nok\r\n',
    'message: a letter after': OK + b'Content-Length: 2\r\n\r\nokX',
    'message: another after': (OK + b'Content-Length: 2\r\n\r\nok') * 2,
    'message: another after the last':
        (OK + b'Connection: close\r\nContent-Length: 2\r\n\r\nok') * 2,
    'message: nothing': b'',
    'message: tls': b'\x15\x03\x01\x00\x02\x02\x46',
}
"""They answer a POST."""


def read_responses(size=None):
    """What the client makes of the responses, if they come in pieces of so many bytes."""
    return virtual.run(_read_all(size))


async def _read_all(size):
    return {name: await _read(raw, size) for name, raw in RESPONSES.items()}


async def _read(raw, size):
    async def serve(reader, writer):
        await reader.readuntil(b'\r\n\r\n')
        for part in split(raw, size if len(raw) < 5000 or size is None else size * 1000):
            writer.write(part)
        writer.close()

    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    host, port = server.sockets[0].getsockname()
    sessions = httpsessions.Sessions(f'http://{host}:{port}', pool_size=1)
    try:
        async with asyncio.timeout(PATIENCE):
            response = await sessions.exchange('POST', '/', headers={}, body=b'')
    except TransferError:
        return None
    finally:
        await sessions.close()
        server.close()
        await server.wait_closed()
    headers = [(name.lower(), value) for name, value in response.headers.items()]
    return response.status, headers, response.body


def read_by_the_book(raw):
    """What h11 makes of the response to a POST."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
    connection.send(h11.Request(method='POST', target='/', headers=[
        ('Host', 'a'), ('Content-Length', '0')]))
    connection.send(h11.EndOfMessage())
    try:
        connection.receive_data(raw)
        connection.receive_data(b'')
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                head, body = event, b''
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return head.status_code, decode(head), body
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None


def judge(response):
    return '!' if response is None else '+'


if __name__ == '__main__':
    ours = read_responses()
    write_table(TABLE, 'message', {
        name: map(judge, (ours[name], read_by_the_book(raw))) for name, raw in RESPONSES.items()})
