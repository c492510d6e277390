"""
Operators in the background of tests: the command line in a thread.
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
from kopf._cogs.aiokits import tasks
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import loaders
from kopf._core.intents import registries
from kopf._kits.testing import scripts

T = TypeVar('T')

CANCELLATION_TIMEOUT = 1.0
"""How long (seconds) to wait for a cancelled operator that has not stopped in time."""


class KopfRunner(AbstractContextManager['KopfRunner']):
    """
    Runs the command line of Kopf in a thread, while the block is executed.

    .. code-block:: python

        with KopfRunner(['run', '-A', '--verbose', 'handlers.py']) as runner:
            ...  # create, change, delete objects

        assert runner.exit_code == 0
        assert runner.exception is None
        assert 'Deleted, really deleted' in runner.stdout

    The thread has its own event loop, so the test can also have an event loop. At the end of the
    block, the operator stops. The results are those of :class:`click.testing.Result`, with two
    differences: ``stdout`` also contains what went to stderr, such as the log; and if the command
    line reports an error in one line, ``exception`` is the error itself. Results are available
    after the block; if you read them earlier, they wait for the end of the operator. See "Test
    operators" in the documentation.

    :param args: the arguments of the command line, as in :meth:`click.testing.CliRunner.invoke`.
    :param reraise: whether the end of the block raises the error of the operator. Otherwise, the
        error is only in ``exception``.
    :param timeout: how long, in seconds, the operator has to stop at the end of the block. After
        that, it is cancelled, and :exc:`TimeoutError` is raised. Default: no limit.
    :param registry: the registry into which the files are loaded, each file once for each registry.
        Default: the default registry.
    :param settings: the settings of the operator. Default: new `kopf.OperatorSettings`.
    :param kwargs: more arguments of :meth:`click.testing.CliRunner.invoke`.
    :raises TimeoutError: if the operator has not stopped in time, or if a result is not there in
        time.
    :raises RuntimeError: if a result is read before the block.
    """

    _loop: asyncio.AbstractEventLoop
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
        self._stop: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self._future = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name='KopfRunner', daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        return self

    def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            tb: types.TracebackType | None,
    ) -> None:
        if not self._stop.done():
            self._stop.set_result(True)
        self._thread.join(self.timeout)
        if self._thread.is_alive():
            raise self._abandon() from exc
        error = self._future.exception() or self.exception
        if error is not None and self.reraise:
            if exc is not None:
                raise error from exc
            raise error

    @property
    def future(self) -> 'concurrent.futures.Future[click.testing.Result]':
        """The result of the command, as Click provides it, when it is available."""
        return self._future

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return self._get_result().exit_code

    @property
    def output(self) -> str:
        """Everything that was printed and logged, in this order."""
        return self._get_result().output

    @property
    def stdout(self) -> str:
        """The same as ``output``, including the log."""
        return self._get_result().output

    @property
    def stdout_bytes(self) -> bytes:
        """The same as ``output``, as bytes."""
        return self._get_result().output_bytes

    @property
    def stderr(self) -> str:
        """Only what went to stderr, such as the log."""
        return self._get_result().stderr

    @property
    def stderr_bytes(self) -> bytes:
        """The same as ``stderr``, as bytes."""
        return self._get_result().stderr_bytes

    @property
    def exception(self) -> BaseException | None:
        """The error with which the command has failed, or `None`."""
        error = self._get_result().exception
        return self._command.error or error if isinstance(error, SystemExit) else error

    @property
    def exc_info(self) -> tuple[type[BaseException], BaseException, types.TracebackType]:
        """
        The error as :func:`sys.exc_info` returns it. If the command has not failed, it is the exit.
        """
        info: Any = self._get_result().exc_info
        error: Any = self.exception
        return info if error is None or error is info[1] else (
            type(error), error, error.__traceback__)

    def _get_result(self) -> click.testing.Result:
        if self._thread.ident is None:
            raise RuntimeError("The operator is not started. Use the runner in a `with` block.")
        try:
            return self._future.result(self.timeout)
        except concurrent.futures.TimeoutError:
            if self._future.done():
                raise
            raise TimeoutError(
                f"The operator still runs after {self.timeout} seconds, so there is no result yet. "
                f"Read the result after the block.") from None

    def _run(self) -> None:
        controls = cli.CLIControls(
            stop_flag=self._stop, registry=self.registry, settings=self.settings, loop=self._loop,
            load=self._load)
        try:
            with _logging.kept():
                result = click.testing.CliRunner().invoke(
                    self._command, *self.args, obj=controls, **self.kwargs)
        except BaseException as e:
            self._future.set_exception(e)
        else:
            self._future.set_result(result)
        finally:
            left = asyncio.all_tasks(self._loop)  # e.g. tasks that were cancelled in their cleanup
            self._loop.run_until_complete(tasks.cancel(left))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _load(self, **sources: Any) -> None:
        with scripts.load_into(self.registry):
            loaders.preload(**sources)
        if self.registry is not None:  # in this thread; its startup handlers can declare others
            registries.default_registry_var.set(self.registry)

    def _abandon(self) -> TimeoutError:
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop)
        self._thread.join(CANCELLATION_TIMEOUT)
        fate = "it is still running" if self._thread.is_alive() else "it is cancelled"
        return TimeoutError(f"The operator didn't stop in {self.timeout} seconds; {fate}.")

    async def _cancel(self) -> None:
        """Cancel all tasks repeatedly, until the command ends: a task can ignore a cancellation."""
        current = asyncio.current_task()
        while not self._future.done():
            others = [task for task in asyncio.all_tasks() if task is not current]
            for task in others:
                task.cancel()
            await asyncio.sleep(CANCELLATION_TIMEOUT / 10)


class _Command(click.Command):
    """The command line; keeps the original error if only one line of it is shown."""

    error: BaseException | None = None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = cli.main.main(*args, **{**kwargs, 'standalone_mode': False})
        except click.ClickException as e:
            self.error = e.__cause__
            if isinstance(self.error, loaders.LoadingError):
                self.error = self.error.__cause__ or self.error
            e.show()
            sys.exit(e.exit_code)
        except click.Abort:
            sys.exit(1)
        sys.exit(code or 0)


class _Logging:
    """The logging of this process, which the commands configure, each for its captured stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands = 0
        self._restore = contextlib.ExitStack()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the logging after the command, or after the last one of those side by side."""
        with self._lock:
            if not self._commands:
                root = logging.getLogger()
                self._restore.callback(setattr, root, 'handlers', list(root.handlers))
                for logger in (root, *map(logging.getLogger, ('asyncio', 'aiohttp'))):
                    self._restore.callback(logger.setLevel, logger.level)
            self._commands += 1
        try:
            yield
        finally:
            with self._lock:
                self._commands -= 1
                if not self._commands:
                    self._restore.close()


_logging = _Logging()
