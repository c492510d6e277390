"""
Operators that are killed, or stopped, at any of their requests, and started again.

Handlers write down their calls to a file at once, so it is known what they have done in spite of
the sudden death. The attempts of a handler are told apart by their ``retry``: the same one twice
is a repetition.
"""

import asyncio
import collections
import dataclasses
import json
import pathlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from tests.e2e.kubes import Kind, Kube, KubeError, Object
from tests.e2e.operators import Operator
from tests.e2e.proxy import Dropped, Interceptor, Moment, Proxy, Request

PREFIX = 'kopf.zalando.org'
LAST_HANDLED = f'{PREFIX}/last-handled-configuration'
FINALIZER = f'{PREFIX}/KopfFinalizerMarker'

FLUSH_DELAY = 1.0
"""The default of the setting: how old an outcome becomes until it is written."""

GRACE = 0.5
"""How long (seconds) it can take to write it then, on a busy machine."""

COMMON = '''
import asyncio, functools, json, os, time
FRESH = {'labels': {'sentinel': kopf.ABSENT}}

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.execution.default_backoff = 0.1
    settings.persistence.flush_delay = float(os.environ['FLUSH_DELAY'])

@kopf.on.create(*KIND, id='sentinel', labels={'sentinel': kopf.PRESENT})
def see_sentinel(**_):
    pass

def record(name, id, retry):
    with open(os.environ['CALLS'], 'a') as file:
        call = {'name': name, 'id': id, 'retry': retry, 'time': time.time()}
        file.write(json.dumps(call) + '\\n')
'''

CREATION = '''
@kopf.on.create(*KIND, **FRESH)
def simple(name, retry, **_):
    record(name, 'simple', retry)
    return {'number': 1}

@kopf.on.create(*KIND, **FRESH)
def retried(name, retry, **_):
    record(name, 'retried', retry)
    if retry < 2:
        raise kopf.TemporaryError("not yet", delay=0.1)
    return f'after {retry}'

@kopf.on.create(*KIND, **FRESH)
async def patching(name, retry, patch, **_):
    record(name, 'patching', retry)
    patch.spec['added'] = 'value'
    patch.status['own'] = 'field'

@kopf.on.create(*KIND, **FRESH)
def failing(name, retry, **_):
    record(name, 'failing', retry)
    raise kopf.PermanentError("no way")

@kopf.on.update(*KIND, **FRESH)
def updated(name, retry, **_):
    record(name, 'updated', retry)
'''

DELETION = '''
@kopf.on.delete(*KIND, **FRESH)
def deleted(name, retry, **_):
    record(name, 'deleted', retry)

@kopf.on.delete(*KIND, **FRESH)
def releasing(name, retry, **_):
    record(name, 'releasing', retry)
    if retry < 2:
        raise kopf.TemporaryError("not yet", delay=0.1)
    return 'to nobody'

@kopf.on.delete(*KIND, **FRESH)
async def optional(name, retry, patch, **_):
    record(name, 'optional', retry)
    patch.status['own'] = 'field'
'''

UPDATE = '''
@kopf.on.update(*KIND, **FRESH)
def simple(name, retry, diff, old, new, **_):
    record(name, 'simple', retry)
    return [str(diff), old, new]

@kopf.on.field(*KIND, field='spec.size', **FRESH)
def retried(name, retry, old, new, **_):
    record(name, 'retried', retry)
    if retry < 2:
        raise Exception("not yet")
    return [old, new]

@kopf.on.update(*KIND, **FRESH)
async def relabelling(name, retry, patch, old, new, **_):
    record(name, 'relabelling', retry)
    patch.meta.labels['size'] = str(new['spec']['size'])
'''

