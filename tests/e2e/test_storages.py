"""
Where the progress and the last-handled state are kept, and how operators share objects.
"""

import asyncio
import json
import time

import pytest

import kopf
from tests.e2e.journals import FINALIZER, LAST_HANDLED, Watching, wait_handled, wait_settled

PRUNING_SCHEMA = {'type': 'object', 'properties': {
    'spec': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True},
}}


class MemoryProgressStorage(kopf.ProgressStorage):
    """As the docs tell to make one: of the methods that are needed."""

    def __init__(self):
        super().__init__()
        self.records = {}
        self.flushed = 0

    def fetch(self, *, key, body):
        return self.records.get((body.metadata['uid'], key))

    def store(self, *, key, record, body, patch):
        self.records[body.metadata['uid'], key] = record

    def purge(self, *, key, body, patch):
        self.records.pop((body.metadata['uid'], key), None)

    def flush(self):
        self.flushed += 1


class MemoryDiffBaseStorage(kopf.DiffBaseStorage):

    def __init__(self):
        super().__init__()
        self.essences = {}

    def fetch(self, *, body):
        encoded = self.essences.get(body.metadata['uid'])
        return None if encoded is None else json.loads(encoded)

    def store(self, *, body, patch, essence):
        self.essences[body.metadata['uid']] = json.dumps(essence)


PROGRESS_STORAGES = {
    'annotations': (kopf.AnnotationsProgressStorage, {
        'annotations': ['kopf.zalando.org/retried']}),
    'own-annotations': (lambda: kopf.AnnotationsProgressStorage(prefix='my-op.example.com'), {
        'annotations': ['my-op.example.com/retried', 'my-op.example.com/kopf-managed']}),
    'status': (kopf.StatusProgressStorage, {'status': ['kopf', 'progress', 'retried']}),
    'own-status': (lambda: kopf.StatusProgressStorage(field='status.my-operator'), {
        'status': ['my-operator', 'retried']}),
    'multi': (lambda: kopf.MultiProgressStorage([
        kopf.AnnotationsProgressStorage(prefix='my-op.example.com'),
        kopf.StatusProgressStorage(field='status.my-operator'),
    ]), {
        'annotations': ['my-op.example.com/retried', 'my-op.example.com/kopf-managed'],
        'status': ['my-operator', 'retried'],
    }),
    'smart': (kopf.SmartProgressStorage, {'annotations': ['kopf.zalando.org/retried']}),
    'custom': (MemoryProgressStorage, {}),
}


def resolve(obj, path):
    for key in path:
        obj = obj[key]
    return obj


@pytest.mark.parametrize('name', PROGRESS_STORAGES)
async def test_progress_is_kept_where_it_is_told_and_cleaned_away(
        kube, kind, status_kind, journal, embedded, settings, name):
    make, places = PROGRESS_STORAGES[name]
    settings.persistence.progress_storage = storage = make()

    @kopf.on.create(*kind.selector, id='done')
    @kopf.on.create(*status_kind.selector, id='done')
    def done_fn(resource, **_):
        journal.append((resource.plural, 'done'))
        return 'result'

    @kopf.on.create(*kind.selector, id='retried')
    @kopf.on.create(*status_kind.selector, id='retried')
    def retried_fn(resource, retry, **_):
        journal.append((resource.plural, retry))
        if not retry:
            raise kopf.TemporaryError("again!", delay=5)  # after the first operator has stopped

    @kopf.on.update(*kind.selector, id='update')
    @kopf.on.update(*status_kind.selector, id='update')
    def update_fn(resource, diff, **_):
        journal.append((resource.plural, tuple(diff)))

    async def begin(kind):
        await kube.create(kind, 'x', spec={'field': 1})
        await kube.wait_for(kind, 'x', lambda obj: obj['status']['done'] == 'result')

    async def check_in_between(kind):
        obj = await kube.get(kind, 'x')
        annotations = obj['metadata'].get('annotations', {})
        for key in places.get('annotations', []):
            assert key in annotations
        if 'status' in places:
            assert resolve(obj['status'], places['status'])['retries'] == 1
        else:
            assert obj['status'] == {'done': 'result'}
        if 'annotations' not in places:
            assert annotations == {}

    async def check_after(kind):
        await kube.wait_for(
            kind, 'x', lambda obj: json.loads(obj['metadata']['annotations'][LAST_HANDLED]))
        await kube.patch(kind, 'x', {'spec': {'field': 2}})
        await kube.wait_for(
            kind, 'x', lambda obj: '2' in obj['metadata']['annotations'][LAST_HANDLED])
        obj = await wait_settled(kube, kind, 'x')
        assert [what for plural, what in journal if plural == kind.plural] == [
            'done', 0, 1, (('change', ('spec', 'field'), 1, 2),)]
        assert obj['metadata']['annotations'].keys() - {'my-op.example.com/kopf-managed'} == {
            LAST_HANDLED}
        left = {key: val for key, val in obj['status'].items() if val not in ({}, {'progress': {}})}
        assert left == {'done': 'result'}

    operator = embedded()
    await asyncio.gather(begin(kind), begin(status_kind))
    operator.stop()
    await asyncio.gather(check_in_between(kind), check_in_between(status_kind))
    if name == 'custom':
        assert {key for _, key in storage.records} == {'done', 'retried'}
        assert storage.flushed
    embedded()
    await asyncio.gather(check_after(kind), check_after(status_kind))
    if name == 'custom':
        assert not storage.records


