"""
The command ``kopf rbac``: the rights of an operator, and whether they are granted.
"""
import contextlib
import dataclasses
import json
import logging
import pathlib
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

from kopf._cogs.aiokits import clocks, tasks
from kopf._cogs.clients import api, errors, scanning, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, references
from kopf._core.intents import causes, registries
from kopf._kits import commanding, explaining
from kopf._kits.typed import catalogue, granting, kinds, roles
from kopf._kits.typed.rights import Right
from kopf._kits.typed.vocabulary import DeclarationError

logger = logging.getLogger(__name__)

REVIEWS = '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inquiry:
    """
    What is asked about an operator: its handlers, its settings, and the namespaces that it serves.

    The methods raise `CommandError` if there is no answer, and `LoginError` without credentials.
    """

    registry: registries.OperatorRegistry
    settings: configuration.OperatorSettings
    vault: vaults.Vault | None
    namespaces: Collection[references.NamespacePattern]

    async def find(
            self, *, definitions: Collection[pathlib.Path], cluster: bool, startup: bool,
    ) -> frozenset[Right]:
        """
        Find the rights that are needed.

        The names of resources come from typed kinds, and from the definitions in files; and from
        the cluster, or else from what all clusters have. With ``startup``, the startup handlers are
        called first, and the cleanup handlers at the end.

        :raises ActivityError: if a startup or cleanup handler has failed permanently.
        """
        self.settings.peering.clusterwide = not self.namespaces
        known = catalogue.list_resources(
            [*self._define_kinds(), *catalogue.read_files(definitions)], builtin=not cluster)
        async with contextlib.AsyncExitStack() as stack:
            if startup:
                await stack.enter_async_context(
                    explaining.started(self.registry, self.settings, clocks.Clock()))
            elif self._is_admission_unset():
                logger.warning(
                    "The permissions for webhook configurations are left out, as "
                    "settings.admission.managed is not set. If a startup handler sets it, add "
                    "--startup.")
            if cluster:
                client, _ = await stack.enter_async_context(self._connect())
                known += (await scanning.scan(client)).resources
            return granting.find_rights(
                self.registry, self.settings, resources=known, is_complete=cluster,
                namespaces=self.namespaces)

    def _is_admission_unset(self) -> bool:
        registry = self.registry
        return self.settings.admission.managed is None and bool(
            registry._webhooks or registry._converters) and any(
            handler.activity is causes.Activity.STARTUP for handler in registry._activities)

    def _define_kinds(self) -> list[dict[str, Any]]:
        try:
            return kinds.define(kinds.find(self.registry.get_selectors()))
        except DeclarationError as e:
            raise commanding.CommandError(str(e)) from e

    async def verify(self, needed: Collection[Right], where: str) -> Iterable[str]:
        """
        Describe how the rights differ from those of the roles in a file, each in a line.

        If it is ``cluster``, the cluster tells which of them the current user has not.
        """
        if where != 'cluster':
            objs = catalogue.read_files([pathlib.Path(where)])
            return roles.compare(needed, frozenset(roles.read_roles(objs)))
        async with self._connect() as (client, item):
            home = item.default_namespace or 'default'
            rights = sorted(needed, key=str)
            answers = await tasks.gather(*[_review(client, right, home) for right in rights])
        return [f"Missing: {right}" for right, answer in zip(rights, answers, strict=True)
                if not answer]

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[api.Client, credentials.Credentials]]:
        try:
            async with commanding.connect(
                    registry=self.registry, settings=self.settings, vault=self.vault,
            ) as connection:
                yield connection
        except errors.APIError as e:
            raise commanding.CommandError(f"The cluster cannot be asked: {e}") from e


async def _review(client: api.Client, right: Right, home: str) -> bool:
    """Ask whether the current user has the right; ``home`` is the namespace of the operator."""
    resource, _, subresource = right.resource.partition('/')
    namespace = home if right.namespace == '' else right.namespace
    answer = await client.request('POST', REVIEWS, body=json.dumps({
        'apiVersion': 'authorization.k8s.io/v1',
        'kind': 'SelfSubjectAccessReview',
        'spec': {'resourceAttributes': {
            'group': right.group, 'resource': resource, 'subresource': subresource,
            'verb': right.verb, 'name': right.name, 'namespace': namespace or ''}},
    }).encode())
    return bool(answer['status']['allowed'])
