"""
Confinement: an operator on a sandbox with exactly the rights that ``kopf rbac`` prints for it.
"""
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kopf._cogs.clients import api, scanning
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references
from kopf._core.engines.admission import configurations
from kopf._core.intents import registries
from kopf._kits.sandbox.requests import Target
from kopf._kits.typed import granting, roles
from kopf._kits.typed.rights import Right

HOME = 'default'
"""The namespace of confined operators."""

WEBHOOKS = {resource.plural for resource in configurations.CONFIGURATIONS.values()}
"""The resources of the configurations of webhooks."""


class Confinement:
    """
    The rights of a confined operator, and what it has made of them.

    ``rights`` are all that it has; ``refused`` are those that it has asked for in vain. Each is
    shown as in ``kopf rbac``: ``patch pods``.
    """

    def __init__(self) -> None:
        self.user: str = f'operator-{secrets.token_hex(4)}'
        self.rights: Collection[Right] = ()
        self.refused: list[str] = []
        self._used: set[Right] = set()

    def hear(self, target: Target, is_allowed: bool) -> None:
        """Take a request of the operator, and whether it was allowed."""
        if target.path:
            return
        part = f'/{target.subresource}' if target.subresource else ''
        asked = Right(target.group, f'{target.resource}{part}', target.verb, target.name,
                      target.namespace or None)
        if is_allowed:
            self._used.update(right for right in self.rights if right.move_to(HOME).covers(asked))
        elif str(asked) not in self.refused and not self._is_spare(asked):
            self.refused.append(str(asked))

    def _is_spare(self, asked: Right) -> bool:
        """
        Whether Kopf can do without it: it clears the other configuration of webhooks, if it may.
        """
        return asked.verb == 'patch' and asked.resource in WEBHOOKS and any(
            right.resource in WEBHOOKS and right.name == asked.name for right in self.rights)

    @property
    def unused(self) -> list[str]:
        """The rights that were not used yet."""
        return sorted(str(right) for right in self.rights if right not in self._used)

    def make_objects(self) -> Iterable[Mapping[str, Any]]:
        """Make the roles, and their bindings to the user. They have new names each time."""
        rights = [right.move_to(HOME) for right in self.rights]
        for role in roles.make_roles(rights, f'{self.user}-{secrets.token_hex(4)}'):
            yield role
            yield roles.bind(role, {'apiGroup': roles.API_GROUP, 'kind': 'User', 'name': self.user})


async def find_rights(
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        namespaces: Collection[references.NamespacePattern],
        admin: api.Client,
) -> Collection[Right]:
    """
    Find the rights that an operator needs on this API, with these settings and namespaces.

    :raises GrantError: if it is not known which resources a handler is for.
    """
    found = await scanning.scan(admin)
    return granting.find_rights(
        registry, settings, resources=found.resources, is_complete=True, namespaces=namespaces)
