"""
What of a definition a version of Kubernetes does not enforce.
"""
import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.sandbox.schemas import formats
from kopf._kits.typed.findings import Definition, Finding, find, iter_schemas

RULES_SINCE = 25
"""The minor version of Kubernetes since which rules in CEL are on by default (KEP-2876)."""
RATCHETING_SINCE = 30
"""...since which values that do not change can be invalid, and rules can be for both (KEP-4008)."""
SELECTING_SINCE = 31
"""...since which objects can be selected by their fields (KEP-4358)."""

FORMATS: Mapping[str, Mapping[str, int]] = {
    'string': {**dict.fromkeys(formats.FORMATS, 0), 'k8s-short-name': 34, 'k8s-long-name': 34},
    'integer': {'int32': 36, 'int64': 0},
    'number': {'float': 36, 'double': 0},
}
"""The formats that the API knows for each type, and since which minor version it checks them."""


def parse_version(text: str) -> int:
    """
    Get the minor version of Kubernetes: 20 of ``1.20``, ``v1.20.2``, or ``1.20+``.

    :raises ValueError: if it is no version of Kubernetes.
    """
    match = re.match(r'v?1\.(\d+)', text)
    if match is None:
        raise ValueError(f"{text!r} is no version of Kubernetes. Write it like 1.20")
    return int(match[1])


def remove_ignored(definition: Definition, minor: int) -> Definition:
    """
    Copy a definition without the rules and selectable fields that are ignored.

    Old API servers drop these silently from what is created, but refuse to apply them.
    """
    copied: Any = copy.deepcopy(definition)
    for version in copied['spec']['versions']:
        if minor < SELECTING_SINCE:
            version.pop('selectableFields', None)
        schemas: Any = iter_schemas('', version['schema']['openAPIV3Schema'])
        for _, schema in schemas:
            rules = schema.pop('x-kubernetes-validations', None) or ()
            if kept := [rule for rule in rules if minor >= _get_since(rule)]:
                schema['x-kubernetes-validations'] = kept
    return copied  # type: ignore[no-any-return]


def _get_since(rule: Mapping[str, Any]) -> int:
    return RATCHETING_SINCE if rule.get('optionalOldSelf') else RULES_SINCE


def find_unenforced(definition: Definition, minor: int) -> list[Finding]:
    """Find what of a definition is ignored by the API server of Kubernetes 1.``minor``."""
    return sorted(
        find('not-enforced', path, f"Kubernetes 1.{minor} ignores {what}")
        for version in definition['spec']['versions']
        for path, what in _iter_ignored(
            f'{definition["metadata"]["name"]}/{version["name"]}', version, minor))


def _iter_ignored(place: str, version: Mapping[str, Any], minor: int) -> Iterator[tuple[str, str]]:
    if minor < SELECTING_SINCE:
        for field in version.get('selectableFields') or ():
            yield (f'{place}{field["jsonPath"]}',
                   f"that objects are selected by the field, until 1.{SELECTING_SINCE}.")
    for path, schema in iter_schemas(place, version['schema']['openAPIV3Schema']):
        for rule in schema.get('x-kubernetes-validations') or ():
            if minor < _get_since(rule):
                yield path, f"the rule, until 1.{_get_since(rule)}: {rule['rule']}"
        if (format := schema.get('format')) is not None:
            since = FORMATS.get(schema.get('type', ''), {}).get(format)
            if since is None:
                yield path, f"the format {format!r}, as all versions do. Use a pattern instead."
            elif minor < since:
                yield path, f"the format {format!r}, until 1.{since}."
