"""
Shrinking: the smallest plan that still violates the same guarantee.
"""
import dataclasses
from collections.abc import Callable, Iterator

from tests.simulation.plans import Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, limit: int = 150) -> Plan:
    """Simplify the plan as long as it fails, with at most so many attempts."""
    attempts = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in iter_simpler(plan):
            attempts += 1
            if attempts > limit:
                return plan
            if fails(candidate):
                plan, is_smaller = candidate, True
                break
    return plan


def iter_simpler(plan: Plan) -> Iterator[Plan]:
    """Simpler plans, beginning with the simplest ones."""
    count = len(plan.steps)
    size = count // 2
    while size:
        for start in range(0, count, size):
            numbers = [i for i in range(count) if not start <= i < start + size]
            yield plan.keep(numbers)
        size //= 2
    if len(plan.features) > 1:
        for feature in sorted(plan.features):
            yield dataclasses.replace(plan, features=plan.features - {feature})
    if plan.lag:
        yield dataclasses.replace(plan, lag=0.0)
    if plan.disorder:
        yield dataclasses.replace(plan, disorder=0.0)
    if plan.latency[1]:
        yield dataclasses.replace(plan, latency=(0.0, 0.0))
