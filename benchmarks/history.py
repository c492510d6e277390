"""
The saved figures: the history in ``benchmarks/history.jsonl``, with a line for each version, and
the last ratios in ``benchmarks/measured.json``, which the documentation shows.

Each line has the medians by rows, metrics, and subjects. Lines are comparable by their ratios only:
they can come from different machines.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
from typing import Any

from benchmarks import subjects, tables

PATH = pathlib.Path(__file__).with_name('history.jsonl')
RATIOS = PATH.with_name('measured.json')


def make_entry(
        results: tables.Results, *, version: str, today: datetime.date, machine: str,
) -> dict[str, Any]:
    return {
        'version': version,
        'date': today.isoformat(),
        'machine': machine,
        'rows': {
            key: {
                line.metric: {name: float(f'{figure.median:.3g}')
                              for name, figure in line.figures.items()}
                for line in tables.summarize({key: by_subject})}
            for key, by_subject in results.items()},
    }


def add(lines: list[str], entry: dict[str, Any]) -> list[str]:
    """Append the entry; if the last line is of the same version, the entry replaces this line."""
    if lines and json.loads(lines[-1])['version'] == entry['version']:
        lines = lines[:-1]
    return [*lines, json.dumps(entry)]


def make_ratios(
        results: tables.Results, *, today: datetime.date, where: str,
) -> dict[str, Any]:
    ratios = tables.find_ratios(results)
    return {
        'when': f'{today:%B %Y}',
        'where': where,
        'versions': {name: label for name, label in subjects.OTHERS.items()
                     if any(name in row for row in ratios)},
        'rows': ratios,
    }


def save(results: tables.Results, *, kubernetes: str, python: str) -> None:
    """Save the results of these versions of Kubernetes and of CPython."""
    today = datetime.date.today()
    entry = make_entry(
        results, version=importlib.metadata.version('kopf'), today=today,
        machine=f'{platform.system()} {platform.machine()}, Python {python}')
    lines = PATH.read_text().splitlines() if PATH.exists() else []
    PATH.write_text(''.join(f'{line}\n' for line in add(lines, entry)))
    ratios = make_ratios(
        results, today=today, where=(
            f'one machine with {os.cpu_count()} cores, Kubernetes {kubernetes}, CPython {python}'))
    RATIOS.write_text(json.dumps(ratios, indent=1) + '\n')
