"""
Generated values are made once, whoever edits the object, and however many operators die.
"""
import asyncio
import base64
import contextlib
import itertools
import json
import signal
import uuid

import pytest

import kopf
from tests.e2e.kubes import Kind
from tests.e2e.proxy import Proxy
from tests.e2e.strikes import Strike

SECRETS = Kind('', 'v1', 'secrets', 'Secret')

OWNER, RECONCILER, APPLIED, ROTATE = (
    f'kopf.dev/{name}' for name in ('owner', 'reconciler', 'applied', 'rotate'))


@pytest.fixture()
def parent():
    """A name that nobody else uses: owned resources are collected only long after the test."""
    return f'parent-{uuid.uuid4().hex[:8]}'


@pytest.fixture()
def make():
    """Makes another value each time."""
    numbers = itertools.count(1)
    return lambda: f'word-{next(numbers)}'


def read(secret, key='word'):
    value = (secret.get('data') or {}).get(key)
    return None if value is None else base64.b64decode(value).decode()


def list_managers(obj, key):
    """Who has set the key of the data."""
    return [(entry['manager'], entry['operation']) for entry in obj['metadata']['managedFields']
            if f'f:{key}' in (entry['fieldsV1'].get('f:data') or ())]


@contextlib.asynccontextmanager
async def watching(kube, name):
    """Collect the words that the secret has had, one after another."""
    words, opened = [], asyncio.Event()

    async def watch():
        params = {'watch': 'true', 'fieldSelector': f'metadata.name={name}'}
        async with kube.stream(SECRETS.get_path(namespace='default'), params) as response:
            opened.set()
            async for line in response.content:
                word = read(json.loads(line)['object'])
                if not words or words[-1] != word:
                    words.append(word)

    task = asyncio.create_task(watch())
    await opened.wait()
    yield words
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_value_is_made_once_and_stays_whatever_others_edit(
        kube, kind, embedded, make, parent):

    @kopf.reconcile(*kind.selector, owns=['secrets'], id='fn')
    async def fn(name, spec, **_):
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name},
               'type': 'kubernetes.io/basic-auth',
               'stringData': {'word': kopf.generated(make), 'n': str(spec['n'])},
               'data': {'username': 'cm9vdA==', **({'more': 'MQ=='} if spec['n'] == 1 else {})}}

    embedded()
    owner = await kube.create(kind, parent, spec={'n': 1})
    secret = await kube.wait_for(
        SECRETS, parent, lambda obj: list_managers(obj, 'word') == [('kopf/fn', 'Apply')])
    assert (read(secret), read(secret, 'n'), read(secret, 'more')) == ('word-1', '1', '1')
    uid = secret['metadata']['uid']

    async def get_restored(patch, is_restored):
        await kube.patch(SECRETS, parent, patch)
        return await kube.wait_for(SECRETS, parent, is_restored)

    for name in (OWNER, RECONCILER):
        value = secret['metadata']['labels'][name]
        for other in (None, 'other'):
            await get_restored({'metadata': {'labels': {name: other}}},
                               lambda obj: obj['metadata']['labels'].get(name) == value)
    for field in ('ownerReferences', 'annotations', 'labels'):
        await get_restored({'metadata': {field: None}}, lambda obj: obj['metadata'].get(field))
    secret = await get_restored({'data': {'word': base64.b64encode(b'mine').decode()}},
                                lambda obj: ('kopf/fn', 'Apply') in list_managers(obj, 'word'))
    assert read(secret) == 'mine'  # also a value of others is a value

    await kube.patch(kind, parent, {'spec': {'n': 2}})
    secret = await kube.wait_for(SECRETS, parent, lambda obj: read(obj, 'n') == '2')
    assert 'more' not in secret['data']  # it belonged to the handler alone
    assert read(secret) == 'mine'
    await get_restored({'metadata': {'managedFields': [{}]}},
                       lambda obj: list_managers(obj, 'word')[:1] == [('kopf/fn', 'Apply')])
    secret = await get_restored({'data': {'word': None}}, lambda obj: read(obj))
    assert read(secret) == 'word-2'
    assert secret['metadata']['uid'] == uid
    assert (await kube.get(kind, parent))['metadata']['uid'] == owner['metadata']['uid']


