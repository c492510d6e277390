"""
Progress of the first lists: how many objects have arrived, logged from time to time.
"""
import asyncio
import collections
import logging
from collections.abc import Hashable

from kopf._core.reactor import informers

INTERVALS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""The delays (seconds) between the log messages. The last delay is repeated."""


class Listings:
    """The first lists of all watches. Lists shorter than the first delay are not logged."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._observed: dict[Hashable, tuple[str, informers.Informer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._logged = 0

    def observe(self, key: Hashable, title: str, listed: informers.Informer) -> None:
        """Log the progress of the list, if it is a first one, under the title of its resource."""
        self._observed[key] = title, listed
        if self._timer is None:
            self._logged = 0
            self._set_timer()

    def forget(self, key: Hashable) -> None:
        self._observed.pop(key, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        interval = INTERVALS[min(self._logged, len(INTERVALS) - 1)]
        self._timer = asyncio.get_running_loop().call_later(interval, self._log)

    def _log(self) -> None:
        self._timer = None
        self._observed = {
            key: (title, listed) for key, (title, listed) in self._observed.items()
            if listed.listing is not None}
        counts: collections.Counter[str] = collections.Counter()
        for title, listed in self._observed.values():
            counts[title] += listed.listing or 0
        if shown := [f"{count} {title}" for title, count in counts.items() if count]:
            self._logger.info(f"Listing is in progress: {', '.join(shown)} so far.")
        if self._observed:
            self._logged += 1
            self._set_timer()
