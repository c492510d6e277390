"""The recording of the demo shows what the demo does, in the colours of the terminal."""
import importlib.util
import pathlib
import re
import subprocess
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location('recording', ROOT / 'scripts' / 'recording.py')
recording = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recording)

SVG = '{http://www.w3.org/2000/svg}'


def read_texts(svg):
    return [text.text for text in xml.etree.ElementTree.fromstring(svg).iter(f'{SVG}text')]


def draw(*texts):
    return recording.draw(recording.lay_out([recording.Line(0, text) for text in texts]), 'title')


@pytest.mark.parametrize(('demo', 'sources'), [
    ('demo', ['demo', 'demo.py']), ('demo-plan', ['demo-plan'])])
def test_every_command_of_the_demos_is_in_their_recordings(demo, sources):
    shown = ''.join(read_texts((ROOT / 'docs' / '_static' / f'{demo}.svg').read_text()))
    for name in sources:
        commands = re.findall(r'say[( ]"(k\w+ \w+)', (ROOT / 'scripts' / name).read_text())
        assert commands and all(f'# {command}' in shown for command in commands)


def test_the_preview_shows_deletions_first():
    shown = subprocess.run(
        [ROOT / 'scripts' / 'demo-plan'], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown.index('# Would be deleted: 2') < shown.index('restarts 3 pods')


def test_colours_are_those_of_the_terminal():
    svg = draw('plain \x1b[1;32mgreen\x1b[0m <plain>')
    root = xml.etree.ElementTree.fromstring(svg)
    assert [(text.text, text.get('class')) for text in root.iter(f'{SVG}text')] == [
        ('plain', None), ('green', 'bold c2'), ('<plain>', None)]


def test_colours_end_where_the_terminal_ends_them():
    rows = recording.lay_out([recording.Line(0, '\x1b[33ma\x1b[39mb\x1b[2mc\x1b[22md\x1b[me')])
    assert rows[0].cells == [('a', ('c3',)), ('b', ()), ('c', ('dim',)), ('d', ()), ('e', ())]


def test_long_lines_are_broken_as_in_a_terminal():
    rows = recording.lay_out([recording.Line(0, 'x' * (recording.COLUMNS + 1))])
    assert [len(row.cells) for row in rows] == [recording.COLUMNS, 1]


def test_there_is_time_to_read_before_each_command():
    lines = recording.stretch([
        recording.Line(0, '\x1b[1m# first\x1b[0m'), recording.Line(0.1, 'done'),
        recording.Line(0.2, '\x1b[1m# second\x1b[0m')])
    assert lines[2].time - lines[1].time == recording.COMMAND_PAUSE
