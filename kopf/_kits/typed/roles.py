"""
Roles: rights as the objects of Kubernetes that grant them, and what these grant too much.
"""
import itertools
import json
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.helpers import yamltexts
from kopf._kits import commanding
from kopf._kits.typed.rights import Right

API_GROUP = 'rbac.authorization.k8s.io'
API_VERSION = f'{API_GROUP}/v1'

VERBS = ('get', 'list', 'watch', 'create', 'update', 'patch', 'delete')
"""The usual verbs, in the order in which they are shown."""


def make_roles(rights: Iterable[Right], name: str) -> list[dict[str, Any]]:
    """
    Make a ClusterRole and the Roles with exactly these rights, as they are applied to a cluster.

    There is one role for each namespace of the rights. Equal rights make equal roles.
    """
    rights = set(rights)
    places: dict[str | None, list[Right]] = {}
    for right in sorted(rights, key=lambda right: (right.group, right.resource, right.name)):
        if not any(
                other != right and other.namespace in (None, right.namespace)
                and other.covers(right) for other in rights):
            places.setdefault(right.namespace, []).append(right)
    return [
        {
            'apiVersion': API_VERSION,
            'kind': 'ClusterRole' if namespace is None else 'Role',
            'metadata': {'name': name, **({'namespace': namespace} if namespace else {})},
            'rules': _make_rules(places[namespace]),
        }
        for namespace in sorted(places, key=lambda place: (place is not None, place or ''))]


def bind(role: Mapping[str, Any], subject: Mapping[str, Any]) -> dict[str, Any]:
    """Make the binding of a role to a subject, with the name and the namespace of the role."""
    return {
        'apiVersion': API_VERSION,
        'kind': f'{role["kind"]}Binding',
        'metadata': {**role['metadata']},
        'roleRef': {
            'apiGroup': API_GROUP, 'kind': role['kind'], 'name': role['metadata']['name']},
        'subjects': [subject],
    }


def make_name(sources: Sequence[str]) -> str:
    """Make a name for an operator, after the first of its files or modules."""
    name = pathlib.PurePath(sources[0]).name.removesuffix('.py').rpartition('.')[2]
    return f"kopf-{name.lower().replace('_', '-')}"


def dump(objs: Iterable[Mapping[str, Any]]) -> str:
    """Make the YAML of objects, in the order of their fields."""
    return yamltexts.dump_all(objs, sort_keys=False, default_flow_style=None)


def _make_rules(rights: Iterable[Right]) -> list[dict[str, Any]]:
    verbs: dict[tuple[str, str, str], set[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.name, right.resource), set()).add(right.verb)
    resources: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (group, name, resource), values in verbs.items():
        order = (*[verb for verb in VERBS if verb in values], *sorted(values - {*VERBS}))
        resources.setdefault((group, name, order), []).append(resource)
    return [
        {'apiGroups': [group], 'resources': names,
         **({'resourceNames': [name]} if name else {}), 'verbs': [*order]}
        for (group, name, order), names in resources.items()]


def read_roles(objs: Iterable[Any]) -> Iterator[Right]:
    """
    Read the rights of all roles among the objects; those that aggregate others have none.

    :raises CommandError: if a role is none of the API.
    """
    for obj in objs:
        if not isinstance(obj, Mapping) or obj.get('kind') not in ('Role', 'ClusterRole'):
            continue
        try:
            namespace = None if obj['kind'] == 'ClusterRole' else (
                obj['metadata'].get('namespace') or '')
            for rule in obj.get('rules') or ():
                for group, resource, name, verb in itertools.product(
                        _read_list(rule, 'apiGroups'), _read_list(rule, 'resources'),
                        _read_list(rule, 'resourceNames') or [''], _read_list(rule, 'verbs')):
                    yield Right(group, resource, verb, name, namespace)
        except (AttributeError, LookupError, TypeError) as e:
            raise commanding.CommandError(f"This {obj['kind']} is none of the API: {e!r}: "
                                          f"{json.dumps(obj, default=str)[:200]}") from e


def _read_list(rule: Mapping[str, Any], key: str) -> list[str]:
    values: Any = [] if rule.get(key) is None else rule[key]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{key} is no list of strings")
    return values


def compare(needed: Collection[Right], granted: Collection[Right]) -> Iterator[str]:
    """Describe the rights that are missing, and those that are not needed, each in a line."""
    for right in sorted(needed, key=str):
        if not any(other.covers(right) for other in granted):
            yield f"Missing: {right}"
    for right in sorted(granted, key=str):
        if not any(_is_same(right, other) for other in needed):
            yield f"Not needed: {right}"


def _is_same(granted: Right, needed: Right) -> bool:
    """Whether exactly this right is needed. A binding can restrict a ClusterRole to a namespace."""
    return granted.covers(needed) and (
        (granted.group, granted.resource, granted.verb, granted.name)
        == (needed.group, needed.resource, needed.verb, needed.name))
