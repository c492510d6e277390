"""
Granting: the rights that an operator needs, by its handlers, its settings, and its options.

Nothing is requested here: the resources are given, as the `catalogue` knows them without a cluster,
or as a cluster has them.
"""
import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from kopf._cogs.cluster import discovery
from kopf._cogs.configs import configuration
from kopf._cogs.structs import leases, references
from kopf._core.engines.admission import configurations
from kopf._core.engines.peering import records
from kopf._core.intents import handlers, registries
from kopf._core.reactor.watches import orchestration
from kopf._kits import commanding
from kopf._kits.typed import catalogue
from kopf._kits.typed.rights import FEATURES, Place, Right, get_needs
from kopf._kits.webhooks import services

PEERINGS = {
    True: references.Resource(
        records.GROUPS[0], 'v1', 'clusterkopfpeerings', kind='ClusterKopfPeering',
        namespaced=False),
    False: references.Resource(
        records.GROUPS[0], 'v1', 'kopfpeerings', kind='KopfPeering', namespaced=True),
}
"""The resources of peering objects, by whether the operator is cluster-wide; if none are known."""

EVENTS = references.Resource('', 'v1', 'events', namespaced=True)


class GrantError(commanding.CommandError):
    """It is not known which rights are needed. The message names the handler, and what to do."""


def find_rights(
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        *,
        resources: Collection[references.Resource],
        is_complete: bool,
        namespaces: Collection[references.NamespacePattern] = (),
) -> frozenset[Right]:
    """
    Find the rights that an operator needs, with these settings, in these namespaces (none: in all).

    The resources are ``is_complete`` if they are all resources of a cluster.

    :raises GrantError: if it is not known which resources a handler is for.
    """
    return frozenset(_Granting(registry, settings, resources, is_complete, namespaces).iterate())


