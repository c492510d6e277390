"""
Discovery of the served resources: one document per group and version, or aggregated.
"""
import base64
import hashlib
from collections.abc import Iterable

from kopf._kits.sandbox import crds
from kopf._kits.sandbox.kinds import Kind, Kinds, Subresource
from kopf._kits.sandbox.statuses import NotFound, Obj

GIT_VERSION = 'v1.36.3'
VERSION: Obj = {
    'major': '1', 'minor': '36',
    'emulationMajor': '1', 'emulationMinor': '36',
    'minCompatibilityMajor': '1', 'minCompatibilityMinor': '35',
    'gitVersion': f'{GIT_VERSION}+kopf-sandbox', 'gitCommit': '', 'gitTreeState': 'clean',
    'buildDate': '1970-01-01T00:00:00Z', 'goVersion': '', 'compiler': 'python',
    'platform': 'linux/amd64',
}


def api_versions(address: str) -> Obj:
    """The document at ``/api``."""
    return {
        'kind': 'APIVersions', 'versions': ['v1'],
        'serverAddressByClientCIDRs': [{'clientCIDR': '0.0.0.0/0', 'serverAddress': address}],
    }


def group_list(kinds: Kinds) -> Obj:
    """The document at ``/apis``."""
    return {'kind': 'APIGroupList', 'apiVersion': 'v1',
            'groups': [_group(name, versions) for name, versions in _groups(kinds).items() if name]}


def group(kinds: Kinds, name: str) -> Obj | None:
    """The document at ``/apis/{group}``; none if there is no such group."""
    versions = _groups(kinds).get(name)
    return {'kind': 'APIGroup', 'apiVersion': 'v1', **_group(name, versions)} \
        if name and versions else None


def resource_list(kinds: Kinds, group: str, version: str) -> Obj:
    """The document at ``/apis/{group}/{version}``. Raises `NotFound` if that is not served."""
    found = kinds.of_version(group, version)
    if not found:
        raise NotFound
    resources = []
    for kind in found.values():
        resources.append(_resource(kind))
        resources.extend(_subresource(kind, sub) for sub in kind.subresources.values())
    document: Obj = {'kind': 'APIResourceList'}
    if group:
        document['apiVersion'] = 'v1'
    return {**document, 'groupVersion': f'{group}/{version}' if group else version,
            'resources': resources}


def aggregated(kinds: Kinds, legacy: bool, version: str = 'v2') -> Obj:
    """All of ``/api`` (if ``legacy``) or ``/apis`` in one document."""
    return {
        'kind': 'APIGroupDiscoveryList', 'apiVersion': f'apidiscovery.k8s.io/{version}',
        'metadata': {},
        'items': [
            {
                'metadata': {'name': name} if name else {},
                'versions': [
                    {'version': version,
                     'resources': [_aggregated(kind)
                                   for kind in kinds.of_version(name, version).values()],
                     'freshness': 'Current'}
                    for version in versions
                ],
            }
            for name, versions in _groups(kinds).items() if bool(name) != legacy
        ],
    }


def _groups(kinds: Kinds) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, version in kinds.versions():
        groups.setdefault(name, []).append(version)
    return {name: sorted(versions, key=crds.priority_of) for name, versions in groups.items()}


def _group(name: str, versions: Iterable[str]) -> Obj:
    told = [{'groupVersion': f'{name}/{version}', 'version': version} for version in versions]
    return {'name': name, 'versions': told, 'preferredVersion': told[0]}


def _resource(kind: Kind) -> Obj:
    resource: Obj = {
        'name': kind.plural, 'singularName': kind.singular, 'namespaced': kind.namespaced,
        'kind': kind.kind, 'verbs': list(kind.told_verbs), **_aliases(kind),
    }
    if 'list' in kind.verbs:
        resource['storageVersionHash'] = _hash(kind)
    return resource


def _aliases(kind: Kind) -> Obj:
    told = {'shortNames': list(kind.short_names), 'categories': list(kind.categories)}
    return {key: names for key, names in told.items() if names}


def _hash(kind: Kind) -> str:
    text = f'{kind.group}/{kind.storage_version}/{kind.kind}'
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _subresource(kind: Kind, sub: Subresource) -> Obj:
    told: Obj = {'name': f'{kind.plural}/{sub.name}', 'singularName': '',
                 'namespaced': kind.namespaced}
    if sub.version:
        told |= {'group': sub.group, 'version': sub.version}
    return {**told, 'kind': sub.kind, 'verbs': list(sub.verbs)}


def _aggregated(kind: Kind) -> Obj:
    resource: Obj = {
        'resource': kind.plural,
        'responseKind': kind.gvk,
        'scope': 'Namespaced' if kind.namespaced else 'Cluster',
        'singularResource': kind.singular,
        'verbs': list(kind.told_verbs), **_aliases(kind),
    }
    subresources = [
        {'subresource': sub.name,
         'responseKind': {'group': sub.group if sub.version else kind.group,
                          'version': sub.version or kind.version, 'kind': sub.kind},
         'verbs': list(sub.verbs)}
        for sub in kind.subresources.values()
    ]
    if subresources:
        resource['subresources'] = subresources
    return resource
