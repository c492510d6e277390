"""
The header ``Retry-After`` of HTTP responses (RFC 9110).
"""
import contextlib
import datetime
import email.utils
import math


def parse(
        value: str | None, *, limit: float, now: datetime.datetime | None = None,
) -> float | None:
    """
    Parse the header, which is either a number of seconds or a date.

    Returns the seconds from now, at most the ``limit``; None if the header is absent or wrong.
    """
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return min(max(0.0, seconds), limit) if math.isfinite(seconds) else None
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    seconds = (when - (now or datetime.datetime.now(datetime.UTC))).total_seconds()
    return min(max(0.0, seconds), limit)
