"""
Progress of the first lists, and of filling the indices: how many objects have arrived.

On a terminal, it is a line below the log, which changes all the time. Elsewhere, it is logged from
time to time.
"""
import asyncio
import collections
import logging
from collections.abc import Hashable
from typing import Protocol

from kopf._cogs.aiokits import alarms
from kopf._core.actions import loggers

INTERVALS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""The delays (seconds) between the log messages. The last delay is repeated."""

PATIENCE = 0.5
"""How long (seconds) nothing is shown on a terminal: most lists are quicker."""

REFRESH = 0.2
"""How often (seconds) the line on a terminal is updated."""

BAR = 24
"""The length of the bar on a terminal, in characters."""


class Listed(Protocol):
    """What takes the objects of a watch, and counts them."""

    @property
    def listing(self) -> int | None:
        """How many objects of the first list have come so far; None when the list has ended."""

    @property
    def expected(self) -> int | None:
        """About how many objects the first list has; None if the API server has not said."""

    @property
    def filling(self) -> tuple[int, int] | None:
        """How many objects are indexed, and of how many; None if the indices are filled."""


class ListProgress:
    """The progress of all first lists. Lists shorter than the first delay are not reported."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._observed: dict[Hashable, tuple[str, Listed]] = {}
        self._alarm = alarms.Alarm(lambda _: self._report())
        self._logged = 0

    def observe(self, key: Hashable, title: str, listed: Listed) -> None:
        """Report the progress of the list, if it is a first one, under this title."""
        if not self._observed:
            self._logged = 0
            self._set_alarm(PATIENCE)
        self._observed[key] = title, listed

    def forget(self, key: Hashable) -> None:
        self._observed.pop(key, None)

    def close(self) -> None:
        self._alarm.cancel()
        if (terminal := loggers.find_terminal()) is not None:
            terminal.show_status('')

    def _set_alarm(self, on_terminal: float) -> None:
        interval = on_terminal if loggers.find_terminal() is not None else (
            INTERVALS[min(self._logged, len(INTERVALS) - 1)])
        self._alarm.set(asyncio.get_running_loop().time() + interval)

    def _report(self) -> None:
        self._observed = {
            key: (title, listed) for key, (title, listed) in self._observed.items()
            if listed.listing is not None or listed.filling is not None}
        lists, indices = self._collect()
        terminal = loggers.find_terminal()
        if terminal is not None:
            terminal.show_status('  '.join([
                *(f"Listing {shown.draw(title)}" for title, shown in lists.items()),
                *(f"Indexing {shown.draw(title)}" for title, shown in indices.items())]))
        else:
            if lists:
                self._logger.info(f"Listing is in progress: {_join(lists)} so far.")
            if indices:
                self._logger.info(f"Filling of the indices is in progress: {_join(indices)}.")
        if self._observed:
            self._logged += 1
            self._set_alarm(REFRESH)

    def _collect(self) -> tuple['dict[str, _Count]', 'dict[str, _Count]']:
        """Sum up the lists and the indices by titles, without those that have not begun."""
        lists: dict[str, _Count] = collections.defaultdict(_Count)
        indices: dict[str, _Count] = collections.defaultdict(_Count)
        for title, listed in self._observed.values():
            if listed.listing is not None:
                lists[title].add(listed.listing, listed.expected)
            elif listed.filling is not None:
                indices[title].add(*listed.filling)
        return ({title: count for title, count in lists.items() if count.done},
                {title: count for title, count in indices.items() if count.total})


class _Count:
    """How many objects are done, and of how many; the latter can be unknown."""

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = 0

    def add(self, done: int, total: int | None) -> None:
        self.done += done
        self.total = None if total is None or self.total is None else self.total + total

    def describe(self, title: str) -> str:
        return f"{self.done} {title}" if self.total is None else (
            f"{self.done} of {max(self.done, self.total)} {title}")

    def draw(self, title: str) -> str:
        if not self.total:
            return self.describe(title)
        share = min(1.0, self.done / self.total)
        bar = ('█' * int(share * BAR)).ljust(BAR, '░')
        return f"{title} {bar} {share:.0%}, {self.done} of {max(self.done, self.total)}"


def _join(counts: 'dict[str, _Count]') -> str:
    return ', '.join(count.describe(title) for title, count in counts.items())
