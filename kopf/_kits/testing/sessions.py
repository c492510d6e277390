"""
An API and operators for sync tests: they run only while the test waits for something.

All of them are in one event loop, which runs only during the calls of this module. So, nothing
changes between two calls. With the sandbox, the loop has virtual time.
"""
import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import apis, clients, operators, virtual, waiting

if TYPE_CHECKING:
    from kopf._kits.typed.confining import Confinement

__tracebackhide__ = True  # in the tracebacks of pytest

T = TypeVar('T')


class Session:
    """
    An API for the block of a sync test, with a client, operators, and the time.

    Operators work only while the test calls something of the session. On the sandbox, the time is
    virtual. At the end of the block, the operators stop, and their errors are raised. ``client`` is
    a `kopf.testing.SyncClient`, ``time`` a `kopf.testing.Time`. See "Test operators" in the
    documentation.

    :param choice: the API, as in `kopf.testing.open_api`. Default: ``$KOPF_TEST_API`` if it is set,
        otherwise the sandbox.
    """

    def __init__(self, choice: str | None = None) -> None:
        self._choice = choice
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> Self:
        is_virtual = apis.choose(self._choice) == 'sandbox'
        self._runner = asyncio.Runner(
            loop_factory=virtual.VirtualLoop if is_virtual else asyncio.new_event_loop)
        try:
            self._api = self.run(self._stack.enter_async_context(apis.open_api(self._choice)))
        except BaseException:
            self._runner.close()
            raise
        self.client: clients.SyncClient = clients.SyncClient(self._api.client, self.run)
        self.time: Time = Time(self)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self._runner.close()

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox, or `None` for a real API."""
        return self._api.sandbox

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the session."""
        return self._runner.get_loop()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine in the event loop of the session, and return its result. Operators work
        meanwhile.

        :param coro: the coroutine.
        :raises RuntimeError: in async tests.
        """
        if asyncio._get_running_loop() is not None:
            coro.close()
            raise RuntimeError(
                "Kopf's fixtures are for sync tests; in an async one, use kopf.testing.open_api().")
        task = self.loop.create_task(coro)
        self.loop.run_until_complete(asyncio.wait([task]))
        return task.result()  # so the traceback of an error has no frames of the loop

    def start_operator(self, *sources: Any, **options: Any) -> 'SyncOperator':
        """
        Start an operator, which stops at the end of the block.

        :param sources: the files and modules with the handlers, as in `kopf.testing.Operator`.
        :param options: the other arguments of `kopf.testing.Operator`, except for ``credentials``.
        """
        operator = self._api.operator(*sources, **options)
        self.run(self._stack.enter_async_context(operator))
        return SyncOperator(operator, self.run)

    def wait_for(self, condition: Callable[[], Any], *, timeout: float = waiting.TIMEOUT) -> Any:
        """
        Wait until a condition is satisfied, and return its value; see `kopf.testing.wait_for`.

        :param condition: a function without arguments, sync or async.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :raises AssertionError: if the condition is not satisfied in time.
        """
        return self.run(waiting.wait_for(condition, timeout=timeout))


class SyncOperator:
    """An operator of a sync test: `kopf.testing.Operator` with sync methods."""

    def __init__(self, operator: operators.Operator, run: clients.Run) -> None:
        self._operator = operator
        self._run = run

    @property
    def log(self) -> list[str]:
        """The messages of the log."""
        return self._operator.log

    @property
    def confinement(self) -> 'Confinement | None':
        """The rights, if the operator has only those that it needs: ``refused``, ``unused``."""
        return self._operator.confinement

    @property
    def text(self) -> str:
        """The whole log as one text."""
        return self._operator.text

    def wait_log(
            self, pattern: str, *, count: int = 1, timeout: float = waiting.TIMEOUT) -> list[str]:
        """
        Wait until the log contains messages that match a pattern.

        :param pattern: a regular expression, which is searched in each message.
        :param count: how many messages must match. Default: 1.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :returns: the messages that match.
        :raises AssertionError: if there are not enough messages in time; the text shows the log.
        """
        return self._run(self._operator.wait_log(pattern, count=count, timeout=timeout))

    def stop(self) -> None:
        """
        Stop the operator as by a signal, if it runs, and wait for its end.

        :raises Exception: the error with which the operator has ended.
        """
        self._run(self._operator.stop())


class OperatorStarter(Protocol):
    """
    A function that starts an operator, as the fixture ``kopf_operator`` provides it.

    It takes the arguments of `kopf.testing.Operator` except for ``credentials``, and returns
    `kopf.testing.SyncOperator`.
    """

    def __call__(self, *sources: Any, **options: Any) -> SyncOperator: ...


class Time:
    """The time of a sync test, in seconds since the start of the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = session.loop.time()

    @property
    def now(self) -> float:
        """The current time: the number of seconds since the beginning of the test."""
        return self._session.loop.time() - self._began

    def sleep(self, seconds: float) -> None:
        """
        Let the time pass, so that the operators do what is due until then.

        :param seconds: how long.
        """
        self._session.run(_sleep(seconds))

    def wait_for(self, condition: Callable[[], Any], *, timeout: float = waiting.TIMEOUT) -> Any:
        """
        Wait until a condition is satisfied, and return its value; see `kopf.testing.wait_for`.

        :param condition: a function without arguments, sync or async.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :raises AssertionError: if the condition is not satisfied in time.
        """
        return self._session.wait_for(condition, timeout=timeout)


async def _sleep(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(seconds)
    if isinstance(loop, virtual.VirtualLoop):
        await loop.wait_idle()
