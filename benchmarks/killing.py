"""
One operator in five versions, each killed and disturbed at its calls and at its writes.

The operator keeps an account in a billing system for each tenant. The versions are in
`external-operators`: change handlers of Kopf, without and with a search by a reference; the same on
controller-runtime; and `kopf.external`. Each tenant lives once: it is created, edited twice, and
deleted; and a strike hits the operator meanwhile. A killed operator is started again at once.
The judgement is on the billing system and on the tenant, whatever the operator says.

It is one command, ``python -m benchmarks.killing``; see ``--help``. It needs Go, with access to a
proxy of modules, and a cluster without other operators.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import functools
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Self

from aiohttp import web

from benchmarks.__main__ import ensure_cluster
from benchmarks.drivers import Object
from benchmarks.subjects import CACHE, HERE
from tests.e2e.kubes import CRDS, Kind, Kube, KubeError, Patience
from tests.e2e.proxy import Proxy, abort

TENANTS = Kind('benchmarks.kopf.dev', 'v1', 'tenants', 'Tenant')
SOURCES = HERE / 'external-operators'
TIMEOUT = 60
LATE = 4.0
"""
When (seconds) a late call is carried out, by default: after the clients have given up (2 s) and the
operators have tried again (1 s), but in the time that `kopf.external` is told (5 s).
"""

CALLS = ('create', 'search', 'observe', 'update', 'delete')
KILLED = ('killed before', 'killed after')
LOST = ('killed after', 'killed, carried out later', 'response lost', 'timeout, carried out later')
"""The strikes after which the operator cannot know that its call was or will be carried out."""
STRIKES = ('killed before', *LOST, 'error 500', 'error 429')

DEFINITION: Object = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': f'{TENANTS.plural}.{TENANTS.group}'},
    'spec': {
        'scope': 'Namespaced', 'group': TENANTS.group,
        'names': {'kind': TENANTS.kind, 'plural': TENANTS.plural},
        'versions': [{
            'name': TENANTS.version, 'served': True, 'storage': True,
            'subresources': {'status': {}},
            'schema': {'openAPIV3Schema': {
                'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}},
        }],
    },
}


@dataclasses.dataclass(frozen=True)
class Version:
    """One of those that are compared; the last of its sources is what runs."""
    title: str
    sources: tuple[str, ...]

    @property
    def is_go(self) -> bool:
        return self.sources[-1].endswith('.go')

    def count_lines(self) -> int:
        """Count the lines with code."""
        return sum(map(count_lines, [(SOURCES / source).read_text() for source in self.sources]))

    def get_command(self, programs: pathlib.Path) -> list[str]:
        if self.is_go:
            return [str(programs / pathlib.Path(self.sources[-1]).parent.name)]
        return [sys.executable, '-m', 'kopf', 'run', '--standalone', '--all-namespaces',
                str(SOURCES / self.sources[-1])]


VERSIONS = {
    'naive': Version("change handlers", ('billing.py', 'naive.py')),
    'careful': Version("change handlers with a search", ('billing.py', 'careful.py')),
    'go-naive': Version("controller-runtime", ('go/tenants/tenants.go', 'go/naive/main.go')),
    'go-careful': Version(
        "controller-runtime with a search", ('go/tenants/tenants.go', 'go/careful/main.go')),
    'external': Version("`kopf.external`", ('billing.py', 'external.py')),
}


def count_lines(text: str) -> int:
    """Count the lines of a program without blank ones, comments, and docstrings of one line."""
    lines = map(str.strip, text.splitlines())
    return sum(bool(line) and not line.startswith(('#', '//', '"""')) for line in lines)


@dataclasses.dataclass(frozen=True)
class Strike:
    """What happens once in the life of a tenant, and where: at a call, or at the n-th write."""
    at: str | int
    what: str
    is_second: bool = False
    """Whether it comes after a lost creation: some operators search only then."""

    def get_all(self) -> list['Strike']:
        """Get all strikes of the life, in their order."""
        return [Strike('create', 'response lost'), self] if self.is_second else [self]

    @property
    def is_lost_creation(self) -> bool:
        return self.at == 'create' and self.what in LOST

    def __str__(self) -> str:
        place = self.at if isinstance(self.at, str) else f'write {self.at}'
        return f"{place}{' after a lost creation' if self.is_second else ''}: {self.what}"


