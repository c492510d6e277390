"""
Admitting: what the admission of objects takes from the rest of the operator.
"""
from typing import Any

from kopf._cogs.clients import api
from kopf._cogs.structs import memos, references
from kopf._core.engines import activities
from kopf._core.engines.admission import reviewing, serving, webhooks
from kopf._core.intents import registries
from kopf._core.reactor import observation, queueing, turns


class Admission:
    """The webhooks of an operator: started and stopped with it, and following its resources."""

    def __init__(
            self,
            *,
            env: turns.Environment,
            registry: registries.OperatorRegistry,
            insights: observation.Insights,
            lines: queueing.Lines,
    ) -> None:
        super().__init__()
        self._env = env
        self._registry = registry
        self._insights = insights
        self._lines = lines
        self._resources: frozenset[references.Resource] | None = None
        self._served: dict[references.Resource, reviewing.Served] = {}
        self._service: serving.Service | None = None

    def start(self, client: api.Client) -> None:
        """
        Start to serve, after the startup handlers have made the settings.

        :raises activities.ActivityError: if there is no server for the handlers.
        """
        directory = webhooks.Directory(self._registry._webhooks)
        self._service = serving.Service(
            client=client, settings=self._env.settings, directory=directory,
            get_bound=self._get_bound)
        try:
            self._service.start(reviewing.Reviewer(directory, reviewing.Surroundings(
                settings=self._env.settings, clock=self._env.clock, indices=self._env.indices,
                find=self._find, get_memo=self._get_memo)))
        except serving.ServerError as e:
            raise activities.ActivityError(str(e), {}) from e
        self._insights.subscribe(self._service.changed)

    async def serve(self) -> None:
        """
        Go on for ever.

        :raises activities.ActivityError: if the server ends.
        """
        assert self._service is not None
        try:
            await self._service.wait()
        except serving.ServerError as e:
            raise activities.ActivityError(str(e), {}) from e

    async def stop(self) -> None:
        if self._service is not None:
            self._insights.unsubscribe(self._service.changed)
            await self._service.stop()

    def _get_bound(self) -> serving.Bound | None:
        if self._insights.resources is None:
            return None
        self._refresh()
        return {resource: tuple(members) for resource, members in self._served.values()}

    def _find(self, resource: references.Resource) -> reviewing.Served | None:
        self._refresh()
        found = self._served.get(resource)
        if found is None and resource not in (self._resources or ()):  # it may be a moment old
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
        line = None if uid is None else self._lines.find(resource, uid)
        if line is not None:
            return turns.get_memo(self._env, line)
        return memos.make_own(self._env.memo)
