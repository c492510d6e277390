"""
Fake clouds: small external systems to test against, with the behaviour of real ones.
"""
import asyncio
import collections
import json
import math
import random
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
import multidict
import yarl
from aiohttp import web

from kopf._kits.sandbox.requests import Target
from kopf._kits.testing import externals
from kopf._kits.testing.externals import Call, Thing

STALENESS = 10.0
"""How much older (seconds) the state is with which a call is answered that is hit by staleness."""

VERBS = {'POST': 'create', 'PUT': 'update', 'PATCH': 'update', 'DELETE': 'delete'}


class FakeCloud(externals.System):
    """
    A small external system to test against: things of any kinds, such as accounts.

    It is served over HTTP at its ``url`` for the block of ``async with``, and called directly by
    its async methods. Each block begins with an empty system. All times are those of the event
    loop, so virtual time works.

    Over HTTP, with JSON: ``POST /accounts``, ``GET /accounts?name=x``, ``GET /accounts/ID``,
    ``PATCH /accounts/ID``, ``DELETE /accounts/ID``. A token is the header ``Idempotency-Key``.

    ``calls`` are the calls, `kopf.testing.Call`. ``faults`` are errors, delays, and outages, as
    those of `kopf.testing.Sandbox`: the verbs are ``'create'``, ``'get'``, ``'list'``,
    ``'update'``, and ``'delete'``, the resources are the kinds. See "Test operators" in the
    documentation.

    :param consistency: how long (seconds) it takes until reads show a write.
    :param rate: how many calls are served in each second; others are refused with HTTP 429, and
        with ``Retry-After``. Default: no limit.
    :param idempotent: whether a creation with the token of a thing that is there returns that
        thing. Otherwise, tokens have no effect.
    :param unique: the field whose value only one thing of a kind should have.
    :param seed: the seed of the random ids.
    """

    def __init__(
            self, *, consistency: float = 0.0, rate: int | None = None, idempotent: bool = False,
            unique: str = 'name', seed: int = 0,
    ) -> None:
        super().__init__(unique=unique)
        if rate is not None and rate < 1:
            raise ValueError(f"The rate must be at least 1 call in a second, not {rate}.")
        self.consistency: float = consistency
        self.rate: int | None = rate
        self.idempotent: bool = idempotent
        self._seed = seed
        self._clear()

    def _clear(self) -> None:
        self._random = random.Random(self._seed)
        self._served: collections.deque[float] = collections.deque()
        self._things: dict[str, dict[str, list[tuple[float, Thing | None]]]] = {}
        """By the kinds and the ids: since when they are so, and None if they are deleted."""
        self._ids: dict[tuple[str, str], str] = {}
        """By the kinds and the tokens."""

    async def __aenter__(self) -> Self:
        self._clear()
        return await super().__aenter__()

    # For tests.

    def things(self, kind: str) -> list[Thing]:
        """
        Get all things of a kind as they are now. This is no call.

        :param kind: the kind, e.g. ``'accounts'``.
        """
        return [dict(thing) for thing in self._iter_things(kind, math.inf)]

    @property
    def duplicates(self) -> dict[tuple[str, Any], list[Thing]]:
        """
        The things of which there are several with the same unique value, by that and their kinds.

        For a test: ``assert not cloud.duplicates``.
        """
        return {
            key: things for key, things in self._group(self._list()).items()
            if things[1:] and key[1] is not None}

    async def list_things(self) -> list[tuple[str, Thing]]:
        return self._list()

    def _list(self) -> list[tuple[str, Thing]]:
        return [(kind, thing) for kind in self._things for thing in self.things(kind)]

    # For operators and tests: calls.

    async def create(self, kind: str, thing: Mapping[str, Any], *, token: str | None = None) -> str:
        """
        Create a thing; return its id.

        :param kind: the kind, e.g. ``'accounts'``.
        :param thing: its fields.
        :param token: what is the same in all repetitions of this creation.
        :raises aiohttp.ClientResponseError: if it is refused, e.g. with the status 429.
        :raises ConnectionError: if it is not known whether the thing was created.
        """
        created = await self._call('POST', kind, body=thing, token=token)
        return str(created['id'])

    async def get(self, kind: str, key: str) -> Thing | None:
        """
        Get a thing; None if there is none, or none yet.

        :param kind: the kind.
        :param key: the id of the thing.
        """
        thing: Thing | None = await self._call('GET', kind, key, absent=404)
        return thing

    async def find(self, kind: str, **fields: str) -> list[Thing]:
        """
        Find the things with these values, e.g. of a reference.

        :param kind: the kind.
        :param fields: the values.
        """
        found: list[Thing] = (await self._call('GET', kind, query=fields))['items']
        return found

    async def update(self, kind: str, key: str, fields: Mapping[str, Any]) -> Thing:
        """
        Change fields of a thing.

        :param kind: the kind.
        :param key: the id of the thing.
        :param fields: the new values.
        :raises aiohttp.ClientResponseError: with the status 404 if there is no such thing.
        """
        thing: Thing = await self._call('PATCH', kind, key, body=fields)
        return thing

    async def delete(self, kind: str, key: str) -> None:
        """
        Delete a thing.

        :param kind: the kind.
        :param key: the id of the thing.
        :raises aiohttp.ClientResponseError: with the status 404 if there is no such thing.
        """
        await self._call('DELETE', kind, key)

    async def _call(
            self, method: str, *parts: object, query: Mapping[str, str] | None = None,
            body: Mapping[str, Any] | None = None, token: str | None = None, absent: int = 0,
    ) -> Any:
        url = yarl.URL('/').joinpath(*map(str, parts)).with_query(query)
        result = await self.perform(Call(
            method, str(url), {} if token is None else {externals.TOKEN: token},
            b'' if body is None else json.dumps(body).encode()))
        if result.status == absent:
            return None
        if result.status >= 400:
            headers = multidict.CIMultiDictProxy(result.headers)
            raise aiohttp.ClientResponseError(
                aiohttp.RequestInfo(url, method, headers), (), status=result.status,
                headers=headers, message=result.text or '')
        return externals.decode(result)

    # The system itself.

    def locate(self, call: Call) -> Target:
        kind, key, _ = _parse(call.path)
        verb = VERBS.get(call.method) or ('get' if key else 'list')
        return Target(verb=verb, resource=kind, name=key)

    async def handle(self, call: Call, *, is_stale: bool) -> web.Response:
        now = asyncio.get_running_loop().time()
        while self._served and self._served[0] <= now - 1:
            self._served.popleft()
        if self.rate is not None and len(self._served) >= self.rate:
            wait = math.ceil(self._served[0] + 1 - now)
            return web.json_response(
                {'error': 'too many calls'}, status=429, headers={'Retry-After': str(wait)})
        self._served.append(now)
        kind, key, query = _parse(call.path)
        lag = max(self.consistency, STALENESS) if is_stale else self.consistency
        try:
            fields = dict(json.loads(call.body or b'{}'))
        except (TypeError, ValueError) as e:
            return _answer(400, {'error': f'{e}'})
        match call.method:
            case 'POST' if kind and not key:
                return self._create(kind, fields, call.token, now)
            case 'GET' if kind and not key:
                return _answer(200, {'items': [
                    thing for thing in self._iter_things(kind, now - lag)
                    if all(str(thing.get(name)) == value for name, value in query.items())]})
            case 'GET':
                thing = self._look(kind, key, now - lag)
                return _answer(200, thing) if thing else _answer(404, {'error': 'not found'})
            case 'PATCH' | 'PUT' | 'DELETE' if key:
                return self._change(call.method, kind, key, fields, now)
        return _answer(405, {'error': 'not allowed'})

    def _create(self, kind: str, fields: Thing, token: str | None, now: float) -> web.Response:
        if self.idempotent and token is not None:
            known = self._look(kind, self._ids.get((kind, token), ''), math.inf)
            if known is not None:
                return _answer(200, known)
        key = f'{self._random.getrandbits(64):016x}'
        if token is not None:
            self._ids[kind, token] = key
        thing = {**fields, 'id': key}
        self._things.setdefault(kind, {})[key] = [(now, thing)]
        return _answer(201, thing)

    def _change(self, method: str, kind: str, key: str, fields: Thing, now: float) -> web.Response:
        thing = self._look(kind, key, math.inf)
        if thing is None:
            return _answer(404, {'error': 'not found'})
        changed = None if method == 'DELETE' else {
            **(thing if method == 'PATCH' else {}), **fields, 'id': key}
        self._things[kind][key].append((now, changed))
        return web.Response(status=204) if changed is None else _answer(200, changed)

    def _look(self, kind: str, key: str, time: float) -> Thing | None:
        """Get a thing as it was at a time; None if it was not there."""
        versions = self._things.get(kind, {}).get(key, [])
        return next((thing for since, thing in reversed(versions) if since <= time), None)

    def _iter_things(self, kind: str, time: float) -> list[Thing]:
        found = (self._look(kind, key, time) for key in self._things.get(kind, ()))
        return [thing for thing in found if thing is not None]


def _parse(path: str) -> tuple[str, str, dict[str, str]]:
    url = yarl.URL(path, encoded=True)
    _, kind, key, *_ = [*url.parts, '', '']
    return kind, key, dict(url.query)


def _answer(status: int, body: Thing) -> web.Response:
    return web.json_response(body, status=status)
