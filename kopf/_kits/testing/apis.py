"""
The API for a test: the sandbox or a real API, as chosen by an argument or the environment.
"""
import asyncio
import contextlib
import contextvars
import dataclasses
import errno
import os
import pathlib
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from kopf._cogs.configs import configuration
from kopf._cogs.logins import kubeconfigs
from kopf._cogs.structs import credentials, ids, references
from kopf._core.engines.reconciling import hub
from kopf._core.intents import causes, handlers, registries
from kopf._kits.sandbox import keeping
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import clients, envtest, operators

if TYPE_CHECKING:
    from kopf._kits.typed.confining import Confinement

CHOICE = 'KOPF_TEST_API'
"""The environment variable: ``sandbox`` (by default), ``envtest``, or a path of a kubeconfig."""


class API:
    """
    An API for a test in the running event loop: its credentials, a client, and operators.

    `kopf.testing.open_api` makes it. ``sandbox`` is the sandbox, or `None` for a real API;
    ``client`` is a `kopf.testing.Client`; ``credentials`` are those of the current context of the
    kubeconfig.

    :param kubeconfig: the kubeconfig as a dict.
    :param sandbox: the sandbox. Default: none, it is a real API.
    """

    def __init__(self, kubeconfig: Mapping[str, Any], sandbox: Sandbox | None = None) -> None:
        self.kubeconfig = kubeconfig
        self.sandbox = sandbox
        self.credentials: credentials.ConnectionInfo = read_credentials(kubeconfig)
        self.client: clients.Client = clients.Client(self.credentials)
        self.operators: list[operators.Operator] = []
        self._context = contextvars.copy_context()
        """The context of the test: what is done in it is not done by an operator."""

    def operator(self, *sources: Any, rbac: bool = False, **options: Any) -> operators.Operator:
        """
        Make an operator on this API, to be used as ``async with api.operator('handlers.py') as
        operator:``.

        :param sources: the files and modules with the handlers, as in `kopf.testing.Operator`.
        :param rbac: whether the operator has only the rights that ``kopf rbac`` prints for it. Its
            attribute ``confinement`` tells which others were ``refused``, and which are ``unused``.
            It needs a sandbox.
        :param options: the other arguments of `kopf.testing.Operator`, except for ``credentials``.
        :raises ValueError: if ``rbac`` is set, but the API is no sandbox.
        """
        operator = operators.Operator(*sources, credentials=self.credentials, **options)
        self.operators.append(operator)
        self.client.logs.append(operator.log)
        if rbac and self.sandbox is None:
            raise ValueError("rbac=True needs a sandbox: on a real API, use `kopf rbac`.")
        if self.sandbox is not None:
            operator.before_start = lambda registry: asyncio.create_task(
                self._set_up(operator if rbac else None, registry), context=self._context)
        return operator

    async def _set_up(
            self, confined: operators.Operator | None, registry: registries.OperatorRegistry,
    ) -> None:
        await self._define_kinds(registry)
        if confined is not None:
            confined.settings.peering.standalone |= confined.is_standalone
            item, confined.confinement = await self.confine(
                registry, confined.settings, confined.namespaces)
            confined.log_in(item)

    async def confine(
            self,
            registry: registries.OperatorRegistry,
            settings: configuration.OperatorSettings,
            namespaces: Collection[references.NamespacePattern],
    ) -> tuple[credentials.ConnectionInfo, 'Confinement']:
        """
        Make a user of the sandbox with only the rights that ``kopf rbac`` prints for an operator.

        The result is the credentials, and what is known of the user.
        """
        assert self.sandbox is not None
        from kopf._kits.typed import confining  # other operators do not need it
        settings.peering.clusterwide = not namespaces
        found, granted, loop = confining.Confinement(), list[Any](), asyncio.get_running_loop()

        async def grant(settings: configuration.OperatorSettings) -> None:
            rights = await confining.find_rights(
                registry, settings, namespaces, self.client._api)
            if rights != found.rights:
                former, found.rights = [*granted], rights
                granted[:] = await self.client.load(*found.make_objects())
                for obj in former:
                    await self.client.delete(obj)

        async def grant_again(settings: configuration.OperatorSettings, **_: Any) -> None:
            with contextlib.suppress(ValueError):  # it is a retry
                registry._activities._handlers.remove(handler)  # others can use the registry later
            context = self._context.copy()  # the operator can be in another loop and thread
            await asyncio.wrap_future(
                context.run(asyncio.run_coroutine_threadsafe, grant(settings), loop))

        await grant(settings)
        handler = handlers.ActivityHandler(
            id=ids.HandlerId('kopf-rbac'), fn=grant_again, activity=causes.Activity.STARTUP)
        if registry.get_activity_handlers(causes.Activity.STARTUP):  # they can change the settings
            registry.append(handler)
        return dataclasses.replace(
            self.credentials, token=self.sandbox.add_user(found.user, found.hear), scheme=None,
            username=None, password=None, certificate_data=None, private_key_data=None,
            default_namespace=confining.HOME), found

    async def _define_kinds(self, registry: registries.OperatorRegistry) -> None:
        """Create the definitions of the typed kinds that the handlers use."""
        kinds = sys.modules.get('kopf._kits.typed.kinds')
        if kinds is not None:  # else, nothing is declared
            await self.client.load(*kinds.define(kinds.find(registry.get_selectors())))

    async def clean_up(self) -> None:
        """Delete what the client has created, after the operators have stopped."""
        own = {each.settings.persistence.finalizer or '' for each in self.operators}
        await self.client.clean_up({*own, hub.FINALIZER, hub.EXTERNAL_FINALIZER})

    def write_kubeconfig(self, path: str | os.PathLike[str]) -> None:
        """
        Write the kubeconfig to a file that only this user can read.

        :param path: the path of the file.
        """
        keeping.write_secret(pathlib.Path(path), yaml.safe_dump(self.kubeconfig))