@dataclasses.dataclass
class _Granting:
    """The features that an operator uses, and with what."""
    _registry: registries.OperatorRegistry
    _settings: configuration.OperatorSettings
    _resources: Collection[references.Resource]
    _is_complete: bool
    _patterns: Collection[references.NamespacePattern]

    def __post_init__(self) -> None:
        exact = references.select_specific_namespaces(self._patterns)
        self._has_patterns = len(exact) < len(set(self._patterns))
        self._served: Collection[str | None] = (
            [None] if self._has_patterns or not self._patterns else exact)
        self._binding = registries.resolve(self._registry, self._resources)
        server = self._settings.admission.server
        self._server = server if isinstance(server, services.WebhookServiceServer) else None

    def iterate(self) -> Iterator[Right]:
        self._verify()
        yield from self._iter_handled()
        yield from self._iter_reconciled()
        yield from self._iter_coordination()
        yield from self._iter_admission()
        yield from self._iter_observation()
        known = [*self._registry._activities, *self._registry.iter_resource_handlers()]
        for handler in [*known, *(
                call for each in known if isinstance(each, handlers.ExternalHandler)
                for call in each.declaration.calls.values())]:
            for need in get_needs(handler.fn):
                for resource in self._select(need.selector, handler):
                    for name in need.names:
                        yield from self._make(
                            resource, need.verbs, Place.SERVED, name=name, part=need.subresource)

    def _verify(self) -> None:
        """Check that the resources of all handlers are known."""
        for handler in self._registry.iter_resource_handlers():
            selectors = [] if handler.selector is None else [handler.selector]
            if isinstance(handler, handlers.ReconcilingHandler):
                selectors += [*handler.owns, *(selector for selector, _ in handler.watches)]
            for selector in selectors:
                self._select(selector, handler)

    def _select(
            self, selector: references.Selector, handler: handlers.Handler,
    ) -> Collection[references.Resource]:
        if not (selector.is_named or self._is_complete):
            raise GrantError(
                f"{handler!r}: which resources are selected by {selector} depends on the cluster. "
                f"Ask the cluster: --cluster")
        try:
            found = selector.select(self._resources)
        except Exception as e:
            raise GrantError(f"{handler!r}: the selector {selector} fails: {e!r}") from e
        names = sorted({f'{resource.plural}.{resource.group}' for resource in found})
        if selector.is_specific and len(names) > 1:
            raise GrantError(
                f"{handler!r}: {selector} is ambiguous. Use one of: {', '.join(names)}")
        if not found:
            similar = selector.find_similar(self._resources)
            hint = f" Did you mean {similar}?" if similar is not None else ""
            builtin = {resource.group for resource in catalogue.list_resources()}
            defined = {str(each) for each in self._resources if each.group not in builtin}
            if defined and not self._is_complete:
                hint += f" The given definitions are of: {', '.join(sorted(defined))}."
            raise GrantError(
                f"{handler!r}: there is no resource {selector} among the known ones.{hint} "
                f"Give its definition (--crd FILE), or ask the cluster (--cluster).")
        return found

    def _iter_handled(self) -> Iterator[Right]:
        for resource, served in self._binding.handlers.items():
            if served.are_watched:
                yield from self._use('watching', resource)
                if self._settings.posting.enabled:
                    yield from self._use('posting', EVENTS)
                    if not resource.namespaced:
                        yield from self._use('posting_elsewhere', EVENTS)
            if served.spawning or served.changing or served.reconciling or any(
                    _is_writing(handler.fn) for handler in served.watching):
                yield from self._use('changing', resource)
                if 'status' in resource.subresources:
                    yield from self._use('status', resource)

    def _iter_reconciled(self) -> Iterator[Right]:
        for parent, served in self._binding.handlers.items():
            for handler in served.reconciling:
                if handler.owns:
                    yield from self._use('blocking', parent)
                for resource in self._binding.owned[handler]:
                    yield from self._use('owning', resource)
                for resource, _ in self._binding.watched[handler]:
                    yield from self._use('using', resource)

    def _iter_coordination(self) -> Iterator[Right]:
        peering = self._settings.peering
        if self._settings.sharding.count is not None:
            yield from self._use('shards', leases.RESOURCE)
        elif self._settings.leadership.name is not None:
            yield from self._use('lease_creation', leases.RESOURCE)
            yield from self._use('lease', leases.RESOURCE, name=self._settings.leadership.name)
        elif not peering.standalone:
            wide = peering.clusterwide
            known = [resource for resource in self._resources
                     if records.is_peering(resource, clusterwide=wide)]
            for resource in known or [PEERINGS[wide]]:
                yield from self._use('peering', resource, name=peering.name)
                if 'status' in resource.subresources:
                    yield from self._make(
                        resource, ['patch'], Place.SERVED, name=peering.name, part='status')

    def _iter_admission(self) -> Iterator[Right]:
        managed = self._settings.admission.managed
        for reason in {handler.reason for handler in self._registry._webhooks}:
            if managed is not None:
                resource = configurations.CONFIGURATIONS[reason]
                yield from self._use('webhook_creation', resource)
                yield from self._use('webhooks', resource, name=managed)
        if self._server is not None and [*self._registry._webhooks, *self._registry._converters]:
            yield from self._use('certificate_creation', services.SECRETS)
            yield from self._use('certificates', services.SECRETS, name=self._server.secret_name)
        for name in self._registry._converters:
            yield from self._use('converted', references.CRDS)
            if managed is not None:
                yield from self._use('conversions', references.CRDS, name=name)

    def _iter_observation(self) -> Iterator[Right]:
        """Find what is needed to follow the resources and the namespaces of the cluster."""
        is_once = self._settings.scanning.disabled
        groups = orchestration.get_groups(self._registry)
        if groups != set() and not is_once and (groups is None or self._are_custom(groups)):
            yield from self._use('definitions', references.CRDS)
        if self._has_patterns:
            yield from (
                right for right in self._use('namespaces', discovery.NAMESPACES)
                if right.verb == 'list' or not is_once)

    def _are_custom(self, groups: Iterable[str]) -> bool:
        """Whether any of the watched groups can have CRDs: those of peerings can."""
        settings = self._settings
        has_peers = not settings.peering.standalone and (
            settings.sharding.count is None and settings.leadership.name is None)
        return has_peers or any('.' in group for group in groups)

    def _use(
            self, feature: str, resource: references.Resource, *, name: str = '',
    ) -> Iterator[Right]:
        """Make the rights for a feature, used with this resource."""
        row = FEATURES[feature]
        assert row.named == bool(name)
        yield from self._make(
            resource, row.verbs, row.place, name=name, part=row.resource.partition('/')[2])

    def _make(
            self, resource: references.Resource, verbs: Sequence[str], place: Place,
            *, name: str = '', part: str = '',
    ) -> Iterator[Right]:
        namespaces: Collection[str | None] = {
            Place.SERVED: self._served if resource.namespaced else [None],
            Place.CLUSTER: [None],
            Place.DEFAULT: ['default'],
            Place.LEASES: [self._settings.leadership.namespace or ''],
            Place.SERVICE: [(self._server and self._server.namespace) or ''],
        }[place]
        for namespace in namespaces:
            for verb in verbs:
                plural = f'{resource.plural}/{part}' if part else resource.plural
                yield Right(resource.group, plural, verb, name, namespace)


def _is_writing(fn: Callable[..., object]) -> bool:
    """
    Whether an event handler can change its object: by the patch, or by its result.

    A function whose source is not there, or that uses its keyword arguments as a whole, can.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    params = inspect.signature(fn).parameters.values()
    if any(param.name == 'patch' for param in params):
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, SyntaxError, TypeError):
        return True
    rest = {param.name for param in params if param.kind == param.VAR_KEYWORD}
    return fn.__name__ == '<lambda>' or any(
        (isinstance(node, ast.Return) and node.value is not None)
        or (isinstance(node, ast.Name) and node.id in rest) for node in ast.walk(tree))
