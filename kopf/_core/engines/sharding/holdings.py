"""
Holdings: the shards of this replica, as the thread that keeps the Leases shows them to others.
"""
import asyncio
import dataclasses
from collections.abc import Collection, Mapping

from kopf._cogs.aiokits import tenures


@dataclasses.dataclass(frozen=True, eq=False)
class Grant:
    """A shard from its acquisition to its loss or release. Each acquisition makes a new grant."""
    shard: int
    term: int
    """The term of the membership in which the shard was acquired."""


class Holdings:
    """
    The shards that this replica holds: none outside of the terms of its membership.

    Only the thread that keeps the Leases calls the methods that change them. Other threads can ask
    at any time: the answer depends on the clock, so it is right even if that thread is late.
    """

    def __init__(self, tenure: tenures.Tenure) -> None:
        self.tenure = tenure
        self.leaving: frozenset[int] = frozenset()
        """The shards to release as soon as the work for their objects has ended."""
        self.surrendered: asyncio.Queue[Grant] = asyncio.Queue()
        """The shards to give away: all work for their objects has ended."""
        self.is_settled = False
        """Whether this replica has taken its first share."""
        self._grants: Mapping[int, Grant] = {}  # replaced as a whole: it is read without locks

    @property
    def grants(self) -> Mapping[int, Grant]:
        """The valid grants by their shards."""
        term = self.tenure.term
        return {shard: grant for shard, grant in self._grants.items() if grant.term == term}

    def covers(self, grant: Grant) -> bool:
        """Whether the grant is valid now, by the clock."""
        return self._grants.get(grant.shard) is grant and self.tenure.term == grant.term

    def settle(self) -> None:
        self.is_settled = True

    def add(self, grant: Grant) -> None:
        self._grants = {**self._grants, grant.shard: grant}

    def leave(self, shards: Collection[int]) -> None:
        """Begin to release these shards."""
        self.leaving |= frozenset(shards)

    def remove(self, shards: Collection[int]) -> None:
        """Note that these shards are not held any more."""
        self._grants = {
            shard: grant for shard, grant in self._grants.items() if shard not in shards}
        self.leaving -= frozenset(shards)

    def clear(self) -> None:
        self._grants, self.leaving = {}, frozenset()
