"""
Driving: the machine's steps are carried out for the objects of one operator.
"""
import asyncio
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import random
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kopf._cogs.clients import errors
from kopf._cogs.configs import conventions
from kopf._cogs.structs import bodies, references
from kopf._core.actions import brakes, execution, finalizers, loggers, progression
from kopf._core.engines.reconciling import conditions, externals, hub
from kopf._core.intents import handlererrors, handlers, typedargs
from kopf._kits.external import failures, gates, machine, records
from kopf._kits.external.machine import UNSEEN
from kopf._kits.external.records import Phase

SPREAD = 0.1
"""By which part the intervals vary, so that objects are not observed all at once."""

FLOOR = 1.0
"""How much time (seconds) is between two observations of an object, or attempts at least."""

KEY_PAUSES = (0.1, 0.2, 0.4, 0.8)
"""
The pauses (seconds) before a key is written again after conflicts: the operator can be exiting, so
this can be the last run.
"""

CHANGING = frozenset({'create', 'update', 'delete'})
"""The calls that are not made in a preview."""

MIN_GATES = 100
"""With fewer keys of limits, the idle ones are not dropped."""

STATUSES = {False: 'False', None: 'Unknown', True: 'True'}
"""The statuses of ``Synced``, from the worst on."""

UNSETTLED = (machine.MAY_EXIST, 'Searching', 'NotObserved')
"""The reasons why it is not known whether an object is as it should be."""


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class Declaration:
    """What the author has declared."""
    id: str
    interval: float
    """How often (seconds) a thing is observed, though nothing has changed; inf for never."""
    max_interval: float
    """Up to which interval things are observed more and more seldom while nothing changes."""
    limit: gates.Rate | None
    limit_key: Callable[..., Any] | None
    shown: Sequence[str]
    """The fields of the observation for the status."""
    dependencies: Sequence[str]
    """The ids of the externals that are there before this one."""
    abilities: machine.Abilities
    calls: dict[str, handlers.CallHandler] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Notes(gates.Caller):
    """What this process knows of one thing; the next one does not, and need not."""
    record: records.Record | None = None
    """The last record that was on the object: others can remove it, e.g. ``kubectl replace``."""
    digest: str | None = None
    """The digest of what is desired."""
    checked: str | None = None
    """The digest of what the last observation was compared to."""
    due: float | None = None
    """When it is observed next (monotonic time); None if that is not decided yet."""
    observed: Any = UNSEEN
    observed_key: records.Key | None = None
    observed_at: float = float('-inf')
    searched_at: float = float('-inf')
    pace: float = 0.0
    """The interval (seconds) until the next observation."""
    seen: int | None = None
    """A digest of the last observation, and of what was desired then."""
    is_asked: bool = False
    """Whether somebody has asked to observe it now."""
    announced: tuple[str | None, int] | None = None
    """The token and the number of the call that creates, which is not made yet."""
    is_refused: bool = False
    erased: records.Key | None = None
    """What was deleted, if the system was not asked since whether it is gone."""
    ended: datetime.datetime | None = None
    unwritten: tuple[str | None, records.Key] | None = None
    """The key that is known, and not on the object yet, with its token."""
    updated: str | None = None
    settles: float = float('-inf')
    """Until when the system can deny the update."""
    problem: str | None = None
    """The last failure that was logged."""
    verdict: machine.Rest | None = None
    """What the last observation has led to, or the failure of a call."""
    told: int | None = None
    """The generation of the object in the condition."""
    waiting: int | None = -1
    """The generation for which it is told that this waits at the gate; -1 if it does not."""

    def distrust(self) -> None:
        """Observe again before anything else is done."""
        self.observed, self.due = UNSEEN, float('-inf')

    def forget(self) -> None:
        """Forget what a call of the former record has brought."""
        self.is_refused, self.observed = False, UNSEEN
        self.ended = self.erased = self.updated = self.checked = self.verdict = None


Members = weakref.WeakValueDictionary[Any, Notes]


