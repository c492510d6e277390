"""
Replicas of an operator that elect their leader by a Lease, each behind a proxy of its own.
"""
import asyncio
import contextlib
import json
import signal
import time

from tests.e2e.kubes import Kind, KubeError
from tests.e2e.proxy import Proxy

LEASES = Kind('coordination.k8s.io', 'v1', 'leases', 'Lease')
DURATION, DEADLINE, PERIOD = 6, 4.0, 0.5
"""The durations of the Lease, in seconds."""

PAUSE = 2.2 * PERIOD
"""The longest pause of a standby between two looks at the Lease."""

SLACK = 10.0
"""How much longer (seconds) anything can take on a busy machine."""

SETTINGS = f'''
@kopf.on.startup()
def configure_leadership(settings, **_):
    settings.posting.enabled = False
    settings.leadership.namespace = 'default'
    settings.leadership.lease_duration = {DURATION}
    settings.leadership.renew_deadline = {DEADLINE}
    settings.leadership.retry_period = {PERIOD}
'''

TEXT = f'''
import asyncio, os, time
WHO = os.environ['POD_ID']
{SETTINGS}

@kopf.on.create(*KIND)
@kopf.on.update(*KIND, id='create')
async def create(name, spec, **_):
    print(f'HANDLE {{name}} {{spec.get("n")}} BY {{WHO}}')
    await asyncio.sleep(spec.get('duration', 0))
    print(f'HANDLED {{name}} {{spec.get("n")}} BY {{WHO}}')
'''

LEADING = 'Leading: handling the objects from now on'
STANDING_BY = r'Standing by: the Lease .+ is held by'
LOST = 'Standing by: the operator does not lead any more'


def is_lease(request):
    return '/leases' in request.path


def is_write(request):
    """Whether the request writes an object; events and the Lease itself aside."""
    return request.method != 'GET' and not is_lease(request) and '/events' not in request.path


class Replicas:
    """
    The replicas by their names.

    `find_intruders` returns the writes of replicas that were not the leader when these arrived.
    """

    def __init__(self, operator, cluster, kind, folder, lease):
        self.operators = {}
        self.proxies = {}
        self.lease = lease
        self.option = f'--leader-elect={lease}'
        """What makes the operators replicas of each other."""
        self.scope = ('--namespace', 'default')
        self._start = operator
        self._cluster = cluster
        self._kind = kind
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for op in self.operators.values():
            op.send(signal.SIGCONT)
            op.stop()
        self._stack.close()

    def start(self, who, text='', *options, env=None, base=TEXT):
        if who not in self.proxies:
            self.proxies[who] = self._stack.enter_context(
                Proxy(self._cluster, agent=f'{who}-of-{self.lease}'))
        kubeconfig = self.proxies[who].write_kubeconfig(self._folder / f'{who}.config')
        self.operators[who] = self._start(
            base + text, self.option, *options, kind=self._kind,
            kubeconfig=kubeconfig, scope=(*self.scope, '--verbose'),
            env={'POD_ID': who, **(env or {})})
        return self.operators[who]

    async def start_both(self, *args, **kwargs):
        """Start a leader ``a`` and a standby ``b``."""
        a = self.start('a', *args, **kwargs)
        await a.wait_for(LEADING)
        b = self.start('b', *args, **kwargs)
        await b.wait_for(STANDING_BY)
        await b.wait_for('Starting the watch-stream for things')
        return a, b

    def find_intruders(self):
        requests = sorted(
            ((request.time, who, request) for who, proxy in self.proxies.items()
             for request in list(proxy.requests)), key=lambda item: item[:2])
        leader, intruders = None, []
        for when, who, request in requests:
            if is_lease(request) and request.method != 'GET' and request.status in (200, 201):
                leader = json.loads(request.body)['spec']['holderIdentity']
            elif is_write(request) and not request.faulty and who != leader:
                intruders.append((when, who, request.method, request.path, leader))
        return intruders


def read_audit(path, text):
    """
    Read the entries with that text from the audit log of the API server.

    The API server begins a new file whenever the present one has 100 MB, which all tests together
    exceed, and keeps the former ones beside it.
    """
    def read(file):
        with file.open() as lines:
            return [line for line in lines if text in line]

    found = read(path)  # first: a line can be read twice, but not be missed
    for former in sorted(path.parent.glob(f'{path.stem}-*{path.suffix}'), reverse=True):
        found = read(former) + found
    return [json.loads(line) for line in dict.fromkeys(found)]


def find_intruders_in_audit(path, *, lease, plural):
    """
    Find the writes of a replica that has lost the Lease to another one, by the audit log of the API
    server: writes that arrived after the first success of another one with the Lease.
    """
    moments = []
    for entry in read_audit(path, lease):
        agent, target = entry.get('userAgent', ''), entry.get('objectRef', {})
        if not agent.endswith(f'-of-{lease}') or entry['verb'] in ('get', 'list', 'watch'):
            continue
        if target.get('resource') == 'leases':
            if entry['responseStatus']['code'] in (200, 201):
                moments.append((entry['stageTimestamp'], 'lease', agent))
        elif target.get('resource') == plural:
            moments.append((entry['requestReceivedTimestamp'], 'write', agent))
    holder, intruders = None, []
    for when, what, agent in sorted(moments):
        if what == 'lease':
            holder = agent
        elif agent != holder:
            intruders.append((when, agent, holder))
    return intruders, len(moments)


async def wait_holder(kube, lease, who, *, timeout=20):
    return await kube.wait_for(
        LEASES, lease, lambda obj: obj['spec']['holderIdentity'] == who, timeout=timeout)


async def delete_lease(kube, lease):
    try:
        await kube.delete(LEASES, lease)
    except KubeError as e:
        assert e.status == 404


async def edit_lease(kube, lease, **spec):
    return await kube.patch(LEASES, lease, {'spec': spec})


async def wait_until(predicate, *, timeout=20):
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, "It has not become as expected."
        await asyncio.sleep(0.02)
