"""
The guarantees of the documentation as invariants: checked at each step, and when all is at rest.

They are the same for sync handlers, with these limits, because a thread cannot be interrupted:

* A daemon that does not stop in time is abandoned. Then, its object can be released, and the next
  daemon can begin, while its thread goes on.
* When a leader loses its Lease, the running handlers go on. But it begins no others, and writes
  nothing.
* A process ends only after its threads have ended, unless it is killed.
* Sync admission handlers have the same threads. The API server calls them also for the writes of
  their own operator, which then wait until a thread is free. If that is too late for the exit, what
  is done can be lost, but only if the operator says so.
* A timeout does not end a running call: its outcome is what it returns. It only prevents the next
  attempts. The handler has then failed for the state that is there at that time.

Replicas that share the objects by *shards* forget the objects of a shard when it leaves them:

* An object waits for its namesake only if both are in one shard.
* A daemon or timer that has ended by itself begins again when the shard comes back.

An operator can be served *older states* after a restart, until the API server has caught up. What
it knows of an object is on the object, so an older state has older progress, and an older
last-handled state. So, these repetitions cannot be avoided, and are allowed:

* It calls handlers for a state that is older than the newest one, though they have finished for it:
  if the state that it sees does not show that. If the state shows it, they are not called.
* What it has done for such a state is not written: its first PATCH of an object is refused if the
  records have changed. So, the handlers' outcomes and delays for such a state do not count. If the
  newest state differs, these handlers see it, too; the resuming handlers see it in any case.
* If the newest state was handled, only a difference lets these handlers be called: all handlers see
  it. So, what earlier processes have finished does not count any more after the first write.
* Objects which the older list lacks are new ones: they are not resumed, and not in the indices.
* Before it has caught up, a stop is like a kill: the server refuses writes that test the version,
  and shows no newer one.

All else has to hold: it never writes over the work of others, never releases an object by an older
state, calls no handler of the same process again for the same, and goes on from the newest state
as soon as it knows that state. At rest, all has to be as without the older states.
"""
import collections
import datetime
import json
import math
from collections.abc import Callable
from typing import Any

from kopf._kits.testing import processes
from tests.simulation import threads
from tests.simulation.plans import Plan
from tests.simulation.specimens import (
    CHANGING,
    DELAY,
    IDLE,
    REVIEW_TIMES,
    Call,
    get_limits,
    make_children,
)

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
PREFIX = 'kopf.zalando.org/'
LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
SERIAL = ('change', 'event', 'parent')
"""The kinds of handlers of which only one runs at a time for an object."""

TOLERANCE = 0.01

TRIPS = 8
"""How many times data can be on its way until an outcome is stored, also by the second PATCH."""

PATCHES = 2
"""By how many requests an outcome is stored: one for the status, and one for all else."""

REVIEW_TRIPS = 12
"""The same for the reviews: two PATCHes, two webhooks, a connection, a request, and a response."""

WRITES = 4
"""How often an outcome is reviewed until it is stored: two PATCHes, which an exit begins anew."""

REFUSAL = 20.0
"""How long (seconds) the attempts of refused writes can take, with the throttling after them."""


class Violation(Exception):
    """A guarantee does not hold."""

    def __init__(self, guarantee: str, text: str) -> None:
        super().__init__(f"{guarantee}: {text}")
        self.guarantee = guarantee


def get_essence(raw: Any) -> Any:
    """The spec and the labels: what the handlers of changes are for."""
    return {'spec': raw.get('spec') or {}, 'labels': raw['metadata'].get('labels') or {}}


def get_handled(raw: Any) -> Any:
    """The last-handled state of an object, as its essence; None if there is none."""
    own = (raw.get('status') or {}).get('kopf') or {}
    text = (raw['metadata'].get('annotations') or {}).get(
        LAST_HANDLED, own.get('last-handled-configuration'))
    if text is None:
        return None
    stored = json.loads(text)
    return {'spec': stored.get('spec') or {},
            'labels': (stored.get('metadata') or {}).get('labels') or {}}


def get_progress(raw: Any) -> dict[str, Any]:
    """The progress of handlers, in the annotations or in the status."""
    own = ((raw.get('status') or {}).get('kopf') or {}).get('progress') or {}
    return {key.replace('/', '.'): value for key, value in own.items()} | {
        key.removeprefix(PREFIX): json.loads(value)
        for key, value in (raw['metadata'].get('annotations') or {}).items()
        if key.startswith(PREFIX) and key != LAST_HANDLED}


def read_time(text: str) -> float:
    """The time of the loop for a time in a record."""
    return (datetime.datetime.fromisoformat(text) - processes.ORIGIN).total_seconds()


def _has_ended(record: Any, *, since: float) -> bool:
    """Whether the record is of a handler that has ended since that time."""
    return bool(record.get('success') or record.get('failure')) and (
        read_time(record['stopped']) >= since - TOLERANCE)


