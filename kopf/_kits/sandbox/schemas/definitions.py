"""
Schemas of the built-in kinds, loaded package by package as they are needed.
"""
import functools

from kopf._kits.sandbox import kinds
from kopf._kits.sandbox.schemas import nodes

OBJECT_META = 'io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta'


def resolve(name: str) -> nodes.Raw:
    """The raw definition by its full name; raises `KeyError` if there is none."""
    package, _, short_name = name.rpartition('.')
    try:
        return kinds.load(f'schemas/{package}.json')[short_name]
    except FileNotFoundError:
        raise KeyError(name) from None


@functools.cache
def define(name: str) -> nodes.Schema:
    return nodes.Schema({'$ref': name}, resolve)


def find_name(group: str, version: str, kind: str) -> str | None:
    """The name of the definition of a built-in kind."""
    # The packages are named after the first parts of groups, with few exceptions.
    package = _EXCEPTIONS.get(group, f"io.k8s.api.{group.partition('.')[0] or 'core'}.{version}")
    name = f'{package}.{kind}'
    try:
        resolve(name)
    except KeyError:
        return None
    return name


_EXCEPTIONS = {
    'apiextensions.k8s.io': 'io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1',
    'apiregistration.k8s.io': 'io.k8s.kube-aggregator.pkg.apis.apiregistration.v1',
    'flowcontrol.apiserver.k8s.io': 'io.k8s.api.flowcontrol.v1',
}


@functools.lru_cache(maxsize=1024)
def schema_of(kind: kinds.Kind) -> nodes.Schema:
    """The schema of a kind's objects; a kind with no known schema takes anything."""
    if kind.custom:
        return nodes.Schema(kind.schema or {})
    name = find_name(kind.group, kind.version, kind.kind)
    return define(name) if name else nodes.Schema({'x-kubernetes-preserve-unknown-fields': True})


EMBEDDED = nodes.Schema({'properties': {
    'apiVersion': {'type': 'string'},
    'kind': {'type': 'string'},
    'metadata': {'$ref': OBJECT_META},
}}, resolve)
"""What every object has, also one embedded in another."""


@functools.lru_cache(maxsize=1024)
def typed_schema_of(kind: kinds.Kind) -> nodes.Schema:
    """The same; for custom resources, it contains not only the rest, but also the metadata."""
    if not kind.custom:
        return schema_of(kind)
    schema = nodes.Schema(kind.schema or {})
    schema.properties = {**schema.properties, **EMBEDDED.properties}
    return schema
