"""
The election of a leader by a Lease, as the simulation hears of it.
"""
from typing import Any

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
