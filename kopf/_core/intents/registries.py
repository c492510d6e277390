"""
Registries: the decorators add handlers, and operators use them.

Handlers are kept, and called, in the order of their declaration.
"""
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from kopf._cogs.structs import bodies, dicts, references
from kopf._core.intents import causes, filters, handlers

HandlerT = TypeVar('HandlerT', bound=handlers.Handler)
ResourceHandlerT = TypeVar('ResourceHandlerT', bound=handlers.ResourceHandler)


class GenericRegistry(Generic[HandlerT]):
    """Handlers of one type, in the order of their declaration."""

    def __init__(self) -> None:
        self._handlers: list[HandlerT] = []

    def append(self, handler: HandlerT) -> None:
        self._handlers.append(handler)

    def get_all_handlers(self) -> list[HandlerT]:
        """The name of this method in the Kopf on PyPI; existing operators call it."""
        return list(self._handlers)

    def __iter__(self) -> Iterator[HandlerT]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


class IndexingRegistry(GenericRegistry[handlers.IndexingHandler]):
    """A registry of the handlers that fill indices."""

    def append(self, handler: handlers.IndexingHandler) -> None:
        """:raises ValueError: if only some functions of the index fill it by shards."""
        if any(other.id == handler.id and other.sharded is not handler.sharded for other in self):
            raise ValueError(f"The index {handler.id!r} is filled by several functions: either all "
                             f"of them need sharded=True, or none.")
        super().append(handler)


class ChangingRegistry(GenericRegistry[handlers.ChangingHandler]):
    """A registry of handlers of changes; also of sub-handlers, see `kopf.execute`."""


class RegistryError(LookupError):
    """The handlers cannot work as they are declared."""


class OperatorRegistry:
    """
    All handlers of an operator.

    Decorators put handlers into the registry in ``registry=``, and operators call the handlers of
    the registry in ``registry=``. By default, both use the default registry. With several
    registries, one process can run several operators, each with its own handlers.
    """

    def __init__(self) -> None:
        self._activities = GenericRegistry[handlers.ActivityHandler]()
        self._indexing = IndexingRegistry()
        self._watching = GenericRegistry[handlers.WatchingHandler]()
        self._spawning = GenericRegistry[handlers.SpawningHandler]()
        self._changing = ChangingRegistry()
        self._reconciling = GenericRegistry[handlers.ReconcilingHandler]()
        self._webhooks = GenericRegistry[handlers.WebhookHandler]()
        self._converters: dict[str, bodies.Converter] = {}
        """By the names of the definitions."""

    def append(self, handler: handlers.Handler) -> None:
        """Add a handler to the handlers of its type."""
        sorts: Mapping[type[handlers.Handler], GenericRegistry[Any]] = {
            handlers.ActivityHandler: self._activities,
            handlers.IndexingHandler: self._indexing,
            handlers.WatchingHandler: self._watching,
            handlers.DaemonHandler: self._spawning,
            handlers.TimerHandler: self._spawning,
            handlers.ChangingHandler: self._changing,
            handlers.ReconcilingHandler: self._reconciling,
            handlers.ExternalHandler: self._reconciling,
            handlers.WebhookHandler: self._webhooks,
        }
        sorts[type(handler)].append(handler)

    @property
    def is_empty(self) -> bool:
        """Whether there are no handlers at all."""
        return not self._activities and not self._converters and (
            not any(True for _ in self.iter_resource_handlers()))

    def get_activity_handlers(
            self,
            activity: causes.Activity,
    ) -> tuple[handlers.ActivityHandler, ...]:
        """Get the handlers of an activity, without duplicates."""
        return tuple(filters.deduplicate(
            [handler for handler in self._activities if handler.activity == activity]))

    def iter_resource_handlers(self) -> Iterator[handlers.ResourceHandler]:
        """Iterate over all handlers of objects, of all types."""
        return itertools.chain(
            self._indexing, self._watching, self._spawning, self._changing, self._reconciling,
            self._webhooks)

    def find_mapper(self, mapper: handlers.Mapper) -> handlers.Mapper:
        """Replace the function of an index with the id of the index; return others unchanged."""
        return next((handler.id for handler in self._indexing if handler.fn is mapper), mapper)

    def verify(self, *, finalizer: str | None = '') -> None:
        """
        Check what can only be checked when all handlers are declared. ``finalizer`` is that of the
        settings; None if there is none.

        :raises RegistryError: if there is any of `find_missing_indices`, or of
            `find_wrong_reconcilers`, or if a conversion between versions is absent, or if there is
            no finalizer for a handler that needs one.
        """
        faults = [converter.find_fault() for converter in self._converters.values()]
        faults += [f"{handler!r} needs a finalizer, but settings.persistence.finalizer is None. "
                   f"Set a name there, or declare the handler with optional=True."
                   for handler in self._changing
                   if handler.requires_finalizer and finalizer is None]
        for complaint in [*self.find_missing_indices(), *filter(None, faults),
                          *self.find_wrong_reconcilers()]:
            raise RegistryError(complaint)

    def find_wrong_reconcilers(self) -> Iterator[str]:
        """Describe what is wrong with the declarations of reconciling handlers and externals."""
        known: dict[object, handlers.ReconcilingHandler] = {}
        for handler in self._reconciling:
            other = known.setdefault((handler.id, handler.selector), handler)
            if other is not handler:
                yield (f"{handler.selector}: two reconcilers have the id {handler.id!r}. They "
                       f"would take for their own what the other one has made. Give each one an "
                       f"id of its own, or declare one handler with when=.")
        declared = [handler for handler in self._reconciling
                    if isinstance(handler, handlers.ExternalHandler)]
        for handler in declared:  # of several with the same id, that of this kind must be the last
            others = sorted(declared, key=lambda other: other.selector == handler.selector)
            fault = handler.declaration.find_fault([other.declaration for other in others])
            if fault is not None:
                yield fault

    def find_missing_indices(self) -> Iterator[str]:
        """Describe the absent indices that ``watches=`` of `kopf.reconcile` handlers names."""
        ids = {handler.id for handler in self._indexing}
        for reconciler in self._reconciling:
            for selector, mapper in reconciler.watches:
                if isinstance(mapper, str) and mapper not in ids:
                    yield (f"{reconciler!r} watches {selector} by the index {mapper!r}, but there "
                           f"is no such index. Declare it with @kopf.index(..., id={mapper!r}).")

    def get_selectors(self) -> Collection[references.Selector]:
        """
        Get the selectors of all handlers, without duplicates, in a stable order: of the resources
        that they handle, and of those that they own or watch.
        """
        selectors = [
            handler.selector for handler in self.iter_resource_handlers()
            if handler.selector is not None]
        owned = [selector for handler in self._reconciling for selector in handler.owns]
        watched = [selector for handler in self._reconciling for selector, _ in handler.watches]
        return tuple(dict.fromkeys([*selectors, *owned, *watched]))


