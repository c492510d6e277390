"""
Services: runs the webhook server, and writes its address into the webhook configurations.
"""
import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

from kopf._cogs.aiokits import tasks, timeouts
from kopf._cogs.clients import api, errors
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references, reviews
from kopf._core.engines.admission import managing, webhooks
from kopf._core.intents import handlers

logger = logging.getLogger(__name__)

Bound = Mapping[references.Resource, Collection[handlers.WebhookHandler]]


LAST_CLOSING = 0.5
"""How long (seconds) before the deadline the reviews in progress are interrupted."""


class ServerError(Exception):
    """The webhook server is absent, or has failed, or has ended."""


class Service:
    """
    The webhook server and the webhook configurations of one operator.

    The server serves always. The configurations are written from `take_over` to `stand_by`: of all
    replicas, only one should write them. What is written remains there during the standby.

    Set `changed` when the set of the served resources has changed.
    """

    def __init__(
            self,
            *,
            client: api.Client,
            settings: configuration.OperatorSettings,
            directory: webhooks.Directory,
            get_bound: Callable[[], Bound | None],
    ) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self._settings = settings
        self._directory = directory
        self._get_bound = get_bound
        self._client_config: reviews.WebhookClientConfig | None = None
        self._server: asyncio.Task[None] | None = None
        self._managing: asyncio.Task[None] | None = None
        self._is_standby = True
        name = settings.admission.managed
        self._manager = None if name is None else managing.Manager(
            client=client, settings=settings, name=name)

    def start(self, fn: reviews.WebhookFn) -> None:
        """
        Start the server if there are admission handlers; and write the configurations if they are
        managed.

        :raises ServerError: if there are admission handlers, but no server is set.
        """
        server = self._settings.admission.server
        if self._directory.webhooks:
            if server is None:
                ids = ', '.join(repr(webhook.sample.id) for webhook in self._directory.webhooks)
                raise ServerError(
                    f"Admission handlers need a server or a tunnel, but none is configured: "
                    f"set settings.admission.server in a startup handler, e.g. to "
                    f"kopf.WebhookServer(...). The handlers: {ids}.")
            self._server = asyncio.create_task(self._serve(server, fn), name="webhook server")
        if self._manager is not None:
            self._managing = asyncio.create_task(
                self._manager.run(
                    self.changed, lambda: None if self._is_standby else self._describe()),
                name="webhook manager")

    def take_over(self) -> None:
        """Write the configurations from now on, and overwrite what other replicas have written."""
        self._is_standby = False
        if self._manager is not None:
            self._manager.distrust()
        self.changed.set()

    def stand_by(self) -> None:
        """Write the configurations no more; it can be called again."""
        self._is_standby = True

    async def wait(self) -> None:
        """
        Wait until the server ends, or until cancelled. The cancellation does not stop the server.

        :raises ServerError: if the server has failed or has ended.
        """
        while True:
            running = {task for task in (self._server, self._managing) if task is not None}
            if not running:
                await asyncio.Event().wait()
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def stop(self, deadline: float) -> None:
        """
        Remove the webhooks from the cluster, except for the persistent ones; then, stop the server.

        The webhooks that another operator has written are not removed.

        In this order, the API server does not call a webhook that is not served any more. The
        deadline is a time of the event loop. After it, the reviews in progress are interrupted.
        """
        if self._managing is not None and self._manager is not None:
            await tasks.cancel([self._managing])
            try:
                async with timeouts.timeout_at(deadline):
                    await self._manager.clean(self._describe(persistent=True) or {})
            except (errors.APIError, TimeoutError) as e:
                logger.warning(f"The webhooks are left in the cluster, as it does not let them be "
                               f"removed: {e or 'timeout'}")
        if self._server is not None:
            self._server.cancel()  # it answers the requests in progress
            left = deadline - LAST_CLOSING - asyncio.get_running_loop().time()
            await asyncio.wait([self._server], timeout=max(0.0, left))
            await tasks.cancel([self._server])

    async def _serve(self, server: Any, fn: reviews.WebhookFn) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(type(server), '__aenter__'):
                    server = await stack.enter_async_context(server)
                iterator: AsyncIterator[reviews.WebhookClientConfig] = server(fn)
                if hasattr(iterator, 'aclose'):
                    stack.push_async_callback(iterator.aclose)
                async for client_config in iterator:
                    self._client_config = client_config
                    self.changed.set()
        except Exception as e:
            raise ServerError(f"The webhook server has failed: {e or repr(e)}") from e
        raise ServerError("The webhook server has ended, and so does the operator.")

    def _describe(self, *, persistent: bool = False) -> managing.Records | None:
        """
        Make both configurations as they should be now; both are empty without admission handlers.

        Returns None as long as the address of the server or the resources are not known.
        """
        managed, config, bound = (
            self._settings.admission.managed, self._client_config, self._get_bound())
        if not self._directory.webhooks:
            return dict.fromkeys(managing.CONFIGURATIONS, ())
        if managed is None or config is None or bound is None:
            return None
        return {
            reason: webhooks.build_configuration(
                [webhook for webhook in self._directory.webhooks
                 if webhook.sample.reason == reason and (
                     webhook.sample.persistent or not persistent)],
                bound, managed=managed, client_config=config)
            for reason in managing.CONFIGURATIONS
        }
