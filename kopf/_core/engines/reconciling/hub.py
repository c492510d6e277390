"""
The hub: what the reconcilers of all objects of an operator share.

It knows the children of all objects, finds the objects that are reconciled again, and says once in
the log what holds for long.
"""
import copy
import itertools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import bodies, ids, references
from kopf._core.actions import execution
from kopf._core.engines.reconciling import children, desired
from kopf._core.intents import handlers, registries

FINALIZER = 'kopf.dev/children'
"""The finalizer of objects with children that Kubernetes does not delete with their parents."""

MAX_NAMED = 5
"""How many children the log names at most."""

module_logger = logging.getLogger(__name__)


Told = tuple[references.Resource, references.Namespace] | tuple[str, ids.HandlerId | None]

class Host(Protocol):
    """The object as the reactor has it."""

    @property
    def uid(self) -> str: ...

    @property
    def resource(self) -> references.Resource: ...

    @property
    def handlers(self) -> registries.ResourceHandlers: ...

    @property
    def initial(self) -> bool:
        """Whether the object can be older than the operator."""

    @property
    def name(self) -> tuple[str | None, str] | None:
        """The namespace and the name; None while the object rests."""

    def accept(self, raw: bodies.RawBody, /) -> bool:
        """Take the response to an own write; false if a newer state is known."""

    def wake_up(self) -> None:
        """Process the object again soon."""


