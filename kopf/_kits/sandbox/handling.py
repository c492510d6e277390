"""
HTTP: requests in, responses and streams out. All the rest is in the other modules.
"""
import asyncio
import contextlib
import contextvars
import gzip
import logging
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import NoReturn

from aiohttp import web

from kopf._cogs.helpers import hostnames
from kopf._kits.sandbox import encoding, nonresources, requests, statuses, watches
from kopf._kits.sandbox.access import STORED, Access
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.dispatching import Dispatcher, check_route
from kopf._kits.sandbox.faults import Action, Faults
from kopf._kits.sandbox.openapi import Documents
from kopf._kits.sandbox.requests import Address, Request, Target, User
from kopf._kits.sandbox.statuses import APIError, Expired, Forbidden, NoPage, NotFound
from kopf._kits.sandbox.watches import Watch, Watches

logger = logging.getLogger(__name__)
JSON = 'application/json'
PUBLIC = ('/healthz', '/livez', '/readyz')
EXPIRED = watches.error_line(Expired("too old resource version"))
HEADERS = {'Cache-Control': 'no-cache, private'}
COMPRESSED_SIZE = 128 * 1024
"""The size (bytes) from which on responses are compressed, as API servers do."""
COMPRESSION_LEVEL = 1

SENDER_HEADER = 'X-Kopf-Sender'

sender_var: contextvars.ContextVar[str] = contextvars.ContextVar('sender_var', default='')
"""What the client says of who sends the request, by the header."""

port_var: contextvars.ContextVar[int] = contextvars.ContextVar('port_var', default=0)
"""The port of the client, which tells its connections apart."""


