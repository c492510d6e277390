"""
Upstreams: real clusters below a sandbox. What is read comes from there, and nothing is written.

A resource is mirrored when it is first needed: all its objects are listed, and then followed by a
watch. The requests are sent in a thread with an event loop of its own, so that nothing foreign is
in the event loop of the sandbox. The time of the sandbox can be virtual: it stands still while it
waits for the thread.
"""
import asyncio
import collections
import contextlib
import contextvars
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from kopf._cogs.aiokits import clocks, tasks
from kopf._cogs.clients import api, errors, httpsessions, listing, scanning, vaults, watching
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import ratelimits
from kopf._cogs.logins import kubeconfigs, serviceaccounts
from kopf._cogs.structs import credentials, references
from kopf._kits.sandbox import crds, requests
from kopf._kits.sandbox.cluster import CRDS, NAMESPACES, Cluster, Origin, key_of, stored_resource
from kopf._kits.sandbox.kinds import Kind, Resource
from kopf._kits.sandbox.overlays import Difference, Overlay, make_entry
from kopf._kits.sandbox.statuses import APIError, Forbidden, NotFound, Obj, qualified
from kopf._kits.sandbox.storage import Change, Entry, Key

logger = logging.getLogger(__name__)

T = TypeVar('T')

BURST, RATE = 100, 50
"""How many requests are sent to the upstream at once, and how many per second after that."""

BACKOFFS = (1, 2, 4)
"""The pauses (seconds) between the attempts of a list, if nothing is followed."""

UNOWNED: Collection[Resource] = [
    ('', 'endpoints'), ('', 'events'), ('coordination.k8s.io', 'leases')]
"""What is never looked at for dependents: there are many of these, and they have no owners."""

_verb_var: contextvars.ContextVar[str] = contextvars.ContextVar('verb_var')


