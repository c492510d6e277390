"""
OpenAPI: schemas of all that is served, as clients need them to validate and to explain.

Version 3 is a document per group and version; version 2 is one document of all definitions, with
no paths: enough for clients that look kinds up.
"""
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.kinds import Kind, Kinds
from kopf._kits.sandbox.schemas import definitions
from kopf._kits.sandbox.statuses import Obj

OBJECT_META = definitions.OBJECT_META
LIST_META = 'io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta'
DELETE_OPTIONS = 'io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions'
_INFO = {'title': 'Kubernetes', 'version': 'v1.36.3'}
_GVK = 'x-kubernetes-group-version-kind'


class Documents:
    """Makes the documents when they are asked for, and keeps them until the kinds change."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._generation = -1
        self._made: dict[tuple[str, ...], bytes] = {}

    def index(self) -> bytes:
        """The document at ``/openapi/v3``: where the others are."""
        return self._kept(('index',), lambda: encoding.encode({'paths': {
            _path(*version): {'serverRelativeURL': f'/openapi/v3/{_path(*version)}?hash='
                                                   f'{self._hash(*version)}'}
            for version in self._kinds.versions()
        }}))

    def third(self, path: str) -> bytes | None:
        """The document for a path like ``apis/apps/v1``; none if there is no such version."""
        for version in self._kinds.versions():
            if _path(*version) == path:
                kinds = list(self._kinds.of_version(*version).values())
                return self._kept(('3', *version), functools.partial(_encode, kinds, third=True))
        return None

    def second(self) -> bytes:
        """The document at ``/openapi/v2``."""
        return self._kept(('2',), lambda: _encode(list(self._kinds), third=False))

    def _kept(self, key: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
        if self._generation != self._kinds.generation:
            self._made.clear()
            self._generation = self._kinds.generation
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _hash(self, group: str, version: str) -> str:
        """Changes when the document does; cheap for the built-in kinds, which do not change."""
        kinds = self._kinds.of_version(group, version).values()
        text = encoding.encode([[kind.plural, kind.schema if kind.custom else None]
                                for kind in kinds])
        return hashlib.sha256(text).hexdigest().upper()


def _encode(kinds: Sequence[Kind], *, third: bool) -> bytes:
    paths: Obj = {}
    for kind in kinds:
        paths |= _paths(kind, third=third)
    prefix = '#/components/schemas/' if third else '#/definitions/'
    schemas: Obj = _referring(_definitions(kinds), prefix, third=third)
    return encoding.encode({
        **({'openapi': '3.0.0'} if third else {'swagger': '2.0'}), 'info': _INFO, 'paths': paths,
        **({'components': {'schemas': schemas}} if third else {'definitions': schemas})})


def _path(group: str, version: str) -> str:
    return f'apis/{group}/{version}' if group else f'api/{version}'


def _name(kind: Kind) -> str:
    """The name of the kind's definition."""
    if not kind.custom:
        found = definitions.find_name(kind.group, kind.version, kind.kind)
        if found is not None:
            return found
    group = '.'.join(reversed(kind.group.split('.')))
    return f'{group}.{kind.version}.{kind.kind}'


def _definitions(kinds: Iterable[Kind]) -> dict[str, Obj]:
    """The definitions of the kinds, their lists, and everything that they are made of."""
    made: dict[str, Obj] = {}
    wanted = [OBJECT_META, LIST_META, DELETE_OPTIONS]
    for kind in kinds:
        name = _name(kind)
        if kind.custom or definitions.find_name(kind.group, kind.version, kind.kind) is None:
            made[name] = _custom(kind)
        else:
            made[name] = {**definitions.resolve(name), _GVK: [kind.gvk]}
        for sub in kind.subresources.values():
            named = sub.version and definitions.find_name(sub.group, sub.version, sub.kind)
            if named:
                made[named] = {**definitions.resolve(named), _GVK: [{
                    'group': sub.group, 'version': sub.version, 'kind': sub.kind}]}
        if 'list' in kind.verbs:
            made[f'{name}List'] = _listed(kind, name)
    for found in made.values():
        wanted.extend(_references(found))
    while wanted:
        name = wanted.pop()
        if name not in made:
            made[name] = dict(definitions.resolve(name))
            wanted.extend(_references(made[name]))
    return made


def _custom(kind: Kind) -> Obj:
    schema = dict(kind.schema or {})
    properties = dict(schema.get('properties') or {})
    properties |= {
        'apiVersion': {'type': 'string'}, 'kind': {'type': 'string'},
        'metadata': {'$ref': OBJECT_META},
    }
    return {'type': 'object', **schema, 'properties': properties, _GVK: [kind.gvk]}


def _listed(kind: Kind, name: str) -> Obj:
    return {
        'type': 'object', 'required': ['items'],
        'properties': {
            'apiVersion': {'type': 'string'}, 'kind': {'type': 'string'},
            'items': {'type': 'array', 'items': {'$ref': name}},
            'metadata': {'$ref': LIST_META},
        },
        _GVK: [{**kind.gvk, 'kind': kind.list_kind}],
    }


def _references(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for key, nested in value.items():
            if key == '$ref' and isinstance(nested, str):
                yield nested
            else:
                yield from _references(nested)
    elif isinstance(value, list):
        for nested in value:
            yield from _references(nested)


_UNKNOWN_TO_2 = ('nullable', 'oneOf', 'anyOf', 'allOf', 'not')


def _referring(value: Any, prefix: str, *, third: bool) -> Any:
    """The same with references as the document needs them, and without what it does not know."""
    if isinstance(value, list):
        return [_referring(nested, prefix, third=third) for nested in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get('$ref'), str):
        reference = {'$ref': prefix + value['$ref']}
        rest = {key: nested for key, nested in value.items() if key != '$ref'}
        return {**rest, 'allOf': [reference]} if rest and third else reference
    if not third and value.get('x-kubernetes-preserve-unknown-fields') is True:
        return {key: nested for key, nested in value.items()
                if key in ('type', 'x-kubernetes-preserve-unknown-fields', 'description', _GVK)}
    return {
        key: _referring(nested, prefix, third=third) for key, nested in value.items()
        if third or key not in _UNKNOWN_TO_2
    }


def _paths(kind: Kind, *, third: bool) -> dict[str, Obj]:
    """Where objects of the kind are, and with which verbs: what tells that it can be patched."""
    base = f'/{_path(kind.group, kind.version)}/'
    if kind.namespaced:
        base += 'namespaces/{namespace}/'
    methods = {'get': 'get', 'update': 'put', 'patch': 'patch', 'delete': 'delete'}
    parameters = [
        {'name': name, 'in': 'query', 'uniqueItems': True,
         **({'schema': {'type': 'string'}} if third else {'type': 'string'})}
        for name in ('dryRun', 'fieldManager', 'fieldValidation')
    ]

    def operation(verb: str, method: str) -> Obj:
        return {
            'operationId': f'{verb}{kind.kind}', 'x-kubernetes-action': method, _GVK: kind.gvk,
            'parameters': parameters if method != 'get' else [],
            'responses': {'200': {'description': 'OK'}},
        }

    one = {method: operation(verb, method) for verb, method in methods.items()
           if verb in kind.verbs}
    all_ = {method: operation(verb, action) for verb, method, action in (
        ('list', 'get', 'list'), ('create', 'post', 'post'),
        ('deletecollection', 'delete', 'deletecollection')) if verb in kind.verbs}
    return {f'{base}{kind.plural}': all_, f'{base}{kind.plural}/{{name}}': one}
