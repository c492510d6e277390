"""
Operators that are killed, or stopped, at any of their requests, and started again.

Handlers write down their calls to a file at once, so it is known what they have done in spite of
the sudden death. The attempts of a handler are told apart by their ``retry``: the same one twice
is a repetition.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import pathlib
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.journals import FINALIZER, LAST_HANDLED, PREFIX, get_essence
from tests.e2e.kubes import NAMESPACES, Kind, Kube, KubeError, Object
from tests.e2e.operators import Operator
from tests.e2e.proxy import Proxy
from tests.e2e.strikes import Moment, Strike

CONCURRENCY = 3
"""How many steps are tried at once, each in a namespace of its own."""

FLUSH_DELAY = 1.0
"""The default of the setting: how old an outcome becomes until it is written."""

MERGE_PATCH = 'application/merge-patch+json'

GRACE = 0.5
"""How long (seconds) it can take to write it then, on a busy machine."""

COMMON = r'''
import asyncio, functools, json, os, time
FRESH = {'labels': {'sentinel': kopf.ABSENT}}

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = bool(os.environ.get('POSTING'))
    settings.execution.default_backoff = 0.1
    settings.persistence.flush_delay = float(os.environ['FLUSH_DELAY'])

@kopf.on.create(*KIND, id='sentinel', labels={'sentinel': kopf.PRESENT})
def see_sentinel(**_):
    pass

def record(id, retry):
    with open(os.environ['CALLS'], 'a') as file:
        file.write(json.dumps({'id': id, 'retry': retry, 'time': time.time()}) + '\n')
'''

CREATION = '''
@kopf.on.create(*KIND, **FRESH)
def simple(retry, **_):
    record('simple', retry)
    return {'number': 1}

@kopf.on.create(*KIND, **FRESH)
def retried(retry, **_):
    record('retried', retry)
    if retry < 2:
        raise kopf.TemporaryError("not yet", delay=0.1)
    return f'after {retry}'

@kopf.on.create(*KIND, **FRESH)
async def patching(retry, patch, **_):
    record('patching', retry)
    patch.spec['added'] = 'value'
    patch.status['own'] = 'field'

@kopf.on.create(*KIND, **FRESH)
def transforming(retry, patch, **_):
    record('transforming', retry)
    patch.fns.append(lambda body: body['spec'].update(made='by a function'))

@kopf.on.create(*KIND, **FRESH)
def failing(retry, **_):
    record('failing', retry)
    raise kopf.PermanentError("no way")

@kopf.on.update(*KIND, **FRESH)
def updated(retry, **_):
    record('updated', retry)
'''

DELETION = '''
@kopf.on.delete(*KIND, **FRESH)
def deleted(retry, **_):
    record('deleted', retry)

@kopf.on.delete(*KIND, **FRESH)
def releasing(retry, **_):
    record('releasing', retry)
    if retry < 2:
        raise kopf.TemporaryError("not yet", delay=0.1)
    return 'to nobody'

@kopf.on.delete(*KIND, **FRESH)
async def patching_too(retry, patch, **_):
    record('patching_too', retry)
    patch.status['own'] = 'field'
'''

UPDATE = '''
@kopf.on.update(*KIND, **FRESH)
def simple(retry, diff, old, new, **_):
    record('simple', retry)
    return [str(diff), old, new]

@kopf.on.field(*KIND, field='spec.size', **FRESH)
def retried(retry, old, new, **_):
    record('retried/spec.size', retry)
    if retry < 2:
        raise Exception("not yet")
    return [old, new]

@kopf.on.update(*KIND, **FRESH)
async def labelling(retry, patch, new, **_):
    record('labelling', retry)
    patch.meta.labels['size'] = str(new['spec']['size'])
'''

SUBHANDLERS = '''
@kopf.on.create(*KIND, **FRESH)
async def parent(spec, **_):
    @kopf.subhandler(id='simple')
    def simple(retry, **_):
        record('parent/simple', retry)
        return 1

    async def run_retried(item, retry, **_):
        record(f'parent/{item}', retry)
        if retry < spec['items'][item]:
            raise kopf.TemporaryError("not yet", delay=0.1)
        return item

    for item in spec['items']:
        kopf.register(functools.partial(run_retried, item), id=item)

    @kopf.subhandler(id='grandparent')
    async def grandparent(**_):
        @kopf.subhandler(id='deep')
        def deep(retry, **_):
            record('parent/grandparent/deep', retry)
            if retry < 1:
                raise kopf.TemporaryError("not yet", delay=0.1)

    @kopf.subhandler(id='failing')
    def failing(retry, **_):
        record('parent/failing', retry)
        raise kopf.PermanentError("no way")

@kopf.on.create(*KIND, **FRESH)
def neighbour(retry, **_):
    record('neighbour', retry)
    return 2
'''

LEAVING = '''
import asyncio

@kopf.on.create(*KIND)
def create(**_):
    pass

@kopf.on.cleanup()
async def leave(logger, **_):
    logger.info("is leaving")
    await asyncio.sleep(0.5)
    logger.info("has left")
'''

SLOW = '''
async def run_slowly(param, retry, **_):
    await asyncio.sleep(0.4)
    record(param, retry)
    return param

for name in 'abcdef':
    kopf.on.create(*KIND, id=name, param=name, **FRESH)(run_slowly)
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
    final: Mapping[str, Any] | None = None
    """The spec, status, labels, finalizers in the end; None if the object is to be deleted."""

    async def prepare(self, kube: Kube, kind: Kind, namespace: str) -> Object:
        handled = {LAST_HANDLED: json.dumps({'spec': self.handled_spec})}
        obj = await kube.create(
            kind, 'object', namespace=namespace, spec=self.spec, finalizers=list(self.finalizers),
            annotations=None if self.handled_spec is None else handled)
        if self.final is None:
            await kube.delete(kind, 'object', namespace=namespace)
        return obj


SCENARIOS = {
    'creation': Scenario(
        CREATION + DELETION,
        attempts={'simple': 1, 'retried': 3, 'patching': 1, 'transforming': 1, 'failing': 1},
        spec={'size': 1},
        final={
            'spec': {'size': 1, 'added': 'value', 'made': 'by a function'},
            'status': {'simple': {'number': 1}, 'retried': 'after 2', 'own': 'field'},
            'finalizers': [FINALIZER],
        },
    ),
    'update': Scenario(
        UPDATE,
        attempts={'simple': 1, 'retried/spec.size': 3, 'labelling': 1},
        spec={'size': 2},
        handled_spec={'size': 1},
        finalizers=[FINALIZER],
        final={
            'spec': {'size': 2},
            'labels': {'size': '2'},
            'status': {
                'simple': ["(('change', ('spec', 'size'), 1, 2),)",
                           {'spec': {'size': 1}}, {'spec': {'size': 2}}],
                'retried/spec.size': [1, 2],
            },
        },
    ),
    'deletion': Scenario(
        DELETION,
        attempts={'deleted': 1, 'releasing': 3, 'patching_too': 1},
        spec={'size': 1},
        handled_spec={'size': 1},
        finalizers=[FINALIZER],
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

SLOWNESS = Scenario(
    SLOW, attempts=dict.fromkeys('abcdef', 1), spec={'size': 1},
    final={'spec': {'size': 1}, 'status': dict(zip('abcdef', 'abcdef', strict=True))})


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a handler, as it has written it down."""

    id: str
    retry: int
    time: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arena:
    """A place where a scenario is played once, with nothing else in it."""

    kube: Kube
    kind: Kind
    namespace: str
    scenario: Scenario
    proxy: Proxy
    kubeconfig: str
    calls: pathlib.Path
    run: Callable[..., Operator]
    env: Mapping[str, str]

    def start(self) -> Operator:
        return self.run(
            COMMON + self.scenario.text, kind=self.kind, kubeconfig=self.kubeconfig,
            scope=('--namespace', self.namespace, '--standalone', '--verbose'),
            env={**self.env, 'CALLS': str(self.calls)})

    def get_calls(self) -> list[Call]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [Call(**json.loads(line)) for line in lines]

    async def find(self) -> Object | None:
        try:
            return await self.kube.get(self.kind, 'object', namespace=self.namespace)
        except KubeError as e:
            if e.status != 404:
                raise
            return None

    def is_settled(self, obj: Object | None) -> bool:
        if obj is None or self.scenario.final is None:
            return obj is None
        handled = obj['metadata'].get('annotations', {}).get(LAST_HANDLED)
        return handled is not None and json.loads(handled)['spec'] != self.scenario.handled_spec

    async def get_attempts(self) -> Mapping[str, int]:
        """How many attempts of each handler are persisted."""
        obj = await self.find()
        if obj is None or self.is_settled(obj):
            return self.scenario.attempts
        annotations = obj['metadata'].get('annotations', {})
        keys = {id: PREFIX + id.replace('/', '.') for id in self.scenario.attempts}
        return {
            id: json.loads(annotations[key])['retries'] if key in annotations else 0
            for id, key in keys.items()}

    async def wait_until(self, condition: Callable[[], bool] = lambda: False) -> None:
        """Wait for the condition, or until the object is settled."""
        deadline = time.monotonic() + 30
        while not condition() and not self.is_settled(obj := await self.find()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The object does not get settled: {obj}")
            await asyncio.sleep(0.02)

    async def wait_at_rest(self) -> None:
        """Wait until all that has happened so far is also seen by the operator."""
        await self.kube.create(
            self.kind, 'sentinel', namespace=self.namespace, labels={'sentinel': 'yes'})
        await self.kube.wait_for(
            self.kind, 'sentinel', lambda obj: LAST_HANDLED in obj['metadata']['annotations'],
            namespace=self.namespace)

    async def be_struck(self, strike: Strike) -> None:
        """Start an operator to be hit, and wait until it is, or has nothing more to do."""
        fault = self.proxy.inject(strike.act, match=strike.does_count, times=None)
        strike.operator = self.start()
        await self.wait_until(lambda: strike.request is not None)
        was_struck = not strike.call_off()
        if not was_struck:
            strike.operator.send(signal.SIGTERM)
        exit_code = await strike.operator.wait()
        was_killed = was_struck and strike.signum == signal.SIGKILL
        assert exit_code == (-signal.SIGKILL if was_killed else 0)
        fault.end()
        while not self.proxy.is_idle:
            await asyncio.sleep(0.01)

    async def finish(self) -> None:
        """Let an operator do all that is left, without any interference."""
        operator = self.start()
        await self.wait_until()
        await self.wait_at_rest()
        operator.send(signal.SIGTERM)
        assert await operator.wait() == 0

    async def check_object(self, original: Object) -> None:
        """Everything is on the object that is to be, and nothing else."""
        obj = await self.find()
        if obj is None or self.scenario.final is None:
            assert obj is None and self.scenario.final is None
            return
        meta = obj['metadata']
        assert meta['uid'] == original['metadata']['uid']
        assert meta['annotations'].keys() == {LAST_HANDLED}
        assert json.loads(meta['annotations'][LAST_HANDLED]) == get_essence(obj)
        assert {
            'spec': obj['spec'],
            **{key: obj[key] for key in ('status',) if key in obj},
            **{key: meta[key] for key in ('labels', 'finalizers') if key in meta},
        } == self.scenario.final


Play = Callable[..., contextlib.AbstractAsyncContextManager[Arena]]


@pytest.fixture()
def play(
        kube: Kube,
        borrow: Callable[..., Kind],
        operator: Callable[..., Operator],
        cluster: str,
        tmp_path: pathlib.Path,
) -> Play:
    """Make arenas for a scenario."""
    kinds: dict[bool, Kind] = {}

    @contextlib.asynccontextmanager
    async def make(
            scenario: Scenario, *, status: bool = False, **env: object,
    ) -> AsyncIterator[Arena]:
        if status not in kinds:
            kinds[status] = borrow(status=status)
        namespace = f'ns-{uuid.uuid4().hex[:8]}'
        await kube.create(NAMESPACES, namespace)
        try:
            with Proxy(cluster) as proxy:
                yield Arena(
                    kube=kube, kind=kinds[status], namespace=namespace, scenario=scenario,
                    proxy=proxy, kubeconfig=proxy.write_kubeconfig(tmp_path / f'{namespace}.yaml'),
                    calls=tmp_path / f'{namespace}.txt', run=operator,
                    env={key.upper(): str(val) for key, val in env.items()})
        finally:
            await kube.delete(NAMESPACES, namespace)

    return make


Check = Callable[[list[Call], Strike], None]
"""What is to be true of the calls which were made, but not persisted."""


def check_at_most_one(lost: list[Call], strike: Strike) -> None:
    assert len(lost) <= 1, f"{strike}\n{lost}"


def check_only_the_newest(lost: list[Call], strike: Strike) -> None:
    oldest = min((call.time for call in lost), default=strike.time)
    assert oldest >= strike.time - FLUSH_DELAY - GRACE, f"{strike}\n{lost}"


def check_none(lost: list[Call], strike: Strike) -> None:
    assert not lost, f"{strike}\n{lost}"


async def hit(arena: Arena, strike: Strike, check: Check) -> bool:
    """
    Hit the operator once, see what it has left behind, and what another one makes of it.

    False if the operator was done before it came to that step.
    """
    original = await arena.scenario.prepare(arena.kube, arena.kind, arena.namespace)
    await arena.be_struck(strike)
    saved = await arena.get_attempts()
    before = arena.get_calls()
    lost = [call for call in before if call.retry >= saved[call.id]]
    check(lost, strike)

    await arena.finish()
    after = arena.get_calls()[len(before):]
    for id, attempts in arena.scenario.attempts.items():
        kept = [call.retry for call in before if call.id == id and call not in lost]
        more = [call.retry for call in after if call.id == id]
        assert kept == [*range(saved[id])], f"{id} before {strike}"
        assert more == [*range(saved[id], attempts)], f"{id} after {strike}"
    assert {call.id for call in before + after} == arena.scenario.attempts.keys(), str(strike)
    await arena.check_object(original)
    return strike.request is not None


async def hit_everywhere(
        play: Play,
        scenario: Scenario,
        moment: Moment,
        signum: signal.Signals,
        check: Check,
        *,
        about_others: bool = False,
        **options: Any,
) -> None:
    """
    Hit the operator at its every request about the object, until it is done before it is hit.

    Or, at its requests about all the other things that concern it.
    """
    async def try_step(step: int) -> bool:
        async with play(scenario, **options) as arena:
            part = f'/{arena.kind.plural}'
            strike = Strike(
                step, moment, signum,
                does_count=lambda request: (part in request.path) != about_others)
            return await hit(arena, strike, check)

    for first in itertools.count(1, CONCURRENCY):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(try_step(first + i)) for i in range(CONCURRENCY)]
        if not all(task.result() for task in tasks):
            assert first > 1 or tasks[-2].result(), "There are too few requests to be true."
            return


