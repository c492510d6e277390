"""
Custom resource definitions: what the API makes of them.

A definition is first completed (`complete`), then validated (`crdrules.validate`), then its names
are accepted or not (`status_of`), and then its versions are served (`kinds_of`).
"""
import dataclasses
import functools
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from kopf._kits.sandbox import kinds, statuses

API_VERSION = 'apiextensions.k8s.io/v1'
VERBS = ('delete', 'deletecollection', 'get', 'list', 'patch', 'create', 'update', 'watch')
SUBRESOURCE_VERBS = ('get', 'patch', 'update')

NAME_COLUMN = kinds.Column(name='Name', format='name', path='.metadata.name')
AGE_COLUMN = kinds.Column(name='Age', type='date', path='.metadata.creationTimestamp')


def complete(crd: statuses.Obj) -> statuses.Obj:
    """
    The definition with what its author may leave out: singular and list names, no conversion.
    """
    spec = dict(crd.get('spec') or {})
    names = dict(spec.get('names') or {})
    kind = names.get('kind')
    if kind and isinstance(kind, str):
        names['singular'] = names.get('singular') or kind.lower()
        names['listKind'] = names.get('listKind') or f'{kind}List'
    spec['names'] = names
    conversion = dict(spec.get('conversion') or {'strategy': 'None'})
    webhook = conversion.get('webhook') or {}
    service = statuses.dig(webhook, 'clientConfig.service')
    if service and not service.get('port'):
        config = {**webhook['clientConfig'], 'service': {**service, 'port': 443}}
        conversion['webhook'] = {**webhook, 'clientConfig': config}
    spec['conversion'] = conversion
    return {**crd, 'spec': spec}


def initial_status(crd: statuses.Obj) -> statuses.Obj:
    """The status of a definition (valid or not yet) before its names are looked at."""
    return {
        'conditions': None,
        'acceptedNames': {'plural': '', 'kind': ''},
        'storedVersions': storage_versions(crd)[:1],
    }


def storage_versions(crd: statuses.Obj) -> list[str]:
    """The names of the versions in which objects are stored: of one, if the definition is valid."""
    return [version.get('name') or '' for version in crd['spec'].get('versions') or ()
            if version.get('storage')]


def status_of(crd: statuses.Obj, others: Iterable[statuses.Obj], now: str) -> statuses.Obj:
    """
    The status after the names are compared to those accepted of the other definitions.

    Names that are free are accepted even if some others are not. A definition that was once
    established stays so, under the names accepted then. The storage version is remembered
    with the earlier ones. Times of conditions are kept where nothing turns.
    """
    wanted = crd['spec']['names']
    status = crd.get('status') or {}
    before = status.get('acceptedNames') or {'plural': '', 'kind': ''}
    accepted: dict[str, Any] = {}
    used = [
        (other.get('status') or {}).get('acceptedNames') or {} for other in others
        if other['spec']['group'] == crd['spec']['group']
        and other['metadata']['name'] != crd['metadata']['name']
    ]
    resources = {
        name for names in used
        for name in (names.get('plural'), names.get('singular'), *names.get('shortNames', ()))
        if name
    }
    kinds_used = {names.get(key) for names in used for key in ('kind', 'listKind')}
    all_taken: dict[str, Container[Any]] = {
        'plural': resources, 'singular': resources, 'shortNames': resources,
        'kind': kinds_used, 'listKind': kinds_used,
        'categories': ()}  # many definitions can be of one category

    problem: tuple[str, str] | None = None
    for key, taken in all_taken.items():
        value = wanted.get(key)
        clashing = [
            name for name in (value if isinstance(value, list) else [value]) if name in taken]
        if clashing and value != before.get(key):
            messages = [f'"{name}" is already in use' for name in clashing]
            text = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
            problem = f'{key[0].upper()}{key[1:]}Conflict', text  # the last one is reported
            value = before.get(key)
        if value or (clashing and value is not None):
            accepted[key] = value

    told = [('NamesAccepted', 'False', *problem) if problem else
            ('NamesAccepted', 'True', 'NoConflicts', "no conflicts found")]
    if not is_established(crd):
        told.append(
            ('Established', 'False', 'NotAccepted', "not all names are accepted") if problem else
            ('Established', 'True', 'InitialNamesAccepted', "the initial names have been accepted"))
    elif crd['metadata'].get('deletionTimestamp'):
        told.append(('Terminating', 'True', 'InstanceDeletionInProgress',
                     "CustomResource deletion is in progress"))
    conditions = list(status.get('conditions') or [])
    for condition in told:
        statuses.set_condition(conditions, now, *condition)
    return {
        **status,
        'conditions': conditions,
        'acceptedNames': accepted,
        'storedVersions': stored_versions(crd),
    }


