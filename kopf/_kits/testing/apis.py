"""
The API for a test: the sandbox, or a real one, by the choice of whoever runs the tests.
"""
import contextlib
import os
import pathlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

import yaml

from kopf._cogs.clients import kubeconfigs
from kopf._cogs.structs import credentials
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import clients, envtest, operators

CHOICE = 'KOPF_TEST_API'
"""The environment variable: ``sandbox`` (by default), ``envtest``, or a path of a kubeconfig."""


class API:
    """
    An API to test with, in the running loop: its credentials, a client, operators on it.

    The `sandbox` is `None` if it is a real one.
    """

    def __init__(self, kubeconfig: Mapping[str, Any], sandbox: Sandbox | None = None) -> None:
        super().__init__()
        self.kubeconfig = kubeconfig
        self.sandbox = sandbox
        self.credentials: credentials.ConnectionInfo = read_credentials(kubeconfig)
        self.client: clients.Client = clients.Client(self.credentials)

    def operator(self, *sources: Any, **options: Any) -> operators.Operator:
        """An operator on this API, to be entered; see `kopf.testing.Operator`."""
        return operators.Operator(*sources, credentials=self.credentials, **options)

    def write_kubeconfig(self, path: str | os.PathLike[str]) -> None:
        pathlib.Path(path).write_text(yaml.safe_dump(self.kubeconfig), encoding='utf-8')


@contextlib.asynccontextmanager
async def open_api(choice: str | None = None) -> AsyncIterator[API]:
    """
    Have an API for the block: by default, as ``$KOPF_TEST_API`` tells.

    ``sandbox`` (if nothing is told) is a new one in the running loop. ``envtest`` is one made of
    the programs in ``$KUBEBUILDER_ASSETS``, started once in a process. Everything else is a path
    of a kubeconfig. Of a real API, what the client has created is deleted at the end.
    """
    choice = choose(choice)
    if choice == 'sandbox':
        async with Sandbox() as sandbox:
            api = API(sandbox.kubeconfig(), sandbox)
            async with api.client:
                yield api
        return
    path = envtest.start() if choice == 'envtest' else pathlib.Path(choice)
    api = API(yaml.safe_load(path.read_text(encoding='utf-8')))
    async with api.client:
        try:
            yield api
        finally:
            await api.client.clean_up()


def choose(choice: str | None = None) -> str:
    """What is to be tested on: what is given, or else what the environment tells."""
    return choice or os.environ.get(CHOICE) or 'sandbox'


def read_credentials(kubeconfig: Mapping[str, Any]) -> credentials.ConnectionInfo:
    """The credentials of the current context."""
    with tempfile.TemporaryDirectory(prefix='kopf-') as folder:
        path = pathlib.Path(folder, 'kubeconfig')
        path.write_text(yaml.safe_dump(dict(kubeconfig)), encoding='utf-8')
        known = os.environ.get('KUBECONFIG')
        os.environ['KUBECONFIG'] = str(path)
        try:
            found = kubeconfigs.login_with_kubeconfig()
        finally:
            if known is None:
                del os.environ['KUBECONFIG']
            else:
                os.environ['KUBECONFIG'] = known
    if found is None:
        raise credentials.LoginError("There is no current context in the kubeconfig.")
    return found
