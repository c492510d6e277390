"""
Rate limits: own ones by token buckets, and those of servers by the header ``Retry-After``.

Token buckets allow a burst at first, then a slow constant rate, as in client-go. Their time is an
argument everywhere: monotonic, in seconds.
"""
import collections
import contextlib
import datetime
import math
import threading


class TokenBucket:
    """
    A token bucket: it holds at most ``burst`` tokens, and gets one more every ``period`` seconds.
    """
    __slots__ = ('_burst', '_period', '_time', '_tokens', 'refused')

    def __init__(self, *, burst: float, period: float, now: float) -> None:
        self._burst = burst
        self._period = period
        self._tokens = burst
        self._time = now
        self.refused = 0
        """How many times in a row `take` has failed."""

    def take(self, now: float) -> bool:
        """Take a token; return false if there is none."""
        self._refill(now)
        if self._tokens < 1:
            self.refused += 1
            return False
        self.refused = 0
        self._tokens -= 1
        return True

    def empty(self, now: float) -> None:
        """Remove all tokens; the next one comes after a whole period."""
        self._tokens = 0
        self._time = now

    def get_wait(self, now: float) -> float:
        """Get the time (seconds) until there is a token; 0 if there is one."""
        self._refill(now)
        return self._period * max(0.0, 1 - self._tokens)

    def _refill(self, now: float) -> None:
        refill = max(0.0, now - self._time) / self._period
        self._tokens = min(self._burst, self._tokens + refill)
        self._time = max(self._time, now)  # several threads can come in the wrong order


class KeyedBuckets:
    """
    A token bucket for each key.

    At most ``capacity`` buckets are kept. The least recently used bucket is dropped; its key begins
    with a full burst when it comes back. It can be used from several threads.
    """

    def __init__(self, *, burst: int, period: float, capacity: int = 4096) -> None:
        self.burst = burst
        self.period = period
        self.capacity = capacity
        self._buckets: collections.OrderedDict[str, TokenBucket] = collections.OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str, now: float) -> int | None:
        """
        Take a token of the key.

        Returns None if there is none; otherwise, how many times it has failed before, in a row.
        """
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = TokenBucket(
                    burst=self.burst, period=self.period, now=now)
                if len(self._buckets) > self.capacity:
                    self._buckets.popitem(last=False)
            else:
                self._buckets.move_to_end(key)
            refused = bucket.refused
            return refused if bucket.take(now) else None


def parse_retry_after(
        value: str | None, *, limit: float, now: datetime.datetime | None = None,
) -> float | None:
    """
    Parse the header ``Retry-After``, which is either a number of seconds or a date (RFC 9110).

    Returns the seconds from now, at most the ``limit``; None if the header is absent or wrong.
    """
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return min(max(0.0, seconds), limit) if math.isfinite(seconds) else None
    import email.utils  # it takes long, and is rarely needed
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    seconds = (when - (now or datetime.datetime.now(datetime.UTC))).total_seconds()
    return min(max(0.0, seconds), limit)
