"""
Informers: they take the events of the watches, and pass the news of each object to the work queue.

An informer recognises states that arrive twice. An object that is missing in a new list is gone. An
object that is re-created with the same name waits until the end of the old object is reported.
"""
import asyncio
import collections
import json
import logging
from collections.abc import Callable, Collection, Iterator

from kopf._cogs.clients import listing, screening, watching
from kopf._cogs.structs import bodies, references
from kopf._core.intents import registries, stopping
from kopf._core.path import objects, queueing

logger = logging.getLogger(__name__)

TAKING_STEP = 100
"""How many objects are taken over in one iteration of the event loop, when the operator leads."""


class Informer(watching.Sink):
    """
    The items of one resource in one namespace (or in all namespaces), as shown by one watch.

    Guarantees: each object that the watch shows gets an item, and its states arrive in the inbox of
    the item in their order. An object that is missing in a complete list is gone. A namesake waits
    until the end of the older object is reported.
    """

    def __init__(
            self,
            queue: queueing.WorkQueue,
            resource: references.Resource,
            handlers: registries.ResourceHandlers,
            *,
            former: 'Informer | None' = None,
            on_listed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        ``former`` is the closed informer of the same objects, e.g. in another version of the
        resource: objects that were resumed there are not resumed again, and namesakes wait for
        objects that are still at work there. ``on_listed`` is called after each complete list.
        """
        self._queue = queue
        self.resource = resource
        self.handlers = handlers
        self._on_listed = on_listed
        self._items: dict[str, objects.Item] = {}
        self._leaving: dict[tuple[str | None, str], objects.Item] = (
            {} if former is None else former._leaving)
        """The items of gone objects whose end is not reported yet."""
        self._followers: dict[objects.Item, objects.Item] = (
            {} if former is None else former._followers)
        """The namesakes that wait for these items."""
        self._lists = 0
        self._trusted_since = 0
        """The first list after a pause. Objects wait until this list or a later one shows them."""
        self._completed = 0
        """The last complete list."""
        self.expected: int | None = None
        """About how many objects the first list has; None if the API server has not said."""
        self._resumed: frozenset[str] = frozenset() if former is None else former._resumed
        """The uids that were resumed before the first list."""
        self._newcomers: list[objects.Item] = []
        self._warned = False

    @property
    def consistency_timeout(self) -> float:
        return self._queue.settings.persistence.consistency_timeout

    @property
    def listing(self) -> int | None:
        """How many objects of the first list have come so far; None when the list has ended."""
        return None if self._completed else len(self._items)

    @property
    def is_listed(self) -> bool:
        """Whether all objects are known: there was a complete list since the last pause."""
        return self._completed >= max(1, self._trusted_since)

    @property
    def filling(self) -> tuple[int, int] | None:
        """How many objects are indexed, and of how many; None if the indices are filled."""
        left = self._queue.gate.count_left(self) if self._completed else None
        return None if left is None else (len(self._items) - left, len(self._items))

    @property
    def is_awaited(self) -> bool:
        """Whether handlers wait until these objects are indexed."""
        return self._queue.gate.count_left(self) is not None

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[objects.Item]:
        return iter(self._items.values())

    def find(self, uid: str) -> objects.Item | None:
        """Find the item of an existing object; None if the object is not known."""
        return self._items.get(uid)

    # Called by the watch.

    def list_started(self, *, restored: bool) -> None:
        self._lists += 1
        if restored:
            self._forget_versions()

    def expect(self, remaining: int | None) -> None:
        self.expected = None if remaining is None else len(self._items) + remaining

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        if self._queue.switch.is_standby:
            self._follow(body, packed)
            return
        first = not self._completed
        item, new = self._ensure(body, initial=first)
        is_back = item.last_list < self._trusted_since
        item.see(self._lists)
        if is_back and not item.inbox.is_outdated(body):
            self._queue.processor.reconsider(item, body)
        is_new_state = item.offer(body)
        if is_new_state:
            item.show(body)
        is_due_again = is_back and item.inbox.is_due and not is_new_state
        if is_due_again:
            item.inbox.put_listed(body)
        is_unseen = self.handlers.watching and item.inbox.is_unseen(body)
        if is_unseen:
            self._record(item, None if first else 'ADDED' if new else 'MODIFIED', body)
        if new and first:
            self._yield_to_namesake(item, body)
        if new and not first:
            # Only the end of the list shows which namesakes are gone. Meanwhile, it is indexed.
            item.enter(objects.Phase.AWAITING_NAMESAKE)
            self._newcomers.append(item)
        elif is_new_state or is_unseen:
            self.schedule(item, urgent=not first, packed=packed if is_new_state else None)
        elif is_due_again:
            self.schedule(item, urgent=False)

    def list_ended(self) -> None:
        self._completed = self._lists
        self._resumed = frozenset()
        for item in [item for item in self if item.last_list != self._lists]:
            self._note_deletion(item, None)
        newcomers, self._newcomers = self._newcomers, []
        for item in newcomers:
            if item.phase is objects.Phase.AWAITING_NAMESAKE:
                item.enter(objects.Phase.RESTING)
                if item.inbox.pending is not None:
                    self._yield_to_namesake(item, item.inbox.pending)
                self.schedule(item)
        self._queue.gate.note_listed(self)
        self._on_listed()

    def unavailable(self, error: Exception | None) -> None:
        """Let no handlers wait for these objects. Without an error, nothing is logged."""
        self._queue.gate.open_for(self, error)

    def changed(
            self, type: screening.EventType, body: bodies.RawBody, packed: bytes | None = None,
    ) -> None:
        if self._queue.switch.is_standby:
            self._follow(body, packed, is_deleted=type == 'DELETED')
            return
        if type == 'DELETED' and not self.handlers.watching and (
                bodies.get_uid(body) not in self._items):
            return
        item, new = self._ensure(body, initial=False)
        if type == 'DELETED':
            self._note_deletion(item, body)
            return
        if new:
            self._yield_to_namesake(item, body)
        is_new_state = item.offer(body)
        if is_new_state:
            item.show(body, packed)
        is_unseen = self.handlers.watching and item.inbox.is_unseen(body)
        if is_unseen:  # a watch can begin before the newest states of a long list
            self._record(item, type, body, packed)
        if is_unseen or is_new_state:
            self.schedule(item, packed=packed if is_new_state else None)

    def skipped(self, type: screening.EventType | None, body: bodies.RawBody) -> None:
        """
        Note that a state was skipped, because it is nested too deeply.

        The known state stays as it was. The object counts as listed, unless it is deleted.
        """
        item = self._items.get(bodies.get_uid(body))
        if item is not None and type == 'DELETED':
            self._note_deletion(item, None)
        elif item is not None and type is None:
            item.see(self._lists)

    def _follow(
            self, body: bodies.RawBody, packed: bytes | None = None, *, is_deleted: bool = False,
    ) -> None:
        """
        Note a state while another replica handles the objects; only the newest one is kept.

        For this operator, a new object is like those that exist at its start: it is resumed when
        this operator takes over.
        """
        if is_deleted:
            if (gone := self._items.get(bodies.get_uid(body))) is not None:
                self._note_deletion(gone, body)
            return
        item, _ = self._ensure(body, initial=True)
        item.see(self._lists)
        self._queue.processor.reconsider(item, body)
        if item.offer(body):
            item.show(body, packed)
            if item.phase is objects.Phase.RESTING:
                self._queue.defer(item, packed)

    def _ensure(self, body: bodies.RawBody, *, initial: bool) -> tuple[objects.Item, bool]:
        uid = bodies.get_uid(body)
        item = self._items.get(uid)
        if item is not None:
            return item, False
        initial = initial and uid not in self._resumed
        item = self._items[uid] = objects.Item(self, uid, initial=initial)
        item.see(self._lists)
        return item, True

    def _record(
            self,
            item: objects.Item,
            type: bodies.RawEventType,
            body: bodies.RawBody,
            packed: bytes | None = None,
    ) -> None:
        """Keep the raw event for the event handlers."""
        if packed is None:
            self.pack_later(item)
        if not item.inbox.record(type, body, packed) and not self._warned:
            self._warned = True
            logger.warning(
                f"Events of {self.resource} come faster than their handlers see them; "
                f"from now on, some of them are skipped (the newest ones never).")

    def _note_deletion(self, item: objects.Item, body: bodies.RawBody | None) -> None:
        """Note that the object is gone. Its item remains until the end is reported."""
        self._items.pop(item.uid, None)
        self._stop(item)
        if self._queue.switch.is_standby:  # the end is reported by the replica that leads
            item.inbox.clear()
            if not item.is_at_work:
                self._queue.drop(item)
                item.enter(objects.Phase.ENDED)
                self.forget(item)
            return
        last = item.inbox.note_deletion(body)
        if last is not None:
            if self.handlers.watching:
                self._record(item, 'DELETED', last)
            item.identify(last)
        is_silent = not (item.inbox.has_events or item.noticed)
        if is_silent and item.phase in (objects.Phase.RESTING, objects.Phase.AWAITING_NAMESAKE):
            # If the item itself waited for a namesake, the next namesake waits for the same one.
            item.enter(objects.Phase.ENDED)
            self.forget(item)
            return
        if item.name is not None:
            self._leaving[item.name] = item
        if not is_silent:
            self.schedule(item)

    def _stop(
            self, item: objects.Item,
            reason: stopping.DaemonStoppingReason = stopping.DaemonStoppingReason.RESOURCE_DELETED,
    ) -> None:
        item.note_deletion()
        self._queue.alarms.cancel(item)
        if item.companions is not None:
            item.companions.stop(reason)
        if item.reconcilers is not None:
            item.reconcilers.leave()
        if self.handlers.indexing:
            self._queue.gate.forget(item)

    def _yield_to_namesake(self, item: objects.Item, body: bodies.RawBody) -> None:
        older = self._leaving.get(objects.get_name(body)) if self._leaving else None
        if older is not None:
            self._followers[older] = item
            item.enter(objects.Phase.AWAITING_NAMESAKE)

    # Called by the items.

    def schedule(
            self, item: objects.Item, *, urgent: bool = True, packed: bytes | None = None,
    ) -> None:
        if item.gone or item.last_list >= self._trusted_since:
            self._queue.add(item, urgent=urgent, packed=packed)

    def index(self, item: objects.Item, raw: bodies.RawBody) -> None:
        self._queue.gate.index(item, raw)

    def is_indexing(self, item: objects.Item) -> bool:
        return self._queue.gate.is_indexing(item)

    def pack_later(self, item: objects.Item) -> None:
        self._queue.packer.add(item.inbox)

    def forget(self, item: objects.Item) -> None:
        """Forget the item, whose end is reported, and release its namesake."""
        if item.name is not None and self._leaving.get(item.name) is item:
            del self._leaving[item.name]
        follower = self._followers.pop(item, None)
        if follower is not None and follower.phase is objects.Phase.AWAITING_NAMESAKE:
            follower.enter(objects.Phase.RESTING)
            follower.source.schedule(follower)

    # Called by the operator.

    def serve(self, resource: references.Resource, handlers: registries.ResourceHandlers) -> None:
        """Switch to other handlers or other details of the resource. A new list must follow."""
        self.resource, self.handlers = resource, handlers
        self._forget_versions()

    def distrust(self) -> None:
        """
        Note that the resource was not watched for a while.

        No object is handled before the next list shows it. An object that has not changed is
        processed only if its processing had begun or was due before.
        """
        self._trusted_since = self._lists + 1 if self._lists else 0
        for item in self:
            item.inbox.distrust(is_at_work=item.due is not None or item.is_engaged)
            self._queue.alarms.cancel(item)

    def take_over(self) -> Iterator[objects.Item]:
        """
        Continue with the states that were kept during the standby; yield the items to `take`.

        The cycle of an object is dropped if the newest state shows that others have handled it.
        """
        for item in self:
            if item.is_engaged:
                item.inbox.remind()
            if item.cycle is not None and (newest := item.inbox.newest) is not None:
                self._queue.processor.reconsider(item, newest)
            if item.inbox.has_news or (self.handlers.watching and not item.inbox.is_newest_shown):
                yield item

    def take(self, item: objects.Item) -> None:
        """Show the newest state to the event handlers, and queue the item behind live changes."""
        if item.gone:
            return
        if self.handlers.watching and (newest := item.inbox.newest) is not None and (
                item.inbox.is_unseen(newest)):
            self._record(item, 'MODIFIED' if item.inbox.is_ever_shown else None, newest)
        if item.inbox.has_news:
            self.schedule(item, urgent=False)

    def close(self) -> bool:
        """Forget all objects, as if they did not exist; return whether a successor needs this."""
        self._resumed = frozenset(item.uid for item in self if not item.initial)
        for item in self:  # it can still exist, e.g. in another version
            self._stop(item, stopping.DaemonStoppingReason.OPERATOR_EXITING)
            item.inbox.clear()
            if item.is_at_work and item.name is not None:
                self._leaving[item.name] = item
        self._items.clear()
        self._queue.gate.drop(self)
        return bool(self._resumed or self._leaving)

    def dismiss(self, uid: str) -> None:
        """Forget an object, if it is known: somebody else handles it now."""
        item = self._items.pop(uid, None)
        if item is not None:
            self._hand_over(item)

    def retire(self) -> None:
        """Forget all objects: somebody else handles them now."""
        for item in self:
            self._hand_over(item)
        self._items.clear()

    def _hand_over(self, item: objects.Item) -> None:
        self._stop(item, stopping.DaemonStoppingReason.OPERATOR_PAUSING)
        item.inbox.clear()

    def _forget_versions(self) -> None:
        for item in self:
            item.inbox.forget_versions()


class InformerFactory:
    """All informers of an operator, and the operations on all of them."""

    def __init__(
            self,
            queue: queueing.WorkQueue,
            *,
            on_listed: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = queue
        self._on_listed = on_listed
        self._informers: dict[tuple[references.Resource, str | None], Informer] = {}
        self._closed: dict[tuple[str, str, str | None], Informer] = {}
        self._taken: collections.deque[tuple[Informer, objects.Item]] = collections.deque()
        """The objects that are still to be taken over."""

    def __iter__(self) -> Iterator[Informer]:
        return iter(self._informers.values())

    def open(
            self,
            resource: references.Resource,
            namespace: str | None,
            handlers: registries.ResourceHandlers,
    ) -> Informer:
        """
        Begin to serve a resource in a namespace. The caller starts a watch with the result.

        If the resource is already served there, and other details of the resource (e.g. its
        subresources) or its handlers have changed, its informer switches to them. The new watch
        must begin with a list.
        """
        informer = self._informers.pop((resource, namespace), None)
        if informer is not None:
            informer.serve(resource, handlers)
        else:
            key = resource.group, resource.plural, namespace
            informer = Informer(
                self._queue, resource, handlers, former=self._closed.pop(key, None),
                on_listed=self._on_listed)
            if handlers.indexing:
                self._queue.gate.close_for(informer)
        self._informers[resource, namespace] = informer
        return informer

    def close(
            self, resource: references.Resource, namespace: str | None, *, deleted: bool = False,
    ) -> None:
        """
        Stop serving a resource in a namespace: forget its objects, as if they did not exist.

        If its definition was ``deleted``, the objects are gone indeed, and handlers see that.
        """
        informer = self._informers.pop((resource, namespace), None)
        if informer is not None:
            if deleted:  # the same as an empty list
                informer.list_started(restored=False)
                informer.list_ended()
            # If another version of the same resource follows, its objects are the same.
            if informer.close():
                self._closed[resource.group, resource.plural, namespace] = informer

    def forget_except(self, namespaces: Collection[str | None]) -> None:
        """Forget what is kept of closed resources in other namespaces: their objects are gone."""
        for key in [key for key in self._closed if key[2] is not None]:
            if key[2] not in namespaces:
                del self._closed[key]

    def get(self, resource: references.Resource, namespace: str | None) -> Informer | None:
        """Get the informer of a resource in a namespace; None if it is not served there."""
        return self._informers.get((resource, namespace))

    def seal(self) -> None:
        """Note that all resources of the start have informers, for which the indices wait."""
        self._queue.gate.seal()

    def call_when_filled(self, fn: Callable[[], None]) -> None:
        """Call the function when the indices of the start are filled: maybe now."""
        self._queue.gate.call_when_open(fn)

    async def wait_indexed(self, resource: references.Resource, uid: str) -> None:
        """Wait until the newest known state of an object is in the indices, if it is known."""
        item = self.find(resource, uid)
        if item is not None:
            await self._queue.gate.wait_indexed(item)

    def find(self, resource: references.Resource, uid: str) -> objects.Item | None:
        """Find the item of an object in any namespace; None if the object is not known."""
        for (served, _), informer in self._informers.items():
            if (served.group, served.plural) == (resource.group, resource.plural):
                item = informer.find(uid)
                if item is not None:
                    return item
        return None

    def recall(
            self, resource: references.Resource, namespace: str | None, name: str | None,
    ) -> list[bodies.RawBody] | None:
        """
        Get the newest states of the objects in a namespace (None: in all), or of the one ``name``.

        The result is None if not all of them are known, or if their states are not kept.
        """
        informer = self.get(resource, None) or self.get(resource, namespace)
        if informer is None or not informer.is_listed or (
                listing.get_selectors(self._queue.settings, resource)):
            return None
        text = b'' if name is None else json.dumps(name).encode()
        states = [(item, item.inbox.look_up(text)) for item in informer]
        if name is None and any(raw is None for _, raw in states):
            return None
        return [raw for item, raw in states if raw is not None and (
            item.inbox.version == bodies.parse_version(raw)
            and namespace in (None, raw['metadata'].get('namespace'))
            and name in (None, raw['metadata']['name']))]

    def is_gone(self, uid: str) -> bool:
        """
        Whether it is certain that no object with reconciling handlers has this uid.

        It is never certain if the operator watches only some namespaces, or only selected objects.
        """
        return self._queue.gate.is_sealed and all(
            informer.is_listed and informer.find(uid) is None and namespace is None and (
                not listing.get_selectors(self._queue.settings, resource))
            for (resource, namespace), informer in self._informers.items()
            if informer.handlers.reconciling)

    def pause(self) -> None:
        """Start no items; the workers end between two handlers."""
        self._queue.switch.pause()
        self._queue.pause()

    def resume(self) -> None:
        """End the pause. The known objects are processed after the next lists show them."""
        self._queue.switch.resume()
        for informer in self:
            informer.distrust()
        self._queue.gate.reset(informer for informer in self if informer.handlers.indexing)
        self._queue.pump()

    def stand_by(self) -> None:
        """
        Start no objects, and interrupt the handlers; the watches and the indexing continue.

        A second call during the standby is allowed.
        """
        self._queue.switch.pause(standby=True)
        self._taken.clear()
        self._queue.pause()
        self._queue.interrupt()

    def take_over(self) -> None:
        """End the standby. The newest states are known, so nothing is listed again."""
        self._queue.switch.resume()
        self._taken.extend((informer, item) for informer in self for item in informer.take_over())
        self._queue.pump()
        self._take()

    def _take(self) -> None:
        if not self._queue.switch.admits():
            return
        for _ in range(min(TAKING_STEP, len(self._taken))):
            informer, item = self._taken.popleft()
            informer.take(item)
        if self._taken:
            asyncio.get_running_loop().call_soon(self._take)

    async def stop(self, deadline: float, *, patience: float | None = None) -> None:
        """
        Start no more objects, and stop the workers until the deadline (a time of the loop).

        ``patience`` is how long (seconds) the handlers have; by default, as at an exit.
        """
        await self._queue.stop(
            deadline, [item for informer in self for item in informer], patience=patience)
