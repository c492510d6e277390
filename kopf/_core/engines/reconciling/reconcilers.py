"""
Reconcilers: call the handlers of `kopf.reconcile`, and make the children what the handlers return.

They run as a part of the processing of an object, after its handlers of changes, so never together
with these, and never twice at once for an object.
"""
import asyncio
import copy
import itertools
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, applying, errors, listing
from kopf._cogs.helpers import quotas
from kopf._cogs.structs import bodies, dicts, diffs, ids, patches, references
from kopf._core.actions import application, execution, loggers, progression
from kopf._core.engines.reconciling import children, conditions, desired, planning
from kopf._core.intents import causes, filters, handlers, registries

FINALIZER = 'kopf.dev/children'
"""The finalizer of objects with children that Kubernetes does not delete with their parents."""

MAX_WRITES = 8
"""How many children of one object are written at once."""

VERSIONS = frozenset({'resourceVersion', 'generation', 'managedFields'})
"""What changes in the metadata of an object by any write."""

SPREAD = 0.1
"""By which part the intervals vary, so that objects are not reconciled all at once."""

MAX_NAMED = 5
"""How many children the log names at most."""

RESTORATIONS = 10
"""How many times the children of an object are restored at once; then, once in the period."""

RESTORATION_PERIOD = 1.0
"""How often (seconds) the children are restored if others change or delete them all the time."""

module_logger = logging.getLogger(__name__)


class Host(Protocol):
    """The object as the reactor has it."""

    @property
    def uid(self) -> str: ...

    @property
    def resource(self) -> references.Resource: ...

    @property
    def handlers(self) -> registries.ResourceHandlers: ...

    @property
    def initial(self) -> bool:
        """Whether the object can be older than the operator."""

    @property
    def name(self) -> tuple[str | None, str] | None:
        """The namespace and the name; None while the object rests."""

    def accept(self, raw: bodies.RawBody, /) -> bool:
        """Take the response to an own write; false if a newer state is known."""

    def wake_up(self) -> None:
        """Process the object again soon."""


