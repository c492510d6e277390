"""
Logging in by kubeconfig files, as kubectl does, without any client library.
"""
import os
from collections.abc import Mapping
from typing import Any

import yaml

from kopf._cogs.clients import execplugins
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

PRIORITY = 10

_PATHS = frozenset({'certificate-authority', 'client-certificate', 'client-key', 'tokenFile'})


def login_with_kubeconfig(
        *,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Take the credentials from the files named in ``KUBECONFIG``, or else from ``~/.kube/config``.

    Several files are merged: whatever is named twice, the first one counts; absent files do not
    matter. Returns None if there is no file at all, or if it chooses no context. Raises
    `LoginError` if what is there is broken or of no use. It can block for as long as
    a credential plugin runs.
    """
    config = load_kubeconfigs()
    if config is None or not config.current_context:
        return None
    context, cluster, user = config.choose()
    if not cluster.get('server'):
        raise credentials.LoginError(
            f"No server is specified for the cluster {context.get('cluster')!r} in kubeconfigs.")

    found: Mapping[str, Any] = user
    expiration = None
    if user.get('exec'):
        issued = execplugins.run(user['exec'], cluster=cluster)
        expiration = issued.expiration
        found = {**user, **issued.fields}
    elif user.get('auth-provider') and not user.get('token'):
        raise credentials.LoginError(
            "Kubeconfigs' auth-provider is not supported any more, also not by Kubernetes.")

    try:
        return credentials.ConnectionInfo(
            server=cluster['server'],
            ca_path=None if cluster.get('certificate-authority-data') else
                cluster.get('certificate-authority') or None,
            ca_data=cluster.get('certificate-authority-data') or None,
            insecure=cluster.get('insecure-skip-tls-verify'),
            tls_server_name=cluster.get('tls-server-name') or None,
            proxy_url=cluster.get('proxy-url') or None,
            username=found.get('username') or None,
            password=found.get('password') or None,
            token=found.get('token') or None,
            token_path=found.get('tokenFile') or None,
            certificate_path=None if found.get('client-certificate-data') else
                found.get('client-certificate') or None,
            certificate_data=found.get('client-certificate-data') or None,
            private_key_path=None if found.get('client-key-data') else
                found.get('client-key') or None,
            private_key_data=found.get('client-key-data') or None,
            default_namespace=context.get('namespace') or None,
            expiration=expiration,
            priority=PRIORITY,
            trust_env=settings is not None and settings.networking.trust_env,
        )
    except (TypeError, ValueError) as e:
        raise credentials.LoginError(f"The kubeconfig makes no sense: {e}") from None


class Kubeconfig:
    """The content of one or several kubeconfig files, merged."""

    def __init__(self) -> None:
        super().__init__()
        self.current_context: str | None = None
        self._items: dict[tuple[str, str], Mapping[str, Any]] = {}

    def get(self, section: str, name: str) -> Mapping[str, Any]:
        """The item of the section by its name. Raises `LoginError` if there is none."""
        try:
            return self._items[section, name]
        except KeyError:
            raise credentials.LoginError(
                f"There is no {name!r} in the kubeconfig's {section}.") from None

    def choose(self) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
        """
        The current context, its cluster, and its user (empty if there is none).

        Raises `LoginError` if it chooses what is not there.
        """
        context = self.get('contexts', self.current_context or '')
        cluster = self.get('clusters', context.get('cluster') or '')
        user = self.get('users', context['user']) if context.get('user') else {}
        return context, cluster, user

    def add(self, content: Mapping[str, Any], folder: str) -> None:
        """Add the content of a file: what is there already, remains."""
        self.current_context = self.current_context or content.get('current-context') or None
        for section, key in [('contexts', 'context'), ('clusters', 'cluster'), ('users', 'user')]:
            for item in content.get(section) or []:
                value = item.get(key) or {}
                self._items.setdefault((section, item['name']), {
                    field: os.path.join(folder, val) if val and field in _PATHS else
                    execplugins.locate(val, folder) if val and field == 'exec' else val
                    for field, val in value.items()
                })


def load_kubeconfigs() -> Kubeconfig | None:
    """Load and merge all files; None if there are none. Raises `LoginError` for broken ones."""
    paths = os.environ.get('KUBECONFIG') or os.path.join('~', '.kube', 'config')
    config = Kubeconfig()
    found = False
    for path in paths.split(os.pathsep):
        path = os.path.expanduser(path.strip())
        if not path or not os.path.exists(path):
            continue
        try:
            with open(path, encoding='utf-8') as file:
                content = yaml.safe_load(file) or {}
            config.add(content, os.path.dirname(os.path.abspath(path)))
        except OSError as e:
            raise credentials.LoginError(f"The kubeconfig {path} is unreadable: {e}") from e
        except yaml.YAMLError as e:
            # Errors of YAML quote the lines around, which can have secrets: only the place is told.
            mark = getattr(e, 'problem_mark', None)
            where = f" (line {mark.line + 1})" if mark is not None else ""
            raise credentials.LoginError(f"The kubeconfig {path} is not YAML{where}.") from None
        except (AttributeError, LookupError, TypeError, ValueError):
            raise credentials.LoginError(f"The kubeconfig {path} has a wrong structure.") from None
        found = True
    return config if found else None
