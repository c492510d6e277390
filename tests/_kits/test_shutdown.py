import asyncio
import signal
import subprocess
import sys
import threading

import pytest

import kopf
from kopf._core.actions import inflight
from kopf._core.reactor import waiting
from kopf._kits import shutdown


@pytest.fixture()
def settings():
    return kopf.OperatorSettings()


@pytest.mark.looptime
async def test_nothing_is_waited_for_if_nothing_is_left(looptime):
    await shutdown.finish_tasks(ignored=asyncio.all_tasks())
    assert looptime == 0


@pytest.mark.looptime
async def test_tasks_left_behind_can_end_by_themselves(looptime, caplog):
    ignored = asyncio.all_tasks()
    task = asyncio.create_task(asyncio.sleep(shutdown.HUNG_TASKS_TIMEOUT - 1))
    await shutdown.finish_tasks(ignored=ignored)
    assert task.done() and not task.cancelled()
    assert looptime == shutdown.HUNG_TASKS_TIMEOUT - 1
    assert not caplog.messages


@pytest.mark.looptime
async def test_tasks_left_behind_are_cancelled_at_once_with_the_one_who_waits(looptime):
    ignored = asyncio.all_tasks()
    root, other = (asyncio.create_task(asyncio.sleep(1000)) for _ in range(2))
    running = asyncio.create_task(kopf.run_tasks([root], ignored=ignored))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert root.cancelled() and other.cancelled()
    assert looptime == 1


@pytest.mark.looptime
async def test_tasks_are_spared_while_another_operator_runs_in_the_loop(settings, looptime):
    ignored = asyncio.all_tasks()
    core, task = (asyncio.create_task(asyncio.sleep(1000)) for _ in range(2))
    shutdown.start(core, inflight.Calls(), settings)
    await shutdown.finish_tasks(ignored=ignored)
    assert not core.done() and not task.done()
    assert looptime == 0
    core.cancel()
    await asyncio.wait([core])
    await shutdown.finish_tasks(ignored=ignored)
    assert task.cancelled()


@pytest.mark.looptime
async def test_tasks_left_behind_for_too_long_are_cancelled_and_named(looptime, caplog):
    ignored = asyncio.all_tasks()
    task = asyncio.create_task(asyncio.sleep(1000), name='leftover')
    await shutdown.finish_tasks(ignored=ignored)
    assert task.cancelled()
    assert looptime == shutdown.HUNG_TASKS_TIMEOUT
    message, = caplog.messages
    assert message.startswith("Cancelling the tasks that are left behind: leftover ")


@pytest.mark.looptime
async def test_tasks_that_existed_before_are_left_alone():
    task = asyncio.create_task(asyncio.sleep(1000))
    await shutdown.finish_tasks(ignored=asyncio.all_tasks())
    assert not task.done()
    task.cancel()


@pytest.mark.looptime
async def test_tasks_of_tasks_are_cancelled_too():
    ignored = asyncio.all_tasks()
    others = []

    async def spawn():
        try:
            await asyncio.sleep(1000)
        finally:
            others.append(asyncio.create_task(asyncio.sleep(1000)))

    task = asyncio.create_task(spawn())
    await shutdown.finish_tasks(ignored=ignored)
    assert task.cancelled() and others[0].cancelled()


@pytest.mark.looptime
async def test_tasks_that_refuse_to_be_cancelled_are_cancelled_again_and_named(looptime, caplog):
    ignored = asyncio.all_tasks()

    async def resist():
        for _ in range(3):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    task = asyncio.create_task(resist(), name='resistance')
    await shutdown.finish_tasks(ignored=ignored)
    assert task.done()
    assert looptime == shutdown.HUNG_TASKS_TIMEOUT + 2 * waiting.REMINDER_INTERVAL
    found = [message for message in caplog.messages if "do not end though cancelled" in message]
    assert len(found) == 2
    assert f"resistance (at {__file__}:" in found[0]


@pytest.mark.looptime
async def test_errors_of_tasks_left_behind_are_nobodys():
    async def fail():
        try:
            await asyncio.sleep(1000)
        finally:
            raise ValueError("boo")

    ignored = asyncio.all_tasks()
    task = asyncio.create_task(fail())
    await shutdown.finish_tasks(ignored=ignored)
    assert task.done()


