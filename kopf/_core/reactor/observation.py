"""
Observation: which kinds of resources and which namespaces there are in the cluster, as of now.

The kinds are what the API says when asked. When to ask is known by watching the CRDs; as the API
learns of a new or changed CRD only some moments later, it is asked several times after a change,
and again and again while a CRD is there, but its resource is not, or the other way round.
"""
import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Literal, TypeVar

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, errors, listing, scanning, streaks, watching
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references
from kopf._core.reactor import tracking

_T = TypeVar('_T')

CRDS = references.Resource(
    'apiextensions.k8s.io', 'v1', 'customresourcedefinitions',
    kind='CustomResourceDefinition', namespaced=False)
NAMESPACES = references.Resource('', 'v1', 'namespaces', kind='Namespace', namespaced=False)

MAX_CRDS_WAIT = 1.0
"""How long the start may be delayed because the CRDs are not known yet, in seconds."""

FORBIDDEN_PAUSES = (10.0, 30.0, 60.0, 300.0)
"""Pauses before watching is tried again after it was forbidden; the last one repeats."""


class Insights:
    """
    What is known about the cluster; None if nothing is known yet.

    Whoever wants to know of changes, subscribes: the event is set at every change.
    """

    def __init__(self) -> None:
        super().__init__()
        self.resources: frozenset[references.Resource] | None = None
        self.namespaces: frozenset[references.Namespace] | None = None
        self._events: set[asyncio.Event] = set()

    def subscribe(self, event: asyncio.Event) -> None:
        self._events.add(event)

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._events.discard(event)

    def set_resources(self, resources: Iterable[references.Resource]) -> None:
        known, self.resources = self.resources, frozenset(resources)
        if known is None or describe(known) != describe(self.resources):
            self._notify()

    def set_namespaces(self, namespaces: Iterable[references.Namespace]) -> None:
        known, self.namespaces = self.namespaces, frozenset(namespaces)
        if known != self.namespaces:
            self._notify()

    def _notify(self) -> None:
        for event in self._events:
            event.set()


def describe(resources: Iterable[references.Resource]) -> frozenset[tuple[object, ...]]:
    """All that is known of the resources. As such, they are equal if only their names are."""
    return frozenset(dataclasses.astuple(resource) for resource in resources)


