"""
Admission in a running operator: runs the webhook server, and writes its address into the webhook
configurations.

The engine (`kopf._core.engines.admission`) imports no other engine and nothing of the reactor. What
the engine needs from the operator is handed in here: the observed resources and the objects' memos.
"""
import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from kopf._cogs.aiokits import tasks, timeouts
from kopf._cogs.clients import errors
from kopf._cogs.cluster import discovery
from kopf._cogs.structs import memos, references, reviews
from kopf._core.engines import activities
from kopf._core.engines.admission import configurations, conversions, reviewing, sites, webhooks
from kopf._core.intents import registries
from kopf._core.path import objects, saving

logger = logging.getLogger('kopf._core.engines.admission.services')

Wrapper = Callable[[reviews.WebhookFn, webhooks.Directory], reviews.WebhookFn]
"""Wraps the function that answers reviews, e.g. to measure that."""

LAST_CLOSING = 0.5
"""How long (seconds) before the deadline the reviews in progress are interrupted."""


class Admission:
    """
    The webhook server and the webhook configurations of one operator.

    The server always serves. The configurations are written from `take_over` to `stand_by`: of all
    replicas, only one should write them. They remain in the cluster during the standby. They are
    written again when the set of the served resources changes.
    """

    def __init__(
            self,
            *,
            env: saving.Environment,
            registry: registries.OperatorRegistry,
            insights: discovery.Insights,
            find: Callable[[references.Resource, str], objects.Item | None],
            wrappers: Iterable[Wrapper] = (),
    ) -> None:
        """
        ``find`` returns the item of an object by its resource and uid, if it is known.

        Make the instance after the startup handlers, as they set ``settings.admission``.
        """
        self._wrappers = wrappers
        self._env = env
        self._settings = env.settings.admission
        self._registry = registry
        self._insights = insights
        self._find_item = find
        self._resources: frozenset[references.Resource] | None = None
        self._served: dict[references.Resource, reviewing.Served] = {}
        self._directory = webhooks.Directory(registry._webhooks)
        self._reviewer = reviewing.Reviewer(
            directory=self._directory, context=env, find=self._find, get_memo=self._get_memo)
        self._changed = asyncio.Event()
        """Set when the configurations can have changed."""
        self._server: asyncio.Task[None] | None = None
        self._managing: asyncio.Task[None] | None = None
        self._manager: configurations.Manager | None = None
        self._site = sites.Site(
            client=env.client.unfenced(), settings=env.settings, clock=env.clock,
            wake=self._changed.set)

    def start(self) -> None:
        """
        Start the server if there are admission handlers; and write the configurations if they are
        managed.

        :raises activities.ActivityError: if there are admission handlers but no server is set.
        """
        if self._directory.webhooks or self._registry._converters:
            if self._settings.server is None:
                ids = [repr(webhook.sample.id) for webhook in self._directory.webhooks]
                what = "Admission handlers" if ids else "Conversions between versions"
                raise activities.ActivityError(
                    f"{what} need a server or a tunnel, but none is configured: set "
                    f"settings.admission.server in a startup handler, e.g. to "
                    f"kopf.WebhookServer(...). "
                    f"{'The handlers' if ids else 'The definitions'}: "
                    f"{', '.join(ids or self._registry._converters)}.", {})
            fn: reviews.WebhookFn = self._review
            for wrap in self._wrappers:
                fn = wrap(fn, self._directory)
            self._server = asyncio.create_task(
                self._serve(self._settings.server, fn), name="webhook server")
        if self._settings.managed is not None:
            self._manager = configurations.Manager(
                client=self._env.client, site=self._site, name=self._settings.managed)
            self._managing = asyncio.create_task(
                self._manager.run(self._changed, self._describe), name="webhook manager")
        self._insights.subscribe(self._changed)

    async def serve(self) -> None:
        """
        Wait until the server ends, or until cancelled. The cancellation does not stop the server.

        :raises activities.ActivityError: if the server has failed or has ended.
        """
        running = [task for task in (self._server, self._managing) if task is not None]
        if not running:
            await asyncio.Event().wait()
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # by itself, a task ends with an error only

    # The parts of the operator that only one replica runs: by Leases, and by peering.

    def take_over(self) -> None:
        """Write the configurations from now on, and overwrite what other replicas have written."""
        self._site.assign(is_writer=True)
        if self._manager is not None:
            self._manager.distrust()
        self._changed.set()

    def stand_by(self) -> None:
        """Stop writing the configurations. Reviews are still answered."""
        self._site.assign(is_writer=False)

    async def stop(self, deadline: float) -> None:
        """
        Remove the webhooks from the cluster, except for the persistent ones; then, stop the server.

        The webhooks that another operator has written are not removed.

        In this order, the API server does not call a webhook that is not served any more. The
        deadline is a time of the event loop. After it, the reviews in progress are interrupted.
        """
        self._insights.unsubscribe(self._changed)
        if self._managing is not None and self._manager is not None:
            await tasks.cancel([self._managing])
            try:
                async with timeouts.timeout_at(deadline):
                    await self._manager.clean(self._describe(persistent=True) or {})
            except (errors.APIError, TimeoutError) as e:
                logger.warning(f"The webhooks are left in the cluster, as it does not let them be "
                               f"removed: {e or 'timeout'}")
        if self._server is not None:
            await tasks.end(self._server, deadline - LAST_CLOSING)

    async def _serve(self, server: Any, fn: reviews.WebhookFn) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(type(server), '__aenter__'):
                    server = await stack.enter_async_context(server)
                if isinstance(server, sites.SitedServer):
                    server.settle(self._site)
                iterator: AsyncIterator[reviews.WebhookClientConfig] = server(fn)
                if hasattr(iterator, 'aclose'):
                    stack.push_async_callback(iterator.aclose)
                async for client_config in iterator:
                    self._site.reach(client_config)
        except Exception as e:
            raise activities.ActivityError(
                f"The webhook server has failed: {e or repr(e)}", {}) from e
        raise activities.ActivityError(
            "The webhook server has ended, and so does the operator.", {})

    def _describe(self, *, persistent: bool = False) -> configurations.Records | None:
        """
        Make both configurations as they should be now; both are empty without admission handlers.

        Returns None as long as the address of the server or the resources are not known.
        """
        managed, config = self._settings.managed, self._site.config
        if not self._directory.webhooks and not self._registry._converters:
            return dict.fromkeys(configurations.CONFIGURATIONS, ())
        if managed is None or config is None or self._insights.resources is None:
            return None
        self._refresh()
        return {
            name: [webhooks.append_path(config, f'{conversions.PATH}/{name}')]
            for name in self._registry._converters
        } | {
            reason: webhooks.build_configuration(
                [webhook for webhook in self._directory.webhooks
                 if webhook.sample.reason == reason and (
                     webhook.sample.persistent or not persistent)],
                dict(self._served.values()), managed=managed, client_config=config)
            for reason in configurations.CONFIGURATIONS
        }

    async def _review(self, request: reviews.Request, **kwargs: Any) -> reviews.Response:
        if request.get('kind') == conversions.KIND:
            return await conversions.convert(
                request, self._registry._converters.values(), path=kwargs.get('webhook'))
        self._env.client.enter_term()
        return await self._reviewer(request, **kwargs)

    def _find(self, resource: references.Resource) -> reviewing.Served | None:
        self._refresh()
        found = self._served.get(resource)
        if found is None and resource not in (self._resources or ()):
            # The observed resources can be a moment behind the cluster: e.g. the first object of a
            # new CRD is under review, while the operator has not discovered the resource yet.
            return self._bind(frozenset([resource])).get(resource)
        return found

    def _refresh(self) -> None:
        known = self._insights.resources
        if known is not None and known is not self._resources:
            self._resources = known
            self._served = self._bind(known)

    def _bind(
            self, resources: frozenset[references.Resource],
    ) -> dict[references.Resource, reviewing.Served]:
        handlers = registries.resolve(self._registry, resources).handlers
        return {resource: (resource, served.webhooks)
                for resource, served in handlers.items() if served.webhooks}

    def _get_memo(self, resource: references.Resource, uid: str | None) -> Any:
        item = None if uid is None else self._find_item(resource, uid)
        if item is not None:
            return self._env.get_memo(item)
        return memos.make_own(self._env.memo)
