"""
Upkeep: makes the children that a handler has returned for an object, and deletes the others.
"""
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import applying, errors, listing
from kopf._cogs.structs import bodies, managedfields
from kopf._core.actions import (
    application,
    brakes,
    execution,
    finalizers,
    loggers,
    observers,
    progression,
)
from kopf._core.engines.reconciling import children, desired, generating, planning
from kopf._core.engines.reconciling.hub import FINALIZER, Hub, Member
from kopf._core.intents import causes, handlers

WORKLOADS = ('Deployment', 'StatefulSet', 'DaemonSet')
"""The kinds of workloads whose pods are restarted if the pod template changes."""

MAX_WRITES = 8
"""How many children of one object are written at once."""


@dataclasses.dataclass(eq=False)
class Upkeep:
    """The children of one handler and one object, from the call of the handler to the writes."""
    hub: Hub
    target: application.Target
    """The object for which the handler is called, and the means to write for it."""
    parent: bodies.RawBody
    """The object in the state for which the handler is called."""
    member: Member
    handler: handlers.ReconcilingHandler
    visible: children.OperatorChildren
    """The children that the handler sees."""
    problems: list[str] = dataclasses.field(default_factory=list)
    """What prevents children from being as the handler wants them, in words."""
    found: dict[desired.Key, children.Child] = dataclasses.field(default_factory=dict)
    """Children that the handler must see, so it is called again."""
    newest: bodies.RawBody | None = dataclasses.field(init=False)
    """The newest state of the object; None if it is gone, or if others change it: run again."""

    def __post_init__(self) -> None:
        self.newest = self.parent

    @property
    def _manager(self) -> str:
        return self.hub.get_manager(self.handler)

    async def attempt(
            self, cause: causes.ReconcilingCause, state: progression.HandlerState,
            filter_error: Exception | None, *,
            is_new: bool, hold: Callable[[], Awaitable[tuple[bodies.RawBody | None, bool]]],
    ) -> progression.Outcome:
        """
        Call the handler, and write its children; both belong to the attempt. ``hold`` adds the
        finalizer, as Kubernetes does not delete all children; it returns the newest state, and
        whether that was written.
        """
        handler, problems = self.handler, self.problems
        context, logger = self.hub.context, self.target.logger
        outcome = await execution.attempt(
            handler, cause, context=context, state=state, filter_error=filter_error)
        if self.member.is_left:
            self.newest = None
        elif outcome.exception is not None:
            problems.append(outcome.message or repr(outcome.exception))
        elif outcome.result is not None:
            wanted = self.prepare(outcome.result)
            if not is_new:
                await self.find_strays(wanted)
            if self.found:
                return outcome
            if any(not item.is_owned for item in wanted.values()) and (
                    not finalizers.is_present(self.parent, FINALIZER)):
                newest, is_held = await hold()
                self.newest = newest if is_held else None
                if self.newest is None:
                    return outcome
            await self.write(wanted)
            if not problems:
                logger.info(f"{handler!r} succeeded.")
                problems.extend(
                    f"{key} is being deleted; it is created again after that."
                    for key, child in self.find_known().items()
                    if child.is_deleting and key in wanted)
                return outcome
            outcome = execution.judge(
                desired.ChildrenError(problems), handler, state=state,
                settings=context.settings, logger=logger)._replace(patch=outcome.patch)
            if outcome.exception is None:  # it is ignored, as the author has declared
                problems.clear()
        return outcome

    def prepare(self, result: object) -> dict[desired.Key, desired.Desired]:
        """Make the desired children of the result; those that cannot be made are problems."""
        wanted, invalid = desired.prepare(
            result, parent=bodies.Body(self.parent), find=self.hub.get_kinds(self.handler).get,
            manager=self._manager)
        self.problems.extend(map(str, invalid))
        for key, item in list(wanted.items()):
            if not self.hub.store.is_listed(item.watched, key.namespace):
                del wanted[key]
                self.problems.append(
                    f"{key}: the operator does not serve the namespace of this child.")
        return wanted

    async def find_strays(self, wanted: dict[desired.Key, desired.Desired]) -> None:
        """
        Find the desired children that exist, but that are neither shown by the watch nor known as
        strays. If one cannot be looked up, it is not desired any more, but a problem.
        """
        async def look_for(item: desired.Desired) -> None:
            try:
                raw = await self._read(item)
            except errors.APIError as e:
                del wanted[item.key]
                self.problems.append(f"{item.key}: {e}")
                return
            child = None if raw is None else self.visible._recognise(item.watched, raw)
            if child is not None:
                self.found[item.key] = child

        unknown = [
            item for key, item in wanted.items()
            if key not in self.visible._strays and self.hub.store.find_owner(key) is None]
        await tasks.for_each(look_for, unknown, limit=MAX_WRITES)

    def find_known(self) -> Mapping[desired.Key, children.Child]:
        """Find those children of the object that this handler has applied."""
        manager = self._manager
        return {child.key: child for child in self.visible._list()
                if child.shape.manager == manager}

    async def write(self, wanted: Mapping[desired.Key, desired.Desired]) -> None:
        """Apply and delete children by a plan. The problems prevent the deletion."""
        known = self.find_known()
        for key in wanted.keys() & known.keys():
            known[key].expect_return()
        steps = planning.plan(wanted, known, prune=self.handler.prune and not self.problems)
        for stage in planning.arrange(steps):
            await tasks.for_each(self._carry_out, stage, limit=MAX_WRITES)

    def _find_risk(self, step: planning.Step) -> brakes.Risk | None:
        match step:
            case planning.Delete():
                return brakes.Risk.DELETION
            case planning.Apply(wanted, known) if known is not None and (
                    self.hub.context.brakes.counts(brakes.Risk.RESTART)
                    and _has_other_template(wanted, known)):
                return brakes.Risk.RESTART
        return None

    def _permit(self, risk: brakes.Risk, child: children.Child) -> bool:
        """
        Take one from a budget, except after an edit of the object: then, the change is wanted. A
        refusal is a problem.
        """
        if self.member.is_edited:
            return True
        context, resource = self.hub.context, child.resource
        problem = context.brakes.take(
            risk, resource, child.uid, parent=self.parent, owner=self.member.host.resource,
            total=self.hub.store.count(resource) * context.brakes.get_share(),
            now=context.clock.now(), logger=loggers.ObjectLogger(
                body=bodies.Body(self.parent), settings=context.settings))
        if problem is not None:
            self.problems.append(f"{child.key}: {problem}")
        return problem is None

    async def _carry_out(self, step: planning.Step) -> None:
        risk = self._find_risk(step)
        if risk is not None and step.known is not None and not self._permit(risk, step.known):
            return
        try:
            match step:
                case planning.Apply(wanted, known):
                    if known is None or not known.is_as(wanted):  # earlier writes teach it
                        self.member.note_application()
                        await self._apply(wanted, known)
                case planning.Delete(known):
                    with self.hub.store.writing(known.key):
                        await delete(self.target, known, is_pruned=True)
        except errors.NotLeadingError:
            raise
        except (errors.APIError, generating.GenerationError) as e:
            key = step.wanted.key if isinstance(step, planning.Apply) else step.known.key
            self.problems.append(f"{key}: {_explain(e, step)}")

    async def _apply(self, wanted: desired.Desired, known: children.Child | None) -> None:
        is_orphan = known is None and await self._verify_vacancy(wanted)
        try:
            with self.hub.store.writing(wanted.key):
                try:
                    applied = await self._send(wanted, known, force=known is not None)
                except errors.APIConflictError:
                    other = None if known is not None else await self._find_controller(wanted)
                    if other is None or other.get('uid') != self.member.host.uid:
                        raise
                    applied = await self._send(wanted, force=True)
                    self._tell(f"has taken over {wanted.key}, which this object controls, "
                               f"with the fields of other field managers.")
                else:
                    if known is not None and not known.is_labelled:
                        self._tell(f"has taken over {wanted.key} again, which belongs to this "
                                   f"object, though others have changed its labels.")
                    if is_orphan:
                        self._tell(f"has taken over {wanted.key}: the object that it belonged to "
                                   f"is gone.")
                    elif known is None and _has_other_managers(applied, self._manager):
                        self._tell(f"has adopted {wanted.key}, which existed before, with no "
                                   f"other controller and with no other values in the same fields.")
                self.hub.store.accept(wanted.watched, applied, wanted)
        except errors.APIUnprocessableError:
            if not self.handler.recreate or known is None or not known.is_applied or (
                    wanted.generated):  # the values would be others then
                raise
            await applying.verify_creation(
                self.target.client, resource=wanted.resource, manifest=wanted.manifest,
                logger=self.target.logger)
            if not self._permit(brakes.Risk.DELETION, known):
                return
            self.target.logger.info(f"Re-creating {wanted.key}, as it cannot be changed in place.")
            await delete(self.target, known)
            return
        self.target.logger.debug(f"{'Applied' if known is None else 'Changed'} {wanted.key}.")

    def _tell(self, text: str) -> None:
        self.target.logger.info(f"{self.handler!r} {text}")

    async def _verify_vacancy(self, wanted: desired.Desired) -> bool:
        """
        Check that the object belongs to nobody else, where the API server cannot know; return
        whether it was a child of a parent that is gone.

        The API server lets a handler take over a child from another parent, as the field manager is
        the same. Without an owner reference, as over namespaces, the API server does not see that
        there would be two controllers. But a former parent of the same name is gone, or soon is:
        its children are taken over.

        :raises errors.APIConflictError: if it belongs to somebody else.
        """
        store, strays = self.hub.store, self.visible._strays
        owner = store.find_owner(wanted.key)
        child = (store.find if owner == self.member.host.uid else strays.get)(wanted.key)
        if child is not None:
            if child.is_applied:
                raise errors.APIConflictError(
                    "it belongs to another handler of this object.", status=409)
            return False
        if owner is None and wanted.is_owned:
            return False
        other = await self._find_controller(wanted)
        if other is None:
            if owner is not None and not self.hub.is_gone(owner):
                self.hub.waiting.add(self.member)
                raise errors.APIConflictError(self.hub.describe_owner(owner), status=409)
        elif _identify(other) not in map(
                _identify, wanted.manifest['metadata'].get('ownerReferences') or ()):
            raise errors.APIConflictError(
                f"it belongs to {other.get('kind')} {other.get('name')}.", status=409)
        return owner is not None

    async def _find_controller(self, wanted: desired.Desired) -> Mapping[str, Any] | None:
        """Find the reference to the controller of an object that is not known, if it has any."""
        raw = await self._read(wanted)
        owners: Any = raw['metadata'].get('ownerReferences') if raw is not None else None
        return next((ref for ref in owners or () if ref.get('controller')), None)

    async def _read(self, wanted: desired.Desired) -> bodies.RawBody | None:
        """Read the object as it is in the cluster, if it is there."""
        return await listing.find_object(
            self.target.client, settings=listing.select_only(self.target.client.settings),
            resource=wanted.watched, namespace=wanted.key.namespace, name=wanted.key.name)

    async def _send(
            self, wanted: desired.Desired, known: children.Child | None = None, *, force: bool,
    ) -> bodies.RawBody:
        """Apply the manifest: to the known child, and not to a namesake."""
        manifest: Any = wanted.manifest
        if known is not None:
            manifest = {**manifest, 'metadata': {**manifest['metadata'], 'uid': known.uid}}
        work = generating.apply(
            self.target.client, resource=wanted.resource, manifest=manifest,
            fields=wanted.generated, manager=self._manager, force=force, logger=self.target.logger)
        return await self.target.observer.follow(
            observers.Observer.write, work, wanted.resource, manifest, content_type='apply')


