"""
Verdicts: how what the new version makes of an object differs from what the one in production makes.
"""
import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from kopf._core.actions import essences
from kopf._kits.planning import comparing
from kopf._kits.planning.plans import Field, Place, make_field, show
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.statuses import Obj
from kopf._kits.testing import snapshots

Category = Literal['missing', 'different', 'more', 'later', 'refused']
CATEGORIES: Sequence[Category] = get_args(Category)

WHOLE: comparing.Path = ()
"""The path of the object itself: whether it exists."""

DELETION: comparing.Path = ('metadata', 'deletionTimestamp')
MAX_VALUE = 80
"""How many characters of a value are shown."""

NOTES: Mapping[tuple[Category, bool], str] = {
    ('missing', False): "only production has created it",
    ('missing', True): "only production has deleted it",
    ('more', False): "only the new version has created it",
    ('more', True): "only the new version has deleted it"}
"""By the category, and by whether the object has existed before."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A field that differs: its values in production, and by the new version."""
    category: Category
    theirs: Any = None
    ours: Any = None
    note: str = ''


Findings = Mapping[comparing.Path, Finding]


@dataclasses.dataclass(frozen=True)
class Difference:
    """
    A difference that is told: of one category, for one object.

    ``handlers`` are those of the new version that have written to the object. The ``old`` values
    of the fields are those of production, and the ``new`` ones are those of the new version. The
    values of Secrets are concealed.
    """
    category: Category
    kind: str
    """The kind in lower case, as in the metrics."""
    place: Place
    handlers: Sequence[str] = ()
    fields: Sequence[Field] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        parts = [*self.notes, *(
            f"{field.path}: {show(field.old, size=MAX_VALUE)} in production, "
            f"{show(field.new, size=MAX_VALUE)} here" for field in self.fields)]
        by = f" (by {', '.join(self.handlers)})" if self.handlers else ''
        return f"{self.category}: {self.place}: {'; '.join(parts)}{by}"


def compare(
        kind: Kind, base: Obj | None, real: Obj | None, local: Obj | None,
        names: Mapping[str, str],
) -> Findings:
    """
    Find the fields that differ between the object in production and the local one.

    Both come from the same base, which has the changes of all others; each is None if the object
    does not exist there. ``names`` are what uids stand for, if these differ by themselves.
    """
    if real is None or local is None:
        category: Category = 'missing' if (real is None) == (base is not None) else 'more'
        note = NOTES[category, base is not None]
        return {} if real is local else {WHOLE: Finding(category, note=note)}
    is_apart = real['metadata']['uid'] != local['metadata']['uid']  # each has created it
    before, upstream, here = (_normalize(kind, obj, names, is_new=is_apart)
                              for obj in ({} if base is None else base, real, local))
    written = [[path for path, _, _ in comparing.compare(before, state, ())]
               for state in (upstream, here)]
    found = {}
    for path, theirs, ours in comparing.compare(upstream, here, ()):
        is_theirs, is_ours = (_touches(path, paths) for paths in written)
        found[path] = Finding(
            'different' if is_theirs == is_ours else 'missing' if is_theirs else 'more',
            theirs, ours)
    return found


def describe(
        kind: Kind, place: Place, findings: Findings, handlers: Collection[str],
) -> list[Difference]:
    """Make the differences of an object: one of each category."""
    grouped: dict[Category, list[tuple[comparing.Path, Finding]]] = {}
    for path, finding in findings.items():
        grouped.setdefault(finding.category, []).append((path, finding))
    return [
        Difference(
            category, kind.kind.lower(), place, sorted(handlers) if category != 'missing' else (),
            [make_field(kind, path, finding.theirs, finding.ours)
             for path, finding in grouped[category] if not finding.note],
            [finding.note for _, finding in grouped[category] if finding.note])
        for category in CATEGORIES if category in grouped]


def _normalize(kind: Kind, obj: Obj, names: Mapping[str, str], *, is_new: bool) -> Any:
    """Leave out what the operators keep for themselves, and what differs by itself."""
    if not obj:
        return {}
    made = comparing.normalize(kind, obj, is_new=is_new)
    metadata = obj['metadata']
    made['metadata'] |= {
        'labels': {key: value for key, value in (metadata.get('labels') or {}).items()
                   if not key.startswith(essences.OWN_PREFIX)},
        'finalizers': dict.fromkeys(metadata.get('finalizers') or (), True),
        'deletionTimestamp': 'deletionTimestamp' in metadata}
    if isinstance(made.get('status'), Mapping):
        made['status'] = {key: value for key, value in made['status'].items() if key != 'kopf'}
    text = json.dumps(comparing.name_uids(comparing.hide_times(made), names))
    return json.loads(snapshots.GENERATION.sub('"observedGeneration": 0', text))


def _touches(path: comparing.Path, others: Iterable[comparing.Path]) -> bool:
    """Whether any of the paths is the path, or is a part of it, or the other way around."""
    return any(path[:len(other)] == other[:len(path)] for other in others)