class Handler:
    """Answers all requests of the server. A failure of one request has no effect on others."""

    def __init__(
            self, cluster: Cluster, dispatcher: Dispatcher, watches: Watches, access: Access,
            faults: Faults, *, host: str | None = None,
    ) -> None:
        """With the ``host``, only requests to that or to addresses of this machine are served."""
        self._host = host
        self._cluster = cluster
        self._access = access
        self._documents = Documents(cluster.kinds)
        self._dispatcher = dispatcher
        self._watches = watches
        self._faults = faults

    async def __call__(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            self._check_host(http)
            return await self._handle(http)
        except NoPage:
            return _not_found()
        except APIError as e:
            again = {} if e.retry_after is None else {'Retry-After': str(e.retry_after)}
            return _warned(
                _answer(encoding.encode(e.status()), e.code, headers=again), e.warnings)
        except ConnectionError:
            return web.Response()  # to nobody: the connection is closed
        except (asyncio.CancelledError, web.HTTPException):
            raise
        except Exception as e:
            logger.exception("A request to the sandbox has failed.")
            error = statuses.InternalError(f"{type(e).__name__} in the sandbox; see its log")
            return _answer(encoding.encode(error.status()), error.code)

    def _check_host(self, http: web.BaseRequest) -> None:
        if self._host is None or 'Host' not in http.headers or (
                hostnames.is_own(http.headers['Host'], self._host)):
            return
        raise statuses.Forbidden(
            "The sandbox is served only under the address of its host, or as localhost.")

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        path, _, query_text = http.raw_path.partition('?')
        query = requests.parse_query(query_text)
        user = self._access.authenticate(http)
        if not user.is_master:
            with contextlib.suppress(Forbidden):  # then, only the roles of the sandbox count
                await self._cluster.origin.fetch(*STORED)
        sender_var.set(http.headers.get(SENDER_HEADER, ''))
        port_var.set((http.get_extra_info('peername') or (None, 0))[1])
        address = requests.parse_address(path)
        if address is None or not address.plural:
            return await self._elsewhere(http, path, query, address, user)
        target = requests.make_target(http.method, address, query)
        verb = target.verb
        self._access.authorize(user, target)
        kind = self._cluster.kinds.get(address.group, address.version, address.plural)
        if kind is None:
            self._cluster.origin.miss(address.group, address.version, address.plural)
        if kind is None or (address.namespace and not kind.namespaced):
            if any(other.group == address.group and not other.custom
                   for other in self._cluster.kinds):
                raise NotFound
            return _not_found()
        request = Request(
            verb=verb, kind=kind, namespace=address.namespace, name=address.name,
            subresource=address.subresource, query=query, user=user,
            agent=http.headers.get('User-Agent', ''),
            content_type=http.headers.get('Content-Type', ''),
            accepted=requests.negotiate(http.headers.get('Accept', '')),
        )
        check_route(request, namespaced=bool(address.namespace))
        request.lag = self._faults.get_lag(target)
        if verb == 'watch':
            await self._misbehave(http, target, 'compact', 'delay', 'refuse', 'drop', 'lose')
            return await self._watch(http, request, target)
        await self._misbehave(http, target, 'compact', 'delay', 'refuse', 'drop', 'expire')
        if http.can_read_body:
            request.body = await _read(http)
        try:
            code, body = await self._dispatcher.dispatch(request)
        except APIError as e:
            e.warnings = request.warnings
            raise
        response = _respond(request, code, body)
        if 'gzip' in http.headers.get('Accept-Encoding', ''):
            _compress(response)
        return await self._sent(http, target, response)

    async def _misbehave(
            self, http: web.BaseRequest, target: Target, *actions: Action,
            stream: web.StreamResponse | None = None, chunk: bytes = b'',
    ) -> None:
        """What happens before the request, or before the next chunk of the stream."""
        for fault in self._faults.hitting(target, *actions):
            match fault.action:
                case 'compact':
                    self._cluster.store.compact()
                case 'delay' | 'slow':
                    await asyncio.sleep(fault.seconds)
                case 'expire':
                    raise Expired("The provided resource version is too old.")
                case 'refuse':
                    raise fault.error()
                case 'cut' if stream is not None:
                    await stream.write(chunk[:max(1, len(chunk) // 2)])
                    _hang_up(http)
                case _:
                    _hang_up(http, abruptly=True)

    async def _sent(
            self, http: web.BaseRequest, target: Target, response: web.Response,
    ) -> web.StreamResponse:
        """Send the response, unless a fault prevents that."""
        faults = self._faults.hitting(target, 'lose', 'cut', 'slow')
        if not faults:
            return response
        actions = [fault.action for fault in faults]
        if 'lose' in actions:
            _hang_up(http, abruptly=True)
        body = response.body if isinstance(response.body, bytes) else b''
        stream = web.StreamResponse(status=response.status, headers=response.headers)
        await stream.prepare(http)
        if 'cut' in actions:
            await stream.write(body[:len(body) // 2])
            _hang_up(http)
        pieces = max(1, min(10, len(body)))
        size = -(-len(body) // pieces)
        for start in range(0, len(body), max(size, 1)):
            await stream.write(body[start:start + size])
            await asyncio.sleep(sum(fault.seconds for fault in faults) / pieces)
        await stream.write_eof()
        return stream

    async def _watch(
            self, http: web.BaseRequest, request: Request, target: Target,
    ) -> web.StreamResponse:
        await self._cluster.origin.prepare(request)
        watch = Watch(self._cluster, request)
        response = web.StreamResponse(headers={**HEADERS, 'Content-Type': JSON})
        response.enable_chunked_encoding()
        self._watches.add(watch)
        try:
            await response.prepare(http)
            try:
                await self._misbehave(http, target, 'expire')
                async with contextlib.aclosing(watch.lines()) as chunks:
                    async for chunk in chunks:
                        if self._faults:
                            await self._misbehave(
                                http, target, 'slow', 'expire', 'cut', 'drop',
                                stream=response, chunk=chunk)
                        await response.write(chunk)
            except Expired:
                await response.write(EXPIRED)
            await response.write_eof()
        finally:
            self._watches.forget(watch)
        return response

    async def _elsewhere(
            self, http: web.BaseRequest, path: str, query: Mapping[str, list[str]],
            address: Address | None, user: User,
    ) -> web.StreamResponse:
        target = Target(verb=http.method.lower(), path=path)
        if not path.startswith(PUBLIC):
            self._access.authorize(user, target)
        await self._misbehave(http, target, 'delay', 'refuse', 'drop')
        answer = nonresources.answer(
            self._cluster, self._documents, urllib.parse.unquote(path), query,
            http.headers.get('Accept', ''), http.host)
        if answer is None:
            return _not_found()
        return await self._sent(http, target, _answer(
            answer.body, content_type=answer.content_type, headers=answer.headers))


def _hang_up(http: web.BaseRequest, *, abruptly: bool = False) -> NoReturn:
    """Close the connection, after what was sent already, or with no regard to that."""
    if http.transport is not None:
        if abruptly:
            http.transport.abort()
        else:
            http.transport.close()
    raise ConnectionResetError("The connection is closed on demand.")


def _not_found() -> web.Response:
    return _answer(b'404 page not found\n', 404, 'text/plain; charset=utf-8')


async def _read(http: web.BaseRequest) -> bytes:
    body = bytearray()
    async for chunk in http.content.iter_any():
        body += chunk
        if len(body) > requests.MAX_BODY:
            raise statuses.RequestEntityTooLarge(f"limit is {requests.MAX_BODY}")
    return bytes(body)


def _respond(request: Request, code: int, body: bytes) -> web.Response:
    media_type = request.accepted.media_type
    if code == 204:
        return web.Response(status=code, headers=HEADERS)
    return _warned(
        _answer(nonresources.format_as(media_type, body), code, media_type), request.warnings)


def _compress(response: web.Response) -> None:
    body = response.body
    if isinstance(body, bytes) and len(body) >= COMPRESSED_SIZE:
        response.body = gzip.compress(body, COMPRESSION_LEVEL)
        response.headers['Content-Encoding'] = 'gzip'
        response.headers['Vary'] = 'Accept-Encoding'


def _warned(response: web.Response, warnings: Iterable[str]) -> web.Response:
    for text in dict.fromkeys(warnings):
        response.headers.add('Warning', f'299 - {encoding.encode(text).decode()}')
    return response


def _answer(
        body: bytes, code: int = 200, content_type: str = JSON, *,
        headers: Mapping[str, str] | None = None,
) -> web.Response:
    return web.Response(body=body, status=code, headers={
        **HEADERS, 'Content-Type': content_type, **(headers or {})})