class Upstream(Origin):
    """
    A real cluster below a sandbox: ``Sandbox(upstream=Upstream())``.

    Clients of the sandbox read the objects of the cluster, and their writes stay in the sandbox. To
    the cluster, only GET requests are sent, at most 50 per second after the first 100. An upstream
    is for one sandbox. See "Use the sandbox" in the documentation.

    :param origin: the credentials. Default: those of the kubeconfig; in a pod, those of the service
        account.
    :param context: the context of the kubeconfig. Default: the current one.
    :param namespaces: which namespaces there are if the user may not list them. Default: that of
        the kubeconfig, or of the service account.
    :param follow: whether to follow the changes of the cluster. Otherwise, all objects of a
        resource stay as they are when the resource is first used.
    :param selectors: the resources that are used. Kopf warns only of these if some of their
        versions are not served. Default: all resources.
    :raises LoginError: if there are no credentials, or no such context.
    """

    def __init__(
            self,
            origin: credentials.Credentials | vaults.Vault | None = None,
            *,
            context: str | None = None,
            namespaces: Collection[str] = (),
            follow: bool = True,
            selectors: Collection[references.Selector] | None = None,
    ) -> None:
        super().__init__()
        self._selectors = selectors
        self._namespaces = namespaces
        self._follow = follow
        self.requests: collections.Counter[str] = collections.Counter()
        """The number of requests to the cluster by verbs: ``get``, ``list``, ``watch``."""
        self._link = _Link(_make_vault(origin, context), self.requests, follow=follow)
        self._served: dict[tuple[str, str, str], references.Resource] = {}
        self._missed: set[tuple[str, str, str]] = set()
        self._mirroring: dict[Resource, asyncio.Task[Collection[str] | None]] = {}
        """The resources that are mirrored, and in which namespaces; None if in all of them."""
        self.unread: dict[Resource, str] = {}
        """The resources that could not be read, with the errors."""
        self._cluster: Cluster
        self._overlay: Overlay
        self._loop: asyncio.AbstractEventLoop

    def changes(self) -> list[Difference]:
        """
        Find the objects of the sandbox that differ from those of the cluster.

        What the cluster is deleting itself is no difference; but it is one if the finalizers for
        which the cluster waits were removed in the sandbox. Call it in the event loop of the
        sandbox.

        :returns: for each object its ``kind``, its ``key`` (the namespace and the name), its
            ``base`` in the cluster (`None` if it is created in the sandbox), and the ``local`` one
            in the sandbox (`None` if it is deleted there).
        """
        return self._overlay.find_differences()

    def list_partly_read(self) -> Mapping[Resource, Collection[str]]:
        """List the resources that could be read only in some namespaces, with these."""
        return {resource: namespaces for resource in self._mirroring
                if (namespaces := self._get_namespaces(resource))}

    async def start(self, cluster: Cluster) -> None:
        """
        Mirror the definitions and the namespaces; the other resources follow when they are needed.

        :raises APIError: if the upstream does not answer.
        """
        self._loop = asyncio.get_running_loop()
        self._cluster, self._overlay = cluster, self._make_overlay(cluster)
        cluster.store.listeners[:0] = [self._overlay.hear, self._hear]
        cluster.origin = self
        self._link.start()
        findings = await self._call(lambda: scanning.scan(self._link.client))
        self._served = {
            (found.group, found.version, found.plural): found for found in findings.resources}
        try:
            await self.fetch(CRDS)
        except Forbidden as e:
            logger.warning(f"The custom resources of the upstream are not served: {e}")
        try:
            await self.fetch(NAMESPACES)
        except Forbidden as e:
            names = sorted(self._namespaces) or [await self._call(self._link.find_namespace)]
            logger.warning(f"Only these namespaces are served: {', '.join(names)}. {e}")
            kind = cluster.kind(NAMESPACES)
            for name in names:
                self._overlay.accept(kind, make_entry(kind, {
                    'metadata': {
                        'name': name, 'uid': cluster.new_uid(), 'creationTimestamp': cluster.now()},
                    'spec': {'finalizers': ['kubernetes']}, 'status': {'phase': 'Active'}}))

    def _make_overlay(self, cluster: Cluster) -> Overlay:
        return Overlay(cluster)

    async def stop(self) -> None:
        """Close the connections."""
        await tasks.cancel(list(self._mirroring.values()))
        await asyncio.to_thread(self._link.stop)

    # What the sandbox asks.

    @property
    def is_speaking(self) -> bool:
        return self._overlay.is_speaking

    async def prepare(self, request: requests.Request) -> None:
        resource = stored_resource(request.kind)
        if request.verb == 'create' and resource in UNOWNED:
            return  # there is no need to know all the others
        await self.fetch(resource)
        is_deletion = request.verb.startswith('delete') or request.subresource == 'eviction'
        if is_deletion and resource not in UNOWNED and not request.dry_run:
            await self.fetch_all()  # what is deleted can own any of these

    async def fetch(self, *resources: Resource) -> None:
        for resource in resources:
            if resource not in self._mirroring:
                task = self._mirroring[resource] = self._loop.create_task(self._mirror(resource))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(self._mirroring[resource])

    def get(self, resource: Resource, key: Key) -> Obj | None:
        return self._overlay.get(resource, key)

    def reread(self, resource: Resource) -> None:
        self._overlay.reread(resource)

    def can_have(self, dependent: Entry, resource: Resource, owner: Resource, uid: str) -> bool:
        namespaces = self._get_namespaces(owner)
        is_known = namespaces is None or dependent.key[0] in namespaces
        return not is_known or self._overlay.is_waiting_for(resource, dependent, uid)

    def _get_namespaces(self, resource: Resource) -> Collection[str] | None:
        """Get the namespaces in which a resource was read; None if in all of them."""
        task = self._mirroring.get(resource)
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return ()
        return task.result()

    def miss(self, group: str, version: str, plural: str) -> None:
        name = group, version, plural
        if name in self._served and name not in self._missed:
            self._missed.add(name)
            logger.warning(f"The upstream serves {self._served[name]}, but the sandbox does not.")

    def needs(self, group: str, plural: str) -> bool:
        return self._selectors is None or any(
            selector.fn or selector.check(found)
            for found in self._served.values() if (found.group, found.plural) == (group, plural)
            for selector in self._selectors)

    # Mirroring.

    async def fetch_all(self) -> None:
        """Mirror all that can have owners, as far as it can be read; what cannot be is noted."""
        resources = dict.fromkeys(map(stored_resource, self._cluster.kinds))
        results = await asyncio.gather(*(
            self.fetch(resource) for resource in resources
            if resource not in UNOWNED and resource not in self.unread
        ), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, APIError):
                raise result

    async def _mirror(self, resource: Resource) -> Collection[str] | None:
        try:
            kind = self._find(resource)
            existing = [entry.key[1] for entry in self._cluster.store.select(NAMESPACES)]
            namespaces = None if kind is None else await self._call(functools.partial(
                self._link.read, kind, existing, self._post))
        except BaseException as e:
            if self._follow or not isinstance(e, Forbidden):
                self._mirroring.pop(resource, None)  # the next request tries it again
            if isinstance(e, APIError) and not isinstance(e, NotFound):
                self.unread[resource] = e.message
            raise
        self.unread.pop(resource, None)
        return namespaces

    def _hear(self, change: Change) -> None:
        """Stop to mirror a resource when the upstream does not define it any more."""
        if change.resource != CRDS or change.type != 'DELETED' or not self.is_speaking:
            return
        crd = change.new.decode()
        resource = crd['spec']['group'], crd['spec']['names']['plural']
        if self._mirroring.pop(resource, None) is not None:
            self._link.forget(resource)
            self._overlay.replace(crds.kinds_of(crd)[0], '', [])

    def _find(self, resource: Resource) -> Kind | None:
        """Find the kind as the upstream stores it; None if the upstream does not serve it."""
        crd = self.get(CRDS, ('', qualified(*resource)))
        kinds: Sequence[Kind] = self._cluster.kinds.of_resource(*resource)
        if crd is not None and crds.is_established(crd):
            kinds = crds.kinds_of(crd)
        else:
            served = (self._served.get((kind.group, kind.version, kind.plural)) for kind in kinds)
            kinds = [kind for kind, found in zip(kinds, served, strict=True)
                     if found is not None and {'list', 'watch'} <= found.verbs]
        return min(kinds, key=lambda kind: kind.version != kind.storage_version, default=None)

    def _post(self, take: Callable[[Overlay], None]) -> None:
        """Let the overlay take something that has come in the thread of the link."""
        with contextlib.suppress(RuntimeError):  # the sandbox is gone
            self._loop.call_soon_threadsafe(lambda: take(self._overlay))

    async def _call(self, fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._link.call(fn)
        except errors.APIForbiddenError as e:
            raise Forbidden(f"The upstream refuses: {e}") from e
        except errors.APINotFoundError as e:  # the kind is gone, or is not served yet
            raise NotFound from e
        except (errors.APIError, credentials.LoginError) as e:
            raise APIError(
                f"The upstream fails: {e}", code=503, reason='ServiceUnavailable',
                retry_after=1) from e


class _Reader(api.Client):
    """The only way to the upstream: it sends GET requests, limits their rate, and counts them."""

    def __init__(
            self, vault: vaults.Vault, settings: configuration.OperatorSettings,
            count: collections.Counter[str],
    ) -> None:
        super().__init__(credentials=vault, settings=settings, logger=logger)
        now = asyncio.get_running_loop().time()
        self._bucket = ratelimits.TokenBucket(burst=BURST, period=1 / RATE, now=now)
        self.count_requests(lambda *_: count.update([_verb_var.get()]))

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if method != 'GET' or options.get('body') is not None:
            raise ValueError(f"Nothing is written upstream, so there is no {method} request.")
        address = requests.parse_address(path)
        await self._wait_turn('list' if address is not None and address.plural else 'get')
        return await super().request('GET', path, **options)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncIterator[httpsessions.Stream]:
        await self._wait_turn('watch')
        async with super().stream(path, **options) as stream:
            yield stream

    async def _wait_turn(self, verb: str) -> None:
        loop = asyncio.get_running_loop()
        while not self._bucket.take(loop.time()):
            await asyncio.sleep(max(self._bucket.get_wait(loop.time()), clocks.PRECISION))
        _verb_var.set(verb)


Post = Callable[[Callable[[Overlay], None]], None]
"""Calls a function with the overlay in the event loop of the sandbox."""


class _Link:
    """A thread with an event loop, in which all requests to the upstream are sent."""

    def __init__(
            self, vault: vaults.Vault, count: collections.Counter[str], *, follow: bool,
    ) -> None:
        self._vault = vault
        self._count = count
        self._follow = follow
        self._settings = configuration.OperatorSettings()
        if not follow:
            self._settings.networking.error_backoffs = BACKOFFS
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name='upstream', daemon=True)
        self._ready = threading.Event()
        self._over: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._watches: dict[Resource, list[asyncio.Task[None]]] = {}
        self.client: _Reader

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """End all that runs in the thread, and wait for its end."""
        if self._thread.ident is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    async def _live(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self.client = _Reader(self._vault, self._settings, self._count)
        async with self.client:
            self._ready.set()
            await self._over.wait()
            await tasks.cancel([
                task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    async def call(self, fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine in the thread. A virtual time of the caller stands still meanwhile."""
        with clocks.stand_still():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(fn(), self._loop))

    async def find_namespace(self) -> str:
        """Find the namespace of the user."""
        return (await self._vault.obtain()).default_namespace or 'default'

    async def read(
            self, kind: Kind, namespaces: Collection[str], post: Post,
    ) -> Collection[str] | None:
        """
        List the objects, and begin to watch them, in all namespaces, or else where it is allowed.

        :returns: where it is allowed; None if in all namespaces.
        """
        try:
            await self._read(kind, '', post)
            return None
        except errors.APIForbiddenError as e:
            refusal = e
        allowed = []
        for namespace in namespaces if kind.namespaced else ():
            with contextlib.suppress(errors.APIForbiddenError):
                await self._read(kind, namespace, post)
                allowed.append(namespace)
        if not allowed:
            raise refusal
        logger.info(f"{kind.plural} are read in {', '.join(allowed)} only: {refusal}")
        return allowed

    async def _read(self, kind: Kind, namespace: str, post: Post) -> None:
        mirror = _Mirror(kind, namespace, post)
        if not self._follow:
            async for page in listing.list_objects(
                    self.client, resource=mirror.resource, namespace=mirror.place,
                    settings=self._settings, skip=lambda body, reason: logger.warning(
                        f"{kind.kind} {body['metadata']['name']} is left out: {reason}")):
                if page.restarted:
                    mirror.list_started(restored=False)
                for item in page.items:
                    mirror.listed(item)
            mirror.list_ended()
            return
        task = self._loop.create_task(self._watch(mirror))
        try:
            await mirror.first
        except BaseException:
            task.cancel()
            raise
        self._watches.setdefault(stored_resource(kind), []).append(task)

    async def _watch(self, mirror: '_Mirror') -> None:
        options: Any = {
            'settings': self._settings, 'resource': mirror.resource,
            'namespace': mirror.place, 'sink': mirror, 'logger': logger}
        try:
            try:
                await watching.watch(self.client, raising=(errors.APIForbiddenError,), **options)
            except errors.APIForbiddenError as e:
                if not mirror.first.done():
                    raise
                logger.warning(f"{mirror.resource} are not followed for now: {e}")
                await watching.watch(self.client, **options)
        except (errors.APIError, credentials.LoginError) as e:
            mirror.unavailable(e)

    def forget(self, resource: Resource) -> None:
        """Stop to follow a resource; to be called in any thread."""
        for task in self._watches.pop(resource, ()):
            self._loop.call_soon_threadsafe(task.cancel)


class _Mirror(watching.Sink):
    """Passes on what is listed and watched of one resource, in one namespace or in all of them."""

    def __init__(self, kind: Kind, namespace: str, post: Post) -> None:
        self.resource = kind.as_resource()
        self.place = references.NamespaceName(namespace) if namespace else None
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Is done when the first list has come."""
        self._kind = kind
        self._namespace = namespace
        self._post = post
        self._listed: list[Entry] = []

    def list_started(self, *, restored: bool) -> None:
        self._listed = []

    def listed(self, body: Any, packed: bytes | None = None) -> None:
        self._listed.append(make_entry(self._kind, body))  # which takes less memory

    def list_ended(self) -> None:
        listed, self._listed = self._listed, []
        self._post(lambda overlay: overlay.replace(self._kind, self._namespace, listed))
        if not self.first.done():
            self.first.set_result(None)

    def unavailable(self, error: Exception) -> None:
        if not self.first.done():
            self.first.set_exception(error)
        elif isinstance(error, credentials.LoginError):
            logger.error(f"{self.resource} are not followed any more: {error}")
            self._post(lambda overlay: overlay.unfollowed.add(stored_resource(self._kind)))

    def changed(self, type: Any, body: Any, packed: bytes) -> None:
        if type == 'DELETED':
            self._post(lambda overlay: overlay.lose(stored_resource(self._kind), key_of(body)))
        else:
            entry = make_entry(self._kind, body)
            self._post(lambda overlay: overlay.accept(self._kind, entry))


def _make_vault(
        origin: credentials.Credentials | vaults.Vault | None, context: str | None,
) -> vaults.Vault:
    if origin is not None:
        return origin if isinstance(origin, vaults.Vault) else vaults.Vault({'upstream': origin})
    paths = kubeconfigs.find_files()  # $KUBECONFIG can be that of the sandbox later

    def load() -> kubeconfigs.Kubeconfig | None:
        nonlocal context
        config = kubeconfigs.load_kubeconfigs(paths)
        if config is not None:
            config.current_context = context = context or config.current_context
            config.choose()
        return config

    async def log_in() -> dict[str, credentials.Credentials]:
        config = load()  # again, as its tokens can be renewed
        found = (serviceaccounts.login_with_service_account() if config is None else
                 kubeconfigs.read_credentials(config))
        return {} if found is None else {'upstream': found}

    load()
    return vaults.Vault(login=log_in)
