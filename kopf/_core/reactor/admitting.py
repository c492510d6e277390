"""
Admission in a running operator: connects the webhooks of the engine with the operator's other
parts.

The engine (`kopf._core.engines.admission`) imports no other engine and nothing of the reactor. What
the engine needs from the operator is handed in here: the observed resources and the objects' memos.
"""
import functools
from collections.abc import Callable
from typing import Any

from kopf._cogs.clients import api
from kopf._cogs.structs import memos, references, reviews
from kopf._core.engines import activities
from kopf._core.engines.admission import reviewing, services, webhooks
from kopf._core.intents import registries
from kopf._core.path import changes, objects, saving
from kopf._core.reactor.watches import discovery

Measure = Callable[[reviews.WebhookFn, webhooks.Directory], reviews.WebhookFn]


class Admission:
    """
    The webhooks of one operator.

    They are started and stopped with the operator. They are also re-registered in the cluster when
    the set of the served resources changes.
    """

    def __init__(
            self,
            *,
            env: saving.Environment,
            registry: registries.OperatorRegistry,
            insights: discovery.Insights,
            find: Callable[[references.Resource, str], objects.Item | None],
            measure: Measure | None = None,
    ) -> None:
        """
        ``find`` returns the item of an object by its resource and uid, if it is known. ``measure``
        wraps the function that answers reviews, if anybody measures that.
        """
        super().__init__()
        self._measure = measure
        self._env = env
        self._registry = registry
        self._insights = insights
        self._find_item = find
        self._resources: frozenset[references.Resource] | None = None
        self._served: dict[references.Resource, reviewing.Served] = {}
        self._service: services.Service | None = None

    def start(self, client: api.Client) -> None:
        """
        Start the webhook server.

        Call this after the startup handlers: they choose the server
        (``settings.admission.server``).

        :raises activities.ActivityError: if there are admission handlers but no server is set.
        """
        directory = webhooks.Directory(self._registry._webhooks)
        self._service = services.Service(
            client=client, settings=self._env.settings, directory=directory,
            get_bound=self._get_bound)
        reviewer: reviews.WebhookFn = functools.partial(
            self._review, reviewing.Reviewer(directory, reviewing.Dependencies(
                context=self._env, find=self._find, get_memo=self._get_memo)))
        if self._measure is not None:
            reviewer = self._measure(reviewer, directory)
        try:
            self._service.start(reviewer)
        except services.ServerError as e:
            raise activities.ActivityError(str(e), {}) from e
        self._insights.subscribe(self._service.changed)

    async def serve(self) -> None:
        """
        Wait for the webhook server, until this task is cancelled.

        :raises activities.ActivityError: if the server stops or fails.
        """
        assert self._service is not None
        try:
            await self._service.wait()
        except services.ServerError as e:
            raise activities.ActivityError(str(e), {}) from e

    # The parts of the operator that only one replica runs: by Leases, and by peering.

    def take_over(self) -> None:
        """Register the webhooks in the cluster: of all replicas, this one works."""
        assert self._service is not None
        self._service.take_over()

    def stand_by(self) -> None:
        """Register the webhooks no more; those in the cluster are answered as before."""
        assert self._service is not None
        self._service.stand_by()

    async def stop(self, deadline: float) -> None:
        """Stop the webhook server by the deadline, which is a time of the event loop."""
        if self._service is not None:
            self._insights.unsubscribe(self._service.changed)
            await self._service.stop(deadline)

    async def _review(
            self, reviewer: reviewing.Reviewer, request: reviews.Request, **kwargs: Any,
    ) -> reviews.Response:
        self._env.client.enter_term()
        return await reviewer(request, **kwargs)

    def _get_bound(self) -> services.Bound | None:
        if self._insights.resources is None:
            return None
        self._refresh()
        return {resource: tuple(members) for resource, members in self._served.values()}

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
        binding = registries.resolve(self._registry, resources)
        return {
            resource: (resource, served.webhooks)
            for resource, served in binding.handlers.items() if served.webhooks
        }

    def _get_memo(self, resource: references.Resource, uid: str | None) -> Any:
        item = None if uid is None else self._find_item(resource, uid)
        if item is not None:
            return changes.get_memo(self._env, item)
        return memos.make_own(self._env.memo)
