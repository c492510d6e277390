"""
Samples of a long run: what the operator takes and how quickly it reacts, over the time.
"""

import collections
import dataclasses
import pathlib
import re
import statistics
from collections.abc import Iterable

SAMPLED = {
    'memory, MB': 'memory', 'allocated blocks, thousands': 'blocks', 'threads': 'threads',
    'file descriptors': 'descriptors', 'tasks': 'tasks', 'timers of the loop': 'scheduled',
    'reaction p50, ms': 'p50', 'reaction p99, ms': 'p99'}
"""The curves, by their titles."""

WARM_UP = 60.0
"""How long (seconds) after its start an operator grows anyway: not counted for the slopes."""

BYTES_MB = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    at: float
    """In seconds since the beginning of the run."""
    life: int
    """How many times the operator was started before."""
    age: float
    """For how long (seconds) this operator runs."""
    is_calm: bool
    """Whether no fault has been in effect since the previous sample."""
    memory: float
    """It includes the memory that was free again, but is not given back to the system."""
    blocks: float
    """In thousands. If they do not grow, nothing leaks, whatever the memory does."""
    threads: int
    descriptors: int
    tasks: float
    scheduled: float
    reactions: int
    p50: float | None
    p99: float | None


@dataclasses.dataclass(frozen=True)
class Slope:
    """How a curve goes, apart from faults, within the lives of the operators."""
    mean: float
    per_hour: float

    @property
    def relative(self) -> float:
        """The growth in an hour, as a fraction of the mean."""
        return self.per_hour / self.mean if self.mean else 0.0


def look(pid: int) -> dict[str, float]:
    """Look at a process from outside."""
    folder = pathlib.Path(f'/proc/{pid}')
    status = dict(re.findall(r'^(\w+):\s+(\d+)', (folder / 'status').read_text(), re.MULTILINE))
    return {'memory': int(status['VmRSS']) / BYTES_MB, 'threads': int(status['Threads']),
            'descriptors': len(list((folder / 'fd').iterdir()))}


def parse_metrics(text: str) -> dict[str, float]:
    """Sum up the metrics of Prometheus by their names, and by their names with handlers."""
    found: collections.defaultdict[str, float] = collections.defaultdict(float)
    for name, labels, value in re.findall(r'^(\w+)(?:\{(.*)\})? (\S+)$', text, re.MULTILINE):
        found[name] += float(value)
        for handler in re.findall(r'handler="([^"]*)"', labels):
            found[f'{name} {handler}'] += float(value)
    return dict(found)


class Journal:
    """What the handlers have seen, as they write it into a file."""

    def __init__(self, path: pathlib.Path) -> None:
        path.touch()
        self._file = path.open(encoding='utf-8')
        self._rest = ''
        self.latest: dict[str, dict[str, int]] = {'C': {}, 'E': {}}
        """The number of the last change that was seen, by the kind of the handler and the name."""

    def read(self) -> list[float]:
        """Read what is new; return the reaction times in milliseconds, in their order."""
        reactions = []
        *lines, self._rest = (self._rest + self._file.read()).split('\n')
        for line in lines:
            fields = line.split()
            if len(fields) == 4:  # else, the operator was killed while it wrote
                kind, name, number, seconds = fields
                self.latest[kind][name] = int(number)
                if kind == 'C':
                    reactions.append(float(seconds) * 1000)
        return sorted(reactions)

    def close(self) -> None:
        self._file.close()


def get_quantile(ordered: list[float], fraction: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else None


def fit(samples: Iterable[Sample], field: str) -> Slope | None:
    """
    Fit a line to each life of the operator, with the same slope for all; None without samples.

    Restarts begin a new line: a leak shows within the lives.
    """
    lives: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        value = getattr(sample, field)
        if sample.is_calm and sample.age >= WARM_UP and value is not None:
            lives.setdefault(sample.life, []).append((sample.at, float(value)))
    points = [(at - statistics.fmean(t for t, _ in life), value - statistics.fmean(
        v for _, v in life)) for life in lives.values() for at, value in life]
    spread = sum(at * at for at, _ in points)
    if not spread:
        return None
    mean = statistics.fmean(value for life in lives.values() for _, value in life)
    return Slope(mean, 3600 * sum(at * value for at, value in points) / spread)
