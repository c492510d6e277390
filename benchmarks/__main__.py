"""The command line of the benchmarks; see the package."""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import history, rows, subjects, tables
from tests.e2e.kubes import Kube
from tests.e2e.ports import find_free_ports


def parse_args() -> argparse.Namespace:
    known = rows.make_rows()
    parser = argparse.ArgumentParser(prog='python -m benchmarks', description=__doc__)
    parser.add_argument('--quick', action='store_true', help="a smoke run, in about a minute")
    parser.add_argument('--rounds', type=int, default=3, help="of which the medians are taken")
    parser.add_argument('--rows', default=','.join(known), help=f"some of {', '.join(known)}")
    parser.add_argument('--subjects', default='bare,release,this',
                        help="some of bare, release, this, uvloop, metered, traced, "
                             f"{', '.join([*subjects.INTERPRETERS, *subjects.PEERS])}")
    parser.add_argument('--peers', action='store_true',
                        help="also measure operators in Go and Rust, if these can be built here")
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    parser.add_argument('--python', action='append', default=[], metavar='SUBJECT=PATH',
                        help="an interpreter to use for a subject, instead of making one")
    parser.add_argument('--json', type=pathlib.Path, help="where to write all the figures")
    parser.add_argument('--html', type=pathlib.Path,
                        help="where to write a page with charts; it needs matplotlib")
    parser.add_argument('--history', action='store_true',
                        help="save the medians in benchmarks/history.jsonl, for this version, and "
                             "the ratios in benchmarks/measured.json, for the documentation")
    args = parser.parse_args()
    args.subjects = args.subjects.split(',')
    args.python = dict(item.split('=', 1) for item in args.python)
    if args.peers:
        args.subjects += [name for name in subjects.PEERS if name not in args.subjects]
    return args


@contextlib.contextmanager
def ensure_cluster(kubeconfig: str | None) -> Iterator[str]:
    """Give the cluster of the kubeconfig, or start one for the time of the run."""
    if kubeconfig:
        yield kubeconfig
        return
    script = subjects.ROOT / os.environ.get('KOPF_CLUSTER', '../shared/cluster/cluster')
    if not script.exists():
        sys.exit(f"There is neither a kubeconfig nor a cluster to start: no {script}.")
    with tempfile.TemporaryDirectory() as folder:
        try:
            # Large objects with five minutes of history do not fit into etcd (2 GB).
            env = {'APISERVER_FLAGS': '--etcd-compaction-interval=1m', **os.environ}
            subprocess.run([script, 'start', folder, str(find_free_ports(3))], env=env,
                           stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)
            yield f'{folder}/kubeconfig'
        finally:
            subprocess.run([script, 'stop', folder], stdin=subprocess.DEVNULL, check=True)


async def run(args: argparse.Namespace, kubeconfig: str) -> tables.Results:
    """Run the rows, the subjects of each by turns."""
    known = rows.make_rows()
    chosen = subjects.prepare(args.subjects, pythons=args.python)
    scale = rows.QUICK if args.quick else rows.Scale()
    results: tables.Results = {}
    async with Kube(kubeconfig) as kube:
        for key in args.rows.split(','):
            row = known[key]
            if args.quick and not row.quick:
                continue
            for _ in range(1 if args.quick else args.rounds):
                for subject in chosen:
                    if subject.name not in row.subjects:
                        continue
                    started = time.monotonic()
                    rounds = results.setdefault(key, {}).setdefault(subject.name, [])
                    try:
                        figures = await row.measure(rows.Bench(subject, kube, kubeconfig, scale))
                    except Exception as e:  # the figures of the others are not lost
                        shown = f'FAILED: {e!r}'
                    else:
                        rounds.append(figures)
                        shown = ', '.join(f'{name} {value:.3g}' for name, value in figures.items())
                    seconds = time.monotonic() - started
                    print(f'{key}: {subject.name}: {shown} ({seconds:.0f}s)', file=sys.stderr)
    return results


async def get_version(kubeconfig: str) -> str:
    async with Kube(kubeconfig) as kube:
        version = (await kube.request('GET', '/version'))['gitVersion']
    return str(version).removeprefix('v')


def get_python(program: str | None) -> str:
    """Get the version of an interpreter, by default of this one."""
    return subprocess.check_output(
        [program or sys.executable, '-c', 'import platform; print(platform.python_version())'],
        text=True).strip()


def main() -> None:
    args = parse_args()
    with ensure_cluster(args.kubeconfig) as kubeconfig:
        kubernetes = asyncio.run(get_version(kubeconfig))
        results = asyncio.run(run(args, kubeconfig))
    found = tables.summarize(results)
    print(tables.make_markdown(found))
    if args.html:
        from benchmarks import charts  # its library is not needed otherwise
        args.html.write_text(charts.make_page(found))
    if args.json:
        payload: dict[str, Any] = {'results': results}
        args.json.write_text(json.dumps(payload, indent=1))
    if args.history:
        history.save(
            results, kubernetes=kubernetes, python=get_python(args.python.get('this')))
    if problems := tables.find_problems(results):
        sys.exit('\n'.join(problems))


if __name__ == '__main__':
    main()