class Hub:
    """What the reconcilers of all objects of an operator share."""

    def __init__(
            self,
            *,
            client: api.Client,
            context: execution.Context,
            get_memo: Callable[[Any], Any],
    ) -> None:
        """``get_memo`` returns the memo of an object by its `Host`."""
        super().__init__()
        self.client = client
        self.context = context
        self.get_memo = get_memo
        self.store = children.ChildStore(
            on_change=self._notify, on_listed=self.note_list,
            on_unavailable=self._complain)
        self.waiting: set[Reconcilers] = set()
        """The reconcilers that wait until all children or all parents of some kind are listed."""
        self.is_gone: Callable[[str], bool] = lambda uid: False
        """Whether it is certain that there is no parent with this uid."""
        self._kinds: dict[handlers.ReconcilingHandler, desired.Kinds] = {}
        self._uncertain: set[handlers.ReconcilingHandler] = set()
        """The handlers that can own more kinds, as the discovery has failed."""
        self._members: dict[str, tuple[Reconcilers, ...]] = {}
        """The reconcilers by the uids of the objects; several if some handlers are for others of
        the versions of a resource."""
        self._named: dict[tuple[str | None, str], set[Reconcilers]] = {}
        """The objects that watch others, by their names."""
        self._forbidden: set[tuple[references.Resource, references.Namespace]] = set()
        """The kinds of children that must not be listed, and where, as was said in the log."""
        self._detained: set[str] = set()
        """The deleted objects that wait for such kinds, as was said in the log."""
        self._abandoned: set[tuple[str, ids.HandlerId]] = set()
        """The objects and handlers that do not match any more, as was said in the log."""

    def for_shard(self, client: api.Client) -> 'Hub':
        """Get a view for the objects of one shard, whose children are written by this client."""
        view = copy.copy(self)
        view._narrow(client)
        return view

    def _narrow(self, client: api.Client) -> None:
        self.client = client
        self.is_gone = lambda uid: False  # it can be in a shard of another replica

    def bind(
            self,
            kinds: Mapping[handlers.ReconcilingHandler, desired.Kinds],
            *,
            uncertain: Collection[handlers.ReconcilingHandler] = (),
    ) -> None:
        """
        Set the resources that the handlers own in this cluster. The ``uncertain`` handlers can own
        more, which are not known yet.

        All objects are reconciled again if the resources are others: a kind can have come for which
        they wait.
        """
        is_first = not self._kinds
        is_changed = self._kinds != kinds or self._uncertain != {*uncertain}
        self._kinds.clear()
        self._kinds.update(kinds)  # in place: the views of the shards have the same ones
        self._uncertain.clear()
        self._uncertain.update(uncertain)
        if is_changed and not is_first:
            for member in list(itertools.chain.from_iterable(self._members.values())):
                member.trigger()

    def rely_on(self, is_gone: Callable[[str], bool]) -> None:
        """Set what says whether it is certain that there is no parent with this uid."""
        self.is_gone = is_gone

    def describe_owner(self, uid: str) -> str:
        """Describe the parent that has a child, as far as it is known."""
        doubt = "" if uid in self._members else (
            " It is not known to be gone: not all objects are listed here.")
        return f"it belongs to the object with the uid {uid}.{doubt}"

    def get_kinds(self, handler: handlers.ReconcilingHandler) -> desired.Kinds:
        return self._kinds.get(handler, {})

    def is_certain(self, handler: handlers.ReconcilingHandler) -> bool:
        """Whether all kinds that the handler can own are known."""
        return handler not in self._uncertain

    def get_manager(self, handler: handlers.ReconcilingHandler) -> str:
        """Get the field manager of a handler."""
        return desired.get_manager(self.context.settings.reconciling.manager, handler.id)

    def join(self, host: Host) -> 'Reconcilers':
        """Begin to reconcile an object."""
        member = Reconcilers(self, host)
        self._members[host.uid] = (*self._members.get(host.uid, ()), member)
        if member.name is not None:
            self._named.setdefault(member.name, set()).add(member)
        return member

    def leave(self, member: 'Reconcilers') -> None:
        """Stop to reconcile an object: it is gone."""
        self.waiting.discard(member)
        self._detained.discard(member.host.uid)
        for handler in member.host.handlers.reconciling:
            self._abandoned.discard((member.host.uid, handler.id))
        if left := tuple(
                other for other in self._members.pop(member.host.uid, ()) if other is not member):
            self._members[member.host.uid] = left
        if member.name is not None and (namesakes := self._named.get(member.name)):
            namesakes.discard(member)
            if not namesakes:
                del self._named[member.name]

    def trigger(
            self, handler: handlers.ReconcilingHandler, name: tuple[str | None, str],
    ) -> None:
        """Reconcile the object of this name, if it is known: an object that it uses has changed."""
        for member in self._named.get(name, ()):
            if handler in member.host.handlers.reconciling:
                member.trigger()

    def close(self, resource: references.Resource, namespace: references.Namespace) -> None:
        """Forget the children of one kind in one namespace, and what was said of these."""
        self.store.close(resource, namespace)
        self._forbidden.discard((resource, namespace))

    def _notify(self, uid: str) -> None:
        for member in self._members.get(uid, ()):
            member.restore()

    def abandon(
            self,
            handler: handlers.ReconcilingHandler,
            uid: str,
            namespace: str | None,
            logger: Any,
    ) -> None:
        """Say once that an object with children does not match the filters any more."""
        if (uid, handler.id) in self._abandoned:
            return
        label = self.store.register(self.get_manager(handler))
        left = [key for key, child in self.store.of(uid).items()
                if child.label == label and child.is_of(namespace)]
        if left:
            self._abandoned.add((uid, handler.id))
            more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
            logger.info(
                f"{handler!r} does not match this object any more. Its owned resources stay as "
                f"they are: {', '.join(map(str, left[:MAX_NAMED]))}{more}.")

    def take_back(self, handler: handlers.ReconcilingHandler, uid: str) -> None:
        """Note that the object matches the filters."""
        self._abandoned.discard((uid, handler.id))

    def _complain(
            self, resource: references.Resource, namespace: references.Namespace, error: Exception,
    ) -> None:
        """Say once which handlers wait, and which rights are needed."""
        if not isinstance(error, errors.APIForbiddenError) or (
                (resource, namespace) in self._forbidden):
            return
        self._forbidden.add((resource, namespace))
        names = [repr(handler) for handler, kinds in self._kinds.items()
                 if resource in kinds.values()]
        objects = "" if namespace is None else f" for objects in the namespace {namespace!r}"
        module_logger.warning(
            f"{', '.join(names)} will not be called{objects} until {resource} can be listed"
            f"{_describe(namespace)}. The operator needs the rights to list, watch, create, patch, "
            f"and delete {resource}, which it owns: {error}")

    def detain(
            self, uid: str, resource: references.Resource, namespace: references.Namespace,
            logger: Any,
    ) -> None:
        """Say once that a deleted object waits for a kind that must not be listed."""
        if uid not in self._detained:
            self._detained.add(uid)
            logger.warning(
                f"The deletion waits until {resource} can be listed{_describe(namespace)}, as "
                f"owned resources can be there. The operator needs the right to list them. If "
                f"there are none, remove the finalizer {FINALIZER}.")

    def note_list(self) -> None:
        """Note that children or parents were listed."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for member in waiting:
            member.trigger()


class Reconcilers:
    """The reconciling handlers of one object, with the state of their attempts."""
    __slots__ = (
        '_has_applied', '_hub', '_is_asked', '_is_new', '_is_reported', '_is_triggered',
        '_problems', '_reporter', '_restorations', '_states', 'has_written', 'host',
        'name')

    def __init__(self, hub: Hub, host: Host) -> None:
        self.host = host
        self.name = host.name if any(
            handler.watches for handler in host.handlers.reconciling) else None
        """The namespace and the name, if they are needed."""
        self._hub = hub
        self._is_triggered = True
        self._is_new = not host.initial and not hub.store.of(host.uid)
        """Whether the object cannot have children yet."""
        self._is_asked = True
        """Whether the next run is not only because of children."""
        self._has_applied = False
        """Whether the last run has applied any children."""
        self.has_written = False
        """Whether the last run has changed the object itself."""
        self._restorations: quotas.Bucket | None = None
        """How often the children can still be restored, if they were lately."""
        self._states = progression.State()
        """The failed attempts in a row, and when the handlers are called again."""
        self._problems: dict[ids.HandlerId, conditions.Problems] = {}
        """The problems of those handlers that have failed in their last calls."""
        self._reporter: ids.HandlerId | None = None
        """The handler with ``conditions=True``, if the object matches its filters."""
        self._is_reported = True
        """Whether the conditions are as the last calls of the handlers require."""

    @property
    def due(self) -> float | None:
        """When to run again, though nothing has changed (monotonic time); None for never."""
        due = min((state.due for state in self._states.values()), default=progression.NEVER)
        return None if due == progression.NEVER else due

    @property
    def is_resync(self) -> bool:
        """Whether the next run is only because of an interval, so that it can wait."""
        return not self._is_triggered and self.due is not None and all(
            state.is_new for state in self._states.values())

    def leave(self) -> None:
        """Stop: the object is gone."""
        self._hub.leave(self)

    def trigger(self) -> None:
        """Run soon: something that the handlers use has changed."""
        self._is_triggered = self._is_asked = True
        self.host.wake_up()

    def restore(self) -> None:
        """Run soon: a child has changed."""
        self._is_triggered = True
        self.host.wake_up()

    def note_change(self) -> None:
        """Run when the object is processed: it has changed."""
        self._is_triggered = self._is_asked = True

    def note_answer(self) -> None:
        """Run when the object is processed: handlers have answered an own write by their writes."""
        self._is_triggered = True
        self._count_repetition()

    async def run(
            self, served: tuple[handlers.ReconcilingHandler, ...], raw: bodies.RawBody,
    ) -> None:
        """
        Call the handlers that are due, and apply what they return.

        :raises errors.APIError: if the object cannot be patched.
        """
        is_triggered, self._is_triggered = self._is_triggered, False
        is_asked, self._is_asked = self._is_asked, False
        self._has_applied = self.has_written = False
        try:
            if raw['metadata'].get('deletionTimestamp') is not None:
                self._states.clear()
                await self._clean_up(served, raw)
            elif is_triggered and not is_asked and self._is_contested:
                self._postpone(served)
            else:
                await self._call(served, raw, is_triggered=is_triggered)
        except (Exception, asyncio.CancelledError):
            self._is_triggered = self._is_asked = True  # the reactor tries again
            raise
        finally:
            self._is_new = self._is_new and not self._has_applied
        if self._has_applied and not is_asked:
            self._count_repetition()

    # Children that others change or delete all the time must not become a hot loop: e.g. Kubernetes
    # deletes the children of a deleted object before an interrupted watch shows its deletion. The
    # same goes for an object that somebody, or a handler, changes whenever this has written to it.

    def _count_repetition(self) -> None:
        now = self._hub.context.clock.mono()
        if self._restorations is None:
            self._restorations = quotas.Bucket(
                burst=RESTORATIONS, period=RESTORATION_PERIOD, now=now)
        if not self._restorations.take(now):  # it came by another reason, or was rounded
            self._restorations.empty(now)

    @property
    def _is_contested(self) -> bool:
        return self._restorations is not None and self._restorations.get_wait(
            self._hub.context.clock.mono()) > 0

    def _postpone(self, served: tuple[handlers.ReconcilingHandler, ...]) -> None:
        assert self._restorations is not None
        now = self._hub.context.clock.now()
        until = now.mono + self._restorations.get_wait(now.mono)
        for handler in served:
            state = self._states.get(handler.id)
            self._schedule(handler, until if state is None else min(until, state.due))

    async def _call(
            self,
            served: tuple[handlers.ReconcilingHandler, ...],
            raw: bodies.RawBody,
            *,
            is_triggered: bool,
    ) -> None:
        now = self._hub.context.clock.mono()
        called = [
            handler for handler in served if is_triggered or (
                handler.id in self._states and self._states[handler.id].is_due(now))]
        newest: bodies.RawBody | None = raw
        for number, handler in enumerate(called, start=1):
            if newest is not None:
                newest = await self._run(handler, newest, is_last=number == len(called))
        if newest is not None and not self._is_reported:  # the last handler was not called
            patch = patches.Patch()
            self._report(patch)
            logger = loggers.LocalObjectLogger(
                body=bodies.Body(newest), settings=self._hub.context.settings)
            await self._apply_patch(newest, patch, logger)

    async def _run(
            self,
            handler: handlers.ReconcilingHandler,
            raw: bodies.RawBody,
            strays: children.Strays = MappingProxyType({}),
            *,
            is_last: bool,
    ) -> bodies.RawBody | None:
        """
        Call the handler, and apply what it returns; after the last one, report the conditions.

        ``strays`` are the children that the watch does not show, because others have changed their
        labels. They are found when the handler has returned their manifests. Then the handler is
        called again, as it must see what it is going to overwrite.
        """
        hub, host, context = self._hub, self.host, self._hub.context
        kinds, manager = hub.get_kinds(handler), hub.get_manager(handler)
        namespace = raw['metadata'].get('namespace')
        state = self._schedule(handler, progression.NEVER)
        if not all(hub.store.is_ready(kind, namespace) for kind in kinds.values()):
            self._wait()
            return raw
        body, patch = bodies.Body(raw), patches.Patch()
        logger = loggers.LocalObjectLogger(body=body, settings=context.settings)
        cause = causes.ReconcilingCause(
            logger=logger, memo=hub.get_memo(host), indices=context.indices,
            resource=host.resource, body=body, patch=patch,
            children=children.OperatorChildren(hub.store, host.uid, namespace, strays))
        filter_error: Exception | None = None
        try:
            if not handler.unfiltered and not filters.matches(handler, cause):
                del self._states[handler.id]
                self._note_problems(handler, conditions.Problems((), is_stalled=False))
                if self._reporter == handler.id:
                    self._reporter = None
                hub.abandon(handler, host.uid, namespace, logger)
                return raw
        except filters.FilterError as e:
            filter_error = e.error
        hub.take_back(handler, host.uid)

        outcome = await execution.execute(
            handler, cause, context=context, state=state, filter_error=filter_error)
        problems: list[str] = []
        newest: bodies.RawBody | None = raw
        if outcome.exception is not None:
            problems.append(outcome.message or repr(outcome.exception))
        elif outcome.result is not None:
            wanted, invalid = desired.prepare(
                outcome.result, parent=body, kinds=kinds, manager=manager)
            problems.extend(str(error) for error in invalid)
            for key in [key for key, item in wanted.items() if not hub.store.is_listed(
                    item.watched, item.key.namespace)]:
                del wanted[key]
                problems.append(f"{key}: the operator does not serve the namespace of this child.")
            if found := await self._find_strays(wanted, problems, strays, namespace=namespace):
                return await self._run(handler, raw, {**strays, **found}, is_last=is_last)
            if any(not item.is_owned for item in wanted.values()):
                newest = await self._ensure_finalizer(raw, logger)
            if newest is None:
                return None
            problems.extend(await self._write(
                handler, wanted, strays, namespace=namespace, manager=manager,
                prune=handler.prune and not problems, logger=logger))
            if problems:
                outcome = execution.judge(
                    desired.ChildrenError(problems), handler, state=state,
                    settings=context.settings, logger=logger)._replace(patch=outcome.patch)
                if outcome.exception is None:  # it is ignored, as the author has declared
                    problems = []
        return await self._finish(
            handler, newest, outcome, problems, state, logger, is_last=is_last)

    async def _finish(
            self,
            handler: handlers.ReconcilingHandler,
            raw: bodies.RawBody | None,
            outcome: progression.Outcome,
            problems: Sequence[str],
            state: progression.HandlerState,
            logger: Any,
            *,
            is_last: bool,
    ) -> bodies.RawBody | None:
        """
        Note the outcome; write the patch of the handler, and the conditions.

        If the API server refuses the patch, the handler has failed, and no others are affected.
        """
        self._note(handler, outcome, state)
        patch = outcome.patch if outcome.patch is not None else patches.Patch()
        if handler.conditions:
            self._reporter, self._is_reported = handler.id, False
        self._note_problems(handler, conditions.Problems(
            tuple(problems), is_stalled=outcome.final and bool(problems)))
        if is_last and not self._is_reported:
            self._report(patch)
        try:
            return await self._apply_patch(raw, patch, logger)
        except (errors.APIError, application.PatchError) as e:
            if not application.is_refusal(e):
                raise
            text = f"its {application.describe_refusal(e)}"
        failed = execution.fail(handler, application.PatchError(text), logger)
        if outcome.patch is None:  # the conditions themselves are refused
            self._note(handler, failed, state)
            return raw
        return await self._finish(
            handler, raw, failed, [*problems, text], state, logger, is_last=is_last)

    def _note_problems(
            self, handler: handlers.ReconcilingHandler, problems: conditions.Problems,
    ) -> None:
        former = self._problems.pop(handler.id, None)
        if problems.messages:
            self._problems[handler.id] = problems
        if self._reporter is not None and (former is not None or problems.messages):
            self._is_reported = False

    def _report(self, patch: patches.Patch) -> None:
        """Set the conditions, which are about all handlers of the object."""
        self._is_reported = True
        if self._reporter is not None:
            conditions.report(
                patch, conditions.combine(self._problems, but=self._reporter),
                resource=self.host.resource)

    async def _find_strays(
            self,
            wanted: dict[desired.Key, desired.Desired],
            problems: list[str],
            strays: children.Strays,
            *,
            namespace: str | None,
    ) -> children.Strays:
        """
        Find those of the desired children that are there, but that neither the watch shows nor the
        former strays. If it is not known of some, they are moved to the problems.
        """
        store, found = self._hub.store, dict[desired.Key, children.Child]()
        unknown = [] if self._is_new else [
            (key, item) for key, item in wanted.items()
            if key not in strays and store.find_owner(key) is None]
        if not unknown:
            return found
        limit = asyncio.Semaphore(MAX_WRITES)

        async def look_for(key: desired.Key, item: desired.Desired) -> None:
            async with limit:
                try:
                    raw = await self._read(item)
                except errors.APIError as e:
                    del wanted[key]
                    problems.append(f"{key}: {e}")
                    return
            if raw is not None and (child := store.recognise(
                    item.watched, raw, owner=self.host.uid, namespace=namespace)) is not None:
                found[key] = child

        await tasks.gather(*(look_for(key, item) for key, item in unknown))
        return found

    def _wait(self) -> None:
        """Run again when all children of some kind are listed."""
        self._is_triggered = True
        self._hub.waiting.add(self)

    def _note(
            self,
            handler: handlers.ReconcilingHandler,
            outcome: progression.Outcome,
            state: progression.HandlerState,
    ) -> None:
        """Note the outcome, and when the handler is called again."""
        now = self._hub.context.clock.now()
        self._states.pop(handler.id, None)  # if it has failed for good, until the next change
        if not outcome.final:
            self._states[handler.id] = state.after(outcome, now=now)
            self._schedule(handler, progression.space(
                self._states[handler.id].due, invoked=now.mono))
        elif outcome.exception is None and handler.interval is not None:
            pause = handler.interval * random.uniform(1 - SPREAD, 1 + SPREAD)
            self._schedule(handler, progression.space(now.mono + pause, invoked=now.mono))

    def _schedule(
            self, handler: handlers.ReconcilingHandler, due: float,
    ) -> progression.HandlerState:
        """Set when the handler is called again; keep its failed attempts."""
        now = self._hub.context.clock.now()
        state = self._states.get(handler.id) or progression.HandlerState.new(now=now)
        self._states[handler.id] = state.begun(now=now)._replace(due=due)
        return self._states[handler.id]

    async def _write(
            self,
            handler: handlers.ReconcilingHandler,
            wanted: Mapping[desired.Key, desired.Desired],
            strays: children.Strays,
            *,
            namespace: str | None,
            manager: str,
            prune: bool,
            logger: Any,
    ) -> list[str]:
        """Carry out the plan; return the errors of the children, in words."""
        label = self._hub.store.register(manager)
        known = {
            key: child for key, child in self._hub.store.of(self.host.uid).items()
            if child.label == label and child.is_of(namespace)}
        known.update({key: child for key, child in strays.items() if child.label == label})
        for key in wanted.keys() & known.keys():
            known[key].expect_return()
        steps = planning.plan(
            wanted, known, prune=prune, get_unrecorded=self._hub.store.get_unrecorded)
        if not steps:
            return []
        problems: list[str] = []
        limit = asyncio.Semaphore(MAX_WRITES)

        async def carry_out(step: planning.Step) -> None:
            async with limit:
                try:
                    match step:
                        case planning.Apply() if self._is_superfluous(step):
                            pass
                        case planning.Apply():
                            self._has_applied = True
                            await self._apply(
                                handler, step, strays, manager=manager, logger=logger)
                        case planning.Delete():
                            with self._hub.store.writing(self.host.uid, step.known.key):
                                await self._delete(step.known, logger, is_pruned=True)
                except errors.NotLeadingError:
                    raise
                except errors.APIError as e:
                    key = step.wanted.key if isinstance(step, planning.Apply) else step.known.key
                    problems.append(f"{key}: {_explain(e, step)}")

        for stage in planning.arrange(steps):
            if len(stage) == 1:
                await carry_out(stage[0])
            else:
                await tasks.gather(*map(carry_out, stage))
        return problems

    def _is_superfluous(self, step: planning.Apply) -> bool:
        """Whether it was learned from the writes before that the child is as it should be."""
        unrecorded = self._hub.store.get_unrecorded(step.wanted.key)
        return bool(unrecorded) and step.known is not None and step.known.is_as(
            step.wanted, unrecorded=unrecorded)

    async def _apply(
            self,
            handler: handlers.ReconcilingHandler,
            step: planning.Apply,
            strays: children.Strays,
            *,
            manager: str,
            logger: Any,
    ) -> None:
        wanted, known = step
        is_orphan = known is None and await self._verify_vacancy(wanted, strays)
        try:
            with self._hub.store.writing(self.host.uid, wanted.key):
                try:
                    applied = await self._send(
                        wanted, manager=manager, force=known is not None, logger=logger,
                        uid=None if known is None else known.uid)
                except errors.APIConflictError:
                    if known is not None or not await self._is_controlled(wanted):
                        raise
                    applied = await self._send(wanted, manager=manager, force=True, logger=logger)
                    logger.info(
                        f"{handler!r} has taken over {wanted.key}, which this object controls, "
                        f"with the fields of other field managers.")
                else:
                    if known is not None and not _has_labels(known, wanted):
                        logger.info(
                            f"{handler!r} has taken over {wanted.key} again, which belongs to this "
                            f"object, though others have changed its labels.")
                    if is_orphan:
                        logger.info(f"{handler!r} has taken over {wanted.key}: the object that it "
                                    f"belonged to is gone.")
                    elif known is None and _has_other_managers(applied, manager):
                        logger.info(
                            f"{handler!r} has adopted {wanted.key}, which existed before, with no "
                            f"other controller and with no other values in the same fields.")
                is_repeated = known is not None and known.has_last(wanted)
                self._hub.store.accept(
                    wanted.watched, applied, repeated=wanted.manifest if is_repeated else None)
        except errors.APIUnprocessableError:
            if not handler.recreate or known is None or not known.is_applied:
                raise
            await applying.verify_creation(
                self._hub.client, resource=wanted.resource, manifest=wanted.manifest,
                logger=logger)
            logger.info(f"Re-creating {wanted.key}, as it cannot be changed in place.")
            await self._delete(known, logger)
            return
        logger.debug(f"{'Applied' if known is None else 'Changed'} {wanted.key}.")

    async def _verify_vacancy(self, wanted: desired.Desired, strays: children.Strays) -> bool:
        """
        Check that the object is nobody else's, where the API server cannot know; return whether it
        was a child of a parent that is gone.

        The API server would let it be taken over from another parent of the same handler, as the
        field manager is the same. A former parent of the same name is gone, or it will be: its
        children are taken over. If there is no owner reference, as over namespaces, the API server
        does not see that there would be two controllers.

        :raises errors.APIConflictError: if it is somebody else's.
        """
        store, uid = self._hub.store, self.host.uid
        owner = store.find_owner(wanted.key)
        child = store.of(uid).get(wanted.key) or strays.get(wanted.key)
        if child is not None:
            if child.is_applied:
                raise errors.APIConflictError(
                    "it belongs to another handler of this object.", status=409)
            return False
        if owner is None and wanted.is_owned:
            return False
        other = await self._find_controller(wanted)
        if other is None:
            if owner is not None and not self._hub.is_gone(owner):
                self._hub.waiting.add(self)
                raise errors.APIConflictError(self._hub.describe_owner(owner), status=409)
        elif not any(_is_same(ref, other) for ref in (
                wanted.manifest['metadata'].get('ownerReferences') or ())):
            raise errors.APIConflictError(
                f"it belongs to {other.get('kind')} {other.get('name')}.", status=409)
        return owner is not None

    async def _is_controlled(self, wanted: desired.Desired) -> bool:
        """Whether the object controls an object that is not known, e.g. for a changed label."""
        controller = await self._find_controller(wanted)
        return controller is not None and controller.get('uid') == self.host.uid

    async def _find_controller(self, wanted: desired.Desired) -> Mapping[str, Any] | None:
        """Find the reference to the controller of an object that is not known, if it has any."""
        raw = await self._read(wanted)
        owners: Any = raw['metadata'].get('ownerReferences') if raw is not None else None
        return next((ref for ref in owners or () if ref.get('controller')), None)

    async def _read(self, wanted: desired.Desired) -> bodies.RawBody | None:
        """Read the object as it is in the cluster, if it is there."""
        async for page in listing.list_objects(
                self._hub.client, settings=listing.select_only(self._hub.client.settings),
                resource=wanted.watched,
                namespace=None if wanted.key.namespace is None else (
                    references.NamespaceName(wanted.key.namespace)),
                field_selector=f'metadata.name={wanted.key.name}'):
            for item in page.items:
                return item
        return None

    async def _send(
            self,
            wanted: desired.Desired,
            *,
            manager: str,
            force: bool,
            logger: Any,
            uid: str | None = None,
    ) -> bodies.RawBody:
        """Apply the manifest; with ``uid``, only to this object and not to a namesake."""
        manifest = wanted.manifest
        if uid is not None:
            manifest = {**manifest, 'metadata': {**manifest['metadata'], 'uid': uid}}
        applied = await self._observe(wanted.resource, manifest, applying.apply(
            self._hub.client, resource=wanted.resource, manifest=manifest,
            manager=manager, force=force, logger=logger), 'apply')
        assert applied is not None
        return applied

    async def _delete(
            self, child: children.Child, logger: Any, *, is_pruned: bool = False,
    ) -> None:
        metadata = {'name': child.key.name, 'namespace': child.key.namespace, 'uid': child.uid}
        await self._observe(child.resource, {'metadata': metadata}, applying.delete(
            self._hub.client, resource=child.resource, metadata=metadata, logger=logger), 'delete')
        child.note_deletion(is_pruned=is_pruned)
        logger.debug(f"Deleted {child.key}.")

    async def _observe(
            self,
            resource: references.Resource,
            raw: Mapping[str, Any],
            work: Coroutine[Any, Any, bodies.RawBody | None],
            content_type: str,
    ) -> bodies.RawBody | None:
        """Do the work, and notify the observer, if there is one."""
        observer = self._hub.context.observer
        if observer is None:
            return await work
        known: Any = raw
        return await observer.write(
            resource, known, work, content_type=content_type, subresource=None)

    async def _apply_patch(
            self, raw: bodies.RawBody | None, patch: patches.Patch, logger: Any,
    ) -> bodies.RawBody | None:
        """Apply the patch of a handler, unless the object is already so."""
        if raw is None or not patch or (not patch.fns and patches.merge(raw, patch) == raw):
            return raw
        sent: list[bodies.RawBody] = []
        if patch.fns:  # they are called once for each attempt: for what is sent
            patch = patches.Patch(patch, fns=[sent.append])
        newest = await application.apply(self._get_target(logger), raw, patch)
        if newest is not None:
            self.host.accept(newest)
            self.has_written = True
            expected: Any = sent[-1] if sent else patches.merge(raw, patch)
            if _has_news(raw, newest, expected):
                self._is_triggered = True  # but not asked: what follows from own writes is limited
                self._count_repetition()
                self.host.wake_up()
        return newest

    async def _ensure_finalizer(
            self, raw: bodies.RawBody, logger: Any,
    ) -> bodies.RawBody | None:
        """Hold the object until its children are deleted that Kubernetes does not delete."""
        if FINALIZER in (raw['metadata'].get('finalizers') or ()):
            return raw
        return await self._apply_patch(raw, patches.Patch(fns=[_add_finalizer]), logger)

    async def _clean_up(
            self, served: tuple[handlers.ReconcilingHandler, ...], raw: bodies.RawBody,
    ) -> None:
        """Delete the children that Kubernetes does not delete, then release the object."""
        if FINALIZER not in (raw['metadata'].get('finalizers') or ()):
            return
        logger = loggers.LocalObjectLogger(
            body=bodies.Body(raw), settings=self._hub.context.settings)
        kinds = dict.fromkeys(
            kind for handler in served for kind in self._hub.get_kinds(handler).values())
        if not all(map(self._hub.is_certain, served)) or not all(
                self._hub.store.is_listed(kind, None) for kind in kinds):
            self._wait()
            for kind in kinds:
                for namespace in self._hub.store.find_forbidden(kind):
                    self._hub.detain(self.host.uid, kind, namespace, logger)
            return
        left = [child for child in self._hub.store.of(self.host.uid).values()
                if not child.is_owned and child.is_applied]
        for child in left:
            if not child.is_deleting:
                await self._delete(child, logger)
        if not left:
            await self._apply_patch(raw, patches.Patch(fns=[_remove_finalizer]), logger)

    def _get_target(self, logger: Any) -> application.Target:
        return application.Target(
            self._hub.client, self.host.resource, logger, self._hub.context.observer)


def _describe(namespace: references.Namespace) -> str:
    return "" if namespace is None else f" in the namespace {namespace!r}"


def _has_news(raw: bodies.RawBody, newest: bodies.RawBody, expected: bodies.RawBody) -> bool:
    """
    Whether the response to an own patch has changes by others, which the watch shows no more.

    ``expected`` is what the patch makes of the object, or of a newer state after a conflict. The
    values of the changed fields do not count: the API server can have normalised them.
    """
    if bodies.parse_version(expected) != bodies.parse_version(raw):
        return True
    effect: dict[str, Any] = {}
    for item in diffs.diff(raw, expected):
        dicts.ensure(effect, item.field, item.new)
    before, after = patches.merge(raw, effect), patches.merge(newest, effect)
    for state in (before, after):
        state['metadata'] = {
            key: val for key, val in state['metadata'].items() if key not in VERSIONS}
    return before != after


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two references are for the same object, or for one that was created again."""
    return _identify(one) == _identify(other)


