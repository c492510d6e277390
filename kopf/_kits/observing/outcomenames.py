"""
The names of the outcomes of attempts, in metrics and in traces.
"""
from kopf._core.actions import progression


def name_outcome(outcome: progression.Outcome | None) -> str:
    """Name the outcome of an attempt, e.g. as a label; None is a cancellation."""
    if outcome is None:
        return 'cancelled'
    if outcome.ignored is not None:
        return 'ignored'
    if outcome.exception is None:
        return 'success'
    return 'failure' if outcome.final else 'waiting' if outcome.waiting else 'retry'
