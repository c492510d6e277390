"""
Credential plugins: commands in kubeconfigs that print credentials.

The protocol is described in "client-go credential plugins" of the Kubernetes documentation.
"""
import dataclasses
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import credentials, nesting

TIMEOUT = 60.0
"""How long (seconds) a plugin may run: it usually makes requests to a cloud provider."""

API_VERSIONS = ('client.authentication.k8s.io/v1', 'client.authentication.k8s.io/v1beta1')

_FIELDS = {
    'token': 'token',
    'clientCertificateData': 'client-certificate-data',
    'clientKeyData': 'client-key-data',
}


@dataclasses.dataclass(frozen=True)
class Issued:
    """The credentials that a plugin has printed: ``fields`` are those of a user in kubeconfigs."""
    fields: Mapping[str, str] = dataclasses.field(repr=False)
    expiration: datetime.datetime | None = None


def locate(spec: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    """Resolve a command with a relative path, which is relative to the folder of the kubeconfig."""
    command = str(spec.get('command') or '')
    is_relative = os.path.dirname(command) and not os.path.isabs(command)
    return {**spec, 'command': os.path.join(folder, command)} if is_relative else spec


def run(spec: Mapping[str, Any], *, cluster: Mapping[str, Any]) -> Issued:
    """
    Run a plugin, and return the credentials that it has printed.

    ``spec`` is the field ``exec`` of a user in a kubeconfig; ``cluster`` is the cluster from there.
    The errors never cite the output of the plugin, as it can contain secrets.

    :raises LoginError: if the plugin cannot be run, fails, runs too long, or prints no credentials.
    """
    command = str(spec.get('command') or '')
    version = str(spec.get('apiVersion') or '')
    if not command:
        raise credentials.LoginError("The kubeconfig's exec plugin has no command.")
    if version not in API_VERSIONS:
        raise _make_error(command, f"is for {version or 'no API version'!r}, which is not "
                                   f"supported: {', '.join(API_VERSIONS)}.")

    hint = f" {spec['installHint']}" if spec.get('installHint') else ""
    interactive = _decide_interactivity(spec, command)
    try:
        info = {
            'apiVersion': version,
            'kind': 'ExecCredential',
            'spec': {
                'interactive': interactive,
                **({'cluster': _describe(cluster)} if spec.get('provideClusterInfo') else {}),
            },
        }
        env = {
            **os.environ,
            **{str(item['name']): _as_text(item.get('value')) for item in spec.get('env') or []},
            'KUBERNETES_EXEC_INFO': json.dumps(info, separators=(',', ':')),
        }
        args = [_as_text(arg) for arg in spec.get('args') or []]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise _make_error(command, "has wrong arguments, variables, or extensions of its cluster "
                                   "in the kubeconfig.") from None
    try:
        done = subprocess.run(
            [command, *args], env=env, timeout=TIMEOUT, check=False, stdout=subprocess.PIPE,
            stdin=None if interactive else subprocess.DEVNULL,
            stderr=None if interactive else subprocess.DEVNULL)  # a log must have no secrets
    except FileNotFoundError:
        raise credentials.LoginError(
            f"The credential plugin {command!r} is not found.{hint}") from None
    except subprocess.TimeoutExpired:
        raise _make_error(command, f"has not finished in {TIMEOUT:g}s.") from None
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "its arguments are wrong"
        raise _make_error(command, f"cannot be run: {reason}.") from None
    if done.returncode != 0:
        raise _make_error(command, f"has failed with the exit code {done.returncode}.{hint}")
    return _parse(done.stdout, command, version)


def _as_text(value: object) -> str:
    return '' if value is None else str(value)


def _make_error(command: str, what: str) -> credentials.LoginError:
    return credentials.LoginError(f"The credential plugin {command!r} {what}")


def _decide_interactivity(spec: Mapping[str, Any], command: str) -> bool:
    mode = spec.get('interactiveMode') or 'IfAvailable'
    available = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
    if mode == 'Always' and not available:
        raise _make_error(command, "needs a terminal to ask questions.")
    return bool(mode != 'Never' and available)


def _describe(cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    ca_data = cluster.get('certificate-authority-data')
    if not ca_data and cluster.get('certificate-authority'):
        import base64
        try:
            with open(cluster['certificate-authority'], 'rb') as file:
                ca_data = base64.b64encode(file.read()).decode()
        except OSError as e:
            raise credentials.LoginError(f"The CA of the cluster is unreadable: {e}") from e
    described = {
        'server': cluster.get('server'),
        'tls-server-name': cluster.get('tls-server-name'),
        'insecure-skip-tls-verify': cluster.get('insecure-skip-tls-verify'),
        'certificate-authority-data': ca_data,
        'proxy-url': cluster.get('proxy-url'),
        'config': next((
            extension.get('extension') for extension in cluster.get('extensions') or []
            if extension.get('name') == 'client.authentication.k8s.io/exec'
        ), None),
    }
    return {key: val for key, val in described.items() if val is not None}


def _parse(output: bytes, command: str, version: str) -> Issued:
    try:
        printed = nesting.parse(output)
        status = printed.get('status') or {}
        if printed.get('kind') != 'ExecCredential' or not isinstance(status, dict):
            raise TypeError("It is another object.")
    except (ValueError, AttributeError, TypeError):
        raise _make_error(command, "has printed something that is no credentials.") from None
    if printed.get('apiVersion') != version:
        raise _make_error(command, f"has printed credentials of another version than {version}.")
    fields = {
        ours: status[theirs] for theirs, ours in _FIELDS.items()
        if isinstance(status.get(theirs), str) and status[theirs]
    }
    if 'token' not in fields and 'client-certificate-data' not in fields:
        raise _make_error(command, "has printed neither a token nor a certificate.")
    if ('client-certificate-data' in fields) != ('client-key-data' in fields):
        raise _make_error(command, "has printed a certificate without its key, or a key without a "
                                   "certificate.")
    import iso8601  # only if there is a plugin
    stamp = status.get('expirationTimestamp')
    try:
        expiration = iso8601.parse_date(stamp) if stamp else None
    except ValueError:
        raise _make_error(command, "has printed an expiration that is no time.") from None
    return Issued(fields, expiration)
