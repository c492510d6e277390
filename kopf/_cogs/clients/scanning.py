"""
Scanning: the discovery of the resources that the API server serves.

See "Kubernetes API: API Discovery" in the Kubernetes documentation; KEP-3352 for the aggregated
form.
"""
import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, errors
from kopf._cogs.structs import references

AGGREGATED = (
    'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,'
    'application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,'
    'application/json'
)

GARBAGE_ERRORS = (AttributeError, LookupError, TypeError, ValueError)
"""The errors of parsing what is JSON, but has another form than expected."""

WRONG_FORM = "their descriptions have a wrong form"

_Name = tuple[str, str | None]
"""A group and its version; None if the version is not to be found in the description."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """
    The discovered resources; and the groups and versions whose discovery has failed, with reasons.

    The version is an empty string if the discovery of the whole group has failed. A failure does
    not mean that the resources are absent: it is only unknown whether they are served.
    """
    resources: frozenset[references.Resource] = frozenset()
    failures: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def complete(self, known: Iterable[references.Resource]) -> frozenset[references.Resource]:
        """Add the previously known resources of those versions whose discovery has failed now."""
        return self.resources | {
            resource for resource in known
            if (resource.group, resource.version) in self.failures
            or (resource.group, '') in self.failures
        }


@dataclasses.dataclass(frozen=True)
class _Version:
    """
    One version of a group with its resources. The versions of a group are in order of preference.
    """
    group: str
    version: str
    resources: tuple[references.Resource, ...] = ()
    failure: str | None = None


async def scan(client: api.Client, *, groups: Collection[str] | None = None) -> Findings:
    """
    Discover the resources of all groups, or of the named ones (``''`` is the core group).

    With the aggregated discovery, this takes two requests. Without it (before Kubernetes 1.26), it
    takes one request for each version of each group. The failure of one group does not affect
    others.

    :raises errors.APIError: if the list of the groups cannot be retrieved.
    """
    paths = ['/api'] if groups is None or '' in groups else []
    paths += ['/apis'] if groups is None or any(groups) else []
    answers = await tasks.gather(*[
        client.request('GET', path, accept=AGGREGATED, retry=False) for path in paths
    ])
    versions: list[_Version] = []
    for answer in answers:
        with _wrap_garbage_errors():
            is_aggregated = answer.get('kind') == 'APIGroupDiscoveryList'
            versions += _parse_aggregated(answer) if is_aggregated else []
            names = [] if is_aggregated else list(_parse_names(answer))
        versions += await _scan_versions(
            client, [name for name in names if groups is None or name[0] in groups])
    return _summarise([item for item in versions if groups is None or item.group in groups])


async def scan_groups(client: api.Client, *, groups: Collection[str]) -> Findings:
    """
    Discover the resources of several groups, by separate requests for each group.

    Use it after a CRD has changed: the aggregated discovery can be slightly outdated. A group that
    does not exist has no resources, which is not an error.
    """
    answers = await tasks.gather(*[_scan_group(client, group) for group in groups])
    return _summarise([version for answer in answers for version in answer])


async def _scan_group(client: api.Client, group: str) -> Collection[_Version]:
    try:
        answer = await client.request('GET', f'/apis/{group}' if group else '/api', retry=False)
        with _wrap_garbage_errors():
            names = list(_parse_names({'groups': [answer]} if group else answer))
    except errors.APINotFoundError:
        return []
    except errors.APIError as e:
        return [_Version(group, '', failure=str(e))]
    return await _scan_versions(client, names)


async def _scan_versions(client: api.Client, names: Iterable[_Name]) -> list[_Version]:
    return await tasks.gather(*[_scan_version(client, *name) for name in names])


async def _scan_version(client: api.Client, group: str, version: str | None) -> _Version:
    if version is None:
        return _Version(group, '', failure=WRONG_FORM)
    path = f'/apis/{group}/{version}' if group else f'/api/{version}'
    try:
        answer = await client.request('GET', path, retry=False)
        with _wrap_garbage_errors():
            return _parse_version(group, {'version': version, 'resources': _aggregate(answer)})
    except errors.APINotFoundError:
        return _Version(group, version)
    except errors.APIError as e:
        return _Version(group, version, failure=str(e))


def _summarise(versions: Collection[_Version]) -> Findings:
    """
    Mark the preferred version of each resource: the first version of its group that has the
    resource.
    """
    preferred: dict[tuple[str, str], str] = {}
    resources: set[references.Resource] = set()
    for item in versions:
        for resource in item.resources:
            first = preferred.setdefault((item.group, resource.plural), item.version)
            resources.add(dataclasses.replace(resource, preferred=first == item.version))
    failures = {
        (item.group, item.version): item.failure
        for item in versions if item.failure is not None
    }
    return Findings(frozenset(resources), failures)


@contextlib.contextmanager
def _wrap_garbage_errors() -> Iterator[None]:
    try:
        yield
    except GARBAGE_ERRORS as e:
        raise errors.APIServerError("The API tells about its resources in a wrong form.") from e


def _parse_names(answer: Mapping[str, Any]) -> Iterator[_Name]:
    """
    Parse the unaggregated list of groups: the groups and versions, the preferred version first.

    Groups without a name are ignored: nothing can be said about them.
    """
    if 'groups' not in answer:
        for version in answer.get('versions') or []:
            yield '', version if isinstance(version, str) else None
    for group in answer.get('groups') or []:
        name = _get(group, 'name')
        if not isinstance(name, str):
            continue
        preferred = _get(_get(group, 'preferredVersion'), 'version')
        listed = _get(group, 'versions')
        versions = [_get(item, 'version') for item in listed] if isinstance(listed, list) else [
            None]
        for version in sorted(versions, key=lambda item: item != preferred):
            yield name, version if isinstance(version, str) else None


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _aggregate(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Convert the unaggregated list of the resources of one version to the aggregated form."""
    items = answer.get('resources') or []
    subresources: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        plural, _, subresource = item['name'].partition('/')
        if subresource:
            subresources.setdefault(plural, []).append({'subresource': subresource})
    if not all(isinstance(item['namespaced'], bool) for item in items if '/' not in item['name']):
        raise TypeError("It is not known whether a resource is namespaced.")
    return [{
        **item,
        'resource': item['name'],
        'responseKind': item,
        'singularResource': item.get('singularName'),
        'scope': 'Namespaced' if item['namespaced'] else 'Cluster',
        'subresources': subresources.get(item['name']),
    } for item in items if '/' not in item['name']]


