import builtins
import contextlib
import importlib
import logging
import threading

import pytest

import kopf
from kopf._core.engines.activities import ActivityError
from kopf.testing import KopfRunner, run_sandbox

ARGS = ['run', '-A', '--standalone', '--verbose']
PRINTING = """
import sys
@kopf.on.startup()
def fn(**_):
    print("to stdout")
    print("to stderr", file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def _registry():
    previous = kopf.get_default_registry()
    kopf.set_default_registry(kopf.OperatorRegistry())
    yield
    kopf.set_default_registry(previous)


@pytest.fixture(scope='module')
def kubeconfig(tmp_path_factory):
    path = tmp_path_factory.mktemp('sandbox') / 'kubeconfig'
    with run_sandbox() as sandbox:
        sandbox.write_kubeconfig(path)
        yield str(path)


@pytest.fixture(autouse=True)
def _environ(monkeypatch, kubeconfig):
    monkeypatch.setenv('KUBECONFIG', kubeconfig)


def run(runner, text):
    """Run the operator until it says something."""
    with listen(text) as wait, runner:
        wait()
    return runner


@contextlib.contextmanager
def listen(text):
    """Listen to the operators of this process before they start, to wait for a line of the log."""
    found = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record):
            if text in record.getMessage():
                found.set()

    def wait():
        assert found.wait(200), text  # libraries are imported for logging in

    handler = Handler()
    logging.getLogger().addHandler(handler)
    try:
        yield wait
    finally:
        logging.getLogger().removeHandler(handler)


def test_an_operator_runs_while_the_block_does(script):
    runner = run(KopfRunner([*ARGS, script(PRINTING)], timeout=200), "authentication has finished")
    assert (runner.exit_code, runner.exception) == (0, None)
    assert runner.exc_info[0] is SystemExit
    assert "Stop-flag is set to True" in runner.output


def test_the_stdout_has_the_log_and_the_stderr_has_no_prints(script):
    runner = run(KopfRunner([*ARGS, script(PRINTING)], timeout=200), "authentication has finished")
    assert "to stdout" in runner.stdout
    assert "to stderr" in runner.stdout
    assert "Stop-flag is set to True" in runner.stdout
    assert "to stdout" not in runner.stderr
    assert runner.stderr.encode() == runner.stderr_bytes
    assert runner.stdout.encode() == runner.stdout_bytes


async def test_it_works_in_a_test_with_a_loop(script):
    with listen("authentication has finished") as wait, (
            KopfRunner([*ARGS, script(PRINTING)], timeout=200)) as runner:
        wait()
    assert runner.exit_code == 0


FAILING = """
@kopf.on.startup()
def fn(**_):
    raise kopf.PermanentError("boo")
"""


def test_the_error_of_the_operator_is_raised(script):
    with pytest.raises(ActivityError, match="boo") as info:
        with KopfRunner([*ARGS, script(FAILING)], timeout=200) as runner:
            runner.future.result(200)
    assert isinstance(info.value.__cause__, kopf.PermanentError)
    assert runner.exit_code == 1
    assert "Error: The startup has failed: fn: boo" in runner.output


def test_the_error_of_the_startup_is_raised_even_if_the_block_is_empty(script):
    with pytest.raises(ActivityError, match="boo"):
        with KopfRunner([*ARGS, script(FAILING)], timeout=200):
            pass


@pytest.mark.parametrize('text, error', [
    ("raise ValueError('boo')", ValueError),
    ("def (", SyntaxError),
    ("import nonexistent_module", ModuleNotFoundError),
])
def test_the_error_in_a_file_is_raised_as_it_is(script, text, error):
    with pytest.raises(error) as info:
        with KopfRunner([*ARGS, script(text)], timeout=200) as runner:
            pass
    assert type(info.value) is error
    assert runner.exit_code == 1
    assert f"Cannot load {runner.args[0][-1]}: {error.__name__}: " in runner.output


def test_a_folder_instead_of_a_file_cannot_be_imported(tmp_path):
    with pytest.raises(ImportError, match="is not a file"):
        with KopfRunner([*ARGS, str(tmp_path)], timeout=200):
            pass


def test_the_error_of_the_operator_can_be_kept(script):
    with KopfRunner(['run', '-A', 'absent.py'], reraise=False, timeout=200) as runner:
        pass
    assert runner.exit_code == 1
    assert isinstance(runner.exception, FileNotFoundError)
    assert runner.exc_info[1] is runner.exception


def test_errors_of_the_command_line_are_exits():
    with pytest.raises(SystemExit):
        with KopfRunner(['run', '-A', '-n', 'ns'], timeout=200) as runner:
            pass
    assert runner.exit_code == 2
    assert "but not both" in runner.output


def test_the_error_of_the_block_is_raised(script):
    with pytest.raises(ZeroDivisionError):
        with KopfRunner([*ARGS, script(PRINTING)], timeout=200) as runner:
            raise ZeroDivisionError
    assert runner.exit_code == 0


def test_of_two_errors_one_is_the_cause_of_the_other():
    with pytest.raises(FileNotFoundError) as info:
        with KopfRunner(['run', '-A', 'absent.py'], timeout=200):
            raise ZeroDivisionError
    assert isinstance(info.value.__cause__, ZeroDivisionError)


def test_a_hanging_operator_is_stopped_with_an_error(script):
    with pytest.raises(TimeoutError, match=r"The operator didn't stop in 0.1 seconds"):
        with listen("authentication has finished") as wait, KopfRunner([*ARGS, script("""
