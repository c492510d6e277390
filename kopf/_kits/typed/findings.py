"""
The rules for custom resource definitions, and what is found by them.
"""
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

Level = Literal['error', 'warning']
Definition = Mapping[str, Any]
"""A CustomResourceDefinition of ``apiextensions.k8s.io/v1``."""
Schema = Mapping[str, Any]
"""A node of an ``openAPIV3Schema``."""

_DATA = json.loads((pathlib.Path(__file__).parent / 'rules.json').read_bytes())

SOURCES: Mapping[str, str] = _DATA['sources']
"""Where the rules are from: the names of the documents, and where these are."""


class Rule:
    """
    What a check looks for, and why. The level is that of most of its findings; the sources are
    names in `SOURCES`.
    """

    def __init__(self, name: str, level: Level, meaning: str, *sources: str) -> None:
        self.name, self.level, self.meaning, self.sources = name, level, meaning, sources


COMPATIBILITY: Sequence[Rule] = [Rule(*row) for row in _DATA['compatibility']]
"""What is incompatible with what was there before: see `compatibility.compare`."""

LINT: Sequence[Rule] = [Rule(*row) for row in _DATA['lint']]
"""What the conventions of the API advise against: see `linting.lint`."""

ENFORCEMENT: Sequence[Rule] = [Rule(*row) for row in _DATA['enforcement']]
"""What older versions of Kubernetes ignore: see `enforcement.find_unenforced`."""

RULES: Mapping[str, Rule] = {rule.name: rule for rule in (*COMPATIBILITY, *LINT, *ENFORCEMENT)}


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """
    What a rule has found in a definition.

    ``path`` is the name of the definition, the version, and the field, as far as it concerns them:
    ``databases.example.com/v1.spec.users[*].name``.
    """

    path: str
    rule: str
    level: Level
    text: str

    @property
    def key(self) -> str:
        """The rule and the path, as ``--allow`` has them."""
        return f'{self.rule}:{self.path}'

    def __str__(self) -> str:
        return f"{self.level}: {self.path}: {self.text} [{self.rule}]"


def find(rule: str, path: str, text: str, *, level: Level | None = None) -> Finding:
    """Make a finding, of the level of its rule unless another one is given."""
    return Finding(path, rule, level or RULES[rule].level, text)


def iter_schemas(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Iterate over a schema and all schemas in it, with their paths."""
    yield path, schema
    for place, sub in iter_children(path, schema):
        yield from iter_schemas(place, sub)


def iter_children(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Iterate over the schemas of the fields, the items, and the values of a map."""
    for key, sub in (schema.get('properties') or {}).items():
        yield add_key(path, key), sub
    for key in ('items', 'additionalProperties'):
        if isinstance(schema.get(key), Mapping):
            yield f'{path}[*]', schema[key]


def add_key(path: str, key: str) -> str:
    """Get the path of a field of an object: ``.key``, or ``['a key']`` if it is no simple word."""
    return f'{path}.{key}' if re.fullmatch(r'[\w-]+', key) else f'{path}[{key!r}]'