@dataclasses.dataclass
class Life:
    """What has become of a tenant."""
    strike: Strike | None = None
    is_hit: bool = False
    accounts: int = 0
    """How many accounts it had at most, at one time."""
    left: int = 0
    """How many of them are there after it was deleted."""
    is_settled: bool = False
    """Whether its key was known, its plan was right, and it was gone in the end, each in time."""
    seconds: float = 0.0
    """How long it took until it was settled after its creation."""
    calls: int = 0
    writes: int = 0
    """How many times the operator has called the billing system, and written to the tenant."""

    def judge(self) -> list[str]:
        """List what is wrong."""
        findings = {
            'two accounts': self.accounts > 1,
            'left behind': self.left > 0,
            'never settled': not self.is_settled,
        }
        return [name for name, is_found in findings.items() if is_found]


class Operator:
    """The process of a version, one after another. A context manager."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: pathlib.Path) -> None:
        self._command = command
        self._env = {**os.environ, **env}
        self._log = log
        self._was_killed = True
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.ensure()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ensure(self) -> None:
        """Start it if it was killed; raise if it has ended by itself."""
        if self._process is not None and self._process.poll() is None:
            return
        if not self._was_killed:
            text = self._log.read_text(errors='replace')
            raise RuntimeError(f"The operator has ended unexpectedly:\n{text[-5000:]}")
        self._was_killed = False
        with self._log.open('ab') as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._log.parent, env=self._env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill it. It is dead when this returns."""
        if self._process is not None:
            self._was_killed = True
            self._process.kill()
            self._process.wait()


