"""
Credentials from the service account of a pod: for operators that run in the cluster.
"""
import os
import pathlib
import socket
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount'
PRIORITY = 10
HOST = 'kubernetes.default.svc'


def login_with_service_account(
        *,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Get the credentials of the service account, from the files that Kubernetes mounts into pods.

    Kubernetes rotates the token: Kopf reads it again when its file changes. The function can be
    called in a login handler with all arguments of the handler.

    ::

        @kopf.on.login()
        def login(**kwargs):
            return kopf.login_with_service_account(**kwargs)

    See "Authenticate to the API server" in the documentation.

    :param settings: the settings of the operator, for ``settings.networking.trust_env``. Default:
        none.
    :returns: the credentials, or `None` outside of pods.
    :raises LoginError: if the files exist but are unreadable.
    """
    token_path = get_token_path()
    ca_path = os.path.join(FOLDER, 'ca.crt')
    token = _read(token_path)
    if not token:
        return None
    return credentials.ConnectionInfo(
        server=_find_server(),
        ca_path=ca_path if os.path.exists(ca_path) else None,
        token=token,
        token_path=token_path,
        default_namespace=get_namespace(),
        priority=PRIORITY,
        trust_env=settings is not None and settings.networking.trust_env,
    )


def get_namespace() -> str | None:
    """Get the namespace of the pod; None outside of pods."""
    return _read(os.path.join(FOLDER, 'namespace')) or None


def get_token_path() -> str:
    """Get the path of the token. Outside of pods, there is no such file."""
    return os.path.join(FOLDER, 'token')


def _find_server() -> str:
    """Get the URL of the API server: by its name, or by its address if the name is unknown."""
    address = os.environ.get('KUBERNETES_SERVICE_HOST')
    if address:
        try:
            socket.getaddrinfo(HOST, 443)
        except OSError:  # e.g. in pods with hostNetwork, which have the DNS of the node by default
            host = f'[{address}]' if ':' in address else address
            return f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT') or 443}"
    return f'https://{HOST}'


def _read(path: str) -> str | None:
    try:
        return pathlib.Path(path).read_text(encoding='utf-8').strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise credentials.LoginError(f"The service account's {path} is unreadable.") from e
