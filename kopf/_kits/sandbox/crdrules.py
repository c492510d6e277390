"""
Validation of custom resource definitions.
"""
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import crds, naming, statuses, wordings
from kopf._kits.sandbox.schemas import structure
from kopf._kits.sandbox.schemas.depths import guarded

Causes = Iterator[statuses.Cause]

COLUMN_TYPES = ('boolean', 'date', 'integer', 'number', 'string')
COLUMN_FORMATS = ('byte', 'date', 'date-time', 'double', 'float', 'int32', 'int64', 'password')
PROTECTED = re.compile(r'(.*\.)?(k8s|kubernetes)\.io')
APPROVAL = 'api-approved.kubernetes.io'

_PATH = re.compile(r'(\.[A-Za-z0-9_-]+|\.[^.\[\]]+|\[\'[^\']+\'\]|\\\.)+')


@guarded
def validate(crd: statuses.Obj, old: statuses.Obj | None = None) -> list[statuses.Cause]:
    """What is wrong with a (completed) definition, besides its metadata; or with its change."""
    spec = crd['spec']
    found = [
        *_check_name(crd),
        *_check_group(crd),
        *wordings.one_of('spec.scope', spec.get('scope'), ("Cluster", "Namespaced")),
        *_check_versions(spec),
        *_check_names(spec),
        *_check_conversion(spec.get('conversion') or {}),
        *_check_stored(crd),
    ]
    if spec.get('preserveUnknownFields'):
        found.append(wordings.invalid(
            'spec.preserveUnknownFields', True, "cannot set to true, set "
            "x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"))
    if old is not None:
        found += _check_changes(spec, old)
    return found


def warn(crd: statuses.Obj) -> list[str]:
    """Texts of warnings on what is accepted anyway: formats that nobody knows."""
    return [
        f'unrecognized format "{format}"'
        for version in crd['spec'].get('versions') or ()
        for format in structure.find_unrecognized_formats(
            statuses.dig(version, 'schema.openAPIV3Schema') or {})
    ]


def _check_name(crd: statuses.Obj) -> Causes:
    spec, name = crd['spec'], crd['metadata'].get('name', '')
    if name != f"{spec['names'].get('plural') or ''}.{spec.get('group') or ''}":
        yield wordings.invalid('metadata.name', name, 'must be spec.names.plural+"."+spec.group')


def _check_group(crd: statuses.Obj) -> Causes:
    group = crd['spec'].get('group') or ''
    if not group:
        yield wordings.required('spec.group')
        return
    problems = naming.check_subdomain(group)
    yield from wordings.all_invalid('spec.group', group, problems)
    if not problems and '.' not in group:
        yield wordings.invalid('spec.group', group, "should be a domain with at least one dot")
    annotations = crd['metadata'].get('annotations') or {}
    if PROTECTED.fullmatch(group) and not annotations.get(APPROVAL):
        yield wordings.required(
            f'metadata.annotations[{APPROVAL}]',
            f'protected groups must have approval annotation "{APPROVAL}", see '
            "https://github.com/kubernetes/enhancements/pull/1111")


def _check_versions(spec: Mapping[str, Any]) -> Causes:
    versions = spec.get('versions') or []
    names = [version.get('name') or '' for version in versions]
    for index, version in enumerate(versions):
        field = f'spec.versions[{index}]'
        name = names[index]
        yield from wordings.all_invalid(f'{field}.name', name, naming.check_dns1035(name))
        raw = (version.get('schema') or {}).get('openAPIV3Schema')
        # A problem of all versions is reported once, for the definition as a whole.
        common = 'spec' if len(versions) == 1 else field
        if raw is None:
            yield wordings.required(f'{field}.schema.openAPIV3Schema')
        else:
            place = ('spec.validation' if len(versions) == 1 else f'{field}.schema')
            yield from structure.validate_structure(raw, f'{place}.openAPIV3Schema')
        yield from _check_scale((version.get('subresources') or {}).get('scale'), common)
        yield from _check_columns(version.get('additionalPrinterColumns') or [], common)
        for number, selectable in enumerate(version.get('selectableFields') or ()):
            path = selectable.get('jsonPath') or ''
            if raw is not None and not _leads_to_scalar(raw, path):
                yield wordings.invalid(f'{common}.selectableFields[{number}].jsonPath', path,
                                     "is an invalid path: does not refer to a valid field")
    if len(set(names)) < len(names):
        yield wordings.invalid(
            'spec.versions', _shown(versions), "must contain unique version names")
    if sum(1 for version in versions if version.get('storage')) != 1:
        yield wordings.invalid('spec.versions', _shown(versions) or None,
                             "must have exactly one version marked as storage version")
    if len(versions) == 1:
        yield from wordings.all_invalid('spec.version', names[0], naming.check_dns1035(names[0]))


