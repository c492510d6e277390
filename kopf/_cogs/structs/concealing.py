"""
Concealing: what people are shown of Secrets, which is everything but their values.

Not only the data is secret: annotations can have copies of it, e.g. the last-handled state, or the
last-applied one of kubectl.
"""
import base64
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._cogs.structs import dicts, diffs, patches, references

CONCEALED = '***'
"""What is shown instead of a value."""

SHOWN = frozenset({'apiVersion', 'immutable', 'kind', 'metadata', 'type'})
"""The fields of Secrets that are shown; of the metadata, all but the annotations."""

SECRETS = re.compile(r'/api/v1/(namespaces/[^/]+/)?secrets(?![^/?])')
"""The beginning of the paths of requests for Secrets."""

QUOTED = re.compile(r'((?:Invalid|Unsupported|Duplicate) value: |Value:)("(?:[^"\\]|\\.)*"|[^:}]*)')
"""Where the API server quotes a value of an object."""

MAX_WORD = 3
"""How long values are that are not looked for inside of words, as they are in many words."""

Shown = Mapping[str, Any] | patches.JSONPatch | diffs.Diff
"""A body or a merge patch, a JSON patch, or a diff of two bodies."""


def conceal(what: Shown, resource: references.Resource) -> Shown:
    """
    Replace the values of a Secret before it is logged; the keys stay. Others stay as they are.

    None also stays: in patches and diffs, it means that there is no value.
    """
    if not _is_secret(resource):
        return what
    if isinstance(what, diffs.Diff):
        return diffs.Diff(
            item._replace(old=_conceal(item.old, item.field), new=_conceal(item.new, item.field))
            for item in what)
    if isinstance(what, Mapping):
        return {key: _conceal(value, (key,)) for key, value in what.items()}
    return [_conceal_operation(op) for op in what]


def conceal_value(value: Any, field: dicts.FieldPath, resource: references.Resource) -> Any:
    """Replace the value of this field, as in `conceal`."""
    return _conceal(value, field) if _is_secret(resource) else value


def conceal_message(text: str, path: str, body: bytes) -> str:
    """
    Replace the values in the message of an error: what the request would write to a Secret, and
    what the API server quotes. Requests to other paths are about other objects.
    """
    if not SECRETS.match(path):
        return text
    content = json.loads(body)
    parts = [(content, ())] if isinstance(content, Mapping) else [
        (op.get('value'), patches.parse_pointer(op['path'])) for op in content]
    values = {
        form for part in parts for value in _iter_values(*part) for form in _iter_forms(value)}
    text = QUOTED.sub(rf'\1{CONCEALED}', text)
    for value in sorted(values, key=len, reverse=True):
        pattern = re.escape(value)
        text = re.sub(
            pattern if len(value) > MAX_WORD else rf'(?<!\w){pattern}(?!\w)', CONCEALED, text)
    return text


def _iter_values(what: Any, field: dicts.FieldPath) -> Iterator[str]:
    """Iterate over the values that are concealed."""
    if isinstance(what, Mapping):
        for key, value in what.items():
            yield from _iter_values(value, (*field, key))
    elif isinstance(what, list):
        for value in what:
            yield from _iter_values(value, field)
    elif what is not None and _conceal(what, field) == CONCEALED:
        yield what if isinstance(what, str) else json.dumps(what)


def _iter_forms(value: str) -> Iterator[str]:
    """Iterate over the forms in which a value can be quoted: as it is, or decoded from base64."""
    forms = [value]
    with contextlib.suppress(ValueError):
        forms.append(base64.b64decode(value, validate=True).decode())
    for form in filter(None, forms):
        yield from (form, json.dumps(form)[1:-1])


def _is_secret(resource: references.Resource) -> bool:
    return not resource.group and resource.plural == 'secrets'


def _conceal_operation(op: Mapping[str, Any]) -> dict[str, Any]:
    field = patches.parse_pointer(op['path'])
    return {key: _conceal(value, field) if key == 'value' else value for key, value in op.items()}


def _conceal(value: Any, field: dicts.FieldPath) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _conceal(inner, (*field, key)) for key, inner in value.items()}
    is_shown = field[:1] and field[0] in SHOWN and field[:2] != ('metadata', 'annotations')
    return value if is_shown else CONCEALED
