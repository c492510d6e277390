"""
Histograms: how many values are in which range.

Those of ``prometheus_client`` take several times as long for each value: they lock, as they are for
all threads. These are for one thread; others can read them.
"""
import bisect
import itertools
from collections.abc import Sequence

QUEUE_BOUNDS = tuple(float(f'1e{exponent}') for exponent in range(-8, 4))
"""The bounds (seconds) of the work queue and of webhooks, as in controller-runtime."""

RECONCILE_BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0)
"""The bounds (seconds) of reconciliations, as in controller-runtime."""

HANDLER_BOUNDS = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""The bounds (seconds) of handlers: of quick ones, and of those that run for hours."""

LAG_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The bounds (seconds) of delays of the event loop."""


class Histogram:
    """Counts values by ranges. A bound belongs to the range below."""
    __slots__ = ('_bounds', '_counts', 'sum')

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def accumulate(self) -> list[tuple[float, int]]:
        """Get for each bound, infinity included, how many values are not above it."""
        return list(zip(
            [*self._bounds, float('inf')], itertools.accumulate(self._counts), strict=True))
