import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import kinds, statuses, webhookrules, wordings
from kopf._kits.sandbox.builtins import workloads
from kopf._kits.sandbox.schemas import definitions, nodes, paths

Causes = Iterator[statuses.Cause]

MAX_DATA = 1024 * 1024
"""How much data config maps and secrets can have, in bytes."""


def validate(kind: kinds.Kind, obj: statuses.Obj) -> list[statuses.Cause]:
    """
    What is wrong with the (completed) object of a built-in kind, besides its metadata.

    Only what is wrong with most of the wrong objects is found: absent names, images, selectors;
    values that are none of those supported.
    """
    special = _RULES.get(kind.resource)
    found = list(special(obj)) if special is not None else []
    known = {cause.field for cause in found}
    enums = _check_enums(definitions.schema_of(kind), obj, None)
    return found + [cause for cause in enums if cause.field not in known]


def _check_enums(schema: nodes.Schema, value: Any, path: paths.Path) -> Causes:
    if isinstance(value, dict):
        for key, item in value.items():
            child = schema.of(key)
            if child is not None and key not in ('metadata', 'status'):
                yield from _check_enums(child, item, (path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if schema.items is not None:
                yield from _check_enums(schema.items, item, (path, index))
    elif value and 'enum' in schema.raw and value not in schema.raw['enum']:
        yield wordings.unsupported(paths.render(path), value, schema.raw['enum'])


def _check_service(service: statuses.Obj) -> Causes:
    spec = service['spec']
    ports = spec.get('ports') or ()
    if not ports and spec.get('type') != 'ExternalName' and spec.get('clusterIP') != 'None':
        yield wordings.required('spec.ports')
    if spec.get('type') == 'ExternalName' and not spec.get('externalName'):
        yield wordings.required('spec.externalName')
    for index, port in enumerate(ports):
        field = f'spec.ports[{index}]'
        if len(ports) > 1 and not port.get('name'):
            yield wordings.required(f'{field}.name')
        for key in ('port', 'targetPort'):
            number = port.get(key, 0)
            if isinstance(number, int) and not 0 < number < 65536:
                yield wordings.invalid(
                    f'{field}.{key}', number, "must be between 1 and 65535, inclusive")


def _check_data(obj: statuses.Obj) -> Causes:
    data, binary = obj.get('data') or {}, obj.get('binaryData') or {}
    for part, values in (('data', data), ('binaryData', binary)):
        for key in values:
            field = f'{part}[{key}]'
            if not re.fullmatch(r'[-._a-zA-Z0-9]+', key):
                yield wordings.invalid(
                    field, key,
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
                    "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation "
                    "is '[-._a-zA-Z0-9]+')")
            elif key in ('.', '..'):
                yield wordings.invalid(field, key, f"must not be '{key}'")
            elif part == 'data' and key in binary:
                yield wordings.invalid(field, key, "duplicate of key present in binaryData")
    # The data is counted as it would be in files.
    plain, encoded, field = ({}, data, 'data') if obj['kind'] == 'Secret' else (data, binary, '[]')
    size = sum(len(value.encode('utf-8', 'replace')) for value in plain.values()) \
        + sum(len(value) * 3 // 4 for value in encoded.values())
    if size > MAX_DATA:
        yield wordings.too_long(field, MAX_DATA)


def _check_claim(claim: statuses.Obj) -> Causes:
    spec = claim['spec']
    modes = definitions.resolve('io.k8s.api.core.v1.PersistentVolumeClaimSpec')[
        'properties']['accessModes']['items']['enum']
    if not spec.get('accessModes'):
        yield wordings.required('spec.accessModes', "at least 1 access mode is required")
    for mode in spec.get('accessModes') or ():
        if mode not in modes:
            yield wordings.unsupported('spec.accessModes', mode, modes)
    if not statuses.dig(spec, 'resources.requests.storage'):
        yield wordings.required('spec.resources[storage]')


def _check_binding(binding: statuses.Obj) -> Causes:
    supported = ("ServiceAccount", "User", "Group")
    for index, subject in enumerate(binding.get('subjects') or ()):
        if subject.get('kind') not in supported:
            yield wordings.unsupported(
                f'subjects[{index}].kind', subject.get('kind', ''), supported)
        if not subject.get('name'):
            yield wordings.required(f'subjects[{index}].name')
        if subject.get('kind') == 'ServiceAccount' and not subject.get('namespace') and (
                binding.get('kind') == 'ClusterRoleBinding'):
            yield wordings.required(f'subjects[{index}].namespace')
    if not (binding.get('roleRef') or {}).get('name'):
        yield wordings.required('roleRef.name')


def _check_lease(lease: statuses.Obj) -> Causes:
    seconds = lease['spec'].get('leaseDurationSeconds', 1)
    if seconds <= 0:
        yield wordings.invalid('spec.leaseDurationSeconds', seconds, "must be greater than 0")


def _check_ingress(ingress: statuses.Obj) -> Causes:
    spec = ingress['spec']
    if not spec.get('rules') and not spec.get('defaultBackend'):
        yield wordings.invalid('spec', None, "either `defaultBackend` or `rules` must be specified")
    for index, rule in enumerate(spec.get('rules') or ()):
        for number, path in enumerate((rule.get('http') or {}).get('paths') or ()):
            if not path.get('pathType'):
                yield wordings.required(f'spec.rules[{index}].http.paths[{number}].pathType',
                                      "pathType must be specified")


def _check_event(event: statuses.Obj) -> Causes:
    namespace = (event.get('involvedObject') or {}).get('namespace') or ''
    own = event['metadata'].get('namespace', '')
    if namespace != own and not (not namespace and own == 'default'):
        yield wordings.invalid(
            'involvedObject.namespace', namespace, "does not match event.namespace")


def _check_storage_class(storage: statuses.Obj) -> Causes:
    if not storage.get('provisioner'):
        yield wordings.required('provisioner')


_RULES: Mapping[kinds.Resource, Callable[[statuses.Obj], Causes]] = {
    ('admissionregistration.k8s.io', 'mutatingwebhookconfigurations'): webhookrules.validate,
    ('admissionregistration.k8s.io', 'validatingwebhookconfigurations'): webhookrules.validate,
    ('', 'pods'): workloads.check_pods,
    ('', 'services'): _check_service,
    ('', 'configmaps'): _check_data,
    ('', 'secrets'): _check_data,
    ('', 'persistentvolumeclaims'): _check_claim,
    ('', 'events'): _check_event,
    ('apps', 'deployments'): workloads.check_workload,
    ('apps', 'statefulsets'): workloads.check_workload,
    ('apps', 'daemonsets'): workloads.check_workload,
    ('apps', 'replicasets'): workloads.check_workload,
    ('batch', 'jobs'): workloads.check_job,
    ('batch', 'cronjobs'): workloads.check_cron_job,
    ('coordination.k8s.io', 'leases'): _check_lease,
    ('networking.k8s.io', 'ingresses'): _check_ingress,
    ('rbac.authorization.k8s.io', 'rolebindings'): _check_binding,
    ('rbac.authorization.k8s.io', 'clusterrolebindings'): _check_binding,
    ('storage.k8s.io', 'storageclasses'): _check_storage_class,
}
