"""
A sandbox in a thread: for tests without an event loop, or with blocking calls or other programs.
"""
import asyncio
import contextlib
import os
import threading
from collections.abc import Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, references
from kopf._core.intents import registries
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import apis, clients

if TYPE_CHECKING:
    from kopf._kits.typed.confining import Confinement

    _Confined = tuple[credentials.ConnectionInfo, Confinement]

T = TypeVar('T')


class SandboxThread:
    """
    A sandbox that runs in a thread; `kopf.testing.run_sandbox` makes it.

    ``client`` is a `kopf.testing.SyncClient`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        """The sandbox. Call its async methods by `run`, in the event loop of the thread."""
        self._loop = loop
        self._api = apis.API(sandbox.kubeconfig(), sandbox)
        self.client: clients.SyncClient = clients.SyncClient(self._api.client, self.run)

    @property
    def url(self) -> str:
        """The URL of the sandbox."""
        return self.sandbox.url

    @property
    def credentials(self) -> credentials.ConnectionInfo:
        """The credentials of the administrator."""
        return self._api.credentials

    def kubeconfig(self) -> dict[str, Any]:
        """Make a kubeconfig, as `kopf.testing.Sandbox.kubeconfig` does."""
        return self.sandbox.kubeconfig()

    def write_kubeconfig(self, path: str | os.PathLike[str]) -> None:
        """
        Write the kubeconfig to a file that only this user can read.

        :param path: the path of the file.
        """
        self.sandbox.write_kubeconfig(path)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine in the event loop of the sandbox, and return its result.

        :param coro: the coroutine.
        """
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    def confine(
            self,
            registry: registries.OperatorRegistry,
            settings: configuration.OperatorSettings,
            namespaces: Collection[references.NamespacePattern],
    ) -> '_Confined':
        """
        Make a user with only the rights that ``kopf rbac`` prints for an operator.

        :param registry: the handlers of the operator.
        :param settings: the settings of the operator, as its options set them.
        :param namespaces: the namespaces to serve. If there are none, the operator is cluster-wide.
        :returns: the credentials, and what is known of the user.
        :raises CommandError: if it is not known which resources a handler is for.
        """
        return self.run(self._api.confine(registry, settings, namespaces))

    async def close(self) -> None:
        """Close the client. The coroutine must run in the event loop of the sandbox."""
        await self._api.client.close()


@contextlib.contextmanager
def run_sandbox(**options: Any) -> Iterator[SandboxThread]:
    """
    Run a sandbox in a thread for the block, for tests that have no event loop, or that block.

    Its time is real. Other programs can connect by its URL or its kubeconfig.

    ::

        with kopf.testing.run_sandbox() as sandbox:
            sandbox.client.load('crd.yaml')

    See "Test operators" in the documentation.

    :param options: the parameters of `kopf.testing.Sandbox`.
    """
    with run_in_thread(Sandbox(**options)) as thread:
        yield thread


@contextlib.contextmanager
def run_in_thread(sandbox: Sandbox) -> Iterator[SandboxThread]:
    """Run this sandbox in a thread for the block."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever, name='sandbox', daemon=True)
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
