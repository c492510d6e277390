"""
Certificates of webhooks that the replicas of an operator renew together, without a failed request.
"""
import asyncio
import base64
import contextlib
import datetime
import hashlib
import random
import signal
import socket
import socketserver
import ssl
import threading
import time
import uuid

import pytest

from kopf._kits.webhooks import certificates
from tests.e2e.kubes import Kind, KubeError
from tests.e2e.ports import find_free_ports
from tests.e2e.test_admission import CONFIGURATIONS

SECRETS = Kind('', 'v1', 'secrets', 'Secret')
LIFE = 60.0
"""How long (seconds) certificates are valid. They are renewed at two thirds, or 3 s earlier."""

SETTLING, REPORT, SILENCE = 1.5, 1.0, 4.0

STREAMS, WEBHOOKS = 4, 5
"""
The load of many connections: so many requests at once, each with so many calls of webhooks. On two
cores, these are 150 to 180 new connections a second with Kubernetes, and 90 with the sandbox; a
third of that if other tests run at the same time.
"""

LONG_LIFE, LONG_SETTLING, CONNECTIONS = 90.0, 8.0, 300
"""With the first ones (seconds), a rotation is long enough for at least so many connections."""

TEXT = '''
import datetime, logging, os, signal
from kopf._kits.webhooks import generations, httpreviews

# Each request of the API server comes by a new connection.
httpreviews.POLICY = httpreviews.POLICY._replace(idle=None)

class Killing(logging.Filter):
    """Kills the process at once, before the message is logged for the second time."""
    count = 0
    def filter(self, record):
        if os.environ['KILL_AT'] in record.getMessage():
            self.count += 1
            if self.count > int(os.environ['KILL_AFTER']):
                os.kill(os.getpid(), signal.SIGKILL)
        return True

if 'KILL_AT' in os.environ:
    for name in ('configurations', 'services'):
        package = {{'configurations': 'kopf._core.engines.admission',
                    'services': 'kopf._kits.webhooks'}}[name]
        logging.getLogger(f'{{package}}.{{name}}').addFilter(Killing())

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.leadership.namespace = 'default'
    settings.leadership.lease_duration = 3
    settings.leadership.renew_deadline = 2.0
    settings.leadership.retry_period = 0.4
    settings.admission.managed = '{managed}'
    settings.admission.server = server = kopf.WebhookServiceServer(
        service='{service}', namespace='default', addr='127.0.0.1',
        port=int(os.environ['PORT']), url='https://127.0.0.1:{port}')
    server._times = generations.Times(*(
        datetime.timedelta(seconds=each) for each in ({life}, {settling}, {report}, {silence})))

def check(spec, **_):
    if spec.get('bad'):
        raise kopf.AdmissionError("It is bad.", code=418)

# The API server calls all of them at once, each by a connection of its own.
for number in range(int(os.environ.get('WEBHOOKS', '1'))):
    kopf.on.validate(*KIND, id=f'check{{number}}', persistent=True)(check)
'''


class Relay(socketserver.ThreadingTCPServer):
    """One address of all replicas, such as that of a Service. Each connection comes to any one."""

    daemon_threads = True

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Relaying)
        self.ports = []
        self.port = self.server_address[1]
        self.count = 0

    def process_request(self, request, client_address):
        self.count += 1
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        pass  # a replica was killed


class Relaying(socketserver.BaseRequestHandler):

    def handle(self):
        for port in random.sample(self.server.ports, len(self.server.ports)):
            with contextlib.suppress(OSError):
                other = socket.create_connection(('127.0.0.1', port))
                break
        else:
            return
        with other:
            back = threading.Thread(target=pump, args=(other, self.request))
            back.start()
            pump(self.request, other)
            back.join()


def pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class Stream:
    """Requests for reviews, some at once; the failures with their times."""

    def __init__(self, kube, kind):
        self._kube, self._kind = kube, kind
        self.count = 0
        self.failures = []

    async def run(self, *, pause):
        while True:
            try:
                await self._kube.request(
                    'POST', self._kind.get_path(namespace='default'), params={'dryRun': 'All'},
                    body={'apiVersion': self._kind.api_version, 'kind': self._kind.kind,
                          'metadata': {'name': 'x'}, 'spec': {'bad': True}})
                self.failures.append((time.monotonic(), "It is not asked."))
            except KubeError as e:
                if e.status == 418:
                    self.count += 1
                else:
                    self.failures.append((time.monotonic(), str(e)))
            await asyncio.sleep(pause)


