"""
This framework and its latest release on PyPI meet in one peering, and understand each other.
"""
import asyncio
import signal

import pytest

from tests.e2e.operators import Operator
from tests.e2e.test_peering import FORMER, NARROW, TEXT, get_records, name, peering, run  # noqa: F401
from tests.e2e.test_takeover import patient, release  # noqa: F401

RELEASE_ACTIVE = r'(Starting|Resuming) the watch-stream for things\w+\.v1\.\S+ in .default.\.$'
YIELDING = r'Keep-alive in .+: ok'
"""It does not tell that it is paused from the beginning."""

OURS_ACTIVE = r'Starting the watch-stream for things'


@pytest.fixture()
async def meeting(kube, peering):  # noqa: F811
    """The release waits for the objects of all API groups that there are."""
    await kube.create(FORMER, peering)


@pytest.fixture()
def pair(cluster, kind, peering, meeting, release, tmp_path):  # noqa: F811
    """Start ours or the release."""
    started = []
    path = tmp_path / 'handlers.py'
    path.write_text(f'import kopf\nKIND = {kind.selector!r}\n{TEXT}')

    def start(who, priority, lifetime=15):
        started.append(Operator(
            ['--namespace', 'default', '--peering', peering, '--priority', str(priority),
             '--verbose', str(path)],
            kubeconfig=cluster, command=release if who == 'release' else None,
            env={'WHO': who, 'POD_ID': who, 'LIFETIME': str(lifetime)}))
        return started[-1]

    yield start
    for op in started:
        op.stop()
        print(op.text)


@patient
async def test_release_yields_to_ours_and_goes_on_after(kube, kind, pair):
    theirs = pair('release', 1)
    await theirs.wait_for(RELEASE_ACTIVE)
    ours = pair('ours', 2)
    await theirs.wait_for('Pausing operations in favour of .+ours')
    await ours.wait_for(OURS_ACTIVE)
    await kube.create(kind, 'first', spec={})
    await ours.wait_for('CREATED first BY ours')
    ours.send(signal.SIGTERM)
    await ours.wait()
    await kube.create(kind, 'second', spec={})
    await theirs.wait_for('CREATED second BY release')
    assert not theirs.find('CREATED first')
    assert not theirs.find('Traceback')


@patient
async def test_ours_yields_to_the_release_and_goes_on_after(kube, kind, pair):
    ours = pair('ours', 1)
    await ours.wait_for(OURS_ACTIVE)
    theirs = pair('release', 2)
    await ours.wait_for('Pausing operations in favour of .+release')
    await theirs.wait_for(RELEASE_ACTIVE)
    await kube.create(kind, 'first', spec={})
    await theirs.wait_for('CREATED first BY release')
    theirs.send(signal.SIGTERM)
    await ours.wait_for('Resuming operations')
    await kube.create(kind, 'second', spec={})
    await ours.wait_for('CREATED second BY ours')
    assert not ours.find('CREATED first')


@patient
async def test_killed_one_of_ours_is_dead_to_the_release_by_its_lifetime(kube, kind, pair):
    ours = pair('ours', 2, lifetime=3)
    await ours.wait_for(OURS_ACTIVE)
    theirs = pair('release', 1)
    await theirs.wait_for(YIELDING)
    ours.kill()
    await kube.create(kind, 'obj', spec={})
    await theirs.wait_for('CREATED obj BY release')  # by default, the lifetime is a minute


@patient
async def test_same_priorities_freeze_both(kube, kind, pair):
    ours, theirs = pair('ours', 1), pair('release', 1)
    await ours.wait_for('conflicting operators with the same priority')
    await theirs.wait_for('conflicting operators with the same priority')
    await asyncio.sleep(0.5)
    await kube.create(kind, 'obj', spec={})
    await asyncio.sleep(1)
    assert not ours.find('CREATE obj')
    assert not theirs.find('CREATE obj')


@patient
async def test_records_are_the_same(kube, peering, pair):  # noqa: F811
    ours, theirs = pair('ours', 2), pair('release', 1)
    await ours.wait_for(OURS_ACTIVE)
    await theirs.wait_for(YIELDING)
    records = await get_records(kube, peering, NARROW)
    assert records.keys() == {'ours', 'release'}
    first, second = records.values()
    assert first.keys() == second.keys()
    for key in first:
        assert type(first[key]) is type(second[key])
    assert len(first['lastseen']) == len(second['lastseen'])


@patient
async def test_release_is_frozen_by_our_command(cluster, peering, pair):  # noqa: F811
    theirs = pair('release', 1)
    await theirs.wait_for(RELEASE_ACTIVE)
    run(cluster, 'freeze', '-n', 'default', '-P', peering, '-t', '60', '-m', 'why')
    await theirs.wait_for('Pausing operations')
    run(cluster, 'resume', '-n', 'default', '-P', peering)
    await theirs.wait_for('Resuming operations', count=2)