SmartOperatorRegistry = OperatorRegistry
"""The name of this class in the Kopf on PyPI; existing operators import it."""


_default_registry = OperatorRegistry()

default_registry_var: ContextVar[OperatorRegistry] = ContextVar('default_registry_var')
"""The default registry of a context, instead of that of the process: of operators in tests."""


def get_default_registry() -> OperatorRegistry:
    """
    Get the default registry, which is the same in all threads.

    ::

        kopf.run(clusterwide=True, registry=kopf.get_default_registry())

    See "Embed an operator in a program" in the documentation.
    """
    return default_registry_var.get(_default_registry)


def set_default_registry(registry: OperatorRegistry | None) -> None:
    """
    Replace the default registry. Existing handlers and running operators are not affected.

    ::

        kopf.set_default_registry(kopf.OperatorRegistry())

    See "Embed an operator in a program" in the documentation.

    :param registry: the new default registry. `None` makes an empty one.
    """
    global _default_registry
    _default_registry = OperatorRegistry() if registry is None else registry


class Parent:
    """A call of a handler, with the sub-handlers that are declared during the call."""
    __slots__ = ('declared', 'handler')

    def __init__(self, handler: handlers.Handler) -> None:
        self.handler = handler
        self.declared: list[handlers.ChangingHandler] = []