DIFFBASE_STORAGES = {
    'annotations': (kopf.AnnotationsDiffBaseStorage, ['metadata', 'annotations', LAST_HANDLED]),
    'own-annotations': (
        lambda: kopf.AnnotationsDiffBaseStorage(prefix='my-op.example.com', key='handled'),
        ['metadata', 'annotations', 'my-op.example.com/handled']),
    'status': (kopf.StatusDiffBaseStorage, ['status', 'kopf', 'last-handled-configuration']),
    'own-status': (
        lambda: kopf.StatusDiffBaseStorage(field='status.diff-base'), ['status', 'diff-base']),
    'multi': (
        lambda: kopf.MultiDiffBaseStorage([
            kopf.StatusDiffBaseStorage(field='status.diff-base'),
            kopf.AnnotationsDiffBaseStorage(prefix='my-op.example.com', key='handled'),
        ]), ['status', 'diff-base']),
    'custom': (MemoryDiffBaseStorage, None),
}


@pytest.mark.parametrize('name', DIFFBASE_STORAGES)
async def test_the_last_handled_state_is_kept_where_it_is_told(
        kube, kind, status_kind, journal, embedded, settings, name):
    make, place = DIFFBASE_STORAGES[name]
    settings.persistence.diffbase_storage = make()

    @kopf.on.create(*kind.selector, id='create')
    @kopf.on.create(*status_kind.selector, id='create')
    def create_fn(name, resource, **_):
        journal.append((resource.plural, name, 'create'))
        return 'result'

    @kopf.on.update(*kind.selector)
    @kopf.on.update(*status_kind.selector)
    def update_fn(name, resource, diff, **_):
        journal.append((resource.plural, name, tuple(diff)))

    async def check(kind, essence):
        if place is not None:
            await kube.wait_for(kind, 'x', lambda obj: json.loads(resolve(obj, place)) == essence)
        return await wait_settled(kube, kind, 'x')

    async def go(kind):
        await kube.create(kind, 'x', spec={'field': 1})
        await journal.wait((kind.plural, 'x', 'create'))
        await check(kind, {'spec': {'field': 1}})
        await kube.patch(kind, 'x', {'spec': {'field': 2}})
        await journal.wait((kind.plural, 'x', (('change', ('spec', 'field'), 1, 2),)))
        obj = await check(kind, {'spec': {'field': 2}})
        assert obj['status']['create'] == 'result'
        return obj

    operator = embedded()
    settled = dict(zip(
        (kind, status_kind), await asyncio.gather(go(kind), go(status_kind)), strict=True))
    operator.stop()
    embedded()
    for k in (kind, status_kind):
        await kube.create(k, 'y')
        await journal.wait((k.plural, 'y', 'create'))
        assert await kube.get(k, 'x') == settled[k]
    assert len(journal) == 6


