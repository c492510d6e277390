"""
The hub: what the reconcilers of all objects of an operator share.

It knows the children of all objects, and finds the objects that are reconciled again.
"""
import itertools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from kopf._cogs.structs import bodies, references
from kopf._core.actions import execution
from kopf._core.engines.reconciling import children, desired
from kopf._core.intents import handlers, registries

FINALIZER = 'kopf.dev/children'
"""The finalizer of objects with children that Kubernetes does not delete with their parents."""

EXTERNAL_FINALIZER = 'kopf.dev/external'
"""The finalizer of objects with things in external systems."""

module_logger = logging.getLogger(__name__)


class Limits(NamedTuple):
    """What can stop the work between two steps."""
    is_paused: Callable[[], bool]
    """Whether nothing may be changed for the object."""
    is_stopped: Callable[[], bool]
    """Whether no function may be called any more."""


class Host(Protocol):
    """The object as the reactor has it."""
    uid: str
    initial: bool
    """Whether the object can be older than the operator."""
    name: tuple[str | None, str] | None
    """The namespace and the name; None while the object rests."""

    @property
    def resource(self) -> references.Resource: ...

    @property
    def handlers(self) -> registries.ResourceHandlers: ...

    def accept(self, raw: bodies.RawBody, /) -> bool:
        """Take the response to an own write; false if a newer state is known."""

    def wake_up(self) -> None:
        """Process the object again soon."""


class State(NamedTuple):
    """How an external system is, for the metrics."""
    name: str
    drifts: int
    """How often a thing was not as it should be."""
    breaks: int
    """How often the system has become unavailable."""
    unavailable: bool
    waiting: int
    """How many objects wait for a call."""


class Driver(Protocol):
    """What works with an external system, for all objects of an operator."""

    def describe(self) -> State: ...

    def join(self, uid: str, wake: Callable[[], None]) -> Any:
        """Begin with an object; return what is remembered of it. ``wake`` runs it soon."""

    def leave(self, notes: Any) -> None:
        """Stop with an object: it is gone, or it is not handled here any more."""

    async def drive(self, run: Any, notes: Any) -> Any:
        """Do what can be done now in a `Run`; return its `Result`."""


class Member:
    """An object that is reconciled: why its handlers are called the next time."""
    __slots__ = (
        '_has_applied', '_is_asked', '_is_triggered', 'host', 'is_edited', 'is_left', 'name')

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name if any(
            handler.watches or isinstance(handler, handlers.ExternalHandler)
            for handler in host.handlers.reconciling) else None
        """The namespace and the name, if they are needed."""
        self._is_triggered = True
        self._is_asked = True
        """Whether the next run is not only because of children."""
        self._has_applied = False
        """Whether the last run has applied any children."""
        self.is_edited = False
        """Whether the object was edited since its handlers succeeded: then, changes are wanted."""
        self.is_left = False
        """Whether the object is gone, or handled elsewhere: nothing more may be written for it."""

    @property
    def names(self) -> tuple[object, ...]:
        """The keys by which the hub finds the object."""
        return (self.host.uid,) if self.name is None else (self.host.uid, self.name)

    def trigger(self) -> None:
        """Run soon: something that the handlers use has changed."""
        self.note_change()
        self.host.wake_up()

    def trigger_by_child(self) -> None:
        """Run soon: a child has changed."""
        self._is_triggered = True
        self.host.wake_up()

    def note_change(self) -> None:
        """Run when the object is processed: it has changed."""
        self._is_triggered = self._is_asked = True

    def note_application(self) -> None:
        """Note that a child is applied."""
        self._has_applied = True


