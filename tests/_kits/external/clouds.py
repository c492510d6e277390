"""
A small external system: things with keys at random, and all the calls in order.
"""
import asyncio
import collections
import dataclasses
import random
import uuid
from typing import Any


class CloudError(Exception):
    """The system has responded with an error."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"The cloud responds with HTTP {status}.")
        self.status = status
        self.headers = headers or {}


class Lost(ConnectionResetError):
    """The connection was lost: nobody knows whether the call was executed."""


@dataclasses.dataclass
class Thing:
    """What exists in the system, or has existed."""
    key: str
    token: str | None
    content: dict[str, Any]
    created: float
    deleted: float | None = None
    history: list[tuple[float, dict[str, Any]]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Call:
    """A call that has reached the system."""
    time: float
    verb: str
    key: str | None
    token: str | None = None


class Cloud:
    """
    A system: ``lag`` is how long (seconds) reads can show an older state; ``rate`` how many calls
    in a second it allows; ``latency`` how long a call takes.
    """

    def __init__(
            self, *, is_idempotent: bool = False, lag: float = 0.0, rate: int | None = None,
            latency: float = 0.01, rng: random.Random | None = None,
    ) -> None:
        self.is_idempotent = is_idempotent
        self.lag = lag
        self.rate = rate
        self.latency = latency
        self.rng = rng or random.Random()
        self.things: dict[str, Thing] = {}
        self.calls: list[Call] = []
        self.faults: collections.deque[str | None] = collections.deque()
        """
        What happens to the next calls: "before" or "after" (their execution) they are lost, or
        "refused": 400, "busy": 429, "broken": 500 without execution, "slow": 500 after it.
        """
        self.is_down = False
        self.refused = 0

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def living(self) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.deleted is None]

    async def get(self, key: str) -> dict[str, Any] | None:
        async def execute() -> dict[str, Any] | None:
            return self._read(self.things.get(key))
        return await self._respond('get', key, None, execute)

    async def find(self, token: str) -> str | None:
        async def execute() -> str | None:
            return next((thing.key for thing in self.things.values()
                         if thing.token == token and self._read(thing) is not None), None)
        return await self._respond('find', None, token, execute)

    async def create(self, content: dict[str, Any], token: str | None = None) -> str:
        async def execute() -> str:
            for thing in self.things.values() if self.is_idempotent else ():
                if thing.token == token:
                    return thing.key
            return self.add(token, content)
        return await self._respond('create', None, token, execute)

    async def update(self, key: str, content: dict[str, Any]) -> None:
        async def execute() -> None:
            thing = self.things.get(key)
            if thing is None or thing.deleted is not None:
                raise CloudError(404)
            self.edit(key, content)
        await self._respond('update', key, None, execute)

    async def delete(self, key: str) -> None:
        async def execute() -> None:
            thing = self.things.get(key)
            if thing is None or self._read(thing) is None:
                raise CloudError(404)
            thing.deleted = thing.deleted or self.now
        await self._respond('delete', key, None, execute)

    def add(self, token: str | None, content: dict[str, Any]) -> str:
        """Create a thing; return its key."""
        key = str(uuid.UUID(int=self.rng.getrandbits(128)))[:8]
        self.things[key] = Thing(key, token, dict(content), self.now)
        return key

    def edit(self, key: str, content: dict[str, Any]) -> None:
        """Change a thing, as somebody else does."""
        thing = self.things[key]
        thing.history.append((self.now, thing.content))
        thing.content = {**thing.content, **content}

    def _read(self, thing: Thing | None) -> dict[str, Any] | None:
        """Read a state of some moment in the time of the lag."""
        if thing is None:
            return None
        moment = self.now - self.rng.uniform(0, self.lag)
        if self.lag and thing.created > moment:
            return None
        if thing.deleted is not None and thing.deleted <= moment:
            return None
        content = next((old for until, old in thing.history if self.lag and until > moment),
                       thing.content)
        return {'id': thing.key, **content}

    async def _respond(self, verb: str, key: str | None, token: str | None, execute: Any) -> Any:
        if self.is_down:
            await asyncio.sleep(self.latency)
            raise ConnectionRefusedError("The cloud is down.")
        fault = self.faults.popleft() if self.faults else None
        if fault == 'before':
            await asyncio.sleep(self.latency)
            raise Lost
        self.calls.append(Call(self.now, verb, key, token))
        if fault in ('refused', 'busy', 'broken'):
            await asyncio.sleep(self.latency)
            status = {'refused': 400, 'busy': 429, 'broken': 500}[fault]
            raise CloudError(status, {'Retry-After': '3'} if fault == 'busy' else {})
        if self.rate is not None and sum(
                call.time > self.now - 1.0 for call in self.calls) > self.rate:
            self.refused += 1
            raise CloudError(429, {'Retry-After': '1'})
        await asyncio.sleep(self.latency / 2)
        result = await execute()
        await asyncio.sleep(self.latency / 2)
        if fault == 'after':
            raise Lost
        if fault == 'slow':
            raise CloudError(500)
        return result


def declare(
        cloud: Cloud, *, registry: Any, finds: bool = True, is_idempotent: bool | None = None,
        kind: str = 'things', **options: Any,
) -> Any:
    """Declare an external on the cloud."""
    import kopf

    external = kopf.external(kind, id='account', registry=registry, **options)

    @external.observe
    async def observe(key, **_):
        return await cloud.get(key)

    @external.create(idempotent=cloud.is_idempotent if is_idempotent is None else is_idempotent)
    async def create(desired, token, **_):
        return await cloud.create(desired, token)

    @external.update
    async def update(key, desired, **_):
        await cloud.update(key, desired)

    @external.delete
    async def delete(key, **_):
        await cloud.delete(key)

    if finds:
        @external.find
        async def find(token, **_):
            return await cloud.find(token)

    return external