class World:
    """Two replicas, their Secret, and who serves what."""

    def __init__(self, kube, kind, start, name):
        self.kube, self.kind, self._start, self._relay = kube, kind, start, Relay()
        self.managed, self.service, self.secret = f'{name}.test', name, f'{name}-webhook-tls'
        self.lease = name
        self.seen = {}
        self.operators = []
        self.life, self.settling = LIFE, SETTLING
        self.stream = Stream(kube, kind)

    async def __aenter__(self):
        self._thread = threading.Thread(target=self._relay.serve_forever, args=(0.05,))
        self._thread.start()
        self._tasks = [asyncio.create_task(each) for each in (
            self.stream.run(pause=0.02), self.stream.run(pause=0.02), self.probe())]

    def hurry(self, number):
        """Add so many streams of requests without pauses."""
        self._tasks += [asyncio.create_task(self.stream.run(pause=0)) for _ in range(number)]

    @property
    def connections(self):
        """How many connections the replicas have got."""
        return self._relay.count

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._relay.shutdown()
        self._thread.join()
        self._relay.server_close()

    async def create_secret(self, *, left):
        """Create the Secret with a certificate that is valid for so many seconds."""
        pair = certificates.build_certificate(
            [f'{self.service}.default.svc', f'{self.service}.default', self.service, '127.0.0.1'],
            validity=datetime.timedelta(seconds=left))
        await self.kube.create(SECRETS, self.secret, type='Opaque', data={
            key: base64.b64encode(value).decode()
            for key, value in zip(('tls.crt', 'tls.key'), pair)})
        return get_id(pair[0])

    async def start(self, who, **env):
        port = find_free_ports(1)
        operator = self._start(
            TEXT.format(
                managed=self.managed, service=self.service, port=self._relay.port, life=self.life,
                settling=self.settling, report=REPORT, silence=SILENCE),
            f'--leader-elect={self.lease}', kind=self.kind, scope=('--all-namespaces', '--verbose'),
            env={'POD_ID': who, 'PORT': str(port), **env})
        self.operators.append(operator)
        await operator.wait_for("The webhooks are served with the certificate")
        self._relay.ports.append(port)
        self.seen[who] = [port]
        return operator

    def forget(self, who):
        self._relay.ports.remove(self.seen.pop(who)[0])

    async def probe(self):
        """Note which certificates the replicas serve, in the order in which they come."""
        while True:
            for port, *ids in list(self.seen.values()):
                with contextlib.suppress(OSError):
                    pem = await asyncio.to_thread(
                        ssl.get_server_certificate, ('127.0.0.1', port), timeout=5)
                    id_ = get_id(pem.encode())
                    for entry in self.seen.values():
                        if entry[0] == port and id_ not in entry:
                            entry.append(id_)
            await asyncio.sleep(0.1)

    async def wait_ready(self):
        deadline = time.monotonic() + 30
        while not self.stream.count:
            assert time.monotonic() < deadline, self.stream.failures[-1:]
            await asyncio.sleep(0.05)
        self.stream.failures.clear()

    async def wait_announced(self, *, timeout=30):
        """Wait until the next certificate is in the Secret."""
        deadline = time.monotonic() + timeout
        while 'next.crt' not in (await self.kube.get(SECRETS, self.secret))['data']:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def wait_rotated(self, old, *, timeout=40):
        """Wait until only a new certificate is in the Secret; return its id."""
        deadline = time.monotonic() + timeout
        while True:
            secret = await self.kube.get(SECRETS, self.secret)
            id_ = get_id(base64.b64decode(secret['data']['tls.crt']))
            if id_ != old and set(secret['data']) == {'tls.crt', 'tls.key'}:
                return id_
            assert time.monotonic() < deadline, (secret['metadata'], set(secret['data']))
            await asyncio.sleep(0.1)

    async def wait_bundle(self, id_, *, timeout=30):
        """Wait until the API trusts only this certificate."""
        deadline = time.monotonic() + timeout
        while True:
            configuration = await self.kube.get(CONFIGURATIONS['validating'], self.managed)
            bundles = [base64.b64decode(webhook['clientConfig']['caBundle'])
                       for webhook in configuration['webhooks']]
            if {get_id(bundle) for bundle in bundles} == {id_}:
                return
            assert time.monotonic() < deadline, bundles
            await asyncio.sleep(0.1)


