"""
Operators in the background of tests: the command line, run in a thread.
"""
import asyncio
import concurrent.futures
import contextlib
import logging
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

import click
import click.testing

from kopf import cli
from kopf._cogs.configs import configuration
from kopf._core.intents import registries
from kopf._kits.testing import scripts

T = TypeVar('T')

CANCELLATION_TIMEOUT = 1.0
"""How long (seconds) an operator which has not stopped in its time has, when it is cancelled."""


class KopfRunner(AbstractContextManager['KopfRunner']):
    """
    Runs an operator by the arguments of the command line, while the block is executed.

    .. code-block:: python

        with KopfRunner(['run', '-A', '--verbose', 'handlers.py']) as runner:
            ...  # create, change, delete objects

        assert runner.exit_code == 0
        assert runner.exception is None
        assert 'Deleted, really deleted' in runner.stdout

    It is a thread with an event loop of its own, so the test may have a loop, too. The arguments
    are those of :meth:`click.testing.CliRunner.invoke`, and the results are those of
    :class:`click.testing.Result`, with these differences: the ``stdout`` also has what went to
    stderr, which is where the log goes; and an error which the command line tells in a line is the
    ``exception`` itself. The results are there when the operator has ended: asked for earlier, they
    wait for that.

    When the block ends, so does the operator. If that takes longer than the timeout (in seconds;
    `None`: no limit), it is cancelled, and :exc:`TimeoutError` is raised. The operator's own error
    is raised from the one of the block if there is one; with ``reraise=False``, it is only kept.

    The files are loaded into the registry, by default into the default one: each file once for each
    registry.
    """

    _future: 'concurrent.futures.Future[click.testing.Result]'

    def __init__(
            self,
            *args: Any,
            reraise: bool = True,
            timeout: float | None = None,
            registry: registries.OperatorRegistry | None = None,
            settings: configuration.OperatorSettings | None = None,
            **kwargs: Any,
    ) -> None:
        super().__init__()
        self.args = args
        self.kwargs = kwargs
        self.reraise = reraise
        self.timeout = timeout
        self.registry = registry
        self.settings = settings
        self._command = _Command(cli.main.name)
        self._stop: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._future = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name='KopfRunner', daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            tb: types.TracebackType | None,
    ) -> None:
        if not self._stop.done():
            self._stop.set_result(None)
        self._thread.join(self.timeout)
        if self._thread.is_alive():
            raise self._abandon() from exc
        error = self._future.exception() or self.exception
        if error is not None and self.reraise:
            raise error from exc

    @property
    def future(self) -> 'concurrent.futures.Future[click.testing.Result]':
        """The result of the command, as Click gives it, once there is one."""
        return self._future

    @property
    def exit_code(self) -> int:
        return self._get_result().exit_code

    @property
    def output(self) -> str:
        """Everything that was printed and logged, in that order."""
        return self._get_result().output

    @property
    def stdout(self) -> str:
        """The same as the output: the log is in it, too."""
        return self._get_result().output

    @property
    def stdout_bytes(self) -> bytes:
        return self._get_result().output_bytes

    @property
    def stderr(self) -> str:
        """Only what went to stderr: the log."""
        return self._get_result().stderr

    @property
    def stderr_bytes(self) -> bytes:
        return self._get_result().stderr_bytes

    @property
    def exception(self) -> BaseException | None:
        """With what the command has failed; `None` if it has not."""
        error = self._get_result().exception
        return self._command.error or error if isinstance(error, SystemExit) else error

    @property
    def exc_info(self) -> tuple[type[BaseException], BaseException, types.TracebackType]:
        """The same as of :func:`sys.exc_info`; a command that has not failed has exited, too."""
        info: Any = self._get_result().exc_info
        error: Any = self.exception
        return info if error is None or error is info[1] else (
            type(error), error, error.__traceback__)

    def _get_result(self) -> click.testing.Result:
        try:
            return self._future.result(self.timeout)
        except concurrent.futures.TimeoutError:
            if self._future.done():
                raise
            raise TimeoutError(
                f"The operator runs for {self.timeout} seconds, and there is no result yet: "
                f"it is there after the block.") from None

    def _run(self) -> None:
        controls = cli.CLIControls(
            stop_flag=self._stop, registry=self.registry, settings=self.settings, loop=self._loop)
        try:
            with _keep_logging(), scripts.load_into(self.registry):
                result = click.testing.CliRunner().invoke(
                    self._command, *self.args, obj=controls, **self.kwargs)
        except BaseException as e:
            self._future.set_exception(e)
        else:
            self._future.set_result(result)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _abandon(self) -> TimeoutError:
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop)
        self._thread.join(CANCELLATION_TIMEOUT)
        fate = "it is still running" if self._thread.is_alive() else "it is cancelled"
        return TimeoutError(f"The operator didn't stop in {self.timeout} seconds; {fate}.")

    async def _cancel(self) -> None:
        """Cancel everything, again and again: tasks can have something to finish."""
        current = asyncio.current_task()
        while not self._future.done():
            others = [task for task in asyncio.all_tasks() if task is not current]
            for task in others:
                task.cancel()
            await asyncio.sleep(CANCELLATION_TIMEOUT / 10)


class _Command(click.Command):
    """The command line, which keeps the error behind what it tells in a line."""

    error: BaseException | None = None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = cli.main.main(*args, **{**kwargs, 'standalone_mode': False})
        except click.ClickException as e:
            self.error = e.__cause__
            e.show()
            sys.exit(e.exit_code)
        except click.Abort:
            sys.exit(1)
        sys.exit(code or 0)


@contextlib.contextmanager
def _keep_logging() -> Iterator[None]:
    """Leave the logging as it was: the command line sets it up for its own stderr."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    others = {name: logging.getLogger(name).level for name in ('asyncio', 'aiohttp')}
    try:
        yield
    finally:
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
        for handler in [handler for handler in handlers if handler not in root.handlers]:
            root.addHandler(handler)
        root.setLevel(level)
        for name, other in others.items():
            logging.getLogger(name).setLevel(other)
