"""
The command ``kopf manifests``: the objects that a deployment of an operator consists of.

Nothing is requested here, and nothing is remembered: equal handlers and options make equal objects.
"""
import dataclasses
import json
import logging
import pathlib
import string
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

OBJECTS, PEERING = (
    pathlib.Path(__file__).with_name(name) for name in ('objects.yaml', 'peering.yaml'))

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
    _verify(plan, settings)
    liveness = _parse(plan.liveness, '--liveness', '/')
    metrics = None if settings.metrics.endpoint is None else _parse(
        settings.metrics.endpoint, '--metrics', '/metrics')
    is_shared = metrics is not None and metrics.port == liveness.port
    if metrics is not None and is_shared and metrics.host != liveness.host:
        raise ManifestError(
            f"{liveness} and {metrics} cannot be served at one port: write their hosts in the same "
            f"way, in --liveness and in --metrics.")
    if plan.has_monitor and metrics is None:
        raise ManifestError(
            "Without metrics, there is nothing to monitor: add "
            "--metrics=http://0.0.0.0:8080/metrics, or omit --pod-monitor.")
    ports = {'http': liveness.port}
    if metrics is not None and not is_shared:
        ports['metrics'] = metrics.port
    if has_webhooks := bool([*registry._webhooks, *registry._converters]):
        ports['webhooks'] = _find_port(plan, settings)
    is_standard = isinstance(settings.admission.server, services.WebhookServiceServer)
    has_several = plan.replicas > 1
    is_old = plan.minor is not None and plan.minor < BUDGETS_SINCE
    namespace, account, viewers, editors, deployment, budget, service, monitor = _load(
        name=plan.name, namespace=plan.namespace, image=plan.image, args=[*plan.args],
        viewers=f'{plan.name}-view', reading=_make_rules(definitions, READING),
        editors=f'{plan.name}-edit', writing=_make_rules(definitions, READING + WRITING),
        replicas=plan.replicas, strategy='RollingUpdate' if has_several else 'Recreate',
        cpu=f'{20 * plan.processes}m', memory=f'{100 * plan.processes}Mi',
        memory_limit=f'{300 * plan.processes}Mi',
        ports=[{'name': name, 'containerPort': port} for name, port in ports.items()],
        liveness=liveness.path,
        readiness={
            **({'tcpSocket': {'port': 'webhooks'}} if has_webhooks else
               {'httpGet': {'path': liveness.path, 'port': 'http'}}),
            'timeoutSeconds': 5},
        budget_version='policy/v1beta1' if is_old else 'policy/v1',
        service_port=services.SERVICE_PORT if is_standard else ports.get('webhooks'),
        metrics_port='http' if is_shared else 'metrics', metrics_path=metrics and metrics.path)
    if not has_several:
        del deployment['spec']['template']['spec']['topologySpreadConstraints']
    is_there = plan.namespace == 'default' or plan.namespace.startswith('kube-')
    has_peering = settings.peering.mandatory and not settings.peering.standalone
    files = {
        '0-definitions': [
            *(definitions if plan.minor is None else [
                enforcement.remove_ignored(definition, plan.minor) for definition in definitions]),
            *(load_peering_kinds() if has_peering else ())],
        '1-namespace': [] if is_there else [namespace],
        '2-rights': [account, *_make_rights(plan, rights)],
        '3-users': [viewers, editors] if definitions else [],
        '4-peering': [*_make_peerings(plan, settings.peering)] if has_peering else [],
        '5-deployment': [deployment, budget] if has_several else [deployment],
        '6-webhooks': [service] if has_webhooks else [],
        '7-monitoring': [monitor] if plan.has_monitor else [],
    }
    return {name: objs for name, objs in files.items() if objs}


def _load(**values: Any) -> Iterator[Any]:
    """Fill in the values, and iterate over the objects."""
    return yaml.safe_load_all(string.Template(OBJECTS.read_text('utf-8')).substitute({
        name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}))


def _make_rights(plan: Plan, rights: Collection[Right]) -> Iterator[Manifest]:
    for role in roles.make_roles(
            [right.move_to(plan.namespace) for right in rights], plan.name):
        yield role
        yield roles.bind(role, {
            'kind': 'ServiceAccount', 'name': plan.name, 'namespace': plan.namespace})


def _make_rules(definitions: Sequence[Definition], verbs: Sequence[str]) -> list[Manifest]:
    """Make the rules of a role for the objects of these definitions."""
    plurals: dict[str, list[str]] = {}
    for definition in definitions:
        spec, plural = definition['spec'], definition['spec']['names']['plural']
        is_scaled = any('scale' in version.get('subresources', ()) for version in spec['versions'])
        plurals.setdefault(spec['group'], []).extend(
            [plural, f'{plural}/scale'] if is_scaled else [plural])
    return [{'apiGroups': [group], 'resources': resources, 'verbs': [*verbs]}
            for group, resources in plurals.items()]


def load_peering_kinds() -> list[dict[str, Any]]:
    """Load the definitions of the kinds by which operators find each other."""
    return list(yaml.safe_load_all(PEERING.read_text('utf-8')))


def _make_peerings(plan: Plan, peering: configuration.PeeringSettings) -> Iterator[Manifest]:
    resource = granting.PEERINGS[peering.clusterwide]
    places: Collection[str | None] = [None] if peering.clusterwide else sorted(
        references.select_specific_namespaces(plan.namespaces))
    for namespace in places:
        yield {
            'apiVersion': resource.api_version,
            'kind': resource.kind,
            'metadata': {'name': peering.name,
                         **({} if namespace is None else {'namespace': namespace})},
        }


def _find_port(plan: Plan, settings: configuration.OperatorSettings) -> int:
    """Find the port of the webhooks, and warn if the API server would not get there."""
    server = settings.admission.server
    if isinstance(server, services.WebhookServiceServer):
        if (server.service, server.namespace or plan.namespace) != (plan.name, plan.namespace):
            logger.warning(
                f"The service of the webhooks has another name than their server. Set: "
                f"kopf.WebhookServiceServer(service={plan.name!r})")
        return server.port
    own = server if isinstance(server, servers.WebhookServer) else None
    port = (own is not None and own.port) or servers.DEFAULT_PORT
    host = f'{plan.name}.{plan.namespace}.svc'
    if server is None:
        logger.warning(
            f"The port of the webhooks is taken to be {port}. To use that of the startup handlers: "
            f"--startup")
    elif own is not None and own.host != host:
        logger.warning(
            f"The service of the webhooks has another name than their server. Set: "
            f"kopf.WebhookServer(addr='0.0.0.0', port={port}, host={host!r})")
    return port


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
