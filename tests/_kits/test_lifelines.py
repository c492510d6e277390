"""
The end of a process that follows the lifeline of another one.
"""
import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, threading
from kopf._kits import lifelines

def tell(when):
    if os.getpid() == pid:
        print(when, [thread.name for thread in threading.enumerate()], flush=True)

pid = os.getpid()
atexit.register(tell, 'end')  # it is called after what is registered later
lifelines.follow()
"""
FORKING = """
child = os.fork()
if child == 0:
    raise SystemExit
os.waitpid(child, 0)
"""


@pytest.mark.parametrize('text', [PROGRAM, PROGRAM + FORKING], ids=['alone', 'forked'])
def test_the_thread_of_a_lifeline_ends_before_the_interpreter(text):
    reading, writing = os.pipe()
    text += "tell('begin')"
    try:
        done = subprocess.run(
            [sys.executable, '-c', text], pass_fds=[reading], capture_output=True, text=True,
            env={**os.environ, 'KOPF_LIFELINE': str(reading)}, timeout=60, check=True)
    finally:
        os.close(reading)
        os.close(writing)
    assert done.stdout.splitlines() == ["begin ['MainThread', 'lifeline']", "end ['MainThread']"]
