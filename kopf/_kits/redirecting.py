"""
Redirecting: lets the client libraries that authors use find a sandbox instead of the cluster.

Many authors load the kubeconfig and make a client when their file is imported. The sandbox starts
after the import, as it depends on what the file declares. So its address is reserved before.
"""
import contextlib
import dataclasses
import os
import pathlib
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from kopf._cogs.logins import kubeconfigs


@dataclasses.dataclass(frozen=True)
class Place:
    """
    The reserved place of a sandbox. The kubeconfig stays the same file: some clients remember it.
    The ``token`` is for clients that are made before the sandbox starts.
    """
    socket: socket.socket
    kubeconfig: pathlib.Path
    token: str = dataclasses.field(default_factory=secrets.token_urlsafe)


@contextlib.contextmanager
def reserve(kubeconfig: pathlib.Path | None = None) -> Iterator[Place]:
    """
    Reserve a port of this machine for a sandbox, which refuses connections until it starts. By
    default, the kubeconfig is a temporary file.
    """
    with tempfile.TemporaryDirectory(prefix='kopf-sandbox-') as folder, socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        yield Place(listener, kubeconfig or pathlib.Path(folder, 'kubeconfig'))


def make_kubeconfig(
        cluster: Mapping[str, Any], users: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Make a kubeconfig of a cluster, and of users with a context each: by default, ``admin``."""
    return {
        'apiVersion': 'v1', 'kind': 'Config', 'current-context': 'admin',
        'clusters': [{'name': 'local', 'cluster': cluster}],
        'users': [{'name': name, 'user': user} for name, user in users.items()],
        'contexts': [
            {'name': name, 'context': {'cluster': 'local', 'user': name, 'namespace': 'default'}}
            for name in users]}


@contextlib.contextmanager
def expect(place: Place) -> Iterator[None]:
    """Let the clients that are made in the block find the sandbox that starts there later."""
    host, port = place.socket.getsockname()
    place.kubeconfig.write_text(yaml.safe_dump(make_kubeconfig(
        {'server': f'http://{host}:{port}'}, {'admin': {'token': place.token}})), 'utf-8')
    with redirect(place.kubeconfig):
        try:
            yield
        except Exception as e:
            if any(isinstance(each, ConnectionRefusedError) for each in _trace(e)):
                e.add_note("There is no API yet when a file is imported, so requests are refused. "
                           "Send them in a startup handler: @kopf.on.startup()")
            raise


@contextlib.contextmanager
def fill_in() -> Iterator[None]:
    """Let authors make clients in the block even if there is no cluster, as in CI."""
    if 'KUBERNETES_SERVICE_HOST' in os.environ or kubeconfigs.find_files():
        yield
    else:
        with reserve() as place, expect(place):
            yield


@contextlib.contextmanager
def redirect(path: pathlib.Path) -> Iterator[None]:
    """Let the clients that are made in the block find this kubeconfig, and no service account."""
    known = {name: os.environ.pop(name, None) for name in ('KUBECONFIG', 'KUBERNETES_SERVICE_HOST')}
    os.environ['KUBECONFIG'] = str(path)
    try:
        yield
    finally:
        del os.environ['KUBECONFIG']
        os.environ.update({name: value for name, value in known.items() if value is not None})


def _trace(e: BaseException | None) -> Iterator[BaseException]:
    while e is not None:
        yield e
        e = e.__cause__ or e.__context__
