"""
Interception: a stand-in for an external system, which passes the calls on to it.
"""
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

import aiohttp
import multidict
import yarl

from kopf._kits.sandbox.requests import Target
from kopf._kits.testing import externals
from kopf._kits.testing.externals import Answer, Request, Thing

DROPPED = frozenset({
    'host', 'connection', 'keep-alive', 'transfer-encoding', 'te', 'trailer', 'upgrade',
    'proxy-authorization', 'content-length'})
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
        self._session: aiohttp.ClientSession | None = None
        self._answers: dict[str, Answer] = {}
        """The latest answers to reads."""

    async def __aenter__(self) -> Self:
        self._answers.clear()
        if self._reset is not None:
            await self._reset()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), cookie_jar=aiohttp.DummyCookieJar())
        return await super().__aenter__()

    async def __aexit__(self, *args: object) -> None:
        await super().__aexit__(*args)
        if self._session is not None:
            await self._session.close()

    def locate(self, request: Request) -> Target:
        return Target(verb=request.method.lower(), path=request.path.partition('?')[0])

    async def list_things(self) -> Mapping[str, Sequence[Thing]]:
        return {} if self._get_things is None else {'things': await self._get_things()}

    async def handle(self, request: Request, *, is_stale: bool) -> Answer:
        if is_stale and request.text in self._answers:
            return self._answers[request.text]
        assert self._session is not None
        headers = _select(request.headers)
        headers['Accept-Encoding'] = 'identity'
        try:
            async with self._session.request(
                    request.method, yarl.URL(f'{self._target}{request.path}', encoded=True),
                    headers=headers, skip_auto_headers=['Content-Type', 'User-Agent'],
                    data=request.body or None, allow_redirects=False) as response:
                answer = Answer(
                    response.status, await response.read(), _select(response.headers))
        except aiohttp.ClientError as e:
            return Answer(502, f'{e}'.encode(), {'Content-Type': 'text/plain'})
        if request.is_read:
            self._answers[request.text] = answer
        return answer


def intercept(
        url: str,
        *,
        reset: Callable[[], Awaitable[Any]] | None = None,
        things: Things | None = None,
        unique: str = 'name',
) -> Interception:
    """
    Intercept the calls of an external system, so that `kopf.testing.explore` can hit them.

    Let the operator use the ``url`` of the result as its base URL, instead of that of the system.
    Any HTTP client can do so, in the event loop and in threads. The calls are passed on to the
    system, also by HTTPS.

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
