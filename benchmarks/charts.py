"""Charts: a page of HTML with the figures of a run as bars or curves, drawn by matplotlib."""

import datetime
import html
import io
import math
import os
import platform
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib import figure
from matplotlib.axes import Axes

from benchmarks import sampling, subjects, tables

COLORS = {
    'bare': '#9a9a9a', 'release': '#c98a2b', 'this': '#2b6cc9', 'uvloop': '#1f4f94',
    'metered': '#7aa7e6', 'traced': '#8a7ae6', 'go': '#2ba3a8', 'rust': '#b5532b'}

LINES = '#2b6cc9', '#2ba3a8', '#c98a2b', '#b5532b'

CALM, SERIOUS = '#b8b8b8', '#c0392b'
RESTARTS = ('SIGTERM', 'SIGKILL')

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title} of Kopf</title>
<style>
body {{ font: 16px system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
svg {{ max-width: 100%; height: auto }}
</style>
<h1>{title} of Kopf</h1>
<p>{when}, {where}. {legend}
To repeat: <code>{command}</code></p>
{charts}
"""


def make_page(lines: list[tables.Line]) -> str:
    """Make the page, with a chart of each line."""
    return _fill_page(
        [draw(line) for line in lines if any(each.high for each in line.figures.values())],
        title="Benchmarks", command='python -m benchmarks --peers --html FILE',
        legend="The bars are the medians of the rounds; the lines are the extremes.")


def make_curves_page(samples: list[sampling.Sample], faults: list[tuple[float, str]]) -> str:
    """Make the page of a long run, with a chart of each curve."""
    return _fill_page(
        [draw_curve(title, field, samples, faults) for title, field in sampling.SAMPLED.items()],
        title="Endurance", command='python -m benchmarks.endurance --html FILE',
        legend="The grey lines are faults; the red lines are restarts of the operator.")


def _fill_page(charts: list[str], *, title: str, legend: str, command: str) -> str:
    where = f'{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}'
    return PAGE.format(
        title=title, legend=legend, command=command, where=html.escape(where),
        when=datetime.datetime.now(datetime.UTC).date(), charts='\n'.join(charts))


def draw_curve(
        title: str, field: str, samples: list[sampling.Sample], faults: list[tuple[float, str]],
) -> str:
    drawing = figure.Figure(figsize=(8, 2), layout='constrained')
    _plot(drawing.subplots(), title, field, samples, faults)
    return _render(drawing)


def draw_curves(samples: list[sampling.Sample], faults: list[tuple[float, str]]) -> str:
    """Draw all curves of a long run as one picture."""
    drawing = figure.Figure(figsize=(8, 1.5 * len(sampling.SAMPLED)), layout='constrained')
    all_axes = drawing.subplots(len(sampling.SAMPLED), sharex=True)
    for axes, (title, field) in zip(all_axes, sampling.SAMPLED.items(), strict=True):
        _plot(axes, title, field, samples, faults)
    return _render(drawing)


def _plot(
        axes: Axes, title: str, field: str, samples: list[sampling.Sample],
        faults: list[tuple[float, str]],
) -> None:
    for color, is_restart in (CALM, False), (SERIOUS, True):  # one line of each color is smaller
        moments = [at / 60 for at, kind in faults if (kind in RESTARTS) == is_restart]
        axes.plot(
            [x for at in moments for x in (at, at, math.nan)], [0, 1, math.nan] * len(moments),
            color=color, linewidth=0.8, transform=axes.get_xaxis_transform())
    for life in sorted({sample.life for sample in samples}):
        points = [(sample.at / 60, value) for sample in samples if sample.life == life
                  and (value := getattr(sample, field)) is not None]
        axes.plot(*zip(*points, strict=True), color=COLORS['this'], linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_title(f'{title}, by minutes', loc='left', fontsize=11)
    axes.spines[['top', 'right']].set_visible(False)


def draw_growth(series: Mapping[str, Sequence[tuple[int, Mapping[str, float]]]]) -> str:
    """Draw how the figures of a start grow with the number of objects, as one picture."""
    metrics = {'CPU of the start, s': "CPU of the start, seconds", 'memory, MB': "memory, MB"}
    drawing = figure.Figure(figsize=(8, 3), layout='constrained')
    for axes, (metric, title) in zip(drawing.subplots(1, 2), metrics.items(), strict=True):
        for (handlers, points), color in zip(series.items(), LINES, strict=False):
            axes.plot(
                [objects / 1000 for objects, _ in points],
                [figures[metric] for _, figures in points],
                color=color, marker='o', markersize=3, linewidth=1.2, label=handlers)
        axes.set_ylim(bottom=0)
        axes.set_title(f'{title}, by thousands of objects', loc='left', fontsize=11)
        axes.spines[['top', 'right']].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    return _render(drawing)


def draw(line: tables.Line) -> str:
    names = list(reversed(line.figures))
    drawing = figure.Figure(figsize=(8, 0.9 + 0.35 * len(names)), layout='constrained')
    axes = drawing.subplots()
    medians = [line.figures[name].median for name in names]
    axes.barh(names, medians, color=[COLORS.get(name, '#9a9a9a') for name in names], xerr=[
        [line.figures[name].median - line.figures[name].low for name in names],
        [line.figures[name].high - line.figures[name].median for name in names]])
    for index, name in enumerate(names):
        ratio = line.get_ratio(name) if name in subjects.OTHERS else None
        shown = f'  {line.figures[name]}' + (f'  this: {ratio:.2f}×' if ratio else '')
        axes.text(line.figures[name].high, index, shown, va='center', fontsize=9)
    axes.set_xlim(0, 1.6 * max(each.high for each in line.figures.values()))
    axes.set_title(f'{line.work}: {line.metric}', loc='left', fontsize=11)
    axes.spines[['top', 'right']].set_visible(False)
    return _render(drawing)


def _render(drawing: figure.Figure) -> str:
    mpl.rcParams['svg.fonttype'] = 'none'
    text = io.StringIO()
    drawing.savefig(text, format='svg', metadata={'Date': None, 'Creator': None})
    return text.getvalue().partition('?>')[2]
