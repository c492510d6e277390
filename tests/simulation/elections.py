"""
The election of a leader by a Lease, and of the holders of shards, as the simulation hears of it.
"""
import collections
from typing import Any

from kopf._core.engines.sharding import hashing
from tests.simulation.guarantees import Violation

LEASE = 'simulation'
LEASES = ('coordination.k8s.io', 'leases')


class Elections:
    """Hears of all Leases, calls, and writes, and raises `Violation`."""

    def __init__(self) -> None:
        self.leader: str | None = None
        """The holder of the Lease, by its name; None if it is released."""
        self._has_begun = False

    def hold(self, lease: Any) -> bool:
        """Take a new state of the Lease; return whether the leader is another one now."""
        holder = lease['spec'].get('holderIdentity') or None
        is_other = holder is not None and holder != self.leader
        if is_other:
            self._has_begun = False
        self.leader = holder or self.leader
        return is_other

    def act(self, name: str, what: str) -> None:
        """Note an act of a replica: after the first act of a leader, the others do nothing."""
        if name == self.leader:
            self._has_begun = True
        elif self._has_begun:
            raise Violation('one leader', f"{name} {what} in the term of {self.leader}")


class Shards:
    """Hears of the Leases of shards, and of calls and writes for objects; raises `Violation`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._elections: collections.defaultdict[int, Elections] = (
            collections.defaultdict(Elections))
        self._since: dict[int, float] = {}

    def hold(self, lease: Any, now: float) -> str | None:
        """
        Take a new state of a Lease; return who has got a shard by it, if anybody has.

        Such Leases are only written when the shards change hands.
        """
        shard = get_shard(lease)
        if shard is None:
            return None
        holder = (lease['spec'].get('holderIdentity') or '').rpartition('/')[0]
        self._elections[shard].hold({'spec': {'holderIdentity': holder}})
        if not holder:
            return None
        self._since[shard] = now
        return holder

    def forget(self, lease: Any) -> None:
        """Take the deletion of a Lease: its holder notices that later."""
        shard = get_shard(lease)
        if shard is not None:
            self._elections.pop(shard, None)

    def act(self, name: str, uid: str, what: str) -> None:
        self._elections[self.find(uid)].act(name, what)

    def find(self, uid: str) -> int:
        return hashing.find_shard_of_uid(uid, self._count)

    def find_holder(self, uid: str) -> str | None:
        return self._elections[self.find(uid)].leader

    def get_since(self, uid: str) -> float:
        """Since when the present holder of the object has its shard."""
        return self._since.get(self.find(uid), 0.0)


def get_shard(lease: Any) -> int | None:
    """The number of the shard whose Lease it is, if any."""
    _, is_one, number = lease['metadata']['name'].rpartition('-shard-')
    return int(number) if is_one else None
