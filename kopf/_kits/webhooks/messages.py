"""
Messages: the meaning of HTTP requests for webhooks, and the encoding of responses.

Ambiguous requests are refused, and requests that are not for webhooks too. All functions are pure.
"""
import http
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

from kopf._cogs.helpers import parsing

LIMITS = parsing.Limits(head=64 * 1024, fields=100, body=8 * 1024 * 1024)
"""The largest request. An API server sends an object at most twice: the old and the new state."""

CONTENT_TYPES = ('application/json', 'application/x-www-form-urlencoded')
"""The accepted content types: of API servers, and of ``curl -d @review.json``."""


class Head(NamedTuple):
    """A review without its body. The path is decoded, and has no query."""
    path: str
    headers: Mapping[str, str]
    length: int | None
    """The length of the body in bytes; None for chunked bodies."""
    lasting: bool
    """Whether the connection can be used again."""
    expecting: bool
    """Whether the client waits for ``100 Continue`` before it sends the body."""


class Request(NamedTuple):
    """A complete request, with the verified certificate of the client, if there is one."""
    head: Head
    body: bytes
    sslpeer: Mapping[str, Any] | None


class Response(NamedTuple):
    status: int
    body: bytes
    is_json: bool = False


def read_head(raw: parsing.RequestHead) -> Head:
    """
    Interpret the head of a request. Refuse requests that are not reviews, or are of web pages.

    Browsers send the requests of any page to any address, including local ones. They do so without
    a preflight request if the content type is that of a text or a form. But such requests always
    have the header ``Origin``, so these are refused.

    :raises parsing.MessageError: if the request is refused.
    """
    names: dict[str, str] = {}
    fields: dict[str, str] = {}
    for name, value in raw.fields:
        key = name.lower()
        if key in fields:
            if key == 'authorization':
                raise parsing.MessageError(400, "An ambiguous header.")
            value = f'{fields[key]}, {value}'
        else:
            names[key] = name
        fields[key] = value
    if raw.method != 'POST':
        raise parsing.MessageError(405)
    if 'origin' in fields:
        raise parsing.MessageError(403, "Web pages cannot ask for reviews.")
    if fields.get('content-type', '').partition(';')[0].strip().lower() not in CONTENT_TYPES:
        raise parsing.MessageError(415, "The Content-Type of reviews is application/json.")
    if raw.length == 0:
        raise parsing.MessageError(411)
    expectation = fields.get('expect', '').lower()
    if expectation not in ('', '100-continue'):
        raise parsing.MessageError(417)
    return Head(
        path=read_path(raw.target),
        headers={names[key]: value for key, value in fields.items()},
        length=raw.length,
        lasting=raw.lasting,
        expecting=bool(expectation),
    )


def read_path(target: str) -> str:
    """Decode the path of a request, without the query."""
    return urllib.parse.unquote(target.partition('?')[0], errors='replace')


def build_response(response: Response, *, lasting: bool) -> bytes:
    """Encode a response. If not ``lasting``, it announces the end of the connection."""
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
