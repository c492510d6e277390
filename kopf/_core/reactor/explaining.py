"""
The command ``kopf explain``: read an object, and explain it by the handlers of an operator.
"""
import logging

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api, errors, scanning, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, memos, references
from kopf._core.actions import execution
from kopf._core.engines import activities, indexing
from kopf._core.intents import causes, registries
from kopf._core.reactor import commanding, explanations

logger = logging.getLogger(__name__)


async def explain(
        *,
        kind: str,
        name: str,
        namespace: str | None = None,
        startup: bool = False,
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings | None = None,
        vault: vaults.Vault | None = None,
) -> explanations.Explanation:
    """
    Read an object from the cluster, and explain it.

    ``kind`` is any name of the resource, also with the group. The default namespace is that of the
    credentials. With ``startup``, the startup handlers are called first, for their settings.

    :raises CommandError: if there is no such resource or object, or it cannot be read.
    :raises ActivityError: if a startup handler has failed permanently.
    :raises LoginError: if there are no credentials.
    """
    settings = settings if settings is not None else configuration.OperatorSettings()
    clock = clocks.Clock()
    if startup:
        await activities.run_activity(
            registry=registry, activity=causes.Activity.STARTUP, memo=memos.Memo(),
            context=execution.Context(
                settings=settings, clock=clock, indices=indexing.OperatorIndexers()))
    try:
        async with commanding.connect(
                registry=registry, settings=settings, vault=vault) as (client, item):
            resources = (await scanning.scan(client)).resources
            resource = _find_resource(kind, resources)
            place = None
            if resource.namespaced:
                place = references.NamespaceName(namespace or item.default_namespace or 'default')
            raw = await _read(client, resource, place, name)
    except errors.APIError as e:
        raise commanding.CommandError(f"The object cannot be read: {e}") from e
    return explanations.explain(
        raw, resource=resource, resources=resources, registry=registry, settings=settings,
        now=clock.now())


def _find_resource(
        kind: str, resources: frozenset[references.Resource],
) -> references.Resource:
    try:
        selector = references.Selector(kind)
    except TypeError as e:
        raise commanding.CommandError(f"{kind!r} names no resource: {e}") from e
    found = selector.select(resources)
    if not found:
        similar = selector.find_similar(resources)
        hint = f" Did you mean {similar}?" if similar is not None else ''
        raise commanding.CommandError(f"The cluster has no such resource as {kind!r}.{hint}")
    if len({resource.group for resource in found}) > 1:
        names = ', '.join(sorted(map(str, found)))
        raise commanding.CommandError(f"{kind!r} is ambiguous. Use one of: {names}")
    return min(found, key=str)


async def _read(
        client: api.Client,
        resource: references.Resource,
        namespace: references.Namespace,
        name: str,
) -> bodies.RawBody:
    try:
        raw: bodies.RawBody = await client.request(
            'GET', resource.get_url(namespace=namespace, name=name))
    except errors.APINotFoundError:
        where = f" in the namespace {namespace!r}" if namespace is not None else ''
        raise commanding.CommandError(
            f"There is no {resource.kind or resource.plural} {name!r}{where}.") from None
    return raw