async def test_the_default_progress_survives_where_unknown_fields_are_pruned(
        kube, make_kind, journal, embedded):
    kind = await make_kind(schema=PRUNING_SCHEMA, status=True)

    @kopf.on.create(*kind.selector, id='fn')
    def fn(retry, **_):
        journal.append(retry)
        if retry < 2:
            raise kopf.TemporaryError("again!", delay=0.1)

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    assert journal == [0, 1, 2]


async def test_storages_can_be_changed_by_way_of_both(kube, kind, journal, embedded, settings):
    old = kopf.AnnotationsDiffBaseStorage()
    new = kopf.StatusDiffBaseStorage(field='status.diff-base')

    @kopf.on.create(*kind.selector)
    def create_fn(name, **_):
        journal.append((name, 'create'))

    @kopf.on.update(*kind.selector)
    def update_fn(name, diff, **_):
        journal.append((name, len(diff)))

    settings.persistence.diffbase_storage = old
    operator = embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    operator.stop()

    settings.persistence.diffbase_storage = kopf.MultiDiffBaseStorage([new, old])
    operator = embedded()
    await kube.patch(kind, 'x', {'metadata': {'labels': {'ping': 'pong'}}})
    await kube.wait_for(kind, 'x', lambda obj: 'pong' in obj['status']['diff-base'])
    await wait_settled(kube, kind, 'x')
    operator.stop()

    settings.persistence.diffbase_storage = new
    operator = embedded()
    await kube.patch(kind, 'x', {'metadata': {'annotations': {LAST_HANDLED: None}}})
    await kube.create(kind, 'y')
    await journal.wait(('y', 'create'))
    await kube.patch(kind, 'x', {'spec': {'field': 1}})
    await journal.wait_length(4)
    await wait_settled(kube, kind, 'x')
    assert journal == [('x', 'create'), ('x', 1), ('y', 'create'), ('x', 1)]


async def test_progress_can_be_moved_in_the_middle_of_handling(
        kube, kind, journal, embedded, settings):

    @kopf.on.create(*kind.selector, id='done')
    def done_fn(**_):
        journal.append('done')

    @kopf.on.create(*kind.selector, id='fn')
    def fn(retry, **_):
        journal.append(retry)
        raise kopf.TemporaryError("again!", delay=0.5 if retry == 0 else 600)

    old = kopf.StatusProgressStorage(field='status.old')
    new = kopf.AnnotationsProgressStorage(prefix='new.example.com')
    settings.persistence.progress_storage = old
    operator = embedded()
    await kube.create(kind, 'x')
    await kube.wait_for(kind, 'x', lambda obj: obj['status']['old']['fn']['retries'] == 1)
    operator.stop()
    settings.persistence.progress_storage = kopf.MultiProgressStorage([new, old])
    operator = embedded()
    await kube.wait_for(kind, 'x', lambda obj: json.loads(
        obj['metadata']['annotations']['new.example.com/fn'])['retries'] == 2)
    operator.stop()
    assert journal == ['done', 0, 1]


async def test_fields_can_be_ignored(kube, kind, journal, embedded, settings):
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        ignored_fields=['spec.ignored', 'metadata.labels'])

    @kopf.on.update(*kind.selector)
    def fn(diff, **_):
        journal.append(tuple(diff))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1, 'ignored': 1})
    obj = await kube.wait_for(kind, 'x', lambda obj: obj['metadata']['annotations'][LAST_HANDLED])
    assert json.loads(obj['metadata']['annotations'][LAST_HANDLED]) == {'spec': {'field': 1}}
    edited = await kube.patch(
        kind, 'x', {'spec': {'ignored': 2}, 'metadata': {'labels': {'some': 'label'}}})
    assert await wait_settled(kube, kind, 'x') == edited
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await journal.wait_length(1)
    assert journal == [(('change', ('spec', 'field'), 1, 2),)]


def make_settings(prefix):
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    if prefix is not None:
        settings.persistence.finalizer = f'{prefix}/finalizer'
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix)
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=prefix)
    return settings


