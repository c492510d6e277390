"""
Programs that embed operators, in all the ways that are documented; each is run as it is.

Every one has to leave nothing behind: no tasks, threads, sockets, signal handlers, warnings.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import re
import subprocess
import sys
import threading

import pytest

import kopf
from kopf._cogs.aiokits import flags
from tests.e2e import operators
from tests.e2e.ports import find_free_ports

HEAD = '''
import asyncio
import concurrent.futures
import gc
import logging
import os
import signal
import sys
import threading
import time
import kopf

KIND = {kind!r}


def get_sockets():
    fds = os.listdir('/proc/self/fd')
    links = [os.readlink(f'/proc/self/fd/{{fd}}') for fd in fds
             if os.path.exists(f'/proc/self/fd/{{fd}}') or os.path.islink(f'/proc/self/fd/{{fd}}')]
    return [link for link in links if link.startswith('socket:')]


def check():
    """Nothing is left: each of these would be seen in the output."""
    gc.collect()
    for _ in range(100):  # idle threads of an executor that is gone need a moment
        if threading.active_count() == 1:
            break
        time.sleep(0.02)
    print("threads:", [thread.name for thread in threading.enumerate()
                       if thread is not threading.main_thread()])
    print("sockets:", get_sockets())
    print("signals:", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
          signal.getsignal(signal.SIGINT) == signal.default_int_handler)
    print("logging:", logging.getLogger().handlers, logging.getLogger('kopf').handlers,
          logging.getLogger('kopf.objects').handlers)


stop = threading.Event()


@kopf.on.create(*KIND)
def create_fn(name, **_):
    print(f"sync {{name}}", flush=True)


@kopf.on.create(*KIND)
async def async_create_fn(name, **_):
    print(f"async {{name}}", flush=True)
    threading.Timer(0.5, stop.set).start()  # what it does for the object is over then


options = dict(clusterwide=True, standalone=True, stop_flag=stop)
'''

TAIL = '''
check()
'''

CLEAN = '''
threads: []
sockets: []
signals: True True
logging: [] [] []
'''

PROGRAMS = {
    'in a thread': '''
def kopf_thread():
    asyncio.run(kopf.operator(**options))

thread = threading.Thread(target=kopf_thread)
thread.start()
thread.join()
''',
    'in the main thread': '''
kopf.run(**options)
''',
    'in the main thread, with an own loop': '''
loop = asyncio.new_event_loop()
kopf.run(loop=loop, **options)
print("tasks:", asyncio.all_tasks(loop))
loop.run_until_complete(loop.shutdown_default_executor())
loop.close()
''',
    'orchestrated manually': '''
def kopf_thread():
    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(kopf.spawn_tasks(**options))
    loop.run_until_complete(kopf.run_tasks(tasks, return_when=asyncio.FIRST_COMPLETED))
    print("tasks:", asyncio.all_tasks(loop))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

thread = threading.Thread(target=kopf_thread)
thread.start()
thread.join()
''',
    'orchestrated manually in the main thread': '''
loop = asyncio.new_event_loop()
tasks = loop.run_until_complete(kopf.spawn_tasks(**options))
loop.run_until_complete(kopf.run_tasks(tasks))
print("tasks:", asyncio.all_tasks(loop))
loop.run_until_complete(loop.shutdown_default_executor())
loop.close()
''',
    'only waited for': '''
async def main():
    tasks = await kopf.spawn_tasks(**options)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    print("tasks:", asyncio.all_tasks() - {asyncio.current_task()} or set())

asyncio.run(main())
''',
    'stopped by cancelling': '''
async def main():
    task = asyncio.create_task(kopf.operator(clusterwide=True, standalone=True))
    while not stop.is_set():
        await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    print("tasks:", asyncio.all_tasks() - {asyncio.current_task()} or set())

asyncio.run(main())
''',
    'beside other tasks which were there before': '''
async def main():
    other = asyncio.create_task(asyncio.sleep(0))
    ticking = asyncio.create_task(asyncio.sleep(1000))
    await kopf.operator(**options)
    assert not ticking.done()
    ticking.cancel()
    await asyncio.wait([other, ticking])
    print("tasks:", asyncio.all_tasks() - {asyncio.current_task()} or set())

asyncio.run(main())
''',
    'in a loop of uvloop': '''
import uvloop
loop = uvloop.new_event_loop()
kopf.run(loop=loop, **options)
print("tasks:", asyncio.all_tasks(loop))
loop.run_until_complete(loop.shutdown_default_executor())
loop.close()
''',
    'by the policy of uvloop': '''
import uvloop
import warnings
with warnings.catch_warnings():
    warnings.simplefilter('ignore', DeprecationWarning)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
kopf.run(**options)
''',
    'stopped by a signal, after which the program goes on': '''
@kopf.on.startup()
def startup_fn(settings, **_):
    settings.process.ultimate_exiting_timeout = 2

def send():
    stop.wait()
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=send).start()
kopf.run(clusterwide=True, standalone=True)
time.sleep(2.5)
''',
    'one after another, with the same settings': '''
settings = kopf.OperatorSettings()
ready = threading.Event()

@kopf.on.startup()
def startup_fn(settings, **_):
    settings.posting.enabled = False

def end():
    ready.wait()
    stop.set()

kopf.run(settings=settings, **options)
stop.clear()
threading.Thread(target=end).start()
kopf.run(settings=settings, ready_flag=ready, **options)
''',
    'with a handler that holds a thread until the end': '''
@kopf.daemon(*KIND)
def daemon_fn(stopped, **_):
    stopped.wait()

@kopf.timer(*KIND, interval=0.1)
def timer_fn(**_):
    pass

kopf.run(**options)
''',
    'by the command line': '''
from kopf import cli
registry = kopf.get_default_registry()
cli.main(['run', '--all-namespaces', '--standalone', '--quiet'], standalone_mode=False,
         obj=cli.CLIControls(stop_flag=stop, registry=registry))
logging.getLogger().handlers.clear()
''',
    'by a command line of its own': '''
import click
from kopf import cli

@click.group()
def mine():
    pass

mine.add_command(cli.run, 'operate')
mine(['operate', '--all-namespaces', '--standalone', '--quiet'], standalone_mode=False,
     obj=cli.CLIControls(stop_flag=stop))
logging.getLogger().handlers.clear()
''',
    'with health checks': '''
import urllib.request

@kopf.on.probe(id='x')
def probe_fn(**_):
    return 123

def ask():
    ready.wait()
    print("healthy:", urllib.request.urlopen({url!r}).read())

ready = threading.Event()
asking = threading.Thread(target=ask)
asking.start()
kopf.run(ready_flag=ready, liveness_endpoint={url!r}, **options)
asking.join()
''',
}


@pytest.fixture()
def unused_port():
    return find_free_ports(1)


@pytest.fixture()
def run(kube, kind, cluster, tmp_path):
    """Run a program until it ends, with an object created meanwhile; returns its output."""
    async def run(text):
        path = tmp_path / 'program.py'
        path.write_text(HEAD.format(kind=kind.selector) + text + TAIL)
        process = await asyncio.create_subprocess_exec(
            sys.executable, '-X', 'dev', '-W', 'error', str(path),
            env={**os.environ, 'KUBECONFIG': cluster, 'PYTHONUNBUFFERED': '1'},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            await kube.create(kind, 'obj')
            async with asyncio.timeout(30):
                stdout, stderr = await process.communicate()
        except BaseException:
            process.kill()
            raise
        print(stdout.decode(), stderr.decode(), sep='\n--- stderr:\n')
        assert process.returncode == 0
        assert not re.search(
            r'Warning\b|Exception ignored|Traceback|never awaited|was destroyed', stderr.decode())
        return stdout.decode()
    return run


@pytest.mark.parametrize('name', PROGRAMS)
async def test_operators_can_be_embedded(run, name, unused_port):
    if 'uvloop' in name:
        pytest.importorskip('uvloop')
    text = PROGRAMS[name].replace('{url!r}', repr(f'http://127.0.0.1:{unused_port}/healthz'))
    output = await run(text)
    assert output.count("async obj") == 1
    assert output.count("sync obj") == 2  # in both lines
    assert output.endswith(CLEAN.lstrip())
    assert "tasks: set()" in output or "tasks:" not in output
    if 'healthy' in text:
        assert """healthy: b'{"x": 123}'""" in output


FLAGS = {
    'threading.Event': threading.Event,
    'concurrent.futures.Future': concurrent.futures.Future,
    'asyncio.Event': asyncio.Event,
    'asyncio.Future': lambda: asyncio.get_running_loop().create_future(),
}


def is_raised(flag):
    return flag.done() if hasattr(flag, 'done') else flag.is_set()


@pytest.mark.parametrize('make_flag', FLAGS.values(), ids=FLAGS)
async def test_flags_are_events_or_futures_of_asyncio_or_threads(
        cluster, registry, settings, monkeypatch, make_flag):
    monkeypatch.setenv('KUBECONFIG', cluster)
    ready, stop = make_flag(), make_flag()
    task = asyncio.create_task(kopf.operator(
        registry=registry, settings=settings, clusterwide=True, standalone=True,
        ready_flag=ready, stop_flag=stop))
    async with asyncio.timeout(30):
        while not is_raised(ready):
            await asyncio.sleep(0.01)
        assert not task.done()
        flags.raise_flag(stop)
        await task


@pytest.mark.parametrize('make_flag', [
    FLAGS['threading.Event'], FLAGS['concurrent.futures.Future']])
async def test_flags_raised_when_the_operator_is_gone_hurt_nobody(
        cluster, registry, settings, monkeypatch, make_flag, caplog):
    monkeypatch.setenv('KUBECONFIG', cluster)
    stop = make_flag()

    @kopf.on.startup()
    def fn(**_):
        raise kopf.PermanentError("no way")

    def run():
        with contextlib.suppress(Exception):
            asyncio.run(kopf.operator(
                registry=registry, settings=settings, clusterwide=True, standalone=True,
                stop_flag=stop))

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join)
    caplog.clear()
    flags.raise_flag(stop)
    assert not caplog.messages


async def test_operators_in_threads_have_nothing_in_common(kube, borrow, cluster, monkeypatch):
    monkeypatch.setenv('KUBECONFIG', cluster)
    kinds = [borrow(), borrow()]
    seen = [[], []]
    started = []
    for number, kind in enumerate(kinds):
        registry = kopf.OperatorRegistry()

        @kopf.index(*kind.selector, registry=registry, id='names')
        def index_fn(name, **_):
            return {name: None}

        @kopf.on.create(*kind.selector, registry=registry)
        def fn(name, body, memo, names, number=number, **_):
            seen[number].append((name, memo['number'], list(names)))
            kopf.info(body, reason=f"By{number}")

        started.append(operators.EmbeddedOperator(
            registry=registry, settings=kopf.OperatorSettings(), memo={'number': number}))
    try:
        for operator in started:
            operator.wait_ready()
        objs = [await kube.create(kind, f'obj{number}') for number, kind in enumerate(kinds)]
        for number, obj in enumerate(objs):
            async with asyncio.timeout(30):
                while not await find_events(kube, obj, reason=f"By{number}"):
                    await asyncio.sleep(0.1)
    finally:
        for operator in started:
            operator.stop()
    assert seen == [[('obj0', 0, ['obj0'])], [('obj1', 1, ['obj1'])]]


async def test_operators_with_the_same_settings_do_not_end_each_others_posting(
        kube, borrow, cluster, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv('KUBECONFIG', cluster)
    kinds = [borrow(), borrow()]
    settings = kopf.OperatorSettings()
    started = []
    for kind in kinds:
        registry = kopf.OperatorRegistry()
        kopf.on.create(*kind.selector, registry=registry, id='fn')(lambda **_: None)
        started.append(operators.EmbeddedOperator(registry=registry, settings=settings))
        started[-1].wait_ready()
    first, second = started
    try:
        second.stop()
        obj = await kube.create(kinds[0], 'obj')
        async with asyncio.timeout(30):
            while not await find_events(kube, obj):
                await asyncio.sleep(0.1)
    finally:
        first.stop()


async def find_events(kube, obj, **fields):
    path = '/api/v1/namespaces/default/events'
    fields = {'involvedObject.uid': obj['metadata']['uid'], **fields}
    params = {'fieldSelector': ','.join(f'{key}={value}' for key, value in fields.items())}
    return (await kube.request('GET', path, params=params))['items']
