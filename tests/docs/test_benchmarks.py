"""The documentation shows what was measured."""
import datetime
import importlib.util
import json
import pathlib
import re
import xml.etree.ElementTree

import pytest

from benchmarks import history

ROOT = pathlib.Path(__file__).parents[2]
ROWS = json.loads((ROOT / 'benchmarks' / 'measured.json').read_text())['rows']
README = (ROOT / 'README.md').read_text()
spec = importlib.util.spec_from_file_location('charts', ROOT / 'docs' / '_ext' / 'charts.py')
charts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(charts)


@pytest.mark.parametrize('title, work, metric', [
    ('CPU per created object', 'one create handler with a result', 'CPU'),
    ('CPU per tick of a timer', 'a tick of a timer, 400 timers of a second', 'CPU'),
    ('memory, a small operator', 'a small operator, from its start to the first call', 'memory'),
    ('memory, 4,000 objects', 'a start with 4,000 handled objects', 'memory'),
])
def test_figures_of_the_readme_are_those_that_were_measured(title, work, metric):
    row, = [row for row in ROWS if (row['work'], row['metric']) == (work, metric)]
    cells, = re.findall(
        rf'^\| \**{title}\*+ \| 1× \| (.*?) \| (.*?) \| (.*?) \|', README, re.MULTILINE)
    for cell, ratios in zip(cells, (row['release'], row['go'], row.get('rust'))):
        if ratios is None:
            assert cell.strip('*').startswith('about ')
        else:
            low, high = 1 / max(ratios), 1 / min(ratios)
            assert low - 0.05 <= float(cell.strip('*×')) <= high + 0.05


def test_bars_are_as_long_as_the_ratios():
    svg = xml.etree.ElementTree.fromstring(charts.draw("Costs", [("a", [0.5]), ("b", [1.0, 2.0])]))
    bars = svg.findall('{http://www.w3.org/2000/svg}rect')
    one, none, low, spread = [float(bar.get('width')) for bar in bars]
    assert (none, low, spread) == (0, 2 * one, 2 * one)
    assert [bar.get('class').split()[0] for bar in bars] == ['less', 'less', 'more', 'more']


def test_bars_fit_into_the_drawing():
    svg = xml.etree.ElementTree.fromstring(charts.draw("Costs", [("a", [9.0])]))
    assert max(float(bar.get('width')) for bar in svg.iter('{http://www.w3.org/2000/svg}rect')) <= (
        charts.WIDTH - 90)


def test_ratios_are_those_of_the_single_rounds():
    results = {'create': {
        'this': [{'CPU, ms': 0.5, 'PATCHes': 1}, {'CPU, ms': 0.6, 'PATCHes': 1}],
        'go': [{'CPU, ms': 1}, {'CPU, ms': 0.8}], 'bare': [{'CPU, ms': 0.1}, {'CPU, ms': 0.1}]}}
    assert history.make_ratios(results, today=datetime.date(2020, 12, 31), where='here') == {
        'when': 'December 2020', 'where': 'here', 'versions': {'go': 'controller-runtime 0.25'},
        'rows': [
            {'work': 'one create handler with a result', 'metric': 'CPU', 'go': [0.5, 0.75]}]}


def test_history_has_one_line_for_each_version():
    results = {'create': {'this': [{'CPU, ms': 0.51239}, {'CPU, ms': 0.5}], 'go': [{'CPU, ms': 1}]}}
    lines = []
    for version in ('1', '2', '2'):
        lines = history.add(lines, history.make_entry(
            results, version=version, today=datetime.date(2020, 12, 31), machine='any'))
    assert [json.loads(line)['version'] for line in lines] == ['1', '2']
    assert json.loads(lines[0]) == {
        'version': '1', 'date': '2020-12-31', 'machine': 'any',
        'rows': {'create': {'CPU, ms': {'this': 0.506, 'go': 1}}}}
