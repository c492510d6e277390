"""
The guarantees of admission: who writes while which webhooks are configured, and what comes of it.
"""
from typing import Any

from kopf._kits.sandbox.statuses import APIError
from kopf._kits.sandbox.webhookcalls import MUTATING, VALIDATING
from tests.simulation.guarantees import Violation
from tests.simulation.plans import RETURNING
from tests.simulation.specimens import MANAGED, REFUSAL, is_bad


class Admissions:
    """Hears of all configurations and requests, and raises `Violation`."""

    def __init__(self, features: frozenset[str]) -> None:
        self._ignores = 'ignoring' in features
        self._persists = 'persistent' in features
        self._configured: dict[Any, tuple[bool, Any, float]] = {}
        """For each configuration: whether it has webhooks, who has written it, and when."""
        self._refused: set[int] = set()
        self._tried: set[int] = set()
        """The numbers of the dry runs."""

    # What happens.

    def configure(self, resource: tuple[str, str], raw: Any, writer: Any, now: float) -> None:
        self._configured[resource] = bool(raw.get('webhooks')), writer, now

    def try_out(self, n: int) -> None:
        """Note that this number is only used in a dry run."""
        self._tried.add(n)

    def review(self, n: int, *, is_dry: bool) -> None:
        """Note a call of a handler."""
        if is_dry != (n in self._tried):
            raise Violation('dry runs', f"n={n} is reviewed as {'a' if is_dry else 'no'} dry run")

    def store(self, new: Any) -> None:
        n = new['spec'].get('n')
        if n in self._refused or n in self._tried:
            raise Violation('refusals', f"n={n} is stored")

    def accept(self, result: Any, life: Any, began: float, *, n: int | None) -> None:
        """Take the result of a request of others; ``n`` is the number that it has set, if any."""
        if self._must_call(MUTATING, life, began) and (
                result['spec'].get('stamp') != result['spec']['n']):
            raise Violation('mutations', f"n={result['spec']['n']} is accepted as it was sent")
        if n is None or n in RETURNING:
            return  # the object can have had it already, and only changes are refused
        if is_bad(n) and self._must_call(VALIDATING, life, began):
            raise Violation('refusals', f"n={n} is accepted")

    def refuse(self, error: APIError, life: Any, began: float, *, n: int | None) -> None:
        """Take the error of a request of others."""
        if 'failed calling webhook' in error.message:
            if self._ignores or error.code != 500 or self.is_served(life, began):
                raise Violation('webhooks work', f"n={n} is refused: {error.code}")
        elif 'denied the request' in error.message:
            if n is None or not is_bad(n) or REFUSAL not in error.message:
                raise Violation('webhooks work', f"n={n} is refused: {error.message}")
            if n not in RETURNING:  # others can have set it when nobody refused it
                self._refused.add(n)

    # What must hold.

    def is_served(self, life: Any, since: float) -> bool:
        """Whether the process has served all webhooks for the whole time since then."""
        return (
            life is not None and life.working and life.cut_until <= since
            and all(self._has(resource, since) and self._configured[resource][1] is life
                    for resource in (MUTATING, VALIDATING)))

    def can_refuse(self, life: Any) -> bool:
        """Whether writes of the process can fail, as the webhooks of an earlier one are gone."""
        return not self._ignores and any(
            has_webhooks and writer is not life
            for has_webhooks, writer, _ in self._configured.values())

    def check_left(self, life: Any) -> None:
        """Check that a process that has left keeps the persistent webhooks only."""
        for (_, plural), (has_webhooks, writer, _) in self._configured.items():
            if writer is life and has_webhooks != self._persists:
                what = 'are removed from' if self._persists else 'are left in'
                raise Violation('webhooks at exit', f"they {what} {plural} {MANAGED}")

    def _must_call(self, resource: tuple[str, str], life: Any, since: float) -> bool:
        return self._has(resource, since) and (not self._ignores or self.is_served(life, since))

    def _has(self, resource: tuple[str, str], since: float) -> bool:
        """Whether there have been webhooks since before that time, always the same."""
        has_webhooks, _, at = self._configured.get(resource, (False, None, 0.0))
        return has_webhooks and at < since
