"""
Tracking of the CRDs: which groups are to be asked about again, and when.
"""
import asyncio
from collections.abc import Collection, Iterable
from typing import Literal

from kopf._cogs.clients import watching
from kopf._cogs.structs import bodies, references

SETTLING = (0.1, 0.4, 1.5, 8.0)
"""Pauses before each time that the API is asked about a group after its CRDs have changed."""

UNSETTLED_MAX = 120.0
"""The longest pause before it is asked again, as long as it does not agree with the CRDs."""

PRECISION = 0.001
"""How much earlier than planned is early enough, in seconds: timers are not more precise."""


class Tracker(watching.Sink):
    """
    A sink of CRDs, of which only the metadata are needed: their names are ``plural.group``.

    Groups are in doubt for some time after any change of their CRDs, and as long as their resources
    do not agree with their CRDs. `take` gives the groups whose time has come, `proceed` is to be
    called after they were asked about.
    """

    def __init__(self, *, groups: Collection[str] | None = None) -> None:
        super().__init__()
        self.filled = asyncio.Event()
        self._groups = groups
        self._versions: dict[str, str] = {}  # by the names of CRDs
        self._listed: dict[str, str] = {}
        self._gone: set[str] = set()
        self._plans: dict[str, tuple[float, int]] = {}  # by groups: when, after how many times
        self._taken: dict[str, int] = {}
        self._changed = asyncio.Event()

    def begin(self, *, restored: bool) -> None:
        self._listed = {}

    def listed(self, body: bodies.RawBody) -> None:
        self._listed[body['metadata']['name']] = body['metadata'].get('resourceVersion', '')

    def end(self) -> None:
        known, self._versions = self._versions, self._listed
        self._gone = (self._gone | known.keys()) - self._versions.keys()
        if self.filled.is_set():
            self.doubt({
                _get_group(name) for name in known.keys() | self._versions.keys()
                if known.get(name) != self._versions.get(name)
            })
        self.filled.set()

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes,
    ) -> None:
        name = body['metadata']['name']
        if type == 'DELETED':
            self._versions.pop(name, None)
            self._gone.add(name)
        else:
            self._versions[name] = body['metadata'].get('resourceVersion', '')
            self._gone.discard(name)
        self.doubt({_get_group(name)})

    def doubt(self, groups: Iterable[str]) -> None:
        """Ask about these groups soon, and a few times more."""
        for group in groups:
            if self._groups is None or group in self._groups:
                self._taken.pop(group, None)
                self._plan(group, 0, SETTLING[0])

    def compare(self, resources: Iterable[references.Resource]) -> None:
        """Doubt the groups whose resources do not agree with the CRDs."""
        self.doubt(self.find_unsettled(resources))

    def find_unsettled(self, resources: Iterable[references.Resource]) -> set[str]:
        """Find the groups whose resources do not agree with the CRDs."""
        served = {f'{resource.plural}.{resource.group}' for resource in resources}
        return {_get_group(name) for name in (self._versions.keys() - served)} | {
            _get_group(name) for name in (self._gone & served)
        }

    async def take(self) -> set[str]:
        """Wait for groups whose time has come."""
        now = asyncio.get_running_loop().time
        while True:
            soon = now() + PRECISION
            groups = {group for group, (due, _) in self._plans.items() if due <= soon}
            for group in groups:
                _, self._taken[group] = self._plans.pop(group)
            if groups:
                return groups
            self._changed.clear()
            try:
                earliest = min((due for due, _ in self._plans.values()), default=None)
                async with asyncio.timeout_at(earliest):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def proceed(self, groups: Collection[str], *, unsettled: Collection[str]) -> None:
        """Plan when to ask again about the groups, unless they are newly in doubt anyway."""
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