def _parse_aggregated(answer: Mapping[str, Any]) -> Iterator[_Version]:
    """Parse the aggregated list of groups. The failure of one group does not affect others."""
    for item in answer.get('items') or []:
        try:
            group = _as_text(item['metadata'].get('name') or '')
            yield from [_parse_version(group, version) for version in item.get('versions') or []]
        except GARBAGE_ERRORS:
            name = _get(_get(item, 'metadata'), 'name') or ''
            if isinstance(name, str):
                yield _Version(name, '', failure=WRONG_FORM)


def _parse_version(group: str, item: Mapping[str, Any]) -> _Version:
    """
    Parse a version of a group in the aggregated form.

    Other resources must not be affected by wrong types, so they are checked here.
    """
    version = _as_text(item['version'])
    resources = [
        references.Resource(
            group=group,
            version=version,
            plural=_as_text(found['resource']),
            kind=_as_text(found['responseKind']['kind']),
            singular=_as_text(
                found.get('singularResource') or found['responseKind']['kind'].lower()),
            shortcuts=_as_texts(found.get('shortNames')),
            categories=_as_texts(found.get('categories')),
            subresources=_as_texts(
                [sub['subresource'] for sub in found.get('subresources') or []]),
            namespaced=found['scope'] == 'Namespaced',
            verbs=_as_texts(found.get('verbs')),
        )
        for found in item.get('resources') or [] if found.get('responseKind')]
    stale = item.get('freshness') == 'Stale'
    return _Version(
        group, version, tuple(resources), "its server does not answer" if stale else None)


def _as_texts(values: Iterable[object] | None) -> frozenset[str]:
    return frozenset(map(_as_text, values or []))


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("A name is no string.")
    return value
