"""
Handlers that fork: their children are no part of the operator.
"""
import signal
import sys

import pytest

POOL = '''
import multiprocessing, warnings

warnings.simplefilter('ignore', DeprecationWarning)  # newer ones warn of forks with threads
CONTEXT = multiprocessing.get_context('fork')

def square(n):
    return n * n

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = 5

@kopf.on.create(*KIND)
@kopf.on.update(*KIND)
def fn(spec, **_):
    with CONTEXT.Pool(2) as pool:
        result = sum(pool.map(square, range(spec['n'])))
    pool.join()
    return result
'''


async def test_pools_of_processes_in_handlers_do_not_stop_the_operator(kube, kind, operator):
    # Not by a fork of the tests' own, for those must not have children.
    op = operator(POOL, kind=kind, command=[sys.executable, '-m', 'kopf'])
    await kube.create(kind, 'obj', spec={'n': 1})
    for n in range(2, 12):
        await kube.wait_for(kind, 'obj', lambda obj, n=n: 'fn' in obj.get('status', {}) and (
            obj['status']['fn'] == sum(i * i for i in range(n - 1))), timeout=15)
        await kube.patch(kind, 'obj', {'spec': {'n': n}})
    await op.wait_for("Updating is processed", count=10)
    assert not op.find("Signal|stopping")
    op.send(signal.SIGTERM)
    assert await op.wait() == 0


@pytest.mark.parametrize('how', ['async def', 'def'])
async def test_children_that_outlive_their_handler_are_alone(kube, kind, operator, how):
    op = operator(f'''
import os, signal, time

@kopf.on.create(*KIND)
{how} fn(**_):
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    print(f"the child is {{child}}.")

@kopf.on.update(*KIND)
{how} update(spec, **_):
    os.kill(spec['child'], signal.SIGTERM)
    print("the child has ended:", os.waitstatus_to_exitcode(os.waitpid(spec['child'], 0)[1]))
''', kind=kind)
    await kube.create(kind, 'obj', spec={})
    line, = await op.wait_for("the child is")
    child = int(line.split()[-1].rstrip('.'))
    await op.wait_for("Creation is processed")
    await kube.patch(kind, 'obj', {'spec': {'child': child}})
    await op.wait_for("the child has ended: -15")
    await op.wait_for("Updating is processed")
    assert not op.find("Signal|stopping")
    assert op.stop() == 0
