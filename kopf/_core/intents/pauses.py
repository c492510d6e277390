"""
Pauses of single objects, for which people ask with an annotation.

The annotation has the reason, and optionally, separated by semicolons, until when the pause lasts,
and whether the object can be deleted meanwhile:
``Moving the disks; until=2026-12-01T00:00Z; deletion=allow``. Any value pauses the object, except
for ``false``.
"""
import datetime
from typing import Any, NamedTuple

from kopf._cogs.structs import bodies, texts

NO = 'false'
"""The value with which the annotation does not pause the object."""


class Pause(NamedTuple):
    """What an annotation says."""
    reason: str
    until: datetime.datetime | None = None
    """When the pause ends, timezone-aware; None if only the removal of the annotation ends it."""
    allows_deletion: bool = False
    """Whether a deletion is handled in spite of the pause."""
    problem: str | None = None
    """What is not understood in the annotation, in words. The pause has no end then."""

    def is_over(self, now: datetime.datetime) -> bool:
        return self.until is not None and self.until <= now

    def describe(self) -> str:
        until = f" until {self.until:%Y-%m-%d %H:%M:%S} UTC" if self.until is not None else ""
        reason = f": {texts.make_entry(self.reason)}" if self.reason else ""
        problem = f" ({self.problem})" if self.problem is not None else ""
        return f"The object is paused{until}{reason}{problem}"


def find(raw: bodies.RawBody, annotation: str | None) -> Pause | None:
    """
    Find what pauses the handlers of an object in this state, unless it `is_over`.

    None if there is no pause, or if the pause allows the deletion that is going on.
    """
    text = (raw['metadata'].get('annotations') or {}).get(annotation) if annotation else None
    if text is None or text.strip().lower() == NO:
        return None
    pause = parse(text)
    return None if pause.allows_deletion and 'deletionTimestamp' in raw['metadata'] else pause


def parse(text: str) -> Pause:
    """
    Read an annotation. What is not understood makes the pause longer, not shorter.

    >>> parse('Moving the disks; deletion=allow')
    Pause(reason='Moving the disks', until=None, allows_deletion=True, problem=None)
    """
    fields: dict[str, Any] = {}
    reasons, problems = [], []
    for part in map(str.strip, text.split(';')):
        name, _, value = part.partition('=')
        match name.strip():
            case 'until':
                try:
                    fields.setdefault('until', parse_time(value.strip()))
                except ValueError:
                    fields['until'] = None
                    problems.append(f"{part!r} is no time in ISO 8601")
            case 'deletion':
                fields['allows_deletion'] = value.strip() == 'allow'
                if value.strip() not in ('allow', 'wait'):
                    problems.append(f"{part!r} is neither deletion=allow nor deletion=wait")
            case _ if part and part.lower() != 'true':
                reasons.append(part)
    return Pause('; '.join(reasons), **fields, problem='; '.join(problems) or None)


def parse_time(text: str) -> datetime.datetime:
    """
    Read a time in ISO 8601; without a time zone, it is in UTC.

    :raises ValueError: if it is none.
    """
    time = datetime.datetime.fromisoformat(text.upper())  # Python refuses a lower-case "z"
    try:
        return time.replace(tzinfo=time.tzinfo or datetime.UTC).astimezone(datetime.UTC)
    except OverflowError:  # e.g. the end of the year 9999 in America; hours do not matter then
        return time.replace(tzinfo=datetime.UTC)