async def observe_resources(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        groups: Collection[str] | None,
        insights: Insights,
        logger: logging.Logger,
) -> None:
    """
    Keep the resources of the groups (None: of all) up to date, for ever.

    With ``settings.scanning.disabled``, it is done once. Without permission to watch CRDs, only
    those kinds that are there at the start are known, and this is warned of once. CRDs are not
    watched where there can be none: they are only in groups with dots in their names.
    """
    if groups is not None and not groups:
        insights.set_resources([])
        return
    tracker = tracking.Tracker(groups=groups)
    watching_task: asyncio.Task[None] | None = None
    try:
        if not settings.scanning.disabled and (groups is None or any('.' in g for g in groups)):
            watching_task = asyncio.create_task(_watch_if_allowed(
                client, settings=settings, resource=CRDS, sink=tracker, logger=logger,
                forbidden=tracker.filled.set,
                warning="There are no rights to watch CRDs: the kinds of resources that come or go "
                        "later will not be noticed.",
            ))
            # What changes after the list will be noticed; so scan after it, not before.
            try:
                async with asyncio.timeout(MAX_CRDS_WAIT):
                    await tracker.filled.wait()
            except TimeoutError:
                pass

        streak = streaks.Streak("Scanning of the resources", settings=settings, logger=logger)
        findings = await _insist(lambda: scanning.scan(client, groups=groups), streak)
        insights.set_resources(findings.resources)
        for (group, version), reason in findings.failures.items():
            logger.warning(f"Resources of {group}/{version} cannot be found: {reason}")
        tracker.doubt({group for group, _ in findings.failures})
        tracker.compare(findings.resources)
        if watching_task is not None:
            rescanning_task = asyncio.create_task(_rescan(tracker, client, insights, logger))
            try:
                done, _ = await asyncio.wait(
                    {watching_task, rescanning_task}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await tasks.cancel([rescanning_task])
    finally:
        if watching_task is not None:
            await tasks.cancel([watching_task])


async def _rescan(
        tracker: tracking.Tracker,
        client: api.Client,
        insights: Insights,
        logger: logging.Logger,
) -> None:
    """Ask the API again about the groups that are in doubt, for ever."""
    while True:
        groups = await tracker.take()
        try:
            findings = await scanning.scan_groups(client, groups=groups)
        except errors.APIError as e:
            logger.debug(f"Scanning of {', '.join(sorted(groups))} has failed: {e}")
            tracker.proceed(groups, unsettled=groups)
            continue
        known = insights.resources or frozenset()
        failed = {group for group, _ in findings.failures}
        fresh = findings.complete(known)
        insights.set_resources(
            fresh | {resource for resource in known if resource.group not in groups})
        tracker.proceed(groups, unsettled=failed | tracker.find_unsettled(fresh))


async def observe_namespaces(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        clusterwide: bool,
        patterns: Collection[references.NamespacePattern],
        insights: Insights,
        logger: logging.Logger,
) -> None:
    """
    Keep the namespaces that match any of the patterns up to date, for ever.

    With ``settings.scanning.disabled``, it is done once. Without permission to watch namespaces,
    those given by their exact names are assumed to exist, and this is warned of once.
    """
    if settings.scanning.disabled or clusterwide:
        await list_namespaces(
            client=client, settings=settings, clusterwide=clusterwide, patterns=patterns,
            insights=insights, logger=logger)
        return

    def assume() -> None:
        if insights.namespaces is None:
            insights.set_namespaces(references.select_specific_namespaces(patterns))

    await _watch_if_allowed(
        client, settings=settings, resource=NAMESPACES,
        sink=_NamespaceSink(insights, patterns=patterns), logger=logger,
        warning=_describe_ignorance(patterns), forbidden=assume)


async def list_namespaces(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        clusterwide: bool,
        patterns: Collection[references.NamespacePattern],
        insights: Insights,
        logger: logging.Logger,
) -> None:
    """Find the namespaces that match any of the patterns, once; see `observe_namespaces`."""
    if clusterwide:
        insights.set_namespaces([None])
        return
    streak = streaks.Streak("Listing of the namespaces", settings=settings, logger=logger)
    sink = _NamespaceSink(insights, patterns=patterns)
    try:
        await _insist(lambda: _list_namespaces(client, settings, sink), streak)
    except errors.APIForbiddenError:
        logger.warning(_describe_ignorance(patterns))
        insights.set_namespaces(references.select_specific_namespaces(patterns))


def _describe_ignorance(patterns: Collection[references.NamespacePattern]) -> str:
    specific = references.select_specific_namespaces(patterns)
    return ("There are no rights to watch namespaces: only those are served that are named "
            f"exactly: {', '.join(sorted(specific)) or 'none'}.")


async def _list_namespaces(
        client: api.Client,
        settings: configuration.OperatorSettings,
        sink: watching.Sink,
) -> None:
    sink.begin(restored=False)
    async for page in listing.list_objects(
        client, resource=NAMESPACES, namespace=None, settings=settings, retry=False,
        metadata_only=True,
    ):
        if page.restarted:
            sink.begin(restored=False)
        for body in page.items:
            sink.listed(body)
    sink.end()


async def _insist(fn: Callable[[], Awaitable[_T]], streak: streaks.Streak) -> _T:
    """Try for ever, but for what is forbidden."""
    while True:
        try:
            result = await fn()
        except errors.APIForbiddenError:
            raise
        except errors.APIError as e:
            await asyncio.sleep(streak.fail(e))
        else:
            streak.end()
            return result


async def _watch_if_allowed(
        client: api.Client,
        *,
        settings: configuration.OperatorSettings,
        resource: references.Resource,
        sink: watching.Sink,
        logger: logging.Logger,
        warning: str,
        forbidden: Callable[[], object],
) -> None:
    """Watch for ever; while this is forbidden, say so once, and try again now and then."""
    warned = False
    for pause in iter_forbidden_pauses():
        try:
            await watching.watch(
                client, settings=settings, resource=resource, namespace=None, sink=sink,
                metadata_only=True, raising=(errors.APIForbiddenError,))
        except errors.APIForbiddenError:
            if not warned:
                warned = True
                logger.warning(warning)
            forbidden()
            await asyncio.sleep(pause)


def iter_forbidden_pauses() -> Iterator[float]:
    """For how long to pause before watching is tried again after it was forbidden."""
    yield from FORBIDDEN_PAUSES
    yield from itertools.repeat(FORBIDDEN_PAUSES[-1])


class _NamespaceSink(watching.Sink):
    """Keeps the names of the namespaces that match, of those that exist."""

    def __init__(
            self,
            insights: Insights,
            *,
            patterns: Collection[references.NamespacePattern],
    ) -> None:
        super().__init__()
        self._insights = insights
        self._patterns = patterns
        self._names: set[references.Namespace] = set()
        self._listed: set[references.Namespace] = set()

    def begin(self, *, restored: bool) -> None:
        self._listed = set()

    def listed(self, body: bodies.RawBody) -> None:
        name = references.NamespaceName(body['metadata']['name'])
        if any(references.match_namespace(name, pattern) for pattern in self._patterns):
            self._listed.add(name)

    def end(self) -> None:
        self._names = self._listed
        self._insights.set_namespaces(self._names)

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes,
    ) -> None:
        name = references.NamespaceName(body['metadata']['name'])
        if type == 'DELETED':
            self._names.discard(name)
        elif any(references.match_namespace(name, pattern) for pattern in self._patterns):
            self._names.add(name)
        self._insights.set_namespaces(self._names)