def get_id(pem):
    return hashlib.sha256(pem.strip() + b'\n').hexdigest()[:12]


@pytest.fixture()
async def world(kube, kind, operator):
    world = World(kube, kind, operator, f'certs-{uuid.uuid4().hex[:8]}')
    yield world
    for each in world.operators:  # they would write the configurations again
        each.stop()
    for configuration in CONFIGURATIONS.values():
        with contextlib.suppress(KubeError):
            await kube.delete(configuration, world.managed)
    for resource in (SECRETS, Kind('coordination.k8s.io', 'v1', 'leases', 'Lease')):
        for each in (world.secret, world.lease):
            with contextlib.suppress(KubeError):
                await kube.delete(resource, each)


async def test_certificates_are_renewed_without_a_failed_request(world):
    async with world:
        old = await world.create_secret(left=LONG_LIFE / 3 + 12)
        world.life, world.settling = LONG_LIFE, LONG_SETTLING
        replicas = [await world.start(who, WEBHOOKS=str(WEBHOOKS)) for who in 'ab']
        await world.wait_ready()
        world.hurry(STREAMS)
        await world.wait_announced()
        before = world.connections
        new = await world.wait_rotated(old)
        assert world.connections - before >= CONNECTIONS
        await world.wait_bundle(new)
        await asyncio.sleep(0.5)  # more requests, and more looks
        assert world.stream.failures == []
        assert [ids for _, *ids in world.seen.values()] == [[old, new]] * 2
        secret = await world.kube.get(SECRETS, world.secret)
        for replica in replicas:
            assert 'PRIVATE KEY' not in replica.text
            assert not any(value in replica.text for value in secret['data'].values())


async def test_the_first_replica_makes_the_secret_and_a_restart_needs_nothing_else(world):
    async with world:
        first = await world.start('a')
        await world.wait_ready()
        [[_, id_]] = world.seen.values()
        first.kill()
        await first.wait()
        world.forget('a')
        await world.start('b')
        world.stream.count = 0
        await world.wait_ready()
        assert [ids for _, *ids in world.seen.values()] in ([[id_]], [[]])
        secret = await world.kube.get(SECRETS, world.secret)
        assert secret['type'] == 'Opaque'
        assert get_id(base64.b64decode(secret['data']['tls.crt'])) == id_


PHASES = {
    'before the announcement': ("add the next generation", 0),
    'before it is trusted': ("Reconfiguring the validating webhook", 1),
    'before the switch': ("make the next generation the served one", 0),
    'after the switch': ("The webhooks are served with the certificate", 1),
    'before the end': ("remove the old generation", 0),
}
"""Before which message of the leader, after how many of its kind, the leader is killed."""


@pytest.mark.parametrize('phase', PHASES)
async def test_rotations_end_if_the_leader_is_killed(world, phase):
    async with world:
        old = await world.create_secret(left=LIFE / 3 + 5)
        message, count = PHASES[phase]
        leader = await world.start('a', KILL_AT=message, KILL_AFTER=str(count))
        await leader.wait_for('Leading')
        await world.start('b')
        await world.wait_ready()
        assert await leader.wait() == -signal.SIGKILL
        killed = time.monotonic()
        world.forget('a')
        await world.start('c')
        new = await world.wait_rotated(old)
        await world.wait_bundle(new)
        await asyncio.sleep(0.3)
        assert [text for at, text in world.stream.failures
                if 'x509' in text or 'certificate' in text or abs(at - killed) > 2] == []
        assert all(ids[-1] == new for _, *ids in world.seen.values())
        assert world.seen['b'][1:] == [old, new]
