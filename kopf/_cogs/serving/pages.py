"""
The server of pages, e.g. of health checks, in a thread of its own: so, it responds also when the
main event loop is blocked.
"""
import asyncio
import concurrent.futures
import contextlib
import contextvars
import errno
import functools
import http
import itertools
import logging
import os
import threading
import urllib.parse
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from kopf._cogs.serving import exchanges, inbound
from kopf._cogs.serving.endpoints import EndpointError, Page

logger = logging.getLogger(__name__)

POLICY = exchanges.Policy(
    head=16 * 1024, fields=100, body=16 * 1024,  # only the head of a request is used
    memory=0, connections=100, receiving=5.0, writing=5.0, idle=None, leaving=0.0,
    level=logging.DEBUG)


class Server:
    """The server of all pages. `start` and `stop` are called in the event loop of the operator."""

    def __init__(
            self,
            pages: Iterable[Page],
            *,
            watch: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """
        ``watch`` runs in the thread as long as the server.

        :raises EndpointError: if there are two pages at one endpoint.
        """
        self._pages: dict[tuple[str | None, int], list[Page]] = {}
        """By the hosts and ports: their pages share the listening sockets."""
        self._watch = watch
        self._started = concurrent.futures.Future[list[int]]()
        self._stopping = concurrent.futures.Future[None]()
        self._ended = concurrent.futures.Future[None]()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=[self._run],  # as pages call the operator
            name='kopf-liveness', daemon=True)
        for page in pages:
            known = self._pages.setdefault((page.endpoint.host, page.endpoint.port), [])
            for other in known:
                if other.endpoint == page.endpoint:
                    raise EndpointError(
                        f"Both the {other.title} and the {page.title} cannot be served at "
                        f"{page.endpoint}. Choose another path: "
                        f"{page.option}=http://host:port/path")
            known.append(page)

    async def start(self) -> list[int]:
        """
        Start the server, and return the actual ports.

        :raises EndpointError: if an endpoint cannot be listened on.
        """
        self._thread.start()
        ports = await asyncio.shield(asyncio.wrap_future(self._started))
        for port, pages in zip(ports, self._pages.values(), strict=True):
            for page in pages:
                logger.info(f"The {page.title} are served at {page.endpoint._replace(port=port)}")
        return ports

    async def stop(self) -> None:
        """
        Stop the server, and close the pages.

        It is safe to call if the server was not started or has failed.
        """
        if self._thread.ident is not None:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # the server has failed
                self._stopping.set_result(None)
            await asyncio.wrap_future(self._ended)
            self._thread.join()
        for page in itertools.chain.from_iterable(self._pages.values()):
            if page.close is not None:
                await page.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except BaseException as e:
            if not self._started.done():
                self._started.set_exception(e)
            else:
                titles = _join_titles(itertools.chain.from_iterable(self._pages.values()))
                logger.error(f"The {titles} are not served any longer: {e!r}", exc_info=True)
        finally:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            ports: list[int] = []
            for pages in self._pages.values():
                listener = _listen(pages)
                stack.push_async_callback(listener.close)
                ports.append(listener.port)
            stopping = asyncio.wrap_future(self._stopping)
            self._started.set_result(ports)
            watching = None if self._watch is None else asyncio.create_task(self._watch())
            await stopping
            if watching is not None:
                watching.cancel()


def _join_titles(pages: Iterable[Page]) -> str:
    return ' and the '.join(page.title for page in pages)


def _listen(pages: Sequence[Page]) -> inbound.Listener:
    """Serve the pages of one host and port."""
    titles, endpoint = _join_titles(pages), pages[0].endpoint
    try:
        sockets = inbound.bind(endpoint.host, endpoint.port)
    except (OSError, UnicodeError, ValueError, OverflowError) as e:
        code = getattr(e, 'errno', None) or 0
        reason = os.strerror(code) if code > 0 else getattr(e, 'strerror', None) or str(e)
        hint = ""
        if code == errno.EADDRINUSE:
            other = endpoint._replace(port=endpoint.port + 1)
            hint = f". Stop what uses the port, or choose another one: {pages[0].option}={other}"
        raise EndpointError(f"The {titles} cannot be served at {endpoint}: {reason}{hint}") from e
    responders = {urllib.parse.unquote(page.endpoint.path): page.respond for page in pages}
    listener = inbound.Listener(
        sockets, functools.partial(_respond, responders), policy=POLICY, title=titles)
    listener.listen(None)
    return listener


async def _respond(
        pages: Mapping[str, exchanges.Respond], request: exchanges.Request,
) -> exchanges.Response:
    await request.read()
    respond = pages.get(request.path)
    if respond is None:
        response = _make_error(http.HTTPStatus.NOT_FOUND)
    elif request.method not in ('GET', 'HEAD'):
        response = _make_error(http.HTTPStatus.METHOD_NOT_ALLOWED, Allow='GET, HEAD')
    else:
        response = await respond(request)
    return response._replace(headers={**response.headers, 'Cache-Control': 'no-store'})


def _make_error(status: http.HTTPStatus, **headers: str) -> exchanges.Response:
    return exchanges.Response(
        status.value, f"{status.value}: {status.phrase}".encode(), exchanges.TEXT, headers)