def _is_blocked(raw: Any) -> bool:
    return FINALIZER in (raw['metadata'].get('finalizers') or ())


def without_own(essence: Any) -> Any:
    """Without what the handlers themselves have patched."""
    return essence and {**essence, 'spec': {
        key: value for key, value in essence['spec'].items() if key not in ('own', 'stamp')}}


class Guarantees:
    """Hears of all commits and calls, and raises `Violation`."""

    def __init__(self, plan: Plan) -> None:
        self.features = plan.features
        self.seed = plan.seed
        self.exclusive = plan.replicas == 1
        """Whether there is never more than one operator."""
        self.is_calm = plan.is_calm
        trips = TRIPS * plan.latency[1]
        held = sorted(
            step.args['seconds'] for step in plan.steps
            if step.action == 'fault' and step.args['action'] in ('slow', 'delay')
            for _ in range(step.args['count']))
        self.writing = trips + sum(held[-PATCHES:])
        """How long (seconds) the writing of an outcome can take."""
        if 'admission' in plan.features:
            self.writing += REVIEW_TRIPS * plan.latency[1]
        if any(step.action == 'exhaust' for step in plan.steps):
            self.writing += REFUSAL
        reviews = len(plan.features & {'sync mutating', 'sync validating'})
        self.writing += reviews * WRITES * (max(REVIEW_TIMES) + max(threads.DELAYS))
        self.period = plan.flush_delay + 0.1 + trips
        if any(feature.startswith('sync ') for feature in plan.features):
            self.period += max(threads.DELAYS)
        """After how many seconds an outcome must be stored if the API does not fail."""
        self.objects: dict[str, Any] = {}
        """The existing objects as stored, by their uids."""
        self.names: dict[str, str] = {}
        self.calls: collections.defaultdict[str, list[Call]] = collections.defaultdict(list)
        self.running: collections.defaultdict[str, list[Call]] = collections.defaultdict(list)
        self.written: collections.defaultdict[str, list[tuple[int, Any]]] = (
            collections.defaultdict(list))
        """The versions of each object that operators have written, and by which process."""
        self.committed: collections.defaultdict[str, dict[int, float]] = (
            collections.defaultdict(dict))
        """When each version of an object was stored; 0 is for its creation."""
        self.stripped: dict[str, float] = {}
        """When others have removed the finalizer: a thread can have been on its way."""
        self.shown: dict[Any, dict[str, tuple[str | None, str]]] = collections.defaultdict(dict)
        """What the event handlers of each process were shown last: the type and the version."""
        self.edited: dict[str, float] = {}
        """When the essence was changed last by others."""
        self.states: collections.defaultdict[str, list[tuple[float, Any]]] = (
            collections.defaultdict(list))
        """The essences that each object has had, since when."""
        self.children: dict[str, Any] = {}
        self.others: set[str] = set()
        """The names of the objects that are only indexed."""
        self.served: dict[Any, set[str]] = {}
        """The objects in the first list of a process that is served older states."""
        self.missed: dict[Any, dict[str, float]] = {}
        """The newest versions that such a process was not served; infinite for gone objects."""
        self.unstored: dict[tuple[str, str], Call] = {}
        """The finished calls whose outcomes are not stored: by the object and the handler."""
        self.patches: dict[tuple[Any, str], Call] = {}
        """The calls of timers whose patches are not stored: by the process and the object."""
        self.companions: dict[tuple[Any, str, str], Call] = {}
        """The latest calls of daemons and timers: by the process, the object, and the handler."""
        self.shards: Any = None
        """Who holds which shards, if the objects are shared."""
        self.find_worker: Callable[[str], Any] = lambda uid: None
        """Find the process that has to work for an object."""

    # At each step.

    def start(self, process: Any, served: list[Any] | None = None) -> None:
        """
        Note what a process sees at its start: the ``served`` objects, if these are not the newest
        states.
        """
        if served is not None:
            shown = {raw['metadata']['uid']: raw for raw in served}
            self.served[process] = set(shown)
            self.missed[process] = dict.fromkeys(self.names.keys() - self.objects.keys(), math.inf)
            for uid, raw in self.objects.items():
                version = int(raw['metadata']['resourceVersion'])
                if uid not in shown or int(shown[uid]['metadata']['resourceVersion']) < version:
                    self.missed[process][uid] = version

    def take_over(self, process: Any) -> None:
        """Note that the watches of the new leader can still show older states of all objects."""
        self.missed[process] = {
            uid: int(raw['metadata']['resourceVersion']) for uid, raw in self.objects.items()}

    def is_stale(self, call: Call) -> bool:
        """Whether the handler sees an older state than others are served."""
        return call.version < self.missed.get(call.process, {}).get(call.uid, 0)

    def is_lost(self, call: Call) -> bool:
        """Whether the handler has seen an older state, and its process has known no newer one."""
        return self.is_stale(call) and not call.process.has_caught_up and not call.process.working

    def give_up(self, call: Call, body: Any, now: float) -> None:
        """Take the failure of a handler that is not called any more, as its time is over."""
        timeout = get_limits(self.seed, call.id, self.features).timeout
        previous = [other for other in self.calls[call.uid] if other.id == call.id]
        if timeout is None:
            raise Violation('limits', f"{call} has timed out, but has no timeout")
        last = previous[-1] if previous else None
        if last is None or (last.process is call.process and last.finished and last.ended == now
                            and not self.is_stale(last)):
            raise Violation('limits', f"{call} has timed out instead of an outcome")
        # An older state has an older record, and what was done for it is not always written. If it
        # is, the newest state has the record of a call that was about an older one.
        current = [other for other in previous if not self.is_stale(other)]
        record = get_progress(body).get(call.id.replace('/', '.'))
        recorded = [other for other in previous if record is not None
                    and abs(other.started - read_time(record['started'])) <= TOLERANCE]
        started = min(other.started for other in (last, *current[-1:], *recorded))
        if now < started + timeout - TOLERANCE and not self.is_stale(call):
            raise Violation('limits', f"{call} has timed out early")
        call.handled = get_handled(body)
        self.calls[call.uid].append(call)
        stored = self.objects.get(call.uid)
        if call.id in CHANGING and stored is not None and (
                not stored['metadata'].get('deletionTimestamp')):
            self.unstored[call.uid, call.id] = call

    def begin(self, call: Call, kwargs: Any, now: float) -> None:
        body = kwargs.get('body')
        others = [other for other in self.running[call.uid] if other.process.alive]
        if call.kind in SERIAL:
            clashing = [
                other for other in others if other.kind in SERIAL
                and not (other.kind == 'parent' and call.id.startswith('parent/'))
                and self._is_excluded(other, call)]
        else:
            clashing = [
                other for other in others if other.id == call.id and not other.is_abandoned
                and self._is_excluded(other, call)]
        clashing += [
            other for uid, calls in self.running.items() if uid != call.uid and (
                self.shards is None or self.shards.find(uid) == self.shards.find(call.uid))
            for other in calls if other.name == call.name and other.process is call.process
            and other.kind in SERIAL and call.kind in SERIAL]
        self.running[call.uid].append(call)
        self._check_stored(now)
        if clashing:
            raise Violation('one at a time', f"{call} begins while {clashing[0]} runs")
        if call.kind == 'event':
            event, known = kwargs['event'], self.shown[call.process].get(call.uid)
            version = event['object']['metadata']['resourceVersion']
            if known is not None and int(version) < int(known[1]):
                raise Violation('events', f"{call.uid} is shown as of {version} after {known[1]}")
            self.shown[call.process][call.uid] = event['type'], version
            return
        if self.needs_finalizer(body, call.process) and call.id not in ('children', 'timer') and (
                FINALIZER not in (body['metadata'].get('finalizers') or ())) and (
                call.kind == 'daemon' or not body['metadata'].get('deletionTimestamp')) and (
                now > self.stripped.get(call.uid, -math.inf) + max(threads.DELAYS) + (
                    # A daemon goes on until the write under way has ended, and all is looked at.
                    self.writing if call.kind == 'daemon' and (
                        call.retry or 'delayed daemon' in self.features) else 0.0)) and not (
                # It has begun for an older state, and the newest one is not looked at yet.
                call.kind == 'daemon' and call.retry and call.uid in self.missed.get(
                    call.process, ())):
            raise Violation('finalizer first', f"{call} begins without the finalizer")
        if call.kind == 'change' and call.id != 'children':
            self._check_repetition(call, body)
            self._check_delay(call, body, now)
            previous = [other for other in self.calls[call.uid] if other.id == call.id]
            self._check_limits(call, previous[-1] if previous else None)
            self._check_start(call)
            self.calls[call.uid].append(call)
            self.unstored.pop((call.uid, call.id), None)
        if call.kind == 'timer':
            self._check_patch(call)
        if call.kind in ('daemon', 'timer'):
            self._check_companion(call, now)
        if 'index' in self.features and call.id != 'children':
            self._check_index(call, kwargs['known'])
        if 'others' in self.features and call.process.is_indexed and (
                left := self.others - set(kwargs['others'])):
            raise Violation('full indices', f"{call} begins without {sorted(left)} in the index")

    def _is_excluded(self, other: Call, call: Call) -> bool:
        """Whether the other one must have ended before: a shard moves only when it is at rest."""
        is_handed_over = self.shards is not None and other.process.deposed_at < other.began
        return self.exclusive or self.is_calm or is_handed_over or other.process is call.process

    def _check_stored(self, now: float) -> None:
        """Check that all outcomes are stored in time, while the API works."""
        for call in self.unstored.values() if self.is_calm and self.exclusive else ():
            assert call.ended is not None
            if call.process.alive and now > call.ended + self.period and (
                    not self._is_told_as_lost(call)):
                raise Violation('stored in time', f"the end of {call} is not stored")

    def _is_told_as_lost(self, call: Call) -> bool:
        """Whether the call ended too late to be stored before the exit; the process says so."""
        return call.ended is not None and call.ended + self.writing > call.process.left_work_at

    def _check_patch(self, call: Call) -> None:
        """Check that the patch of the previous call of the timer has not been lost."""
        lost = self.patches.pop((call.process, call.uid), None)
        stored = self.objects.get(call.uid) or {}
        if stored and lost is not None and (  # what is gone, takes no patch
                (stored.get('status') or {}).get('timer') != lost.patch):  # it can be no change
            raise Violation('patches', f"{call} begins, the patch {lost.patch} is lost")

    def _check_repetition(self, call: Call, body: Any) -> None:
        is_stale = self.is_stale(call)
        stored = body if is_stale else self.objects.get(call.uid)
        call.handled = stored and get_handled(stored)
        if call.id == 'resuming' or not (self.exclusive or self.is_calm):
            return
        previous = [other for other in self.calls[call.uid] if other.id == call.id]
        if call.id in CHANGING and previous and self._is_shown(previous[-1], call) and (
                previous[-1].reason == call.reason) and (
                previous[-1].new == call.new == call.handled):
            raise Violation('not repeated', f"{call} begins again, it is handled")
        if not self.exclusive:
            return
        has_returned = False
        for earlier in reversed(self.calls[call.uid]):
            if earlier.id != call.id:
                has_returned |= earlier.new == call.handled != call.new
                continue
            if has_returned or earlier.is_reopened or (
                    earlier.handled, earlier.new) != (call.handled, call.new):
                break  # the object has had another state meanwhile, for any handler
            if earlier.finished and earlier.reason == call.reason:
                if self._is_shown(earlier, call):
                    raise Violation('not repeated', f"{call} begins again, its end is stored")
                if earlier.process is call.process and not self.is_stale(earlier):
                    raise Violation('not repeated', f"{call} begins again, it has finished")
                if is_stale or earlier.is_obscured or self.is_stale(earlier):
                    continue
                if self.is_calm and earlier.ended is not None and (
                        earlier.ended + self.period < earlier.process.gone_at):
                    raise Violation('not repeated', f"{call} begins again, it was not stored")
                if not earlier.process.killed and not self._is_told_as_lost(earlier):
                    raise Violation('not repeated', f"{call} begins again after a regular stop")

    def _is_shown(self, earlier: Call, call: Call) -> bool:
        """Whether the object, as a call sees it, shows that an earlier call has finished."""
        return earlier.persisted and not earlier.is_obscured and (
            not self.is_stale(call) or earlier.persisted_in <= call.version)

    def _check_companion(self, call: Call, now: float) -> None:
        """Check that a daemon or timer goes on as its latest call has ended, or begins anew."""
        key = call.process, call.uid, call.id
        last = self._find_companion(*key)
        self.companions[key] = call
        self._check_limits(call, last)
        if call.id == 'timer' and 'idle timer' in self.features and (
                'sync timer' not in self.features) and (  # a thread sees what has changed meanwhile
                now < self.committed[call.uid].get(call.version, 0.0) + IDLE - TOLERANCE):
            raise Violation('idle', f"{call} begins, the object has just changed")
        is_first = last is None or not call.continues(last)
        if is_first and f'delayed {call.id}' in self.features and (
                now < self.committed[call.uid].get(0, 0.0) + DELAY - TOLERANCE):
            raise Violation('delays', f"{call} begins, its object is too new")
        expected = 0
        if last is not None and not call.continues(last):
            if not last.stopped:  # e.g. it has ended by itself
                raise Violation('not repeated', f"{call} begins, the former one is not stopped")
        elif last is not None:
            if last.is_last or last.ended is None:
                raise Violation('not repeated', f"{call} begins again, it has ended")
            if last.outcome == 'retry' and now < last.ended + last.delay - TOLERANCE:
                raise Violation('delays', f"{call} begins {last.ended + last.delay - now:g}s early")
            expected = {'retry': last.retry + 1, 'interrupted': last.retry}.get(last.outcome, 0)
        if call.retry != expected:
            raise Violation('retries', f"{call} is the attempt {expected}")

    def end_companion(self, process: Any, uid: str, id: str, now: float) -> None:
        """Take the failure of a daemon or timer, as its time is over."""
        last, timeout = (
            self.companions[process, uid, id], get_limits(self.seed, id, self.features).timeout)
        if timeout is None or last.outcome not in ('interrupted', 'retry'):
            raise Violation('limits', f"{last} has timed out instead of its outcome")
        if now < last.started + timeout - TOLERANCE:
            raise Violation('limits', f"{last} has timed out early")
        last.outcome = 'failed'

    def is_over(self, process: Any, uid: str, id: str) -> bool:
        """Whether a daemon or timer has ended by itself for an object, in this process."""
        last = self._find_companion(process, uid, id)
        return last is not None and last.is_last and not last.stopped

    def _find_companion(self, process: Any, uid: str, id: str) -> Call | None:
        """Find the latest call of a daemon or timer, but not from before its shard was lost."""
        last = self.companions.get((process, uid, id))
        since = 0.0 if self.shards is None else self.shards.get_since(uid)
        return last if last is not None and last.began >= since else None

    def _check_limits(self, call: Call, last: Call | None) -> None:
        limits = get_limits(self.seed, call.id, self.features)
        if limits.retries is not None and call.retry >= limits.retries:
            raise Violation('limits', f"{call} is one attempt too many")
        if limits.timeout is not None and last is not None and last.ended is not None and (
                call.retry == last.retry + 1 and call.started == last.started) and (
                last.ended + last.delay > last.started + limits.timeout + TOLERANCE):
            raise Violation('limits', f"{call} begins when its time is over")

    def _check_start(self, call: Call) -> None:
        if call.retry == 0 and self.exclusive:
            before = max((other.ended for other in self.calls[call.uid]
                          if other.process is call.process and other.ended is not None),
                         default=0.0)
            if call.started < before - TOLERANCE:
                raise Violation('started', f"{call} is told to have begun {before - call.started:g}"
                                           f"s before the end of the one before")

    def _check_delay(self, call: Call, body: Any, now: float) -> None:
        previous = [other for other in self.calls[call.uid] if other.id == call.id]
        last = previous[-1] if previous else None
        if self.is_stale(call) and (last is None or last.process is not call.process):
            if not self.exclusive and any(
                    other.process is call.process and other.reason == call.reason
                    for other in previous):
                return  # of two that do not know of each other, each counts from its own attempt
            record = get_progress(body).get(call.id.replace('/', '.'), {})
            due = record.get('delayed') if record.get('purpose') == call.reason else None
            if due is not None and now < read_time(due) - TOLERANCE:
                raise Violation('delays', f"{call} begins before {due}")
            return  # it does not know of later attempts
        if last is None or last.reason != call.reason or last.ended is None:
            return
        if self.is_stale(last) and not self.is_stale(call):
            return  # what was done for an outdated state is not written
        if (last.process is call.process or last.process.alive) and any(
                last.version < version <= call.version and writer is not last.process
                for version, writer in self.written[call.uid]):
            return  # nor what was done when another operator had written newer records
        due = last.ended + last.delay
        if last.process.killed and (
                last.process.gone_at <= last.ended + max(self.period, self.writing)):
            record = get_progress(body).get(call.id.replace('/', '.'), {})  # if it is stored at all
            due = read_time(record['delayed']) if record.get('delayed') else 0.0
        if last.outcome == 'retry' and call.retry == last.retry + 1 and now < due - TOLERANCE:
            raise Violation('delays', f"{call} begins {due - now:g}s early")
        stored = self.objects.get(call.uid)
        has_returned = self.edited.get(call.uid, 0.0) > last.began and stored is not None and (
            without_own(get_essence(stored)) == without_own(call.new))
        later = [without_own(essence) == without_own(call.new)
                 for since, essence in self.states[call.uid] if since > last.began]
        has_returned |= False in later and True in later[later.index(False):]
        if last.began <= last.process.deposed_at:  # what was not stored in its term, is lost
            record = get_progress(body).get(call.id.replace('/', '.'), {})
            is_anew = call.id == 'resuming' and (record.get('success') or record.get('failure'))
            if record.get('purpose') == call.reason and not is_anew and (
                    call.retry < (record.get('retries') or 0)):
                raise Violation('retries', f"{call} follows retry {record['retries']} of a record")
            return
        if last.process is call.process and last.outcome == 'retry' and last.new == call.new and (
                call.retry != last.retry + 1 and not has_returned):
            raise Violation('retries', f"{call} follows retry {last.retry} of the same")

    def _check_index(self, call: Call, known: Any) -> None:
        if self.shards is not None and 'sharded index' in self.features:
            since, shard = self.shards.get_since(call.uid), self.shards.find(call.uid)
            for uid in self.objects if call.process.is_indexed else ():
                if self.shards.find(uid) == shard and uid not in known and (
                        self.edited.get(uid, 0.0) < since):
                    raise Violation('full indices', f"{call} begins without {uid} in the index")
            return
        for uid in self.objects if call.process.is_indexed else ():
            if self.edited.get(uid, 0.0) < call.process.started and uid not in known and (
                    uid in self.served.get(call.process, self.objects)):
                raise Violation('full indices', f"{call} begins without {uid} in the index")

    def end(self, call: Call, now: float) -> None:
        self.running[call.uid].remove(call)
        if call.kind == 'timer' and call.patch is not None and not call.process.is_deposed:
            self.patches[call.process, call.uid] = call
        self._check_stored(now)
        stored = self.objects.get(call.uid)
        if call.id in CHANGING and call.finished and stored is not None and (
                not stored['metadata'].get('deletionTimestamp')):
            self.unstored[call.uid, call.id] = call

    def depose(self, process: Any, uid: str | None = None) -> None:
        """Forget the patches of a former leader, maybe of one object: it writes none of them."""
        for key in [key for key in self.patches if key[0] is process and uid in (None, key[1])]:
            del self.patches[key]

    def commit(self, type: str, old: Any, new: Any, writer: Any, now: float) -> None:
        """Take a change of an object, and who has made it; None for others than the operator."""
        meta = new['metadata']
        uid = meta['uid']
        self.names[uid] = meta['name']
        self.committed[uid].setdefault(0, now)
        self.committed[uid][int(meta['resourceVersion'])] = now
        if type == 'DELETED':
            self.objects.pop(uid, None)
        else:
            self.objects[uid] = new
        if type == 'DELETED' or meta.get('deletionTimestamp'):
            self._forget_unstored(uid)
        if old is None or (get_essence(old) != get_essence(new) and writer is None):
            self.edited[uid] = now
        self.states[uid].append((now, get_essence(new)))
        for process, missed in self.missed.items():
            if process is not writer and process.lag is not None and not process.lag.is_over:
                missed[uid] = math.inf if type == 'DELETED' else int(meta['resourceVersion'])
        if old is not None and writer is None and _is_blocked(old) and not _is_blocked(new):
            self.stripped[uid] = now
        if writer is None or old is None:
            return
        self.written[uid].append((int(meta['resourceVersion']), writer))
        self._check_identity(new, uid)
        self._check_foreign(old, new)
        self._check_release(type, old, new, uid)
        if uid in self.missed.get(writer, ()):
            for call in self.calls[uid]:
                call.is_obscured |= call.process is not writer
        self._note_persisted(old, new, uid, writer)

    def _check_identity(self, new: Any, uid: str) -> None:
        for key, value in (new.get('status') or {}).items():
            if isinstance(value, dict) and value.get('uid', uid) != uid:
                raise Violation('the intended object', f"status.{key} of {uid} is of another one")

    def _check_foreign(self, old: Any, new: Any) -> None:
        for part in ('labels', 'ownerReferences', 'deletionTimestamp'):
            if old['metadata'].get(part) != new['metadata'].get(part):
                raise Violation('the work of others', f"{part} is changed by the operator")
        if without_own(get_essence(old)) != without_own(get_essence(new)):
            raise Violation('the work of others', "the spec is changed by the operator")
        before, after = (
            [key for key in raw['metadata'].get('finalizers') or () if key != FINALIZER]
            for raw in (old, new))
        if before != after:
            raise Violation('the work of others', f"finalizers {before} become {after}")
        before, after = (
            {key: value for key, value in (raw['metadata'].get('annotations') or {}).items()
             if not key.startswith(PREFIX)} for raw in (old, new))
        if before != after:
            raise Violation('the work of others', f"annotations {before} become {after}")

    def _check_release(self, type: str, old: Any, new: Any, uid: str) -> None:
        had = FINALIZER in (old['metadata'].get('finalizers') or ())
        has = type != 'DELETED' and FINALIZER in (new['metadata'].get('finalizers') or ())
        if not had or has:
            return
        if self.exclusive and any(
                call.id == 'daemon' and call.process.alive and not call.is_abandoned
                for call in self.running[uid]):
            raise Violation('daemons first', f"{uid} is released while its daemon runs")
        if old['metadata'].get('deletionTimestamp') and 'deletion' in self.features and (
                self.is_on(old)) and not any(
                call.id == 'deletion' and call.finished for call in self.calls[uid]):
            raise Violation('deletions are handled', f"{uid} is released unhandled")

    def _note_persisted(self, old: Any, new: Any, uid: str, writer: Any) -> None:
        progress = get_progress(new)
        is_closed = get_handled(old) != get_handled(new)
        latest: dict[str, Call] = {}
        for call in self.calls[uid]:
            if call.ended is not None and (
                    call.persisted or call.process is writer or not self.is_stale(call)):
                latest[call.id] = call
        for id, call in latest.items():
            record = progress.get(id.replace('/', '.'), {})
            # What was done for an older state does not count, unless this is what is stored.
            is_stored = is_closed and (not self.is_stale(call) or (
                without_own(get_handled(new)) == without_own(call.new)))
            if call.finished and (is_stored or _has_ended(record, since=call.began)):
                self._check_outcome(call, old, record)
                if not call.persisted:
                    call.persisted_in = int(new['metadata']['resourceVersion'])
                call.persisted = True
                self.unstored.pop((uid, id), None)
        if is_closed:
            self._note_reopened(get_handled(old), get_handled(new), uid)
        if not progress:
            self._forget_unstored(uid)  # the cycle is closed
        shown = (new.get('status') or {}).get('timer')
        for key, call in list(self.patches.items()):
            if call.uid == uid and call.patch == shown:
                del self.patches[key]

    def _note_reopened(self, former: Any, handled: Any, uid: str) -> None:
        """
        Note for which handlers the last-handled state is not the one that they have seen.

        All handlers share it. So, if they have seen different states, because others have edited
        the object meanwhile, those that are ahead see the same change again with the others. They
        also do so if it was the one that they have seen, and the object has had another one since.
        """
        latest = {call.id: call for call in self.calls[uid] if call.finished}
        for call in latest.values():
            has_left = former == call.new and call.ended is not None and any(
                since > call.ended and essence == handled for since, essence in self.states[uid])
            call.is_reopened |= without_own(handled) != without_own(call.new) and (has_left or any(
                without_own(other.new) != without_own(call.new) for other in latest.values()))

    def _check_outcome(self, call: Call, old: Any, record: Any) -> None:
        """Check that an outcome is stored as it was, when it is."""
        known = get_progress(old).get(call.id.replace('/', '.'), {})
        is_new = (record.get('success') or record.get('failure')) and not (
            known.get('success') or known.get('failure'))
        if self.exclusive and not call.persisted and is_new and (
                bool(record.get('success')) != (call.outcome == 'done')):
            raise Violation('outcomes', f"the end of {call} is stored as {record}")

    def _forget_unstored(self, uid: str) -> None:
        """Note that it does not matter any more which handlers of the object have finished."""
        for key in [key for key in self.unstored if key[0] == uid]:
            del self.unstored[key]

    def is_on(self, raw: Any) -> bool:
        return (raw['metadata'].get('labels') or {}).get('on') == 'yes'

    def is_needed(self, id: str, raw: Any) -> bool:
        """Whether a handler is called for an object in this state, if its feature is there."""
        return {'main': 'filtered main' not in self.features or self.is_on(raw),
                'parent/mid/deep': 'nested' in self.features}.get(id, True)

    def needs_finalizer(self, raw: Any, process: Any) -> bool:
        """Whether the object needs the finalizer for the handlers that this process calls."""
        uid = raw['metadata']['uid']
        return self.is_on(raw) and ('deletion' in self.features or any(
            id in self.features and not self.is_over(process, uid, id)
            for id in ('daemon', 'timer')))

    def forget_gone(self) -> None:
        """Forget the objects that do not exist any more, so that a long run takes no memory."""
        for known in (self.calls, self.running, self.names, self.edited, self.states, self.written,
                      self.stripped, self.committed, *self.shown.values()):
            for uid in known.keys() - self.objects.keys():
                del known[uid]
        for key in [key for key in self.companions if key[1] not in self.objects]:
            del self.companions[key]

    @property
    def is_ticking(self) -> bool:
        """Whether any timer is under way."""
        return any(call.kind == 'timer' for calls in self.running.values() for call in calls)

    # At rest.

    def check_rest(self, processes: list[Any], indices: dict[Any, Any]) -> None:
        """Check what must hold when nothing happens any more; all faults have ended."""
        for uid, raw in self.objects.items():
            self._check_object(uid, raw, self.find_worker(uid))
        self._check_running()
        for process in processes:
            if process.working:
                self._check_process(process, indices.get(process))
        self._check_children()

    def _find_done(self, uid: str, id: str) -> list[Call]:
        """Find the calls that have finished, but for what was lost with a process."""
        return [call for call in self.calls[uid] if call.id == id and call.finished
                and (call.persisted or not (
                    call.process.killed or self.is_lost(call) or self._is_told_as_lost(call)))]

    def _check_object(self, uid: str, raw: Any, working: Any) -> None:
        meta = raw['metadata']
        name = meta['name']
        if meta.get('deletionTimestamp'):
            raise Violation('nothing is held', f"{name} is still there: {meta['finalizers']}")
        has = FINALIZER in (meta.get('finalizers') or ())
        if has != self.needs_finalizer(raw, working):
            raise Violation('finalizers', f"{name} {'has' if has else 'lacks'} the finalizer")
        if get_progress(raw):
            raise Violation('nothing is left', f"{name} has the progress of {get_progress(raw)}")
        if self.features & {'patching', 'parent'} or (
                'main' in self.features and self.is_needed('main', raw)):
            handled, essence = get_handled(raw), get_essence(raw)
            if handled != essence:
                raise Violation('all is handled', f"{name} is {essence}, handled is {handled}")
        for id in CHANGING:
            if id.split('/')[0] not in self.features or not self.is_needed(id, raw):
                continue
            done = [call for call in self._find_done(uid, id)
                    if self.exclusive or call.persisted or not self.is_stale(call)]
            if not done or without_own(done[-1].new) != without_own(get_essence(raw)):
                seen = done[-1].new if done else None
                raise Violation('all is handled', f"{id} of {name} has seen {seen} last")
        if 'timer' in self.features and self.is_on(raw) and (
                not self.is_over(working, uid, 'timer')):
            status = (raw.get('status') or {}).get('timer') or {}
            if status.get('n') != raw['spec']['n']:
                raise Violation('timers', f"the timer of {name} has seen {status} last")
        if 'patching event' in self.features and (
                (raw.get('status') or {}).get('event') != raw['spec']['n']):
            raise Violation('events', f"the patch of the event handler for {name} is lost")
        if 'main' in self.features and self.is_needed('main', raw):
            done = [call for call in self._find_done(uid, 'main')
                    if call.persisted or not self.is_stale(call)]
            result = (raw.get('status') or {}).get('main')
            if done and done[-1].outcome == 'done' and (result or {}).get('n') != raw['spec']['n']:
                raise Violation('results', f"the result of main of {name} is {result}")
        if 'field' in self.features and raw['spec'].get('f') is not None:
            done = [call for call in self.calls[uid] if call.id == 'field/spec.f' and call.finished]
            if not done or done[-1].new['spec'].get('f') != raw['spec']['f']:
                raise Violation('all is handled', f"field of {name} has missed a change")

    def _check_running(self) -> None:
        running = [call for calls in self.running.values() for call in calls
                   if call.process.alive and call.id != 'timer']
        for call in running:
            if call.kind != 'daemon':
                raise Violation('rest', f"{call} still runs")
        if 'daemon' in self.features:
            daemons = sorted(call.uid for call in running if call.kind == 'daemon')
            wanted = sorted(uid for uid, raw in self.objects.items()
                            if self.is_on(raw) and not self.is_over(
                                self.find_worker(uid), uid, 'daemon'))
            if daemons != wanted:
                raise Violation('daemons', f"they run for {daemons}, not for {wanted}")
        for call in running:
            if call.process is not self.find_worker(call.uid):
                raise Violation('daemons', f"{call} runs in {call.process.name}")

    def _check_process(self, process: Any, known: Any) -> None:
        shown = self.shown[process]
        if 'event' in self.features:
            for uid, raw in self.objects.items():
                version = raw['metadata']['resourceVersion']
                if self.find_worker(uid) is process and shown.get(uid, (None, ''))[1] != version:
                    raise Violation('events', f"{uid} is shown as {shown.get(uid)}, not {version}")
            # What is gone while nobody leads, a returning leader does not know, as after a restart.
            has_terms = 'election' in self.features or self.shards is not None
            for uid, (type, _) in () if has_terms else shown.items():
                if uid not in self.objects and type != 'DELETED':
                    raise Violation('events', f"the deletion of {uid} is not shown")
        if 'index' in self.features:
            actual = {key: sorted(values) for key, values in known.items()}
            wanted: dict[Any, list[Any]] = collections.defaultdict(list)
            for uid, raw in sorted(self.objects.items()):  # several can have the same number
                if 'sharded index' in self.features and self.find_worker(uid) is not process:
                    continue
                wanted[uid].append(raw['spec']['n'])
                wanted[raw['spec']['n']].append(uid)
            if actual != wanted:
                raise Violation('indices', f"the index is {actual}, not {wanted}")
        if 'resuming' in self.features and self.exclusive:  # peers resume objects for each other
            for uid, raw in self.objects.items():
                is_old = self.created_before(raw, process) and (
                    uid in self.served.get(process, self.objects))
                done = [call for call in self.calls[uid]
                        if call.id == 'resuming' and call.process is process and call.finished]
                if is_old and not done:
                    raise Violation('resuming', f"{uid} is not resumed")
                current = [call for call in done if not self.is_stale(call)]
                if len(current) > 1:
                    raise Violation('resuming', f"{uid} is resumed {len(current)} times")

    def created_before(self, raw: Any, process: Any) -> bool:
        """Whether the object was there, and not only under review, when the process started."""
        return bool(self.states[raw['metadata']['uid']][0][0] < process.started)

    def _check_children(self) -> None:
        if 'children' not in self.features:
            return
        wanted = {}
        for uid, raw in self.objects.items():
            for child in make_children(raw['metadata']['name'], uid, raw['spec']):
                wanted[child['metadata']['name']] = child['data']
        actual = {name: raw.get('data') for name, raw in self.children.items()}
        if actual != wanted:
            raise Violation('children', f"there are {actual}, not {wanted}")
