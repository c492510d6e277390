import base64
import functools
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
    return special(result) if special is not None else result


def _fill(schema: nodes.Schema, value: Any) -> Any:
    """Fill in the defaults of the definitions and of the fields; those of fields include zeros."""
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
    if name in _DEFINITIONS:
        return _DEFINITIONS[name](result)
    return result


def _complete_container(container: dict[str, Any]) -> dict[str, Any]:
    if 'imagePullPolicy' not in container:
        _, _, tag = container.get('image', '').rpartition('/')[2].partition(':')
        latest = tag in ('', 'latest') and '@' not in container.get('image', '')
        container['imagePullPolicy'] = 'Always' if latest else 'IfNotPresent'
    return container


def _complete_volume(volume: dict[str, Any]) -> dict[str, Any]:
    return volume if len(volume) > 1 else {**volume, 'emptyDir': {}}


def _complete_pod_spec(spec: dict[str, Any]) -> dict[str, Any]:
    account = spec.get('serviceAccountName') or spec.get('serviceAccount')
    if account:
        spec['serviceAccountName'] = spec['serviceAccount'] = account
    return spec


def _complete_rolling(strategy: dict[str, Any], rolling: str) -> dict[str, Any]:
    if strategy.get('type') == 'RollingUpdate' and 'rollingUpdate' not in strategy:
        strategy['rollingUpdate'] = dict(kinds.load(DEFAULTS)[f'io.k8s.api.apps.v1.{rolling}'])
    return strategy


def _complete_claim_template(spec: dict[str, Any]) -> dict[str, Any]:
    if 'volumeClaimTemplates' in spec:
        spec['volumeClaimTemplates'] = [
            {'kind': 'PersistentVolumeClaim', 'apiVersion': 'v1', **claim}
            for claim in spec['volumeClaimTemplates']
        ]
    return spec


def _complete_subject(subject: dict[str, Any]) -> dict[str, Any]:
    if 'apiGroup' not in subject and subject.get('kind') in ('User', 'Group'):
        return {**subject, 'apiGroup': 'rbac.authorization.k8s.io'}
    return subject


def _complete_limit(limit: dict[str, Any]) -> dict[str, Any]:
    if limit.get('type') != 'Container':
        return limit
    default = {**(limit.get('max') or {}), **(limit.get('default') or {})}
    requested = {**default, **(limit.get('min') or {}), **(limit.get('defaultRequest') or {})}
    filled = {'default': default, 'defaultRequest': requested}
    return {**limit, **{key: value for key, value in filled.items() if value}}


_DEFINITIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    'io.k8s.api.core.v1.Container': _complete_container,
    'io.k8s.api.core.v1.EphemeralContainer': _complete_container,
    'io.k8s.api.core.v1.LimitRangeItem': _complete_limit,
    'io.k8s.api.core.v1.Volume': _complete_volume,
    'io.k8s.api.core.v1.PodSpec': _complete_pod_spec,
    'io.k8s.api.apps.v1.DeploymentStrategy':
        functools.partial(_complete_rolling, rolling='RollingUpdateDeployment'),
    'io.k8s.api.apps.v1.StatefulSetUpdateStrategy':
        functools.partial(_complete_rolling, rolling='RollingUpdateStatefulSetStrategy'),
    'io.k8s.api.apps.v1.DaemonSetUpdateStrategy':
        functools.partial(_complete_rolling, rolling='RollingUpdateDaemonSet'),
    'io.k8s.api.apps.v1.StatefulSetSpec': _complete_claim_template,
    'io.k8s.api.rbac.v1.Subject': _complete_subject,
}


def _complete_pod(pod: statuses.Obj) -> statuses.Obj:
    """Unlike templates of pods, pods request what they are limited to."""
    spec = {'enableServiceLinks': True, **pod['spec']}
    for part in {'containers', 'initContainers'} & set(spec):
        spec[part] = [_request_limits(container) for container in spec[part]]
    return {**pod, 'spec': spec}


def _request_limits(container: dict[str, Any]) -> dict[str, Any]:
    resources = container.get('resources') or {}
    limits = resources.get('limits')
    if not limits:
        return container
    requests = {**limits, **(resources.get('requests') or {})}
    return {**container, 'resources': {**resources, 'requests': requests}}


