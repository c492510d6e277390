"""
The texts of ``kopf pause``: what people type is made an annotation.
"""
import datetime

from kopf._core.intents import pauses


def compose(*, reason: str, until: str | None, deletion: str, now: datetime.datetime) -> str:
    """
    Compose an annotation.

    :raises ValueError: if the time is none, or is over, or if the reason reads as something else.
    """
    end, parts = None, [reason] if reason else []
    if until is not None:
        try:
            end = pauses.parse_time(until)
        except ValueError as e:
            raise ValueError(
                f"--until={until} is no time in ISO 8601, such as 2026-12-01T08:00Z.") from e
        if end <= now:
            raise ValueError(f"--until={until} is in the past: it is {end}.")
        parts.append(f'until={end.isoformat()}')
    if deletion == 'allow':
        parts.append('deletion=allow')
    text = '; '.join(parts) or 'true'
    wanted = pauses.Pause(reason, end, allows_deletion=deletion == 'allow')
    if pauses.parse(text) != wanted or text.strip().lower() == pauses.NO:
        raise ValueError(f"The reason {reason!r} would be read as something else. Use other words.")
    return text
