"""
The command ``kopf manifests``: the objects that a deployment of an operator consists of.

Nothing is requested here, and nothing is remembered: equal handlers and options make equal objects.
"""
import dataclasses
import logging
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from kopf._cogs.configs import configuration
from kopf._cogs.serving import endpoints
from kopf._cogs.structs import references
from kopf._core.intents import registries
from kopf._core.reactor.roles import leadership, sharding
from kopf._kits import commanding
from kopf._kits.projects import labels
from kopf._kits.typed import enforcement, granting, roles
from kopf._kits.typed.findings import Definition
from kopf._kits.typed.rights import Right
from kopf._kits.webhooks import servers, services

logger = logging.getLogger(__name__)

LIVENESS = 'http://0.0.0.0:8080/healthz'
"""Where the health checks are served if no option says so."""

LABEL = 'app.kubernetes.io/name'
"""The label by which the pods are selected."""

PEERING = pathlib.Path(__file__).with_name('peering.yaml')

FILES = (
    '0-definitions', '1-namespace', '2-rights', '3-users', '4-peering', '5-deployment',
    '6-webhooks', '7-monitoring')
"""The names of the files, in the order in which their objects need each other."""

BUDGETS_SINCE = 21
"""The minor version of Kubernetes since which disruption budgets are in ``policy/v1``."""

READING = ('get', 'list', 'watch')
WRITING = ('create', 'update', 'patch', 'delete')

Manifest = Mapping[str, Any]