def make_registry(kind, journal, name):
    registry = kopf.OperatorRegistry()

    @kopf.on.create(*kind.selector, id='create', registry=registry)
    def create_fn(retry, **_):
        journal.append((name, 'create', retry))
        if retry < 2:
            raise kopf.TemporaryError("again!", delay=0.1)

    @kopf.on.update(*kind.selector, id='update', registry=registry)
    def update_fn(diff, retry, **_):
        journal.append((name, 'update', retry, tuple(diff)))
        if retry < 1:
            raise kopf.TemporaryError("again!", delay=0.1)

    @kopf.on.delete(*kind.selector, id='delete', registry=registry)
    def delete_fn(retry, **_):
        journal.append((name, 'delete', retry))
        if retry < 1:
            raise kopf.TemporaryError("again!", delay=0.1)

    return registry


@pytest.mark.parametrize('prefixes', [
    ('one.example.com', 'two.example.com'),
    (None, 'two.example.com'),
], ids=['own', 'default'])
async def test_operators_with_prefixes_and_finalizers_of_their_own_never_wake_each_other(
        kube, kind, journal, embedded, prefixes):
    for prefix in prefixes:
        embedded(registry=make_registry(kind, journal, prefix), settings=make_settings(prefix))

    async with Watching(kube, kind) as watching:
        await kube.create(kind, 'x', spec={'field': 1})
        await journal.wait(*((prefix, 'create', 2) for prefix in prefixes))
        settled = await wait_settled(kube, kind, 'x')
        assert len(journal) == 6
        assert sorted(settled['metadata']['finalizers']) == sorted(
            f'{prefix}/finalizer' if prefix else FINALIZER for prefix in prefixes)
        for prefix in prefixes:
            key = f'{prefix}/last-handled-configuration' if prefix else LAST_HANDLED
            assert json.loads(settled['metadata']['annotations'][key]) == {'spec': {'field': 1}}
        await watching.wait_state(settled)
        # Each needs 4 writes: the finalizer, two failures, and the success.
        assert len(watching.get_states('x')) <= 1 + 2 * 4

    journal.clear()
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await journal.wait_length(4)
    await wait_settled(kube, kind, 'x')
    diff = (('change', ('spec', 'field'), 1, 2),)
    assert journal.count() == {
        (prefix, 'update', retry, diff): 1 for prefix in prefixes for retry in (0, 1)}

    journal.clear()
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert journal.count() == {
        (prefix, 'delete', retry): 1 for prefix in prefixes for retry in (0, 1)}


async def test_unreadable_traces_are_an_error_of_that_object_only_till_they_are_mended(
        kube, kind, journal, embedded, settings, caplog):
    delay = 0.2
    settings.queueing.error_delays = [delay]

    def get_errors():
        return [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']

    @kopf.on.create(*kind.selector, id='create')
    @kopf.on.update(*kind.selector, id='update')
    def fn(name, reason, **_):
        journal.append((name, str(reason)))

    await kube.create(kind, 'bad', annotations={LAST_HANDLED: 'garbage'})
    await kube.create(kind, 'worse', annotations={'kopf.zalando.org/create': 'garbage'})
    started = time.monotonic()
    embedded()
    await kube.create(kind, 'good')
    await wait_handled(kube, kind, 'good')
    async with asyncio.timeout(20):
        while len(get_errors()) < 4:
            await asyncio.sleep(0.1)
    assert journal == [('good', 'create')]
    errors = get_errors()
    assert len(errors) <= 2 * (1 + (time.monotonic() - started) / delay)
    assert any('last-handled state of the object is not readable' in error for error in errors)
    assert any('kopf.zalando.org/create is not readable' in error for error in errors)
    await kube.patch(kind, 'bad', {'metadata': {'annotations': {LAST_HANDLED: None}}})
    await kube.patch(kind, 'worse', {'metadata': {'annotations': {
        'kopf.zalando.org/create': None}}})
    await wait_handled(kube, kind, 'bad')
    await wait_handled(kube, kind, 'worse')
    assert sorted(journal[1:]) == [('bad', 'create'), ('worse', 'create')]
