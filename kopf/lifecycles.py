"""
Lifecycles: which of the handlers that are due are executed at once, and in which order.

They go to ``lifecycle=`` of `kopf.run`, `kopf.operator`, and `kopf.execute`, or become the default
for all operators of the process by `set_default_lifecycle`. Any function of the same signature
is a lifecycle too.
"""
from kopf._core.actions.lifecycles import (
    LifeCycleFn,
    all_at_once,
    asap,
    get_default_lifecycle,
    one_by_one,
    randomized,
    set_default_lifecycle,
    shuffled,
)

__all__ = [
    'LifeCycleFn',
    'all_at_once',
    'asap',
    'get_default_lifecycle',
    'one_by_one',
    'randomized',
    'set_default_lifecycle',
    'shuffled',
]
