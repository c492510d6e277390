"""
This framework and its latest release on PyPI take turns on the same objects, in the middle of
handling too: neither repeats nor forgets what the other one has done, and in the end, the objects
are the same, whoever has handled them.

``$KOPF_RELEASE_PYTHON`` is an interpreter with the release; if not given, the release is installed
to the user's cache. Where it cannot be, the tests are skipped.
"""

import asyncio
import collections
import dataclasses
import fcntl
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import uuid
import venv
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.e2e.kubes import NAMESPACES, Kind, Kube, Object
from tests.e2e.operators import Operator

CYCLE = 'handling-cycle'
RELEASE = '1.45.2'
"""The version which has to agree with us."""

TEXT = r'''
import json, os
FRESH = {'labels': {'sentinel': kopf.ABSENT}}

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    persistence = settings.persistence
    prefix = 'op.example.com'
    match os.environ['STORAGE']:
        case 'prefix':
            persistence.finalizer = f'{prefix}/finalizer'
            persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix)
            persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=prefix)
        case 'status':
            persistence.progress_storage = kopf.StatusProgressStorage()
            persistence.diffbase_storage = kopf.StatusDiffBaseStorage()
        case 'multi':
            persistence.progress_storage = kopf.MultiProgressStorage([
                kopf.AnnotationsProgressStorage(prefix=prefix),
                kopf.StatusProgressStorage(name='op')])
            persistence.diffbase_storage = kopf.MultiDiffBaseStorage([
                kopf.StatusDiffBaseStorage(name='op'),
                kopf.AnnotationsDiffBaseStorage(prefix=prefix)])

@kopf.on.create(*KINDS[0], id='sentinel', labels={'sentinel': kopf.PRESENT})
def see_sentinel(**_):
    pass

def on(decorator, **kwargs):
    def decorate(fn):
        for kind in KINDS:
            fn = decorator(*kind, **FRESH, **kwargs)(fn)
        return fn
    return decorate

def record(id, resource, retry):
    with open(os.environ['CALLS'], 'a') as file:
        file.write(json.dumps({'plural': resource.plural, 'id': id, 'retry': retry}) + '\n')

def succeed_later(id, resource, retry):
    record(id, resource, retry)
    if retry < 1:
        raise kopf.TemporaryError("not yet", delay=5)
    return f'after {retry}'

def fail(id, resource, retry):
    record(id, resource, retry)
    raise kopf.PermanentError("no way")

@on(kopf.on.field, id='sized', field='spec.size')
def sized(resource, retry, old, new, **_):
    record('sized/spec.size', resource, retry)
    return [old, new]

def declare(verb):
    decorator = getattr(kopf.on, verb)

    @on(decorator, id=f'{verb}-simple')
    def simple(resource, retry, reason, diff, old, new, **_):
        record(f'{verb}-simple', resource, retry)
        return {
            'reason': reason, 'old': old, 'new': new, 'diff': sorted(str(item) for item in diff)}

    @on(decorator, id=f'{verb}-failing')
    def failing(resource, retry, **_):
        fail(f'{verb}-failing', resource, retry)

    @on(decorator, id=f'{verb}-patching')
    async def patching(resource, retry, patch, **_):
        record(f'{verb}-patching', resource, retry)
        patch.status['patched'] = verb
        if verb != 'resume':
            patch.spec['patched'] = verb
            patch.meta.labels['patched'] = verb

    @on(decorator, id=f'{verb}-parent')
    async def parent(**_):
        for sub in ['simple', 'failing', 'waiting']:
            register(sub)

    @on(decorator, id=f'{verb}-waiting')
    def waiting(resource, retry, **_):
        return succeed_later(f'{verb}-waiting', resource, retry)

    def register(sub):
        @kopf.subhandler(id=sub)
        def subhandler(resource, retry, **_):
            id = f'{verb}-parent/{sub}'
            match sub:
                case 'simple': record(id, resource, retry)
                case 'waiting': return succeed_later(id, resource, retry)
                case 'failing': fail(id, resource, retry)

for verb in os.environ['VERBS'].split():
    declare(verb)
'''

