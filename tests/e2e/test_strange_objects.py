"""
Nothing that a user can write into an object ends an operator or a watch: any JSON in any place,
nested deeply, huge, damaged. Some hundred objects here, thousands with ``KOPF_E2E_STRANGE=3000``.
Thousands are for the sandbox: they are also deeper, for which a real API needs gigabytes; and they
are others in each run.
"""
import asyncio
import json
import os
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.e2e.journals import FINALIZER

BATCH = 50
MERGE = 'application/merge-patch+json'
OBJECTS = int(os.environ.get('KOPF_E2E_STRANGE', '200'))
DEPTHS = [100, 245, 246, 247, 248, 249, 250, 251, 300, 900, 950, 990, 1200]
THOROUGH = OBJECTS > 1000
DEPTHS += [2000, 3000, 9900] if THOROUGH else []

TEXT = '''
import asyncio

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.queueing.error_delays = [0.5, 1, 2]
    settings.watching.server_timeout = 3
    settings.watching.initial_streaming = STREAMED

@kopf.on.create(*KIND, id='create')
@kopf.on.update(*KIND, id='update')
@kopf.on.resume(*KIND, id='resume')
@kopf.on.field(*KIND, id='field', field='status.field')
def handle(body, diff, retry, patch, **_):
    patch.status['echo'] = body.spec.get('echo')
    str(body), str(diff)
    if not retry:
        raise kopf.TemporaryError("again", delay=0.3)
    return body.spec.get('result')

@kopf.on.create(*KIND, id='done')
@kopf.on.update(*KIND, id='done')
def done(**_):
    return True

@kopf.on.delete(*KIND, optional=True)
def delete(body, **_):
    str(body)

@kopf.on.event(*KIND)
def watch(event, **_):
    str(event)

@kopf.index(*KIND)
def by_spec(name, spec, **_):
    return {name: spec.get('echo')}

@kopf.timer(*KIND, interval=1, labels={'kept': 'yes'})
@kopf.daemon(*KIND, labels={'kept': 'yes'})
async def accompany(body, **_):
    str(body)
    await asyncio.sleep(0.1)
'''

PREFIX = 'kopf.zalando.org'
NESTED = {'{': ('{"k":', '}'), '[': ('[', ']')}
deep = st.builds('@{}{}'.format, st.sampled_from('{['), st.sampled_from(DEPTHS))
strings = st.text(st.characters(codec='utf-8', exclude_characters='@'), max_size=20) | (
    st.sampled_from(['', '{', '"', '0001-01-01T00:00:00+14:00', '9' * 5000, 'x' * 100_000]))
scalars = st.none() | st.booleans() | st.integers(-2 ** 63, 2 ** 63 - 1) | strings | st.floats(
    allow_nan=False, allow_infinity=False)
keys = strings.filter(lambda key: len(key) < 100)
values = st.recursive(scalars | deep, lambda inner: (
    st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5)), max_leaves=10)
record = st.dictionaries(st.sampled_from([
    'started', 'stopped', 'delayed', 'purpose', 'retries', 'success', 'failure', 'message',
    'subrefs']), values, max_size=9)
ids = st.sampled_from(['create', 'update', 'resume', 'field', 'done', 'handle/status.field'])
notes = st.sampled_from([
    '{bad', '', '{}', '[]', 'null', '1', '"x"', '[' * 900, '[' * 100_000, '{"k":' * 900,
    '[' * 900 + ']' * 900, '[' * 9000 + ']' * 9000, '{"spec":' * 500 + '1' + '}' * 500]) | (
    st.builds(json.dumps, record | values)) | strings
annotations = st.dictionaries(
    st.sampled_from(['last-handled-configuration', 'touch-dummy', 'kopf-managed']).map(
        f'{PREFIX}/{{}}'.format) | ids.map(f'{PREFIX}/{{}}'.format) | st.just('other'),
    notes, max_size=4).filter(lambda found: sum(map(len, found.values())) < 250_000)
statuses = values | st.fixed_dictionaries({}, optional={
    'kopf': values | st.fixed_dictionaries({'progress': st.dictionaries(ids, record) | values}),
    'field': values, 'create': values, 'done': values})
specs = values | st.fixed_dictionaries({}, optional={'echo': values, 'result': values, 'x': values})
parts = st.fixed_dictionaries({}, optional={
    'spec': specs, 'status': statuses, 'data': values, 'metadata': st.fixed_dictionaries(
        {}, optional={
            'annotations': annotations, 'finalizers': st.just([FINALIZER]),
            'labels': st.just({'kept': 'yes'})})})
strange_objects = st.lists(parts, min_size=1, max_size=4)
"""What the object is created with, and the patches that follow."""


def encode(value):
    """JSON with what is nested deeply in its place."""
    return re.sub(r'"@([{\[])(\d+)"', lambda found: '{}{}{}'.format(
        NESTED[found[1]][0] * int(found[2]), 'null', NESTED[found[1]][1] * int(found[2])),
        json.dumps(value))


def generate(count):
    """So many different histories; the same ones each time, unless there are thousands."""
    found = []

    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=not THOROUGH)
    @given(strange_objects)
    def collect(history):
        found.append(history)

    collect()
    return found


@pytest.mark.timeout(60 + OBJECTS)
@pytest.mark.parametrize('streamed', [False, True])
async def test_strange_objects_do_no_harm(kube, kind, operator, streamed):
    statuses, left = [], []
    text = f'STREAMED = {streamed}\n{TEXT}'

    async def play(history, name):
        body = {**history[0], 'apiVersion': kind.api_version, 'kind': kind.kind}
        body['metadata'] = {**body.get('metadata', {}), 'name': name}
        statuses.append(await kube.send('POST', kind.get_path(namespace='default'), encode(body)))
        statuses.extend([await kube.send(
            'PATCH', kind.get_path(name, 'default'), encode(patch), content_type=MERGE,
        ) for patch in history[1:]])

    async def verify(name):
        await kube.create(kind, name, spec={'echo': name})
        await kube.wait_for(
            kind, name, lambda obj: (obj.get('status') or {}).get('done') is True, timeout=30)

    async def remove(name):
        path = kind.get_path(name, 'default')
        await kube.send('DELETE', path, '{}')
        await kube.send('PATCH', path, '{"metadata":{"finalizers":null}}', content_type=MERGE)

    op = operator(text, kind=kind)
    try:
        histories = generate(OBJECTS // 2)
        for start in range(0, len(histories), BATCH):
            batch = histories[start:start + BATCH]
            names = [f'strange{start}-{index}' for index in range(len(batch))]
            left.extend(names)
            await asyncio.gather(*map(play, batch, names))
            await verify(f'good{start}')
            await asyncio.gather(*map(remove, names[::2]))
            await asyncio.gather(*map(remove, left[:-BATCH]))
            del left[:-BATCH]
        assert op.stop() == 0
        again = operator(text, kind=kind)
        await verify('after')
        assert again.stop() == 0
    finally:
        await asyncio.gather(*map(remove, left))
    accepted = sum(status < 300 for status in statuses)
    print(f'{accepted} of {len(statuses)} writes were accepted.')
    assert accepted > len(statuses) / 4
    assert 'is nested deeper than' in op.text
    assert 'RecursionError' not in op.text + again.text
