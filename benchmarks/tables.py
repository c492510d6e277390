"""Tables: the medians of the rounds with their spread, and the ratios to the others."""

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks import rows, subjects

Results = dict[str, dict[str, list[rows.Figures]]]
"""The figures of all rounds, by the rows and the subjects."""


class Figure(NamedTuple):
    """One figure of one subject: the median of the rounds, and the extremes."""
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        if f'{self.low:.2g}' == f'{self.high:.2g}':
            return f'{self.median:.3g}'
        return f'{self.median:.3g} ({self.low:.2g}–{self.high:.2g})'


class Line(NamedTuple):
    """What was measured in a row of the benchmarks: one metric, of several subjects."""
    work: str
    metric: str
    figures: dict[str, Figure]
    """By the subjects."""

    def get_ratio(self, other: str) -> float | None:
        """Get how many times the figure of this Kopf is that of the other subject."""
        own, others = self.figures.get('this'), self.figures.get(other)
        return own.median / others.median if own and others and others.median else None


def summarize(results: Results) -> list[Line]:
    known = rows.make_rows()
    return [
        Line(known[key].title, metric, {
            name: _summarize(figures[metric] for figures in rounds)
            for name, rounds in by_subject.items()
            if rounds and all(metric in figures for figures in rounds)})
        for key, by_subject in results.items()
        for metric in dict.fromkeys(
            metric for rounds in by_subject.values() for figures in rounds for metric in figures)]


def _summarize(values: Iterable[float]) -> Figure:
    values = sorted(values)
    return Figure(statistics.median(values), values[0], values[-1])


def find_ratios(results: Results) -> list[dict[str, Any]]:
    """
    Find for each figure the lowest and the highest ratio of this Kopf to each of the others.

    The ratios are those of the single rounds: in a round, all subjects are measured after another.
    """
    known = rows.make_rows()
    found = []
    for key, by_subject in results.items():
        own = by_subject.get('this', [])
        for metric in dict.fromkeys(metric for figures in own for metric in figures):
            ratios = {
                name: [float(f'{figures[metric] / others[metric]:.2f}')
                       for figures, others in zip(own, by_subject.get(name, []), strict=False)
                       if others.get(metric)]
                for name in subjects.OTHERS}
            found.append({
                'work': known[key].title, 'metric': metric.partition(',')[0],
                **{name: sorted({min(values), max(values)})
                   for name, values in ratios.items() if values}})
    return [row for row in found if len(row) > 2]


def find_problems(results: Results) -> list[str]:
    """
    Find the rows in which this Kopf has failed, or needs more patches than it may.

    The numbers of patches do not vary; the other figures do, so they are not held.
    """
    known = rows.make_rows()
    return [
        *(f"{key}: it has failed" for key, by_subject in results.items()
          if by_subject.get('this') == []),
        *(
            f"{key}: {figures[rows.PATCHES]:.3g} patches per object instead of {limit:.3g}"
            for key, by_subject in results.items() if (limit := known[key].patches) is not None
            for figures in by_subject.get('this', ()) if figures[rows.PATCHES] > limit),
    ]


def make_markdown(lines: list[Line]) -> str:
    names = list(dict.fromkeys(name for line in lines for name in line.figures))
    others = [name for name in subjects.OTHERS if name in names and 'this' in names]
    cells = [['work', 'per object', *names, *(f'this / {name}' for name in others)]]
    cells.append(['---'] * len(cells[0]))
    for line in lines:
        ratios = [line.get_ratio(name) for name in others]
        cells.append([
            line.work, line.metric,
            *(str(line.figures.get(name, '')) for name in names),
            *('' if ratio is None else f'{ratio:.2f}×' for ratio in ratios)])
    return '\n'.join(f"| {' | '.join(row)} |" for row in cells)
