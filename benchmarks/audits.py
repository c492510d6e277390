"""The requests of an operator, as the audit log of the API server shows them."""

import argparse
import datetime
import json
import os
import pathlib
from typing import NamedTuple

READS = {'get', 'list', 'watch'}


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--audit-log', type=pathlib.Path, metavar='PATH', help=(
        "the audit log of the API server, in JSON, with the metadata of all requests; by default, "
        "audit.log beside the kubeconfig"))


def find(args: argparse.Namespace, kubeconfig: str) -> pathlib.Path:
    path: pathlib.Path = args.audit_log or pathlib.Path(kubeconfig).with_name('audit.log')
    return path


def request() -> None:
    """Let the cluster that is started for the benchmarks have an audit log."""
    os.environ['AUDIT'] = '1'


class Request(NamedTuple):
    verb: str
    status: int
    ended: float
    """As the seconds since 1970."""

    @property
    def is_write(self) -> bool:
        return self.verb not in READS


class AuditLog:
    """
    The requests whose ``User-Agent`` begins so, in the audit log of the API server. A context
    manager.
    """

    def __init__(self, path: pathlib.Path, agent: str) -> None:
        self._file = path.open('rb')
        self._agent = agent
        self._rest = b''

    def __enter__(self) -> 'AuditLog':
        return self

    def __exit__(self, *args: object) -> None:
        self._file.close()

    def take(self) -> list[Request]:
        """Take what has come since the last time. Watches count when they begin."""
        *lines, self._rest = (self._rest + self._file.read()).split(b'\n')
        return [request for line in lines if (request := _parse(line, self._agent)) is not None]


def _parse(line: bytes, agent: str) -> Request | None:
    entry = json.loads(line)
    stage = 'ResponseStarted' if entry['verb'] == 'watch' else 'ResponseComplete'
    if not entry.get('userAgent', '').startswith(agent) or entry['stage'] != stage:
        return None
    ended = datetime.datetime.fromisoformat(entry['stageTimestamp']).timestamp()
    return Request(entry['verb'], entry['responseStatus']['code'], ended)
