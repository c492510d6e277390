"""
Piggybacking: credentials from client libraries, if these are installed.

The login also sets the default configuration of the official clients, so that handlers can use
them. The client ``kubernetes`` can also be configured at its import: see `configure_on_import`.

The libraries are imported only here, and only when these functions are called. They ignore some
fields of kubeconfigs, or do not expose them. These fields are added here: proxies, server names for
TLS, namespaces, files of tokens (to follow their rotation), and the tokens of credential plugins.
"""
import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.logins import kubeconfigs, serviceaccounts
from kopf._cogs.structs import credentials

PRIORITY_OF_CLIENT = 10
PRIORITY_OF_ASYNC_CLIENT = 15
PRIORITY_OF_PYKUBE = 20

KEYS = ('BearerToken', 'authorization')
"""The keys under which the official clients keep the token, in their different versions."""

default_logger = logging.getLogger(__name__)

# The login handlers run in several threads. Libraries with common dependencies must not be imported
# simultaneously: some of the dependencies are then seen half-imported.
_importing = threading.Lock()


def login_via_client(
        *,
        logger: Any = default_logger,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Get the credentials with the official client, the library ``kubernetes``.

    In a pod, these are those of the service account; elsewhere, those of the kubeconfigs. This also
    sets the default configuration of the library, so that handlers can use the library. The
    function can be called in a login handler with all arguments of the handler.

    ::

        @kopf.on.login()
        def login(**kwargs):
            return kopf.login_via_client(**kwargs)

    See "Authenticate to the API server" in the documentation.

    :param logger: where to log which credentials are used. Default: a logger of Kopf.
    :param settings: the settings of the operator, for ``settings.networking.trust_env``. Default:
        none.
    :returns: the credentials, or `None` if the library is not installed.
    :raises LoginError: if there is neither a service account nor a usable kubeconfig.
    """
    library = _import('kubernetes')
    if library is None:
        return None
    in_cluster = _configure_client(library, logger)
    config = library.client.Configuration.get_default_copy()
    headers = [config.get_api_key_with_prefix(key) for key in KEYS]
    info = _convert(config, headers, settings, priority=PRIORITY_OF_CLIENT)
    return _supplement(info, in_cluster=in_cluster, settings=settings)


def _configure_client(library: Any, logger: Any) -> bool:
    """Set the default configuration; return whether it is that of a service account in a pod."""
    try:
        library.config.load_incluster_config()
        logger.debug("Client is configured in cluster with service account.")
        return True
    except library.config.ConfigException:
        with _translate_errors("the official client", library.config.ConfigException), _hush():
            library.config.load_kube_config(config_file=_find_kubeconfig())
        logger.debug("Client is configured via kubeconfig file.")
        return False


async def login_via_async_client(
        *,
        logger: Any = default_logger,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Get the credentials with the asynchronous client, the library ``kubernetes_asyncio``.

    It works in the same way as `kopf.login_via_client`.

    ::

        @kopf.on.login()
        def login(**kwargs):
            return kopf.login_via_async_client(**kwargs)

    See "Authenticate to the API server" in the documentation.

    :param logger: where to log which credentials are used. Default: a logger of Kopf.
    :param settings: the settings of the operator, for ``settings.networking.trust_env``. Default:
        none.
    :returns: the credentials, or `None` if the library is not installed.
    :raises LoginError: if there is neither a service account nor a usable kubeconfig.
    """
    library = _import('kubernetes_asyncio')
    if library is None:
        return None
    try:
        library.config.load_incluster_config()
        logger.debug("Async client is configured in cluster with service account.")
        in_cluster = True
    except library.config.ConfigException:
        with _translate_errors("the asynchronous client", library.config.ConfigException), _hush():
            await library.config.load_kube_config(config_file=_find_kubeconfig())
        logger.debug("Async client is configured via kubeconfig file.")
        in_cluster = False
    config = library.client.Configuration.get_default_copy()
    headers = [config.get_api_key_with_prefix(key) for key in KEYS]
    headers = [await header if inspect.isawaitable(header) else header for header in headers]
    info = _convert(config, headers, settings, priority=PRIORITY_OF_ASYNC_CLIENT)
    return _supplement(info, in_cluster=in_cluster, settings=settings)


def login_via_pykube(
        *,
        logger: Any = default_logger,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Get the credentials with pykube-ng, the library ``pykube``.

    In a pod, these are those of the service account; elsewhere, those of the kubeconfigs.

    ::

        @kopf.on.login()
        def login(**kwargs):
            return kopf.login_via_pykube(**kwargs)

    See "Authenticate to the API server" in the documentation.

    :param logger: where to log which credentials are used. Default: a logger of Kopf.
    :param settings: the settings of the operator, for ``settings.networking.trust_env``. Default:
        none.
    :returns: the credentials, or `None` if the library is not installed.
    :raises LoginError: if there is neither a service account nor a usable kubeconfig.
    """
    library = _import('pykube')
    if library is None:
        return None
    with _translate_errors("pykube-ng", library.PyKubeError, FileNotFoundError):
        try:
            config = library.KubeConfig.from_service_account()
            logger.debug("Pykube is configured in cluster with service account.")
            in_cluster = True
        except FileNotFoundError:
            config = library.KubeConfig.from_file(_find_kubeconfig())
            kubeconfigs.load_kubeconfigs()  # stricter than the library: for better errors
            logger.debug("Pykube is configured via kubeconfig file.")
            in_cluster = False

        cluster, user = config.cluster, config.user
        ca, certificate, key = (
            source.filename() if source is not None else None for source in (
                cluster.get('certificate-authority'), user.get('client-certificate'),
                user.get('client-key')))
        info = credentials.ConnectionInfo(
            server=cluster['server'],
            ca_path=ca,
            insecure=cluster.get('insecure-skip-tls-verify'),
            username=user.get('username'),
            password=user.get('password'),
            token=user.get('token'),
            certificate_path=certificate,
            private_key_path=key,
            default_namespace=config.namespace,
            trust_env=settings is not None and settings.networking.trust_env,
            priority=PRIORITY_OF_PYKUBE,
        )
    return _supplement(info, in_cluster=in_cluster, settings=settings)


def is_loaded(name: str) -> bool:
    """Whether the library is imported already, e.g. by the files of the operator."""
    return name in sys.modules


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


async def configure_clients() -> None:
    """
    Let the official clients use ``$KUBECONFIG``, as after a login: those which are imported
    already, and ``kubernetes`` also if it is imported later.
    """
    if is_loaded('kubernetes'):
        login_via_client()
    if is_loaded('kubernetes_asyncio'):
        await login_via_async_client()
    configure_on_import()


def configure_on_import() -> None:
    """
    Set the default configuration of the client ``kubernetes`` when it is imported later.

    So, functions can import and use it after a login without it. The import takes 0.2 seconds and
    10 MB, which operators that do not use the library should not pay.
    """
    if not is_loaded('kubernetes') and not any(
            isinstance(finder, _ConfiguringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ConfiguringFinder())


class _ConfiguringFinder:
    """
    Finds the library ``kubernetes`` as usual, but configures it right after its import.

    It has no base class, as ``importlib.abc`` takes 0.7 MB of memory.
    """

    def find_spec(
            self, fullname: str, path: Any, target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != 'kubernetes':
            return None
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path
                 if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_configure(module: types.ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                with contextlib.suppress(credentials.LoginError):  # it was no login
                    _configure_client(module, default_logger)

            spec.loader.exec_module = execute_and_configure  # type: ignore[method-assign]
        return spec


def _import(name: str) -> Any:
    """Import the library; return None if it is not installed."""
    with _importing:
        try:
            for part in ('config', 'client') if name != 'pykube' else ():
                importlib.import_module(f'{name}.{part}')
            return importlib.import_module(name)
        except ImportError:
            return None


def _find_kubeconfig() -> str:
    """
    Get ``$KUBECONFIG``, or its default. The libraries read the variable only when they are
    imported, and it can be another one then, or later.
    """
    return os.environ.get('KUBECONFIG') or os.path.expanduser(os.path.join('~', '.kube', 'config'))


@contextlib.contextmanager
def _translate_errors(name: str, *expected: type[Exception]) -> Iterator[None]:
    """
    Turn errors into `LoginError`, with the texts of the ``expected`` ones: others quote secrets.
    """
    try:
        yield
    except credentials.LoginError:
        raise
    except expected as e:
        text = str(e)
        if text.startswith('exec:'):
            raise credentials.LoginError(
                f"Cannot log in by {name}: the kubeconfig's credential plugin has failed."
            ) from None
        raise credentials.LoginError(
            f"Cannot log in by {name}: there is neither a service account nor a kubeconfig: {text}"
        ) from None
    except Exception as e:
        raise credentials.LoginError(
            f"Cannot log in by {name}: the kubeconfig is broken ({type(e).__name__}).") from None


@contextlib.contextmanager
def _hush() -> Iterator[None]:
    """Suppress what the clients log if a credential plugin fails: its output can have secrets."""
    def is_harmless(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith('exec:')

    hushed = [logging.getLogger(name) for name in (None, 'kubernetes_asyncio.config.kube_config')]
    for logger in hushed:
        logger.addFilter(is_harmless)
    try:
        yield
    finally:
        for logger in hushed:
            logger.removeFilter(is_harmless)


def _convert(
        config: Any,
        headers: Iterable[str | None],
        settings: configuration.OperatorSettings | None,
        *,
        priority: int,
) -> credentials.ConnectionInfo:
    """Make the credentials of the configuration of a client."""
    header = next(filter(None, headers), '').strip()
    scheme, _, token = header.rpartition(' ')
    return credentials.ConnectionInfo(
        server=config.host,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        username=config.username or None,
        password=config.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
        trust_env=settings is not None and settings.networking.trust_env,
        priority=priority,
    )


def _supplement(
        info: credentials.ConnectionInfo,
        *,
        in_cluster: bool,
        settings: configuration.OperatorSettings | None,
) -> credentials.ConnectionInfo:
    """Add what the library ignores or does not expose; see the module's docstring."""
    if in_cluster:
        return dataclasses.replace(
            info, token_path=serviceaccounts.get_token_path(),
            default_namespace=info.default_namespace or serviceaccounts.get_namespace())
    config = kubeconfigs.load_kubeconfigs()
    try:
        context, cluster, user = config.choose() if config is not None else ({}, {}, {})
    except credentials.LoginError:
        return info
    if user and not info.as_http_headers() and info.certificate_path is None:
        own = kubeconfigs.login_with_kubeconfig(settings=settings)
        return info if own is None else dataclasses.replace(own, priority=info.priority)
    return dataclasses.replace(
        info,
        default_namespace=info.default_namespace or context.get('namespace') or None,
        token_path=user.get('tokenFile') or None,
        tls_server_name=cluster.get('tls-server-name') or None,
        proxy_url=cluster.get('proxy-url') or None)