@pytest.mark.looptime
@pytest.mark.parametrize('args, what', [([], "stopping"), (["starting"], "starting")])
async def test_it_is_said_again_and_again_what_is_waited_for(caplog, args, what):
    caplog.set_level('INFO')
    with waiting.remind(inflight.Calls(), *args):
        await asyncio.sleep(waiting.REMINDER_INTERVAL * 2.5)
    await asyncio.sleep(100)
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(f"Operator is still {what}. ")


async def test_signals_are_handled_as_long_as_somebody_holds_it(settings):
    before = signal.getsignal(signal.SIGTERM)
    exiting = shutdown.Shutdown(inflight.Calls(), settings)
    with exiting.held():
        exiting.handle_signals()
        with exiting.held():
            pass
        assert signal.getsignal(signal.SIGTERM) != before
        signal.raise_signal(signal.SIGTERM)
        await exiting.wait(None)
    assert signal.getsignal(signal.SIGTERM) == before
    assert exiting.signalled.result() == signal.SIGTERM


async def test_signal_handlers_of_the_program_are_put_back(settings):
    def handle(*_):
        pass

    before = signal.signal(signal.SIGTERM, handle)
    try:
        exiting = shutdown.Shutdown(inflight.Calls(), settings)
        with exiting.held():
            exiting.handle_signals()
            assert signal.getsignal(signal.SIGTERM) != handle
        assert signal.getsignal(signal.SIGTERM) == handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_further_signals_change_nothing_until_the_process_has_ended():
    script = '''
import asyncio, atexit, os, signal
import kopf
from kopf._core.reactor import waiting
from kopf._kits import shutdown

async def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)

atexit.register(os.kill, os.getpid(), signal.SIGTERM)
waiting.owns_process_var.set(True)
kopf.run(standalone=True, clusterwide=True, _command=stop())
os.kill(os.getpid(), signal.SIGTERM)
'''
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('hanging', [
    "async def hang(): await asyncio.sleep(600)",
    "async def hang(): time.sleep(600)",
    "async def hang(): threading.Thread(target=time.sleep, args=(600,)).start()",
], ids=['waiting', 'blocked', 'threads'])
def test_a_second_interruption_ends_the_process_at_once(hanging):
    script = f'''
import asyncio, os, signal, threading, time
import kopf
from kopf._core.reactor import waiting
from kopf._kits import shutdown

{hanging}

async def stop():
    def go_on():
        while True:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
    threading.Thread(target=go_on, daemon=True).start()
    try:
        await asyncio.sleep(60)
    finally:
        await hang()

waiting.owns_process_var.set(True)
kopf.run(standalone=True, clusterwide=True, _command=stop())
'''
    done = subprocess.run(
        [sys.executable, '-c', script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 130, done.stderr
    assert "Signal SIGINT is received again. Leaving at once" in done.stderr


@pytest.mark.parametrize('patience, is_told', [(600, False), (0, True)])
def test_an_interruption_that_is_forwarded_as_a_termination_is_told_once(patience, is_told):
    script = f'''
import asyncio, logging, os, signal
import kopf
from kopf._kits import shutdown

shutdown.IMPATIENCE = {patience}
logging.basicConfig(level=logging.INFO)

async def stop():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)

kopf.run(standalone=True, clusterwide=True, _command=stop())
'''
    done = subprocess.run(
        [sys.executable, '-c', script], capture_output=True, text=True, timeout=200)
    assert ("Signal SIGTERM is received again" in done.stderr) is is_told, done.stderr


async def test_the_limit_is_void_when_nobody_holds_it(settings, monkeypatch):
    settings.process.ultimate_exiting_timeout = 0.1
    exits = []
    monkeypatch.setattr(
        shutdown.Shutdown, '_exit_hard', lambda self, timeout: exits.append(timeout))
    exiting = shutdown.Shutdown(inflight.Calls(), settings)
    with exiting.held():
        exiting.handle_signals()
        signal.raise_signal(signal.SIGTERM)
        await exiting.wait(None)
    await asyncio.sleep(0.3)
    assert not exits


async def test_the_limit_can_be_endless(settings):
    settings.process.ultimate_exiting_timeout = float('inf')
    exiting = shutdown.Shutdown(inflight.Calls(), settings)
    with exiting.held():
        exiting.handle_signals()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)  # errors of the thread that waits are warnings, and so errors


async def test_the_limit_counts_from_the_first_signal(settings, monkeypatch):
    settings.process.ultimate_exiting_timeout = 0.1
    exits = []
    monkeypatch.setattr(
        shutdown.Shutdown, '_exit_hard', lambda self, timeout: exits.append(timeout))
    exiting = shutdown.Shutdown(inflight.Calls(), settings)
    with exiting.held():
        exiting.handle_signals()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.3)
    assert exits == [0.1]


