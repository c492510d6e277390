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
    paths = [
        path for path, needed in [
            ('/api', groups is None or '' in groups),
            ('/apis', groups is None or any(groups)),
        ] if needed
    ]
    answers = await tasks.gather(*[
        client.request('GET', path, accept=AGGREGATED, retry=False) for path in paths
    ])
    versions: list[_Version] = []
    for answer in answers:
        with _wrap_garbage_errors():
            is_aggregated = answer.get('kind') == 'APIGroupDiscoveryList'
            found = list(_parse_aggregated(answer)) if is_aggregated else []
            names = [] if is_aggregated else list(_parse_names(answer))
        versions.extend(found)
        versions.extend(await _scan_versions(
            client, [name for name in names if groups is None or name[0] in groups]))
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


async def _scan_versions(
        client: api.Client,
        names: Collection[tuple[str, str]],
) -> Collection[_Version]:
    return await tasks.gather(*[_scan_version(client, *name) for name in names])


async def _scan_version(client: api.Client, group: str, version: str) -> _Version:
    path = f'/apis/{group}/{version}' if group else f'/api/{version}'
    try:
        answer = await client.request('GET', path, retry=False)
        with _wrap_garbage_errors():
            return _Version(group, version, tuple(_parse_resources(answer, group, version)))
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
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise errors.APIServerError("The API tells about its resources in a wrong form.") from e


def _parse_names(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """
    Parse the unaggregated list of groups: the groups and versions, the preferred version first.
    """
    if 'groups' not in answer:
        for version in answer.get('versions') or []:
            yield '', version
    for group in answer.get('groups') or []:
        preferred = (group.get('preferredVersion') or {}).get('version')
        versions = [item['version'] for item in group.get('versions') or []]
        for version in sorted(versions, key=lambda item: item != preferred):
            yield group['name'], version


def _parse_resources(
        answer: Mapping[str, Any],
        group: str,
        version: str,
) -> Iterator[references.Resource]:
    items = answer.get('resources') or []
    subresources: dict[str, set[str]] = {}
    for item in items:
        plural, _, subresource = item['name'].partition('/')
        if subresource:
            subresources.setdefault(plural, set()).add(subresource)
    for item in items:
        if '/' not in item['name']:
            yield references.Resource(
                group=group,
                version=version,
                plural=item['name'],
                kind=item['kind'],
                singular=item.get('singularName') or item['kind'].lower(),
                shortcuts=frozenset(item.get('shortNames') or []),
                categories=frozenset(item.get('categories') or []),
                subresources=frozenset(subresources.get(item['name'], ())),
                namespaced=item['namespaced'],
                verbs=frozenset(item.get('verbs') or []),
            )


def _parse_aggregated(answer: Mapping[str, Any]) -> Iterator[_Version]:
    for item in answer.get('items') or []:
        group = item['metadata'].get('name') or ''
        for version in item.get('versions') or []:
            stale = version.get('freshness') == 'Stale'
            yield _Version(
                group=group,
                version=version['version'],
                resources=tuple(
                    _parse_aggregated_resource(resource, group, version['version'])
                    for resource in version.get('resources') or []
                    if resource.get('responseKind')
                ),
                failure="its server does not answer" if stale else None,
            )


def _parse_aggregated_resource(
        item: Mapping[str, Any],
        group: str,
        version: str,
) -> references.Resource:
    kind = item['responseKind']['kind']
    return references.Resource(
        group=group,
        version=version,
        plural=item['resource'],
        kind=kind,
        singular=item.get('singularResource') or kind.lower(),
        shortcuts=frozenset(item.get('shortNames') or []),
        categories=frozenset(item.get('categories') or []),
        subresources=frozenset(sub['subresource'] for sub in item.get('subresources') or []),
        namespaced=item['scope'] == 'Namespaced',
        verbs=frozenset(item.get('verbs') or []),
    )
