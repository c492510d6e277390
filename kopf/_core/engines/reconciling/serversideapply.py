"""
One-off server-side apply from inside of any handler, over the connections of the operator.
"""
import asyncio
import concurrent.futures
import contextvars
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, NoReturn, TypeVar

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api, errors, scanning
from kopf._cogs.structs import bodies, references
from kopf._core.actions import inflight, invocation
from kopf._core.engines.reconciling import desired, generating

logger = logging.getLogger(__name__)

T = TypeVar('T')

Recall = Callable[[references.Resource, str | None, str | None], list[bodies.RawBody] | None]
"""
Gets the known objects of a resource in a namespace (None: in all), or the one of a name (None: all
objects). The result is None if it is not certain that all of them are known.
"""

applier_var: contextvars.ContextVar['Applier'] = contextvars.ContextVar('applier_var')
"""The applier of the current operator."""


class _GivenUpError(Exception):
    """Nobody waits for the request any more, so it is not sent."""


class PendingRequest(Awaitable[T], Generic[T]):
    """A request under way: await it in async handlers; call `result` in sync ones."""

    def __init__(self, work: 'concurrent.futures.Future[T]', what: str = "A request") -> None:
        super().__init__()
        self._work = work
        self._what = what
        self._is_awaited = False

    def __del__(self) -> None:
        if not self._is_awaited:
            self._work.add_done_callback(functools.partial(_tell_lost, self._what))

    def __await__(self) -> Generator[Any, None, T]:
        self._is_awaited = True
        return asyncio.wrap_future(self._work).__await__()

    def __bool__(self) -> NoReturn:
        raise TypeError("This is a request, and not its result. Use `await` in async handlers, "
                        "and `result()` in sync ones.")

    def result(self, timeout: float | None = None) -> T:
        """
        Wait in a sync handler, and return the result: the object as the API server has stored it.

        :param timeout: how long to wait, in seconds. Default: no limit.
        :raises RuntimeError: in an event loop, which would be blocked: use ``await`` there.
        :raises TimeoutError: if it takes longer. The request is given up, and not sent later; but
            it can have been executed.
        :raises asyncio.CancelledError: if the handler is interrupted, e.g. as the operator exits.
        """
        self._is_awaited = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            call = inflight.call_var.get()
            if call is None:
                return self._wait(timeout)
            with call.awaiting(self._work):
                return self._wait(clocks.wait_in_thread(call.loop, self._work, timeout))
        raise RuntimeError("This would block the event loop: use `await` instead of `result()`.")

    def _wait(self, timeout: float | None) -> T:
        try:
            return self._work.result(timeout)
        except TimeoutError:
            self._work.cancel()
            raise
        except concurrent.futures.CancelledError:  # it would count as an error of the handler
            raise asyncio.CancelledError from None


def _tell_lost(what: str, work: 'concurrent.futures.Future[Any]') -> None:
    """Log the error of a request for which no handler has waited."""
    error = None if work.cancelled() else work.exception()
    if error is not None:
        logger.error(
            f"{what} has failed, and nobody has waited for it: {error!r}. Use `await` in async "
            f"handlers, and `result()` in sync ones.")