class Member:
    """An object that is reconciled: why its handlers are called the next time."""
    __slots__ = ('_has_applied', '_is_asked', '_is_triggered', 'host', 'name')

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name if any(
            handler.watches for handler in host.handlers.reconciling) else None
        """The namespace and the name, if they are needed."""
        self._is_triggered = True
        self._is_asked = True
        """Whether the next run is not only because of children."""
        self._has_applied = False
        """Whether the last run has applied any children."""

    def trigger(self) -> None:
        """Run soon: something that the handlers use has changed."""
        self.note_change()
        self.host.wake_up()

    def restore(self) -> None:
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

    def __init__(
            self,
            *,
            client: api.Client,
            context: execution.Context,
            get_memo: Callable[[Any], Any],
    ) -> None:
        """``get_memo`` returns the memo of an object by its `Host`."""
        super().__init__()
        self.client = client
        self.context = context
        self.get_memo = get_memo
        self.store = children.ChildStore(
            on_change=self._notify, on_listed=self.note_list,
            on_unavailable=self._complain)
        self.waiting: set[Member] = set()
        """The objects that wait until all children or all parents of some kind are listed."""
        self.is_gone: Callable[[str], bool] = lambda uid: False
        """Whether it is certain that there is no parent with this uid."""
        self._kinds: dict[handlers.ReconcilingHandler, desired.Kinds] = {}
        self._uncertain: set[handlers.ReconcilingHandler] = set()
        """The handlers that can own more kinds, as the discovery has failed."""
        self._members: dict[str, tuple[Member, ...]] = {}
        """The objects by their uids; several if some handlers are for others of the versions of a
        resource."""
        self._named: dict[tuple[str | None, str], set[Member]] = {}
        """The objects that watch others, by their names."""
        self._told: set[Told] = set()
        """
        What was said in the log: which kinds of children must not be listed, and where; which
        deleted objects wait for such kinds; and which objects match which handlers no more.
        """

    def for_shard(self, client: api.Client) -> 'Hub':
        """Get a view for the objects of one shard, whose children are written by this client."""
        view = copy.copy(self)
        view._narrow(client)
        return view

    def _narrow(self, client: api.Client) -> None:
        self.client = client
        self.is_gone = lambda uid: False  # it can be in a shard of another replica

    def bind(
            self,
            kinds: Mapping[handlers.ReconcilingHandler, desired.Kinds],
            *,
            uncertain: Collection[handlers.ReconcilingHandler] = (),
    ) -> None:
        """
        Set the resources that the handlers own in this cluster. The ``uncertain`` handlers can own
        more, which are not known yet.

        All objects are reconciled again if the resources are others: a kind can have come for which
        they wait.
        """
        is_first = not self._kinds
        is_changed = self._kinds != kinds or self._uncertain != {*uncertain}
        self._kinds.clear()
        self._kinds.update(kinds)  # in place: the views of the shards have the same ones
        self._uncertain.clear()
        self._uncertain.update(uncertain)
        if is_changed and not is_first:
            for member in list(itertools.chain.from_iterable(self._members.values())):
                member.trigger()

    def rely_on(self, is_gone: Callable[[str], bool]) -> None:
        """Set what says whether it is certain that there is no parent with this uid."""
        self.is_gone = is_gone

    def describe_owner(self, uid: str) -> str:
        """Describe the parent that has a child, as far as it is known."""
        doubt = "" if uid in self._members else (
            " It is not known to be gone: not all objects are listed here.")
        return f"it belongs to the object with the uid {uid}.{doubt}"

    def get_kinds(self, handler: handlers.ReconcilingHandler) -> desired.Kinds:
        return self._kinds.get(handler, {})

    def is_certain(self, handler: handlers.ReconcilingHandler) -> bool:
        """Whether all kinds that the handler can own are known."""
        return handler not in self._uncertain

    def get_manager(self, handler: handlers.ReconcilingHandler) -> str:
        """Get the field manager of a handler."""
        return desired.get_manager(self.context.settings.reconciling.manager, handler.id)

    def join(self, member: Member) -> None:
        """Begin to reconcile an object."""
        uid = member.host.uid
        self._members[uid] = (*self._members.get(uid, ()), member)
        if member.name is not None:
            self._named.setdefault(member.name, set()).add(member)

    def leave(self, member: Member) -> None:
        """Stop to reconcile an object: it is gone."""
        uid = member.host.uid
        self.waiting.discard(member)
        self._told.discard((uid, None))
        for handler in member.host.handlers.reconciling:
            self._told.discard((uid, handler.id))
        if left := tuple(other for other in self._members.pop(uid, ()) if other is not member):
            self._members[uid] = left
        if member.name is not None and (namesakes := self._named.get(member.name)):
            namesakes.discard(member)
            if not namesakes:
                del self._named[member.name]

    def trigger(
            self, handler: handlers.ReconcilingHandler, name: tuple[str | None, str],
    ) -> None:
        """Reconcile the object of this name, if it is known: an object that it uses has changed."""
        for member in self._named.get(name, ()):
            if handler in member.host.handlers.reconciling:
                member.trigger()

    def close(self, resource: references.Resource, namespace: references.Namespace) -> None:
        """Forget the children of one kind in one namespace, and what was said of these."""
        self.store.close(resource, namespace)
        self._told.discard((resource, namespace))

    def _notify(self, uid: str) -> None:
        for member in self._members.get(uid, ()):
            member.restore()

    def abandon(
            self,
            handler: handlers.ReconcilingHandler,
            uid: str,
            namespace: str | None,
            logger: Any,
    ) -> None:
        """Say once that an object with children does not match the filters any more."""
        if (uid, handler.id) in self._told:
            return
        label = self.store.register(self.get_manager(handler))
        left = [key for key, child in self.store.of(uid).items()
                if child.label == label and child.is_of(namespace)]
        if left:
            self._told.add((uid, handler.id))
            more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
            logger.info(
                f"{handler!r} does not match this object any more. Its owned resources stay as "
                f"they are: {', '.join(map(str, left[:MAX_NAMED]))}{more}.")

    def take_back(self, handler: handlers.ReconcilingHandler, uid: str) -> None:
        """Note that the object matches the filters."""
        self._told.discard((uid, handler.id))

    def _complain(
            self, resource: references.Resource, namespace: references.Namespace, error: Exception,
    ) -> None:
        """Say once which handlers wait, and which rights are needed."""
        if not isinstance(error, errors.APIForbiddenError) or (
                (resource, namespace) in self._told):
            return
        self._told.add((resource, namespace))
        names = [repr(handler) for handler, kinds in self._kinds.items()
                 if resource in kinds.values()]
        objects = "" if namespace is None else f" for objects in the namespace {namespace!r}"
        module_logger.warning(
            f"{', '.join(names)} will not be called{objects} until {resource} can be listed"
            f"{_describe(namespace)}. The operator needs the rights to list, watch, create, patch, "
            f"and delete {resource}, which it owns: {error}")

    def detain(
            self, uid: str, resource: references.Resource, namespace: references.Namespace,
            logger: Any,
    ) -> None:
        """Say once that a deleted object waits for a kind that must not be listed."""
        if (uid, None) not in self._told:
            self._told.add((uid, None))
            logger.warning(
                f"The deletion waits until {resource} can be listed{_describe(namespace)}, as "
                f"owned resources can be there. The operator needs the right to list them. If "
                f"there are none, remove the finalizer {FINALIZER}.")

    def note_list(self) -> None:
        """Note that children or parents were listed."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for member in waiting:
            member.trigger()


def _describe(namespace: references.Namespace) -> str:
    return "" if namespace is None else f" in the namespace {namespace!r}"
