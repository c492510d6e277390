"""
Messages: requests of HTTP/1.1 taken from bytes, and responses made into bytes.

Only what webhooks need is understood, and that strictly: whatever could be read in two ways is
refused. Everything here is a function of its arguments.
"""
import dataclasses
import http
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_HEAD = 64 * 1024
"""The largest head of a request, in bytes."""

MAX_FIELDS = 100
"""The most header fields of a request."""

MAX_BODY = 8 * 1024 * 1024
"""The largest body of a request, in bytes: an API server sends an object twice at most."""

MAX_CHUNK_LINE = 256
"""The longest line between two chunks, in bytes."""

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_FIELD = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[\x21-\x7e\x80-\xff](?:[ \t\x21-\x7e\x80-\xff]*"
    rb"[\x21-\x7e\x80-\xff])?)?)[ \t]*")
_CHUNK_LINE = re.compile(rb'([0-9A-Fa-f]{1,8})(?:[ \t]*;[\x20-\x7e\t]*)?')


class HTTPError(Exception):
    """The request is refused; the connection ends with that."""

    def __init__(self, status: int, reason: str = '') -> None:
        super().__init__(reason or http.HTTPStatus(status).phrase)
        self.status = status


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """All of a request but its body; the path is decoded and without the query."""
    method: str
    path: str
    headers: Mapping[str, str]
    length: int | None
    """The length of the body, in bytes; None if it comes in chunks."""
    lasting: bool
    """Whether the connection can be used again."""
    expecting: bool
    """Whether the client waits for a word before it sends the body."""


class Request(NamedTuple):
    """A complete request; with the certificate of the client, if it is verified."""
    head: Head
    body: bytes
    sslpeer: Mapping[str, Any] | None


class Response(NamedTuple):
    status: int
    body: bytes
    is_json: bool = False


def parse_head(raw: bytes) -> Head:
    """
    Parse the lines before the empty line.

    :raises HTTPError: for everything that is not understood, or allowed.
    """
    first, *lines = raw.split(b'\r\n')
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise HTTPError(400, "Not a request of HTTP/1.")
    if len(lines) > MAX_FIELDS:
        raise HTTPError(431)
    names: dict[str, str] = {}
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise HTTPError(400, "A malformed header.")
        name, value = field.group(1).decode(), field.group(2).decode('latin-1')
        key = name.lower()
        if key in fields:
            if key in ('content-length', 'transfer-encoding', 'host', 'authorization'):
                raise HTTPError(400, "An ambiguous header.")
            value = f'{fields[key]}, {value}'
        fields[key] = value
        names.setdefault(key, name)
    method, target, minor = match.groups()
    tokens = {token.strip().lower() for token in fields.get('connection', '').split(',')}
    path = target.partition(b'?')[0].decode()
    return Head(
        method=method.decode(),
        path=urllib.parse.unquote(path, errors='replace'),
        headers={names[key]: value for key, value in fields.items()},
        length=_parse_length(fields, minor=minor),
        lasting='close' not in tokens and (minor == b'1' or 'keep-alive' in tokens),
        expecting=_is_expecting(fields),
    )


def _parse_length(fields: Mapping[str, str], *, minor: bytes) -> int | None:
    encoding = fields.get('transfer-encoding')
    length = fields.get('content-length')
    if encoding is not None:
        if length is not None or minor != b'1':
            raise HTTPError(400, "An ambiguous length.")
        if encoding.lower() != 'chunked':
            raise HTTPError(501)
        return None
    if length is None:
        return 0
    if not re.fullmatch('[0-9]{1,18}', length, re.ASCII):
        raise HTTPError(400, "A malformed length.")
    if int(length) > MAX_BODY:
        raise HTTPError(413)
    return int(length)


def _is_expecting(fields: Mapping[str, str]) -> bool:
    expectation = fields.get('expect', '').lower()
    if expectation not in ('', '100-continue'):
        raise HTTPError(417)
    return bool(expectation)


class Chunks:
    """A body that comes in chunks, as far as it has come."""

    def __init__(self) -> None:
        super().__init__()
        self.body = bytearray()
        self._left = 0
        """How much of the current chunk is to come."""
        self._ending = False
        self._trailing = False

    def feed(self, buffer: bytearray) -> bool:
        """
        Take as much as there is of the body out of the buffer; return whether it is complete.

        :raises HTTPError: if it is malformed, or too large.
        """
        while True:
            if self._left:
                part = buffer[:self._left]
                del buffer[:len(part)]
                self.body += part
                self._left -= len(part)
                if self._left:
                    return False
                self._ending = True
            if self._ending:
                if len(buffer) < 2:
                    return False
                if not buffer.startswith(b'\r\n'):
                    raise HTTPError(400, "A malformed chunk.")
                del buffer[:2]
                self._ending = False
            end = buffer.find(b'\r\n', 0, MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= MAX_CHUNK_LINE:
                    raise HTTPError(400, "A malformed chunk.")
                return False
            line = bytes(buffer[:end])
            del buffer[:end + 2]
            if self._trailing:
                if line:
                    raise HTTPError(400, "There are trailers.")
                return True
            match = _CHUNK_LINE.fullmatch(line)
            if match is None:
                raise HTTPError(400, "A malformed chunk.")
            size = int(match.group(1), 16)
            if len(self.body) + size > MAX_BODY:
                raise HTTPError(413)
            self._left = size
            self._trailing = not size


def build_response(response: Response, *, lasting: bool) -> bytes:
    """Make the bytes of a response, which tell if the connection can be used again."""
    status, body, is_json = response
    phrase = http.HTTPStatus(status).phrase
    content_type = 'application/json' if is_json else 'text/plain; charset=utf-8'
    allow = 'Allow: POST\r\n' if status == 405 else ''
    return (
        f'HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\n{allow}'
        f'Content-Length: {len(body)}\r\n'
        f"Connection: {'keep-alive' if lasting else 'close'}\r\n\r\n"
    ).encode() + body


CONTINUE = b'HTTP/1.1 100 Continue\r\n\r\n'
