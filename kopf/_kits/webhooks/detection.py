"""
Detection of development clusters by the certificate of the API server.

In development clusters, the host machine has a special name, e.g. ``host.minikube.internal``. The
issuer and the alternative names of the certificate show the sort of the cluster.
"""
import asyncio
import logging
import re
import ssl
import urllib.parse
from collections.abc import Collection

from kopf._cogs.logins import kubeconfigs, serviceaccounts
from kopf._cogs.structs import credentials
from kopf._kits.webhooks import servers

logger = logging.getLogger(__name__)

TIMEOUT = 5.0
"""How long (seconds) to wait for the certificate of the API server."""


class ClusterDetector:
    """A mixin for servers and tunnels that detect the sort of the cluster."""

    @staticmethod
    async def guess_host() -> str | None:
        """
        Find the name of this machine in the cluster, by the certificate of the API server.

        The result is None if the cluster is of another sort, or is not accessible, or if the
        library ``cryptography`` is not installed.
        """
        try:
            pem = await _fetch_certificate()
            names = [] if pem is None else _list_names(pem)
        except ImportError:
            logger.warning("The sort of the cluster cannot be guessed without the library "
                           "cryptography: `pip install cryptography`.")
            return None
        except (OSError, ValueError, TimeoutError, credentials.LoginError) as e:
            logger.debug(f"The sort of the cluster cannot be guessed: {e}")
            return None
        return recognise(names)


class WebhookAutoServer(ClusterDetector, servers.WebhookServer):
    """
    A webhook server that detects the hostname under which the cluster reaches this machine.

    It detects K3d and K3s, Minikube, and Docker Desktop by the certificate of the API server. For
    other clusters, it is the same as `kopf.WebhookServer`.

    ::

        @kopf.on.startup()
        def configure(settings, **_):
            settings.admission.server = kopf.WebhookAutoServer()

    See "Validate and mutate objects" in the documentation.

    :param addr: the address to listen on. Default: only this machine; or all addresses, if there is
        a ``host``, a ``certfile``, or a ``context``.
    :param port: the port to listen on. Default: 9443, or any free port if 9443 is taken. With
        ``--processes``, all processes listen on this port, so they need one ``certfile``.
    :param path: the path at the beginning of all URLs. Default: none.
    :param host: the hostname under which the API server reaches this server. Default: what is
        detected, or the address.
    :param cadata: the certificates that sign the certificate of this server, for the API server:
        PEM.
    :param cafile: a file with the same certificates. Default: the certificate of this server; or,
        if this machine trusts it, the certificates of the API server's system apply.
    :param cadump: a file to which Kopf writes the same certificates, e.g. for ``curl --cacert``.
        Default: none.
    :param context: a TLS context, instead of a new one.
    :param insecure: whether to serve HTTP instead of HTTPS. API servers do not use HTTP, but
        tunnels do.
    :param certfile: a file with the certificate of this server. Default: Kopf makes a self-signed
        certificate.
    :param pkeyfile: a file with the private key of the certificate. Default: it is in the
        ``certfile``.
    :param password: the password of the private key. Default: none.
    :param extra_sans: more hostnames and addresses for the self-signed certificate.
    :param verify_mode: whether clients need a certificate. Default: optional, if there is something
        to verify it with.
    :param verify_cafile: a file with the certificates to verify clients' certificates with.
    :param verify_capath: a folder with such certificates.
    :param verify_cadata: such certificates as data.
    :param file_check_interval: how often Kopf checks whether the files have changed, in seconds.
    """

    async def _guess_host(self) -> str | None:
        return await self.guess_host()


def recognise(names: Collection[str]) -> str | None:
    """Find the name of this machine by the names in the certificate of the API server."""
    for name in names:
        if re.fullmatch(r'minikube(CA)?(\..*)?|control-plane\.minikube\.internal', name, re.I):
            return servers.WebhookMinikubeServer.DEFAULT_HOST
        if re.match(r'k3s(-|\b)', name, re.I) or name.endswith('.k3d.internal'):
            return servers.WebhookK3dServer.DEFAULT_HOST
        if name.startswith('docker-for-desktop') or name.endswith('.docker.internal'):
            return servers.WebhookDockerDesktopServer.DEFAULT_HOST
    return None


async def _fetch_certificate() -> str | None:
    origin = kubeconfigs.login_with_kubeconfig() or serviceaccounts.login_with_service_account()
    if origin is None or origin.server is None:
        return None
    url = urllib.parse.urlsplit(origin.server)
    if url.scheme != 'https' or url.hostname is None:
        return None
    return await asyncio.to_thread(
        ssl.get_server_certificate, (url.hostname, url.port or 443), timeout=TIMEOUT)


def _list_names(pem: str) -> list[str]:
    """List all names in a certificate: those of the issuer and the subject, and alternatives."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(pem.encode())
    names = [
        str(attribute.value)
        for side in (certificate.issuer, certificate.subject) for attribute in side]
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return names
    return [*names, *extension.value.get_values_for_type(x509.DNSName)]
