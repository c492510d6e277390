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
    parts = [reason] if reason else [] if until or deletion == 'allow' else ['true']
    wanted = pauses.Pause(reason, allows_deletion=deletion == 'allow')
    if until is not None:
        try:
            end = pauses.parse_time(until)
        except ValueError as e:
            raise ValueError(
                f"--until={until} is no time in ISO 8601, such as 2026-12-01T08:00Z.") from e
        if end <= now:
            raise ValueError(f"--until={until} is in the past: it is {end}.")
        parts.append(f'until={end.isoformat()}')
        wanted = wanted._replace(until=end)
    if wanted.allows_deletion:
        parts.append('deletion=allow')
    text = '; '.join(parts)
    if pauses.parse(text) != wanted or text.strip().lower() == pauses.NO:
        raise ValueError(f"The reason {reason!r} would be read as something else. Use other words.")
    return text
