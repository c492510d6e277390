"""
A real API from the programs of envtest: etcd and kube-apiserver, in ``$KUBEBUILDER_ASSETS``.

No controllers run. So, owned resources are not garbage-collected, and deleted namespaces remain.
"""
import atexit
import functools
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request

import yaml

from kopf._kits import redirecting

ASSETS = 'KUBEBUILDER_ASSETS'
START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0
TOKEN = 'envtest-admin'


@functools.cache
def start() -> pathlib.Path:
    """
    Start the API once per process, and return the path of its kubeconfig.

    :raises RuntimeError: if the programs are absent, or do not start.
    """
    assets = pathlib.Path(os.environ.get(ASSETS) or '.').absolute()
    etcd, apiserver = assets / 'etcd', assets / 'kube-apiserver'
    if not (etcd.exists() and apiserver.exists()):
        raise RuntimeError(
            f"etcd and kube-apiserver not found: ${ASSETS} is {os.environ.get(ASSETS)!r}. Set "
            f"it to the folder of these programs.")
    folder = pathlib.Path(tempfile.mkdtemp(prefix='kopf-envtest-'))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store, peers, port = _find_port(), _find_port(), _find_port()
    url, peer = f'http://127.0.0.1:{store}', f'http://127.0.0.1:{peers}'
    _spawn(folder, [
        etcd, '--data-dir', folder / 'etcd', '--unsafe-no-fsync',
        '--listen-client-urls', url, '--advertise-client-urls', url,
        '--listen-peer-urls', peer, '--initial-advertise-peer-urls', peer,
        '--initial-cluster', f'default={peer}'])

    (folder / 'tokens.csv').write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    key = folder / 'sa.key'
    subprocess.run(['openssl', 'genrsa', '-out', key, '2048'], check=True, capture_output=True)
    process = _spawn(folder, [
        apiserver, '--etcd-servers', url, '--bind-address=127.0.0.1', f'--secure-port={port}',
        '--advertise-address=127.0.0.1', '--cert-dir', folder / 'certs',
        '--token-auth-file', folder / 'tokens.csv', '--authorization-mode=RBAC',
        '--service-cluster-ip-range=10.0.0.0/24', '--disable-admission-plugins=ServiceAccount',
        '--service-account-issuer=https://kubernetes.default.svc',
        '--service-account-key-file', key, '--service-account-signing-key-file', key])
    server = f'https://127.0.0.1:{port}'
    _wait_ready(server, process, folder)
    kubeconfig = folder / 'kubeconfig'
    kubeconfig.write_text(yaml.safe_dump(redirecting.make_kubeconfig(
        {'server': server, 'insecure-skip-tls-verify': True}, {'admin': {'token': TOKEN}})))
    return kubeconfig


def _spawn(folder: pathlib.Path, command: list[object]) -> 'subprocess.Popen[bytes]':
    program = pathlib.Path(str(command[0]))
    with open(folder / f'{program.name}.log', 'wb') as log:
        process = subprocess.Popen(
            [str(part) for part in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log)
    atexit.register(_stop, process)
    return process


def _stop(process: 'subprocess.Popen[bytes]') -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(server: str, process: 'subprocess.Popen[bytes]', folder: pathlib.Path) -> None:
    context = ssl._create_unverified_context()  # the server makes its own certificate at the start
    request = urllib.request.Request(
        f'{server}/readyz', headers={'Authorization': f'Bearer {TOKEN}'})
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5, context=context):
                return
        except OSError:
            time.sleep(0.1)
    log = (folder / 'kube-apiserver.log').read_text(errors='replace')[-2000:]
    raise RuntimeError(f"The kube-apiserver has not become ready:\n{log}")


def _find_port() -> int:
    with socket.socket() as sock:
        sock.bind(('127.0.0.1', 0))
        port: int = sock.getsockname()[1]
        return port
