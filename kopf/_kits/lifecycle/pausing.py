"""
The commands ``kopf pause`` and ``kopf unpause``: the annotation of single objects, for people.
"""
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks, tasks
from kopf._cogs.clients import api, errors, listing, patching, scanning, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references
from kopf._core.intents import pauses, registries
from kopf._kits import commanding
from kopf._kits.lifecycle import sweeping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """
    Which objects are meant: those of the names, or those that the labels select.

    Without ``clusterwide``, they are in the namespace; by default, in that of the kubeconfig.
    """
    kind: str
    names: Collection[str] = ()
    selector: str | None = None
    namespace: str | None = None
    clusterwide: bool = False
    annotation: str


def compose(*, reason: str, until: str | None, deletion: str) -> str:
    """
    Compose an annotation.

    :raises CommandError: if the time is none, or is over, or if the reason reads as something else.
    """
    parts = [reason] if reason else [] if until or deletion == 'allow' else ['true']
    wanted = pauses.Pause(reason, allows_deletion=deletion == 'allow')
    if until is not None:
        try:
            end = pauses.parse_time(until)
        except ValueError as e:
            raise commanding.CommandError(
                f"--until={until} is no time in ISO 8601, such as 2026-12-01T08:00Z.") from e
        if end <= clocks.Clock().now().wall:
            raise commanding.CommandError(f"--until={until} is in the past: it is {end}.")
        parts.append(f'until={end.isoformat()}')
        wanted = wanted._replace(until=end)
    if wanted.allows_deletion:
        parts.append('deletion=allow')
    text = '; '.join(parts)
    if pauses.parse(text) != wanted or text.strip().lower() == pauses.NO:
        raise commanding.CommandError(
            f"The reason {reason!r} would be read as something else. Use other words.")
    return text


async def annotate(
        text: str | None,
        options: Options,
        *,
        say: sweeping.Say,
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        vault: vaults.Vault | None = None,
) -> bool:
    """
    Pause objects by an annotation with this text; or end their pauses, for None.

    Whether the API server has taken all of them is returned. ``say`` gets what is done to each.

    :raises CommandError: if there is no such kind or object, or if the objects cannot be listed.
    :raises LoginError: if there are no credentials.
    """
    settings = sweeping.adjust(settings)
    refused: list[str] = []
    try:
        async with commanding.connect(
                registry=registry, settings=settings, vault=vault) as (client, origin):
            resource = commanding.find_resource(
                options.kind, (await scanning.scan(client)).resources)
            place = None if options.clusterwide or not resource.namespaced else (
                references.NamespaceName(
                    options.namespace or origin.default_namespace or 'default'))
            found = await _find(client, resource, settings, options, namespace=place)

            async def write(uid: str) -> None:
                meta = found[uid]
                try:
                    done = await _write(client, resource, meta, text, options.annotation)
                except errors.APIError as e:
                    refused.append(uid)
                    done = str(e)
                say(f"{'/'.join(filter(None, (meta.get('namespace'), meta['name'])))}: {done}")

            await tasks.for_each(write, found, limit=sweeping.CONCURRENCY)
    except errors.APIError as e:
        raise commanding.CommandError(f"Not all objects can be listed and written: {e}") from e
    return not refused


async def _find(
        client: api.Client,
        resource: references.Resource,
        settings: configuration.OperatorSettings,
        options: Options,
        *,
        namespace: references.Namespace,
) -> Mapping[str, Mapping[str, Any]]:
    """Find the metadata of the objects by their uids; there must be some for each name."""
    found: dict[str, Mapping[str, Any]] = {}
    selections = [{'fields': f'metadata.name={name}'} for name in options.names]
    for selection in selections or [{'labels': options.selector or ''}]:
        async for page, _ in sweeping.list_pages(
                client, resource=resource, namespaces=[namespace],
                settings=listing.select_only(settings, **selection)):
            found.update((raw['metadata']['uid'], raw['metadata']) for raw in page)
    where = "" if namespace is None else f" in the namespace {namespace!r}"
    known = {meta['name'] for meta in found.values()}
    if unknown := [name for name in options.names if name not in known]:
        raise commanding.CommandError(f"There is no {resource.kind} {unknown[0]!r}{where}.")
    if not found:
        raise commanding.CommandError(
            f"The selector {options.selector!r} matches no {resource.kind}{where}.")
    return found


async def _write(
        client: api.Client,
        resource: references.Resource,
        meta: Mapping[str, Any],
        text: str | None,
        annotation: str,
) -> str:
    """Annotate an object, and return what to say about it."""
    if (meta.get('annotations') or {}).get(annotation) == text:
        return "It was not paused." if text is None else "It was paused so already."
    newest = await patching.patch(
        client, resource=resource, namespace=meta.get('namespace'), name=meta['name'],
        payload={'metadata': {'uid': meta['uid'], 'annotations': {annotation: text}}})
    if newest is None:
        return "It is gone."
    return "The object is not paused any more." if text is None else (
        f"{pauses.parse(text).describe()}.")
