"""
The operator that is simulated: handlers of all kinds, which record their calls.

All handlers are written as async ones. With the feature ``sync ID``, a handler is a sync one.

How a handler behaves (for how long it runs, how often it fails) follows from the seed and from what
it is called for. So, dropping a step of a plan does not change the rest of the run.
"""
import asyncio
import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import kopf
from kopf._core.intents import stopping
from tests.simulation import threads

KIND = 'kopfexamples'
OTHERS = 'kopfothers'
"""The kind that is only indexed."""

ON = {'on': 'yes'}
CHANGING = ('main', 'patching', 'parent/one', 'parent/two', 'parent/mid/deep')
"""The handlers of all changes of the essence."""

MANAGED = 'simulation.kopf.dev'
"""The name of the webhook configurations."""

REFUSAL = "it is a bad number"

REVIEW_TIMES = (0, 0, 0.01, 0.3, 1.2)
"""How long (seconds) a sync admission handler takes."""


def is_bad(n: int) -> bool:
    """Whether the operator refuses this number, where it has admission handlers."""
    return n % 7 == 0


class Unexpected(Exception):
    """An arbitrary error of a handler."""


@dataclasses.dataclass(eq=False)
class Call:
    """One call of a handler."""
    id: str
    kind: str
    process: Any
    uid: str
    name: str
    began: float
    retry: int
    reason: str
    old: Any
    new: Any
    """The spec and the labels, before and after the change."""
    version: int = 0
    """The version of the object that the handler sees."""
    started: float = 0.0
    """When its first attempt began, as it is told."""
    ended: float | None = None
    outcome: str = ''
    delay: float = 0.0
    """When the next attempt may begin, in seconds after the end of this one."""
    handled: Any = None
    """The last-handled state of the object when the call began; of the one that is seen."""
    persisted: bool = False
    persisted_in: int = 0
    """The version of the object that was the first one with the outcome."""
    is_obscured: bool = False
    """Whether an operator has written that has not known the outcome, though it was stored."""
    is_reopened: bool = False
    """Whether its cycle has left a change for all handlers, as some have seen another state."""
    patch: Any = None
    """What a timer wants to be in the status."""
    stopped: Any = None
    """The flag of a daemon or a timer."""

    @property
    def finished(self) -> bool:
        return self.outcome in ('done', 'failed')

    def continues(self, former: 'Call') -> bool:
        """Whether the former call was one of the same daemon or timer."""
        return self.stopped._setter is former.stopped._setter

    @property
    def is_last(self) -> bool:
        """Whether its daemon or timer makes no more attempts after this one."""
        return self.outcome == 'failed' or (self.outcome == 'done' and self.kind == 'daemon')

    @property
    def is_abandoned(self) -> bool:
        """Whether Kopf does not wait for this daemon any more, as its thread has not ended."""
        reason = None if self.stopped is None else self.stopped.reason
        return reason is not None and stopping.DaemonStoppingReason.DAEMON_ABANDONED in reason

    def __str__(self) -> str:
        spec = (self.new or {}).get('spec') or {}
        return f"{self.id} of {self.name} ({self.uid}), {self.reason} n={spec.get('n')}" + (
            f", retry {self.retry}" if self.retry else '')


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long (seconds) all attempts of a handler may take together, and how many there are."""
    timeout: float | None = None
    retries: int | None = None


def get_limits(seed: int, id: str, features: frozenset[str]) -> Limits:
    if f'limited {id}' not in features:
        return Limits()
    rng = random.Random(f'{seed} limits of {id}')
    timeout, retries = rng.choice((1.0, 2.5, 5.0)), rng.choice((None, None, 1, 2, 3))
    return Limits(timeout if retries is None or rng.random() < 0.5 else None, retries)


def declare(recorder: Any, process: Any, features: frozenset[str], seed: int) -> Any:
    """Make the registry of one process. The recorder is notified of the calls."""
    registry = kopf.OperatorRegistry()
    common: dict[str, Any] = {'registry': registry}
    on: dict[str, Any] = {'labels': ON, **common}

    def recorded(id: str, kind: str) -> Callable[[Any], Any]:
        def decorate(fn: Any) -> Any:
            @functools.wraps(fn)
            async def wrapper(**kwargs: Any) -> Any:
                call = recorder.begin(process, id, kind, kwargs)
                try:
                    result = await fn(call=call, **kwargs)
                except kopf.TemporaryError as e:
                    recorder.end(call, *get_retry(call, e.delay or 0.0))
                    raise
                except kopf.PermanentError:
                    recorder.end(call, 'failed')
                    raise
                except Unexpected:
                    recorder.end(call, *get_retry(call, BACKOFF))
                    raise
                except asyncio.CancelledError:
                    recorder.end(call, 'interrupted')
                    raise
                except BaseException as e:
                    recorder.end(call, f'raised {type(e).__name__}')
                    raise
                recorder.end(call, 'done')
                return result
            return colored(id)(wrapper)
        return decorate

    def get_retry(call: Call, delay: float) -> tuple[str, float]:
        retries = get_limits(seed, call.id, features).retries
        return ('failed', 0.0) if retries == call.retry + 1 else ('retry', delay)

    def limits_of(id: str) -> dict[str, Any]:
        return dataclasses.asdict(get_limits(seed, id, features))

    def limited(id: str) -> dict[str, Any]:
        return {**common, **limits_of(id)}

    def colored(id: str) -> Callable[[Any], Any]:
        return threads.make_sync if f'sync {id}' in features else lambda fn: fn

    async def behave(call: Call, n: Any) -> None:
        rng = random.Random(f'{seed} {call.id} {call.name} {n}')
        fails = rng.choice((0, 0, 0, 1, 2))
        is_temporary, delay = rng.random() < 0.6, rng.choice((0.5, 2.0, 6.0))
        is_hopeless = rng.random() < 0.05
        await threads.pause(random.Random(f'{seed} {call.id} {n} {call.retry}').choice(
            (0, 0.01, 0.3, 1.2, 3.0, 4.5) if f'sync {call.id}' in features else
            (0, 0, 0.01, 0.3, 1.2, 3.0)))
        if call.retry < fails:
            if is_temporary:
                raise kopf.TemporaryError("not yet", delay=delay)
            raise Unexpected("not yet")
        if is_hopeless:
            raise kopf.PermanentError("never")

    async def consider(id: str, n: Any) -> None:
        if f'sync {id}' in features:  # others make no pauses: they would block nobody else
            await threads.pause(random.Random(f'{seed} {id} {n}').choice(REVIEW_TIMES))

    def mark(call: Call, n: Any) -> dict[str, Any]:
        return {'uid': call.uid, 'n': n}

    if 'event' in features:
        @kopf.on.event(KIND, id='event', **common)
        @recorded('event', 'event')
        async def event(spec: Any, patch: Any, **_: Any) -> None:
            if 'patching event' in features:
                patch.status['event'] = spec['n']

    if 'main' in features:
        only = {'labels': ON} if 'filtered main' in features else {}

        @kopf.on.create(KIND, id='main', **only, **limited('main'))
        @kopf.on.update(KIND, id='main', **only, **limited('main'))
        @recorded('main', 'change')
        async def main(call: Call, spec: Any, **_: Any) -> Any:
            await behave(call, spec['n'])
            return mark(call, spec['n'])

    if 'patching' in features:
        @kopf.on.create(KIND, id='patching', **limited('patching'))
        @kopf.on.update(KIND, id='patching', **limited('patching'))
        @recorded('patching', 'change')
        async def patching(call: Call, spec: Any, patch: Any, **_: Any) -> None:
            await behave(call, spec['n'])
            patch.spec['own'] = spec['n']

    if 'field' in features:
        @kopf.on.field(KIND, id='field', field='spec.f', **limited('field/spec.f'))
        @recorded('field/spec.f', 'change')
        async def field(call: Call, spec: Any, **_: Any) -> None:
            await behave(call, spec['n'])

    if 'parent' in features:
        @kopf.on.create(KIND, id='parent', **common)
        @kopf.on.update(KIND, id='parent', **common)
        @recorded('parent', 'parent')
        async def parent(**_: Any) -> None:
            @kopf.subhandler(id='one', **limits_of('parent/one'))
            @recorded('parent/one', 'change')
            async def one(call: Call, spec: Any, **_: Any) -> Any:
                await behave(call, spec['n'])
                return mark(call, spec['n'])

            @kopf.subhandler(id='two', **limits_of('parent/two'))
            @recorded('parent/two', 'change')
            async def two(call: Call, spec: Any, **_: Any) -> None:
                await behave(call, spec['n'])

            if 'nested' in features:
                @kopf.subhandler(id='mid')
                @recorded('parent/mid', 'parent')
                async def mid(**_: Any) -> None:
                    @kopf.subhandler(id='deep')
                    @recorded('parent/mid/deep', 'change')
                    async def deep(call: Call, spec: Any, **_: Any) -> None:
                        await behave(call, spec['n'])

    if 'deletion' in features:
        @kopf.on.delete(KIND, id='deletion', labels=ON, **limited('deletion'))
        @recorded('deletion', 'change')
        async def deletion(call: Call, spec: Any, **_: Any) -> None:
            await behave(call, spec['n'])

    if 'resuming' in features:
        @kopf.on.resume(KIND, id='resuming', **limited('resuming'))
        @recorded('resuming', 'change')
        async def resuming(call: Call, spec: Any, **_: Any) -> None:
            await behave(call, 'resuming')

    if 'daemon' in features:
        stages: dict[str, Any] = {'cancellation_backoff': 3, 'cancellation_timeout': 2}
        if 'sync daemon' in features and seed % 2:
            stages = {}  # then, it is told to stop only once
        if 'delayed daemon' in features:
            stages['initial_delay'] = DELAY

        @kopf.daemon(KIND, id='daemon', **stages, **limits_of('daemon'), **on)
        @recorded('daemon', 'daemon')
        async def daemon(call: Call, spec: Any, stopped: Any, **_: Any) -> None:
            rng = random.Random(f'{seed} daemon {spec["n"]}')
            if 'failing daemon' in features:
                await behave(call, spec['n'])
                if rng.random() < 0.2:
                    return
            if 'sync daemon' in features and rng.random() < 0.5:
                await threads.pause(1.5)  # it is busy, and waits later
            await threads.wait(stopped)
            is_slow = 'sync daemon' in features and rng.random() < SLOW
            await threads.pause(6.5 if is_slow else 0.7)

    if 'timer' in features:
        times: dict[str, Any] = {'interval': 7}
        if 'idle timer' in features:
            times['idle'] = IDLE
            if 'lone timer' in features:
                del times['interval']
        if 'sharp timer' in features and 'interval' in times:
            times['sharp'] = True
        if 'delayed timer' in features:
            times['initial_delay'] = DELAY

        @kopf.timer(KIND, id='timer', **times, **limits_of('timer'), **on)
        @recorded('timer', 'timer')
        async def timer(call: Call, spec: Any, status: Any, patch: Any, **_: Any) -> None:
            if 'failing timer' in features:
                await behave(call, spec['n'])
            else:
                await threads.pause(0.5)
            if status.get('timer') != mark(call, spec['n']):
                patch.status['timer'] = call.patch = mark(call, spec['n'])

    if 'index' in features:
        @kopf.index(KIND, id='known', sharded='sharded index' in features, **common)
        @colored('known')
        async def known(uid: str, spec: Any, **_: Any) -> Any:
            return {uid: spec['n'], spec['n']: uid}

    if 'others' in features:
        @kopf.index(OTHERS, id='others', **common)
        @colored('others')
        async def others(name: str, **_: Any) -> Any:
            return {name: name}

    if 'children' in features:
        @kopf.reconcile(KIND, id='children', owns=['configmaps'], **common)
        @recorded('children', 'change')
        async def children(name: str, uid: str, spec: Any, **_: Any) -> Any:
            return make_children(name, uid, spec)

    if 'admission' in features:
        webhook: dict[str, Any] = {
            'persistent': 'persistent' in features, 'ignore_failures': 'ignoring' in features,
            **common}

        @kopf.on.mutate(KIND, id='mutating', operations={'CREATE', 'UPDATE'}, **webhook)
        @colored('mutating')
        async def mutating(spec: Any, patch: Any, dryrun: bool, **_: Any) -> None:
            recorder.review(process, 'mutating', spec['n'], is_dry=dryrun)
            await consider('mutating', spec['n'])
            if spec.get('stamp') != spec['n']:
                patch.spec['stamp'] = spec['n']

        @kopf.on.validate(KIND, id='validating', **webhook)
        @colored('validating')
        async def validating(spec: Any, old: Any, dryrun: bool, **_: Any) -> None:
            recorder.review(process, 'validating', spec['n'], is_dry=dryrun)
            await consider('validating', spec['n'])
            if is_bad(spec['n']) and (old is None or old.spec['n'] != spec['n']):
                raise kopf.AdmissionError(REFUSAL, code=422)

    return registry


IDLE = 4.0
"""For how long (seconds) an object must not have changed before its idle timer is called."""

DELAY = 2.0
"""How much later (seconds) the delayed daemons and timers begin."""

SLOW = 0.15
"""How many of the sync daemons are abandoned, as they do not stop in time."""

BACKOFF = 1.5
"""The backoff after arbitrary errors, in seconds."""


def make_children(name: str, uid: str, spec: Any) -> list[dict[str, Any]]:
    return [
        {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-{i}'},
         'data': {'uid': uid, 'k': str(spec.get('k'))}}
        for i in range(spec.get('k') or 0)]
