"""
Replicas of Kopf and of client-go, which exclude each other by the same Lease.
"""
import asyncio
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest

from tests.e2e.replicas import (
    DEADLINE,
    DURATION,
    LEADING,
    LOST,
    PAUSE,
    PERIOD,
    SLACK,
    wait_holder,
    wait_until,
)

pytestmark = pytest.mark.timeout(900)  # the first one waits for a build with empty caches


@pytest.fixture(scope='session')
def go_elector(tmp_path_factory):
    """A program in Go with the elector of client-go."""
    go = shutil.which('go')
    if go is None:
        pytest.skip("There is no `go` to build the elector of client-go.")
    path = tmp_path_factory.mktemp('go') / 'elector'
    built = subprocess.run(
        ['nice', '-n', '19', go, 'build', '-p', '2', '-buildvcs=false', '-o', path, '.'], text=True,
        cwd=pathlib.Path(__file__).parent / 'go-elector', capture_output=True)
    if built.returncode:
        pytest.skip(f"The elector of client-go cannot be built here: {built.stderr[-500:]}")
    return path


class GoReplica:

    def __init__(self, path, kubeconfig, lease):
        self.process = subprocess.Popen(
            [path, '-identity', 'go', '-name', lease, '-lease', f'{DURATION}s',
             '-deadline', f'{DEADLINE}s', '-period', f'{PERIOD}s'],
            env={**os.environ, 'KUBECONFIG': kubeconfig},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.strip())

    async def wait_for(self, text):
        await wait_until(lambda: any(line.endswith(text) for line in self.lines))

    async def stop(self, signum):
        self.process.send_signal(signum)
        await asyncio.to_thread(self._reader.join)
        self.process.wait()


@pytest.fixture()
async def start_go(go_elector, cluster, lease):
    started = []

    def start():
        started.append(GoReplica(go_elector, cluster, lease))
        return started[-1]

    yield start
    for replica in started:
        await replica.stop(signal.SIGKILL)


@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGKILL])
async def test_replica_in_go_excludes_this_one(kube, kind, replicas, start_go, signum):
    go = start_go()
    await go.wait_for('leading')
    op = replicas.start('kopf')
    await op.wait_for("is held by 'go'")
    await kube.create(kind, 'obj', spec={})
    await asyncio.sleep(DURATION + PAUSE)
    assert not op.find(LEADING)
    begun = time.monotonic()
    await go.stop(signum)
    await op.wait_for('HANDLED obj None BY kopf')
    took = time.monotonic() - begun
    limit = PAUSE if signum == signal.SIGTERM else DURATION + PAUSE
    assert took < limit + SLACK


@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGKILL])
async def test_replica_in_go_is_excluded_by_this_one(kube, replicas, start_go, lease, signum):
    op = replicas.start('kopf')
    await op.wait_for(LEADING)
    go = start_go()
    await go.wait_for('leader is kopf')
    await asyncio.sleep(DURATION + PAUSE)
    assert not any(line.endswith('leading') for line in go.lines)
    assert not op.find(LOST)
    op.send(signum)
    await op.wait()
    await go.wait_for('leading')
    assert (await wait_holder(kube, lease, 'go'))['spec']['leaseTransitions'] == 1
