"""
Discovery: which resources and which namespaces there are now.

The resources come from the discovery of the API server. When to repeat the discovery is known from
watching the CRDs. The API server serves the resource of a new CRD only some moments after the CRD
itself has changed. So, the discovery is repeated several times after each change of a CRD. It also
goes on as long as the resources disagree with the CRDs, e.g. a CRD exists but its resource does
not.
"""
import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TypeVar

from kopf._cogs.aiokits import tasks, timeouts
from kopf._cogs.clients import api, errors, listing, scanning, screening, streaks, watching
from kopf._cogs.cluster import tracking
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references

_T = TypeVar('_T')

NAMESPACES = references.Resource('', 'v1', 'namespaces', kind='Namespace', namespaced=False)

MAX_CRDS_WAIT = 1.0
"""How long (seconds) the first discovery waits for the list of CRDs."""

MAX_NAMED = 5
"""How many names the log and the health check list at most: of resources, namespaces, watches."""

FORBIDDEN_PAUSES = (10.0, 30.0, 60.0, 300.0)
"""Pauses (seconds) before a forbidden watch is tried again; the last pause repeats."""


class Insights:
    """
    The observed resources and namespaces of the cluster; None until they are observed.

    Each subscribed event is set at every change.
    """

    def __init__(self) -> None:
        self.resources: frozenset[references.Resource] | None = None
        self.deleted: frozenset[references.Resource] = frozenset()
        """The resources whose definitions were deleted, and so all of their objects."""
        self.failing: frozenset[str] = frozenset()
        """The groups whose discovery has failed: they can have more resources."""
        self.namespaces: frozenset[references.Namespace] | None = None
        self.changes: int = 0
        """How many times anything has changed."""
        self._deletions = 0
        self._events: dict[asyncio.Event, None] = {}  # in their order, so that runs are alike

    def subscribe(self, event: asyncio.Event) -> None:
        self._events[event] = None

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._events.pop(event, None)

    def set_resources(
            self,
            resources: Iterable[references.Resource],
            *,
            deleted: Iterable[references.Resource] = (),
            failing: Iterable[str] = (),
            deletions: int = 0,
    ) -> None:
        """Set the resources. ``deletions`` is how many definitions were deleted until now."""
        known, self.resources = self.resources, frozenset(resources)
        self.deleted = self.deleted.union(deleted) - self.resources
        former, self.failing = self.failing, frozenset(failing)
        is_recreated, self._deletions = deletions != self._deletions, deletions
        if known is None or former != self.failing or is_recreated or (
                describe(known) != describe(self.resources)):
            self._notify()

    def set_namespaces(self, namespaces: Iterable[references.Namespace]) -> None:
        known, self.namespaces = self.namespaces, frozenset(namespaces)
        if known != self.namespaces:
            self._notify()

    def _notify(self) -> None:
        self.changes += 1
        for event in self._events:
            event.set()


def enumerate_names(names: Iterable[str]) -> str:
    """Enumerate the first names for the log, and say how many more there are."""
    known = sorted(names)
    more = len(known) - MAX_NAMED
    return ', '.join([*known[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])])


