"""
Responding: HTTP for the health checks, and nothing beyond; no client can block the other ones.
"""
import asyncio
import http
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from kopf._cogs.aiokits import forks, timeouts
from kopf._cogs.helpers import parsing

LIMITS = parsing.Limits(head=16 * 1024, fields=100, body=16 * 1024)
"""The limits of requests. Only the method and the path of a request are used."""

MAX_CLIENTS = 100
"""The maximal number of simultaneous connections. Beyond that, the oldest one is dropped."""

CLIENT_TIMEOUT = 5.0
"""How long (seconds) a client has to send its request, and as long again to take the response."""


class Request(NamedTuple):
    head: parsing.RequestHead
    peer: str
    """The IP address of the client."""

    def get_header(self, name: str) -> str:
        """Get the values of a header, joined by commas; its name is case-insensitive."""
        return ','.join(value for key, value in self.head.fields if key.lower() == name.lower())


class Response(NamedTuple):
    status: int
    """The HTTP status code."""
    body: bytes
    content_type: str = 'application/json; charset=utf-8'


Respond = Callable[[Request], Awaitable[Response]]


class Responder:
    """Responds to requests by their paths. Each connection is for one request."""

    def __init__(self, pages: Mapping[str, Respond]) -> None:
        super().__init__()
        self._pages = {urllib.parse.unquote(path): page for path, page in pages.items()}
        self._clients: dict[asyncio.Task[object], None] = {}

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, whatever the client sends."""
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = None
        forks.keep_socket(writer.get_extra_info('socket'))
        if len(self._clients) > MAX_CLIENTS:
            next(iter(self._clients)).cancel()
        try:
            peer = writer.get_extra_info('peername')
            response = await self._make_response(reader, peer[0] if peer else '')
            async with timeouts.timeout(CLIENT_TIMEOUT):
                writer.write(response)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # the client is gone, too slow, or dropped
        finally:
            self._clients.pop(task, None)
            writer.transport.abort()

    async def close(self) -> None:
        """Drop all connections."""
        clients = list(self._clients)
        for task in clients:
            task.cancel()
        if clients:
            await asyncio.wait(clients)

    async def _make_response(self, reader: asyncio.StreamReader, peer: str) -> bytes:
        heads: list[parsing.RequestHead] = []
        parser = parsing.RequestReader(LIMITS, heads.append, lambda _: None)
        try:
            async with timeouts.timeout(CLIENT_TIMEOUT):
                while not heads:
                    data = await reader.read(LIMITS.head)
                    if not data:
                        raise EOFError
                    parser.feed(data)
            path = urllib.parse.unquote(urllib.parse.urlsplit(heads[0].target).path)
        except parsing.MessageError as e:
            return format_error(http.HTTPStatus(e.status))
        except ValueError:  # e.g. an invalid IPv6 address
            return format_error(http.HTTPStatus.BAD_REQUEST)
        method = heads[0].method
        page = self._pages.get(path)
        if page is None:
            return format_error(http.HTTPStatus.NOT_FOUND)
        if method not in ('GET', 'HEAD'):
            return format_error(http.HTTPStatus.METHOD_NOT_ALLOWED, 'Allow: GET, HEAD')
        status, body, content_type = await page(Request(heads[0], peer))
        response = format_response(http.HTTPStatus(status), body, content_type)
        return response[:len(response) - len(body)] if method == 'HEAD' else response


def format_error(status: http.HTTPStatus, *headers: str) -> bytes:
    return format_response(
        status, f"{status.value}: {status.phrase}".encode(),
        'text/plain; charset=utf-8', *headers)


def format_response(
        status: http.HTTPStatus, body: bytes, content_type: str, *headers: str,
) -> bytes:
    lines = [
        f'HTTP/1.1 {status.value} {status.phrase}',
        f'Content-Type: {content_type}',
        f'Content-Length: {len(body)}',
        'Cache-Control: no-store',
        'Connection: close',
        *headers,
    ]
    return '\r\n'.join([*lines, '', '']).encode() + body
