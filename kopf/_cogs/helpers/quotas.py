"""
Quotas per key: a burst at first, then a slow trickle.

This is the token bucket by which ``client-go`` keeps the floods of events of single objects away
from the API. It has no clock of its own, so that it can be told any time.
"""

import collections
import dataclasses
import threading


@dataclasses.dataclass(slots=True)
class _Bucket:
    tokens: float
    time: float
    refused: int = 0


class Quotas:
    """
    A quota for every key: ``burst`` takings at once, refilled by one in every ``period`` seconds.

    At most ``capacity`` keys are remembered; those not used for the longest time are forgotten, and
    so begin with a full burst when they come back. It can be used from several threads.
    """

    def __init__(self, *, burst: int, period: float, capacity: int = 4096) -> None:
        self.burst = burst
        self.period = period
        self.capacity = capacity
        self._buckets: collections.OrderedDict[str, _Bucket] = collections.OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str, now: float) -> int | None:
        """
        Take one from the quota of the key, at the monotonic time in seconds.

        Returns `None` if it is used up; else, how many times it was refused since the last success.
        """
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket(tokens=self.burst, time=now)
                if len(self._buckets) > self.capacity:
                    self._buckets.popitem(last=False)
            else:
                self._buckets.move_to_end(key)
                refill = max(0.0, now - bucket.time) / self.period
                bucket.tokens = min(self.burst, bucket.tokens + refill)
                bucket.time = now

            if bucket.tokens < 1:
                bucket.refused += 1
                return None
            refused, bucket.refused = bucket.refused, 0
            bucket.tokens -= 1
            return refused