async def test_a_value_is_rotated_once_for_each_request(kube, kind, embedded, make, parent):

    @kopf.reconcile(*kind.selector, owns=['secrets'])
    async def fn(name, **_):
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name},
               'data': {'word': kopf.generated(make)}}

    embedded()
    await kube.create(kind, parent)
    await kube.wait_for(SECRETS, parent, bool)
    async with watching(kube, parent) as words:
        for number in (2, 3):
            await kube.patch(SECRETS, parent, {'metadata': {'annotations': {ROTATE: 'now'}}})
            secret = await kube.wait_for(
                SECRETS, parent, lambda obj: read(obj) == f'word-{number}')
            assert secret['metadata']['annotations'][ROTATE] == 'false'
        await kube.patch(kind, parent, {'metadata': {'labels': {'l': 'v'}}})
        await kube.wait_for(SECRETS, parent, lambda obj: 'l' in obj['metadata']['labels'])
    assert words == ['word-1', 'word-2', 'word-3']


TEXT = '''
import secrets

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.reconcile(*KIND, owns=['secrets'], id='fn')
async def fn(name, spec, **_):
    yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name},
           'data': {'word': kopf.generated(secrets.token_urlsafe)}}
'''


def is_own_write(request):
    return request.method in ('POST', 'PATCH') and '/secrets' in request.path


@pytest.mark.parametrize('moment', ['before', 'after'])
@pytest.mark.parametrize('number', [1, 2, 3])
async def test_killed_at_any_write_the_value_is_made_once(
        kube, kind, cluster, operator, tmp_path, parent, number, moment):
    with Proxy(cluster) as proxy:
        strike = Strike(number, moment, signal.SIGKILL, does_count=is_own_write)
        proxy.inject(strike.act, match=is_own_write, times=None)
        strike.operator = operator(
            TEXT, kind=kind, kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxy.yaml'))
        async with watching(kube, parent) as words:
            await kube.create(kind, parent)
            await strike.operator.wait()
            operator(TEXT, kind=kind)
            await kube.wait_for(SECRETS, parent, lambda obj: (
                list_managers(obj, 'word') == [('kopf/fn', 'Apply')]))
            await kube.patch(kind, parent, {'metadata': {'labels': {'l': 'v'}}})
            await kube.wait_for(SECRETS, parent, lambda obj: 'l' in obj['metadata']['labels'])
    assert len(words) == 1


class Gate:
    """Lets requests through only when several of them have come."""

    def __init__(self, count):
        self.count, self.came = count, 0
        self.opened = asyncio.Event()

    async def act(self, request, proxy):
        self.came += 1
        if self.came >= self.count:
            self.opened.set()
        await self.opened.wait()
        return await proxy.pass_through(request)


async def test_two_operators_at_once_make_one_value(
        kube, kind, cluster, operator, tmp_path, parent):
    with Proxy(cluster) as proxy:
        def is_first(request):
            return request.method == 'POST' and '/secrets' in request.path
        gate = Gate(2)
        proxy.inject(gate.act, match=is_first, times=2)
        kubeconfig = proxy.write_kubeconfig(tmp_path / 'proxy.yaml')
        await kube.create(kind, parent)
        both = [operator(TEXT, kind=kind, kubeconfig=kubeconfig) for _ in range(2)]
        async with watching(kube, parent) as words:
            await kube.wait_for(SECRETS, parent, lambda obj: (
                list_managers(obj, 'word') == [('kopf/fn', 'Apply')]), timeout=60)
            await kube.patch(kind, parent, {'metadata': {'labels': {'l': 'v'}}})
            await kube.wait_for(SECRETS, parent, lambda obj: 'l' in obj['metadata']['labels'])
            for each in both:
                await each.wait_for("Reconciler 'fn' succeeded", count=2)
        posts = [request.status for request in proxy.requests if is_first(request)]
        assert sorted(posts) == [201, 409]
    assert len(words) == 1
