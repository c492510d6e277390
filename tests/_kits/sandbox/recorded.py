"""
What a real API (Kubernetes 1.36.3) has answered to the same, recorded once.
"""
import json
import pathlib
from typing import Any

FOLDER = pathlib.Path(__file__).parent / 'answers'


def load(name: str) -> list[Any]:
    return json.loads((FOLDER / f'{name}.json').read_text())


def load_with_schema(name: str) -> tuple[Any, list[Any]]:
    head, *rows = load(name)
    return head['schema'], rows


def by_content(causes: Any) -> list[tuple[str, str, str]]:
    """Causes in an order of no meaning: the API's own one is random."""
    return sorted((cause['reason'], cause.get('field', ''), cause['message']) for cause in causes)
