"""
Credentials from kubeconfig files, as with kubectl, without any client library.
"""
import logging
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, dicts

logger = logging.getLogger(__name__)

PRIORITY = 10

_TYPES: Mapping[str, Mapping[str, type]] = {
    'contexts': {'cluster': str, 'user': str, 'namespace': str},
    'clusters': {
        'insecure-skip-tls-verify': bool, 'tls-server-name': str, 'proxy-url': str,
        'certificate-authority': str, 'certificate-authority-data': str, 'extensions': list,
    },
    'users': {
        'token': str, 'tokenFile': str, 'username': str, 'password': str,
        'client-certificate': str, 'client-certificate-data': str,
        'client-key': str, 'client-key-data': str,
        'exec': dict, 'exec.apiVersion': str, 'exec.command': str, 'exec.args': list,
        'exec.env': list, 'exec.interactiveMode': str, 'exec.installHint': str,
        'exec.provideClusterInfo': bool,
    },
}
"""
The types of the fields, which kubectl also checks. (URLs are checked when they are parsed.)

A string instead of a boolean would be dangerous: e.g. ``insecure-skip-tls-verify: "false"`` is true
in Python.
"""

_EXPECTED: Mapping[type, str] = {
    str: "a string, in quotes if it looks like something else",
    bool: "true or false, without quotes",
    list: "a list",
    dict: "a mapping",
}

_PATHS = frozenset({'certificate-authority', 'client-certificate', 'client-key', 'tokenFile'})