def describe(resources: Iterable[references.Resource]) -> frozenset[tuple[object, ...]]:
    """
    Take all details of the resources, for comparison.

    The resources themselves are equal if their groups, versions, and plural names are equal.
    """
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
    Keep ``insights.resources`` up to date until cancelled: those of the groups (None: of all
    groups).

    With ``settings.scanning.disabled``, the resources are discovered once. While the operator has
    no permission to watch CRDs, later changes are not noticed, and the log warns of that once. If
    no group can have CRDs, they are not watched: the API server requires a dot in the groups of
    CRDs.
    """
    if groups is not None and not groups:
        insights.set_resources([])
        return
    tracker = tracking.Tracker(groups=groups)

    async def scan() -> None:
        streak = streaks.Streak("Scanning of the resources", settings=settings, logger=logger)
        findings = await _retry(lambda: _scan_first(client, groups), streak)
        failing = {group for group, _ in findings.failures}
        insights.set_resources(findings.resources, failing=failing)
        for (group, version), reason in findings.failures.items():
            logger.warning(f"Resources of {group}/{version} cannot be found: {reason}")
        tracker.doubt(failing | tracker.find_unsettled(findings.resources))

    async def scan_after_crds() -> None:
        # The CRDs are listed before the first discovery. In the reverse order, a CRD that changes
        # in between would be listed already, and its change would be missed.
        await timeouts.wait(tracker.filled, MAX_CRDS_WAIT)
        await scan()
        await _rescan(tracker, client, insights, logger)

    if settings.scanning.disabled or not (groups is None or any('.' in g for g in groups)):
        await scan()
        return
    await tasks.gather(
        _watch_if_allowed(
            client, settings=settings, resource=references.CRDS, sink=tracker, logger=logger,
            forbidden=tracker.filled.set,
            warning="There is no permission to watch CRDs: the kinds of resources that come or go "
                    "later will not be noticed."),
        scan_after_crds())


async def _rescan(
        tracker: tracking.Tracker,
        client: api.Client,
        insights: Insights,
        logger: logging.Logger,
) -> None:
    """Repeat the discovery for the groups that are in doubt, until cancelled."""
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
        served = {(resource.group, resource.plural) for resource in fresh}
        missing = {resource for resource in known if resource.group in groups
                   and (resource.group, resource.plural) not in served}
        # The discovery can be ahead of the watch of CRDs. The watch tells whether the objects are
        # also gone, or whether the API server only takes some time to serve a changed CRD.
        awaited = set(filter(tracker.is_settling, missing))
        insights.set_resources(
            fresh | awaited | {resource for resource in known if resource.group not in groups},
            deleted=filter(tracker.is_deleted, missing - awaited),
            failing=failed | (insights.failing - groups), deletions=tracker.deletions)
        tracker.proceed(groups, unsettled=failed | tracker.find_unsettled(fresh))


async def observe_namespaces(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        clusterwide: bool,
        patterns: Collection[references.NamespacePattern],
        insights: Insights,
        logger: logging.Logger,
        once: bool = False,
) -> None:
    """
    Keep ``insights.namespaces`` up to date until cancelled: those that match any of the patterns.

    With ``once``, or ``settings.scanning.disabled``, the namespaces are listed once. A cluster-wide
    operator lists no namespaces. If the operator has no permission to watch namespaces, the
    namespaces with exact names in the patterns are assumed to exist, and the log warns of that
    once.
    """
    if clusterwide:
        insights.set_namespaces([None])
        return
    specific = references.select_specific_namespaces(patterns)
    warning = ("There is no permission to watch namespaces: only those are served that are named "
               f"exactly: {', '.join(sorted(specific)) or 'none'}.")
    sink = _NamespaceSink(insights, patterns, logger)

    def assume() -> None:
        if insights.namespaces is None:
            insights.set_namespaces(specific)

    if not once and not settings.scanning.disabled:
        await _watch_if_allowed(
            client, settings=settings, resource=NAMESPACES, sink=sink, logger=logger,
            warning=warning, forbidden=assume)
        return
    streak = streaks.Streak("Listing of the namespaces", settings=settings, logger=logger)
    try:
        await _retry(
            lambda: sink.fill(client, settings), streak, raising=(errors.APIForbiddenError,))
    except errors.APIForbiddenError:
        logger.warning(warning)
        assume()


async def _scan_first(client: api.Client, groups: Collection[str] | None) -> scanning.Findings:
    """Scan the cluster; if it cannot be reached, and never could, the error says what to do."""
    try:
        return await scanning.scan(client, groups=groups)
    except errors.APIConnectionError as e:
        if client.vault.proven or client.vault.advice is None:
            raise
        raise errors.APIConnectionError(f"{e}. {client.vault.advice}") from e


async def _retry(
        fn: Callable[[], Awaitable[_T]],
        streak: streaks.Streak,
        *,
        raising: tuple[type[errors.APIError], ...] = (),
) -> _T:
    """
    Retry the function on errors of the API until it succeeds, except for the ``raising`` ones.
    """
    while True:
        try:
            result = await fn()
        except raising:
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
    """
    Watch until cancelled.

    While the watch is forbidden, the warning is logged once, ``forbidden`` is called, and the watch
    is tried again with growing pauses.
    """
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
    """Iterate over the pauses (seconds) before each next try of a forbidden watch, endlessly."""
    yield from FORBIDDEN_PAUSES
    yield from itertools.repeat(FORBIDDEN_PAUSES[-1])


@dataclasses.dataclass(eq=False)
class _NamespaceSink(watching.Sink):
    """Keeps the names of the existing namespaces that match the patterns."""

    _insights: Insights
    _patterns: Collection[references.NamespacePattern]
    _logger: logging.Logger
    _reported: bool = False
    _names: set[references.Namespace] = dataclasses.field(default_factory=set)

    async def fill(self, client: api.Client, settings: configuration.OperatorSettings) -> None:
        """List the namespaces once, without a watch."""
        self.list_started(restored=False)
        async for page in listing.list_objects(
            client, resource=NAMESPACES, namespace=None, settings=settings, retry=False,
            metadata_only=True, skip=lambda body, _: self.skipped(None, body),
        ):
            if page.restarted:
                self.list_started(restored=False)
            for body in page.items:
                self.listed(body)
        self.list_ended()

    def list_started(self, *, restored: bool) -> None:
        self._names = set()

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        name = references.NamespaceName(body['metadata']['name'])
        if any(references.match_namespace(name, pattern) for pattern in self._patterns):
            self._names.add(name)

    def list_ended(self) -> None:
        absent = self._patterns if not self._names else (
            set(references.select_specific_namespaces(self._patterns)) - self._names)
        if absent and not self._reported:
            self._logger.warning(
                f"No such namespace: {', '.join(sorted(map(str, absent)))}. It will be served as "
                f"soon as it is created. To see what there is: kubectl get namespaces")
        self._reported = True
        self._insights.set_namespaces(self._names)

    def skipped(self, type: screening.EventType | None, body: bodies.RawBody) -> None:
        if type is None and body['metadata']['name']:  # only the name matters
            self.listed(body)

    def changed(self, type: screening.EventType, body: bodies.RawBody, packed: bytes) -> None:
        if type == 'DELETED':
            self._names.discard(references.NamespaceName(body['metadata']['name']))
        else:
            self.listed(body)
        self._insights.set_namespaces(self._names)