import asyncio
@kopf.on.cleanup()
async def fn(**_):
    await asyncio.sleep(100)
""")], timeout=0.1):
            wait()
    assert not [thread for thread in threading.enumerate() if thread.name == 'KopfRunner']


def test_a_registry_gets_the_handlers_of_the_files(script):
    path = script(PRINTING)
    for _ in range(2):
        registry = kopf.OperatorRegistry()
        runner = KopfRunner([*ARGS, path], registry=registry, timeout=200)
        run(runner, "authentication has finished")
        assert len(registry._activities) == 1
    assert len(kopf.get_default_registry()._activities) == 0


def test_operators_side_by_side_have_registries_of_their_own(tmp_path):
    before = importlib.import_module, builtins.__import__, kopf.get_default_registry()
    found = []
    with contextlib.ExitStack() as stack:
        for name in ['one', 'two']:
            path = tmp_path / f'{name}.py'
            path.write_text(f"""
import kopf
import time

time.sleep(0.2)

@kopf.on.startup(id='{name}')
def fn(**_):
    kopf.on.create('kopfexamples', id='{name}')(fn)
""")
            registry = kopf.OperatorRegistry()
            found.append(registry)
            wait = stack.enter_context(listen(f"Activity '{name}' succeeded"))
            stack.enter_context(
                KopfRunner([*ARGS, str(path)], registry=registry, timeout=200))
            stack.callback(wait)
    assert [[each.id for each in registry._activities] for registry in found] == [['one'], ['two']]
    assert [[each.id for each in registry._changing] for registry in found] == [['one'], ['two']]
    assert before == (importlib.import_module, builtins.__import__, kopf.get_default_registry())


def test_the_log_of_an_operator_goes_on_when_an_earlier_one_ends(tmp_path, script):
    path = tmp_path / 'one.py'
    path.write_text(f"""
import asyncio
import pathlib
import kopf

@kopf.on.startup(id='one')
async def fn(**_):
    while not pathlib.Path({str(tmp_path / 'go')!r}).exists():
        await asyncio.sleep(0.01)
""")
    with contextlib.ExitStack() as stack:
        wait = stack.enter_context(listen("Activity 'one' succeeded"))
        with listen("authentication has finished") as wait_other, KopfRunner(
                [*ARGS, script(PRINTING)], registry=kopf.OperatorRegistry(), timeout=200):
            wait_other()
            with listen("Activity 'one' is invoked") as wait_begin:
                stack.enter_context(KopfRunner(
                    [*ARGS, str(path)], registry=kopf.OperatorRegistry(), timeout=200))
                wait_begin()
        (tmp_path / 'go').touch()
        wait()


def test_the_default_registry_gets_each_file_once(script):
    path = script(PRINTING)
    for _ in range(2):
        run(KopfRunner([*ARGS, path], timeout=200), "authentication has finished")
    assert len(kopf.get_default_registry()._activities) == 1


def test_the_settings_are_those_of_the_operator(script):
    settings = kopf.OperatorSettings()
    run(KopfRunner([*ARGS, script("""
@kopf.on.startup()
def fn(settings, **_):
    settings.peering.name = 'seen'
""")], settings=settings, timeout=200), "authentication has finished")
    assert settings.peering.name == 'seen'


def test_options_of_click_are_passed(script):
    with pytest.raises(ActivityError):
        with KopfRunner([*ARGS, script("""
@kopf.on.startup()
def fn(**_):
    import os
    raise kopf.PermanentError(os.environ['SOMETHING'])
""")], env={'SOMETHING': 'here'}, timeout=200) as runner:
            runner.future.result(200)
    assert "here" in runner.output


def test_the_logging_is_as_it_was(script):
    root = logging.getLogger()
    before = set(root.handlers), root.level  # others may have left some of Kopf's
    run(KopfRunner([*ARGS, script(PRINTING)], timeout=200), "authentication has finished")
    assert (set(root.handlers), root.level) == before
