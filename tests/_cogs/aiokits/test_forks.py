"""
What the children of a process share with it: real processes, for nothing else has real signals.
"""
import json
import subprocess
import sys

import pytest

SIGNALS = '''
import asyncio, json, os, signal, threading, time
import kopf
from kopf._core.actions import inflight
from kopf._kits import shutdown

def fork():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def main():
    exiting = shutdown.Shutdown(inflight.Calls(), kopf.OperatorSettings())
    with exiting.held():
        exiting.handle_signals()
        codes = [await WHERE(fork) for _ in range(20)]
        await asyncio.sleep(0.1)
        is_signalled = exiting.signalled.done()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(exiting.signalled, 5)
    codes.append(fork())
    print(json.dumps([codes, is_signalled]))

async def call(fn):
    return fn()

asyncio.run(main())
'''

SOCKETS = '''
import json, os, socket, stat
from kopf._cogs.clients import sockets

TCP = (socket.AF_INET, socket.SOCK_STREAM, 0)
ours, theirs = sockets.make_socket(TCP), socket.socket()
gone = sockets.make_socket(TCP)
descriptor = gone.fileno()
gone.close()
reused = socket.socket()
assert reused.fileno() == descriptor
reading, writing = os.pipe()
if not os.fork():
    known = [stat.S_ISSOCK(os.fstat(item.fileno()).st_mode) for item in (ours, theirs, reused)]
    os.write(writing, json.dumps(known).encode())
    os._exit(0)
os.wait()
print(os.read(reading, 100).decode())
assert stat.S_ISSOCK(os.fstat(ours.fileno()).st_mode)
for item in (ours, theirs, reused):
    item.close()
'''

SERVERS = '''
import asyncio, json, os, socket, stat, warnings
import kopf
from kopf._cogs.serving import endpoints, pages
from kopf._core.engines.liveness import answering

warnings.simplefilter('ignore', DeprecationWarning)  # newer ones warn of forks with threads

def count(port):
    found = 0
    for descriptor in range(3, 100):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        except OSError:
            continue
        if is_socket:
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                found += sock.family == socket.AF_INET and sock.getsockname()[1] == port
    return found

async def fn(review, **_):
    return {}

async def look(port):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(b'GET ')
    while count(port) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, json.dumps(count(port)).encode())
        os._exit(0)
    os.wait()
    writer.close()
    return [count(port) > 0, json.loads(os.read(reading, 100))]

async def main():
    async with kopf.WebhookServer(addr='127.0.0.1', insecure=True) as server:
        async for config in server(fn):
            port = int(config['url'].rpartition(':')[2])
            break
        found = [await look(port)]

    async def respond(_):
        return answering.describe({})

    endpoint = endpoints.Endpoint.parse('http://127.0.0.1:0/')
    server = pages.Server([endpoints.Page('page', '--page', endpoint, respond)])
    port, = await server.start()
    found.append(await look(port))
    await server.stop()
    print(json.dumps(found))

asyncio.run(main())
'''


def run(script):
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script], capture_output=True, timeout=200, text=True)
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize('where', ['asyncio.to_thread', 'call'])
def test_signals_to_a_child_end_the_child_and_are_none_to_the_parent(where):
    codes, is_signalled = run(SIGNALS.replace('WHERE', where))
    assert codes == [-15] * 21
    assert not is_signalled


def test_a_child_has_none_of_the_connections_but_all_other_sockets():
    assert run(SOCKETS) == [False, True, True]


def test_a_child_has_neither_the_servers_of_the_operator_nor_their_clients():
    assert run(SERVERS) == [[True, 0], [True, 0]]


def test_a_child_has_all_its_own_where_no_operator_runs():
    assert run('''
import json, os, signal
import kopf._cogs.aiokits.forks
signal.signal(signal.SIGTERM, lambda *_: None)
if not os.fork():
    os._exit(signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN))
print(json.dumps(os.wait()[1]))
''') == 0
