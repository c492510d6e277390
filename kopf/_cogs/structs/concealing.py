"""
Concealing: what the log shows of Secrets, which is everything but their values.

Not only the data is secret: annotations can have copies of it, e.g. the last-handled state, or the
last-applied one of kubectl.
"""
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import dicts, diffs, patches, references

CONCEALED = '***'
"""What is shown instead of a value."""

SHOWN = frozenset({'apiVersion', 'immutable', 'kind', 'metadata', 'type'})
"""The fields of Secrets that are shown; of the metadata, all but the annotations."""

Shown = Mapping[str, Any] | patches.JSONPatch | diffs.Diff
"""A body or a merge patch, a JSON patch, or a diff of two bodies."""


def conceal(what: Shown, resource: references.Resource) -> Shown:
    """
    Replace the values of a Secret before it is logged; the keys stay. Others stay as they are.

    None stays, too: in patches and diffs, it means that there is no value.
    """
    if resource.group or resource.plural != 'secrets':
        return what
    if isinstance(what, diffs.Diff):
        return diffs.Diff(
            item._replace(old=_conceal(item.old, item.field), new=_conceal(item.new, item.field))
            for item in what)
    if isinstance(what, Mapping):
        return {key: _conceal(value, (key,)) for key, value in what.items()}
    return [_conceal_operation(op) for op in what]


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
