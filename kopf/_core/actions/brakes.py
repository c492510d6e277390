"""
Brakes: budgets for what a wrong version of an operator would do to very many objects at once.

A budget is for one `Risk` and one resource: a number in a minute, or a share of the objects, if
that is more. What exceeds the budget is logged as a warning. With ``settings.brakes.stop``, it is
refused, until somebody releases the objects for which it is done, or until nothing has exceeded the
budget for a while.
"""
import collections
import dataclasses
import datetime
import enum
from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references
from kopf._core.intents import pauses

PERIOD = 60.0
"""The time (seconds) for which a budget is given."""

MEMORY = 3600.0
"""
After how long (seconds) without an excess the budget is available again. It is longer than the
longest delay between two attempts of a reconciling handler.
"""

ANNOTATION = 'kopf.dev/brakes-released-until'
"""Until when the brakes let pass all that is done for an object: a time in ISO 8601."""


class Risk(enum.Enum):
    """What is counted, in words."""
    DELETION = "deletions of {0}"
    RELEASE = "finalizers removed from living {0}"
    RESTART = "changed pod templates of {0}"
    REPLACEMENT = "replacements in external systems for {0}"


@dataclasses.dataclass(slots=True)
class _Tally:
    """When something was taken from a budget, in monotonic times."""
    taken: dict[str, tuple[float, float]] = dataclasses.field(
        default_factory=collections.OrderedDict)
    """
    By the uids of the objects, also with how many objects there were: further attempts for an
    object are the same step.
    """
    exceeded: float = float('-inf')
    """When the budget was exceeded for the last time."""
    excesses: int = 0

    def expire(self, now: float) -> None:
        while self.taken and self.taken[first := next(iter(self.taken))][0] <= now - PERIOD:
            del self.taken[first]

    def count(self, total: float) -> float:
        """Count the objects before the first step of the period; at least the ``total`` of now."""
        return max(total, next(iter(self.taken.values()), (0.0, 0.0))[1])

    def exceed(self, now: float) -> bool:
        """Note that the budget is exceeded; return whether that is news."""
        before, self.exceeded = self.exceeded, now
        self.excesses += 1
        return before <= now - MEMORY


class Brakes:
    """The budgets of one operator."""

    def __init__(
            self,
            settings: configuration.BrakesSettings,
            *,
            get_share: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """``get_share`` tells which part of all objects this replica handles."""
        self.get_share = get_share
        self._settings = settings
        self._tallies = collections.defaultdict[tuple[Risk, references.Resource], _Tally](_Tally)

    def take(
            self, risk: Risk, resource: references.Resource, uid: str, *,
            total: float, parent: bodies.RawBody, owner: references.Resource, now: clocks.Moment,
            logger: Any,
    ) -> str | None:
        """
        Take one from the budget, or say why it is refused.

        ``uid`` is of the object that changes, and ``total`` is how many objects of the resource
        this replica has. ``parent`` is the object, of the resource ``owner``, for which this is
        done. Its ``logger`` logs only what is news.
        """
        tally = self._tallies[risk, resource]
        tally.expire(now.mono)
        budget = self._get_budget(risk, tally.count(total))
        if budget is None or uid in tally.taken:
            return None
        is_stopping = self._settings.stop and not self._settings.released
        is_over = len(tally.taken) >= budget or (is_stopping and tally.exceeded > now.mono - MEMORY)
        if is_over and not is_released(parent, now=now.wall):
            name = '.'.join(filter(None, (resource.plural, resource.group)))
            text = (f"{risk.value.format(name)} are more than {budget} in a minute, which is the "
                    f"budget of settings.brakes.")
            if is_stopping:
                text += f" If that is right: kopf brakes release {owner.plural} -A --selector=''"
            if tally.exceed(now.mono):
                log, found = (logger.error, "Stopped") if is_stopping else (logger.warning, "Found")
                log(f"{found}: {text}")
            if is_stopping:
                return text
        tally.taken[uid] = now.mono, total
        return None

    @property
    def excesses(self) -> Mapping[tuple[Risk, references.Resource], int]:
        """How often there was more than the budget allows."""
        return {key: tally.excesses for key, tally in self._tallies.items()}

    def counts(self, risk: Risk) -> bool:
        return self._get_budget(risk, 0) is not None

    def _get_budget(self, risk: Risk, total: float) -> int | None:
        settings = self._settings
        minimum, share = (1, settings.restarts) if risk is Risk.RESTART else (
            settings.deletions, settings.share)
        return None if minimum is None or share is None else int(
            max(minimum * self.get_share(), share * total, min(minimum, 1)))


def is_released(raw: bodies.RawBody, *, now: datetime.datetime) -> bool:
    """Whether the brakes let pass all that is done for this object now."""
    until = (raw['metadata'].get('annotations') or {}).get(ANNOTATION)
    try:
        return until is not None and now < pauses.parse_time(until)
    except ValueError:
        return False


NO_BRAKES = Brakes(configuration.BrakesSettings(deletions=None))
"""Without budgets."""
