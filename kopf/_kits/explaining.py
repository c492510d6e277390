"""
The command ``kopf explain``: read an object, and explain what the handlers of an operator do to it.
"""
import contextlib
import functools
import logging
from collections.abc import AsyncIterator

from kopf._cogs.aiokits import clocks, timeouts
from kopf._cogs.clients import errors, listing, scanning, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import memos, references
from kopf._core.actions import execution
from kopf._core.engines import activities, indexing
from kopf._core.intents import causes, registries
from kopf._kits import commanding, explanations

CLEANUP_TIMEOUT = 10.0
"""How long (seconds) the cleanup handlers have, with all their attempts."""

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
    credentials. With ``startup``, the startup handlers are called first, for their settings, and
    the cleanup handlers at the end.

    :raises CommandError: if there is no such resource or object, or it cannot be read.
    :raises ActivityError: if a startup or cleanup handler has failed permanently.
    :raises LoginError: if there are no credentials.
    """
    settings = settings if settings is not None else configuration.OperatorSettings()
    clock = clocks.Clock()
    async with started(registry, settings, clock) if startup else contextlib.nullcontext():
        try:
            async with commanding.connect(
                    registry=registry, settings=settings, vault=vault) as (client, item):
                resources = (await scanning.scan(client)).resources
                resource = commanding.find_resource(kind, resources)
                place = None if not resource.namespaced else references.NamespaceName(
                    namespace or item.default_namespace or 'default')
                raw = await listing.find_object(
                    client, settings=listing.select_only(settings), resource=resource,
                    namespace=place, name=name)
        except errors.APIError as e:
            raise commanding.CommandError(f"The object cannot be read: {e}") from e
        if raw is None:
            where = f" in the namespace {place!r}" if place is not None else ''
            raise commanding.CommandError(
                f"There is no {resource.kind or resource.plural} {name!r}{where}.")
        return explanations.explain(
            raw, resource=resource, resources=resources, registry=registry, settings=settings,
            now=clock.now(), is_configured=startup)


@contextlib.asynccontextmanager
async def started(
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        clock: clocks.Clock,
) -> AsyncIterator[None]:
    """
    Call the startup handlers; at the end, the cleanup handlers, but not for a long time.

    Startup handlers have one attempt: retries could keep a command, e.g. in CI, waiting forever.
    """
    run = functools.partial(
        activities.run_activity, registry=registry, memo=memos.Memo(), context=execution.Context(
            settings=settings, clock=clock, indices=indexing.OperatorIndexers()))
    try:
        await run(activity=causes.Activity.STARTUP, retrying=False)
        yield
    finally:
        try:
            async with timeouts.timeout(CLEANUP_TIMEOUT):
                await run(activity=causes.Activity.CLEANUP)
        except TimeoutError:
            logger.warning(
                f"The cleanup has not succeeded in {CLEANUP_TIMEOUT:g} seconds, and is given up.")