moments = pytest.mark.parametrize('moment', ['before', 'after'])
scenarios = pytest.mark.parametrize('scenario', SCENARIOS.values(), ids=SCENARIOS)
scenarios_with_status = pytest.mark.parametrize(
    ('scenario', 'status'),
    [pytest.param(scenario, False, id=name) for name, scenario in SCENARIOS.items()] +
    [pytest.param(SCENARIOS[name], True, id=f'{name}-status') for name in ('creation', 'deletion')])


@moments
@scenarios_with_status
async def test_killed_at_any_request_it_repeats_at_most_one_handler_if_each_is_saved_at_once(
        play: Play, scenario: Scenario, status: bool, moment: Moment,
) -> None:
    await hit_everywhere(
        play, scenario, moment, signal.SIGKILL, check_at_most_one, status=status, flush_delay=0)


@moments
@scenarios
async def test_killed_at_any_request_it_repeats_only_the_handlers_of_the_last_second(
        play: Play, scenario: Scenario, moment: Moment,
) -> None:
    await hit_everywhere(
        play, scenario, moment, signal.SIGKILL, check_only_the_newest, flush_delay=FLUSH_DELAY)


@moments
async def test_killed_at_any_request_it_has_saved_what_slow_handlers_have_done_before(
        play: Play, moment: Moment,
) -> None:
    await hit_everywhere(
        play, SLOWNESS, moment, signal.SIGKILL, check_only_the_newest, flush_delay=FLUSH_DELAY)


