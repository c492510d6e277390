"""
Explanations: why handlers are called for an object or not, and what happens to the object next.

All functions are pure: they only read the object. They decide with the same functions as
the operator does, so an explanation never differs from what the operator does.
"""
import dataclasses
import datetime
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration, conventions, progress
from kopf._cogs.structs import bodies, concealing, dicts, diffs, ids, memos, patches, references
from kopf._core.actions import cycles, decisions, progression, recording
from kopf._core.engines import indexing
from kopf._core.engines.reconciling import children, hub
from kopf._core.intents import causes, filters, handlers, registries
from kopf._kits import mismatches

LATER = "after this handling cycle, for the later changes"
FOREIGN_FINALIZER = "of another controller, which has to remove it"

UNSURE_FINALIZER = (
    "of another controller, which has to remove it; or of this operator, if a startup handler sets "
    "settings.persistence.finalizer (use --startup to know)")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether Kopf calls a handler for the object in its present state, and why."""

    decorator: str
    """The name of the decorator, e.g. ``create`` or ``timer``."""
    id: str
    is_called: bool
    because: str


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a handler in the unfinished handling cycle of the object."""

    id: str
    """The id of the handler; or the name of the annotation, if no handler is known for it."""
    attempts: int
    because: str


@dataclasses.dataclass(frozen=True)
class Change:
    """A difference from the last-handled state; ``operation`` is add, change, or remove."""

    operation: str
    field: str
    old: Any
    new: Any

    def describe(self) -> str:
        """Describe in a line of text."""
        match self.operation:
            case 'add':
                return f"{self.field} is added: {self.new!r}"
            case 'remove':
                return f"{self.field} is removed: it was {self.old!r}"
            case _:
                return f"{self.field} has changed: {self.old!r} -> {self.new!r}"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What Kopf finds in an object, and what it does about that; see `kopf.testing.explain`."""

    kind: str
    namespace: str | None
    name: str
    uid: str | None
    version: str | None
    cause: str
    """What has happened: ``create``, ``update``, ``delete``; ``noop`` if nothing has changed."""
    changes: list[Change]
    """The changes since the last-handled state; empty for creations."""
    later: list[Change]
    """
    The changes for the next handling cycle: some handlers of the present cycle had finished before
    these changes were made.
    """
    progress: list[Progress]
    finalizers: dict[str, str]
    """The finalizers of the object, each with who needs it."""
    handlers: list[Verdict]
    next: str
    """What the operator does next."""
    problems: list[str]
    """What prevents the handling of the object, or parts of this explanation."""

    def as_dict(self) -> dict[str, Any]:
        """Convert to a dict that can be encoded as JSON."""
        result: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return result

    def describe(self) -> Iterator[str]:
        """Describe in lines of text."""
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        yield f"{self.kind} {where}, version {self.version}, uid {self.uid}"
        for problem in self.problems:
            yield f"Problem: {problem}"
        yield ''
        yield f"Cause: {self.cause}"
        for change in self.changes:
            yield f"  {change.describe()}"
        if self.later:
            yield "Later changes, for the next handling cycle:"
        for change in self.later:
            yield f"  {change.describe()}"
        if self.progress:
            yield "Progress:"
        for item in self.progress:
            yield f"  {item.id}: {item.because}"
        if self.finalizers:
            yield "Finalizers:"
        for finalizer, text in self.finalizers.items():
            yield f"  {finalizer}: {text}"
        if self.handlers:
            yield "Handlers:"
        for verdict in self.handlers:
            sign = 'yes' if verdict.is_called else 'no '
            yield f"  {sign}  {verdict.decorator} {verdict.id}: {verdict.because}"
        yield f"Next: {self.next}"


def explain(
        raw: bodies.RawBody,
        *,
        resource: references.Resource,
        resources: Iterable[references.Resource] = (),
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        now: clocks.Moment,
        is_configured: bool = True,
) -> Explanation:
    """
    Explain an object of a resource.

    ``resources`` are all resources of the cluster, among which the names of resources can be
    ambiguous. ``registry`` has the handlers of the operator. ``is_configured`` is whether the
    startup handlers have been called, which can change the settings.
    """
    binding = registries.resolve(registry, {*resources, resource})
    foreign = FOREIGN_FINALIZER if is_configured or not registry.get_activity_handlers(
        causes.Activity.STARTUP) else UNSURE_FINALIZER
    return _Explainer(raw, resource, binding, registry, settings, now, foreign).explain()


class _Explainer:
    """One object with all that is needed to explain it."""

    def __init__(
            self,
            raw: bodies.RawBody,
            resource: references.Resource,
            binding: registries.Binding,
            registry: registries.OperatorRegistry,
            settings: configuration.OperatorSettings,
            now: clocks.Moment,
            foreign_finalizer: str,
    ) -> None:
        super().__init__()
        self._foreign_finalizer = foreign_finalizer
        self._raw = raw
        self._body = bodies.Body(raw)
        self._resource = resource
        self._registry = registry
        self._settings = settings
        self._now = now
        self._binding = binding
        self._served = binding.handlers.get(resource, registries.ResourceHandlers())
        self._is_ignored = not self._served.are_watched and not registry.is_empty
        """Whether the operator, which has handlers, watches no objects of this resource."""
        indexers = indexing.OperatorIndexers()
        indexers.ensure(registry._indexing)
        self._common: dict[str, Any] = {
            'logger': logging.getLogger(__name__), 'memo': memos.Memo(), 'indices': indexers,
            'resource': resource, 'body': self._body}
        self._spawned = [
            handler for handler in self._served.spawning
            if mismatches.find(handler, self._make_cause(handler)) is None]

    def explain(self) -> Explanation:
        meta = self._raw['metadata']
        problems: list[str] = []
        try:
            view = decisions.look(
                self._raw, settings=self._settings, extra_fields=self._served.extra_fields)
            cycle = recording.restore(
                self._served.changing, body=self._body, settings=self._settings, now=self._now)
        except ValueError as e:
            problems.append(str(e))
            changing = UNREADABLE
        else:
            changing = self._explain_changing(view, cycle)
        return Explanation(
            kind=str(self._raw.get('kind') or self._resource.kind),
            namespace=meta.get('namespace'), name=meta['name'], uid=meta.get('uid'),
            version=meta.get('resourceVersion'), cause=changing.cause, changes=changing.changes,
            later=changing.later, progress=changing.progress, problems=problems, next=changing.next,
            finalizers=dict(self._explain_finalizers([*self._spawned, *changing.needing])),
            handlers=[*changing.verdicts, *self._judge_others()])

    # Handlers of changes.

    def _explain_changing(
            self, view: decisions.View, cycle: cycles.Cycle | None,
    ) -> '_Changing':
        now = self._look_ahead(view, cycle, initial=False)
        later = self._look_beyond(view, now)
        return _Changing(
            cause=now.change.reason.value,
            changes=self._list_changes(now.change.diff) if view.old is not None else [],
            later=self._list_changes(later.change.diff) if later is not None else [],
            progress=list(self._find_progress(cycle)),
            verdicts=list(self._judge_changing(
                now, self._look_ahead(view, cycle, initial=True), later)),
            next=self._describe_step(now.step),
            needing=[
                handler for handler in self._served.changing
                if handler.requires_finalizer and filters.is_in_scope(handler, now.change)])

    def _list_changes(self, diff: diffs.Diff) -> list[Change]:
        def show(value: Any, field: dicts.FieldPath) -> Any:
            return concealing.conceal_value(value, field, self._resource)

        return [
            Change(item.operation.value, '.'.join(item.field),
                   show(item.old, item.field), show(item.new, item.field))
            for item in sorted(diff, key=lambda item: item.field)]

    def _look_ahead(
            self, view: decisions.View, cycle: cycles.Cycle | None, *, initial: bool,
    ) -> '_Outlook':
        """Decide as the operator does: now, or, if ``initial``, when the operator starts."""
        reason, diff = decisions.detect(view, initial=initial)
        change = causes.ChangingCause(
            **self._common, patch=patches.Patch(), reason=reason, initial=initial,
            diff=diff, old=view.old, new=view.essence)
        selection = filters.select(self._served.changing, change)
        step, following = decisions.decide(decisions.Situation(
            view=view, reason=reason, selection=selection, cycle=cycle, recall=self._recall,
            now=self._now, accompanied=bool(self._spawned) and not view.deleting,
            is_status_essential=self._served.is_status_essential))
        return _Outlook(change, selection, step, following)

    def _look_beyond(self, view: decisions.View, now: '_Outlook') -> '_Outlook | None':
        """
        Decide as the operator does when the present cycle has ended, if nothing else changes.

        The result is None if the handlers of the cycle have seen, or will see, the present state.
        """
        if now.cycle is None or now.cycle.base is None or now.cycle.reason not in cycles.CHANGES:
            return None
        conclusion = cycles.Conclusion(now.cycle.base, now.cycle.divergent)
        later = self._look_ahead(*_conclude(view, conclusion), initial=False)
        if isinstance(later.step, decisions.Close):  # only to prepare the next cycle
            later = self._look_ahead(*_conclude(view, later.step.conclusion), initial=False)
        return later if later.change.reason == causes.Reason.UPDATE else None

    def _judge_changing(
            self, now: '_Outlook', starting: '_Outlook', later: '_Outlook | None',
    ) -> Iterator[Verdict]:
        for handler in self._served.changing:
            name = handlers.name_decorator(handler)
            outlook = starting if handler.initial else now
            mismatch = mismatches.find(handler, outlook.change)
            is_called_later = later is not None and handler in later.selection.handlers
            if mismatch is not None and is_called_later:
                yield Verdict(name, handler.id, True, LATER)
            elif mismatch is not None:
                yield Verdict(name, handler.id, False, mismatch)
            elif handler not in outlook.selection.handlers:
                yield Verdict(name, handler.id, False, (
                    "another decorator of the same function already matches"))
            elif isinstance(outlook.step, decisions.Nothing):
                yield Verdict(name, handler.id, False, (
                    f"it matches, but nothing is done: {outlook.step.because}"))
            elif handler.initial:
                yield Verdict(name, handler.id, True, "once, when the operator starts")
            elif outlook.cycle is not None and handler.id in outlook.cycle.states:
                state = outlook.cycle.states[handler.id]
                because = self._describe_state(state)
                if state.finished and is_called_later:
                    yield Verdict(name, handler.id, True, f"{because}; it is called again {LATER}")
                else:
                    yield Verdict(name, handler.id, not state.finished, because)
            else:
                yield Verdict(name, handler.id, True, "it matches, and is called after that patch")

    def _describe_state(self, state: progression.HandlerState) -> str:
        error = f": {state.message}" if state.message else ''
        if state.success:
            return "it has already succeeded for this change"
        if state.failure:
            return f"it has failed permanently for this change{error}"
        if state.due > self._now.mono + clocks.PRECISION:
            left = state.due - self._now.mono
            until = (state.delayed or self._now.wall).astimezone(datetime.UTC)
            return (f"it waits until {until:%Y-%m-%d %H:%M:%S} UTC (for {left:.0f} seconds) "
                    f"before the attempt {state.retries + 1}{error}")
        if state.retries:
            return f"the attempt {state.retries + 1} is due{error}"
        return "it matches, and is due"

    def _recall(self, handler_id: ids.HandlerId) -> progression.HandlerState | None:
        return recording.fetch_state(
            handler_id, body=self._body, settings=self._settings, now=self._now)

    def _find_progress(self, cycle: cycles.Cycle | None) -> Iterator[Progress]:
        """Find the recorded progress: of the known handlers, and what others have recorded."""
        states: dict[str, progression.HandlerState] = {}
        queue: list[ids.HandlerId] = [] if cycle is None else [*cycle.states]
        while queue:
            handler_id = queue.pop(0)
            state = self._recall(handler_id)
            if state is not None and handler_id not in states:
                states[handler_id] = state
                queue.extend(sorted(state.subrefs))
        storages = list(progress.iter_annotating(self._settings.persistence.progress_storage))
        known = {
            key for handler_id in states for storage in storages
            for key in storage.make_keys(ids.HandlerId(handler_id), body=self._body)}
        states.update({
            key: state for key, state in find_records(self._raw, now=self._now).items()
            if key not in known})
        for id_, state in states.items():
            yield Progress(id_, state.retries, self._describe_state(state))

    # All other handlers.

    def _judge_others(self) -> Iterator[Verdict]:
        is_deleting = decisions.is_deleting(self._raw)
        for handler in [*self._served.spawning, *self._served.reconciling,
                        *self._served.watching, *self._served.indexing]:
            name = handlers.name_decorator(handler)
            mismatch = mismatches.find(handler, self._make_cause(handler))
            match handler:
                case handlers.SpawningHandler() if is_deleting:
                    mismatch = "the object is being deleted"
                    because = ''
                case handlers.TimerHandler():
                    because = "it runs" if handler.interval is None else (
                        f"it runs, every {handler.interval} seconds")
                case handlers.DaemonHandler():
                    because = "it runs, unless it has ended on its own"
                case handlers.ReconcilingHandler() if is_deleting:
                    mismatch = "the object is being deleted"
                    because = ''
                case handlers.ReconcilingHandler():
                    because = "after each change of the object or of its owned resources"
                case handlers.WatchingHandler():
                    because = "for each event of the object"
                case handlers.IndexingHandler(sharded=True):
                    because = ("the object is in the index; if the operator is sharded, only in "
                               "the replica that holds its shard")
                case _:
                    because = "the object is in the index"
            yield Verdict(name, handler.id, mismatch is None, mismatch or because)
        for webhook in self._served.webhooks:
            yield Verdict(
                handlers.name_decorator(webhook), webhook.id, False,
                "it is for requests to the API server, not for objects at rest")
        served = {id(item) for item in (
            *self._served.changing, *self._served.spawning, *self._served.reconciling,
            *self._served.watching, *self._served.indexing, *self._served.webhooks)}
        for other in self._registry.iter_resource_handlers():
            if id(other) not in served:
                yield Verdict(
                    handlers.name_decorator(other), other.id, False, self._explain_absence(other))

    def _explain_absence(self, handler: handlers.ResourceHandler) -> str:
        """Explain why a handler is not served for this resource."""
        selector = handler.selector
        if selector in self._binding.failing:
            return f"the selector of its resources fails: {self._binding.failing[selector]!r}"
        if selector is None or not selector.check(self._resource):
            return f"it is for {selector}, not for {self._resource}"
        if selector in self._binding.ambiguous:
            names = ', '.join(sorted(map(str, self._binding.ambiguous[selector])))
            return f"{selector} is ambiguous in this cluster, add the API group: {names}"
        if self._resource in self._binding.unwatchable:
            return f"{self._resource} cannot be listed and watched"
        if self._resource in self._binding.unpatchable:
            return f"{self._resource} cannot be patched"
        return f"{self._resource} is not the preferred version of this resource"

    def _make_cause(self, handler: handlers.ResourceHandler) -> causes.ResourceCause:
        common = {**self._common, 'patch': patches.Patch()}
        meta = self._raw['metadata']
        match handler:
            case handlers.SpawningHandler():
                return causes.SpawningCause(
                    **common, identity=(meta.get('uid'), meta.get('name'), meta.get('namespace')))
            case handlers.ReconcilingHandler():
                return causes.ReconcilingCause(**common, children=children.OperatorChildren(
                    children.ChildStore(), str(meta.get('uid')), meta.get('namespace')))
            case handlers.WatchingHandler():
                event: bodies.RawEvent = {'type': 'MODIFIED', 'object': self._raw}
                return causes.WatchingCause(**common, type='MODIFIED', event=event)
            case _:
                return causes.IndexingCause(**common)

    # The rest.

    def _explain_finalizers(
            self, needed_by: Collection[handlers.ResourceHandler],
    ) -> Iterator[tuple[str, str]]:
        own = self._settings.persistence.finalizer
        names = ', '.join(
            f"{handlers.name_decorator(handler)} {handler.id}" for handler in needed_by)
        for index, finalizer in enumerate(self._raw['metadata'].get('finalizers') or ()):
            if finalizer not in (own, hub.FINALIZER):
                yield finalizer, self._foreign_finalizer
            elif self._registry.is_empty:
                yield finalizer, "of an operator made with Kopf"
            elif finalizer == own and self._is_ignored:
                yield finalizer, self._describe_leftover(finalizer, index, "watch")
            elif finalizer == own:
                yield finalizer, f"of this operator, needed by: {names}" if names else (
                    "of this operator, but no handler needs it: the operator removes it")
            elif not self._served.reconciling:
                yield finalizer, self._describe_leftover(finalizer, index, "reconcile")
            else:
                yield finalizer, "of this operator, which deletes the owned resources first"

    def _describe_leftover(self, finalizer: str, index: int, missing: str) -> str:
        meta, path = self._raw['metadata'], f'/metadata/finalizers/{index}'
        where = f" -n {meta['namespace']}" if meta.get('namespace') else ''
        patch = json.dumps([
            {'op': 'test', 'path': path, 'value': finalizer}, {'op': 'remove', 'path': path}])
        # Kubectl takes a name with a version only with a group, too.
        kind = str(self._resource) if self._resource.group else self._resource.plural
        return (f"of an operator made with Kopf; but this operator does not {missing} "
                f"{self._resource}, so it does not remove it. If no other operator does: "
                f"kubectl patch {kind} {meta['name']}{where} --type=json -p '{patch}'")

    def _describe_step(self, step: decisions.Step) -> str:
        if self._registry.is_empty:
            return "unknown without the handlers: pass the file with the handlers, too"
        if self._is_ignored:
            return f"nothing. This operator does not watch {self._resource}."
        match step:
            case decisions.Call(due=due):
                names = ', '.join(handler.id for handler in due)
                return f"the operator calls {names}"
            case decisions.Sleep(until=until):
                left = until - self._now.mono
                moment = self._now.wall + datetime.timedelta(seconds=left)
                return (f"the operator waits until {moment:%Y-%m-%d %H:%M:%S} UTC, "
                        f"for {left:.0f} seconds")
            case decisions.Close():
                return f"the operator ends the handling, and stores the state: {step.because}"
            case decisions.SwitchFinalizer() | decisions.Release():
                return f"the operator patches the object. {step.because}"
            case decisions.Save():
                return f"the operator patches the object: {step.because}"
        return f"nothing. {step.because[:1].upper()}{step.because[1:]}"


class _Changing(NamedTuple):
    """What the handlers of changes do with the object."""
    cause: str
    changes: list[Change]
    later: list[Change]
    progress: list[Progress]
    verdicts: list[Verdict]
    next: str
    needing: Collection[handlers.ResourceHandler]
    """The handlers that need the finalizer."""


UNREADABLE = _Changing('', [], [], [], [], (
    "the operator logs this error, and handles nothing before it is mended"), ())


class _Outlook(NamedTuple):
    """A decision about the object, with what has led to it."""
    change: causes.ChangingCause
    selection: filters.Selection
    step: decisions.Step
    cycle: cycles.Cycle | None


def _conclude(
        view: decisions.View, conclusion: cycles.Conclusion,
) -> tuple[decisions.View, cycles.Cycle | None]:
    """Make the situation after a cycle that has ended with this conclusion."""
    cycle = None if conclusion.divergent is None else cycles.Cycle(
        causes.Reason.NOOP, divergent=conclusion.divergent)
    return view._replace(old=conclusion.base), cycle


def find_records(
        raw: bodies.RawBody, *, now: clocks.Moment,
) -> Mapping[str, progression.HandlerState]:
    """Find all annotations with the progress of handlers, of any operator made with Kopf."""
    annotations = raw['metadata'].get('annotations') or {}
    prefixes = conventions.StorageKeyMarkingConvention.detect_prefixes(annotations)
    found: dict[str, progression.HandlerState] = {}
    for key, value in annotations.items():
        if conventions.is_own_annotation(key, prefixes):
            try:
                record = json.loads(value)
                if isinstance(record, dict) and 'started' in record:
                    found[key] = progression.HandlerState.from_record(
                        cast(progress.ProgressRecord, record), now=now)
            except (TypeError, ValueError, RecursionError):
                continue
    return found
