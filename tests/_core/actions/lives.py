"""
The life of one object as decisions see it: what is decided is done at once, and all writes succeed.

There is no I/O, and no loop: what the reactor does around that is in `tests/_core/reactor`.
"""
import dataclasses
import datetime
import logging

import kopf
from kopf._cogs.aiokits.clocks import Moment
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, combine, merge
from kopf._core.actions import decisions, finalizers, recording
from kopf._core.actions.cycles import Cycle
from kopf._core.actions.decisions import (
    AddFinalizer,
    Call,
    Close,
    Nothing,
    Release,
    RemoveFinalizer,
    Save,
    Situation,
    Sleep,
    Yield,
)
from kopf._core.actions.progression import Outcome
from kopf._core.intents import causes, filters
from kopf._core.intents.causes import Reason
from kopf._core.intents.handlers import ChangingHandler

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
HANDLED = 'kopf.zalando.org/last-handled-configuration'
DELETED = {'metadata': {'deletionTimestamp': '2020-01-01T00:00:00Z'}}
START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
REST = (Sleep, Nothing, Yield)


def make_moment(seconds):
    return Moment(100.0 + seconds, START + datetime.timedelta(seconds=seconds))


def make_handler(id, reason=Reason.UPDATE, **options):
    return ChangingHandler(id=id, fn=lambda **_: None, reason=reason, **options)


@dataclasses.dataclass
class Plan:
    """How a handler behaves: which field it is for, how often it is retried, and how it ends."""
    field: str | None = None
    fails: int = 0
    delay: float = 10.0
    patch: dict = dataclasses.field(default_factory=dict)
    """What it changes in the spec, when it finishes."""
    result: object = None
    succeeds: bool = True
    """Whether it finishes with success or with a permanent failure."""
    deletes: bool = False
    """Whether it is also for deletions."""


def declare(plans):
    """Handlers of creations and updates, or of changes of one field; and of deletions."""
    declared = []
    for id, plan in plans.items():
        fn = lambda **_: None  # noqa: E731
        if plan.field is not None:
            declared.append(ChangingHandler(
                id=id, fn=fn, field=('spec', plan.field), field_needs_change=True))
        else:
            declared += [ChangingHandler(id=id, fn=fn, reason=reason)
                         for reason in (Reason.CREATE, Reason.UPDATE)]
        if plan.deletes:
            declared.append(ChangingHandler(
                id=id, fn=fn, reason=Reason.DELETE, requires_finalizer=True))
    return declared


