"""
Annotations of single objects by people: the work of the commands ``kopf pause``, ``kopf unpause``,
and ``kopf brakes release``.
"""
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.clients import errors, patching
from kopf._cogs.structs import bodies, references
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


async def annotate(
        sweep: sweeping.Sweep, text: str | None, options: Options, *, done: str, known: str,
) -> bool:
    """
    Annotate objects with this text; or remove the annotation, for None.

    Whether the API server has taken all of them is returned. It is said what is done to each:
    ``done``, or ``known`` if the object was annotated so already.

    :raises CommandError: if there is no such kind or object.
    :raises errors.APIError: if the objects cannot be listed.
    """
    resource = commanding.find_resource(options.kind, sweep.served)
    found = await _find(sweep, resource, options)

    async def write(meta: sweeping.Meta) -> str | None:
        name = sweeping.get_name(meta)
        try:
            outcome = await _write(sweep, resource, found[meta['uid']], text, options.annotation)
        except errors.APIConnectionError:
            raise
        except errors.APIError as e:
            sweep.say(f"{name}: {e}")
            return str(e)
        sweep.say(f"{name}: {'It is gone' if outcome is None else done if outcome else known}.")
        return None

    return not await sweeping.for_each(
        [sweeping.get_meta(raw) for raw in found.values()], write, title=resource.plural)


async def _find(
        sweep: sweeping.Sweep, resource: references.Resource, options: Options,
) -> Mapping[str, bodies.RawBody]:
    """Find the objects by their uids; there must be some for each name."""
    is_everywhere = options.clusterwide or not resource.namespaced
    namespace = None if is_everywhere else references.NamespaceName(
        options.namespace or sweep.namespace)
    selections = [('', f'metadata.name={name}') for name in options.names]
    if options.selector is not None:
        selections.append((options.selector, ''))
    found = {raw['metadata']['uid']: raw for labels, fields in selections
             async for raw in sweep.list(resource, [namespace], labels=labels, fields=fields)}
    where = "" if namespace is None else f" in the namespace {namespace!r}"
    known = {raw['metadata']['name'] for raw in found.values()}
    if unknown := [name for name in options.names if name not in known]:
        raise commanding.CommandError(f"There is no {resource.kind} {unknown[0]!r}{where}.")
    if not found:
        raise commanding.CommandError(
            f"The selector {options.selector!r} matches no {resource.kind}{where}.")
    return found


async def _write(
        sweep: sweeping.Sweep,
        resource: references.Resource,
        raw: bodies.RawBody,
        text: str | None,
        annotation: str,
) -> bool | None:
    """Annotate an object; return whether it was not annotated so before, or None if it is gone."""
    meta: Any = raw['metadata']
    if (meta.get('annotations') or {}).get(annotation) == text:
        return False
    newest = await patching.patch(
        sweep.client, resource=resource, namespace=meta.get('namespace'), name=meta['name'],
        payload={'metadata': {'uid': meta['uid'], 'annotations': {annotation: text}}})
    return None if newest is None else True
