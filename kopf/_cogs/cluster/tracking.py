"""
Tracking of CRDs: for which API groups `discovery` repeats the discovery, and when.
"""
import asyncio
from collections.abc import Collection, Iterable

from kopf._cogs.aiokits import clocks, timeouts
from kopf._cogs.clients import screening, watching
from kopf._cogs.structs import bodies, references

SETTLING = (0.1, 0.4, 1.5, 8.0)
"""
Pauses (seconds) before each discovery of a group after its CRDs have changed.

The API server serves a new or changed CRD only after some delay, usually below a second.
"""

UNSETTLED_MAX = 120.0
"""
The longest pause (seconds) between the discoveries of a group that disagrees with its CRDs.

The pauses grow exponentially up to this one.
"""

class Tracker(watching.Sink):
    """
    Takes the CRDs from their watch, and plans the discoveries of the groups that are in doubt.

    A group is in doubt for some time after any change of its CRDs (see `SETTLING`), and as long as
    its discovered resources disagree with its CRDs: e.g. a CRD exists but is not served yet.

    The metadata of the CRDs are enough: Kubernetes requires their names to be ``plural.group``.

    Usage: `take` the groups whose discovery is due; discover them; then, `proceed`.
    """

    def __init__(self, *, groups: Collection[str] | None = None) -> None:
        super().__init__()
        self.filled = asyncio.Event()
        self._groups = groups
        self._versions: dict[str, str] = {}
        """The resource versions of the existing CRDs, by the names of the CRDs."""
        self._listed: dict[str, str] = {}
        self._gone: set[str] = set()
        """The names of deleted CRDs whose resources may be served yet."""
        self._plans: dict[str, tuple[float, int]] = {}
        """
        By groups: when the discovery is due, and how many of them there were since the change.
        """
        self._taken: dict[str, int] = {}
        """By groups under discovery: how many discoveries there were before."""
        self._changed = asyncio.Event()
        self.deletions = 0
        """How many CRDs were deleted so far. A later one of the same name has lost its changes."""

    def list_started(self, *, restored: bool) -> None:
        self._listed = {}

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        self._listed[body['metadata']['name']] = body['metadata'].get('resourceVersion', '')

    def list_ended(self) -> None:
        known, self._versions = self._versions, self._listed
        self._gone = (self._gone | known.keys()) - self._versions.keys()
        if self.filled.is_set():
            self.doubt({
                _get_group(name) for name in known.keys() | self._versions.keys()
                if known.get(name) != self._versions.get(name)
            })
        self.filled.set()

    def changed(self, type: screening.EventType, body: bodies.RawBody, packed: bytes) -> None:
        name = body['metadata']['name']
        if type == 'DELETED':
            self._versions.pop(name, None)
            self._gone.add(name)
            self.deletions += 1
        else:
            self._versions[name] = body['metadata'].get('resourceVersion', '')
            self._gone.discard(name)
        self.doubt({_get_group(name)})

    def doubt(self, groups: Iterable[str]) -> None:
        """Plan the discovery of these groups: soon, and a few times more (see `SETTLING`)."""
        for group in groups:
            if self._groups is None or group in self._groups:
                self._taken.pop(group, None)
                self._plan(group, 0, SETTLING[0])

    def find_unsettled(self, resources: Iterable[references.Resource]) -> set[str]:
        """
        Find the groups whose resources disagree with the CRDs.

        Either a CRD exists but its resource is not served, or a CRD is gone but its resource is
        served.
        """
        served = {f'{resource.plural}.{resource.group}' for resource in resources}
        return {_get_group(name) for name in (self._versions.keys() - served)} | {
            _get_group(name) for name in (self._gone & served)
        }

    def is_settling(self, resource: references.Resource) -> bool:
        """
        Whether the resource can be not served only for a moment, during a discovery of its group.

        Its CRD exists, as far as known, and the group is in doubt for a short time only.
        """
        step = self._taken.get(resource.group, 0)
        return f'{resource.plural}.{resource.group}' in self._versions and step + 1 < len(SETTLING)

    def is_deleted(self, resource: references.Resource) -> bool:
        """Whether the CRD of the resource was deleted recently."""
        return f'{resource.plural}.{resource.group}' in self._gone

    async def take(self) -> set[str]:
        """Wait until the discovery of some groups is due, and return these groups."""
        now = asyncio.get_running_loop().time
        while True:
            soon = now() + clocks.PRECISION
            groups = {group for group, (due, _) in self._plans.items() if due <= soon}
            for group in groups:
                _, self._taken[group] = self._plans.pop(group)
            if groups:
                return groups
            self._changed.clear()
            earliest = min((due for due, _ in self._plans.values()), default=None)
            await timeouts.wait(self._changed, None if earliest is None else earliest - now())

    def proceed(self, groups: Collection[str], *, unsettled: Collection[str]) -> None:
        """
        Plan the next discovery of the groups after `take`, if they need one.

        ``unsettled`` are those groups whose discovery has failed or disagrees with the CRDs. Groups
        that came in doubt again in the meantime already have a newer plan.
        """
        for group in groups:
            step = self._taken.pop(group, None)
            if step is None:
                continue
            step += 1
            if step < len(SETTLING):
                self._plan(group, step, SETTLING[step])
            elif group in unsettled:
                more = min(step - len(SETTLING) + 1, 10)
                self._plan(group, step, min(UNSETTLED_MAX, SETTLING[-1] * 2 ** more))
            else:
                self._gone = {name for name in self._gone if _get_group(name) != group}

    def _plan(self, group: str, step: int, pause: float) -> None:
        due = asyncio.get_running_loop().time() + pause
        if group in self._plans:
            due = min(due, self._plans[group][0])
        self._plans[group] = due, step
        self._changed.set()


def _get_group(name: str) -> str:
    return name.partition('.')[-1]