class Life:
    """
    An object with its handlers; `edit` it, let it `settle`, `restart` the process.

    Each call is noted as (handler, old, new): the spec, or the handler's field of it.
    """

    def __init__(self, plans, *, spec, old=None, storage=None, **options):
        self.settings = kopf.OperatorSettings()
        if storage is not None:
            self.settings.persistence.progress_storage = storage
        self.plans = plans
        self.handlers = declare(plans)
        self.options = options
        """Those of the situations: flush_delay, accompanied, …"""
        self.raw = {'metadata': {'name': 'name1'}, 'spec': spec}
        if old is not None:
            patch = Patch()
            self.settings.persistence.diffbase_storage.store(
                body=Body(self.raw), patch=patch, essence={'spec': old})
            self.raw = merge(self.raw, patch)
        self.cycle = None
        self.seconds = 0.0
        self.calls = []
        self.done = []
        """Those of the calls in which the handler has finished."""
        self.attempts = []
        """All calls as (handler, retry)."""
        self.saved = dict.fromkeys(plans, 0)
        """How many attempts of each handler are on the object."""
        self.steps = []
        self.gone = False

    @property
    def now(self):
        return make_moment(self.seconds)

    @property
    def old(self):
        """The spec as it is last handled."""
        essence = self.settings.persistence.diffbase_storage.fetch(body=Body(self.raw))
        return None if essence is None else essence.get('spec', {})

    @property
    def base(self):
        return self.cycle and self.cycle.base and self.cycle.base['spec']

    @property
    def divergent(self):
        return self.cycle and self.cycle.divergent and self.cycle.divergent['spec']

    def edit(self, **spec):
        self.raw = merge(self.raw, {'spec': spec})

    def delete(self):
        self.raw = merge(self.raw, DELETED)
        self.gone = not self.raw['metadata'].get('finalizers')

    def restart(self):
        """As after a signal: save what is done, and forget everything that is not on the object."""
        options, self.options = self.options, {**self.options, 'is_interrupted': True}
        self.settle()
        self.options = options
        self.cycle = None

    def crash(self):
        """Forget everything that is not on the object."""
        self.cycle = None

    # Looking and deciding.

    def look(self):
        self.view = decisions.look(self.raw, settings=self.settings, extra_fields=())
        if self.cycle is None:
            self.cycle = recording.restore(
                self.handlers, body=self.view.body, settings=self.settings, now=self.now)
        reason, diff = decisions.detect(self.view, initial=False)
        cause = causes.ChangingCause(
            logger=logging.getLogger(), memo=None, indices={}, resource=None, body=self.view.body,
            patch=Patch(), reason=reason, initial=False, diff=diff,
            old=self.view.old, new=self.view.essence)
        body = self.view.body
        return Situation(
            view=self.view,
            reason=reason,
            selection=filters.select(self.handlers, cause),
            cycle=self.cycle,
            recall=lambda id: recording.fetch_state(
                id, body=body, settings=self.settings, now=self.now),
            now=self.now,
            **self.options)

    def step(self, **spec):
        """Do what is decided; if others edit the object after the look at it, by these fields."""
        decision = decisions.decide(self.look())
        self.edit(**spec)
        self.cycle = decision.cycle
        self.steps.append(decision.step)
        match decision.step:
            case Call(due=due):
                self.call(due[0])
            case Save():
                self.save()
            case AddFinalizer(handled=handled) | RemoveFinalizer(handled=handled):
                self.switch(handled, is_present=isinstance(decision.step, AddFinalizer))
            case Close(conclusion=conclusion):
                self.close(conclusion)
            case Release():
                self.release()
        return decision.step

    def settle(self, limit=100):
        """Until it is at rest."""
        for _ in range(limit):
            if self.gone or isinstance(self.step(), REST):
                return
        raise AssertionError(f"There is no end to it: {self.steps}")

    def finish(self, limit=100):
        """Until there is nothing to wait for either."""
        for _ in range(limit):
            self.settle()
            if self.gone or not isinstance(self.steps[-1], Sleep):
                return
            self.seconds = self.steps[-1].until - make_moment(0).mono
        raise AssertionError(f"There is no end to it: {self.steps}")

    # Acting.

    def call(self, handler):
        plan = self.plans[handler.id]
        states = [self.view.old, self.view.essence]
        old, new = [state and state['spec'] for state in states]
        if handler.field:
            old, new = [state and state.get(plan.field) for state in (old, new)]
        retry = self.cycle.states[handler.id].retries
        is_failing = retry < plan.fails
        outcome = (
            Outcome(final=False, delay=plan.delay, exception=Exception(), message="not yet")
            if is_failing else Outcome(final=True, result=plan.result) if plan.succeeds else
            Outcome(final=True, exception=Exception(), message="no way"))
        self.attempts.append((handler.id, retry))
        self.calls.append((handler.id, old, new))
        if not is_failing:
            self.done.append((handler.id, old, new))
        patch = Patch() if is_failing or not plan.patch else Patch({'spec': plan.patch})
        self.cycle = self.cycle.note(
            handler.id, outcome._replace(patch=patch), essence=self.view.essence, now=self.now)

    def save(self):
        self.cycle = self.cycle.recorded()
        effects = [item.patch for item in self.cycle.contributions]
        merged = self.view.raw
        for effect in effects:
            merged = merge(merged, effect)
        self._write(recording.make_progress(
            self.cycle, body=self.view.body, settings=self.settings,
            expected=self._get_essence(merged), contributed=effects).patch)

    def close(self, conclusion):
        own = recording.make_closing(
            self.cycle, self.plans, body=self.view.body, settings=self.settings,
            conclusion=conclusion)
        self.settings.persistence.diffbase_storage.store(
            body=self.view.body, patch=own, essence=conclusion.base)
        self._write(own)
        self.cycle = None if conclusion.divergent is None else Cycle(
            reason=Reason.UPDATE, has_records=True, divergent=conclusion.divergent)

    def switch(self, handled, *, is_present):
        self.raw = finalizers.switch(self.raw, FINALIZER, is_added=is_present)
        if handled is not None:
            patch = Patch()
            self.settings.persistence.diffbase_storage.store(
                body=self.view.body, patch=patch, essence=handled)
            self.raw = merge(self.raw, patch)

    def release(self):
        self._write(recording.make_closing(
            self.cycle, self.plans, body=self.view.body, settings=self.settings))
        self.raw = finalizers.switch(self.raw, FINALIZER, is_added=False)
        self.cycle = None
        self.gone = not self.raw['metadata'].get('finalizers')

    def _write(self, own):
        carried = {id: self.cycle.states[id] for id in self.cycle.unsaved}
        effect = {}
        for item in self.cycle.contributions:
            effect = combine(effect, item.patch)
        self.raw = merge(merge(self.raw, effect), own)
        self.cycle = self.cycle.sent(
            self.cycle.contributions, effect=Patch(effect), stored=self._get_essence(self.raw),
        ).saved(carried, now=self.now.mono)
        self.saved = {id: state.retries for id, state in self.cycle.states.items()}

    def _get_essence(self, raw):
        return decisions.build_essence(Body(raw), settings=self.settings, extra_fields=())
