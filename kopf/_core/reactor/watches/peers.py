"""
Peering watches: each follows the peering objects of one resource in one namespace.
"""
import asyncio
import itertools
import logging
from collections.abc import Callable, Set

from kopf._cogs.aiokits import pulses
from kopf._cogs.clients import api, errors, listing, screening, watching
from kopf._cogs.cluster import discovery
from kopf._cogs.structs import bodies, references
from kopf._core.engines.peering import memberships

logger = logging.getLogger('kopf._core.engines.peering')

Standing = memberships.Standing

DOUBTS = (1.0, 1.0, 1.0)
"""
Pauses (seconds) before the next attempt if the watch is forbidden at the start.

It can be forbidden for a moment only. If the operator began to work alone at once, it would work
beside the others.
"""


class PeeringWatch(watching.Sink):
    """
    The watch of the peering objects of one resource, and the memberships in these objects.

    The watch is for one namespace, or for the whole cluster if the operator is cluster-wide.
    """

    def __init__(
            self,
            resource: references.Resource,
            namespace: references.Namespace,
            *,
            client: api.Client,
            join: Callable[[references.Namespace, Standing], memberships.Membership],
            on_synced: Callable[[], None],
    ) -> None:
        """
        ``join`` makes the memberships. ``on_synced`` is called when all first ones are known.
        """
        self.namespace = namespace
        self.memberships: dict[references.Namespace, memberships.Membership] = {}
        self._resource = resource
        self._name = client.settings.peering.name
        self._client = client
        self._join = join
        self._on_synced = on_synced
        self._listed: set[references.Namespace] = set()
        self._synced = False
        self._restored = False
        self._warned = False

    @property
    def standings(self) -> Set[Standing]:
        """The states of all memberships, of which more can come until the first list has ended."""
        known = {item.standing for item in self.memberships.values()}
        return known or {Standing.ABSENT} if self._synced else known | {Standing.UNKNOWN}

    async def leave(self, deadline: float, *, is_released: bool = True) -> None:
        await asyncio.gather(*(
            item.leave(deadline, is_released=is_released) for item in self.memberships.values()))

    def list_started(self, *, restored: bool) -> None:
        self._listed = set()
        self._restored = restored

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        if body['metadata']['name'] == self._name:
            self._listed.add(self._get_place(body))
            self._enter(body).see(body, live=False, restored=self._restored)

    def list_ended(self) -> None:
        self._warned = False
        self._set_synced()
        for place, membership in self.memberships.items():
            if place not in self._listed:
                membership.miss()

    def changed(self, type: screening.EventType, body: bodies.RawBody, packed: bytes) -> None:
        if body['metadata']['name'] == self._name:
            if type != 'DELETED':
                self._enter(body).see(body, live=True)
            elif self._get_place(body) in self.memberships:
                self.memberships[self._get_place(body)].miss()

    def skipped(self, type: screening.EventType | None, body: bodies.RawBody) -> None:
        # The object is nested too deeply to be parsed in full. The records of operators are not
        # that deep: the parsed part of the body has them. Of a damaged object, nothing is parsed.
        if 'status' not in body and type != 'DELETED':
            self._listed.add(self._get_place(body))
        elif type is None:
            self.listed(body)
        else:
            self.changed(type, body, b'')

    def _get_place(self, body: bodies.RawBody) -> references.Namespace:
        namespace = body['metadata'].get('namespace')
        return references.NamespaceName(namespace) if (
            self._resource.namespaced and namespace is not None) else None

    def _enter(self, body: bodies.RawBody) -> memberships.Membership:
        place = self._get_place(body)
        if place not in self.memberships:
            self.memberships[place] = self._join(
                place, Standing.ABSENT if self._synced else Standing.UNKNOWN)
        return self.memberships[place]

    def _set_synced(self) -> None:
        if not self._synced:
            self._synced = True
            self._on_synced()

    def _warn_of_rights(self) -> None:
        """Warn once that the watch is forbidden; the memberships go on with their renewals."""
        if not self._warned:
            self._warned = True
            where = '' if self.namespace is None else f' in {self.namespace!r}'
            effect = "are noticed late" if self._synced else "cannot be known"
            logger.warning(f"There is no permission to list and watch {self._resource}{where}: "
                           f"other operators {effect}.")

    async def watch(self, *, pulse: pulses.Pulse) -> None:
        """Watch until cancelled; while the watch is forbidden, try again with growing pauses."""
        settings = listing.select_only(self._client.settings, fields=f'metadata.name={self._name}')
        pauses = itertools.chain(DOUBTS, discovery.iter_forbidden_pauses())
        for refusals, pause in enumerate(pauses, start=1):
            try:
                await watching.watch(
                    self._client, settings=settings, resource=self._resource,
                    namespace=self.namespace, sink=self, logger=logger, pulse=pulse,
                    raising=(errors.APIForbiddenError,))
            except errors.APIForbiddenError:
                if self._synced or refusals > len(DOUBTS):
                    self._warn_of_rights()
                    self._set_synced()
            await asyncio.sleep(pause)