parent_var: ContextVar[Parent] = ContextVar('parent_var')
"""The current call of a handler. It is set in the handler and in all functions that it calls."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourceHandlers:
    """The handlers of one resource, regardless of their filters, in the order of declaration."""

    indexing: tuple[handlers.IndexingHandler, ...] = ()
    watching: tuple[handlers.WatchingHandler, ...] = ()
    spawning: tuple[handlers.SpawningHandler, ...] = ()
    changing: tuple[handlers.ChangingHandler, ...] = ()
    reconciling: tuple[handlers.ReconcilingHandler, ...] = ()
    webhooks: tuple[handlers.WebhookHandler, ...] = ()
    converter: bodies.Converter | None = None
    is_kept_elsewhere: bool = False
    """Whether only handlers of other versions of the resource can need the finalizer."""

    extra_fields: tuple[dicts.FieldPath, ...] = ()
    """
    The fields of event handlers, daemons, timers, and handlers of changes.

    They belong to the essence of objects, even if Kopf ignores them otherwise, e.g. in the status.
    The last-handled states contain these fields: without them, all objects would look changed.
    """

    @functools.cached_property
    def is_status_essential(self) -> bool:
        """Whether handlers are for changes of the status."""
        return any(path[:1] == ('status',) for path in self.extra_fields)

    @property
    def are_watched(self) -> bool:
        """Whether the operator must watch the objects. Admission handlers need no watching."""
        return bool(self.indexing or self.watching or self.spawning or self.changing
                    or self.reconciling)


Duplicates = dict[handlers.ReconcilingHandler, references.Resource]
Owned = dict[handlers.ReconcilingHandler, Collection[references.Resource]]
Watched = dict[handlers.ReconcilingHandler, Collection[tuple[references.Resource, handlers.Mapper]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Binding:
    """The handlers by the resources of a cluster, and what cannot be served."""

    handlers: dict[references.Resource, ResourceHandlers]
    owned: Owned
    """The resources that the handlers own, as far as they are in the cluster."""
    watched: Watched
    """The resources that the handlers watch, with the author's functions or ids of indices."""
    unresolved: list[references.Selector]
    similar: dict[references.Selector, references.Resource]
    """The resources that the authors of unresolved selectors have probably meant."""
    ambiguous: dict[references.Selector, Collection[references.Resource]]
    failing: dict[references.Selector, Exception]
    unwatchable: list[references.Resource]
    unpatchable: list[references.Resource]
    duplicates: Duplicates
    """The handlers that are not called for the resource: another handler has the same id."""

    def complaints(self, previous: 'Binding | None' = None) -> Iterator[str]:
        """Describe what cannot be served, for the log, except for the same problems before."""
        known = previous or resolve(OperatorRegistry(), ())
        for selector, resources in self.ambiguous.items():
            if selector not in known.ambiguous:
                yield (f"Ambiguous resources will not be served (try specifying API groups): "
                       f"{selector} => {{{_join(resources)}}}")
        if unresolved := [item for item in self.unresolved if item not in known.unresolved]:
            yield (f"Unresolved resources cannot be served (try creating their CRDs): "
                   f"{_join(map(self._describe_unresolved, unresolved))}")
        for selector, error in self.failing.items():
            if selector not in known.failing:
                yield (f"Resources will not be served, as their selector fails: "
                       f"{selector}: {error!r}")
        if unwatchable := [item for item in self.unwatchable if item not in known.unwatchable]:
            yield f"Non-watchable resources will not be served: {{{_join(unwatchable)}}}"
        if unpatchable := [item for item in self.unpatchable if item not in known.unpatchable]:
            yield f"Non-patchable resources will not be served: {{{_join(unpatchable)}}}"
        for handler, resource in self.duplicates.items():
            if handler not in known.duplicates:
                yield (f"{handler!r} will not be called for {resource}, as another handler of "
                       f"these objects has the same id (try another id=).")

    def _describe_unresolved(self, selector: references.Selector) -> str:
        similar = self.similar.get(selector)
        return f"{selector} (did you mean {similar}?)" if similar else str(selector)


def find_uncertain(
        binding: Binding, failing: Collection[str],
) -> Collection[handlers.ReconcilingHandler]:
    """
    Find the handlers that can own more resources than are known.

    ``failing`` are the API groups whose discovery has failed, so that their resources are unknown.
    """
    return {
        handler for handler in binding.owned for selector in handler.owns
        if selector in binding.unresolved and (
            selector.group in failing or (selector.group is None and failing))}


def _join(items: Iterable[object]) -> str:
    return ', '.join(str(item) for item in items)


TERMINATING = frozenset({'delete', 'deletecollection', 'get', 'list', 'watch'})
"""
The verbs of a resource whose CRD is being deleted. Its objects wait for their finalizers.

The API server does not name the verbs for changes any more, but it accepts the changes: only new
objects are refused.
"""


def _is_patchable(resource: references.Resource) -> bool:
    return not resource.verbs or 'patch' in resource.verbs or resource.verbs == TERMINATING


