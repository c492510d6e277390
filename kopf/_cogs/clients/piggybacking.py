"""
Piggybacking: logging in by client libraries, if they are installed; and configuring them by that.

They know ways to authenticate that a kubeconfig alone does not tell. The libraries are imported
only here, and only when they are asked for. What they do not tell of a kubeconfig is added to what
they do: proxies, names of servers in TLS, files of tokens (to follow their rotation), and tokens of
credential plugins, where the library runs these for its own requests only.
"""
import contextlib
import dataclasses
import importlib
import inspect
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from kopf._cogs.clients import kubeconfigs, serviceaccounts
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

PRIORITY_OF_CLIENT = 10
PRIORITY_OF_ASYNC_CLIENT = 15
PRIORITY_OF_PYKUBE = 20

KEYS = ('BearerToken', 'authorization')
"""Where the clients have their tokens, by their versions."""

default_logger = logging.getLogger(__name__)

_importing = threading.Lock()  # libraries share their dependencies, which are no good at threads


def login_via_client(
        *,
        logger: Any = default_logger,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Log in by the official Kubernetes client: in a pod, by its service account; else by kubeconfig.

    The library's default configuration is set by this, so that calls in handlers work. Returns None
    if the library is not installed.

    :raises LoginError: if the library has nothing to log in with.
    """
    library = _import('kubernetes')
    if library is None:
        return None
    try:
        library.config.load_incluster_config()
        logger.debug("Client is configured in cluster with service account.")
        in_cluster = True
    except library.config.ConfigException:
        with _translate_errors("the official client", library.config.ConfigException), _hush():
            library.config.load_kube_config(config_file=_find_kubeconfig())
        logger.debug("Client is configured via kubeconfig file.")
        in_cluster = False
    config = library.client.Configuration.get_default_copy()
    headers = [config.get_api_key_with_prefix(key) for key in KEYS]
    info = _convert(config, headers, settings, priority=PRIORITY_OF_CLIENT)
    return _supplement(info, in_cluster=in_cluster, settings=settings)


async def login_via_async_client(
        *,
        logger: Any = default_logger,
        settings: configuration.OperatorSettings | None = None,
        **_: Any,
) -> credentials.ConnectionInfo | None:
    """
    Log in by the asynchronous Kubernetes client, in the same way as `login_via_client`.

    :raises LoginError: if the library has nothing to log in with.
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
    Log in by pykube-ng: in a pod, by its service account; else by kubeconfig.

    Returns None if the library is not installed.

    :raises LoginError: if the library has nothing to log in with.
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
            path = _find_kubeconfig()
            config = library.KubeConfig.from_file(*([path] if path else []))
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


def _import(name: str) -> Any:
    """The library, or None if it is not installed."""
    with _importing:
        try:
            for part in ('config', 'client') if name != 'pykube' else ():
                importlib.import_module(f'{name}.{part}')
            return importlib.import_module(name)
        except ImportError:
            return None


def _find_kubeconfig() -> str | None:
    """The libraries look at the environment when they are imported, which can be too early."""
    return os.environ.get('KUBECONFIG') or None


@contextlib.contextmanager
def _translate_errors(name: str, *expected: type[Exception]) -> Iterator[None]:
    """Only what the library means to tell is told; whatever quotes the files has their secrets."""
    try:
        yield
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
    """The clients log what credential plugins print when they fail: there can be secrets in it."""
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
    """Take what matters from the configuration of a client."""
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
    if in_cluster:
        return dataclasses.replace(info, token_path=serviceaccounts.get_token_path())
    try:
        config = kubeconfigs.load_kubeconfigs()
        _, cluster, user = config.choose() if config is not None else (None, {}, {})
    except credentials.LoginError:
        return info
    if user and not info.as_http_headers() and info.certificate_path is None:
        own = kubeconfigs.login_with_kubeconfig(settings=settings)
        return info if own is None else dataclasses.replace(own, priority=info.priority)
    return dataclasses.replace(
        info,
        token_path=user.get('tokenFile') or None,
        tls_server_name=cluster.get('tls-server-name') or None,
        proxy_url=cluster.get('proxy-url') or None)
