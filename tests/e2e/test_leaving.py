import asyncio
import os
import re
import signal
import time

import pytest

from tests.e2e.journals import is_handled
from tests.e2e.proxy import Proxy

STUCK = '''
import asyncio, threading, time, warnings

@kopf.on.startup()
def configure(settings, **_):
    settings.process.ultimate_exiting_timeout = 2
    settings.queueing.exit_timeout = 0.2
'''


async def test_a_handler_in_progress_is_finished_within_the_limit(kube, kind, operator):
    op = operator('''
import asyncio

@kopf.on.create(*KIND)
async def fn(**_):
    print("begun")
    await asyncio.sleep(0.5)
    print("ended")
    return 123
''', kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("begun")
    op.send(signal.SIGTERM)
    assert await op.wait() == 0
    assert op.find("ended")
    assert is_handled(await kube.get(kind, 'obj'))


async def test_threads_are_waited_for(kube, kind, operator):
    op = operator('''
import time

@kopf.on.startup()
def configure(settings, **_):
    settings.queueing.exit_timeout = 0.2

@kopf.on.create(*KIND)
def fn(**_):
    print("begun")
    time.sleep(2)
    print("ended")
''', kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("begun")
    op.send(signal.SIGTERM)
    assert await op.wait() == 0
    assert op.find("ended")
    assert is_handled(await kube.get(kind, 'obj'))


async def test_no_work_is_taken_any_more(kube, kind, operator):
    op = operator('''
import asyncio

@kopf.on.create(*KIND)
async def fn(name, **_):
    print(f"begun {name}")
    await asyncio.sleep(1)
''', kind=kind)
    await kube.create(kind, 'obj1')
    await op.wait_for("begun obj1")
    op.send(signal.SIGTERM)
    await op.wait_for("Operator is stopping")
    await kube.create(kind, 'obj2')
    assert await op.wait() == 0
    assert not op.find("begun obj2")


async def test_retries_go_on_in_the_next_process(kube, kind, operator):
    text = '''
@kopf.on.create(*KIND, backoff=1)
def fn(retry, **_):
    print(f"it is retry {retry}")
    if retry < 3:
        raise kopf.TemporaryError("not yet", delay=1)
'''
    first = operator(text, kind=kind)
    await kube.create(kind, 'obj')
    await first.wait_for("it is retry 1")
    assert first.stop() == 0
    second = operator(text, kind=kind)
    await second.wait_for("Handler 'fn' succeeded")
    retries = [re.search(r"it is retry (\d)", line)[1]
               for op in (first, second) for line in op.find("it is retry")]
    assert retries == ['0', '1', '2', '3']


async def test_handlers_left_are_called_in_the_next_process_and_no_others(kube, kind, operator):
    text = '''
import asyncio

@kopf.on.create(*KIND)
async def first(**_):
    print("first called")

@kopf.on.create(*KIND)
async def second(**_):
    print("second called")
    await asyncio.sleep(0.5)

@kopf.on.create(*KIND)
async def third(**_):
    print("third called")
'''
    one = operator(text, kind=kind)
    await kube.create(kind, 'obj')
    await one.wait_for("second called")
    assert one.stop() == 0
    two = operator(text, kind=kind)
    await two.wait_for("third called")
    await two.wait_for("Creation is processed")
    called = [line for op in (one, two) for line in op.find("^(first|second|third) called")]
    assert called == ["first called", "second called", "third called"]
    assert one.find("second called")


async def test_a_second_signal_is_answered_with_what_is_waited_for(kube, kind, operator):
    op = operator('''
import asyncio

@kopf.on.create(*KIND)
async def fn(**_):
    print("begun")
    await asyncio.sleep(1)
''', kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("begun")
    op.send(signal.SIGTERM)
    await op.wait_for("Signal SIGTERM is received. Operator is stopping.")
    op.send(signal.SIGTERM)
    line, = await op.wait_for("Signal SIGTERM is received again. Operator is stopping already.")
    assert re.search(r"Handlers: 'fn' for default/obj \(\d s, at .+handlers0.py:\d+ fn\(\)\)", line)
    assert await op.wait() == 0
    assert is_handled(await kube.get(kind, 'obj'))


@pytest.mark.parametrize('options, stages', [
    ('cancellation_backoff=0.3, cancellation_timeout=1', ['stopped', 'cancelled']),
    ('cancellation_timeout=1', ['cancelled']),
])
async def test_daemons_are_stopped_by_their_stages(kube, kind, operator, options, stages):
    op = operator(f'''
import asyncio

@kopf.daemon(*KIND, {options})
async def fn(stopped, **_):
    print("begun")
    try:
        await stopped.wait()
        print("stage: stopped")
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("stage: cancelled")
        raise
''', kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("begun")
    op.send(signal.SIGTERM)
    assert await op.wait() == 0
    found = [line.removeprefix('stage: ') for line in op.find('^stage: ')]
    assert found[-len(stages):] == stages


async def test_tasks_of_handlers_have_5_seconds_and_are_cancelled_then(kube, kind, operator):
    op = operator('''
import asyncio, time
tasks = []

async def work(name, seconds):
    try:
        await asyncio.sleep(seconds)
        print(f"{name} is done")
    except asyncio.CancelledError:
        print(f"{name} is cancelled")
        raise

@kopf.on.create(*KIND)
async def fn(**_):
    tasks.append(asyncio.create_task(work('short', 3)))
    tasks.append(asyncio.create_task(work('long', 300), name='long work'))
''', kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("Creation is processed")
    started = time.monotonic()
    assert op.stop() == 0
    assert 4.5 < time.monotonic() - started < 30  # not the 300 seconds of the task
    assert op.find("short is done")
    assert op.find("long is cancelled")
    assert op.find(
        r"Cancelling the tasks that are left behind: long work \(at .+handlers0.py:\d+ work\(\)")


@pytest.mark.parametrize('text, blamed', [
    ('''
@kopf.on.create(*KIND)
async def fn(**_):
    while True:
        try:
            print("begun")
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            pass
''', r"Handlers: 'fn' for default/obj \(\d s, at .+handlers0.py:\d+ fn\(\)"),
    ('''
@kopf.on.create(*KIND)
def fn(**_):
    print("begun")
    time.sleep(100)
''', r"Handlers: 'fn' for default/obj \(\d s, at .+handlers0.py:\d+ fn\(\)"),
    ('''
@kopf.daemon(*KIND)
def fn(**_):
    print("begun")
    time.sleep(100)
''', r"Handlers: 'fn' for default/obj \(\d s, at .+handlers0.py:\d+ fn\(\)"),
    ('''
@kopf.on.create(*KIND)
def fn(**_):
    threading.Thread(target=time.sleep, args=[100], name='worker').start()
    print("begun")
''', r"Threads: .*worker"),
    ('''
async def work():
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            pass

@kopf.on.create(*KIND)
async def fn(**_):
    fn.task = asyncio.create_task(work(), name='worker')
    print("begun")
''', r"Tasks: .*worker \(at .+handlers0.py:\d+ work\(\)"),
    ('''
@kopf.on.create(*KIND)
async def fn(**_):
    print("begun")

@kopf.on.cleanup()
def clean(**_):
    time.sleep(100)
''', r"Handlers: 'clean' \(\d s, at .+handlers0.py:\d+ clean\(\)"),
    ('''
@kopf.on.create(*KIND)
async def fn(**_):
    print("begun")
    time.sleep(100)
''', r"Handlers: 'fn' for default/obj"),
], ids=['handler', 'thread', 'daemon', 'own thread', 'own task', 'cleanup', 'loop'])
async def test_what_hangs_is_left_regardless_and_named(kube, kind, operator, text, blamed):
    op = operator(STUCK + text, kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("begun")
    await asyncio.sleep(0.2)
    started = time.monotonic()
    op.send(signal.SIGTERM)
    assert await op.wait() == 1
    assert 1.5 < time.monotonic() - started < 20  # not the 100 seconds
    line, = op.find(r"The operator has not exited in 2 seconds; leaving regardless\.")
    assert re.search(blamed, line)


async def test_errors_of_the_cleanup_are_told_by_the_exit_code(operator, kind):
    op = operator('''
@kopf.on.cleanup()
def fn(**_):
    raise kopf.PermanentError("no way")
''', kind=kind)
    await op.wait_for("authentication has finished")
    assert op.stop() == 1
    assert op.find("Error: The cleanup has failed: fn: no way")


async def test_a_failed_startup_is_told_by_the_exit_code(operator, kind):
    op = operator('''
@kopf.on.startup()
def fn(**_):
    raise kopf.PermanentError("no way")
''', kind=kind)
    assert await op.wait() == 1
    assert op.find("Error: The startup has failed: fn: no way")


async def test_no_credentials_are_told_by_the_exit_code(operator, kind):
    op = operator('''
@kopf.on.event(*KIND)
def fn(**_):
    pass
''', kind=kind, kubeconfig=os.devnull)
    assert await op.wait() == 1


async def test_it_is_said_what_is_waited_for_when_it_takes_long(operator, kind):
    op = operator('''
import asyncio

@kopf.on.cleanup()
async def fn(**_):
    await asyncio.sleep(12)
''', kind=kind)
    await op.wait_for("authentication has finished")
    assert op.stop(timeout=20) == 0
    assert op.find(
        r"Operator is still stopping. Handlers: 'fn' \(1[0-2] s, at .+handlers0.py:\d+ fn\(\)")


async def test_a_daemon_that_holds_its_thread_is_named_and_waited_for(kube, kind, operator):
    op = operator('''
import time

@kopf.daemon(*KIND)
def fn(**_):
    print("begun")
    time.sleep(22)
''', kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("begun")
    await asyncio.sleep(1)
    op.send(signal.SIGTERM)
    line, = await op.wait_for("left behind", timeout=20)
    assert re.search(r"'fn' for default/obj \(\d+ s, at .+handlers0.py:\d+ fn\(\)", line)
    assert await op.wait(timeout=20) == 0


@pytest.mark.parametrize('method', ['POST', 'PATCH'])
async def test_requests_that_are_never_answered_are_given_up(
        cluster, kube, kind, operator, tmp_path, method):
    with Proxy(cluster) as proxy:
        op = operator('''
@kopf.on.startup()
def configure(settings, **_):
    settings.queueing.exit_timeout = 0.5

@kopf.on.create(*KIND)
def fn(**_):
    print("called")
''', kind=kind, kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))
        await op.wait_for("authentication has finished")
        proxy.hang(match=lambda request: request.method == method, times=None)
        await kube.create(kind, 'obj')
        await op.wait_for("called")
        await asyncio.sleep(0.5)
        assert op.stop(timeout=20) == 0


async def test_threads_do_not_wait_for_what_they_apply_any_more(
        cluster, kube, kind, operator, tmp_path):
    with Proxy(cluster) as proxy:
        op = operator('''
@kopf.on.create(*KIND)
def fn(**_):
    obj = {'apiVersion': 'v1', 'kind': 'ConfigMap'}
    kopf.adopt(obj, strict=True)
    print("called")
    kopf.apply(obj).result()
''', kind=kind, kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))
        await op.wait_for("authentication has finished")
        proxy.hang(match=lambda request: '/configmaps/' in request.path, times=None)
        await kube.create(kind, 'obj')
        await op.wait_for("called")
        await asyncio.sleep(0.5)
        assert op.stop(timeout=20) == 0
        assert not op.find("'fn' failed")  # it is interrupted as async handlers are