def _complete_service(service: statuses.Obj) -> statuses.Obj:
    spec = dict(service['spec'])
    type_ = spec.get('type')
    if 'ports' in spec:
        spec['ports'] = [
            port if port.get('targetPort') not in (None, 0, '')
            else {**port, 'targetPort': port.get('port', 0)} for port in spec['ports']
        ]
    if spec.get('sessionAffinity') == 'ClientIP' and 'sessionAffinityConfig' not in spec:
        spec['sessionAffinityConfig'] = {'clientIP': {'timeoutSeconds': 10800}}
    if type_ != 'ExternalName':
        spec.setdefault('internalTrafficPolicy', 'Cluster')
    if type_ in ('NodePort', 'LoadBalancer'):
        spec.setdefault('externalTrafficPolicy', 'Cluster')
    if type_ == 'LoadBalancer':
        spec.setdefault('allocateLoadBalancerNodePorts', True)
    return {**service, 'spec': spec}


def _complete_daemons(daemons: statuses.Obj) -> statuses.Obj:
    metadata = daemons.get('metadata') or {}
    annotations = {TEMPLATE_GENERATION: '1', **(metadata.get('annotations') or {})}
    return {**daemons, 'metadata': {**metadata, 'annotations': annotations}}


def _complete_job(job: statuses.Obj) -> statuses.Obj:
    spec = dict(job['spec'])
    if 'completions' not in spec and 'parallelism' not in spec:
        spec['completions'] = 1
    spec.setdefault('parallelism', 1)
    if 'podFailurePolicy' in spec:
        spec.setdefault('podReplacementPolicy', 'Failed')
    for key, value in (('backoffLimit', 6), ('completionMode', 'NonIndexed'), ('suspend', False),
                       ('manualSelector', False), ('podReplacementPolicy', 'TerminatingOrFailed')):
        spec.setdefault(key, value)
    return {**job, 'spec': spec}


def _complete_controller(controller: statuses.Obj) -> statuses.Obj:
    """A replication controller is labelled and selects as its template tells."""
    spec = controller['spec']
    labels = ((spec.get('template') or {}).get('metadata') or {}).get('labels')
    if not labels:
        return controller
    metadata = controller.get('metadata') or {}
    return {
        **controller,
        'metadata': {**metadata, 'labels': metadata.get('labels') or labels},
        'spec': {**spec, 'selector': spec.get('selector') or labels},
    }


def _complete_policy(policy: statuses.Obj) -> statuses.Obj:
    spec = policy['spec']
    if 'policyTypes' in spec:
        return policy
    types = ['Ingress', 'Egress'] if 'egress' in spec else ['Ingress']
    return {**policy, 'spec': {**spec, 'policyTypes': types}}


def _complete_secret(secret: statuses.Obj) -> statuses.Obj:
    if 'stringData' not in secret:
        return secret
    encoded = {key: base64.b64encode(value.encode()).decode()
               for key, value in secret['stringData'].items()}
    data = {**(secret.get('data') or {}), **encoded}
    return {**statuses.omit(secret, 'stringData'), 'data': data}


def _complete_namespace(namespace: statuses.Obj) -> statuses.Obj:
    metadata = namespace.get('metadata') or {}
    if metadata.get('name'):
        labels = {'kubernetes.io/metadata.name': metadata['name'], **(metadata.get('labels') or {})}
        labels['kubernetes.io/metadata.name'] = metadata['name']
        metadata = {**metadata, 'labels': labels}
    return {**namespace, 'metadata': metadata}


def _complete_autoscaler(scaler: statuses.Obj) -> statuses.Obj:
    spec = scaler.get('spec') or {}
    if scaler.get('apiVersion') == 'autoscaling/v1':
        return {**scaler, 'spec': {'targetCPUUtilizationPercentage': 80, **spec}}
    if spec.get('behavior') is not None:
        spec = {**spec, 'behavior': {
            way: {**default, **(spec['behavior'].get(way) or {})}
            for way, default in SCALING.items()}}
    if not spec.get('metrics'):
        target = {'type': 'Utilization', 'averageUtilization': 80}
        metric = {'type': 'Resource', 'resource': {'name': 'cpu', 'target': target}}
        spec = {**spec, 'metrics': [metric]}
    return {**scaler, 'spec': spec}


_PERCENT = {'type': 'Percent', 'value': 100, 'periodSeconds': 15}
SCALING: Mapping[str, Mapping[str, Any]] = {
    'scaleUp': {
        'selectPolicy': 'Max', 'stabilizationWindowSeconds': 0,
        'policies': [{'type': 'Pods', 'value': 4, 'periodSeconds': 15}, _PERCENT]},
    'scaleDown': {'selectPolicy': 'Max', 'policies': [_PERCENT]},
}
"""The defaults of how autoscalers behave, if anything is said about it."""

_SPECIAL: dict[tuple[str, str], Callable[[statuses.Obj], statuses.Obj]] = {
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