class Billing:
    """
    A billing system: it neither recognises repeated calls, nor forgets anything.

    The next strike hits the next call of its name. All calls are counted by their names.
    """

    def __init__(self, late: float = LATE) -> None:
        self.late = late
        self.accounts: dict[str, Object] = {}
        self.most: collections.Counter[str] = collections.Counter()
        """How many accounts a tenant had at most, at one time."""
        self.calls: collections.Counter[str] = collections.Counter()
        self.pending = 0
        """How many calls have come, and are neither carried out nor refused."""
        self.strikes: list[Strike] = []
        self.kill: Callable[[], None] = lambda: None

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve it, and give its URL."""
        app = web.Application()
        app.router.add_route('*', '/{path:.*}', self._serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, '127.0.0.1', 0).start()
            yield f'http://127.0.0.1:{runner.addresses[0][1]}'
        finally:
            await runner.cleanup()

    def get_accounts(self, tenant: str) -> dict[str, Object]:
        return {key: account for key, account in self.accounts.items()
                if account['tenant'] == tenant}

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.pending += 1
        try:
            content = await request.json() if request.method in ('POST', 'PATCH') else {}
            return await self._respond(request, content)
        finally:
            self.pending -= 1

    async def _respond(self, request: web.Request, content: Object) -> web.StreamResponse:
        name = get_name(request)
        self.calls[name] += 1
        what = None
        if self.strikes and self.strikes[0].at == name:
            what = self.strikes.pop(0).what
        if what in ('killed before', 'killed, carried out later'):
            self.kill()
        if what in ('killed, carried out later', 'timeout, carried out later'):
            await asyncio.sleep(self.late)
        if what == 'killed before':
            abort(request)
            return web.Response()
        if what in ('error 500', 'error 429'):
            return web.json_response({}, status=int(what[-3:]), headers={'Retry-After': '1'})
        response = self._carry_out(request, content)
        if what == 'killed after':
            self.kill()
        if what in LOST:
            abort(request)
        return response

    def _carry_out(self, request: web.Request, content: Object) -> web.Response:
        key = request.path.removeprefix('/accounts').removeprefix('/')
        if request.method == 'POST':
            key, tenant = uuid.uuid4().hex[:8], content['tenant']
            self.accounts[key] = {**content, 'id': key}
            self.most[tenant] = max(self.most[tenant], len(self.get_accounts(tenant)))
        elif not key:
            items = [account for account in self.accounts.values()
                     if account.get('reference') == request.query['reference']]
            return web.json_response({'items': items})
        account = self.accounts.get(key)
        if account is None:
            return web.json_response({}, status=404)
        if request.method == 'DELETE':
            del self.accounts[key]
        account.update(content)
        return web.json_response(account)


def get_name(request: web.Request) -> str:
    """Get which of the calls it is."""
    if request.method == 'GET':
        return 'search' if request.query else 'observe'
    return {'POST': 'create', 'PATCH': 'update', 'DELETE': 'delete'}[request.method]


class Writes:
    """The writes of an operator to its tenants, of which one can be struck."""

    def __init__(self, proxy: Proxy, kill: Callable[[], None]) -> None:
        self.count = 0
        self.strikes: list[Strike] = []
        self._kill = kill
        proxy.inject(self._act, match=is_write, times=None)

    async def _act(self, request: web.Request, proxy: Proxy) -> web.StreamResponse:
        self.count += 1
        if not self.strikes or self.strikes[0].at != self.count:
            return await proxy.pass_through(request)
        what = self.strikes.pop(0).what
        response: web.StreamResponse = web.Response()
        if what == 'killed after':
            response = await proxy.pass_through(request)
        self._kill()
        abort(request)
        return response


def is_write(request: web.Request) -> bool:
    return request.method in ('PATCH', 'PUT') and f'/{TENANTS.plural}/' in request.path


class Bench:
    """One version at work, and the lives of its tenants."""

    def __init__(
            self, kube: Kube, billing: Billing, operator: Operator, writes: Writes,
    ) -> None:
        self.kube = kube
        self.billing = billing
        self.operator = operator
        self.writes = writes

    async def live(self, strike: Strike | None = None) -> Life:
        """Let a tenant live through a strike."""
        life, name = Life(strike), f'tenant-{uuid.uuid4().hex[:8]}'
        self.billing.calls.clear()
        self.writes.count = 0
        target = self.writes if strike is not None and isinstance(strike.at, int) else self.billing
        target.strikes = [] if strike is None else strike.get_all()
        started = time.monotonic()
        await self.kube.create(TENANTS, name, spec={'plan': 'small'})
        life.is_settled = await self._wait(functools.partial(self._is_settled, name, 'small'))
        life.seconds = time.monotonic() - started
        for plan in 'medium', 'large':
            await self.kube.patch(TENANTS, name, {'spec': {'plan': plan}})
            life.is_settled &= await self._wait(functools.partial(self._is_settled, name, plan))
        await self.kube.delete(TENANTS, name)
        life.is_settled &= await self._wait(functools.partial(self._is_gone, name))
        if not life.is_settled:
            await self._clear(name)
        life.is_hit = strike is not None and not target.strikes
        target.strikes = []
        life.calls, life.writes = self.billing.calls.total(), self.writes.count
        life.accounts = self.billing.most[f'default/{name}']
        life.left = len(self.billing.get_accounts(f'default/{name}'))
        return life

    async def _wait(self, is_so: Callable[[], Any]) -> bool:
        """Wait until it is so and no call is on its way, and restart the operator meanwhile."""
        patience = Patience(TIMEOUT)
        while True:
            self.operator.ensure()
            if await is_so() and not self.billing.pending:
                return True
            if patience.is_over():
                return False
            await asyncio.sleep(0.05)

    async def _is_settled(self, name: str, plan: str) -> bool:
        tenant = await self.kube.get(TENANTS, name)
        account = self.billing.accounts.get(get_key(tenant))
        return account is not None and account['plan'] == plan

    async def _is_gone(self, name: str) -> bool:
        try:
            await self.kube.get(TENANTS, name)
        except KubeError as e:
            if e.status != 404:
                raise
            return True
        return False

    async def _clear(self, name: str) -> None:
        """Let go of a tenant that its operator does not let go of."""
        with contextlib.suppress(KubeError):
            await self.kube.patch(TENANTS, name, {'metadata': {'finalizers': None}})


def get_key(tenant: Object) -> str:
    """Get the key from where the versions have it; an empty string if there is none."""
    status = tenant.get('status', {})
    return str(status.get('key') or status.get('billing', {}).get('key') or '')


def make_strikes(calls: Iterable[str], writes: int) -> list[Strike]:
    """List the strikes for an operator that makes these calls, and so many writes, in a life."""
    made = set(calls)
    return [
        *[Strike(call, what) for call in CALLS if call in made for what in STRIKES],
        *[Strike('search', what, is_second=True) for what in STRIKES if 'search' not in made],
        *[Strike(number + 1, what) for number in range(writes) for what in KILLED]]


def show(results: dict[str, list[Life]]) -> str:
    """Make a table in Markdown of the versions, and list the findings below."""
    names = list(results)
    columns, stories = [], []
    for name, (peace, *struck) in results.items():
        hits = [life for life in struck if life.is_hit]
        lost = [life for life in hits if life.strike and life.strike.is_lost_creation]
        writes = [life for life in hits if life.strike and isinstance(life.strike.at, int)]
        seconds = [life.seconds for life in lost]
        columns.append({
            'lines of code': VERSIONS[name].count_lines(),
            'calls without any strike': peace.calls,
            'writes without any strike': peace.writes,
            'strikes': len(hits),
            'two accounts': count(hits, 'two accounts'),
            'of these, after lost creations': f"{count(lost, 'two accounts')} of {len(lost)}",
            'of these, killed at a write': f"{count(writes, 'two accounts')} of {len(writes)}",
            'an account is left behind': count(hits, 'left behind'),
            'never settled': count(hits, 'never settled'),
            'settled after a lost creation, s':
                f'{min(seconds):.1f} to {max(seconds):.1f}' if seconds else '',
        })
        stories += [f'{name}: {life.strike}: {", ".join(life.judge())}'
                    for life in hits if life.judge()]
    lines = [['', *(VERSIONS[name].title for name in names)], ['---'] * (len(names) + 1)]
    lines += [[key, *(str(column[key]) for column in columns)] for key in columns[0]]
    return '\n'.join([*(f"| {' | '.join(line)} |" for line in lines), '', *stories])


def count(lives: Iterable[Life], finding: str) -> int:
    return sum(finding in life.judge() for life in lives)


def build() -> pathlib.Path:
    """Build the operators in Go outside of the project; return the folder of the programs."""
    target = CACHE / 'kopf-benchmarks' / 'killing'
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(['nice', '-n', '19', 'go', 'build', '-p', '1', '-o', f'{target}/',
                    './naive', './careful'], cwd=SOURCES / 'go', check=True)
    return target


async def strike_all(bench: Bench, wanted: str) -> list[Life]:
    """Let tenants live, each with another strike, after one without."""
    peace = await bench.live()
    if findings := peace.judge():
        raise RuntimeError(f"Without any strike: {', '.join(findings)}.")
    lives = [peace]
    for strike in make_strikes(bench.billing.calls, bench.writes.count):
        if wanted in str(strike):
            life = await bench.live(strike)
            shown = ', '.join(life.judge()) or 'well'
            print(f"  {strike}: {shown if life.is_hit else 'not hit'} ({life.seconds:.1f}s)",
                  file=sys.stderr)
            lives.append(life)
    return lives


async def run(args: argparse.Namespace, kubeconfig: str) -> dict[str, list[Life]]:
    """Strike the versions, one after another."""
    names = args.versions.split(',')
    programs = build() if any(VERSIONS[name].is_go for name in names) else CACHE
    results: dict[str, list[Life]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        async with Kube(kubeconfig) as kube:
            await define(kube)
            for name in names:
                print(f"{name}:", file=sys.stderr)
                billing = Billing(args.late)
                with Proxy(kubeconfig) as proxy:
                    async with billing.serve() as url:
                        env = {'KUBECONFIG': proxy.write_kubeconfig(folder / name),
                               'BILLING_URL': url}
                        command = VERSIONS[name].get_command(programs)
                        with Operator(command, env, folder / f'{name}.log') as operator:
                            billing.kill = operator.kill
                            writes = Writes(proxy, operator.kill)
                            bench = Bench(kube, billing, operator, writes)
                            results[name] = await strike_all(bench, args.strikes)
    return results


async def define(kube: Kube) -> None:
    """Create the custom resource definition, unless it is there."""
    try:
        await kube.request('POST', CRDS, body=DEFINITION)
    except KubeError as e:
        if e.status != 409:
            raise
    await kube.wait_served(TENANTS)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.killing', description=__doc__)
    parser.add_argument('--versions', default=','.join(VERSIONS), help="some of these")
    parser.add_argument('--strikes', default='', metavar='TEXT',
                        help="only those with this text in their names, e.g. 'create:'")
    parser.add_argument('--late', type=float, default=LATE, metavar='SECONDS',
                        help="when the billing system carries out a late call")
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    logging.getLogger('aiohttp.server').disabled = True  # the clients of the servers are killed
    with ensure_cluster(args.kubeconfig) as kubeconfig:
        print(show(asyncio.run(run(args, kubeconfig))))


if __name__ == '__main__':
    main()
