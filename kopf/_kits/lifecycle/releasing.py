"""
The command ``kopf release``: remove what an operator keeps on its objects, to uninstall it.

The finalizers of Kopf are removed, so that the objects can be deleted without the operator; and, if
asked for, the annotations. Nothing is removed while the operator runs: it would add them again.
"""
import asyncio
import dataclasses
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Self

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import errors
from kopf._cogs.cluster import discovery
from kopf._cogs.configs import conventions
from kopf._cogs.structs import leases, references
from kopf._core.actions import finalizers
from kopf._core.engines.peering import judging, records
from kopf._core.engines.reconciling import hub
from kopf._core.engines.sharding import rosters
from kopf._kits import commanding
from kopf._kits.lifecycle import sweeping

PAUSES = (0, 0.1, 0.2, 0.5, 1, 2)
"""The pauses (seconds) before each attempt to write an object that others also write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """
    The options of ``kopf release``.

    ``prefixes`` are those of the annotations to remove. ``deleting`` allows to release objects that
    are being deleted, ``force`` to do so while the operator runs. ``peering`` is the name of the
    peering objects, ``lease`` the name of the Lease or of the sharding; None if there is none.
    """

    finalizer: str
    prefixes: Collection[str] = ()
    deleting: bool = False
    dry_run: bool = False
    force: bool = False
    peering: str
    lease: str | None


STAYING: Mapping[str, str] = {
    hub.FINALIZER: "Their owned resources in other namespaces will stay.",
    hub.EXTERNAL_FINALIZER: "What belongs to them in external systems will stay."}
"""What is left when these finalizers are removed."""


@dataclasses.dataclass(frozen=True)
class Held:
    """What is needed to know of an object on which the operator keeps something."""

    meta: Mapping[str, Any]
    changes: Mapping[str, Any]
    """The metadata to merge, so that the operator keeps nothing on it."""
    is_deleting: bool
    staying: Collection[str]
    """The finalizers of what Kubernetes does not delete with the object."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any], options: Options) -> Self | None:
        """Look at an object; None if the operator keeps nothing on it."""
        found: Sequence[str] = raw['metadata'].get('finalizers') or ()
        foreign = [name for name in found if name not in (options.finalizer, *STAYING)]
        own = [key for key in conventions.get_annotations(raw)
               if conventions.is_own_annotation(key, options.prefixes)]
        changes: dict[str, Any] = {'finalizers': foreign} if len(foreign) < len(found) else {}
        changes |= {'annotations': dict.fromkeys(own)} if own else {}
        return None if not changes else cls(
            sweeping.get_meta(raw), changes, finalizers.is_deleting(raw),
            [name for name in found if name in STAYING])


async def release(
        sweep: sweeping.Sweep,
        kinds: Collection[str],
        options: Options,
        *,
        clusterwide: bool,
        namespaces: Collection[references.NamespacePattern],
) -> bool:
    """
    Release all objects of the kinds, in the namespaces or in the whole cluster.

    Whether nothing is left is returned; true for a dry run. It is said what is done, and what is
    left and why.

    :raises CommandError: if there are no such kinds or namespaces; if the operator runs, or objects
        are being deleted, and the options do not allow that.
    :raises errors.APIError: if the API server refuses to list.
    """
    resources = [commanding.find_resource(kind, sweep.served) for kind in kinds]
    if wrong := [each for each in resources if not clusterwide and not each.namespaced]:
        raise commanding.CommandError(
            f"{wrong[0]} is cluster-scoped. Use --all-namespaces instead of --namespace.")
    resources = [await sweep.find_stored(resource) for resource in resources]
    places = await commanding.find_namespaces(
        sweep.client, settings=sweep.settings, clusterwide=clusterwide, patterns=namespaces)
    releasing = _Releasing(sweep, options, places)
    if not options.force:
        await releasing.verify_stopped()
    return await releasing.run(resources)


