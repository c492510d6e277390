"""
External systems that operators call over HTTP, as tests see them: each call is noted, and faults
can hit it. `clouds` are systems to test against, `intercepting` stands between clients and systems.
"""
import abc
import asyncio
import dataclasses
import json
import socket
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, Self

from aiohttp import web

from kopf._kits.sandbox import faults, listening
from kopf._kits.sandbox.requests import Target
from kopf._kits.testing import processes

TOKEN = 'Idempotency-Key'
"""The header with which clients make the repetitions of a call recognizable."""

READS = ('GET', 'HEAD', 'OPTIONS')

Thing = dict[str, Any]
Strike = faults.Fault | Literal['stale'] | None
"""What hits a call: a fault, or that it is answered with an older state."""


@dataclasses.dataclass(eq=False)
class Call:
    """A call of an external system, and what was answered."""
    method: str
    path: str
    """The path with the query."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b''
    time: float = dataclasses.field(default_factory=lambda: asyncio.get_running_loop().time())
    """When the system has got it (seconds, by the event loop)."""
    status: int | None = None
    """The HTTP status of the answer; None if there is none, or none yet."""
    answer: Any = None
    """The body of the answer: decoded JSON, or text."""
    is_threaded: bool = False
    """Whether the client can be in a thread, as it is not in the event loop."""
    number: int | None = None
    """Its number, if it is explored."""

    @property
    def token(self) -> str | None:
        """The idempotency key, if there is one."""
        return self.headers.get(TOKEN)

    @property
    def text(self) -> str:
        """The method and the path."""
        return f'{self.method} {self.path}'


def decode(answer: web.Response) -> Any:
    """Decode the body of an answer: JSON, or text."""
    body = get_body(answer)
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors='replace')


def get_body(answer: web.Response) -> bytes:
    return answer.body if isinstance(answer.body, bytes) else b''


class System(abc.ABC):
    """
    An external system at an ``url``, which is served for the block of ``async with``.

    ``calls`` are the calls since the beginning of the block, ``faults`` what hits them. Whoever
    explores replaces ``meet_call`` and ``meet_answer``, which see each call, and can also hit it.
    """

    def __init__(self, *, unique: str) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.faults: faults.Faults = faults.Faults()
        self.meet_call: Callable[[Call], Strike] = lambda _: None
        self.meet_answer: Callable[[Call, web.Response], faults.Fault | None] = lambda *_: None
        self._unique = unique
        self._port = 0
        self._listener: listening.Listener
        self._kept: Sequence[faults.Fault] = ()

    @abc.abstractmethod
    async def handle(self, call: Call, *, is_stale: bool) -> web.Response:
        """Carry out a call. If ``is_stale``, answer with an older state."""

    def locate(self, call: Call) -> Target:
        """Say what a call is about, for the patterns of faults."""
        return Target(verb=call.method.lower(), path=call.path.partition('?')[0])

    @abc.abstractmethod
    async def list_things(self) -> Iterable[tuple[str, Thing]]:
        """Get all things with their kinds, as they are now. This is no call."""

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
        self._listener = listening.Listener(web.Server(self._respond, access_log=None))
        await self._listener.start(
            sock=socket.create_server(('127.0.0.1', self._port), reuse_port=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()
        self.faults.clear()
        for fault in self._kept:
            self.faults.add(fault)

    async def perform(self, call: Call) -> web.Response:
        """
        Let the system carry out a call, and faults hit it.

        :raises ConnectionError: if the connection breaks.
        """
        self.calls.append(call)
        result = await self._carry_out(call)
        call.status, call.answer = result.status, decode(result)
        lost = self.meet_answer(call, result)
        for fault in [lost] if lost else self.faults.hitting(self.locate(call), 'lose', 'slow'):
            if fault.action == 'lose':
                await hang_up()
            await asyncio.sleep(fault.seconds)
        return result

    async def _carry_out(self, call: Call) -> web.Response:
        strike = self.meet_call(call)
        found = self.faults.hitting(self.locate(call), 'delay', 'refuse', 'drop')
        for fault in [strike] if isinstance(strike, faults.Fault) else found:
            match fault.action:
                case 'delay':
                    await asyncio.sleep(fault.seconds)
                case 'refuse':
                    wait = fault.error().retry_after
                    return web.json_response(
                        {'error': "refused on demand"}, status=fault.status,
                        headers={'Retry-After': str(wait)} if wait else {})
                case _:
                    await hang_up()
        return await self.handle(call, is_stale=strike == 'stale')

    async def _respond(self, http: web.BaseRequest) -> web.StreamResponse:
        is_threaded = processes.connection.get() is None
        call = Call(
            http.method, http.raw_path, http.headers, await http.content.read(),
            is_threaded=is_threaded)
        try:
            result = await self.perform(call)
        except ConnectionError:
            if http.transport is not None:
                http.transport.abort()
            return web.Response()  # to nobody
        if is_threaded:
            result.force_close()  # or virtual time would wait for more calls
        return result

    async def survey(self, told: list[str]) -> list[tuple[str, Thing]]:
        """
        Get all things, as objects with the plural names of their kinds, and tell the duplicates.

        Those that are told are left out.
        """
        found = []
        for (kind, value), items in self._group(await self.list_things()).items():
            kept = items if value is None else items[:1]
            if items[1:] and value is not None:
                told.append(
                    f"There are {len(items)} {kind} for one {self._unique}, {value!r}: "
                    f"{', '.join(str(thing.get('id')) for thing in items)}.")
            found += [(kind, {**thing, 'metadata': {
                'name': f'{value}', 'uid': str(thing.get('id'))}}) for thing in kept]
        return found

    def _group(self, things: Iterable[tuple[str, Thing]]) -> dict[tuple[str, Any], list[Thing]]:
        """Group things by their kinds and their unique values, of which None is no value."""
        found: dict[tuple[str, Any], list[Thing]] = {}
        for kind, thing in things:
            found.setdefault((kind, thing.get(self._unique)), []).append(thing)
        return found


async def hang_up() -> NoReturn:
    """
    Break the connection of a call, in which this is.

    :raises ConnectionError: always; but in a killed process, nothing is ever continued.
    """
    process = processes.current.get()
    if process is not None and not process.alive:
        await asyncio.get_running_loop().create_future()
    raise ConnectionResetError("The connection is closed on demand.")
