"""
Managed fields: which fields of an object its field managers own, by its ``fieldsV1`` (KEP-555).

When others change a field, its manager loses the field. So, drift is recognised without comparing
values: the API server can have normalised them, e.g. ``1000m`` to ``1``.
"""
import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

Path = tuple[str, ...]
"""Where a field is in a manifest. The items of lists are ``[]``."""

KEYED_LISTS = frozenset({
    'claims', 'env', 'finalizers', 'hostAliases', 'imagePullSecrets', 'initContainers',
    'matchConditions', 'ownerReferences', 'ports', 'resourceClaims', 'schedulingGates', 'secrets',
    'topologySpreadConstraints', 'volumeDevices', 'volumeMounts', 'volumes', 'webhooks',
})
"""The lists of built-in kinds whose items have keys: if they are empty, nothing is recorded."""


def find_applied(raw: Mapping[str, Any], manager: str | None) -> Any:
    """Find the ``fieldsV1`` of what the manager has applied; None if it has applied nothing."""
    for entry in raw['metadata'].get('managedFields') or ():
        if entry.get('manager') == manager and entry.get('operation') == 'Apply' and (
                not entry.get('subresource')):
            return entry.get('fieldsV1') or None
    return None


def owns(fields: Any, value: Any, *, unrecorded: Collection[Path] = (), path: Path = ()) -> bool:
    """
    Whether a field manager owns all fields of a value, by its ``fieldsV1``.

    The API server can leave out the ``unrecorded`` fields; ``path`` is where the value is.
    """
    if not isinstance(fields, dict):
        return False
    if not fields or not value:  # an atomic field, owned as a whole; or an empty list or object
        return True
    if isinstance(value, dict):
        for key, val in value.items():
            nested = fields.get(f'f:{key}')
            if nested is None:
                if val is not None and not (_is_void(val) and (
                        (key in KEYED_LISTS and val == []) or (*path, key) in unrecorded)):
                    return False
            elif not owns(nested, val, unrecorded=unrecorded, path=(*path, key)):
                return False
        return True
    if isinstance(value, list):
        return _owns_items(fields, value, unrecorded, path)
    return True


def find_unrecorded(fields: Any, value: Any, path: Path = ()) -> Iterator[Path]:
    """
    Find what is empty in an applied manifest, and of which the API server has recorded nothing.

    ``fields`` are from the response. Kubernetes does not record empty lists whose items have keys.
    Before 1.21, it does not record empty mappings, except for those that are replaced as a whole,
    e.g. selectors of labels.
    """
    if not fields or not isinstance(fields, Mapping):
        return
    if isinstance(value, Mapping):
        for key, val in value.items():
            if f'f:{key}' in fields:
                yield from find_unrecorded(fields[f'f:{key}'], val, (*path, key))
            elif _is_void(val):
                yield (*path, key)
    elif isinstance(value, list):
        for name, nested in fields.items():
            if name.startswith('k:'):
                known = json.loads(name[2:])
                for item in value:
                    if isinstance(item, Mapping) and all(
                            item.get(key, val) == val for key, val in known.items()):
                        yield from find_unrecorded(nested, item, (*path, '[]'))


def _is_void(value: object) -> bool:
    """Whether it is an empty list, or a mapping with nothing in it but such lists or mappings."""
    return value == [] or (isinstance(value, Mapping) and all(map(_is_void, value.values())))


def _owns_items(
        fields: Mapping[str, Any], items: Sequence[Any], unrecorded: Collection[Path], path: Path,
) -> bool:
    """
    Whether the items of a list are owned: by their values in a set, or by their keys in a map.

    An item can lack keys that have defaults. So, the items with more keys are found first, and the
    others among what remains.
    """
    left: list[tuple[Any, Any]] = []
    for name, nested in fields.items():
        sort, _, text = name.partition(':')
        if sort == 'v':
            left.append((_parse(text), None))
        elif sort == 'k':
            left.append((_parse(text), nested))

    def fits(item: Any, known: Any, nested: Any) -> bool:
        if nested is None:
            return bool(known == item)
        return isinstance(item, Mapping) and all(
            item.get(key, val) == val for key, val in known.items()) and owns(
                nested, item, unrecorded=unrecorded, path=(*path, '[]'))

    if len(left) == len(items) == 1:  # the most frequent case
        return fits(items[0], *left[0])

    def count_keys(item: Any) -> int:
        if not isinstance(item, Mapping):
            return 0
        return sum(key in item for known, nested in left if nested is not None for key in known)

    for item in sorted(items, key=count_keys, reverse=True):
        number = next((i for i, entry in enumerate(left) if fits(item, *entry)), None)
        if number is None:
            return False
        del left[number]
    return True


@functools.lru_cache(maxsize=1000)
def _parse(text: str) -> Any:
    """Parse JSON that is the same in many objects. The result is shared."""
    return json.loads(text)


def restrict(fields: Any, value: Any) -> Any:
    """Reduce a value to the fields that are owned; lists remain whole."""
    if not isinstance(value, dict) or not fields:
        return value
    return {key: restrict(fields[f'f:{key}'], val)
            for key, val in value.items() if f'f:{key}' in fields}


def differs(wanted: Any, known: Any, *, is_restricted: bool = True) -> bool:
    """
    Whether a manifest changes a value, which is reduced by `restrict`, in spite of its defaults.

    Lists have remained whole, so there are defaults in their items: for pods, all of them are
    scalars or empty. What is empty can be absent.

    >>> differs({'containers': [{'name': 'main'}]}, {'containers': [{'name': 'main', 'tty': True}]})
    False
    """
    if isinstance(wanted, Mapping) and isinstance(known, Mapping):
        return any(
            differs(val, known.get(key), is_restricted=is_restricted)
            for key, val in wanted.items()
        ) or any(
            val and (is_restricted or isinstance(val, Mapping | list))
            for key, val in known.items() if key not in wanted)
    if isinstance(wanted, list) and isinstance(known, list) and len(wanted) == len(known):
        return any(differs(*pair, is_restricted=False) for pair in zip(wanted, known, strict=True))
    return bool((wanted or known) and wanted != known)
