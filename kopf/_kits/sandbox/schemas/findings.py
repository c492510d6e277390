"""
What validations find, and how their functions look.
"""
from collections.abc import Callable
from typing import Any

from kopf._kits.sandbox import statuses, wordings
from kopf._kits.sandbox.schemas import paths


class Findings:
    """What is wrong: first what schemas say, then what the rules of lists and resources do."""
    __slots__ = ('by_rules', 'by_schema')

    def __init__(self) -> None:
        self.by_schema: list[statuses.Cause] = []
        self.by_rules: list[statuses.Cause] = []

    def add_mistyped(self, path: paths.Path, expected: str, shown: str) -> None:
        field = paths.render(path)
        self.by_schema.append(wordings.mistyped(
            field, shown, f"{field} in body must be of type {expected}: {wordings.shown(shown)}"))

    def add_invalid(self, path: paths.Path, value: Any, demand: str) -> None:
        field = paths.render(path)
        self.by_schema.append(wordings.invalid(field, value, f"{field} in body should {demand}"))

    def add_unplaced(self, text: str) -> None:
        """The API does not tell the fields of some findings, only mentions them in the text."""
        self.by_schema.append(wordings.invalid('<nil>', '', text))


Check = Callable[[Any, paths.Path, Any, Findings], None]
"""It takes a value, its place, the old value (or `nodes.NOTHING`), and adds what it finds."""