def stored_versions(crd: statuses.Obj) -> list[str]:
    """All versions that its objects were ever stored as."""
    stored = list((crd.get('status') or {}).get('storedVersions') or ())
    return stored + [version for version in storage_versions(crd) if version not in stored]


def is_established(crd: statuses.Obj) -> bool:
    return _is_true(crd, 'Established')


def is_terminating(crd: statuses.Obj) -> bool:
    return _is_true(crd, 'Terminating')


def _is_true(crd: statuses.Obj, type: str) -> bool:
    conditions = (crd.get('status') or {}).get('conditions') or []
    return any(c['type'] == type and c['status'] == 'True' for c in conditions)


def kinds_of(crd: statuses.Obj) -> list[kinds.Kind]:
    """
    The kinds that the (valid, completed) definition makes served, the preferred version first.

    They bear the accepted names; with no status yet, those wanted.
    """
    spec = crd['spec']
    names = (crd.get('status') or {}).get('acceptedNames') or {}
    names = names if names.get('plural') else spec['names']
    conversion = spec.get('conversion') or {}
    kind = kinds.Kind(
        group=spec['group'],
        version='',
        plural=names['plural'],
        kind=names['kind'],
        singular=names.get('singular') or names['kind'].lower(),
        list_kind=names.get('listKind') or f"{names['kind']}List",
        namespaced=spec['scope'] == 'Namespaced',
        verbs=VERBS,
        short_names=tuple(names.get('shortNames') or ()),
        categories=tuple(names.get('categories') or ()),
        custom=True,
        conversion=conversion.get('webhook') if conversion.get('strategy') == 'Webhook' else None,
        terminating=is_terminating(crd),
        storage_version=storage_versions(crd)[0],
    )
    versions = sorted(spec['versions'], key=lambda version: priority_of(version['name']))
    return [_version_of(kind, spec, version) for version in versions if version.get('served')]


def _version_of(
        kind: kinds.Kind, spec: Mapping[str, Any], version: Mapping[str, Any],
) -> kinds.Kind:
    declared = version.get('subresources') or {}
    subresources = {}
    if declared.get('status') is not None:
        subresources['status'] = kinds.Subresource('status', SUBRESOURCE_VERBS, kind.kind)
    scale = declared.get('scale')
    if scale is not None:
        subresources['scale'] = kinds.Subresource(
            'scale', SUBRESOURCE_VERBS, 'Scale', 'autoscaling', 'v1')
    return dataclasses.replace(
        kind,
        version=version['name'],
        subresources=subresources,
        columns=_columns_of(version),
        selectable=tuple(
            field['jsonPath'] for field in version.get('selectableFields') or ()),
        scaling=None if scale is None else kinds.Scaling(
            scale['specReplicasPath'], scale['statusReplicasPath'],
            scale.get('labelSelectorPath') or ''),
        warning=_warning_of(spec, kind.kind, version) if version.get('deprecated') else '',
        schema=(version.get('schema') or {}).get('openAPIV3Schema') or {},
    )


def _columns_of(version: Mapping[str, Any]) -> tuple[kinds.Column, ...]:
    declared = version.get('additionalPrinterColumns')
    if not declared:
        return NAME_COLUMN, AGE_COLUMN
    return NAME_COLUMN, *(
        kinds.Column(
            name=column['name'],
            type=column['type'],
            format=column.get('format') or '',
            priority=column.get('priority') or 0,
            path=column['jsonPath'],
            description=column.get('description') or (
                f"Custom resource definition column (in JSONPath format): {column['jsonPath']}"),
        )
        for column in declared
    )


def _warning_of(spec: Mapping[str, Any], kind: str, version: Mapping[str, Any]) -> str:
    if version.get('deprecationWarning') is not None:
        return str(version['deprecationWarning'])
    own = priority_of(version['name'])
    better = sorted(
        (priority_of(other['name']), other['name']) for other in spec['versions']
        if other.get('served') and not other.get('deprecated') and priority_of(other['name']) < own
    )
    text = f"{spec['group']}/{version['name']} {kind} is deprecated"
    return f"{text}; use {spec['group']}/{better[0][1]} {kind}" if better else text


@functools.cache
def priority_of(version: str) -> tuple[object, ...]:
    """
    A key to sort versions by: v10, v2, v1, v11beta2, v10beta3, v3alpha1, and then any others.
    """
    match = re.fullmatch(r'v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?', version, re.ASCII)
    if not match:
        return 1, version
    major, stage, minor = match.groups()
    return 0, ('beta', 'alpha').index(stage) + 1 if stage else 0, -int(major), -int(minor or 0)