class Driver(hub.Driver):
    """What works with one external system, for all objects of one operator."""

    def __init__(self, external: Declaration, owner: hub.Hub) -> None:
        super().__init__()
        self.external = external
        self.hub = owner
        self.loop = asyncio.get_running_loop()
        self.gates: dict[Any, gates.Gate] = {}
        """By the keys of ``limit_key=``."""
        self.max_gates = MIN_GATES
        """With how many gates the idle ones are dropped."""
        self.breaks = 0
        """How often the systems of the dropped gates have become unavailable."""
        self.members: Members = weakref.WeakValueDictionary()
        """By the uids of the objects, for as long as these are handled."""
        self.keys: weakref.WeakValueDictionary[str, Notes] = weakref.WeakValueDictionary()
        self.drifts = 0
        self.id = uuid.uuid4().hex[:8]
        """Whose announcements are one's own, and not of another process."""

    def join(self, uid: str, wake: Callable[[], None]) -> Notes:
        self.members[uid] = notes = Notes(wake)
        return notes

    def leave(self, notes: Notes) -> None:
        for gate in self.gates.values():
            gate.forget(notes)

    def describe(self) -> hub.State:
        opened = list(self.gates.values())
        return hub.State(
            self.external.id, self.drifts, self.breaks + sum(gate.breaks for gate in opened),
            any(gate.is_broken for gate in opened), sum(map(len, opened)))

    def open_gate(self, key: Any) -> gates.Gate:
        if key not in self.gates:
            if len(self.gates) >= self.max_gates:  # keys can come and go with their objects
                for idle in [known for known, gate in self.gates.items() if gate.is_idle]:
                    self.breaks += self.gates.pop(idle).breaks
                self.max_gates = max(MIN_GATES, 2 * len(self.gates))
            name = self.external.id if key is None else f'{self.external.id}, {key}'
            self.gates[key] = gates.Gate(
                name, self.external.limit, get_share=self.hub.context.brakes.get_share,
                time=self.loop.time)
        return self.gates[key]

    def is_taken(self, key: str, notes: Notes) -> bool:
        """Whether another object has the thing with this key, as far as this process knows."""
        other = self.keys.get(key, notes)
        return other is not notes and other.record is not None and (
            key in map(str, other.record.keys))

    def trigger_key(self, key: records.Key) -> None:
        """Observe the thing with this key now."""
        _trigger(self.keys.get(str(key)))  # an adopted key is a string

    def trigger_object(self, selector: references.Selector, name: tuple[str | None, str]) -> None:
        """Observe the things of the objects of this name now."""
        for member in self.hub.find(name):
            if selector.select([member.host.resource]):
                _trigger(self.members.get(member.host.uid))

    async def drive(self, run: externals.Run, notes: Notes) -> externals.Result:
        return await Journey(self, run, notes).go()


def _trigger(notes: Notes | None) -> None:
    if notes is not None and not notes.is_asked:
        notes.is_asked, notes.observed = True, UNSEEN
        notes.wake()


def _make_key(result: Any) -> records.Key:
    """Make a key that can be stored, e.g. of a UUID."""
    return result if isinstance(result, (str, int, float)) else str(result)


def _is_key(result: Any) -> bool:
    """Whether it can be a key: things, answers, and models of them cannot."""
    if isinstance(result, (str, int, float)):
        return result != '' and not isinstance(result, bool)
    cls: Any = type(result)
    return not hasattr(cls, '__iter__') and cls.__str__ is not object.__str__


def _find_mistake(verb: str, result: Any) -> str | None:
    """Say what is wrong with what a function has returned."""
    match verb:
        case 'observe' | 'find' if result is None:
            return None
        case 'create' | 'find' if not _is_key(result):
            expected = "the key, which is a string or a number"
        case 'observe' | 'desired' if not isinstance(result, Mapping):
            expected = "a dict"
        case 'desired':
            try:
                machine.encode(result)
            except (TypeError, ValueError) as e:
                return f"What is desired is not JSON: {e}"
            return None
        case _:
            return None
    expected += "; or None if there is nothing" if verb in ('observe', 'find') else ""
    shown = f"a value of {type(result).__name__}" if result else repr(result)
    return f"{verb} must return {expected}. It has returned {shown}."


class _Stop(Exception):
    """The run ends, with this result."""

    def __init__(self, result: externals.Result) -> None:
        super().__init__()
        self.result = result