@contextlib.asynccontextmanager
async def open_api(choice: str | None = None) -> AsyncIterator[API]:
    """
    Open an API for the block.

    ``'sandbox'`` is a new sandbox in the running event loop. ``'envtest'`` is a real API server,
    made of the programs in ``$KUBEBUILDER_ASSETS``, and started once in a process. Everything else
    is the path of a kubeconfig. At the end, the objects that the client has created in a real API
    are deleted.

    ::

        async with kopf.testing.open_api('sandbox') as api:
            await api.client.load('crd.yaml')

    See "Test operators" in the documentation.

    :param choice: the API. Default: ``$KOPF_TEST_API`` if it is set, otherwise ``'sandbox'``.
    :raises FileNotFoundError: if there is no such kubeconfig.
    """
    choice = choose(choice)
    if choice == 'sandbox':
        async with Sandbox() as sandbox:
            api = API(sandbox.kubeconfig(), sandbox)
            async with api.client:
                yield api
        return
    path = envtest.start() if choice == 'envtest' else pathlib.Path(choice)
    if not path.exists():
        raise FileNotFoundError(
            errno.ENOENT, "No such API for tests: neither 'sandbox', nor 'envtest', nor the path "
            "of a kubeconfig", choice)
    api = API(yaml.safe_load(path.read_text(encoding='utf-8')))
    async with api.client:
        try:
            yield api
        finally:
            await api.clean_up()


def choose(choice: str | None = None) -> str:
    """Choose the API: the argument, or the environment variable, or the sandbox."""
    return choice or os.environ.get(CHOICE) or 'sandbox'


def read_credentials(kubeconfig: Mapping[str, Any]) -> credentials.ConnectionInfo:
    """Read the credentials of the current context."""
    config = kubeconfigs.Kubeconfig()
    config.add(kubeconfig, 'kubeconfig')
    found = kubeconfigs.read_credentials(config)
    if found is None:
        raise credentials.LoginError("There is no current context in the kubeconfig.")
    return found
