"""
Records a demo in a pseudo-terminal, and draws the recording as an animated SVG.

The order of the lines and their colours are those of the run. The pauses are longer than in
the run, so that people can read along.
"""
import dataclasses
import fcntl
import html
import itertools
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
COLUMNS, ROWS = 104, 26
CHAR, LINE, MARGIN = 7.2, 17, 16  # in pixels
COMMAND_PAUSE, LINE_PAUSE, LAST_PAUSE = 2.5, 0.4, 6.0  # in seconds

ESCAPE = re.compile(r'\x1b\[([0-9;]*)([A-Za-z])')
PALETTE = ['#555a63', '#ff7b72', '#7ee787', '#e3b341', '#79c0ff', '#d2a8ff', '#76e3ea', '#e6e6e6']
BACKGROUND, FOREGROUND = '#16181d', '#d0d4db'

Style = tuple[str, ...]


@dataclasses.dataclass
class Line:
    time: float
    text: str


@dataclasses.dataclass
class Row:
    """A row of the terminal: its characters, each with its style."""
    time: float
    cells: list[tuple[str, Style]] = dataclasses.field(default_factory=list)


def record(demo: pathlib.Path) -> list[Line]:
    """Run a demo without a keyboard, so that it ends by itself."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', ROWS, COLUMNS, 0, 0))
    env = {**os.environ, 'TERM': 'xterm-256color'}
    with subprocess.Popen([demo], env=env, stdin=subprocess.DEVNULL,
                          stdout=slave, stderr=slave) as process:
        os.close(slave)
        lines = list(itertools.dropwhile(lambda line: not line.text, read_lines(master)))
    os.close(master)
    if process.returncode:
        sys.exit(f"The demo failed with the exit code {process.returncode}.")
    return lines


def read_lines(terminal: int) -> Iterator[Line]:
    started = time.monotonic()
    rest = b''
    while data := read(terminal):
        *lines, rest = (rest + data).split(b'\n')
        for line in lines:
            yield Line(time.monotonic() - started, line.rstrip(b'\r').decode())


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux reports the end of a pseudo-terminal as an error
        return b''


def stretch(lines: list[Line]) -> list[Line]:
    """Give people the time to read: a long pause before each command, a short one elsewhere."""
    now = 0.0
    result = []
    for number, (previous, line) in enumerate(itertools.pairwise([Line(0, ''), *lines])):
        if number and ESCAPE.sub('', line.text).startswith('# '):
            now += COMMAND_PAUSE
        elif line.time - previous.time > 0.02 and previous.text:
            now += LINE_PAUSE
        result.append(Line(now, line.text))
    return result


def lay_out(lines: list[Line]) -> list[Row]:
    """Break the lines where the terminal breaks them."""
    rows = []
    style: Style = ()
    for line in lines:
        row = Row(line.time)
        rows.append(row)
        position = 0
        for escape in [*ESCAPE.finditer(line.text), None]:
            end = escape.start() if escape else len(line.text)
            for char in line.text[position:end]:
                if len(row.cells) == COLUMNS:
                    row = Row(line.time)
                    rows.append(row)
                row.cells.append((char, style))
            if escape:
                position = escape.end()
                style = change_style(style, escape[1]) if escape[2] == 'm' else style
    return rows


def change_style(style: Style, codes: str) -> Style:
    for code in map(int, (codes or '0').split(';')):
        match code:
            case 0:
                style = ()
            case 1 | 2:
                style = (*style, {1: 'bold', 2: 'dim'}[code])
            case 22:
                style = tuple(name for name in style if name not in {'bold', 'dim'})
            case 39 | 30 | 31 | 32 | 33 | 34 | 35 | 36 | 37 | 90 | 91 | 92 | 93 | 94 | 95 | 96 | 97:
                style = tuple(name for name in style if not name.startswith('c'))
                style = style if code == 39 else (*style, f'c{code % 10}')
    return style


def draw(rows: list[Row], title: str) -> str:
    width = COLUMNS * CHAR + 2 * MARGIN
    height = ROWS * LINE + 2 * MARGIN
    total = rows[-1].time + LAST_PAUSE
    times = sorted({row.time for row in rows})
    offsets = {row.time: max(0, number - ROWS) for number, row in enumerate(rows, 1)}
    last = offsets[times[-1]]
    keyframes = '\n'.join(
        f'@keyframes t{index} {{ 0% {{ opacity: 0 }} {moment / total:.2%} {{ opacity: 1 }} }}\n'
        f'.t{index} {{ animation-name: t{index} }}'
        for index, moment in enumerate(times) if moment)
    scrolling = ' '.join(
        f'{moment / total:.2%} {{ transform: translateY({-offset * LINE}px) }}'
        for moment, offset in offsets.items())
    colours = '\n'.join(f'.c{index} {{ fill: {colour} }}' for index, colour in enumerate(PALETTE))
    texts = '\n'.join(
        f'<g class="t{times.index(row.time)}">{"".join(draw_row(row, number))}</g>'
        for number, row in enumerate(rows, 1) if row.cells)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="\
A recording in a terminal: {title}">
<style>
text {{ font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; \
fill: {FOREGROUND}; white-space: pre }}
.bold {{ font-weight: bold; fill: #fff }}
.dim {{ opacity: 0.7 }}
{colours}
.lines {{ transform: translateY({-last * LINE}px) }}
@media (prefers-reduced-motion: no-preference) {{
g {{ animation: {total:.1f}s step-end infinite }}
.lines {{ animation-name: scroll }}
@keyframes scroll {{ {scrolling} }}
{keyframes}
}}
</style>
<clipPath id="screen"><rect width="{width:g}" height="{height - MARGIN:g}"/></clipPath>
<rect width="{width:g}" height="{height:g}" rx="8" fill="{BACKGROUND}"/>
<g clip-path="url(#screen)"><g class="lines">
{texts}
</g></g>
</svg>
"""


def draw_row(row: Row, number: int) -> Iterator[str]:
    column = 0
    for style, group in itertools.groupby(row.cells, key=lambda cell: cell[1]):
        text = ''.join(char for char, _ in group)
        start = column + len(text) - len(text.lstrip())
        column += len(text)
        if shown := text.strip():
            attributes = f' class="{" ".join(style)}"' if style else ''
            x, y = MARGIN + start * CHAR, MARGIN + number * LINE - 4
            yield (
                f'<text{attributes} x="{x:g}" y="{y:g}" '
                f'textLength="{len(shown) * CHAR:g}">{html.escape(shown, quote=False)}</text>')


if __name__ == '__main__':
    demo, title, target = sys.argv[1:]
    drawn = draw(lay_out(stretch(record(pathlib.Path(demo).resolve()))), title)
    pathlib.Path(target).write_text(drawn, encoding='utf-8')