def _shown(versions: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Versions as messages show them."""
    return [
        {'Name': version.get('name') or '', 'Served': bool(version.get('served')),
         'Storage': bool(version.get('storage')), 'Deprecated': bool(version.get('deprecated')),
         'DeprecationWarning': version.get('deprecationWarning'), 'Schema': None,
         'Subresources': None, 'AdditionalPrinterColumns': None, 'SelectableFields': None}
        for version in versions
    ]


def _leads_to_scalar(raw: Any, path: str) -> bool:
    for key in path.split('.')[1:]:
        raw = (raw.get('properties') or {}).get(key) if isinstance(raw, dict) else None
    return isinstance(raw, dict) and raw.get('type') in ('string', 'boolean', 'integer')


def _check_scale(scale: Mapping[str, Any] | None, field: str) -> Causes:
    if scale is None:
        return
    for key, roots in (('specReplicasPath', ('.spec',)), ('statusReplicasPath', ('.status',)),
                       ('labelSelectorPath', ('.spec', '.status'))):
        path = scale.get(key) or ''
        place = f'{field}.subresources.scale.{key}'
        if not path:
            if key != 'labelSelectorPath':
                yield wordings.required(place)
        elif not _PATH.fullmatch(path):
            yield wordings.invalid(place, path, "must be a simple json path starting with .")
        elif not path.startswith(tuple(f'{root}.' for root in roots)):
            under = f"either {' or '.join(roots)}" if len(roots) > 1 else roots[0]
            yield wordings.invalid(place, path, f"should be a json path under {under}")


def _check_columns(columns: list[Mapping[str, Any]], field: str) -> Causes:
    for index, column in enumerate(columns):
        place = f'{field}.additionalPrinterColumns[{index}]'
        if not column.get('name'):
            yield wordings.required(f'{place}.name')
        for key, known in (('type', COLUMN_TYPES), ('format', COLUMN_FORMATS)):
            value, why = column.get(key), f"must be one of {','.join(known)}"
            if value and value not in known:
                yield wordings.invalid(f'{place}.{key}', value, why)
            elif not value and key == 'type':
                yield wordings.required(f'{place}.type', why)
        path = column.get('jsonPath') or ''
        if not path:
            yield wordings.required(f'{place}.JSONPath')
        elif not path.startswith('.'):
            yield wordings.invalid(
                f'{place}.JSONPath', path, "must be a simple json path starting with .")


def _check_names(spec: Mapping[str, Any]) -> Causes:
    names = spec['names']
    for key in ('plural', 'singular', 'kind', 'listKind'):
        value = names.get(key) or ''
        if not value:
            yield wordings.required(f'spec.names.{key}')
            continue
        check = naming.check_dns1035 if key in ('plural', 'singular') else naming.check_kind
        yield from wordings.all_invalid(f'spec.names.{key}', value, check(value))
    if names.get('kind') and names.get('kind') == names.get('listKind'):
        yield wordings.invalid('spec.names.listKind', names['listKind'],
                             "kind and listKind may not be the same")
    for key in ('shortNames', 'categories'):
        for index, value in enumerate(names.get(key) or ()):
            problems = naming.check_dns1035(value)
            yield from wordings.all_invalid(f'spec.names.{key}[{index}]', value, problems)


def _check_conversion(conversion: Mapping[str, Any]) -> Causes:
    strategy = conversion.get('strategy')
    yield from wordings.one_of('spec.conversion.strategy', strategy, ("None", "Webhook"))
    if strategy == 'Webhook':
        webhook = conversion.get('webhook') or {}
        if not webhook.get('clientConfig'):
            yield wordings.required('spec.conversion.webhookClientConfig',
                                  "required when strategy is set to Webhook")
        if not webhook.get('conversionReviewVersions'):
            yield wordings.required('spec.conversion.conversionReviewVersions')


def _check_stored(crd: statuses.Obj) -> Causes:
    status = crd.get('status') or crds.initial_status(crd)
    stored = status.get('storedVersions') or None
    storage = crds.storage_versions(crd)
    if not stored:
        yield wordings.invalid(
            'status.storedVersions', stored, "must have at least one stored version")
    elif storage and storage[-1] not in stored:
        yield wordings.invalid('status.storedVersions', stored,
                             f"must have the storage version {storage[-1]}")


def _check_changes(spec: Mapping[str, Any], old: statuses.Obj) -> Causes:
    for field in ('group', 'names.plural',
                  *(('scope', 'names.kind') if crds.is_established(old) else ())):
        value = statuses.dig(spec, field)
        if value != statuses.dig(old['spec'], field):
            yield wordings.immutable(f'spec.{field}', value)
    names = {version.get('name') for version in spec.get('versions') or ()}
    for index, name in enumerate((old.get('status') or {}).get('storedVersions') or ()):
        if name not in names:
            yield wordings.invalid(
                f'status.storedVersions[{index}]', name,
                "missing from spec.versions; "
                f"{name} was previously a storage version, and must remain in spec.versions until "
                f"a storage migration ensures no data remains persisted in {name} and removes "
                f"{name} from status.storedVersions")