@dataclasses.dataclass(frozen=True)
class _Releasing:
    sweep: sweeping.Sweep
    options: Options
    places: Sequence[references.Namespace]

    async def run(self, resources: Collection[references.Resource]) -> bool:
        found = {resource: await self._find(resource) for resource in resources}
        for resource, held in found.items():
            self.sweep.say(f"{resource}: {len(held)} to release.")
            for name, text in STAYING.items():
                if number := sum(name in item.staying for item in held.values()):
                    self.sweep.say(f"{resource}: {number} with the finalizer {name}. {text}")
        if deleting := [item for held in found.values() for item in held.values()
                        if item.is_deleting]:
            self._warn_of_deleting(deleting)
        if self.options.dry_run:
            self.sweep.say("Nothing is written, as it is a dry run.")
            return True
        return all([await self._release(resource, held) for resource, held in found.items()])

    def _warn_of_deleting(self, deleting: Sequence[Held]) -> None:
        names = discovery.enumerate_names(sweeping.get_name(item.meta) for item in deleting)
        text = (f"Being deleted: {len(deleting)} ({names}). "
                f"When they are released, they vanish, and no deletion handlers are called.")
        if self.options.deleting:
            self.sweep.say(text)
        else:
            self._refuse(f"{text} Let the operator finish them, or add --deleting.")

    def _refuse(self, reason: str) -> None:
        if not self.options.dry_run:
            raise commanding.CommandError(reason)
        self.sweep.say(f"It would be refused: {reason}")

    async def _find(
            self, resource: references.Resource, item: Held | None = None,
    ) -> dict[str, Held]:
        """Find the objects on which the operator keeps something, by their uids; or only one."""
        places = self.places if item is None else [item.meta['namespace']]
        fields = '' if item is None else f"metadata.name={item.meta['name']}"
        return {
            held.meta['uid']: held
            async for raw in self.sweep.list(resource, places, fields=fields)
            if (held := Held.parse(raw, self.options)) is not None}

    async def _release(self, resource: references.Resource, held: Mapping[str, Held]) -> bool:
        reasons = await sweeping.for_each(
            [item.meta for item in held.values()],
            lambda meta: self._release_one(resource, held[meta['uid']]), title=str(resource))
        left = await self._find(resource)
        self.sweep.say(f"{resource}: {len(held.keys() - left.keys())} released, {len(left)} left.")
        for uid, item in left.items():
            reason = reasons.get(uid, "It was written again by an operator. Stop the operator.")
            self.sweep.say(f"{sweeping.describe(resource, item.meta)}: {reason}")
        return not left

    async def _release_one(self, resource: references.Resource, item: Held) -> str | None:
        """Release an object, and return the reason if that is impossible."""
        known: Held | None = item
        for pause in PAUSES:
            await asyncio.sleep(pause)
            if known is None:
                return None
            if known.is_deleting and not self.options.deleting:
                return "It is being deleted now. Let the operator finish it, or add --deleting."
            try:
                await self.sweep.write(resource, known.meta, known.changes)
                return None
            except errors.APIConflictError:
                known = (await self._find(resource, item)).get(item.meta['uid'])
        return "Others change it all the time. Run the command again."

    async def verify_stopped(self) -> None:
        """
        Verify that the operator does not run.

        :raises CommandError: if it does, or if this cannot be seen; but for a dry run.
        """
        try:
            found = [peer async for peer in self._iter_peers()] or await self._find_holder()
        except errors.APIForbiddenError as e:
            self._refuse(f"It cannot be seen whether the operator runs: {e} If you have stopped "
                         f"it, add --force.")
            return
        if found:
            self._refuse(f"The operator runs: {found[0]} Stop it first, for example: "
                         f"kubectl scale deployment NAME --replicas=0. If it is another operator, "
                         f"use --peering or --leader-elect to name your own; otherwise, --force.")

    async def _iter_peers(self) -> AsyncIterator[str]:
        now, name = clocks.Clock().now(), self.options.peering
        for resource in self.sweep.served:
            if not records.is_peering(resource, clusterwide=not resource.namespaced):
                continue
            async for raw in self.sweep.list(
                    resource, self.places if resource.namespaced else [None],
                    fields=f'metadata.name={name}', metadata_only=False):
                peers = records.parse_peers(raw.get('status'))
                roster = judging.observe({}, peers, now=now, live=False)
                for identity, sighting in roster.items():
                    if sighting.until > now.mono:
                        yield f"{identity} is in the {resource.kind} {name!r}."

    async def _find_holder(self) -> Sequence[str]:
        """Find who holds a Lease: whoever renews it. The times in it are those of another clock."""
        known: dict[str, leases.Sighting] = {}
        clock = clocks.Clock()
        while True:
            now, is_waiting = clock.now().mono, False
            async for raw in self._iter_leases():
                name = sweeping.get_name(raw['metadata'])
                former, seen = known.get(name), leases.see(known.get(name), raw, now=now)
                known[name] = seen
                if not seen.holder or seen.until <= now:
                    continue
                what = f"the Lease {name} is held by {seen.holder!r}"
                if former is None:
                    self.sweep.say(f"Waiting, as {what}. It expires in {seen.until - now:.0f} "
                                   f"seconds, unless it is renewed.")
                elif former.since < seen.since:
                    return [f"{what}."]
                is_waiting = True
            if not is_waiting:
                return []
            await asyncio.sleep(1)

    async def _iter_leases(self) -> AsyncIterator[Any]:
        """List the Lease of an election, or the Leases of the members of a sharding."""
        name = self.options.lease
        for labels, fields in [
                (f'!{rosters.ROLE}', f'metadata.name={name}'), (f'{rosters.ROLE}=member', '')]:
            if name is not None:
                async for raw in self.sweep.list(
                        leases.RESOURCE, [None], labels=labels, fields=fields,
                        metadata_only=False):
                    if (raw['metadata'].get('labels') or {}).get(rosters.LABEL, name) == name:
                        yield raw
