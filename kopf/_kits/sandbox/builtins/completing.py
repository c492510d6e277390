import base64
from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.sandbox import kinds, statuses
from kopf._kits.sandbox.builtins import quantities
from kopf._kits.sandbox.schemas import definitions, nodes, scalars
from kopf._kits.sandbox.schemas.depths import guarded

DEFAULTS = 'defaults.json'
META = 'io.k8s.apimachinery.pkg.apis.meta.v1.'
TEMPLATE_GENERATION = 'deprecated.daemonset.template.generation'


@guarded
def complete(kind: kinds.Kind, obj: statuses.Obj) -> statuses.Obj:
    """
    The (decoded) object of a built-in kind with all its defaults; doing so twice changes nothing.

    CRDs are completed elsewhere, in `crds.complete`.
    """
    result: statuses.Obj = _fill(definitions.schema_of(kind), obj)
    special = _SPECIAL.get((kind.group, kind.kind))
    if special is not None:
        special(result)
    return result


def _fill(schema: nodes.Schema, value: Any) -> Any:
    """
    Fill in the defaults of the definitions and of the fields; those of fields include zeros.

    Everything but the metadata is a copy, so that the functions below can change it.
    """
    name = schema.name
    if name == scalars.QUANTITY:
        return quantities.canonicalize(value)
    if name.startswith(META) or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        if schema.items is None:
            return value
        return [_fill(schema.items, item) for item in value]
    result = {
        key: item if (child := schema.of(key)) is None else _fill(child, item)
        for key, item in value.items()
    }
    for key, item in kinds.load(DEFAULTS).get(name, {}).items():
        if key not in result:
            result[key] = item if not isinstance(item, dict | list) else _fill(
                schema.properties[key], item)
    for key, child in schema.properties.items():
        default = child.default
        if default is not nodes.NOTHING and key not in result and not (
                default == 0 and key in scalars.DROPPED_ZERO):
            result[key] = _fill(child, default) if isinstance(default, dict | list) else default
    if result.get('type') == 'RollingUpdate' and 'rollingUpdate' in schema.properties:
        result.setdefault('rollingUpdate', _fill(schema.properties['rollingUpdate'], {}))
    special = _DEFINITIONS.get(name)
    if special is not None:
        special(result)
    return result


def _complete_container(container: dict[str, Any]) -> None:
    if 'imagePullPolicy' not in container:
        image = container.get('image', '')
        _, _, tag = image.rpartition('/')[2].partition(':')
        latest = tag in ('', 'latest') and '@' not in image
        container['imagePullPolicy'] = 'Always' if latest else 'IfNotPresent'


def _complete_volume(volume: dict[str, Any]) -> None:
    if len(volume) < 2:
        volume['emptyDir'] = {}


def _complete_pod_spec(spec: dict[str, Any]) -> None:
    account = spec.get('serviceAccountName') or spec.get('serviceAccount')
    if account:
        spec['serviceAccountName'] = spec['serviceAccount'] = account


def _complete_claim_template(spec: dict[str, Any]) -> None:
    if 'volumeClaimTemplates' in spec:
        spec['volumeClaimTemplates'] = [
            {'kind': 'PersistentVolumeClaim', 'apiVersion': 'v1', **claim}
            for claim in spec['volumeClaimTemplates']
        ]


def _complete_subject(subject: dict[str, Any]) -> None:
    if subject.get('kind') in ('User', 'Group'):
        subject.setdefault('apiGroup', 'rbac.authorization.k8s.io')


def _complete_limit(limit: dict[str, Any]) -> None:
    if limit.get('type') == 'Container':
        default = {**(limit.get('max') or {}), **(limit.get('default') or {})}
        requested = {**default, **(limit.get('min') or {}), **(limit.get('defaultRequest') or {})}
        filled = {'default': default, 'defaultRequest': requested}
        limit |= {key: value for key, value in filled.items() if value}


_DEFINITIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    'io.k8s.api.core.v1.Container': _complete_container,
    'io.k8s.api.core.v1.EphemeralContainer': _complete_container,
    'io.k8s.api.core.v1.LimitRangeItem': _complete_limit,
    'io.k8s.api.core.v1.Volume': _complete_volume,
    'io.k8s.api.core.v1.PodSpec': _complete_pod_spec,
    'io.k8s.api.apps.v1.StatefulSetSpec': _complete_claim_template,
    'io.k8s.api.rbac.v1.Subject': _complete_subject,
}


def _complete_pod(pod: statuses.Obj) -> None:
    """Unlike templates of pods, pods request what they are limited to."""
    spec = pod['spec']
    spec.setdefault('enableServiceLinks', True)
    for container in (*spec.get('containers', ()), *spec.get('initContainers', ())):
        resources = container.get('resources') or {}
        if resources.get('limits'):
            resources['requests'] = {**resources['limits'], **(resources.get('requests') or {})}


