"""
The commands ``kopf freeze`` and ``kopf resume``: pause the operators of a peering, and resume them.

``kopf freeze`` writes a record into the peering objects, as an operator would do. The operators
with the same or a lower priority pause until ``kopf resume`` removes that record or it expires.

Other commands that talk to a cluster share the login, and find resources and namespaces as here.
"""
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api, errors, patching, scanning, vaults
from kopf._cogs.cluster import discovery
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, memos, references
from kopf._core.actions import execution
from kopf._core.engines import activities, indexing
from kopf._core.engines.peering import records
from kopf._core.intents import causes, registries
from kopf._core.reactor import authentication

logger = logging.getLogger(__name__)


class CommandError(Exception):
    """The command has failed. The message says why; the command line shows it to the user."""


async def freeze(
        *,
        peering_name: str,
        lifetime: int,
        priority: int,
        identity: str | None = None,
        message: str | None = None,
        **where: Any,
) -> None:
    """
    Pause the operators of a peering that have the given priority or a lower one.

    ``lifetime`` is the duration of the pause in seconds. ``identity`` is the name of the record, so
    that `resume` can find it; by default, the user and the host. ``message`` is for people who read
    the peering object. For the other arguments and the errors, see `_change`.
    """
    peer = records.Peer(
        identity=identity or records.make_identity(unique=False), priority=priority,
        lifetime=lifetime, lastseen=clocks.Clock().now().wall, message=message)
    places = await _change(peering_name, {peer.identity: peer.as_record()}, **where)
    logger.info(f"Operators of {', '.join(places)} with priorities up to {priority} are frozen for "
                f"{lifetime} seconds, by {peer.identity!r}.")


async def resume(*, peering_name: str, identity: str | None = None, **where: Any) -> None:
    """
    Resume the operators that were paused by `freeze` with the same identity; say which other
    records there are, as they can be those that were meant.

    For the other arguments and the errors, see `_change`.
    """
    identity = identity or records.make_identity(unique=False)
    for place, others in (await _change(peering_name, {identity: None}, **where)).items():
        known = f" There are records of: {', '.join(map(repr, sorted(others)))}." if others else ""
        logger.info(f"Operators of {place} are not frozen by {identity!r} any more.{known}")


@contextlib.asynccontextmanager
async def connect(
        *,
        registry: registries.OperatorRegistry | None,
        settings: configuration.OperatorSettings,
        vault: vaults.Vault | None,
) -> AsyncIterator[tuple[api.Client, credentials.Credentials]]:
    """
    Log in with the vault, or else with the login handlers of the registry.

    :raises LoginError: if there are no credentials.
    """
    registry = registry if registry is not None else registries.get_default_registry()
    vault = vault if vault is not None else vaults.Vault()
    prepare_login(vault, registry=registry, settings=settings)
    client = api.Client(credentials=vault, settings=settings)
    try:
        yield client, await vault.obtain()
    finally:
        await client.close()


def prepare_login(
        vault: vaults.Vault,
        *,
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
) -> None:
    """Make the vault log in with the login handlers of the registry, if it needs credentials."""
    authentication.prepare(vault, registry=registry, run=lambda registry: activities.run_activity(
        registry=registry, activity=causes.Activity.AUTHENTICATION, memo=memos.Memo(),
        context=execution.Context(
            settings=settings, clock=clocks.Clock(), indices=indexing.OperatorIndexers())))


def find_resource(kind: str, resources: frozenset[references.Resource]) -> references.Resource:
    """
    Find the resource that a user has named: by any name, also with the group and the version.

    :raises CommandError: if there is no such resource, or there are several.
    """
    try:
        selector = references.Selector(kind)
    except TypeError as e:
        raise CommandError(f"{kind!r} names no resource: {e}") from e
    found = selector.select(resources)
    if not found:
        similar = selector.find_similar(resources)
        hint = f" Did you mean {similar}?" if similar is not None else ''
        raise CommandError(f"The cluster has no such resource as {kind!r}.{hint}")
    if len({resource.group for resource in found}) > 1:
        names = ', '.join(sorted(map(str, found)))
        raise CommandError(f"{kind!r} is ambiguous. Use one of: {names}")
    return min(found, key=str)


async def find_namespaces(
        client: api.Client,
        *,
        settings: configuration.OperatorSettings,
        clusterwide: bool,
        patterns: Collection[references.NamespacePattern],
) -> Sequence[references.Namespace]:
    """
    Find the namespaces that match any of the patterns. If ``clusterwide``, the only one is None.

    :raises CommandError: if there are none.
    """
    insights = discovery.Insights()
    await discovery.observe_namespaces(
        client=client, settings=settings, clusterwide=clusterwide, patterns=patterns,
        insights=insights, logger=logger, once=True)
    if not insights.namespaces:
        raise CommandError(
            f"No namespace matches {', '.join(map(repr, map(str, patterns)))}. Check the name: "
            f"kubectl get namespaces")
    return sorted(insights.namespaces, key=str)


async def _change(
        name: str,
        changes: Mapping[str, Any],
        *,
        clusterwide: bool,
        namespaces: Collection[references.NamespacePattern],
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        vault: vaults.Vault | None = None,
) -> Mapping[str, Collection[str]]:
    """
    Patch the records of the peering objects, and return the names of these objects for the log,
    with the identities of the records that they have now.

    With ``clusterwide``, these are ClusterKopfPeerings; otherwise, KopfPeerings of the
    ``namespaces``. The credentials are those of the vault, or else of the login handlers of the
    registry.

    :raises CommandError: if there are no such objects, or the API server refuses to patch them.
    """
    settings = settings if settings is not None else configuration.OperatorSettings()
    kind = 'ClusterKopfPeering' if clusterwide else 'KopfPeering'
    done: dict[str, set[str]] = {}
    try:
        async with connect(registry=registry, settings=settings, vault=vault) as (client, _):
            findings = await scanning.scan(client, groups=records.GROUPS)
            resources = [resource for resource in findings.resources
                         if records.is_peering(resource, clusterwide=clusterwide)]
            if not resources:
                raise CommandError(
                    f"The cluster has no such kind as {kind}. "
                    f"Type first: kopf crd --peering --apply")
            for namespace in await find_namespaces(
                    client, settings=settings, clusterwide=clusterwide, patterns=namespaces):
                where = f'{kind} {name!r}' + (f' in {namespace!r}' if namespace is not None else '')
                for resource in resources:
                    changed = await patching.patch(
                        client, resource=resource, namespace=namespace, name=name,
                        payload={'status': changes},
                        subresource='status' if 'status' in resource.subresources else None)
                    if changed is not None:
                        done.setdefault(where, set()).update(
                            records.parse_peers(changed.get('status')))
                if where not in done:
                    logger.warning(f"There is no {where}.")
    except errors.APIError as e:
        raise CommandError(f"The peering {name!r} cannot be changed: {e}") from e
    if not done:
        raise CommandError(
            f"Peering {name!r} not found. Create it first: apply a {kind} with this name.")
    return done