SUFFIXES = {
    'simple', 'waiting', 'failing', 'patching',
    'parent', 'parent.simple', 'parent.waiting', 'parent.failing'}
"""Parts of the names of all handlers for a cause."""

LAST_HANDLED = 'last-handled-configuration'
TIMES = {'started', 'stopped', 'delayed'}

Record = Mapping[str, Any]


@pytest.fixture(scope='session')
def release() -> Sequence[str]:
    """The command of the release."""
    given = os.environ.get('KOPF_RELEASE_PYTHON')
    cache = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser()
    path = cache / 'kopf-tests' / f'kopf-{RELEASE}-py{sys.version_info[0]}.{sys.version_info[1]}'
    python = pathlib.Path(given) if given else path / 'bin' / 'python'
    if not given:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(f'{path}.lock', 'w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the other processes of pytest need it, too
            if get_version(python) != RELEASE:
                install(path)
    version = get_version(python)
    if version != RELEASE:
        pytest.skip(f"There is no kopf {RELEASE} to compare with: {python} has {version}.")
    return str(python), '-I', '-u', '-m', 'kopf'


def get_version(python: pathlib.Path) -> str | None:
    command = [python, '-I', '-c', 'import kopf; print(kopf.__version__)']
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def install(path: pathlib.Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    command = [path / 'bin' / 'pip', 'install', '--quiet', f'kopf=={RELEASE}']
    try:
        venv.create(path, with_pip=True)
        subprocess.run(command, capture_output=True, check=True, text=True, timeout=100)
    except (OSError, subprocess.SubprocessError) as e:
        reason = getattr(e, 'stderr', None) or e
        pytest.skip(f"kopf {RELEASE} to compare with cannot be installed: {reason}")


@dataclasses.dataclass
class Story:
    """What has become of the objects, by the moments of their lives, and by their kinds."""

    settled: dict[str, Object] = dataclasses.field(default_factory=dict)
    pending: dict[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    calls: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    """The attempts of each handler."""


class Life:
    """Objects from their creation to their end, with operators that are replaced all the time."""

    def __init__(
            self,
            kube: Kube,
            kinds: Sequence[Kind],
            namespace: str,
            calls: pathlib.Path,
            start_operator: Callable[[str], Operator],
            *,
            places: int,
    ) -> None:
        super().__init__()
        self.story = Story()
        self._places = places
        self._kube = kube
        self._kinds = kinds
        self._namespace = namespace
        self._calls = calls
        self._start_operator = start_operator
        self._operator: Operator | None = None
        self._calls_seen = 0

    async def live(self) -> Story:
        # The release keeps resuming out of creations, in spite of its documentation.
        verbs = 'create update delete'
        await self.replace_operator(verbs)
        for kind in self._kinds:
            await self._kube.create(kind, 'object', namespace=self._namespace, spec={'size': 1})
        await self.note_pending('creating', 'create')
        await self.replace_operator(verbs)
        await self.note_settled('created')

        for kind in self._kinds:
            await self._kube.patch(
                kind, 'object', {'spec': {'size': 2}}, namespace=self._namespace)
        await self.note_pending('updating', 'update')
        await self.replace_operator()
        await self.note_settled('updated')

        await self.replace_operator()
        await self.note_pending('resuming', 'resume')
        await self.replace_operator()
        await self.note_settled('resumed')

        for kind in self._kinds:
            await self._kube.delete(kind, 'object', namespace=self._namespace)
        await self.note_pending('deleting', 'delete')
        await self.replace_operator()
        for kind in self._kinds:
            await self._kube.wait_gone(kind, 'object', namespace=self._namespace, timeout=30)
        await self.stop_operator()
        self._note_calls('deleted')
        return self.story

    async def replace_operator(self, verbs: str = 'create update resume delete') -> None:
        await self.stop_operator()
        self._operator = self._start_operator(verbs)
        self._is_released = self._operator.command is not OURS

    async def stop_operator(self) -> None:
        if self._operator is not None:
            self._operator.send(signal.SIGTERM)
            assert await self._operator.wait(timeout=30) == 0
            self._operator = None

    async def note_pending(self, moment: str, verb: str) -> None:
        """Wait until all handlers of the cause are tried once, then remember their progress."""
        def is_pending(obj: Object) -> bool:
            tried: dict[str, set[str]] = collections.defaultdict(set)
            for key, record in get_records(obj).items():
                place, own, suffix = key.partition(f'/{verb}-')
                is_tried = record['success'] or record['failure'] or record.get('delayed')
                if own:
                    tried[place] |= {suffix} if is_tried else set()
            return len(tried) == self._places and all(
                suffixes >= SUFFIXES for suffixes in tried.values())

        for kind in self._kinds:
            obj = await self._kube.wait_for(
                kind, 'object', is_pending, namespace=self._namespace, timeout=30)
            self.story.pending[f'{moment} {kind.plural}'] = {
                key: mask(record, is_parent=key.endswith('-parent'))
                for key, record in get_records(obj).items()}

    async def note_settled(self, moment: str) -> None:
        """Wait until there is nothing more to do, then remember the objects."""
        for kind in self._kinds:
            await self._wait_settled(kind, 'object')
        await self._kube.create(
            self._kinds[0], f'sentinel-{moment}', labels={'sentinel': 'yes'}, spec={},
            namespace=self._namespace)
        await self._wait_settled(self._kinds[0], f'sentinel-{moment}')
        for kind in self._kinds:
            obj = await self._wait_settled(kind, 'object')
            if self._is_released:
                forget_cycle(obj)
            meta = {key: obj['metadata'].get(key) for key in (
                'annotations', 'labels', 'finalizers')}
            self.story.settled[f'{moment} {kind.plural}'] = {
                **meta, 'spec': obj['spec'], 'status': obj['status']}
        self._note_calls(moment)

    async def _wait_settled(self, kind: Kind, name: str) -> Object:
        return await self._kube.wait_for(
            kind, name, is_settled, namespace=self._namespace, timeout=30)

    def _note_calls(self, moment: str) -> None:
        lines = self._calls.read_text().splitlines()
        for line in lines[self._calls_seen:]:
            call = json.loads(line)
            key = f"{moment} {call['plural']} {call['id']}"
            self.story.calls.setdefault(key, []).append(call['retry'])
        self._calls_seen = len(lines)


def get_records(obj: Object) -> Mapping[str, Record]:
    """The progress of the handlers, wherever it is."""
    annotations = obj['metadata'].get('annotations', {})
    records = {
        key: json.loads(val) for key, val in annotations.items() if val.startswith('{"started"')}
    for name in ('kopf', 'op'):
        progress = obj.get('status', {}).get(name, {}).get('progress', {})
        for id, record in progress.items():
            if id != CYCLE:
                records[f"status.{name}/{id.replace('/', '.')}"] = record
    return records


def mask(record: Record, *, is_parent: bool) -> list[tuple[str, Any]]:
    """What is to be equal of a record: in its order; without times, only whether they are set."""
    return [
        (key, '...' if key in TIMES and val is not None else val)
        for key, val in record.items() if key != 'retries' or not is_parent]


def forget_cycle(obj: Object) -> None:
    """
    Remove the record of a cycle, which the release does not know: it is left where the release has
    ended what we began. We ignore it, since it is of an older last-handled state, and remove it.
    """
    annotations = obj['metadata'].get('annotations', {})
    for key in [key for key in annotations if key.endswith(f'/{CYCLE}')]:
        assert json.loads(annotations.pop(key))['version'] == 1
    for stanza in obj.get('status', {}).values():
        if isinstance(stanza, dict):
            stanza.get('progress', {}).pop(CYCLE, None)


def is_settled(obj: Object) -> bool:
    """Whether its current spec is handled, and nothing is left to do."""
    annotations = obj['metadata'].get('annotations', {})
    stored = [val for key, val in annotations.items() if key.endswith(f'/{LAST_HANDLED}')]
    stored += [
        obj.get('status', {}).get(name, {}).get(LAST_HANDLED, '{}') for name in ('kopf', 'op')]
    handled = [json.loads(val) for val in stored]
    return not get_records(obj) and any(state.get('spec') == obj['spec'] for state in handled)


OURS = None


@pytest.fixture(scope='module', params=['default', 'prefix', 'status', 'multi'])
def stories(
        request: pytest.FixtureRequest,
        release: Sequence[str],
        cluster: str,
        tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, Story]:
    """The same life several times, with operators of one or of both frameworks in turns."""
    folder = tmp_path_factory.mktemp('stories')
    kinds = [Kind.make_unique(), Kind.make_unique()]
    handlers = folder / 'handlers.py'
    handlers.write_text(f'import kopf\nKINDS = {[kind.selector for kind in kinds]!r}\n{TEXT}')

    async def live(kube: Kube, commands: Sequence[Sequence[str] | None]) -> Story:
        namespace = f'ns-{uuid.uuid4().hex[:8]}'
        calls = folder / f'{namespace}.txt'
        turns = itertools.cycle(commands)
        started: list[Operator] = []

        def start_operator(verbs: str) -> Operator:
            started.append(Operator(
                ['--namespace', namespace, '--standalone', '--verbose', str(handlers)],
                kubeconfig=cluster, command=next(turns),
                env={'CALLS': str(calls), 'STORAGE': request.param, 'VERBS': verbs}))
            return started[-1]

        await kube.create(NAMESPACES, namespace)
        try:
            places = 2 if request.param == 'multi' else 1
            return await Life(
                kube, kinds, namespace, calls, start_operator, places=places).live()
        finally:
            for operator in started:
                operator.stop()
                print(operator.text)
            await kube.delete(NAMESPACES, namespace)

    async def live_in_parallel() -> Mapping[str, Story]:
        async with Kube(cluster) as kube:
            try:
                await kube.create_kind(kinds[0])
                await kube.create_kind(kinds[1], status=True)
                async with asyncio.TaskGroup() as group:
                    tasks = {
                        title: group.create_task(live(kube, commands))
                        for title, commands in [
                            ('release', [release]),
                            ('ours', [OURS]),
                            ('release & ours', [release, OURS]),
                            ('ours & release', [OURS, release]),
                        ]
                    }
                return {title: task.result() for title, task in tasks.items()}
            finally:
                for kind in kinds:
                    await kube.delete_kind(kind)

    return asyncio.run(live_in_parallel())


turns = pytest.mark.parametrize('title', ['ours', 'release & ours', 'ours & release'])
patient = pytest.mark.timeout(300)  # with the installation of the release, and all the lives


@turns
@patient
def test_the_settled_objects_are_the_same_byte_by_byte(
        stories: Mapping[str, Story], title: str,
) -> None:
    assert stories[title].settled == stories['release'].settled


@turns
@patient
def test_the_pending_progress_is_the_same_record_by_record(
        stories: Mapping[str, Story], title: str,
) -> None:
    assert stories[title].pending == stories['release'].pending


@turns
@patient
def test_no_handler_is_repeated_or_forgotten(stories: Mapping[str, Story], title: str) -> None:
    expected = {key: [*calls] for key, calls in stories['release'].calls.items()}
    assert all(calls == [*range(len(calls))] for calls in expected.values())
    if title != 'release & ours':  # the last operator that resumes is ours, with its own resuming
        for key, calls in expected.items():
            if key.startswith('resumed ') and key.endswith(
                    (' resume-simple', ' resume-failing', ' resume-patching')):
                calls *= 2
    assert stories[title].calls == expected
