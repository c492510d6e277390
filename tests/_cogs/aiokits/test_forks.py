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
from kopf._core.actions import calls
from kopf._core.reactor import shutdown

def fork():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def main():
    exiting = shutdown.Shutdown(calls.Calls(), kopf.OperatorSettings())
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


LISTENERS = '''
import asyncio, json, os, stat
from kopf._core.engines.liveness import answering, endpoints, healthserver
from kopf._kits.webhooks import listeners

def find_sockets():
    found = {int(name) for name in os.listdir('/dev/fd')}
    return {fd for fd in found if is_listening(fd)}

def is_listening(fd):
    import socket
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        sock = socket.socket(fileno=os.dup(fd))
    except OSError:
        return False
    with sock:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

async def main():
    bound = listeners.bind('127.0.0.1', 0)
    server = healthserver.Server(
        endpoints.Endpoint('127.0.0.1', 0, '/'), answer=lambda: asyncio.sleep(0))
    await server.start()
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, json.dumps(len(find_sockets())).encode())
        os._exit(0)
    os.wait()
    print([len(find_sockets()), int(os.read(reading, 100))])
    await server.stop()
    for sock in bound:
        sock.close()

asyncio.run(main())
'''


def run(script):
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script], capture_output=True, timeout=50, text=True)
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize('where', ['asyncio.to_thread', 'call'])
def test_signals_to_a_child_end_the_child_and_are_none_to_the_parent(where):
    codes, is_signalled = run(SIGNALS.replace('WHERE', where))
    assert codes == [-15] * 21
    assert not is_signalled


def test_a_child_has_none_of_the_connections_but_all_other_sockets():
    assert run(SOCKETS) == [False, True, True]


def test_a_child_does_not_listen_for_webhooks_or_health_checks():
    assert run(LISTENERS) == [2, 0]


def test_a_child_has_all_its_own_where_no_operator_runs():
    assert run('''
import json, os, signal
import kopf._cogs.aiokits.forks
signal.signal(signal.SIGTERM, lambda *_: None)
if not os.fork():
    os._exit(signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN))
print(json.dumps(os.wait()[1]))
''') == 0
