"""
Comparing: which fields differ between two states of an object, regardless of what is not of the
operator, and of what Kopf keeps for itself.
"""
import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.configs import conventions
from kopf._core.actions import essences
from kopf._kits.sandbox import builtins, rules
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.statuses import Obj
from kopf._kits.testing import snapshots

ASSIGNED = '(assigned by the API)'

UUID = re.compile(r'\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b')

Path = tuple[str, ...]


def hide_times(value: Any) -> Any:
    return _replace(snapshots.TIME, lambda _: '(time)', value)


def name_uids(value: Any, names: Mapping[str, str]) -> Any:
    """Replace the uids of new objects, which will be others in the cluster."""
    return _replace(UUID, lambda match: names.get(match[0], match[0]), value)


def _replace(pattern: re.Pattern[str], make: Callable[[re.Match[str]], str], value: Any) -> Any:
    """Replace parts of the strings in a value; if there are none, it is the same value."""
    text = json.dumps(value)
    made = pattern.sub(make, text)
    return value if made == text else json.loads(made)


def complete(kind: Kind, obj: Obj) -> Obj:
    """
    Make what the sandbox makes of an object that is written as it is. An older cluster lacks the
    fields that are there by default since then.
    """
    made = rules.complete(kind, copy.deepcopy(obj))
    return made if kind.custom else builtins.prepare_update(kind, made, made)


def hide_addresses(service: Obj) -> Obj:
    """Hide what the API assigns to a new service: it will be something else in the cluster."""
    spec = dict(service['spec'])
    if spec.get('clusterIP') not in (None, 'None'):
        spec.update(clusterIP=ASSIGNED, clusterIPs=[ASSIGNED])
    if any('nodePort' in port for port in spec.get('ports') or ()):
        spec['ports'] = [{**port, 'nodePort': ASSIGNED} for port in spec['ports']]
    return {**service, 'spec': spec}


def reduce(obj: Obj) -> Obj:
    """Leave out what is not the operator's, or is told otherwise."""
    metadata = {
        key: value for key, value in obj.get('metadata', {}).items()
        if key not in (*snapshots.IGNORED_METADATA, 'finalizers', 'deletionTimestamp',
                       'deletionGracePeriodSeconds', 'name', 'namespace', 'generateName')}
    annotations = conventions.get_foreign_annotations(metadata.pop('annotations', None) or {})
    metadata['annotations'] = {
        key: value for key, value in annotations.items()
        if not key.startswith(essences.OWN_PREFIX)}
    rest = {key: value for key, value in obj.items()
            if key not in ('apiVersion', 'kind', 'metadata')}
    return {'metadata': metadata, **rest}


def normalize(kind: Kind, obj: Obj, *, is_new: bool) -> Obj:
    """Reduce an object to what it would be here; if it is new, without what the API assigns."""
    made = reduce(complete(kind, obj))
    return hide_addresses(made) if is_new and kind.resource == ('', 'services') else made


def compare_finalizers(base: Obj, local: Obj) -> Iterator[str]:
    old, new = (obj.get('metadata', {}).get('finalizers') or () for obj in (base, local))
    yield from (f'+{name}' for name in new if name not in old)
    yield from (f'-{name}' for name in old if name not in new)


def compare(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """
    Compare field by field; the items of lists by their names, or else by their places. The order of
    items with names is also a field: containers start in it, and any order in a template makes
    other pods. In the metadata and the status, it means nothing.
    """
    pairs = _pair(old, new)
    if pairs is not None:
        if isinstance(old, list) and path[:1] not in (('metadata',), ('status',)):
            orders = [[key[1:-1] for key in _get_named(items) if key in _get_named(others)]
                      for items, others in ((old, new), (new, old))]
            if orders[0] != orders[1]:
                yield path, orders[0], orders[1]
        for key, before, after in pairs:
            yield from compare(before, after, (*path, key))
    elif old != new or isinstance(old, bool) is not isinstance(new, bool):  # 1 == True in Python
        yield path, old, new


def _pair(old: Any, new: Any) -> list[tuple[str, Any, Any]] | None:
    """Pair the parts of two values; None if they are compared as they are."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [(key, old.get(key), new.get(key)) for key in {**old, **new}]
    if not (isinstance(old, list) and isinstance(new, list)):
        return None
    named = [_get_named(items) for items in (old, new)]
    if named[0] and named[1]:
        return [(key, named[0].get(key), named[1].get(key)) for key in {**named[0], **named[1]}]
    if len(old) == len(new):
        return [(f'[{i}]', *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    return None


def _get_named(items: Sequence[Any]) -> dict[str, Any]:
    """Get the items by their names; nothing if they do not all have names, each another one."""
    named = {f"[{item.get('name') or item.get('type')}]": item for item in items
             if isinstance(item, Mapping) and (item.get('name') or item.get('type'))}
    return named if len(named) == len(items) else {}


def join(path: Iterable[str]) -> str:
    """Write a path: ``metadata.labels[example.com/app]``, ``spec.containers[app].image``."""
    text = ''
    for key in path:
        if not key.startswith('['):
            key = f'[{key}]' if '.' in key or '/' in key else f'.{key}' if text else key
        text += key
    return text
