"""Draws the measured ratios as bars. The drawings are narrow, so that phones show them readably."""
import html
from collections.abc import Iterable, Sequence

WIDTH, ROW, BAR = 420, 40, 12  # in pixels
Bar = tuple[str, Sequence[float]]
"""The label, and the lowest and the highest ratio of all runs: or only one."""

STYLE = """
svg.chart { --ink: var(--color-foreground-primary); --soft: var(--color-foreground-muted);
  --less: var(--color-brand-primary); --more: #b06000; }
.chart text { font: 12.5px system-ui, sans-serif; fill: var(--ink); }
.chart .soft { fill: var(--soft); font-size: 11.5px; }
.chart .less { fill: var(--less); }
.chart .more { fill: var(--more); }
.chart .spread { opacity: 0.45; }
.chart line { stroke: var(--soft); stroke-dasharray: 4 3; }
"""


def draw(title: str, bars: Iterable[Bar]) -> str:
    """Draw a bar for each ratio; the dashed lines are where both cost the same."""
    bars = list(bars)
    scale = (WIDTH - 90) / max(max(ratios) for _, ratios in [*bars, ('', [1.0])])
    height = 24 + ROW * len(bars)
    rows = ''.join(draw_bar(bar, 20 + ROW * number, scale) for number, bar in enumerate(bars))
    return (
        f'<svg class="chart narrow" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {WIDTH} {height}" aria-label="{html.escape(title)}"><style>{STYLE}</style>'
        f'<text class="soft" x="{scale:g}" y="11" text-anchor="middle">1×</text>'
        f'{rows}</svg>')


def draw_bar(bar: Bar, y: int, scale: float) -> str:
    label, ratios = bar
    low, high = min(ratios), max(ratios)
    colour = 'less' if high <= 1 else 'more'
    return (
        f'<line x1="{scale:g}" x2="{scale:g}" y1="{y + 16}" y2="{y + 32}"/>'
        f'<text x="0" y="{y + 13}">{html.escape(label)}</text>'
        f'<rect class="{colour}" x="0" y="{y + 18}" width="{low * scale:g}" height="{BAR}"/>'
        f'<rect class="{colour} spread" x="{low * scale:g}" y="{y + 18}" '
        f'width="{(high - low) * scale:g}" height="{BAR}"/>'
        f'<text x="{high * scale + 6:g}" y="{y + 18 + BAR - 2}">{show(ratios)}</text>')


def show(ratios: Sequence[float]) -> str:
    return '–'.join(f'{ratio:.2f}' for ratio in ratios) + '×'
