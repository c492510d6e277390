"""
Objects and errors for which there is no room in annotations: they are handled as all others.
"""

import collections
import json
import random
import string

import pytest

import kopf
from tests.e2e.journals import LAST_HANDLED, get_progress, wait_settled

STORAGES = {
    'annotations': kopf.AnnotationsDiffBaseStorage,
    'own-annotations': lambda: kopf.AnnotationsDiffBaseStorage(prefix='op.example.com'),
    'status': kopf.StatusDiffBaseStorage,
    'multi': lambda: kopf.MultiDiffBaseStorage([
        kopf.StatusDiffBaseStorage(), kopf.AnnotationsDiffBaseStorage()]),
}
SIZES = [200_000, 256 * 1024, 300_000, 1_000_000]
WARNING = "The object is too large to store all of its last-handled state"


def make_noise(length, seed=0):
    """A text which can be compressed by a quarter at most."""
    return ''.join(random.Random(seed).choices(string.ascii_letters + string.digits, k=length))


def get_messages(caplog, level='WARNING'):
    return [record.getMessage() for record in caplog.records
            if record.name == 'kopf.objects' and record.levelname == level]


@pytest.fixture()
def handlers(kind, journal):
    @kopf.on.create(*kind.selector, id='fn')
    def create_fn(name, **_):
        journal.append('create')

    @kopf.on.update(*kind.selector, id='fn')
    def update_fn(old, new, diff, **_):
        journal.append(('update', old, new, tuple(diff)))

    @kopf.on.update(*kind.selector, id='small', field='spec.small')
    def small_fn(old, new, **_):
        journal.append(('small', old, new))

    @kopf.on.update(*kind.selector, id='large', field='spec.large')
    def large_fn(old, new, **_):
        journal.append(('large', old, new))


@pytest.mark.parametrize('name', STORAGES)
@pytest.mark.parametrize('size', SIZES)
async def test_objects_of_any_size_are_handled(
        kube, kind, journal, embedded, settings, caplog, handlers, size, name):
    settings.persistence.diffbase_storage = STORAGES[name]()
    first, second = make_noise(size), make_noise(size, seed=1)

    operator = embedded()
    await kube.create(kind, 'x', spec={'small': 1, 'large': first})
    await journal.wait_length(1)
    await wait_settled(kube, kind, 'x')
    operator.stop()
    operator = embedded()
    await kube.patch(kind, 'x', {'spec': {'small': 2}})
    await journal.wait_length(3)
    await wait_settled(kube, kind, 'x')
    change = ('change', ('spec', 'small'), 1, 2)
    assert journal == ['create', (
        'update', {'spec': {'small': 1, 'large': first}}, {'spec': {'small': 2, 'large': first}},
        (change,)), ('small', 1, 2)]

    await kube.patch(kind, 'x', {'spec': {'large': second}})
    await journal.wait_length(5)
    await wait_settled(kube, kind, 'x')
    (_, _, new, diff), large = journal[3:]
    (op, field, old_value, new_value), = diff
    assert (op, field, new_value) == ('change', ('spec', 'large'), second)
    assert new == {'spec': {'small': 2, 'large': second}}
    assert large == ('large', old_value, second)
    is_known = size == 200_000 or (size < 500_000 and name in ('status', 'multi'))
    assert (old_value == first if is_known else str(old_value).startswith('kopf.dev/digest:'))
    reduced = [message for message in get_messages(caplog) if message.startswith(WARNING)]
    assert len(reduced) == (0 if size == 200_000 or (is_known and name == 'status') else 1)
    assert not get_messages(caplog, 'ERROR')


async def test_what_can_be_compressed_is_known_entirely(
        kube, kind, journal, embedded, caplog, handlers):
    embedded()
    await kube.create(kind, 'x', spec={'large': 'x' * 1_000_000})
    await journal.wait_length(1)
    await wait_settled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'large': 'y'}})
    await journal.wait_length(3)
    obj = await wait_settled(kube, kind, 'x')
    assert journal[2] == ('large', 'x' * 1_000_000, 'y')
    assert obj['metadata']['annotations'] == {LAST_HANDLED: '{"spec":{"large":"y"}}\n'}
    assert not get_messages(caplog)


async def test_the_annotations_of_others_leave_less_room(
        kube, kind, journal, embedded, caplog, handlers):
    """Such as that of ``kubectl apply``, which has the whole object."""
    spec = {'small': 1, 'large': make_noise(150_000)}
    name = 'kubectl.kubernetes.io/last-applied-configuration'
    embedded()
    await kube.create(kind, 'x', spec=spec, annotations={name: json.dumps({'spec': spec})})
    await journal.wait_length(1)
    await wait_settled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'small': 2}})
    await journal.wait_length(3)
    obj = await wait_settled(kube, kind, 'x')
    assert journal[2] == ('small', 1, 2)
    assert name in obj['metadata']['annotations']
    assert not get_messages(caplog, 'ERROR')


@pytest.mark.parametrize('count', [1, 100])
async def test_errors_of_any_length_are_recorded_with_their_ends(
        kube, kind, journal, embedded, caplog, count):
    attempts = collections.defaultdict(list)
    is_restarted = False

    async def fn(param, retry, **_):
        attempts[param].append(retry)
        if not is_restarted:
            raise kopf.TemporaryError('a' * 100_000 + 'é' * 100_000 + 'z' * 100_000, delay=3)
        journal.append(param)
        if journal.count()[param] == 1:
            raise kopf.TemporaryError("again", delay=0.1)

    for i in range(count):
        kopf.on.create(*kind.selector, id=f'fn{i}', param=i)(fn)
    operator = embedded()
    await kube.create(kind, 'x')
    obj = await kube.wait_for(kind, 'x', lambda obj: len(get_progress(obj)) == count and all(
        record['retries'] >= 1 for record in get_progress(obj).values()))
    for record in get_progress(obj).values():
        assert record['message'].startswith('aaa')
        assert ' [...] ' in record['message']
        assert record['message'].endswith('zzz')
    operator.stop()
    is_restarted = True
    embedded()
    await journal.wait_length(2 * count)
    obj = await wait_settled(kube, kind, 'x')
    assert obj['metadata']['annotations'].keys() == {LAST_HANDLED}
    assert journal.count() == dict.fromkeys(range(count), 2)
    assert all(retries == list(range(len(retries))) for retries in attempts.values())
