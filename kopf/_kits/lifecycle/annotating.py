"""
Annotations of single objects by people: the work of the commands ``kopf pause``, ``kopf unpause``,
``kopf brakes release``, and ``kopf external``.
"""
import dataclasses
from collections.abc import Callable, Collection, Mapping

from kopf._cogs.clients import patching
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
        check: Callable[[bodies.RawBody], str | None] = lambda _: None,
) -> bool:
    """
    Annotate objects with this text; or remove the annotation, for None.

    Whether the API server has taken all of them is returned. It is said what is done to each:
    ``done``, or ``known`` if the object was annotated so already; or why it is not annotated, as
    ``check`` returns it.

    :raises CommandError: if there is no such kind or object.
    :raises errors.APIError: if the objects cannot be listed.
    """
    resource = commanding.find_resource(options.kind, sweep.served)
    found = await _find(sweep, resource, options)

    async def write(meta: sweeping.Meta) -> str | None:
        raw, outcome = found[meta['uid']], known
        annotations = raw['metadata'].get('annotations') or {}
        if (problem := check(raw)) is not None:
            return f"{problem}."
        if annotations.get(options.annotation) != text:
            newest = await patching.patch(
                sweep.client, resource=resource, namespace=meta['namespace'], name=meta['name'],
                payload={'metadata': {
                    'uid': meta['uid'], 'annotations': {options.annotation: text}}})
            outcome = "It is gone" if newest is None else done
        sweep.say(f"{sweeping.get_name(meta)}: {outcome}.")
        return None

    reasons = await sweeping.for_each(
        [sweeping.get_meta(raw) for raw in found.values()], write, title=resource.plural)
    for uid, reason in reasons.items():
        sweep.say(f"{sweeping.get_name(found[uid]['metadata'])}: {reason}")
    return not reasons


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
