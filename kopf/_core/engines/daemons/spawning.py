"""
Spawning: starts and stops the companions of an object, of both kinds.
"""
from collections.abc import Collection

from kopf._core.engines.daemons.companions import Companions, Reason
from kopf._core.engines.daemons.daemons import Daemon
from kopf._core.engines.daemons.timers import Timer
from kopf._core.intents import handlers


def adjust(
        companions: Companions, selected: Collection[handlers.SpawningHandler], *, is_paused: bool,
) -> None:
    """
    Start companions of the selected handlers, and stop all others. If the object ``is_paused``,
    start none, stop also the daemons of the selected handlers, and let their timers wait.

    If a companion of a selected handler is still being stopped, the next one is not started until
    the former ends: there must be only one at a time.
    """
    keys = {handler.key for handler in selected}
    for companion in companions.members:
        if companion.handler.key not in keys:
            companion.stop(Reason.FILTERS_MISMATCH)
    if is_paused:
        for companion in companions.members:
            companion.pause(Reason.RESOURCE_PAUSED)
    if is_paused or companions.spawner.paused:
        return
    for companion in companions.members:
        companion.resume()
    keys = {companion.handler.key for companion in companions.members}
    for handler in selected:
        if handler.key not in keys and companions.spawner.stopping is None and (
                not companions.awaits(handler)):
            cls = Timer if isinstance(handler, handlers.TimerHandler) else Daemon
            companions.add(cls(companions, handler))