def _complete_service(service: statuses.Obj) -> None:
    spec = service['spec']
    type_ = spec.get('type')
    for port in spec.get('ports', ()):
        if port.get('targetPort') in (None, 0, ''):
            port['targetPort'] = port.get('port', 0)
    if spec.get('sessionAffinity') == 'ClientIP':
        spec.setdefault('sessionAffinityConfig', {'clientIP': {'timeoutSeconds': 10800}})
    if type_ != 'ExternalName':
        spec.setdefault('internalTrafficPolicy', 'Cluster')
    if type_ in ('NodePort', 'LoadBalancer'):
        spec.setdefault('externalTrafficPolicy', 'Cluster')
    if type_ == 'LoadBalancer':
        spec.setdefault('allocateLoadBalancerNodePorts', True)


def _complete_daemons(daemons: statuses.Obj) -> None:
    metadata = daemons.get('metadata') or {}
    annotations = {TEMPLATE_GENERATION: '1', **(metadata.get('annotations') or {})}
    daemons['metadata'] = {**metadata, 'annotations': annotations}


def _complete_job(job: statuses.Obj) -> None:
    spec = job['spec']
    if 'completions' not in spec and 'parallelism' not in spec:
        spec['completions'] = 1
    if 'podFailurePolicy' in spec:
        spec.setdefault('podReplacementPolicy', 'Failed')
    job['spec'] = {
        'parallelism': 1, 'backoffLimit': 6, 'completionMode': 'NonIndexed', 'suspend': False,
        'manualSelector': False, 'podReplacementPolicy': 'TerminatingOrFailed', **spec}


def _complete_controller(controller: statuses.Obj) -> None:
    """A replication controller is labelled and selects as its template tells."""
    spec, metadata = controller['spec'], controller.get('metadata') or {}
    labels = statuses.dig(spec, 'template.metadata.labels')
    if labels:
        controller['metadata'] = {**metadata, 'labels': metadata.get('labels') or labels}
        spec['selector'] = spec.get('selector') or labels


def _complete_policy(policy: statuses.Obj) -> None:
    spec = policy['spec']
    spec.setdefault('policyTypes', ['Ingress', 'Egress'] if 'egress' in spec else ['Ingress'])


def _complete_secret(secret: statuses.Obj) -> None:
    for key, value in secret.pop('stringData', {}).items():
        secret.setdefault('data', {})[key] = base64.b64encode(value.encode()).decode()


def _complete_namespace(namespace: statuses.Obj) -> None:
    metadata = namespace.get('metadata') or {}
    if metadata.get('name'):
        own = {'kubernetes.io/metadata.name': metadata['name']}
        namespace['metadata'] = {**metadata, 'labels': {**(metadata.get('labels') or {}), **own}}


def _complete_autoscaler(scaler: statuses.Obj) -> None:
    spec = scaler.setdefault('spec', {})
    if scaler.get('apiVersion') == 'autoscaling/v1':
        spec.setdefault('targetCPUUtilizationPercentage', 80)
        return
    if spec.get('behavior') is not None:
        spec['behavior'] = {
            way: {**default, **(spec['behavior'].get(way) or {})}
            for way, default in SCALING.items()}
    if not spec.get('metrics'):
        target = {'type': 'Utilization', 'averageUtilization': 80}
        spec['metrics'] = [{'type': 'Resource', 'resource': {'name': 'cpu', 'target': target}}]


_PERCENT = {'type': 'Percent', 'value': 100, 'periodSeconds': 15}
SCALING: Mapping[str, Mapping[str, Any]] = {
    'scaleUp': {
        'selectPolicy': 'Max', 'stabilizationWindowSeconds': 0,
        'policies': [{'type': 'Pods', 'value': 4, 'periodSeconds': 15}, _PERCENT]},
    'scaleDown': {'selectPolicy': 'Max', 'policies': [_PERCENT]},
}
"""The defaults of how autoscalers behave, if anything is said about it."""

_SPECIAL: dict[tuple[str, str], Callable[[statuses.Obj], None]] = {
    ('', 'Pod'): _complete_pod,
    ('', 'Service'): _complete_service,
    ('', 'ReplicationController'): _complete_controller,
    ('', 'Secret'): _complete_secret,
    ('', 'Namespace'): _complete_namespace,
    ('apps', 'DaemonSet'): _complete_daemons,
    ('autoscaling', 'HorizontalPodAutoscaler'): _complete_autoscaler,
    ('batch', 'Job'): _complete_job,
    ('networking.k8s.io', 'NetworkPolicy'): _complete_policy,
}