def resolve(registry: OperatorRegistry, resources: Collection[references.Resource]) -> Binding:
    """
    Find the handlers of each resource of a cluster.

    Pass all resources of the cluster as ``resources``: without them, nobody notices that a selector
    is ambiguous, i.e. names one resource but matches several.

    A resource that cannot be listed and watched has only its admission handlers. A resource that
    cannot be patched has only the handlers that keep nothing on the objects: for indexing, raw
    events, admission. If the verbs of a resource are unknown (an empty set), everything is assumed
    to be possible.

    A reconciling handler that is for several versions of a resource has only one of them: the
    preferred one, if it is among them. Of several with the same id, the first one counts.

    Resources without handlers are not in the result.
    """
    unresolved: list[references.Selector] = []
    ambiguous: dict[references.Selector, Collection[references.Resource]] = {}
    failing: dict[references.Selector, Exception] = {}
    selected: dict[references.Selector | None, Collection[references.Resource]] = {None: ()}
    for selector in registry.get_selectors():
        try:
            found = selector.select(resources)
        except Exception as e:
            failing[selector] = e
            found = ()
        else:
            if not found:
                unresolved.append(selector)
            elif selector.is_specific and len({resource.group for resource in found}) > 1:
                ambiguous[selector] = found
                found = ()
        selected[selector] = dict.fromkeys(found)  # as fast as a set, and ordered

    def fitting(
            candidates: Iterable[ResourceHandlerT],
            resource: references.Resource,
    ) -> tuple[ResourceHandlerT, ...]:
        return tuple(handler for handler in candidates if resource in selected[handler.selector])

    # Objects are the same in all versions of a resource, and so are their owned resources.
    chosen: dict[object, tuple[handlers.ReconcilingHandler, references.Resource]] = {}
    duplicates: Duplicates = {}
    for handler in registry._reconciling:
        for resource in selected[handler.selector]:
            key = handler.id, resource.group, resource.plural
            if key not in chosen or (resource.preferred and not chosen[key][1].preferred):
                chosen[key] = handler, resource
            elif chosen[key][1] == resource:
                duplicates[handler] = resource

    bound: dict[references.Resource, ResourceHandlers] = {}
    unwatchable: list[references.Resource] = []
    unpatchable: list[references.Resource] = []
    for resource in dict.fromkeys(resources):
        watching = fitting(registry._watching, resource)
        spawning = fitting(registry._spawning, resource)
        changing = fitting(registry._changing, resource)
        served = ResourceHandlers(
            indexing=fitting(registry._indexing, resource),
            watching=watching,
            spawning=spawning,
            changing=changing,
            reconciling=tuple(
                handler for handler in fitting(registry._reconciling, resource)
                if chosen[handler.id, resource.group, resource.plural] == (handler, resource)),
            webhooks=fitting(registry._webhooks, resource),
            converter=registry._converters.get(f'{resource.plural}.{resource.group}'),
            extra_fields=tuple(dict.fromkeys(
                handler.field for handler in (*watching, *spawning, *changing) if handler.field)),
        )
        if resource.verbs and served.are_watched and not resource.verbs >= {'list', 'watch'}:
            unwatchable.append(resource)
            served = ResourceHandlers(webhooks=served.webhooks)
        elif not _is_patchable(resource) and (served.spawning or changing or served.reconciling):
            unpatchable.append(resource)
            served = dataclasses.replace(
                served, spawning=(), changing=(), reconciling=(), extra_fields=())
        if served.are_watched or served.webhooks:
            bound[resource] = served
    keeping = {resource for resource, served in bound.items() if served.spawning or any(
        handler.requires_finalizer for handler in served.changing)}
    for resource in bound.keys() - keeping:
        if any((each.group, each.plural) == (resource.group, resource.plural) for each in keeping):
            bound[resource] = dataclasses.replace(bound[resource], is_kept_elsewhere=True)

    return Binding(
        handlers=bound,
        owned={
            handler: tuple(dict.fromkeys(
                resource for selector in handler.owns for resource in selected[selector]))
            for handler in registry._reconciling},
        watched={
            handler: tuple(
                (resource, registry.find_mapper(mapper)) for selector, mapper in handler.watches
                for resource in selected[selector])
            for handler in registry._reconciling},
        unresolved=unresolved,
        similar={selector: similar for selector in unresolved
                 if (similar := selector.find_similar(resources)) is not None},
        ambiguous=ambiguous,
        failing=failing,
        unwatchable=unwatchable,
        unpatchable=unpatchable,
        duplicates=duplicates,
    )