class ManifestError(commanding.CommandError):
    """What is asked for cannot work in a cluster. The message says what to do instead."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """
    What is deployed, and how.

    ``args`` are those of ``kopf run`` in the ``image``; the health checks are at ``liveness``. The
    ``namespaces`` are those that the operator serves (none: all), and ``namespace`` is its own.
    """
    name: str
    namespace: str
    image: str
    args: Sequence[str]
    liveness: str = LIVENESS
    namespaces: Collection[references.NamespacePattern] = ()
    replicas: int = 1
    processes: int = 1
    has_monitor: bool = False
    minor: int | None = None
    """The minor version of Kubernetes; None for the current one."""


def make(
        plan: Plan,
        *,
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        rights: Collection[Right],
        definitions: Sequence[Definition],
) -> Mapping[str, Sequence[Manifest]]:
    """
    Make the objects, by the names of the files that they belong to; see `FILES`.

    The settings are those of the operator, the rights are all that it needs, and the definitions
    are those of its own kinds.

    :raises ManifestError: if the operator could not run like that.
    """
    made = _Making(plan, registry, settings)
    files = {
        '0-definitions': [*made.make_definitions(definitions)],
        '1-namespace': [*made.make_namespace()],
        '2-rights': [*made.make_rights(rights)],
        '3-users': [*made.make_user_roles(definitions)],
        '4-peering': [*made.make_peering()],
        '5-deployment': [*made.make_deployment()],
        '6-webhooks': [*made.make_service()],
        '7-monitoring': [*made.make_monitor()],
    }
    return {name: objs for name, objs in files.items() if objs}


class _Making:
    """The parts of a deployment. Each is made anew, as YAML would refer to what it has seen."""

    def __init__(
            self,
            plan: Plan,
            registry: registries.OperatorRegistry,
            settings: configuration.OperatorSettings,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._settings = settings
        self._has_peering = settings.peering.mandatory and not settings.peering.standalone
        _verify(plan, settings)
        self._liveness = _parse(plan.liveness, '--liveness', '/')
        self._metrics = None if settings.metrics.endpoint is None else _parse(
            settings.metrics.endpoint, '--metrics', '/metrics')
        if self._metrics and self._is_shared and self._metrics.host != self._liveness.host:
            raise ManifestError(
                f"{self._liveness} and {self._metrics} cannot be served at one port: write their "
                f"hosts in the same way, in --liveness and in --metrics.")
        if plan.has_monitor and self._metrics is None:
            raise ManifestError(
                "Without metrics, there is nothing to monitor: add "
                "--metrics=http://0.0.0.0:8080/metrics, or omit --pod-monitor.")
        self._webhooks = self._find_port() if [*registry._webhooks, *registry._converters] else None

    @property
    def _is_shared(self) -> bool:
        """Whether the metrics are served by the server of the health checks."""
        return self._metrics is not None and self._metrics.port == self._liveness.port

    def _find_port(self) -> int:
        """Find the port of the webhooks, and warn if the API server would not get there."""
        server = self._settings.admission.server
        if isinstance(server, services.WebhookServiceServer):
            if (server.service, server.namespace or self._plan.namespace) != (
                    self._plan.name, self._plan.namespace):
                logger.warning(
                    f"The service of the webhooks has another name than their server. Set: "
                    f"kopf.WebhookServiceServer(service={self._plan.name!r})")
            return server.port
        own = server if isinstance(server, servers.WebhookServer) else None
        port = (own is not None and own.port) or servers.DEFAULT_PORT
        host = f'{self._plan.name}.{self._plan.namespace}.svc'
        if server is None:
            logger.warning(
                f"The port of the webhooks is taken to be {port}. To use that of the startup "
                f"handlers: --startup")
        elif own is not None and own.host != host:
            logger.warning(
                f"The service of the webhooks has another name than their server. Set: "
                f"kopf.WebhookServer(addr='0.0.0.0', port={port}, host={host!r})")
        return port

    def make_definitions(self, definitions: Sequence[Definition]) -> Iterator[Definition]:
        minor = self._plan.minor
        yield from definitions if minor is None else (
            enforcement.remove_ignored(definition, minor) for definition in definitions)
        if self._has_peering:
            yield from yaml.safe_load_all(PEERING.read_text('utf-8'))

    def make_namespace(self) -> Iterator[Manifest]:
        name = self._plan.namespace
        if name != 'default' and not name.startswith('kube-'):  # these exist in each cluster
            yield {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}}

    def make_rights(self, rights: Collection[Right]) -> Iterator[Manifest]:
        yield {'apiVersion': 'v1', 'kind': 'ServiceAccount', 'metadata': self._make_metadata()}
        own = [right.move_to(self._plan.namespace) for right in rights]
        for role in roles.make_roles(own, self._plan.name):
            yield role
            yield roles.bind(role, {'kind': 'ServiceAccount', **self._make_metadata()})

    def make_user_roles(self, definitions: Sequence[Definition]) -> Iterator[Manifest]:
        """Make the roles by which people see and change the objects, if they do so in general."""
        plurals: dict[str, list[str]] = {}
        for definition in definitions:
            spec = definition['spec']
            plural = spec['names']['plural']
            is_scaled = any('scale' in version.get('subresources', ())
                            for version in spec['versions'])
            plurals.setdefault(spec['group'], []).extend(
                [plural, f'{plural}/scale'] if is_scaled else [plural])
        for role, verbs, targets in [
                ('view', READING, ['view']), ('edit', READING + WRITING, ['edit', 'admin'])]:
            if plurals:
                yield {
                    'apiVersion': roles.API_VERSION,
                    'kind': 'ClusterRole',
                    'metadata': {'name': f'{self._plan.name}-{role}', 'labels': {
                        f'{roles.API_GROUP}/aggregate-to-{target}': 'true' for target in targets}},
                    'rules': [
                        {'apiGroups': [group], 'resources': [*resources], 'verbs': [*verbs]}
                        for group, resources in plurals.items()],
                }

    def make_peering(self) -> Iterator[Manifest]:
        peering = self._settings.peering
        if not self._has_peering:
            return
        resource = granting.PEERINGS[peering.clusterwide]
        places: Collection[str | None] = [None] if peering.clusterwide else sorted(
            references.select_specific_namespaces(self._plan.namespaces))
        for namespace in places:
            yield {
                'apiVersion': f'{resource.group}/{resource.version}',
                'kind': resource.kind,
                'metadata': {'name': peering.name,
                             **({} if namespace is None else {'namespace': namespace})},
            }

    def make_deployment(self) -> Iterator[Manifest]:
        plan = self._plan
        has_several = plan.replicas > 1
        yield {
            'apiVersion': 'apps/v1',
            'kind': 'Deployment',
            'metadata': self._make_metadata(is_labelled=True),
            'spec': {
                'replicas': plan.replicas,
                'strategy': {'type': 'RollingUpdate' if has_several else 'Recreate'},
                'selector': self._make_selector(),
                'template': {
                    'metadata': {'labels': self._make_labels()},
                    'spec': {
                        'serviceAccountName': plan.name,
                        'securityContext': {
                            'runAsNonRoot': True, 'seccompProfile': {'type': 'RuntimeDefault'}},
                        **({'topologySpreadConstraints': [{
                            'topologyKey': 'kubernetes.io/hostname', 'maxSkew': 1,
                            'whenUnsatisfiable': 'ScheduleAnyway',
                            'labelSelector': self._make_selector(),
                        }]} if has_several else {}),
                        'containers': [self._make_container()],
                        'volumes': [{'name': 'tmp', 'emptyDir': {}}],
                    },
                },
            },
        }
        if has_several:
            is_old = plan.minor is not None and plan.minor < BUDGETS_SINCE
            yield {
                'apiVersion': 'policy/v1beta1' if is_old else 'policy/v1',
                'kind': 'PodDisruptionBudget',
                'metadata': self._make_metadata(),
                'spec': {'minAvailable': 1, 'selector': self._make_selector()},
            }

    def _make_container(self) -> Manifest:
        plan = self._plan
        ports = {'http': self._liveness.port}
        if self._metrics is not None and not self._is_shared:
            ports['metrics'] = self._metrics.port
        if self._webhooks is not None:
            ports['webhooks'] = self._webhooks
        return {
            'name': 'operator',
            'image': plan.image,
            'command': ['kopf', 'run'],
            'args': [*plan.args],
            'env': [{  # the name by which other replicas and people know it
                'name': 'POD_ID', 'valueFrom': {'fieldRef': {'fieldPath': 'metadata.name'}}}],
            'ports': [{'name': name, 'containerPort': port} for name, port in ports.items()],
            'readinessProbe': {
                **({'tcpSocket': {'port': 'webhooks'}} if 'webhooks' in ports
                   else self._make_health_check()),
                'timeoutSeconds': 5},
            'livenessProbe': {
                **self._make_health_check(), 'initialDelaySeconds': 30, 'timeoutSeconds': 5},
            'resources': {
                'requests': {'cpu': f'{20 * plan.processes}m',
                             'memory': f'{100 * plan.processes}Mi'},
                'limits': {'memory': f'{300 * plan.processes}Mi'},
            },
            'securityContext': {
                'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True,
                'capabilities': {'drop': ['ALL']}},
            'volumeMounts': [{'name': 'tmp', 'mountPath': '/tmp'}],
        }

    def _make_health_check(self) -> Manifest:
        return {'httpGet': {'path': self._liveness.path, 'port': 'http'}}

    def make_service(self) -> Iterator[Manifest]:
        if self._webhooks is not None:
            is_standard = isinstance(
                self._settings.admission.server, services.WebhookServiceServer)
            yield {
                'apiVersion': 'v1',
                'kind': 'Service',
                'metadata': self._make_metadata(is_labelled=True),
                'spec': {
                    'selector': self._make_labels(),
                    'ports': [{'name': 'webhooks', 'targetPort': 'webhooks', 'protocol': 'TCP',
                               'port': services.SERVICE_PORT if is_standard else self._webhooks}],
                },
            }

    def make_monitor(self) -> Iterator[Manifest]:
        if self._plan.has_monitor and self._metrics is not None:
            yield {
                'apiVersion': 'monitoring.coreos.com/v1',
                'kind': 'PodMonitor',
                'metadata': self._make_metadata(is_labelled=True),
                'spec': {
                    'selector': self._make_selector(),
                    'podMetricsEndpoints': [{
                        'port': 'http' if self._is_shared else 'metrics',
                        'path': self._metrics.path}],
                },
            }

    def _make_metadata(self, *, is_labelled: bool = False) -> dict[str, Any]:
        return {'name': self._plan.name, 'namespace': self._plan.namespace,
                **({'labels': self._make_labels()} if is_labelled else {})}

    def _make_labels(self) -> dict[str, str]:
        return {LABEL: self._plan.name}

    def _make_selector(self) -> Manifest:
        return {'matchLabels': self._make_labels()}


def _verify(plan: Plan, settings: configuration.OperatorSettings) -> None:
    """Check that operators do not start in vain, and do not work twice."""
    for option, name in [('--name', plan.name), ('--operator-namespace', plan.namespace)]:
        if not labels.is_label(name):
            raise ManifestError(f"{name!r} is {labels.FAULT} Give another one: {option}")
    is_sharded = settings.sharding.count is not None
    is_led = settings.leadership.name is not None
    try:
        if is_sharded:
            sharding.verify(settings)
        elif is_led:
            leadership.verify(settings)
    except configuration.SettingsError as e:
        raise ManifestError(str(e)) from e
    if plan.replicas > 1 and not (is_sharded or is_led):
        raise ManifestError(
            f"{plan.replicas} replicas need a Lease, so that only one of them works "
            f"(--leader-elect), or shards, so that each has its own objects (--shards=32). "
            f"In a peering, all of them would have the same priority, and pause.")


def _parse(url: str, option: str, default_path: str) -> endpoints.Endpoint:
    """Parse the URL of what the cluster requests from the pods."""
    try:
        endpoint = endpoints.Endpoint.parse(url, default_path=default_path)
    except endpoints.EndpointError as e:
        raise ManifestError(f"{option}={url}: {e}") from e
    if endpoint.host in ('localhost', '127.0.0.1', '::1') or not endpoint.port:
        raise ManifestError(
            f"The cluster cannot request {url}: all addresses and one port must be served, such "
            f"as {option}=http://0.0.0.0:8080{endpoint.path}")
    return endpoint
