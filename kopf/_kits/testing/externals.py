"""
External systems that operators call over HTTP, as tests see them: each call is noted, and faults
can hit it. `clouds` are systems to test against, `intercepting` stands between clients and systems.
"""
import abc
import asyncio
import collections
import dataclasses
import json
import socket
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, Self

from aiohttp import web

from kopf._kits.sandbox import faults
from kopf._kits.sandbox.requests import Target
from kopf._kits.testing import processes

TOKEN = 'Idempotency-Key'
"""The header with which clients make the repetitions of a call recognizable."""

READS = ('GET', 'HEAD', 'OPTIONS')

Thing = dict[str, Any]
Strike = faults.Fault | Literal['stale'] | None
"""What hits a call: a fault, or that it is answered with an older state."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an external system: when (seconds, by the loop), what, and what was answered."""
    time: float
    method: str
    path: str
    """The path with the query."""
    token: str | None
    """The idempotency key, if there is one."""
    status: int | None
    """The HTTP status of the answer; None if the system has not got the call, or is silent."""
    answer: Any = None
    """The body of the answer: decoded JSON, or text."""


@dataclasses.dataclass(eq=False)
class Request:
    """A call that is not answered yet."""
    method: str
    path: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b''
    is_threaded: bool = False
    """Whether the client can be in a thread, as it is not in the event loop."""

    number: int | None = None
    """Its number, if its observer counts it."""

    @property
    def text(self) -> str:
        return f'{self.method} {self.path}'

    @property
    def is_read(self) -> bool:
        return self.method in READS


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b''
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def decode(self) -> Any:
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            return self.body.decode(errors='replace')


def answer(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """Answer with JSON."""
    return Answer(status, json.dumps(body).encode(), {
        'Content-Type': 'application/json', **(headers or {})})


class Observer(abc.ABC):
    """Follows the calls of an external system, and decides what hits them."""

    @abc.abstractmethod
    def meet_call(self, request: Request) -> Strike:
        """Note a call that has arrived; return what hits it."""

    @abc.abstractmethod
    def meet_answer(self, request: Request, answer: Answer) -> faults.Fault | None:
        """Note the answer to a call; return what hits the answer."""


class System(abc.ABC):
    """
    An external system at an ``url``, which is served for the block of ``async with``.

    ``calls`` are the calls since the beginning of the block, ``faults`` what hits them.
    """

    def __init__(self, *, unique: str) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.faults: faults.Faults = faults.Faults()
        self.observer: Observer | None = None
        self._unique = unique
        self._port = 0
        self._runner: web.ServerRunner | None = None
        self._kept: Sequence[faults.Fault] = ()

    @abc.abstractmethod
    async def handle(self, request: Request, *, is_stale: bool) -> Answer:
        """Carry out a call. If ``is_stale``, answer with an older state."""

    @abc.abstractmethod
    def locate(self, request: Request) -> Target:
        """Say what a call is about, for the patterns of faults."""

    @abc.abstractmethod
    async def list_things(self) -> Mapping[str, Sequence[Thing]]:
        """Get all things by their kinds, as they are now. This is no call."""

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end. It stays the same for all blocks."""
        if not self._port:
            sock = socket.socket()  # keeps the port, also while nothing is served
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(('127.0.0.1', 0))
            weakref.finalize(self, sock.close)
            self._port = sock.getsockname()[1]
        return f'http://127.0.0.1:{self._port}'

    async def __aenter__(self) -> Self:
        assert self.url
        self.calls.clear()
        self._kept = list(self.faults)
        for fault in self._kept:
            fault.rewind()
        server = web.Server(self._respond, access_log=None)
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        sock = socket.create_server(('127.0.0.1', self._port), reuse_port=True)
        await web.SockSite(self._runner, sock).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self.observer = None
        self.faults.clear()
        for fault in self._kept:
            self.faults.add(fault)

    async def perform(self, request: Request) -> Answer:
        """
        Let the system carry out a call, and faults hit it.

        :raises ConnectionError: if the connection breaks.
        """
        now, token = asyncio.get_running_loop().time(), request.headers.get(TOKEN)
        try:
            result = await self._carry_out(request)
        except ConnectionError:
            self.calls.append(Call(now, request.method, request.path, token, None))
            raise
        self.calls.append(Call(
            now, request.method, request.path, token, result.status, result.decode()))
        lost = None if self.observer is None else self.observer.meet_answer(request, result)
        found = self.faults.hitting(self.locate(request), 'lose', 'slow')
        for fault in found if lost is None else [lost, *found]:
            if fault.action == 'lose':
                await hang_up()
            await asyncio.sleep(fault.seconds)
        return result

    async def _carry_out(self, request: Request) -> Answer:
        strike = None if self.observer is None else self.observer.meet_call(request)
        found = self.faults.hitting(self.locate(request), 'delay', 'refuse', 'drop')
        for fault in [strike, *found] if isinstance(strike, faults.Fault) else found:
            match fault.action:
                case 'delay':
                    await asyncio.sleep(fault.seconds)
                case 'refuse':
                    seconds = fault.error().retry_after
                    return answer(
                        fault.status, {'error': "refused on demand"},
                        {} if seconds is None else {'Retry-After': str(seconds)})
                case _:
                    await hang_up()
        return await self.handle(request, is_stale=strike == 'stale')

    async def _respond(self, http: web.BaseRequest) -> web.StreamResponse:
        is_threaded = processes.connection.get() is None
        request = Request(
            http.method, http.raw_path, http.headers, await http.read(), is_threaded=is_threaded)
        try:
            result = await self.perform(request)
        except ConnectionError:
            if http.transport is not None:
                http.transport.abort()
            return web.Response()  # to nobody
        response = web.Response(
            status=result.status, body=result.body, headers=result.headers)
        if is_threaded:
            response.force_close()  # or virtual time would wait for more calls
        return response

    async def survey(self) -> tuple[list[tuple[str, Thing]], list[str]]:
        """
        Get all things, as objects with the plural names of their kinds, and tell the duplicates.

        Those that are told already are left out of the things.
        """
        things = await self.list_things()
        told, surplus = [], set()
        for (kind, value), items in self.find_duplicates(things).items():
            ids = [str(thing.get('id')) for thing in items]
            surplus |= {id(thing) for thing in items[1:]}
            told.append(
                f"There are {len(items)} {kind} for one {self._unique}, {value!r}: "
                f"{', '.join(ids)}.")
        return [
            (kind, {**thing, 'metadata': {
                'name': str(thing.get(self._unique, '*')), 'uid': str(thing.get('id'))}})
            for kind, items in things.items() for thing in items if id(thing) not in surplus], told

    def find_duplicates(
            self, things: Mapping[str, Sequence[Thing]],
    ) -> dict[tuple[str, Any], list[Thing]]:
        """Find the things that should be only one, by their kinds and their unique values."""
        found: collections.defaultdict[tuple[str, Any], list[Thing]] = collections.defaultdict(list)
        for kind, items in things.items():
            for thing in items:
                if thing.get(self._unique) is not None:
                    found[kind, thing[self._unique]].append(thing)
        return {key: items for key, items in found.items() if len(items) > 1}


async def hang_up() -> NoReturn:
    """
    Break the connection of a call, in which this is.

    :raises ConnectionError: always; but in a killed process, nothing is ever continued.
    """
    process = processes.current.get()
    if process is not None and not process.alive:
        await asyncio.get_running_loop().create_future()
    raise ConnectionResetError("The connection is closed on demand.")