SUBHANDLERS = '''
@kopf.on.create(*KIND, **FRESH)
async def parent(name, spec, **_):
    @kopf.subhandler(id='simple')
    def simple(name, retry, **_):
        record(name, 'parent/simple', retry)
        return 1

    async def run_retried(item, name, retry, **_):
        record(name, f'parent/{item}', retry)
        if retry < spec['items'][item]:
            raise kopf.TemporaryError("not yet", delay=0.1)
        return item

    for item in spec['items']:
        kopf.register(functools.partial(run_retried, item), id=item)

    @kopf.subhandler(id='grandparent')
    async def grandparent(**_):
        @kopf.subhandler(id='deep')
        def deep(name, retry, **_):
            record(name, 'parent/grandparent/deep', retry)
            if retry < 1:
                raise kopf.TemporaryError("not yet", delay=0.1)

    @kopf.subhandler(id='failing')
    def failing(name, retry, **_):
        record(name, 'parent/failing', retry)
        raise kopf.PermanentError("no way")

@kopf.on.create(*KIND, **FRESH)
def neighbour(name, retry, **_):
    record(name, 'neighbour', retry)
    return 2
'''


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What happens to an object, and what is to come of it in the end."""

    text: str
    attempts: Mapping[str, int]
    """The handlers, and how many attempts each of them needs."""
    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    handled_spec: Mapping[str, Any] | None = None
    """The spec of the last-handled state before, if the object is to have one."""
    finalizers: Sequence[str] = ()
    deleted: bool = False
    final: Mapping[str, Any] | None = None
    """The spec, status, labels, finalizers in the end; None if the object is to be gone."""

    async def prepare(self, kube: Kube, kind: Kind, name: str) -> Object:
        handled = {LAST_HANDLED: encode({'spec': self.handled_spec})}
        obj = await kube.create(
            kind, name, spec=self.spec, finalizers=list(self.finalizers),
            annotations=None if self.handled_spec is None else handled)
        if self.deleted:
            await kube.delete(kind, name)
        return obj


SCENARIOS = {
    'creation': Scenario(
        CREATION,
        attempts={'simple': 1, 'retried': 3, 'patching': 1, 'failing': 1},
        spec={'size': 1},
        final={
            'spec': {'size': 1, 'added': 'value'},
            'status': {'simple': {'number': 1}, 'retried': 'after 2', 'own': 'field'},
        },
    ),
    'creation with finalizers': Scenario(
        CREATION + DELETION,
        attempts={'simple': 1, 'retried': 3, 'patching': 1, 'failing': 1},
        spec={'size': 1},
        final={
            'spec': {'size': 1, 'added': 'value'},
            'status': {'simple': {'number': 1}, 'retried': 'after 2', 'own': 'field'},
            'finalizers': [FINALIZER],
        },
    ),
    'update': Scenario(
        UPDATE,
        attempts={'simple': 1, 'retried': 3, 'relabelling': 1},
        spec={'size': 2},
        handled_spec={'size': 1},
        finalizers=[FINALIZER],
        final={
            'spec': {'size': 2},
            'labels': {'size': '2'},
            'status': {
                'simple': ["(('change', ('spec', 'size'), 1, 2),)",
                           {'spec': {'size': 1}}, {'spec': {'size': 2}}],
                'retried': [1, 2],
            },
        },
    ),
    'deletion': Scenario(
        DELETION,
        attempts={'deleted': 1, 'releasing': 3, 'optional': 1},
        spec={'size': 1},
        handled_spec={'size': 1},
        finalizers=[FINALIZER],
        deleted=True,
    ),
    'sub-handlers': Scenario(
        SUBHANDLERS,
        attempts={
            'parent/simple': 1, 'parent/one': 2, 'parent/two': 3, 'parent/failing': 1,
            'parent/grandparent/deep': 2, 'neighbour': 1},
        spec={'items': {'one': 1, 'two': 2}},
        final={
            'spec': {'items': {'one': 1, 'two': 2}},
            'status': {
                'parent/simple': 1, 'parent/one': 'one', 'parent/two': 'two', 'neighbour': 2},
        },
    ),
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a handler, as it has written it down."""

    name: str
    id: str
    retry: int
    time: float


