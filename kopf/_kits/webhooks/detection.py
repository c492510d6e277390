"""
Detection: what sort of a cluster it is, by the certificate of its API.

The development clusters know the machine that they run on by names of their own; they are told by
the issuers and the alternative names of their certificates.
"""
import asyncio
import logging
import re
import ssl
import urllib.parse
from collections.abc import Collection

from kopf._cogs.clients import kubeconfigs, serviceaccounts
from kopf._cogs.structs import credentials
from kopf._kits.webhooks import servers

logger = logging.getLogger(__name__)

TIMEOUT = 5.0
"""How long (seconds) the API may take to show its certificate."""


class ClusterDetector:
    """A mixin for servers & tunnels which do not know what cluster they are for."""

    @staticmethod
    async def guess_host() -> str | None:
        """
        The name of this machine in the cluster, if it is a cluster of a known sort.

        It is known from the API's certificate. None if there is no cluster, or no library to read
        certificates with.
        """
        try:
            pem = await _fetch_certificate()
            names = [] if pem is None else _list_names(pem)
        except ImportError:
            logger.warning("The sort of the cluster cannot be guessed without the library "
                           "cryptography: `pip install kopf[dev]`.")
            return None
        except (OSError, ValueError, TimeoutError, credentials.LoginError) as e:
            logger.debug(f"The sort of the cluster cannot be guessed: {e}")
            return None
        return recognise(names)


class WebhookAutoServer(ClusterDetector, servers.WebhookServer):
    """
    A server that finds out by which name the cluster reaches it: if it is K3d/K3s, Minikube, or
    Docker Desktop. For all others, it is the same as `kopf.WebhookServer`.
    """

    async def _guess_host(self) -> str | None:
        return await self.guess_host()


def recognise(names: Collection[str]) -> str | None:
    """Tell the name of this machine by what is in the certificate of the API."""
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
    """All the names in a certificate: of its subject, its issuer, and the alternative ones."""
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
