"""
Progress of the first lists, and of filling the indices: how many objects have arrived.

It is logged from time to time.
"""
import asyncio
import collections
import logging
from collections.abc import Hashable, Iterable
from typing import Protocol

from kopf._cogs.aiokits import alarms

INTERVALS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""The delays (seconds) between the log messages. The last delay is repeated."""


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
        self._alarm = alarms.Alarm(self._report)
        self._logged = 0

    def observe(self, key: Hashable, title: str, listed: Listed) -> None:
        """Report the progress of the list, if it is a first one, under this title."""
        if not self._observed:
            self._logged = 0
        self._observed[key] = title, listed
        self._set_alarm()

    def forget(self, key: Hashable) -> None:
        self._observed.pop(key, None)

    def close(self) -> None:
        self._alarm.cancel()

    def _set_alarm(self) -> None:
        interval = INTERVALS[min(self._logged, len(INTERVALS) - 1)]
        self._alarm.set(asyncio.get_running_loop().time() + interval)

    def _report(self, _: float) -> None:
        self._observed = {
            key: (title, listed) for key, (title, listed) in self._observed.items()
            if listed.listing is not None or listed.filling is not None}
        lists, indices = list[_Count](), list[_Count]()
        for title, listed in self._observed.values():
            if listed.listing is not None:
                lists.append((title, listed.listing, listed.expected))
            elif listed.filling is not None:
                indices.append((title, *listed.filling))
        if text := _sum_up(lists):
            self._logger.info(f"Listing is in progress: {text} so far.")
        if text := _sum_up(indices):
            self._logger.info(f"Filling of the indices is in progress: {text}.")
        if self._observed:
            self._logged += 1
            self._set_alarm()


_Count = tuple[str, int, int | None]
"""A title, how many objects are done, and of how many; the latter can be unknown."""


def _sum_up(counts: Iterable[_Count]) -> str:
    """Sum up the counts by titles, without those that have not begun."""
    done = collections.Counter[str]()
    total: dict[str, int | None] = {}
    for title, number, expected in counts:
        done[title] += number
        known = total.get(title, 0)
        total[title] = None if expected is None or known is None else known + expected
    texts: list[str] = []
    for title, expected in total.items():
        if expected is not None and (done[title] or expected):
            texts.append(f"{done[title]} of {max(done[title], expected)} {title}")
        elif done[title]:
            texts.append(f"{done[title]} {title}")
    return ', '.join(texts)
