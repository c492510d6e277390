"""
Pauses of single objects, by the command: two replicas, one of which is killed in the pause.
"""
import signal

import pytest

from tests.e2e import commands
from tests.e2e.journals import wait_handled
from tests.e2e.replicas import LEADING

TEXT = '''
@kopf.on.update(*KIND)
def update(name, old, new, **_):
    print(f'UPDATED {name} FROM {old["spec"].get("n")} TO {new["spec"].get("n")} BY {WHO}.')

@kopf.on.delete(*KIND)
def delete(name, **_):
    print(f'DELETED {name} BY {WHO}.')

@kopf.daemon(*KIND)
async def daemon(name, stopped, **_):
    print(f'DAEMON OF {name} BEGINS BY {WHO}.')
    await stopped.wait()
    print(f'DAEMON OF {name} ENDS: {stopped.reason!r}')

@kopf.timer(*KIND, interval=0.5)
async def timer(name, **_):
    print(f'TIMER OF {name}.')
'''


@pytest.fixture()
def command(cluster, kind):
    """Run a command for the objects of the kind; returns what it has printed."""
    async def run(name, *args):
        code, output = await commands.run(
            cluster, name, f'{kind.plural}.{kind.group}', '-n', 'default', *args)
        assert code == 0, output
        return output
    return run


async def test_pauses_hold_over_replicas_and_kills(kube, kind, replicas, command):
    a, b = await replicas.start_both(TEXT)
    for name in ('obj', 'other'):
        await kube.create(kind, name, spec={'n': 1})
        await wait_handled(kube, kind, name)
        await a.wait_for(f'DAEMON OF {name} BEGINS BY a')
    assert "default/obj: The object is paused: Disks.\n" in await command(
        'pause', 'obj', '--reason', 'Disks')
    await a.wait_for('DAEMON OF obj ENDS: .*RESOURCE_PAUSED')
    await a.wait_for('The object is paused: Disks')

    await kube.patch(kind, 'obj', {'spec': {'n': 2}})
    a.send(signal.SIGKILL)
    await b.wait_for(LEADING)
    await b.wait_for('The object is paused: Disks')
    await kube.patch(kind, 'obj', {'spec': {'n': 3}})
    await kube.patch(kind, 'other', {'spec': {'n': 3}})
    await b.wait_for('UPDATED other FROM 1 TO 3 BY b')
    await b.wait_for('TIMER OF other')
    assert not b.find('UPDATED obj|TIMER OF obj|DAEMON OF obj')

    assert "default/obj: The object is not paused any more.\n" in await command('unpause', 'obj')
    await b.wait_for('UPDATED obj FROM 1 TO 3 BY b')
    await b.wait_for('DAEMON OF obj BEGINS BY b')
    await b.wait_for('TIMER OF obj')
    await wait_handled(kube, kind, 'obj')
    assert len(b.find('UPDATED obj')) == 1


async def test_deletions_wait_for_the_end_of_the_pause(kube, kind, replicas, command):
    a = replicas.start('a', TEXT)
    for name in ('obj', 'other'):
        await kube.create(kind, name, spec={'n': 1})
        await wait_handled(kube, kind, name)
    await command('pause', 'obj')
    await command('pause', 'other', '--deletion', 'allow')
    await a.wait_for('obj.*The object is paused')
    await a.wait_for('other.*The object is paused')
    await kube.delete(kind, 'obj')
    await kube.delete(kind, 'other')
    await kube.wait_gone(kind, 'other')
    assert a.find('DELETED other BY a') and not a.find('DELETED obj')
    assert (await kube.get(kind, 'obj'))['metadata']['finalizers']
    await command('unpause', 'obj')
    await kube.wait_gone(kind, 'obj')
    assert a.find('DELETED obj BY a')