class Journey:
    """One run for one object: from step to step, until there is nothing to do for now."""

    def __init__(self, driver: Driver, run: externals.Run, notes: Notes) -> None:
        self.driver, self.run, self.notes = driver, run, notes
        self.external = driver.external
        self.clock = run.context.clock
        self.logger = run.cause.logger
        self.record = records.Record()
        """What is on the object, or was until others have removed it."""
        self.is_lost = False
        self.is_deleting = False
        self.found: Any = UNSEEN
        self.desired: Any = None
        self.vain: str | None = None
        """What an update has not changed."""
        self.failure: progression.Outcome | None = None
        """What the last call of the run has failed with: it is followed by writes only."""

    async def go(self) -> externals.Result:
        """Carry out the steps; return what follows."""
        run = self.run
        try:
            self._read()
            await self._write_key()
            if run.raw is not None and not run.limits.is_paused() and (
                    not finalizers.is_deleting(run.raw) or (
                        self.record.phase is Phase.CREATING
                        and self.external.abilities.is_idempotent)):  # the call can be repeated
                await self._desire()
            while run.raw is not None:
                step = machine.step(self._look())
                match step:
                    case machine.Write() if step.record.phase is Phase.CREATING and (
                            step.record != self.record):  # not one that was removed by others
                        await self._call(machine.Call('create'), announcement=step)
                    case machine.Write():
                        if step.record.key is None and self.record.key is not None and (
                                not self.is_deleting):
                            self._brake(run.raw)
                        await self._write(step)
                    case machine.Call():
                        await self._call(step)
                    case machine.Release():
                        return await self._release(run.raw)
                    case machine.Rest():
                        return self._rest(step)
            return externals.Result()
        except _Stop as e:
            return e.result

    async def _write_key(self) -> None:
        """Write the key that could not be written when it became known."""
        pauses = list(KEY_PAUSES)
        while self.notes.unwritten is not None:
            record, (token, key) = self.record, self.notes.unwritten
            now, digest = self.clock.now().wall, self.notes.digest
            try:
                if record.key is not None or record.token != token or await self._store(
                        machine.Write(machine.know(record, key, now, digest), "it is created")):
                    self.notes.unwritten = None
            except errors.APIConflictError:
                if not pauses:
                    raise
                await asyncio.sleep(pauses.pop(0))

    # Looking.

    def _read(self) -> None:
        """Read the record, after the start and after each write."""
        raw, notes = self.run.raw, self.notes
        try:
            record = None if raw is None else records.read(raw, self.external.id)
            if raw is not None:
                notes.record = record or notes.record or records.recover(raw, self.external.id)
            self.is_lost = record is None and notes.record is not None
            self.record = records.Record() if raw is None else notes.record or records.Record()
        except ValueError as e:
            self._complain(str(e))
            self.run.problems.append(str(e))
            raise _Stop(externals.Result(outcome=progression.Outcome(
                final=True, exception=e, message=str(e)))) from None

    def _look(self) -> machine.Situation:
        notes, record, now = self.notes, self.record, self.clock.now()
        raw: Any = self.run.raw
        self.is_deleting = finalizers.is_deleting(raw)
        annotations = conventions.get_annotations(raw)
        adopt = annotations.get(
            records.make_name(self.external.id, records.ADOPT), '').strip() or None
        if record.key is not None and record.phase is Phase.KNOWN:
            self.driver.keys[str(record.key)] = notes
        return machine.Situation(
            record=record, can=self.external.abilities, now=now.wall, token=str(uuid.uuid4()),
            desired=self.desired, digest=notes.digest,
            is_deleting=self.is_deleting, is_paused=self.run.limits.is_paused(),
            waits_for=self._find_obstacle(raw),
            adopt=adopt, is_taken=adopt is not None and self.driver.is_taken(adopt, notes),
            is_retry=records.make_name(self.external.id, records.RETRY) in annotations,
            is_lost=self.is_lost or (notes.record is not None and (
                not finalizers.is_present(raw, hub.EXTERNAL_FINALIZER))),
            is_armed=notes.announced == (record.token, record.attempt) and (
                record.by == self.driver.id),
            is_refused=notes.is_refused, ended=notes.ended,
            found=self.found, is_searched=now.mono < notes.searched_at + FLOOR,
            is_due=self._find_due(now.mono) <= now.mono,
            observed=notes.observed if notes.observed_key == record.subject else UNSEEN,
            is_erased=notes.erased is not None and notes.erased == record.subject,
            updated=notes.updated if now.mono < notes.settles else None)

    def _find_obstacle(self, raw: bodies.RawBody) -> str | None:
        """Find another external that must be there before this one, or be gone before it."""
        followers = [
            other.id for other in self.run.siblings if self.external.id in other.dependencies]
        for other in followers if self.is_deleting else self.external.dependencies:
            try:
                known = records.read(raw, other)
            except ValueError:
                return f"The record of {other} is not readable."
            if self.is_deleting and known is not None:
                return f"{other} has to be gone before."
            if not self.is_deleting and (known is None or known.phase is not Phase.KNOWN):
                return f"{other} has to be there before."
        return None

    def _find_due(self, now: float) -> float:
        """Find when to observe: by the interval, after a change, or as somebody has asked."""
        notes, record = self.notes, self.record
        if notes.due is None:
            is_known = record.synced is not None and notes.digest in (None, record.synced)
            notes.due = now + self.external.interval * random.random() if is_known else now
        is_changed = notes.digest not in (None, record.synced, notes.checked)
        is_urgent = notes.is_asked or (is_changed and not self.run.limits.is_paused())
        return max(min(notes.due, now) if is_urgent else notes.due, notes.observed_at + FLOOR)

    # Acting.

    async def _desire(self) -> None:
        """Ask the author what should be."""
        outcome = await self._invoke(machine.Call('desired'))
        if outcome.exception is not None:
            self._complain(outcome.message or '', outcome.exception)
            raise self._fail(outcome)
        text = machine.encode(outcome.result)
        self.desired = json.loads(text)
        self.notes.digest = hashlib.sha256(text.encode()).hexdigest()[:12]

    def _brake(self, raw: bodies.RawBody) -> None:
        """Take a replacement from the budget, unless an edit of the object wants it."""
        run, context = self.run, self.run.context
        resource = run.cause.resource
        problem = None if run.is_edited else context.brakes.take(
            brakes.Risk.REPLACEMENT, resource, bodies.get_uid(raw), parent=raw, owner=resource,
            total=len(self.driver.members), now=self.clock.now(),
            logger=self._get_posting_logger())
        if problem is not None:
            raise self._fail(progression.Outcome(final=False, message=problem))

    async def _write(self, step: machine.Write) -> None:
        """Store the record; if somebody else has stored another one, begin anew."""
        if not await self._store(step):
            raise _Stop(externals.Result(due=self.clock.mono(), is_settled=False))

    async def _store(self, step: machine.Write) -> bool:
        """Store the record; false if others were faster."""
        raw: Any = self.run.raw
        known, record = self.record, dataclasses.replace(step.record, of=records.name_object(raw))
        annotations: dict[str, str | None] = {
            records.make_name(self.external.id): record.encode(), records.MARK: 'yes'}
        answer = records.make_name(self.external.id, records.RETRY)
        if answer in conventions.get_annotations(raw):  # it is of no later question
            annotations[answer] = None
        is_written = await self.run.write(annotations, is_held=True)
        self._read()
        if not is_written:
            return False
        self.logger.debug(f"{self.run.handler!r} is {record.phase}: {step.because}.")
        if (known.phase, known.keys) != (record.phase, record.keys):
            self.notes.forget()
        return True

    async def _release(self, raw: bodies.RawBody) -> externals.Result:
        """Forget the record; the last one releases the object."""
        name = records.make_name(self.external.id)
        known = records.list_names(raw)
        is_held = bool(known - {name})
        is_left = name in known or (
            not is_held and finalizers.is_present(raw, hub.EXTERNAL_FINALIZER))
        if is_left and not await self.run.write({name: None}, is_held=is_held):
            return externals.Result(due=self.clock.mono())
        self.notes.record = None
        self.driver.leave(self.notes)
        strange = ', '.join(records.list_strange(raw, [other.id for other in self.run.siblings]))
        if strange and self.notes.problem != strange:
            self.notes.problem = strange
            self.logger.info(
                f"{self.run.handler!r} is done. The deletion waits for other operators: this one "
                f"has no externals for the records {strange}.")
        return externals.Result()

    def _enter(self, verb: str) -> gates.Gate:
        """Have a turn at the gate; if it is not this one's turn, the run ends until it is."""
        if self.failure is not None:
            raise self._fail(self.failure)
        if self.run.limits.is_stopped():
            raise _Stop(externals.Result(due=self.clock.mono(), is_settled=False))
        notes, external, gate = self.notes, self.external, self._find_gate()
        urgency = gates.Urgency.ROUTINE
        if verb not in ('observe', 'find'):
            urgency = gates.Urgency.CHANGE
        elif self.is_deleting or notes.is_asked or (
                notes.digest not in (None, self.record.synced)):
            urgency = gates.Urgency.QUESTION
        is_safe = verb != 'create' or external.abilities.is_idempotent or external.abilities.finds
        if not gate.enter(notes, urgency, is_safe=is_safe):
            if gate.is_broken:
                notes.distrust()  # it is long ago when the system is back
            if urgency is not gates.Urgency.ROUTINE and not self.run.problems:
                self.run.problems.append(
                    f"{external.id} is not available." if gate.is_broken else
                    f"It waits for its turn at {external.id}.")
            generation = self._find_generation()  # two operators can wait for different reasons
            self.run.is_told, notes.waiting = notes.waiting == generation, generation
            raise _Stop(externals.Result(is_settled=False))
        notes.waiting = -1
        return gate

    def _find_gate(self) -> gates.Gate:
        """Find whose limit it is; an error of the author's function ends the run."""
        try:
            return self.driver.open_gate(None if self.external.limit_key is None else (
                self.external.limit_key(**self.run.cause.kwargs)))
        except Exception as e:
            text = f"limit_key= fails: {e!r}"
            self._complain(text, e)
            raise self._fail(progression.Outcome(final=False, exception=e, message=text)) from None

    async def _invoke(self, step: machine.Call) -> progression.Outcome:
        """Make an attempt of a function of the author."""
        record, observed = self.record, self.notes.observed
        return await self.run.call(
            self.external.calls[step.verb], functools.partial(_find_mistake, step.verb),
            token=record.token, desired=self.desired,
            key=record.key if step.key is None else step.key, diff=step.diff,
            observed=None if observed is UNSEEN else observed)

    async def _call(self, step: machine.Call, announcement: machine.Write | None = None) -> None:
        """Call the author's function, and note what it has brought."""
        notes, verb = self.notes, step.verb
        if verb not in self.external.calls:  # the thing need not be deleted there
            notes.erased = step.key
            return
        if verb in CHANGING and (withhold := externals.withholding_var.get()) is not None:
            if announcement is not None:
                await self._announce(announcement)
            diff = machine.compare({}, self.desired) if verb == 'create' else step.diff
            withhold(externals.Withheld(self.run.handler, self.run.cause, verb, step.key, diff))
            self.run.is_told, due = True, notes.due or 0.0
            notes.distrust()  # in a shadow, production makes the call, and writes the record
            raise _Stop(externals.Result(
                due=due if due > self.clock.mono() else progression.NEVER, is_settled=False))
        gate = self._enter(verb)
        try:
            if announcement is not None:  # when it can be followed by the call at once
                await self._announce(announcement)
            is_first = notes.announced == (self.record.token, self.record.attempt)
            if verb == 'create':
                notes.announced, notes.is_refused, notes.ended = None, False, None
                self.found, notes.searched_at = UNSEEN, float('-inf')
            if verb == 'observe':  # who asks from now on, can know of something newer
                notes.is_asked = False
            gate.begin(notes)
            outcome = await self._invoke(step)
        except BaseException:
            gate.leave(notes, has_failed=None)
            raise
        now = self.clock.now()
        failure = failures.read(outcome.exception, now=now.wall)
        if outcome.final and isinstance(outcome.exception, typedargs.MisfitError):
            failure = failures.Failure(is_system=None, is_refused=True)  # it was not called
        if verb == 'create' and not is_first:  # the earlier call can have created it
            failure = failure._replace(is_refused=False)
        if verb == 'delete' and failure.status in (404, 410):  # it is gone already
            outcome = outcome._replace(exception=None)
        until = None if failure.delay is None else now.mono + failure.delay
        news = gate.leave(notes, has_failed=failure.is_system, until=until)
        self._tell(gate, news, outcome.message)
        if outcome.exception is None:
            await self._note_result(step, outcome.result)
            return
        if verb == 'create':
            notes.is_refused = failure.is_refused
            notes.ended = None if failure.is_refused else now.wall
        notes.distrust()
        if gate.is_closed and (failure.is_system or until is not None):  # it waits at the gate
            self.run.problems.append(outcome.message or '')
        else:
            self._complain(outcome.message or repr(outcome.exception), outcome.exception)
            self.failure = outcome

    async def _announce(self, step: machine.Write) -> None:
        """Store that this process is going to create the thing."""
        record = dataclasses.replace(step.record, by=self.driver.id)
        self.notes.announced = record.token, record.attempt  # also if the result is not known
        await self._write(step._replace(record=record))

    async def _note_result(self, step: machine.Call, result: Any) -> None:
        notes, record, now = self.notes, self.record, self.clock.now()
        match step.verb:
            case 'create':
                key = _make_key(result)
                self.logger.info(f"{self.run.handler!r} has got the key {key!r}.")
                notes.unwritten = record.token, key
                await self._write_key()
                notes.due = notes.observed_at = now.mono
            case 'find':
                self.found = None if result is None else _make_key(result)
                if self.found is None:
                    notes.searched_at = now.mono
                else:
                    self.logger.info(f"{self.run.handler!r} has found the key {self.found!r}.")
            case 'observe':
                notes.observed, notes.observed_at = result, now.mono
                notes.observed_key, notes.checked = step.key, notes.digest
                notes.due = now.mono + self._find_pace(result) * random.uniform(
                    1 - SPREAD, 1 + SPREAD)
                if record.phase is Phase.KNOWN and self.desired is not None and (
                        now.mono >= notes.settles):
                    self._note_difference(result)
            case 'update':
                is_first, notes.updated = notes.updated != notes.digest, notes.digest
                notes.settles = now.mono + max(self.external.abilities.consistency, FLOOR)
                if is_first:
                    notes.due = min(notes.due or now.mono, notes.settles)
            case 'delete':
                notes.erased, notes.observed = step.key, UNSEEN

    def _note_difference(self, observed: Any) -> None:
        """Note what others have changed, or what an update has not changed."""
        notes, found = self.notes, machine.compare(observed, self.desired)
        if not found:
            notes.updated = None
        elif observed is not None and notes.updated == notes.digest:
            self.vain = (
                f"This still differs after the update: {machine.name_fields(found)}. Either update "
                f"does not change it, or desired and observe return it in different forms.")
            self._complain(self.vain)
        elif self.record.synced == notes.digest:
            self.driver.drifts += 1

    def _find_pace(self, observed: Any) -> float:
        """Find the interval: the longer, the more often nothing new was observed."""
        notes, external = self.notes, self.external
        shown = [observed.get(name) for name in external.shown] if observed is not None else None
        known, notes.seen = notes.seen, hash(repr((
            machine.restrict(observed, self.desired), shown, notes.digest)))
        notes.pace = external.interval if notes.seen != known else (
            min(max(notes.pace, FLOOR) * 2, external.max_interval))
        return notes.pace

    def _fail(self, outcome: progression.Outcome, reason: str = 'Failed') -> _Stop:
        """End the run with a failure: it is tried again, unless that is senseless."""
        now, text = self.clock.mono(), outcome.message or repr(outcome.exception)
        self._report(machine.Rest(False, reason, text))
        self.run.problems.append(text)
        if outcome.final and not isinstance(
                outcome.exception, handlererrors.HandlerTimeoutError):
            pause = self.external.interval
            if self.is_deleting:  # no deletion is given up
                pause = min(pause, self.run.context.settings.reconciling.max_error_delay)
            due = now + pause
            return _Stop(externals.Result(due=due, outcome=outcome))
        delay = outcome.delay if outcome.delay is not None else execution.get_backoff(
            self.external.calls['observe'], self.run.context.settings, self.run.state.retries)
        delay = max(delay, FLOOR)
        return _Stop(externals.Result(due=now + delay, outcome=outcome._replace(
            final=False, delay=delay)))

    # Telling.

    def _get_posting_logger(self) -> loggers.ObjectLogger:
        return loggers.ObjectLogger(body=self.run.cause.body, settings=self.run.context.settings)

    def _tell(self, gate: gates.Gate, news: bool | None, message: str | None) -> None:
        """Say what is new of the system, which is not said for each thing."""
        posted = self._get_posting_logger()
        if news is True:
            posted.warning(
                f"The system {gate.name} is unavailable. Until it is back, Kopf only probes it, "
                f"and logs no further errors of it: {message}")
        elif news is False:
            posted.info(f"The system {gate.name} is available again.")

    def _complain(self, text: str, e: BaseException | None = None) -> None:
        """Log a problem once, until there is another one; of a connection, in one line."""
        if self.notes.problem != text:
            self.notes.problem = text
            tb = None if e is None or isinstance(e, (
                handlererrors.TemporaryError, handlererrors.PermanentError, typedargs.MisfitError,
            )) else e.__traceback__
            if e is not None and tb is not None and failures.is_of_connection(e):
                code = tb.tb_frame.f_code
                text += f" (in {code.co_name}() at {code.co_filename}:{tb.tb_lineno})"
                tb = None
            self.logger.error(f"{self.run.handler!r}: {text}", exc_info=None if tb is None else e)

    def _rest(self, step: machine.Rest) -> externals.Result:
        """End the run: say how it is, and when it goes on."""
        if self.failure is not None and self.record.phase is not Phase.UNKNOWN:
            raise self._fail(self.failure)
        notes, now, outcome = self.notes, self.clock.now(), None
        if step.reason == machine.MAY_EXIST:
            step = step._replace(message=self._advise(step.message))
            self._complain(step.message)
        if step is machine.MISSING:
            self._complain(step.message)
        if self.vain is not None:
            step = machine.Rest(False, 'Drifted', self.vain)
        if notes.observed is UNSEEN and step.reason != machine.MAY_EXIST:
            if step in (machine.SYNCED, machine.UNOBSERVED) and notes.verdict is not None and (
                    notes.checked, notes.observed_key) == (notes.digest, self.record.key):
                step = notes.verdict
            # Two operators with different verdicts do not overwrite each other's without an end.
            self.run.is_told = notes.told == self._find_generation() and (
                not self.run.handler.conditions or self.run.verdicts.get(self.external.id) == step)
        if not self.run.is_told and step is not machine.REMAINS:
            self._report(step)
        self._show()
        notes.observed, notes.erased = UNSEEN, None
        if step is machine.REMAINS:  # it is deleted again, more and more seldom
            return self._fail(
                progression.Outcome(final=False, message=step.message), step.reason).result
        if step.is_synced is False or step.reason in UNSETTLED:
            self.run.problems.append(step.message or step.reason)
        if step.reason in (machine.MAY_EXIST, 'Immutable'):
            outcome = progression.Outcome(final=True, message=step.message)
        due = math.inf if step.until is None else now.at(step.until)
        if step.reason != machine.WAITING and (
                self.record.phase is Phase.KNOWN
                or (self.record.phase is Phase.UNKNOWN and self.record.is_hearsay)):
            notes.due = due if notes.due is None else min(notes.due, due)
            due = self._find_due(now.mono)
            due = due if due > now.mono else now.mono + FLOOR
        if not self.run.problems:
            notes.problem = None
        return externals.Result(due=due, outcome=outcome, is_settled=not self.run.problems)

    def _find_generation(self) -> int | None:
        return conditions.observe(self.run.cause.resource, self.run.cause.body)

    def _report(self, step: machine.Rest) -> None:
        """Set the condition ``Synced``, and note it for the time until the next observation."""
        notes = self.notes
        notes.told = self._find_generation()
        notes.verdict = step if self.record.phase is Phase.KNOWN and (
            step not in (machine.PAUSED, machine.UNOBSERVED)) else None
        if self.run.handler.conditions:
            verdicts = self.run.verdicts
            verdicts[self.external.id] = step
            # Not by what was reported so far: two operators would overwrite it without an end.
            id, worst = min(verdicts.items(), key=lambda item: (
                item[1].reason != machine.MAY_EXIST, list(STATUSES).index(item[1].is_synced),
                item[0]))
            text = f"{id}: {worst.message}" if len(self.run.siblings) > 1 else worst.message
            conditions.add(
                self.run.cause.patch, observed=notes.told, type='Synced',
                status=STATUSES[worst.is_synced], reason=worst.reason,
                message=text[:conditions.MAX_MESSAGE] if worst.message else '')

    def _advise(self, message: str) -> str:
        meta: Any = self.run.cause.body.metadata
        what = f"{self.run.cause.resource.plural} {meta.name} {self.external.id}"
        where = f" -n {meta.namespace}" if meta.namespace else ""
        return (f"{message} Look into the system. If it is there: kopf external adopt {what} "
                f"--key KEY{where}; if not: kopf external retry {what}{where}")

    def _show(self) -> None:
        """Show in the status how it is."""
        shown: dict[str, Any] = {'phase': self.record.phase.value, 'key': self.record.key}
        observed = self.notes.observed
        if isinstance(observed, Mapping):
            shown |= {name: _simplify(observed.get(name)) for name in self.external.shown}
        self.run.cause.patch.setdefault('status', {})[self.external.id] = shown


def _simplify(value: Any) -> Any:
    """Make JSON of what a status shows, somehow."""
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):  # e.g. keys that are no strings
        return str(value)
