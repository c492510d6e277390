"""
What a tenure tells by the clock.
"""
import os
import signal
import subprocess
import sys
import time

import pytest

from kopf._cogs.aiokits.tenures import Tenure, read_clock


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture()
def clock():
    return Clock()


def test_nobody_leads_before_the_first_term(clock):
    tenure = Tenure(clock)
    assert (tenure.term, tenure.left) == (None, 0)


def test_term_ends_by_the_clock(clock):
    tenure = Tenure(clock)
    tenure.renew(110)
    assert (tenure.term, tenure.left) == (1, 10)
    clock.now = 109.9
    assert tenure.term == 1
    clock.now = 110
    assert (tenure.term, tenure.left) == (None, 0)


def test_term_is_prolonged(clock):
    tenure = Tenure(clock)
    tenure.renew(110)
    clock.now = 105
    assert not tenure.renew(115)
    clock.now = 114
    assert tenure.term == 1


def test_renewal_that_is_known_too_late_is_of_no_use_for_the_term(clock):
    tenure = Tenure(clock)
    tenure.renew(110)
    clock.now = 111
    assert tenure.renew(120)
    assert tenure.term == 2


def test_terms_have_numbers(clock):
    tenure = Tenure(clock)
    tenure.renew(110)
    tenure.end()
    assert tenure.term is None
    assert tenure.renew(115)
    assert tenure.term == 2
    assert tenure.renew(120, anew=True)
    assert tenure.term == 3


@pytest.mark.skipif(not hasattr(signal, 'SIGSTOP'), reason="There are no such signals here.")
def test_clock_goes_on_while_the_process_is_stopped():
    program = '''if True:
        from kopf._cogs.aiokits.tenures import read_clock
        before = read_clock()
        print('ready', flush=True)
        input()
        print(read_clock() - before)
    '''
    process = subprocess.Popen(
        [sys.executable, '-c', program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        begun = time.monotonic()
        time.sleep(0.3)
        elapsed = time.monotonic() - begun
        process.send_signal(signal.SIGCONT)
        process.stdin.write('\n')
        process.stdin.flush()
        assert float(process.stdout.readline()) >= elapsed


def test_clock_does_not_go_back():
    assert read_clock() <= read_clock()
