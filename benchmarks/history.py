"""
The history of the figures: a line for each version, in ``benchmarks/history.jsonl``.

Each line has the medians by rows, metrics, and subjects. Lines are comparable by their ratios only:
they can come from different machines.
"""

import datetime
import importlib.metadata
import json
import pathlib
import platform
from typing import Any

from benchmarks import tables

PATH = pathlib.Path(__file__).with_name('history.jsonl')


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


def save(results: tables.Results) -> None:
    entry = make_entry(
        results, version=importlib.metadata.version('kopf'), today=datetime.date.today(),
        machine=f'{platform.system()} {platform.machine()}, Python {platform.python_version()}')
    lines = PATH.read_text().splitlines() if PATH.exists() else []
    PATH.write_text(''.join(f'{line}\n' for line in add(lines, entry)))
