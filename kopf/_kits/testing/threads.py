"""
A sandbox in a thread: for tests that have no loop, or block, or run other programs.
"""
import asyncio
import contextlib
import pathlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from kopf._cogs.structs import credentials
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import apis, clients

T = TypeVar('T')


class SandboxThread:
    """A sandbox that runs in a thread; see `run_sandbox`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox
        """The sandbox itself: its methods are for the loop in the thread, see `run`."""
        self._loop = loop
        self._api = apis.API(sandbox.kubeconfig(), sandbox)
        self.client: clients.SyncClient = clients.SyncClient(self._api.client, self.run)

    @property
    def url(self) -> str:
        return self.sandbox.url

    @property
    def credentials(self) -> credentials.ConnectionInfo:
        return self._api.credentials

    def kubeconfig(self) -> dict[str, Any]:
        return self.sandbox.kubeconfig()

    def write_kubeconfig(self, path: pathlib.Path) -> None:
        self.sandbox.write_kubeconfig(path)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop of the sandbox, and return its result."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    async def close(self) -> None:
        await self._api.client.close()


@contextlib.contextmanager
def run_sandbox(**options: Any) -> Iterator[SandboxThread]:
    """
    Run a sandbox in a thread for the block; the options are those of `kopf.testing.Sandbox`.

    It is in the real time, and is reached by its URL or its kubeconfig.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever, name='sandbox', daemon=True)
        sandbox = Sandbox(**options)
        runner.run(sandbox.start())
        thread.start()
        runs = SandboxThread(loop, sandbox)
        try:
            yield runs
        finally:
            runs.run(runs.close())
            runs.run(sandbox.stop())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
