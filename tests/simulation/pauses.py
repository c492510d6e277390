"""
The pauses of objects: what users ask for by the annotation, and what it must prevent.

A pause counts from when an operator has seen it: its watch can be late. Sync handlers can wait for
a thread after they are called, so they are not checked.
"""
import datetime
from typing import Any

from kopf._kits.testing import processes
from tests.simulation.guarantees import FINALIZER, TOLERANCE, Guarantees, Violation

ANNOTATION = 'kopf.dev/paused'
EXEMPT = ('event',)
"""The kinds of handlers that go on in a pause."""


def make_text(*, until: float | None, allows: bool) -> str:
    """Make an annotation. The end is a time of the loop."""
    parts = ["tests"]
    if until is not None:
        end = processes.ORIGIN + datetime.timedelta(seconds=until)
        parts.append(f'until={end.isoformat()}')
    if allows:
        parts.append('deletion=allow')
    return '; '.join(parts)


def is_paused(raw: Any, now: float) -> bool:
    meta = raw['metadata']
    text = (meta.get('annotations') or {}).get(ANNOTATION)
    if text is None or ('deletion=allow' in text and meta.get('deletionTimestamp')):
        return False
    ends = [part.partition('=')[2] for part in text.split('; ') if part.startswith('until=')]
    return all(
        now < (datetime.datetime.fromisoformat(end) - processes.ORIGIN).total_seconds() - TOLERANCE
        for end in ends)


class Pauses:
    """Hears what the operators see, and which handlers they call; raises `Violation`."""

    def __init__(self, guarantees: Guarantees) -> None:
        self._guarantees = guarantees
        self._seen: dict[Any, tuple[Any, float]] = {}
        """By the process and the uid: the newest state, and since when it is a paused one."""

    def see(self, process: Any, uid: str, raw: Any, now: float) -> None:
        former, since = self._seen.get((process, uid), (None, now))
        is_longer = former is not None and is_paused(former, now)
        self._seen[process, uid] = raw, since if is_longer else now

    def begin(self, call: Any, now: float) -> None:
        raw, since = self._seen.get((call.process, call.uid), (None, now))
        if call.kind in EXEMPT or f'sync {call.id}' in self._guarantees.features:
            return
        if raw is not None and is_paused(raw, now) and now > since + TOLERANCE:
            raise Violation('pauses', f"{call} begins, it is paused")

    def write(self, old: Any, new: Any, now: float) -> None:
        """Check that no operator releases an object in a pause: it tests the version for that."""
        had, has = (FINALIZER in (raw['metadata'].get('finalizers') or ()) for raw in (old, new))
        if had and not has and old['metadata'].get('deletionTimestamp') and is_paused(old, now):
            raise Violation('deletions wait', f"{old['metadata']['name']} is released in a pause")

    def check_rest(self, now: float) -> None:
        """Check the paused objects at rest."""
        guarantees = self._guarantees
        for uid, raw in guarantees.objects.items():
            if not is_paused(raw, now):
                continue
            running = [call for call in guarantees.running[uid] if call.process.alive]
            if running:
                raise Violation('pauses', f"{running[0]} goes on, it is paused")
            working = guarantees.find_worker(uid)
            is_held = FINALIZER in (raw['metadata'].get('finalizers') or ())
            if not is_held and working is not None and guarantees.needs_finalizer(raw, working):
                raise Violation('finalizers', f"{raw['metadata']['name']} could be deleted")
