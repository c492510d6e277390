"""
Explanations: why handlers are called for an object or not, and what happens to the object next.

All functions are pure: they only read the object. They decide with the same functions as
the operator does, so an explanation never differs from what the operator does.
"""
import contextlib
import dataclasses
import datetime
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration, conventions, progress
from kopf._cogs.structs import bodies, concealing, diffs, ids, memos, patches, references, texts
from kopf._core.actions import cycles, decisions, execution, finalizers, progression, recording
from kopf._core.engines import indexing
from kopf._core.engines.reconciling import children, hub
from kopf._core.intents import causes, filters, handlers, pauses, registries
from kopf._kits import decorators, mismatches

LATER = "after this handling cycle, for the later changes"
FOREIGN_FINALIZER = "of another controller, which has to remove it"

UNREADABLE = "the operator logs this error, and handles nothing before it is mended"

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
    """The finalizers of the object, each with what needs it."""
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
        sections = {
            "Later changes, for the next handling cycle:": [
                change.describe() for change in self.later],
            "Progress:": [f"{item.id}: {item.because}" for item in self.progress],
            "Finalizers:": [f"{name}: {text}" for name, text in self.finalizers.items()],
            "Handlers:": [
                f"{'yes' if item.is_called else 'no '}  {item.decorator} {item.id}: {item.because}"
                for item in self.handlers],
        }
        for title, lines in sections.items():
            if lines:
                yield title
            yield from (texts.make_entry(f"  {line}") for line in lines)
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

    ``resources`` are all resources of the cluster, as their names can be ambiguous. ``registry``
    has the handlers of the operator. ``is_configured`` is whether the startup handlers, which can
    change the settings, have been called.
    """
    binding = registries.resolve(registry, {*resources, resource})
    foreign = FOREIGN_FINALIZER if is_configured or not registry.get_activity_handlers(
        causes.Activity.STARTUP) else UNSURE_FINALIZER
    return _Explainer(raw, resource, binding, registry, settings, now, foreign).explain()


@dataclasses.dataclass
class _Explainer:
    """One object with all that is needed to explain it."""

    _raw: bodies.RawBody
    _resource: references.Resource
    _binding: registries.Binding
    _registry: registries.OperatorRegistry
    _settings: configuration.OperatorSettings
    _now: clocks.Moment
    _foreign_finalizer: str

    def __post_init__(self) -> None:
        self._body = bodies.Body(self._raw)
        self._served = self._binding.handlers.get(self._resource, registries.ResourceHandlers())
        self._is_ignored = not self._served.are_watched and not self._registry.is_empty
        """Whether the operator, which has handlers, watches no objects of this resource."""
        indexers = indexing.OperatorIndexers()
        indexers.ensure(self._registry._indexing)
        self._common: dict[str, Any] = {
            'logger': logging.getLogger(__name__), 'memo': memos.Memo(), 'indices': indexers,
            'resource': self._resource, 'body': self._body}
        meta = self._raw['metadata']
        owned = children.OperatorChildren(
            children.ChildStore(), str(meta.get('uid')), meta.get('namespace'))
        self._mismatches = {
            handler: mismatches.find(handler, make_cause(
                handler, self._raw, {**self._common, 'patch': patches.Patch()}, owned=owned))
            for handler in [*self._served.spawning, *self._served.reconciling,
                            *self._served.watching, *self._served.indexing]}
        """The handlers that do not handle changes, and why they do not match; None if they do."""
        pause = pauses.find(self._raw, self._settings.pausing.annotation)
        self._pause = None if pause is None or pause.is_over(self._now.wall) else pause
        self._spawned = [
            handler for handler in self._served.spawning if self._mismatches[handler] is None]

    def explain(self) -> Explanation:
        meta = self._raw['metadata']
        found = Explanation(
            kind=str(self._raw.get('kind') or self._resource.kind),
            namespace=meta.get('namespace'), name=meta['name'], uid=meta.get('uid'),
            version=meta.get('resourceVersion'), cause='', changes=[], later=[], progress=[],
            finalizers=dict(self._explain_finalizers(self._spawned)),
            handlers=[*self._judge_others()], next=UNREADABLE, problems=[])
        try:
            view = decisions.look(
                self._raw, settings=self._settings, extra_fields=self._served.extra_fields,
                converter=self._served.converter)
            cycle = recording.restore(
                self._served.changing, body=self._body, settings=self._settings, now=self._now)
        except ValueError as e:
            return dataclasses.replace(found, problems=[str(e)])
        now = self._look_ahead(view, cycle, initial=False)
        starting = self._look_ahead(view, cycle, initial=True)
        later = self._look_beyond(view, now)
        needing = [
            handler for handler in self._served.changing
            if handler.requires_finalizer and filters.is_in_scope(handler, now.change)]
        return dataclasses.replace(
            found,
            cause=now.change.reason.value,
            changes=self._list_changes(now.change.diff) if view.old is not None else [],
            later=self._list_changes(later.change.diff) if later is not None else [],
            progress=[*self._find_progress(cycle)],
            finalizers=dict(self._explain_finalizers([*self._spawned, *needing])),
            handlers=[
                *(_make_verdict(handler, *self._judge_changing(
                    handler, starting if handler.initial else now, later))
                  for handler in self._served.changing),
                *found.handlers],
            next=self._describe_step(now.step))

    # Handlers of changes.

    def _list_changes(self, diff: diffs.Diff) -> list[Change]:
        shown: Any = concealing.conceal(diff, self._resource)
        return [
            Change(item.operation.value, '.'.join(item.field), item.old, item.new)
            for item in sorted(shown, key=lambda item: item.field)]

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
            must_keep=self._served.is_kept_elsewhere,
            is_status_essential=self._served.is_status_essential,
            misfit=execution.find_misfit(selection.handlers, lambda: change),
            pause=self._pause))
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
            self, handler: handlers.ChangingHandler, outlook: '_Outlook', later: '_Outlook | None',
    ) -> tuple[bool, str]:
        """Tell whether the handler is called, and why."""
        mismatch = mismatches.find(handler, outlook.change)
        is_called_later = later is not None and handler in later.selection.handlers
        if mismatch is not None:
            return (True, LATER) if is_called_later else (False, mismatch)
        if handler not in outlook.selection.handlers:
            return False, "another decorator of the same function already matches"
        if isinstance(outlook.step, decisions.Nothing):
            return False, f"it matches, but nothing is done: {outlook.step.because}"
        if handler.initial:
            return True, "once, when the operator starts"
        if outlook.cycle is None or handler.id not in outlook.cycle.states:
            return True, "it matches, and is called after that patch"
        state = outlook.cycle.states[handler.id]
        because = self._describe_state(state)
        if state.finished and is_called_later:
            return True, f"{because}; it is called again {LATER}"
        return not state.finished, because

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
                    f"before the attempt {state.attempts + 1}{error}")
        if state.attempts:
            return f"the attempt {state.attempts + 1} is due{error}"
        return "it matches, and is due"

    def _recall(self, handler_id: ids.HandlerId) -> progression.HandlerState | None:
        return recording.fetch_state(
            handler_id, body=self._body, settings=self._settings, now=self._now)

    def _find_progress(self, cycle: cycles.Cycle | None) -> Iterator[Progress]:
        """Find the recorded progress: of the known handlers, and what others have recorded."""
        records = recording.fetch_all(
            [] if cycle is None else cycle.states, body=self._body, settings=self._settings)
        states: dict[str, progression.HandlerState] = {
            handler_id: state for handler_id in records
            if (state := self._recall(handler_id)) is not None}
        storages = list(progress.iter_annotating(self._settings.persistence.progress_storage))
        known = {
            key for handler_id in states for storage in storages
            for key in storage.make_keys(handler_id, body=self._body)}
        annotations = conventions.get_annotations(self._raw)
        prefixes = conventions.StorageKeyMarkingConvention.detect_prefixes(annotations)
        for key, value in annotations.items():
            is_unknown = key not in known and conventions.is_own_annotation(key, prefixes)
            if is_unknown and (record := recording.parse_record(value)) is not None:
                with contextlib.suppress(ValueError):
                    states[key] = progression.HandlerState.from_record(record, now=self._now)
        for id_, state in states.items():
            yield Progress(id_, state.attempts, self._describe_state(state))

    # All other handlers.

    def _judge_others(self) -> Iterator[Verdict]:
        for handler, mismatch in self._mismatches.items():
            if isinstance(handler, handlers.ExternalHandler):
                yield _make_verdict(
                    handler, mismatch is None, mismatch or self._describe_external(handler))
                continue
            if isinstance(handler, handlers.SpawningHandler | handlers.ReconcilingHandler):
                if finalizers.is_deleting(self._raw):
                    mismatch = "the object is being deleted"
                elif self._pause is not None:
                    mismatch = mismatch or "the object is paused"
            if isinstance(handler, handlers.ReconcilingHandler) and not mismatch:
                mismatch = handler.describe_wait(self._raw)
            yield _make_verdict(handler, mismatch is None, mismatch or _describe_occasion(handler))
        for webhook in self._served.webhooks:
            yield _make_verdict(
                webhook, False, "it is for requests to the API server, not for objects at rest")
        served = {*self._mismatches, *self._served.changing, *self._served.webhooks}
        for other in self._registry.iter_resource_handlers():
            if other not in served:
                yield _make_verdict(other, False, self._explain_absence(other))

    def _describe_external(self, handler: handlers.ExternalHandler) -> str:
        """Describe the thing that the object has in an external system."""
        from kopf._kits.external import records  # only if there is any
        try:
            record = (records.read(self._raw, handler.id)
                      or records.recover(self._raw, handler.id) or records.Record())
        except ValueError as e:
            return str(e)
        paused = "; the object is paused, so it is only observed" if self._pause else ''
        return record.describe() + paused

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

    # The rest.

    def _explain_finalizers(
            self, needed_by: Collection[handlers.ResourceHandler],
    ) -> Iterator[tuple[str, str]]:
        own = self._settings.persistence.finalizer
        names = ', '.join(
            f"{decorators.name_decorator(handler)} {handler.id}" for handler in needed_by)
        for index, finalizer in enumerate(self._raw['metadata'].get('finalizers') or ()):
            if finalizer not in (own, hub.FINALIZER, hub.EXTERNAL_FINALIZER):
                yield finalizer, self._foreign_finalizer
            elif self._registry.is_empty:
                yield finalizer, (
                    "of an operator made with Kopf, which removes it when its handlers are done. "
                    "If there is no such operator any more, kopf release removes it")
            elif finalizer == own and self._is_ignored:
                yield finalizer, self._describe_leftover(finalizer, index, "watch")
            elif finalizer == own:
                yield finalizer, f"of this operator, needed by: {names}" if names else (
                    "of this operator, left to its handlers of another version"
                    if self._served.is_kept_elsewhere else
                    "of this operator, but no handler needs it: the operator removes it")
            elif finalizer == hub.EXTERNAL_FINALIZER:
                yield finalizer, self._explain_external_finalizer(finalizer, index)
            elif not self._served.reconciling:
                yield finalizer, self._describe_leftover(finalizer, index, "reconcile")
            else:
                yield finalizer, "of this operator, which deletes the owned resources first"

    def _explain_external_finalizer(self, finalizer: str, index: int) -> str:
        from kopf._kits.external import records  # only if there is any
        ids_ = [handler.id for handler in self._served.reconciling
                if isinstance(handler, handlers.ExternalHandler)]
        if not ids_:
            return self._describe_leftover(finalizer, index, "have externals for")
        strange = records.list_strange(self._raw, ids_)
        if not strange:
            return "of this operator, which deletes what is in external systems first"
        return (f"of operators made with Kopf; but this operator has no externals for the records "
                f"{', '.join(strange)}. If no other operator has: delete what they name in the "
                f"systems, and then: {self._make_command('annotate')} "
                f"{' '.join(f'{name}-' for name in strange)}")

    def _describe_leftover(self, finalizer: str, index: int, missing: str) -> str:
        path = f'/metadata/finalizers/{index}'
        patch = json.dumps([
            {'op': 'test', 'path': path, 'value': finalizer}, {'op': 'remove', 'path': path}])
        return (f"of an operator made with Kopf; but this operator does not {missing} "
                f"{self._resource}, so it does not remove it. If no other operator does: "
                f"{self._make_command('patch')} --type=json -p '{patch}'")

    def _make_command(self, verb: str) -> str:
        """Make the beginning of a command that changes the object."""
        meta = self._raw['metadata']
        where = f" -n {meta['namespace']}" if meta.get('namespace') else ''
        # Kubectl takes a version in the name of a resource only together with a group.
        kind = str(self._resource) if self._resource.group else self._resource.plural
        return f"kubectl {verb} {kind} {meta['name']}{where}"

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
                names = ', '.join(handler.id for handler in self._spawned)
                waits = f"waits for the end of {names}, and " if names and (
                    finalizers.is_deleting(self._raw)) else ''
                return f"the operator {waits}patches the object. {step.because}"
            case decisions.Save():
                return f"the operator patches the object: {step.because}"
        names = ', '.join(
            handler.id for handler in self._served.reconciling if not self._mismatches[handler])
        if names and self._pause is None and not isinstance(step, decisions.Hold):
            if not finalizers.is_deleting(self._raw):
                return (f"no handlers of changes. The operator calls {names} when something "
                        f"changes, and again after an error")
            if finalizers.is_present(self._raw, hub.FINALIZER):
                return "no handlers of changes. The operator deletes the owned resources"
        return f"nothing. {step.because[:1].upper()}{step.because[1:]}"


class _Outlook(NamedTuple):
    """A decision about the object, with what has led to it."""
    change: causes.ChangingCause
    selection: filters.Selection
    step: decisions.Step
    cycle: cycles.Cycle | None


def make_cause(
        handler: handlers.ResourceHandler, raw: bodies.RawBody, common: Mapping[str, Any], *,
        owned: children.OperatorChildren, type: Any = 'MODIFIED',
) -> causes.ResourceCause:
    """Make the cause of a handler that handles no changes, with what all causes have in common."""
    meta = raw['metadata']
    match handler:
        case handlers.SpawningHandler():
            return causes.SpawningCause(
                **common, identity=(meta.get('uid'), meta.get('name'), meta.get('namespace')))
        case handlers.ReconcilingHandler():
            return causes.ReconcilingCause(**common, children=owned)
        case handlers.WatchingHandler():
            return causes.WatchingCause(**common, type=type, event={'type': type, 'object': raw})
    return causes.IndexingCause(**common)


def _make_verdict(handler: handlers.ResourceHandler, is_called: bool, because: str) -> Verdict:
    return Verdict(decorators.name_decorator(handler), handler.id, is_called, because)


def _describe_occasion(handler: handlers.ResourceHandler) -> str:
    match handler:
        case handlers.TimerHandler(interval=None):
            return "it runs"
        case handlers.TimerHandler():
            return f"it runs, every {handler.interval} seconds"
        case handlers.DaemonHandler():
            return "it runs, unless it has ended on its own"
        case handlers.ReconcilingHandler():
            return "after each change of the object or of its owned resources"
        case handlers.WatchingHandler():
            return "for each event of the object"
        case handlers.IndexingHandler(sharded=True):
            return ("the object is in the index; if the operator is sharded, only in the replica "
                    "that holds its shard")
    return "the object is in the index"


def _conclude(
        view: decisions.View, conclusion: cycles.Conclusion,
) -> tuple[decisions.View, cycles.Cycle | None]:
    """Make the situation after a cycle that has ended with this conclusion."""
    cycle = None if conclusion.divergent is None else cycles.Cycle(
        causes.Reason.NOOP, divergent=conclusion.divergent)
    return view._replace(old=conclusion.base), cycle