class Applier:
    """Makes requests for the handlers of one operator, in the running event loop."""

    def __init__(self, client: api.Client) -> None:
        self.client = client
        self.recall: Recall = lambda *_: None
        self._found: dict[references.Selector, references.Resource] = {}
        self._loop = asyncio.get_running_loop()

    def rely_on(self, recall: Recall) -> None:
        """Set the function that knows the objects; with shards, none knows all of them."""
        self.recall = recall

    def enter(self) -> None:
        """Serve the handlers of this context."""
        if applier_var.get(None) is not self:
            applier_var.set(self)

    def start(self, manifest: Any, *, manager: str, force: bool) -> PendingRequest[bodies.Body]:
        """Begin to apply, from any thread."""
        work: concurrent.futures.Future[bodies.Body] | None = None

        def permit() -> None:
            if work is not None and work.cancelled():
                raise _GivenUpError

        application = self.ask(
            lambda: self._apply(manifest, manager, permit, force=force), "kopf.apply()")
        work = application._work
        return application

    def ask(self, request: Callable[[], Coroutine[Any, Any, T]], what: str) -> PendingRequest[T]:
        """Begin to make a request, from any thread, unless the caller gives it up before."""
        kwargs = invocation.kwargs_var.get({})
        name = '/'.join(filter(None, (kwargs.get('namespace'), kwargs.get('name'))))
        what += f" in a handler of {name}" if name else ""
        work = asyncio.run_coroutine_threadsafe(self._follow(request), self._loop)
        return PendingRequest(work, what)

    async def _follow(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await request()
        except errors.APINotFoundError:  # e.g. the version of the kind is not served any more
            self._found.clear()
            raise

    async def _apply(
            self, manifest: Any, manager: str, permit: Callable[[], None], *, force: bool,
    ) -> bodies.Body:
        content, fields = desired.read(manifest)
        api_version, kind = content.get('apiVersion'), content.get('kind')
        metadata = content.get('metadata')
        if not (isinstance(api_version, str) and isinstance(kind, str)
                and isinstance(metadata, dict) and metadata.get('name')):
            raise desired.ManifestError(
                "A manifest to be applied needs apiVersion, kind, and metadata with a name.")
        group, _, version = api_version.rpartition('/')
        selector = references.Selector(group=group, version=version, kind=kind)
        resource = await self.find(selector, f"kind {kind} of {api_version}")
        if resource.namespaced and not metadata.get('namespace'):
            raise desired.ManifestError(
                f"{kind} {metadata['name']!r} needs a namespace. Set one, or use kopf.adopt().")
        try:
            return bodies.Body(await generating.apply(
                self.client, resource=resource, manifest=content, fields=fields, manager=manager,
                force=force, permit=permit))
        except _GivenUpError:
            raise asyncio.CancelledError from None

    async def find(self, selector: references.Selector, title: str) -> references.Resource:
        """
        Find a resource in the cluster. What is found is remembered.

        :raises errors.APINotFoundError: if there is none.
        :raises ValueError: if there are several.
        """
        found = self._found.get(selector)
        if found is None:
            findings = await scanning.scan(self.client) if selector.group is None else (
                await scanning.scan_groups(self.client, groups=[selector.group]))
            fitting = selector.select(findings.resources)
            if len(fitting) > 1:
                raise ValueError(f"{title} is ambiguous: {', '.join(map(str, fitting))}.")
            if not fitting:
                raise errors.APINotFoundError(f"There is no {title} in the cluster.", status=404)
            [found] = fitting
            self._found[selector] = found
        return found


def get_applier(name: str) -> Applier:
    """
    Get the applier, which makes the requests of the current handler.

    :raises LookupError: outside of the handlers of a running operator.
    """
    applier = applier_var.get(None)
    if applier is None:
        raise LookupError(f"kopf.{name}() is for the handlers of a running operator.")
    return applier


def apply(
        manifest: Any, *, manager: str | None = None, force: bool = True,
) -> PendingRequest[bodies.Body]:
    """
    Create or change an object with server-side apply, over the connections of the operator.

    The object gets the fields of the manifest; fields that were applied before and that are not in
    the manifest are removed. Nothing else is changed: for the owner, the labels, and the namespace,
    use `kopf.adopt` first. In async handlers: ``obj = await kopf.apply(manifest)``. In sync
    handlers: ``obj = kopf.apply(manifest).result()``.

    ::

        @kopf.on.create('websites')
        async def created(name, **_):
            service = {'apiVersion': 'v1', 'kind': 'Service', 'spec': {'ports': [{'port': 80}]}}
            kopf.adopt(service, strict=True)
            await kopf.apply(service)

    See "Reconcile owned resources" in the documentation.

    :param manifest: a dict, an object of pykube-ng, or a model of the official clients.
    :param manager: the field manager. Default: ``settings.reconciling.manager`` (``kopf``).
    :param force: whether to take over fields that other managers have set to other values. Default:
        yes; otherwise, there is an error.
    :returns: what to await, or to ask for the `result`: the object as the API server has stored it.
    :raises LookupError: outside of the handlers of a running operator.
    """
    applier = get_applier('apply')
    if manager is None:
        manager = applier.client.settings.reconciling.manager
    return applier.start(manifest, manager=manager, force=force)