async def test_signals_are_not_handled_in_other_threads(settings, caplog):
    async def run():
        exiting = shutdown.Shutdown(inflight.Calls(), settings)
        with exiting.held():
            exiting.handle_signals()

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before
    assert caplog.messages == ["OS signals are ignored: running not in the main thread."]


async def test_errors_of_futures_as_stop_flags_are_not_lost(settings):
    flag = asyncio.get_running_loop().create_future()
    flag.set_exception(ValueError("it is broken"))
    with pytest.raises(ValueError, match="it is broken"):
        await shutdown.Shutdown(inflight.Calls(), settings).wait(flag)


async def test_cancelled_futures_are_raised_stop_flags(settings, caplog):
    caplog.set_level('INFO')
    flag = asyncio.get_running_loop().create_future()
    flag.cancel()
    await shutdown.Shutdown(inflight.Calls(), settings).wait(flag)
    assert caplog.messages == ["Stop-flag is raised. Operator is stopping."]


@pytest.mark.looptime
async def test_the_reason_to_stop_is_told(settings, caplog):
    caplog.set_level('INFO')
    exiting = shutdown.Shutdown(inflight.Calls(), settings)
    flag = asyncio.Event()
    asyncio.get_running_loop().call_later(5, flag.set)
    await exiting.wait(flag)
    assert caplog.messages == ["Stop-flag is set to True. Operator is stopping."]


@pytest.mark.parametrize(('number', 'owns', 'is_busy', 'is_told'), [
    (signal.SIGINT, True, True, True), (signal.SIGINT, True, False, False),
    (signal.SIGINT, False, True, False), (signal.SIGTERM, True, True, False)])
async def test_it_is_told_that_a_second_interruption_leaves_the_handlers(
        settings, caplog, number, owns, is_busy, is_told):
    caplog.set_level('INFO')
    underway = inflight.Calls()
    if is_busy:
        underway[inflight.Call(None, {}, None)] = None
    waiting.owns_process_var.set(owns)
    exiting = shutdown.Shutdown(underway, settings)
    exiting.signalled.set_result(number)
    await exiting.wait(None)
    message, = caplog.messages
    assert message.startswith(f"Signal {number.name} is received. Operator is stopping.")
    assert ("Another Ctrl+C leaves at once" in message) is is_told


async def test_a_signal_that_is_sent_twice_at_once_is_told_once(settings, caplog, monkeypatch):
    caplog.set_level('INFO')
    monkeypatch.setattr(shutdown, 'IMPATIENCE', 600)
    exiting = shutdown.Shutdown(inflight.Calls(), settings)
    with exiting.held():
        exiting.handle_signals()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        await exiting.wait(None)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
    first, second = caplog.messages
    assert first == "Signal SIGTERM is received. Operator is stopping."
    assert second.startswith("Signal SIGTERM is received again. Operator is stopping already.")


async def test_a_second_signal_names_no_tasks_of_the_framework(settings, caplog, monkeypatch):
    caplog.set_level('INFO')
    exiting = shutdown.Shutdown(inflight.Calls(), settings)
    task = asyncio.create_task(exiting.wait(None))
    await asyncio.sleep(0)
    monkeypatch.setattr(asyncio, 'all_tasks', lambda loop: {task})
    exiting.signalled.set_result(signal.SIGTERM)
    exiting._receive(signal.SIGTERM)
    monkeypatch.undo()
    await task
    assert caplog.messages[0] == (
        "Signal SIGTERM is received again. Operator is stopping already. No handlers.")


def test_it_is_known_when_python_only_waits_for_its_threads():
    assert not shutdown.is_interpreter_exiting()
    script = '''
import threading, time
from kopf._core.reactor import waiting
from kopf._kits import shutdown
def run():
    time.sleep(0.5)
    print(shutdown.is_interpreter_exiting())
threading.Thread(target=run).start()
'''
    output = subprocess.run([sys.executable, '-c', script], capture_output=True, timeout=200).stdout
    assert output == b'True\n'