def _identify(ref: Mapping[str, Any]) -> tuple[object, ...]:
    return str(ref.get('apiVersion')).rpartition('/')[0], ref.get('kind'), ref.get('name')


def _has_labels(known: children.Child, wanted: desired.Desired) -> bool:
    """Whether the labels say whose child it is."""
    labels, marks = known.body.metadata.labels, wanted.manifest['metadata']['labels']
    return all(labels.get(name) == marks[name] for name in (
        desired.OWNER_LABEL, desired.HANDLER_LABEL))


def _has_other_managers(raw: bodies.RawBody, manager: str) -> bool:
    """Whether others have set fields of the object, so that it was not created by this manager."""
    entries: Any = raw['metadata'].get('managedFields') or ()
    return any(entry.get('manager') != manager for entry in entries)


def _add_finalizer(body: bodies.RawBody) -> None:
    finalizers = body['metadata'].setdefault('finalizers', [])
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)


def _remove_finalizer(body: bodies.RawBody) -> None:
    finalizers = body['metadata'].get('finalizers') or []
    body['metadata']['finalizers'] = [name for name in finalizers if name != FINALIZER]


def _explain(e: errors.APIError, step: planning.Step) -> str:
    text = str(e)
    is_foreign = isinstance(e, errors.APIConflictError) or (
        isinstance(e, errors.APIUnprocessableError) and 'Only one reference can have Con' in text)
    if isinstance(step, planning.Apply) and step.known is None and is_foreign:
        return (f"an object of this name is there, and this handler has not made it for this one, "
                f"so it is left alone. Rename the child, or delete the object: {text}")
    if isinstance(e, errors.APIUnprocessableError) and 'immutable' in text:
        return f"{text} To delete and create it again in such cases, set recreate=True."
    return text
