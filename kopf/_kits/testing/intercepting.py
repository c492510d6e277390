"""
Interception: a stand-in for an external system, which passes the calls on to it.
"""
import functools
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

import aiohttp
import multidict
import yarl
from aiohttp import web

from kopf._kits.testing import externals
from kopf._kits.testing.externals import Call, Thing

DROPPED = (
    'host', 'connection', 'keep-alive', 'transfer-encoding', 'te', 'trailer', 'content-length')
"""The headers that are for one connection only."""

Things = Callable[[], Awaitable[Sequence[Thing]]]


class Interception(externals.System):
    """
    What `kopf.testing.intercept` returns: its ``url`` replaces the base URL of the system.

    ``calls`` are the calls, `kopf.testing.Call`. ``faults`` hit them: their verbs are the methods
    of HTTP in lower case, their resources are the paths.
    """

    def __init__(
            self, url: str, *, reset: Callable[[], Awaitable[Any]] | None, things: Things | None,
            unique: str,
    ) -> None:
        super().__init__(unique=unique)
        self._target = yarl.URL(url.rstrip('/'), encoded=True)
        self._reset = reset
        self._get_things = things
        self._session: aiohttp.ClientSession
        self._answers: dict[str, Callable[[], web.Response]] = {}
        """The latest answers to reads."""

    async def __aenter__(self) -> Self:
        self._answers.clear()
        if self._reset is not None:
            await self._reset()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False)
        return await super().__aenter__()

    async def __aexit__(self, *args: object) -> None:
        await super().__aexit__(*args)
        await self._session.close()

    async def list_things(self) -> list[tuple[str, Thing]]:
        things = () if self._get_things is None else await self._get_things()
        return [('things', thing) for thing in things]

    async def handle(self, call: Call, *, is_stale: bool) -> web.Response:
        if is_stale and call.text in self._answers:
            return self._answers[call.text]()
        headers = _select(call.headers)
        headers['Accept-Encoding'] = 'identity'
        try:
            async with self._session.request(
                    call.method, yarl.URL(f'{self._target}{call.path}', encoded=True),
                    headers=headers, skip_auto_headers=['Content-Type', 'User-Agent'],
                    data=io.BytesIO(call.body) if call.body else None,
                    allow_redirects=False) as response:
                answered = _select(response.headers)
                if call.method == 'HEAD' and response.content_length is not None:
                    answered['Content-Length'] = str(response.content_length)
                make = functools.partial(
                    web.Response, status=response.status, body=await response.read(),
                    headers=answered)
        except aiohttp.ClientError as e:
            return web.Response(status=502, text=f'{e}')
        if call.method in externals.READS:
            self._answers[call.text] = make
        return make()


def intercept(
        url: str, *, reset: Callable[[], Awaitable[Any]] | None = None,
        things: Things | None = None, unique: str = 'name',
) -> Interception:
    """
    Intercept the calls of an external system, so that `kopf.testing.explore` can hit them.

    Let the operator use the ``url`` of the result as its base URL, instead of that of the system.
    Any HTTP client can do so, in the event loop and in threads. The calls are passed on to the
    system, also by HTTPS.

    ::

        billing = kopf.testing.intercept('https://billing.example.com')
        monkeypatch.setenv('BILLING_URL', billing.url)
        kopf.testing.explore(scenario, 'handlers.py', external=[billing])

    See "Test operators" in the documentation.

    :param url: the base URL of the system.
    :param reset: an async function that empties the system; it is called before each run.
    :param things: an async function that returns what is in the system: dicts with ``'id'``. They
        are compared at the end of each run. Default: they are not compared.
    :param unique: the field whose value only one thing should have.
    :returns: what to pass to ``explore(external=[...])``.
    """
    return Interception(url, reset=reset, things=things, unique=unique)


def _select(headers: Mapping[str, str]) -> multidict.CIMultiDict[str]:
    return multidict.CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in DROPPED)