class Strike:
    """Hits the operator at its n-th request about the objects of a kind, once."""

    def __init__(self, kind: Kind, step: int, moment: Moment, signum: signal.Signals) -> None:
        super().__init__()
        self.operator: Operator | None = None
        self.request: Request | None = None
        self.time = 0.0
        self._kind = kind
        self._step = step
        self._moment = moment
        self._signum = signum
        self._requests: list[Request] = []

    @property
    def is_committed(self) -> bool:
        """Whether it was hit by the end of an only PATCH, so that nothing is in flight."""
        return self.request is not None and self.request.status == 200 and (
            self.request.method == 'PATCH')

    def __call__(self, request: Request, moment: Moment) -> None:
        if f'/{self._kind.plural}' in request.path and moment == 'before':
            self._requests.append(request)
        if request in self._requests[self._step - 1:self._step] and moment == self._moment:
            assert self.operator is not None
            self.request = request
            self.time = time.time()
            if self._signum == signal.SIGKILL:
                self.operator.kill()
                raise Dropped
            self.operator.send(self._signum)

    def __str__(self) -> str:
        return f"{self._signum.name} {self._moment} request #{self._step}: {self.request}"


class Arena:
    """All that is needed to play a scenario again and again, on one object after another."""

    def __init__(
            self,
            kube: Kube,
            kind: Kind,
            scenario: Scenario,
            start: Callable[..., Operator],
            proxy: Proxy,
            calls: pathlib.Path,
            *,
            flush_delay: float,
            status: bool,
    ) -> None:
        super().__init__()
        self.status = status
        self.kube = kube
        self.kind = kind
        self.scenario = scenario
        self.flush_delay = flush_delay
        self._start = start
        self._proxy = proxy
        self._calls = calls

    def start(self, interceptor: Interceptor = lambda request, moment: None) -> Operator:
        self._proxy.interceptor = interceptor
        return self._start(
            COMMON + self.scenario.text, kind=self.kind, kubeconfig=self._proxy.kubeconfig,
            env={'CALLS': str(self._calls), 'FLUSH_DELAY': str(self.flush_delay)})

    def get_calls(self, name: str) -> list[Call]:
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        calls = [Call(**json.loads(line)) for line in lines]
        return [call for call in calls if call.name == name]

    async def strike(self, step: int, moment: Moment, signum: signal.Signals) -> bool:
        """
        Hit the operator once, see what it has left behind, and what another one makes of it.

        False if it was done before it came to that step.
        """
        name = f'object{step}'
        obj = await self.scenario.prepare(self.kube, self.kind, name)
        strike = Strike(self.kind, step, moment, signum)
        strike.operator = operator = self.start(strike)
        await self._wait(lambda: strike.request is not None, name)
        if strike.request is None:
            operator.send(signal.SIGTERM)
        exit_code = await operator.wait()
        await self._wait_for_answers()
        assert exit_code == (-signum if strike.request and signum == signal.SIGKILL else 0)

        saved = await self.get_attempts(name)
        before = self.get_calls(name)
        lost = [call for call in before if call.retry >= saved[call.id]]
        if signum == signal.SIGKILL:
            self.check_bound(lost, strike)
        else:
            assert not lost, f"{strike}\n{lost}"

        operator = self.start()
        await self._wait(lambda: False, name)
        await self.wait_at_rest(step)
        operator.stop()
        after = self.get_calls(name)[len(before):]
        for id, count in self.scenario.attempts.items():
            assert [c.retry for c in before if c.id == id and c not in lost] == [*range(saved[id])]
            assert [c.retry for c in after if c.id == id] == [*range(saved[id], count)], (
                f"{id} after {strike}")
        assert {call.id for call in before + after} == self.scenario.attempts.keys(), f"{strike}"
        await self.check_object(obj, name)
        return strike.request is not None

    def check_bound(self, lost: Sequence[Call], strike: Strike) -> None:
        """What was done but not saved is what may be done again: only the very last of it."""
        if self.flush_delay:
            oldest = min((call.time for call in lost), default=strike.time)
            assert oldest >= strike.time - self.flush_delay - GRACE, f"{strike}\n{lost}"
        elif strike.is_committed and not self.status:
            assert not lost, f"{strike}\n{lost}"
        else:
            assert len(lost) <= 1, f"{strike}\n{lost}"

    async def check_object(self, original: Object, name: str) -> None:
        """Everything is on the object that is to be, and nothing else."""
        obj = await self.find(name)
        if self.scenario.final is None:
            assert obj is None
            return
        meta = obj['metadata']
        essence = {'spec': self.scenario.final['spec']}
        if 'labels' in self.scenario.final:
            essence['metadata'] = {'labels': self.scenario.final['labels']}
        assert meta['uid'] == original['metadata']['uid']
        assert meta['annotations'].keys() == {LAST_HANDLED}
        assert json.loads(meta['annotations'][LAST_HANDLED]) == essence
        assert {
            'spec': obj['spec'],
            **{key: obj[key] for key in ('status',) if key in obj},
            **{key: meta[key] for key in ('labels', 'finalizers') if key in meta},
        } == self.scenario.final

    async def get_attempts(self, name: str) -> Mapping[str, int]:
        """How many attempts of each handler the object knows of."""
        obj = await self.find(name)
        if self._is_settled(obj):
            return self.scenario.attempts
        annotations = obj['metadata'].get('annotations', {})
        keys = {id: f"{PREFIX}/{id.replace('/', '.')}" for id in self.scenario.attempts}
        return {
            id: json.loads(annotations[key])['retries'] if key in annotations else 0
            for id, key in keys.items()}

    async def find(self, name: str) -> Object | None:
        try:
            return await self.kube.get(self.kind, name)
        except KubeError as e:
            if e.status != 404:
                raise
            return None

    async def wait_at_rest(self, step: int) -> None:
        """Wait until all that has happened so far is also seen by the operator."""
        await self.kube.create(self.kind, f'sentinel{step}', labels={'sentinel': 'yes'})
        await self.kube.wait_for(
            self.kind, f'sentinel{step}', lambda obj: LAST_HANDLED in obj['metadata']['annotations'])

    def _is_settled(self, obj: Object | None) -> bool:
        if obj is None or self.scenario.deleted:
            return obj is None
        handled = obj['metadata'].get('annotations', {}).get(LAST_HANDLED)
        return handled is not None and json.loads(handled)['spec'] != self.scenario.handled_spec

    async def _wait(self, condition: Callable[[], bool], name: str) -> None:
        """Wait for the condition, or until the object is settled."""
        deadline = time.monotonic() + 10
        while not condition():
            obj = await self.find(name)
            if self._is_settled(obj):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"The object does not get settled: {obj}")
            await asyncio.sleep(0.02)

    async def _wait_for_answers(self) -> None:
        while not all(request.done for request in self._proxy.requests):
            await asyncio.sleep(0.01)


