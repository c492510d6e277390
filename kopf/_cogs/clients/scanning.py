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
        names: Collection[_Name],
) -> Collection[_Version]:
    return await tasks.gather(*[_scan_version(client, *name) for name in names])


async def _scan_version(client: api.Client, group: str, version: str | None) -> _Version:
    if version is None:
        return _Version(group, '', failure=WRONG_FORM)
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
            yield _make_resource(
                item, group, version,
                plural=item['name'],
                kind=item['kind'],
                singular=item.get('singularName'),
                subresources=subresources.get(item['name'], ()),
                namespaced=item['namespaced'],
            )


def _parse_aggregated(answer: Mapping[str, Any]) -> Iterator[_Version]:
    """Parse the aggregated list of groups. The failure of one group does not affect others."""
    for item in answer.get('items') or []:
        try:
            yield from list(_parse_aggregated_group(item))
        except GARBAGE_ERRORS:
            name = _get(_get(item, 'metadata'), 'name') or ''
            if isinstance(name, str):
                yield _Version(name, '', failure=WRONG_FORM)


def _parse_aggregated_group(item: Mapping[str, Any]) -> Iterator[_Version]:
    group = _as_text(item['metadata'].get('name') or '')
    for version in item.get('versions') or []:
        stale = version.get('freshness') == 'Stale'
        name = _as_text(version['version'])
        yield _Version(
            group=group,
            version=name,
            resources=tuple(
                _make_resource(
                    resource, group, name,
                    plural=resource['resource'],
                    kind=resource['responseKind']['kind'],
                    singular=resource.get('singularResource'),
                    subresources=[
                        sub['subresource'] for sub in resource.get('subresources') or []],
                    namespaced=resource['scope'] == 'Namespaced',
                )
                for resource in version.get('resources') or []
                if resource.get('responseKind')
            ),
            failure="its server does not answer" if stale else None,
        )


def _make_resource(
        item: Mapping[str, Any],
        group: str,
        version: str,
        *,
        plural: object,
        kind: object,
        singular: object,
        subresources: Iterable[object],
        namespaced: object,
) -> references.Resource:
    """
    Make a resource. Other resources must not be affected by wrong types, so they are checked here.
    """
    if not isinstance(namespaced, bool):
        raise TypeError("It is not known whether the resource is namespaced.")
    return references.Resource(
        group=group,
        version=version,
        plural=_as_text(plural),
        kind=_as_text(kind),
        singular=_as_text(singular or _as_text(kind).lower()),
        shortcuts=frozenset(map(_as_text, item.get('shortNames') or [])),
        categories=frozenset(map(_as_text, item.get('categories') or [])),
        subresources=frozenset(map(_as_text, subresources)),
        namespaced=namespaced,
        verbs=frozenset(map(_as_text, item.get('verbs') or [])),
    )


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("A name is no string.")
    return value
