"""
An API and operators for sync tests: they go on only while the test waits for something.

Everything is in one event loop, which the test drives by its calls: between them, nothing happens,
and so nothing happens behind the back of the test. On the sandbox, it is in virtual time.
"""
import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar

from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import apis, clients, operators, virtual, waiting

T = TypeVar('T')


class Session:
    """
    An API for the block, chosen as `kopf.testing.open_api` tells; with a client, operators, and the
    time. All that is started is stopped at the end, and errors of operators are raised then.
    """

    def __init__(self, choice: str | None = None) -> None:
        super().__init__()
        self._choice = choice
        self._stack = contextlib.AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        is_virtual = apis.choose(self._choice) == 'sandbox'
        self._runner = asyncio.Runner(
            loop_factory=virtual.VirtualLoop if is_virtual else asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
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
        """The sandbox; `None` if it is a real API."""
        return self._api.sandbox

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop, and return its result; operators go on meanwhile."""
        __tracebackhide__ = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.loop.run_until_complete(coro)
        coro.close()
        raise RuntimeError(
            "Kopf's fixtures are for sync tests; in an async one, use kopf.testing.open_api().")

    def start_operator(self, *sources: Any, **options: Any) -> 'SyncOperator':
        """Start an operator; see `kopf.testing.Operator`."""
        operator = self._api.operator(*sources, **options)
        self.run(self._stack.enter_async_context(operator))
        return SyncOperator(operator, self.run)

    def wait_for(
            self, condition: Callable[[], Any], *, timeout: float = waiting.TIMEOUT) -> Any:
        """Wait until the condition holds; see `kopf.testing.wait_for`."""
        return self.run(waiting.wait_for(condition, timeout=timeout))


class SyncOperator:
    """An operator of a sync test: the same as `kopf.testing.Operator`."""

    def __init__(
            self, operator: operators.Operator, run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        super().__init__()
        self._operator = operator
        self._run = run

    @property
    def log(self) -> list[str]:
        """The messages of the log."""
        return self._operator.log

    @property
    def text(self) -> str:
        """The whole log."""
        return self._operator.text

    def wait_log(self, *args: Any, **kwargs: Any) -> list[str]:
        return self._run(  # type: ignore[no-any-return]
            self._operator.wait_log(*args, **kwargs))

    def stop(self) -> None:
        self._run(self._operator.stop())


class OperatorStarter(Protocol):
    def __call__(self, *sources: Any, **options: Any) -> SyncOperator: ...


class Time:
    """The time of a sync test, in seconds since its beginning."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._began = session.loop.time()

    @property
    def now(self) -> float:
        return self._session.loop.time() - self._began

    def sleep(self, seconds: float) -> None:
        """Let the time go, and everything be done that is due until then."""
        self._session.run(_sleep(seconds))

    def wait_for(
            self, condition: Callable[[], Any], *, timeout: float = waiting.TIMEOUT) -> Any:
        """Wait until the condition holds; see `kopf.testing.wait_for`."""
        return self._session.wait_for(condition, timeout=timeout)


async def _sleep(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(seconds)
    if isinstance(loop, virtual.VirtualLoop):
        await loop.settle()
