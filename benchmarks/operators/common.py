"""
What the measured operators have in common; it runs in both versions of Kopf, and without any.

The calls of the handlers are recorded in memory, by the names of the objects, and are written to a
file at the end. There, the driver reads when they were called first, last, and how many there were.
"""

import atexit
import json
import os
import signal
import time

GROUP = os.environ['BENCH_GROUP']
VERSION = 'v1'
PLURAL = os.environ['BENCH_PLURAL']
KIND = (GROUP, VERSION, PLURAL)
LOGGERS = os.environ.get('BENCH_LOGGERS') == 'yes'

_calls: dict[str, float] = {}
_count = 0


def record(name: str) -> None:
    """Remember the first call for an object, and the number of calls."""
    global _count
    _count += 1
    _calls.setdefault(name, time.time())


@atexit.register
def _dump(*_: object) -> None:
    path = os.environ['BENCH_CALLS']
    with open(f'{path}.new', 'w', encoding='utf-8') as file:
        json.dump({'count': _count, 'calls': _calls}, file)
    os.replace(f'{path}.new', path)


signal.signal(signal.SIGUSR1, _dump)
_dump()
