"""
Series: the values of metrics by their labels, and how the library ``prometheus_client`` wants them.

The counters and histograms of that library take several times as long for each value: they lock, as
they are for all threads. These are for one thread; others can read them.
"""
import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from prometheus_client import core

K = TypeVar('K')
V = TypeVar('V')

Labels = tuple[str, ...]


class Count:
    """A number that grows; that of a gauge can also fall."""
    __slots__ = ('_value',)

    def __init__(self) -> None:
        self._value = 0

    def add(self, number: int = 1) -> None:
        self._value += number

    def get_parts(self) -> tuple[float]:
        return (self._value,)


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

    def get_parts(self) -> tuple[list[tuple[str, int]], float]:
        """Get for each bound, infinity included, how many values are not above it; and the sum."""
        bounds = [*map(repr, self._bounds), '+Inf']
        return list(zip(bounds, itertools.accumulate(self._counts), strict=True)), self.sum


def _make_metric(
        cls: Callable[..., Any], name: str, text: str, labels: Labels,
        values: Mapping[Labels, float | Count | Histogram],
) -> core.Metric:
    metric = cls(name, text, labels=labels)
    for key, value in values.items():
        parts = (value,) if isinstance(value, int | float) else value.get_parts()
        metric.add_metric(key, *parts)
    return cast(core.Metric, metric)


make_counter = functools.partial(_make_metric, core.CounterMetricFamily)
"""Make a counter of its name, description, labels, values. The name ends with ``_total``."""

make_gauge = functools.partial(_make_metric, core.GaugeMetricFamily)
make_histogram = functools.partial(_make_metric, core.HistogramMetricFamily)


class Made(dict[K, V]):
    """A dict that makes missing values by their keys."""

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        self[key] = self._make(key)
        return self[key]


class Metric(Made[Labels, V]):
    """A metric: what is counted for all combinations of labels, from their first use."""

    def __init__(
            self, export: Callable[..., core.Metric], make: Callable[[], V],
            name: str, text: str, labels: Labels,
    ) -> None:
        super().__init__(lambda _: make())
        self._export = functools.partial(export, name, text, labels)

    def export(self) -> core.Metric:
        return self._export(self.copy())
