"""
Logging in by the service account of the pod, from inside of the cluster.
"""
import os
import pathlib
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount'
PRIORITY = 10
SERVER = 'https://kubernetes.default.svc'


def login_with_service_account(
        *,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Take the credentials from where Kubernetes puts them in pods; None if there are none.

    The token is replaced by Kubernetes now and then: it is read again when its file changes.
    """
    token_path = get_token_path()
    ca_path = os.path.join(FOLDER, 'ca.crt')
    token = _read(token_path)
    if not token:
        return None
    return credentials.ConnectionInfo(
        server=SERVER,
        ca_path=ca_path if os.path.exists(ca_path) else None,
        token=token,
        token_path=token_path,
        default_namespace=_read(os.path.join(FOLDER, 'namespace')) or None,
        priority=PRIORITY,
        trust_env=settings is not None and settings.networking.trust_env,
    )


def get_token_path() -> str:
    """Where the token of the pod is, if there is any."""
    return os.path.join(FOLDER, 'token')


def _read(path: str) -> str | None:
    try:
        return pathlib.Path(path).read_text(encoding='utf-8').strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise credentials.LoginError(f"The service account's {path} is unreadable.") from e