def encode(essence: Any) -> str:
    """How last-handled states are stored."""
    return json.dumps(essence, separators=(',', ':')) + '\n'


@pytest.fixture()
async def make_arena(
        kube: Kube,
        make_kind: Callable[..., Awaitable[Kind]],
        operator: Callable[..., Operator],
        cluster: str,
        tmp_path: pathlib.Path,
) -> AsyncIterator[Callable[..., Awaitable[Arena]]]:
    with Proxy(cluster, tmp_path) as proxy:
        async def make(
                scenario: Scenario, *, flush_delay: float = FLUSH_DELAY, status: bool = False,
        ) -> Arena:
            kind = await make_kind(status=status)
            return Arena(kube, kind, scenario, operator, proxy, tmp_path / 'calls.txt',
                         flush_delay=flush_delay, status=status)

        yield make


@pytest.mark.parametrize('moment', ['before', 'after'])
@pytest.mark.parametrize('flush_delay', [0, FLUSH_DELAY])
@pytest.mark.parametrize('status', [False, True], ids=['', 'status'])
@pytest.mark.parametrize('scenario', SCENARIOS.values(), ids=SCENARIOS)
async def test_killed_at_any_request_it_goes_on_from_what_was_saved(
        make_arena: Callable[..., Awaitable[Arena]],
        scenario: Scenario,
        status: bool,
        flush_delay: float,
        moment: Moment,
) -> None:
    arena = await make_arena(scenario, flush_delay=flush_delay, status=status)
    step = 1
    while await arena.strike(step, moment, signal.SIGKILL):
        step += 1
    assert step > 3


@pytest.mark.parametrize('moment', ['before', 'after'])
@pytest.mark.parametrize('scenario', SCENARIOS.values(), ids=SCENARIOS)
async def test_stopped_at_any_request_it_repeats_nothing(
        make_arena: Callable[..., Awaitable[Arena]], scenario: Scenario, moment: Moment,
) -> None:
    arena = await make_arena(scenario)
    step = 1
    while await arena.strike(step, moment, signal.SIGTERM):
        step += 1
    assert step > 3
