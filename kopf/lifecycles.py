"""
Lifecycles: which of the due handlers of an object Kopf calls now, and in which order.

Pass a lifecycle as ``lifecycle=`` to `kopf.run`, `kopf.operator`, or `kopf.execute`; or make it the
default of all operators in the process with `kopf.set_default_lifecycle`. A lifecycle is a function
that gets a sequence of the due handlers as its only positional argument, and the arguments of
handlers as keyword arguments, and returns a sequence of some of these handlers. Kopf calls it again
for the other handlers later.
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