class Hub:
    """What the reconcilers of all objects of an operator share."""

    def __init__(self, *, context: execution.Context, get_memo: Callable[[Any], Any]) -> None:
        """``get_memo`` returns the memo of an object by its `Host`."""
        self.context = context
        self.get_memo = get_memo
        self.store = children.ChildStore(
            on_change=self._notify, on_listed=self.note_list, on_forbidden=self._complain)
        self.waiting: set[Member] = set()
        """The objects that wait until all children or all parents of some kind are listed."""
        self.is_gone: Callable[[str], bool] = lambda uid: False
        """Whether it is certain that there is no parent with this uid."""
        self._kinds: Mapping[handlers.ReconcilingHandler, desired.Kinds] = {}
        self.uncertain: set[handlers.ReconcilingHandler] = set()
        """The handlers that can own more kinds, as the discovery has failed."""
        self._drivers: dict[handlers.ExternalHandler, Driver] = {}
        self._members: dict[object, tuple[Member, ...]] = {}
        """
        The objects by their uids, and those that watch others also by their names. A uid has
        several members if its handlers are for several versions of the resource.
        """

    def bind(
            self,
            kinds: Mapping[handlers.ReconcilingHandler, desired.Kinds],
            *,
            uncertain: Collection[handlers.ReconcilingHandler] = (),
    ) -> None:
        """
        Set the resources that the handlers own in this cluster. The ``uncertain`` handlers can own
        more resources, which are not known yet.

        If the resources have changed, all objects are reconciled again: they can have waited for a
        new kind.
        """
        known, newest = (self._kinds, self.uncertain), (kinds, {*uncertain})
        self._kinds, self.uncertain = newest
        if known[0] and known != newest:
            for member in dict.fromkeys(itertools.chain.from_iterable(self._members.values())):
                member.trigger()

    def rely_on(self, is_gone: Callable[[str], bool]) -> None:
        """Set the function that says whether it is certain that no parent has this uid."""
        self.is_gone = is_gone

    def describe_owner(self, uid: str) -> str:
        """Describe the parent that has a child, as far as it is known."""
        doubt = "" if uid in self._members else (
            " It is not known to be gone: not all objects are listed here.")
        return f"it belongs to the object with the uid {uid}.{doubt}"

    def get_kinds(self, handler: handlers.ReconcilingHandler) -> desired.Kinds:
        return self._kinds.get(handler, {})

    def get_manager(self, handler: handlers.ReconcilingHandler) -> str:
        """Get the field manager of a handler."""
        return desired.get_manager(self.context.settings.reconciling.manager, handler.id)

    def get_driver(self, handler: handlers.ExternalHandler) -> Driver:
        """Get the driver of an external system."""
        if handler not in self._drivers:
            self._drivers[handler] = handler.declaration.make_driver(self)
        return self._drivers[handler]

    @property
    def drivers(self) -> Collection[Driver]:
        return self._drivers.values()

    def find(self, name: tuple[str | None, str]) -> Collection[Member]:
        """Find the objects of this name that are reconciled, and that are looked up by names."""
        return self._members.get(name, ())

    def join(self, member: Member) -> None:
        """Begin to reconcile an object."""
        for name in member.names:
            self._members[name] = (*self._members.get(name, ()), member)

    def leave(self, member: Member) -> None:
        """Stop reconciling an object: it is gone, or handled elsewhere."""
        self.waiting.discard(member)
        for name in member.names:
            left = tuple(other for other in self._members.pop(name, ()) if other is not member)
            if left:
                self._members[name] = left

    def trigger(self, handler: handlers.ReconcilingHandler, name: tuple[str | None, str]) -> None:
        """Reconcile the object of this name, if it is known: an object that it uses has changed."""
        for member in self.find(name):
            if handler in member.host.handlers.reconciling:
                member.trigger()

    def _notify(self, uid: str) -> None:
        for member in self._members.get(uid, ()):
            member.trigger_by_child()

    def _complain(
            self, resource: references.Resource, namespace: references.Namespace, error: Exception,
    ) -> None:
        """Say which handlers wait, and which rights are needed."""
        names = [repr(handler) for handler, kinds in self._kinds.items()
                 if resource in kinds.values()]
        objects = "" if namespace is None else f" for objects in the namespace {namespace!r}"
        module_logger.warning(
            f"{', '.join(names)} will not be called{objects} until {resource} can be listed"
            f"{describe_place(namespace)}. The operator needs the rights to list, watch, create, "
            f"patch, and delete {resource}, which it owns: {error}")

    def note_list(self) -> None:
        """Note that children or parents were listed."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for member in waiting:
            member.trigger()


def describe_place(namespace: references.Namespace) -> str:
    return "" if namespace is None else f" in the namespace {namespace!r}"
