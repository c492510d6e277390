"""
YAML as kubectl and the API server read it: by other rules for plain words than those of PyYAML.

``y`` and ``n`` are booleans, ``1e3`` and ``08`` are numbers, ``12:30`` and ``2026-12-01`` are
strings. The rules are those of the library of Kubernetes: ``resolve.go`` in sigs.k8s.io/yaml.
"""
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

STRING = 'tag:yaml.org,2002:str'
MERGE = 'tag:yaml.org,2002:merge'
PLAIN = 'tag:kopf.dev,2026:plain'
"""The tag of scalars without quotes, and without a tag of their own."""

WORDS: dict[str, Any] = {
    '': None, '~': None, '.nan': math.nan,
    '.inf': math.inf, '+.inf': math.inf, '-.inf': -math.inf,
    **dict.fromkeys(['y', 'yes', 'true', 'on'], True),
    **dict.fromkeys(['n', 'no', 'false', 'off'], False), 'null': None}
WORDS = {form: value for word, value in WORDS.items()
         for form in (word, word.capitalize(), word.upper())}
WORDS |= {'.Inf': math.inf, '+.Inf': math.inf, '-.Inf': -math.inf, '.NaN': math.nan}

INTEGER = re.compile(r'([-+]?)(?:0x([0-9a-f]+)|0b([01]+)|0o?([0-7]+)|(0|[1-9][0-9]*))', re.I)
BASES = 16, 2, 8, 10
FLOAT = re.compile(r'[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?')


def read_plain(text: str) -> Any:
    """Read a scalar without quotes: a string, unless it means something else."""
    if text in WORDS:
        return WORDS[text]
    plain = text if text[0] in '_.' else text.replace('_', '')
    if (match := INTEGER.fullmatch(plain)) is not None:
        sign, *digits = match.groups()
        number = next(
            int(sign + each, base) for each, base in zip(digits, BASES, strict=True) if each)
        if -2 ** 63 <= number < 2 ** (63 if sign else 64):
            return number
    if FLOAT.fullmatch(plain) is None or math.isinf(value := float(plain)):
        return text
    return int(value) if value.is_integer() and abs(value) < 2 ** 63 else value  # as in JSON


class Loader(yaml.SafeLoader):
    """Reads YAML as the API does."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return MERGE if value == '<<' else PLAIN
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


Loader.add_constructor(PLAIN, lambda loader, node: read_plain(node.value))


class Dumper(yaml.SafeDumper):
    """Quotes the strings that would be anything else without quotes."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_misread = tag == STRING and kind is yaml.ScalarNode and implicit[0] and (
            not isinstance(read_plain(value), str))
        return PLAIN if is_misread else tag


def load_all(text: str | bytes) -> list[Any]:
    """
    Read all documents.

    :raises yaml.YAMLError: if it is no YAML.
    """
    return list(yaml.load_all(text, Loader))


def flatten(document: Any) -> Iterator[Any]:
    """Take lists of objects apart: ``kubectl get`` prints several objects as one."""
    match document:
        case {'kind': str(kind), 'items': list(items)} if kind.endswith('List'):
            for item in items:
                yield from flatten(item)
        case _:
            yield document


def dump_all(documents: Iterable[Any], **options: Any) -> str:
    """Write documents, with the options of ``yaml.dump_all``."""
    made: str = yaml.dump_all(documents, Dumper=Dumper, **options)
    return made
