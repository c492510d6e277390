"""Charts: a page of HTML with the figures of a run as bars, drawn by matplotlib."""

import datetime
import html
import io
import os
import platform

import matplotlib as mpl
from matplotlib import figure

from benchmarks import tables

COLORS = {
    'bare': '#9a9a9a', 'release': '#c98a2b', 'this': '#2b6cc9', 'metered': '#7aa7e6',
    'traced': '#8a7ae6', 'go': '#2ba3a8', 'rust': '#b5532b'}

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Benchmarks of Kopf</title>
<style>
body {{ font: 16px system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
svg {{ max-width: 100%; height: auto }}
</style>
<h1>Benchmarks of Kopf</h1>
<p>{when}, {where}. The bars are the medians of the rounds; the lines are the extremes.
To repeat: <code>python -m benchmarks --peers --html FILE</code></p>
{charts}
"""


def make_page(lines: list[tables.Line]) -> str:
    """Make the page, with a chart of each line."""
    mpl.rcParams['svg.fonttype'] = 'none'
    return PAGE.format(
        when=datetime.datetime.now(datetime.UTC).date(),
        where=html.escape(
            f'{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}'),
        charts='\n'.join(draw(line) for line in lines if any(
            each.high for each in line.figures.values())))


def draw(line: tables.Line) -> str:
    names = list(reversed(line.figures))
    drawing = figure.Figure(figsize=(8, 0.9 + 0.35 * len(names)), layout='constrained')
    axes = drawing.subplots()
    medians = [line.figures[name].median for name in names]
    axes.barh(names, medians, color=[COLORS.get(name, '#9a9a9a') for name in names], xerr=[
        [line.figures[name].median - line.figures[name].low for name in names],
        [line.figures[name].high - line.figures[name].median for name in names]])
    for index, name in enumerate(names):
        ratio = line.get_ratio(name) if name in tables.COMPARED else None
        shown = f'  {line.figures[name]}' + (f'  this: {ratio:.2f}×' if ratio else '')
        axes.text(line.figures[name].high, index, shown, va='center', fontsize=9)
    axes.set_xlim(0, 1.6 * max(each.high for each in line.figures.values()))
    axes.set_title(f'{line.work}: {line.metric}', loc='left', fontsize=11)
    axes.spines[['top', 'right']].set_visible(False)
    text = io.StringIO()
    drawing.savefig(text, format='svg')
    return text.getvalue().partition('?>')[2]