@moments
async def test_killed_at_any_request_about_anything_else_it_goes_on(
        play: Play, moment: Moment,
) -> None:
    await hit_everywhere(
        play, SCENARIOS['creation'], moment, signal.SIGKILL, check_only_the_newest,
        flush_delay=FLUSH_DELAY, posting=True, about_others=True)


@moments
@scenarios
async def test_stopped_at_any_request_it_repeats_nothing(
        play: Play, scenario: Scenario, moment: Moment,
) -> None:
    await hit_everywhere(
        play, scenario, moment, signal.SIGTERM, check_none, flush_delay=FLUSH_DELAY)


@moments
async def test_stopped_at_any_request_with_slow_handlers_it_repeats_nothing(
        play: Play, moment: Moment,
) -> None:
    await hit_everywhere(
        play, SLOWNESS, moment, signal.SIGTERM, check_none, flush_delay=FLUSH_DELAY)


@scenarios_with_status
async def test_killed_after_each_patch_it_comes_to_the_end_and_repeats_nothing(
        play: Play, scenario: Scenario, status: bool,
) -> None:
    async with play(scenario, status=status, flush_delay=0) as arena:
        original = await scenario.prepare(arena.kube, arena.kind, arena.namespace)
        while not arena.is_settled(await arena.find()):
            strike = Strike(1, 'after', signal.SIGKILL, does_count=is_committing)
            await arena.be_struck(strike)
        await arena.finish()
        for id, attempts in scenario.attempts.items():
            made = [call.retry for call in arena.get_calls() if call.id == id]
            assert made == [*range(attempts)], id
        await arena.check_object(original)


def is_committing(request: web.Request) -> bool:
    """Whether it is the last one where several PATCHes are needed: the status goes before."""
    return request.content_type == MERGE_PATCH and not request.path.endswith('/status')


async def test_signalled_again_it_finishes_what_it_was_finishing(
        operator: Callable[..., Operator], kind: Kind,
) -> None:
    instance = operator(LEAVING, kind=kind)
    await instance.wait_for('watch-stream for things')
    instance.send(signal.SIGTERM)
    await instance.wait_for('is leaving')
    instance.send(signal.SIGTERM)
    instance.send(signal.SIGINT)
    assert await instance.wait() == 0
    assert instance.find('has left')