def login_with_kubeconfig(
        *,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Get the credentials of the current context in the kubeconfigs.

    These are the files in ``$KUBECONFIG``, or else ``~/.kube/config``. Several files are merged as
    kubectl does: of items with the same name, the first one is used. Absent files are ignored. The
    function blocks while a credential plugin runs, for up to 60 seconds. It can be called in a
    login handler with all arguments of the handler.

    ::

        @kopf.on.login()
        def login(**kwargs):
            return kopf.login_with_kubeconfig(**kwargs)

    See "Authenticate to the API server" in the documentation.

    :param settings: the settings of the operator, for ``settings.networking.trust_env``. Default:
        none.
    :returns: the credentials, or `None` if there are no files, or no current context in them.
    :raises LoginError: if the files are broken, or the current context has no usable credentials.
    """
    config = load_kubeconfigs()
    return None if config is None else read_credentials(config, settings=settings)


def read_credentials(
        config: 'Kubeconfig',
        *,
        settings: configuration.OperatorSettings | None = None,
) -> credentials.ConnectionInfo | None:
    """
    Read the credentials of the current context; None if there is no current context.

    :raises LoginError: if the current context has no usable credentials.
    """
    if not config.current_context:
        return None
    context, cluster, user = config.choose()
    if not cluster.get('server'):
        raise credentials.LoginError(
            f"No server is specified for the cluster {context.get('cluster')!r} in kubeconfigs.")

    server = credentials.parse_url(cluster['server'], 'cluster in kubeconfigs').geturl()

    if user.get('as'):
        logger.warning(
            f"The kubeconfig impersonates {user['as']!r} by `as:`, which Kopf does not: its "
            f"requests have the rights of the user {context.get('user')!r}.")

    found: Mapping[str, Any] = user
    expiration = None
    if user.get('exec'):
        from kopf._cogs.logins import execplugins  # only if it is used
        issued = execplugins.run(user['exec'], cluster=cluster)
        expiration = issued.expiration
        found = {**user, **issued.fields}
    elif user.get('auth-provider') and not user.get('token'):
        raise credentials.LoginError(
            "Kubeconfigs' auth-provider is not supported any more, also not by Kubernetes.")

    try:
        return credentials.ConnectionInfo(
            server=server,
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
    """The merged content of kubeconfig files."""

    def __init__(self) -> None:
        self.current_context: str | None = None
        self._items: dict[tuple[str, str], Mapping[str, Any]] = {}

    def get(self, section: str, name: str) -> Mapping[str, Any]:
        """
        Get an item of a section by its name.

        :raises LoginError: if there is no such item.
        """
        try:
            return self._items[section, name]
        except KeyError:
            raise credentials.LoginError(
                f"There is no {name!r} in the kubeconfig's {section}. There is: "
                f"{', '.join(repr(known) for kind, known in self._items if kind == section)}."
            ) from None

    def choose(self) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
        """
        Get the current context, its cluster, and its user; the user is empty if the context has
        none.

        :raises LoginError: if the named context, cluster, or user does not exist.
        """
        context = self.get('contexts', self.current_context or '')
        cluster = self.get('clusters', context.get('cluster') or '')
        user = self.get('users', context['user']) if context.get('user') else {}
        return context, cluster, user

    def add(self, content: Mapping[str, Any], path: str) -> None:
        """
        Add the content of a file. The items of the previous files are not replaced.

        :raises LoginError: if a value is of another type.
        :raises Exception: of any kind, if the content has a wrong structure.
        """
        folder = os.path.dirname(os.path.abspath(path))
        current = content.get('current-context') or None
        if current is not None and not isinstance(current, str):
            raise TypeError("The name of the current context is not a string.")
        self.current_context = self.current_context or current
        for section, key in [('contexts', 'context'), ('clusters', 'cluster'), ('users', 'user')]:
            for item in content.get(section) or []:
                value = item.get(key) or {}
                if not isinstance(item['name'], str):
                    raise TypeError("The name of an item is not a string.")
                _check_types(value, section, where=f"{path}: {section} {item['name']!r}")
                self._items.setdefault((section, item['name']), {
                    field: _locate(field, val, folder) if val else val
                    for field, val in value.items()
                })


def _locate(field: str, value: Any, folder: str) -> Any:
    """Make a path in the kubeconfig relative to its folder."""
    if field == 'exec':
        from kopf._cogs.logins import execplugins  # only if it is used
        return execplugins.locate(value, folder)
    return os.path.join(folder, value) if field in _PATHS else value


def _check_types(value: Mapping[str, Any], section: str, *, where: str) -> None:
    for field, expected in _TYPES[section].items():
        found = dicts.resolve(value, tuple(field.split('.')), None)
        if found is not None and not isinstance(found, expected):
            shown = f", but it is {reprlib.repr(found)}" if expected is bool else ""
            raise credentials.LoginError(
                f"The field {field} must be {_EXPECTED[expected]}{shown} in the kubeconfig "
                f"{where}.")


def verify() -> str | None:
    """
    Check that the cluster, the user, and the files of the current context exist.

    Returns the name of the context; None if there are no kubeconfigs.

    :raises LoginError: if anything is absent or broken.
    """
    config = load_kubeconfigs()
    if config is None:
        return None
    if not config.current_context:
        raise credentials.LoginError(
            f"No context is selected in the kubeconfig ({describe()}). Select one: "
            f"kubectl config use-context NAME")
    context, cluster, user = config.choose()
    if cluster.get('server'):
        credentials.parse_url(cluster['server'], 'cluster in kubeconfigs')
    for section, name, item in [('cluster', context.get('cluster'), cluster),
                                ('user', context.get('user'), user)]:
        for field in sorted(_PATHS):
            path = item.get(field)
            if path and not item.get(f'{field}-data') and not os.path.exists(path):
                raise credentials.LoginError(
                    f"The {section} {name!r} in kubeconfigs has the {field} {path}, but there is "
                    f"no such file.")
    return config.current_context


def describe() -> str:
    """Say where kubeconfigs are looked for, and what of that is absent."""
    paths = os.environ.get('KUBECONFIG')
    if not paths:
        return "$KUBECONFIG is not set; ~/.kube/config"
    absent = [path for path in map(str.strip, paths.split(os.pathsep))
              if path and not os.path.exists(os.path.expanduser(path))]
    return f"$KUBECONFIG={paths}" + (
        f"; there is no such file: {', '.join(absent)}" if absent else "")


def load_kubeconfigs(paths: Sequence[str] | None = None) -> Kubeconfig | None:
    """
    Load and merge all kubeconfig files, by default those that are found; None if there are none.

    :raises LoginError: if any file is unreadable or broken.
    """
    config = Kubeconfig()
    paths = find_files() if paths is None else paths
    for path in paths:
        try:
            with open(path, 'rb') as file:
                content = next(yaml.safe_load_all(file), None) or {}  # as kubectl, the first one
            config.add(content, path)
        except OSError as e:
            raise credentials.LoginError(f"The kubeconfig {path} is unreadable: {e}") from e
        except yaml.YAMLError as e:
            # Errors of YAML quote the text around the place, which can contain secrets.
            mark = getattr(e, 'problem_mark', None)
            where = f" (line {mark.line + 1})" if mark is not None else ""
            raise credentials.LoginError(f"The kubeconfig {path} is not YAML{where}.") from None
        except RecursionError:
            raise credentials.LoginError(f"The kubeconfig {path} is nested too deeply.") from None
        except (AttributeError, LookupError, TypeError, ValueError):  # also if it is not UTF-8
            raise credentials.LoginError(f"The kubeconfig {path} has a wrong structure.") from None
    return config if paths else None


def find_files() -> list[str]:
    """Find the kubeconfig files: those of ``$KUBECONFIG``, or ``~/.kube/config``, if they exist."""
    paths = os.environ.get('KUBECONFIG') or os.path.join('~', '.kube', 'config')
    files = [os.path.expanduser(path.strip()) for path in paths.split(os.pathsep)]
    return [path for path in files if path and os.path.exists(path)]
