"""
What an operator asks of an external system, and what that costs: with `kopf.external`, many
objects, and a limit. The system is a process of its own, and counts the calls.

First, the operator creates an account for each object, without a limit. Then it starts anew with
the limit: the calls of the first minute, the costs at rest, the time until an edit has reached the
system, and an outage of the system. It is one command, ``python -m benchmarks.externals``; see
``--help``. Without ``--kubeconfig``, a cluster is started for the run.
"""

import argparse
import asyncio
import bisect
import contextlib
import functools
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks import subjects
from benchmarks.__main__ import ensure_cluster
from benchmarks.drivers import flood
from benchmarks.processes import Process
from benchmarks.sampling import get_quantile
from tests.e2e.kubes import Kind, Kube

Rows = dict[str, str]

MINUTE = 60.0
PATIENCE = 3600.0
"""How long (seconds) anything can take."""

EDITED = 20
"""How many objects are edited in the outage."""

ENTRY = '\n['
"""How an entry of the log begins; tracebacks are more lines of it."""

TAG = 'edit'
"""The field that the edits change, each to another value."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.externals', description=__doc__)
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    parser.add_argument('--objects', type=int, default=10_000, help="how many objects there are")
    parser.add_argument('--rate', type=int, default=10, help="the limit of calls per second")
    parser.add_argument('--interval', type=float, default=3600, help="the interval in seconds")
    parser.add_argument('--edits', type=int, default=60, help="how many edits are measured")
    parser.add_argument('--outage', type=float, default=180, help="its length in seconds")
    parser.add_argument('--serve', action='store_true', help=argparse.SUPPRESS)
    return parser.parse_args()


class System:
    """The external system: it keeps accounts, and the times of all calls."""

    def __init__(self) -> None:
        self.accounts: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}
        self.calls: list[float] = []
        self.edits: dict[str, float] = {}
        """When each value of the edited field has arrived."""
        self.is_down = False

    async def serve(self) -> None:
        app = web.Application()
        app.router.add_route('*', '/accounts{key:.*}', self.answer)
        app.router.add_post('/switch', self.switch)
        app.router.add_get('/report', self.report)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, '127.0.0.1', 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(time.time())
        if self.is_down:
            raise web.HTTPServiceUnavailable
        key = request.match_info['key'].removeprefix('/')
        match request.method:
            case 'POST':
                account = await request.json()
                key = self.keys.setdefault(account['token'], f'account-{len(self.keys)}')
                self.accounts.setdefault(key, account)
                return web.json_response({'id': key}, status=201)
            case 'PATCH':
                content = await request.json()
                self.accounts[key].update(content)
                self.edits.setdefault(content.get(TAG), time.time())
            case 'DELETE':
                self.accounts.pop(key, None)
        return web.json_response(self.accounts.get(key))

    async def switch(self, request: web.Request) -> web.Response:
        self.is_down = (await request.json())['down']
        return web.json_response({})

    async def report(self, request: web.Request) -> web.Response:
        since = bisect.bisect_left(self.calls, float(request.query.get('since', 0)))
        return web.json_response({
            'calls': self.calls[since:], 'edits': self.edits, 'accounts': len(self.accounts)})


class Bench:
    """One run: the objects, the system, and the operator, which is started several times."""

    def __init__(
            self, args: argparse.Namespace, kube: Kube, kubeconfig: str, kind: Kind, url: str,
            session: aiohttp.ClientSession,
    ) -> None:
        self._args = args
        self._kube = kube
        self._kubeconfig = kubeconfig
        self._kind = kind
        self._url = url
        self._session = session
        self._edits = 0
        self.rows: Rows = {}

    def note(self, title: str, text: str) -> None:
        self.rows[title] = text
        print(f'{title}: {text}', file=sys.stderr, flush=True)

    def start(self, *, rate: int) -> Process:
        return Process(
            [sys.executable, '-m', 'kopf', 'run', '--standalone', '--all-namespaces',
             str(subjects.OPERATORS / 'externals.py')],
            env={'KUBECONFIG': self._kubeconfig, 'BENCH_GROUP': self._kind.group,
                 'BENCH_PLURAL': self._kind.plural, 'BENCH_URL': self._url,
                 'BENCH_RATE': str(rate), 'BENCH_INTERVAL': str(self._args.interval)})

    async def report(self, since: float = 0.0) -> Any:
        async with self._session.get('/report', params={'since': str(since)}) as response:
            return await response.json()

    async def edit(self) -> tuple[str, float]:
        """Edit the next object; return the value, and when it was requested."""
        self._edits += 1
        tag, now = f'edit-{self._edits}', time.time()
        number = self._edits * 7919 % self._args.objects
        await self._kube.patch(self._kind, f'object{number}', {'spec': {TAG: tag}})
        return tag, now

    async def wait_edits(self, edits: dict[str, float]) -> list[float]:
        """Wait until the edits have reached the system; return how long each took, in order."""
        deadline = time.monotonic() + PATIENCE
        while True:
            arrived = (await self.report(time.time()))['edits']
            if edits.keys() <= arrived.keys():
                return sorted(arrived[tag] - edits[tag] for tag in edits)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(edits.keys() - arrived.keys())} edits did not arrive.")
            await asyncio.sleep(0.2)

    async def run(self) -> None:
        args = self._args
        with self.start(rate=args.rate) as process:
            await process.wait_quiet(5.0)
            self.note("memory without objects", f'{process.get_memory():.0f} MB')
            self.note("CPU without objects", f'{await process.measure_idle(MINUTE):.2%}')
        await self.fill()
        began = time.time()
        with self.start(rate=args.rate) as process:
            await self.measure_restart(process)
            await self.measure_rest(process)
            await self.measure_edits()
            await self.measure_outage(process)
        calls = (await self.report(began))['calls']
        most = max(bisect.bisect_left(calls, call + 1.0) - at for at, call in enumerate(calls))
        self.note("most calls in any second", f'{most}, with a limit of {args.rate}')

    async def fill(self) -> None:
        """Create the objects, and, without a limit, an account for each."""
        began = time.monotonic()
        with self.start(rate=0) as process:
            await flood((
                functools.partial(self._kube.create, self._kind, f'object{number}', spec={TAG: '-'})
                for number in range(self._args.objects)), concurrency=8)
            while (await self.report(time.time()))['accounts'] < self._args.objects:
                process.check()
                await asyncio.sleep(1)
            await process.wait_quiet(5.0, timeout=PATIENCE)
        self.note("created without a limit in", f'{time.monotonic() - began:.0f} s')

    async def measure_restart(self, process: Process) -> None:
        await asyncio.sleep(MINUTE - (time.time() - process.started))
        calls = len((await self.report(process.started))['calls'])
        expected = self._args.objects * MINUTE / self._args.interval
        self.note("calls in the first minute", f'{calls}, {expected:.0f} expected')

    async def measure_rest(self, process: Process) -> None:
        await process.wait_quiet(5.0, timeout=PATIENCE)
        self.note("CPU at rest", f'{await process.measure_idle(MINUTE):.2%}')
        self.note("memory at rest", f'{process.get_memory():.0f} MB')

    async def measure_edits(self) -> None:
        edits = {}
        for _ in range(self._args.edits):
            tag, now = await self.edit()
            edits[tag] = now
            await asyncio.sleep(1)
        found = await self.wait_edits(edits)
        self.note("an edit reaches the system, p50", f'{get_quantile(found, 0.5):.3f} s')
        self.note("an edit reaches the system, max", f'{found[-1]:.3f} s')

    async def measure_outage(self, process: Process) -> None:
        await asyncio.sleep(MINUTE)  # what was edited is observed once more
        began, entries = time.time(), process.log.count(ENTRY)
        await self._switch(down=True)
        edits = dict([await self.edit() for _ in range(EDITED)])
        await asyncio.sleep(self._args.outage - (time.time() - began))
        self.note("calls in the outage", str(len((await self.report(began))['calls'])))
        self.note("log entries in the outage", str(process.log.count(ENTRY) - entries))
        ended = time.time()
        await self._switch(down=False)
        await self.wait_edits(edits)
        self.note("all are well after the outage in", f'{time.time() - ended:.1f} s')

    async def _switch(self, *, down: bool) -> None:
        async with self._session.post('/switch', json={'down': down}):
            pass


@contextlib.asynccontextmanager
async def serve() -> AsyncIterator[str]:
    """Run the external system as a process; give its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, '-m', 'benchmarks.externals', '--serve', stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f'http://127.0.0.1:{int(await process.stdout.readline())}'
    finally:
        process.kill()
        await process.wait()


async def run(args: argparse.Namespace, kubeconfig: str) -> Rows:
    kind = Kind.make_unique()
    async with Kube(kubeconfig) as kube, serve() as url, aiohttp.ClientSession(url) as session:
        await kube.create_kind(kind, status=True)
        bench = Bench(args, kube, kubeconfig, kind, url, session)
        await bench.run()
    return bench.rows


def main() -> None:
    args = parse_args()
    if args.serve:
        asyncio.run(System().serve())
        return
    with ensure_cluster(args.kubeconfig) as kubeconfig:
        rows = asyncio.run(run(args, kubeconfig))
    print('\n'.join(f'| {title} | {text} |' for title, text in rows.items()))


if __name__ == '__main__':
    main()
