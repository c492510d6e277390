"""
Exchanges: what servers receive and send, and their policies. Nothing here does I/O.
"""
import asyncio
import http
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

Fields = Sequence[tuple[str, str]]
"""The headers in their order, with their original names."""


TEXT = 'text/plain; charset=utf-8'


class Policy(NamedTuple):
    """What clients may do. The sizes are in bytes, the times in seconds."""

    head: int
    """The size of the head of a request, without the body."""
    fields: int
    """The number of header fields of a request."""
    body: int
    memory: int
    """How much of large requests is held at the same time."""
    connections: int
    """
    The number of connections, including those in the TLS handshake.

    If there are more, a random connection that has sent no proper request is closed, so that nobody
    can keep the others out by connecting first, or often. If all connections have sent one, the one
    that is idle for the longest time is closed. If all of them have requests in progress, the new
    connection is refused.
    """
    receiving: float
    """
    How long a request can take from its first to its last byte.

    A new connection has the same time until its first request.
    """
    writing: float
    """How long the client can take to receive a response."""
    idle: float | None
    """How long a connection is kept between requests; None if it is for one request only."""
    leaving: float
    """
    How long to wait for the requests in progress when the server ends.

    If 0, they are not spared either when there are too many connections.
    """
    level: int = logging.WARNING
    """The level of the log at which refusals are logged."""


class Refusal(Exception):
    """A request is refused with this HTTP status. The reason is for the client and for the log."""

    def __init__(
            self, status: int, reason: str = '', *, headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(reason or http.HTTPStatus(status).phrase)
        self.status = status
        self.headers = headers or {}


class Request(NamedTuple):
    method: str
    path: str
    """The decoded path, without the query."""
    fields: Fields = ()
    length: int | None = 0
    """The length of the body in bytes; None if the body comes in chunks."""
    peer: str = ''
    """The IP address of the client."""
    sslpeer: Mapping[str, Any] | None = None
    """The verified certificate of the client, if there is one."""
    read: Callable[[], Awaitable[bytes]] = lambda: asyncio.sleep(0, b'')
    """Read the body, once; raises `Refusal` if it does not arrive in time, or is too large."""

    def get_header(self, name: str) -> str:
        """Get the values of a header, joined by commas; its name is case-insensitive."""
        return ','.join(value for key, value in self.fields if key.lower() == name.lower())

    def has_header(self, name: str) -> bool:
        return any(key.lower() == name.lower() for key, _ in self.fields)


class Response(NamedTuple):
    status: int
    body: bytes
    content_type: str = 'application/json; charset=utf-8'
    headers: Mapping[str, str] = {}


Respond = Callable[[Request], Awaitable[Response]]
"""
Responds to a request. Before it reads the body, it can refuse the request with `Refusal`; the
connection is closed then. Later refusals concern this request only. It is cancelled if the client
does not wait for the response.
"""


def check_head(version: tuple[int, int], target: str, fields: Fields) -> tuple[str, int | None]:
    """
    Return the path and the length of the body, both as in `Request`.

    Refuse what the parser permits, and others could understand differently, which enables the
    smuggling of requests (RFC 9112, section 11.2); and what is not for servers like this.

    :raises Refusal: if the request is refused.
    """
    headers: dict[str, str] = {name.lower(): value for name, value in fields}
    coding = headers.get('transfer-encoding')
    if version not in ((1, 0), (1, 1)):
        raise Refusal(400, "Not HTTP/1.1.")
    if 'upgrade' in headers and 'upgrade' in headers.get('connection', '').lower():
        raise Refusal(400, "Other protocols are not spoken.")
    if coding is not None and version != (1, 1):
        raise Refusal(400, "The length is ambiguous.")
    if coding is not None and coding.lower() != 'chunked':
        raise Refusal(501)
    if headers.get('expect', '').lower() not in ('', '100-continue'):
        raise Refusal(417)
    if not target.startswith('/') or not target.isascii() or not target.isprintable():
        raise Refusal(400, "Not a path.")
    path = urllib.parse.unquote(target.partition('?')[0], errors='replace')
    return path, int(headers.get('content-length', 0)) if coding is None else None
