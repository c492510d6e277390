"""
What rounds of faults have in common: the calls of the handlers of several operators, which these
note in one file, and the load of changes.
"""
import asyncio
import contextlib
import dataclasses
import itertools
import json
import time

from tests.e2e.kubes import KubeError

OBJECTS = 10

HANDLERS = '''
import asyncio, json, os, time
WHO = os.environ['POD_ID']
JOURNAL = open(os.environ['JOURNAL'], 'a', buffering=1)

def note(what, name, spec):
    JOURNAL.write(json.dumps([time.time(), WHO, what, name, spec['n']]) + chr(10))

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.networking.request_timeout = 5
    settings.networking.error_backoffs = [0.5, 0.5, 1]

@kopf.on.create(*KIND)
@kopf.on.update(*KIND)
async def handle(name, spec, **_):
    note('begin', name, spec)
    await asyncio.sleep(float(os.environ.get('DURATION', '0.03')))
    note('end', name, spec)
'''
"""The operators need the variables ``POD_ID`` and ``JOURNAL``; see `CallLog`."""


@dataclasses.dataclass
class Call:
    who: str
    name: str
    n: int
    begin: float
    end: float | None = None
    is_done: bool = False
    """Whether the call was completed, not interrupted."""


class CallLog:
    """The calls of the handlers of all operators."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def read(self):
        calls, running = [], {}
        for line in self.path.read_text().splitlines():
            moment, who, what, name, n = json.loads(line)
            if what == 'begin':
                running[who, name, n] = Call(who, name, n, moment)
                calls.append(running[who, name, n])
            else:
                call = running[who, name, n]
                call.end, call.is_done = moment, what == 'end'
        return calls

    async def wait_call(self, is_wanted, *, since, timeout=30):
        """Wait for a call that began after that, by an operator that is wanted; return it."""
        deadline = time.time() + timeout
        while time.time() < deadline:
            for call in self.read():
                if is_wanted(call.who) and call.begin > since:
                    return call
            await asyncio.sleep(0.05)
        raise TimeoutError("Nobody works who should.")

    async def find_lost(self, newest, *, timeout):
        """Find the newest states that nobody has handled completely in that time."""
        deadline = time.time() + timeout
        while True:
            handled = {(call.name, call.n) for call in self.read() if call.is_done}
            lost = {item for item in newest.items() if item not in handled}
            if not lost or time.time() > deadline:
                return lost
            await asyncio.sleep(0.5)


def find_repeats(calls):
    """Find the calls about what was handled completely by another call before."""
    seen = set()
    return [call for call in calls if call.is_done and (
        (call.name, call.n) in seen or seen.add((call.name, call.n)))]


QUICK = 0.5
"""Whether the API answers: a change takes this long at most, in seconds."""


class Load:
    """Changes the objects, one after another, all the time; so it is a witness of the API, too."""

    def __init__(self, kube, kind):
        self.newest = {}
        self._changes = []
        self._kube = kube
        self._kind = kind

    async def create(self):
        for i in range(OBJECTS):
            await self._kube.create(self._kind, f'obj{i}', spec={'n': 0})
            self.newest[f'obj{i}'] = 0

    def measure_stalls(self, begin, end):
        """For how many seconds of that time the API answered nobody, or this machine stalled."""
        return sum(max(0, min(after, end) - max(before + QUICK, begin))
                   for before, after in self._changes)

    def choose(self, n):
        return list(self.newest)[n % len(self.newest)]

    @contextlib.asynccontextmanager
    async def running(self):
        """Change the objects meanwhile. It ends between two changes: all have their responses."""
        ended = asyncio.Event()
        task = asyncio.create_task(self._run(ended))
        try:
            yield
        finally:
            ended.set()
            await task

    async def _run(self, ended):
        for n in itertools.count(1):
            if ended.is_set():
                return
            name = self.choose(n)
            begun = time.time()
            await self._change(name, n)
            self._changes.append((begun, time.time()))
            self.newest[name] = n
            await asyncio.sleep(0.04)

    async def _change(self, name, n):
        """If a disk is slow for seconds, etcd gives up, and it is not known if it has written."""
        while True:
            try:
                await self._kube.patch(self._kind, name, {'spec': {'n': n}})
                return
            except KubeError as e:
                if e.status != 500 or 'etcdserver: request timed out' not in str(e):
                    raise
            await asyncio.sleep(0.1)
