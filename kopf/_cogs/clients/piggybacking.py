"""
Piggybacking: logging in by client libraries, if they are installed; and configuring them by that.

They know ways to authenticate that a kubeconfig alone does not tell. The libraries are imported
only here, and only when they are asked for.
"""
import importlib
import inspect
import logging
import os
from collections.abc import Iterable
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

PRIORITY_OF_CLIENT = 10
PRIORITY_OF_PYKUBE = 20

KEYS = ('BearerToken', 'authorization')
"""Where the clients have their tokens, by their versions."""

default_logger = logging.getLogger(__name__)


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
    except library.config.ConfigException:
        try:
            library.config.load_kube_config(config_file=_find_kubeconfig())
            logger.debug("Client is configured via kubeconfig file.")
        except library.config.ConfigException as e:
            raise _make_error("the official client", e) from e
    config = library.client.Configuration.get_default_copy()
    headers = [config.get_api_key_with_prefix(key) for key in KEYS]
    return _convert(config, headers, settings)


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
    except library.config.ConfigException:
        try:
            await library.config.load_kube_config(config_file=_find_kubeconfig())
            logger.debug("Async client is configured via kubeconfig file.")
        except library.config.ConfigException as e:
            raise _make_error("the asynchronous client", e) from e
    config = library.client.Configuration.get_default_copy()
    headers = [config.get_api_key_with_prefix(key) for key in KEYS]
    return _convert(config, [
        await header if inspect.isawaitable(header) else header for header in headers], settings)


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
    try:
        config = library.KubeConfig.from_service_account()
        logger.debug("Pykube is configured in cluster with service account.")
    except FileNotFoundError:
        try:
            config = library.KubeConfig.from_file(_find_kubeconfig())
            logger.debug("Pykube is configured via kubeconfig file.")
        except (library.PyKubeError, FileNotFoundError, TypeError) as e:
            raise _make_error("pykube-ng", e) from e

    cluster, user = config.cluster, config.user
    ca, certificate, key = (
        source.filename() if source is not None else None for source in (
            cluster.get('certificate-authority'), user.get('client-certificate'),
            user.get('client-key')))
    return credentials.ConnectionInfo(
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


def _import(name: str) -> Any:
    """The library, or None if it is not installed."""
    try:
        for part in ('config', 'client') if name != 'pykube' else ():
            importlib.import_module(f'{name}.{part}')
        return importlib.import_module(name)
    except ImportError:
        return None


def _find_kubeconfig() -> str | None:
    """The libraries look at the environment when they are imported, which can be too early."""
    return os.environ.get('KUBECONFIG') or None


def _make_error(name: str, e: Exception) -> credentials.LoginError:
    return credentials.LoginError(
        f"Cannot log in by {name}: there is neither a service account nor a kubeconfig: {e}")


def _convert(
        config: Any,
        headers: Iterable[str | None],
        settings: configuration.OperatorSettings | None,
) -> credentials.ConnectionInfo:
    """Take what matters from the configuration of a client."""
    header = next(filter(None, headers), '')
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
        priority=PRIORITY_OF_CLIENT,
    )