async def delete(
        target: application.Target, child: children.Child, *, is_pruned: bool = False,
) -> None:
    """Delete a child, of whichever handler."""
    metadata = {'name': child.key.name, 'namespace': child.key.namespace, 'uid': child.uid}
    known: Any = {'metadata': metadata}
    work = applying.delete(
        target.client, resource=child.resource, metadata=metadata, logger=target.logger)
    await target.observer.follow(
        observers.Observer.write, work, child.resource, known, content_type='delete')
    child.note_deletion(is_pruned=is_pruned)
    target.logger.debug(f"Deleted {child.key}.")


def _identify(ref: Mapping[str, Any]) -> tuple[object, ...]:
    """Get what identifies the owner of a reference, even if it was re-created with its name."""
    return str(ref.get('apiVersion')).rpartition('/')[0], ref.get('kind'), ref.get('name')


def _has_other_template(wanted: desired.Desired, known: children.Child) -> bool:
    """Whether the manifest changes the pod template of a workload."""
    if known.resource.group != 'apps' or known.resource.kind not in WORKLOADS:
        return False
    spec: Any = wanted.manifest.get('spec') or {}
    return managedfields.differs(spec.get('template'), known.body.spec.get('template'))


def _has_other_managers(raw: bodies.RawBody, manager: str) -> bool:
    """Whether others have set fields of the object, so that it was not created by this manager."""
    entries: Any = raw['metadata'].get('managedFields') or ()
    return any(entry.get('manager') != manager for entry in entries)


def _explain(e: Exception, step: planning.Step) -> str:
    text = str(e)
    is_foreign = isinstance(e, errors.APIConflictError) or (  # or it has another controller
        isinstance(e, errors.APIUnprocessableError) and any(
            cause.get('field') == 'metadata.ownerReferences' for cause in e.causes))
    if isinstance(step, planning.Apply) and step.known is None and is_foreign:
        return (f"an object of this name exists, and this handler has not created it for this "
                f"object: Kopf leaves it alone. Rename the child, or delete the object: {text}")
    if isinstance(e, errors.APIUnprocessableError) and 'immutable' in text:
        return f"{text} To delete and create it again in such cases, set recreate=True."
    return text
