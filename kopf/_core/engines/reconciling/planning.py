"""
Plans: what to write so that the children are as they should be. All functions are pure.
"""
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kopf._core.engines.reconciling.children import Child
from kopf._core.engines.reconciling.desired import Desired, Key

ORDER = (
    ('', 'Namespace'),
    ('apiextensions.k8s.io', 'CustomResourceDefinition'),
    ('', 'ServiceAccount'),
)
"""The groups and kinds of children that others can need, in the order of their application."""


class Apply(NamedTuple):
    """Create or change a child."""
    wanted: Desired
    known: Child | None
    """
    The child that the step changes. If it is None, an existing object of this name is not taken
    over if the same fields have other managers.
    """


class Delete(NamedTuple):
    """Delete a child that is not wanted any more."""
    known: Child


Step = Apply | Delete


def plan(wanted: Mapping[Key, Desired], known: Mapping[Key, Child], *, prune: bool) -> list[Step]:
    """
    Find what to write.

    A child that is being deleted is left alone: when it is gone, the plan is made again. A copy of
    a child has the same labels, and is not deleted.
    """
    steps: list[Step] = []
    for key, item in wanted.items():
        child = known.get(key)
        if child is None or not (child.is_deleting or child.is_as(item)):
            steps.append(Apply(item, child))
    if prune:
        steps.extend(
            Delete(child) for key, child in known.items()
            if key not in wanted and not child.is_deleting and child.is_applied)
    return steps


def arrange(steps: Iterable[Step]) -> list[list[Step]]:
    """Divide the steps into stages, each of which begins when the previous one has ended."""
    stages: list[list[Step]] = [[] for _ in range(len(ORDER) + 1)]
    for step in steps:
        kind = step.wanted.key[:2] if isinstance(step, Apply) else None
        stages[ORDER.index(kind) if kind in ORDER else -1].append(step)
    return [stage for stage in stages if stage]
