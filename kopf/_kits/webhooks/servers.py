"""
Servers: they listen where the operator runs, for API servers that can reach it there.
"""
import asyncio
import errno
import ipaddress
import logging
import ssl
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import ClassVar

from kopf._cogs.structs import reviews
from kopf._kits.webhooks import certificates, contexts, listeners, serving
from kopf._kits.webhooks.certificates import StrPath

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9443


class WebhookServer(contexts.WebhookContextManager):
    """
    A server of HTTPS (or of HTTP if ``insecure``) in the operator's own process.

    It listens at ``addr`` and ``port``; by default, the port is 9443, or any other if that one is
    taken. Without ``addr``, it listens only on the host itself, unless it is told that it is
    reached from elsewhere: by ``host``, or by a certificate. The API is given the URL with ``host``
    (by default, the address), the port, and ``path``.

    Without ``certfile`` & ``pkeyfile``, a self-signed certificate is made for the host and
    the address, and for ``extra_sans``. The ``password`` is for the private key. ``cadata`` or
    ``cafile`` is the authority to be told to clients: by default, the self-signed certificate;
    or none, then their usual authorities count. It is also written to the file ``cadump``.

    Clients' certificates are asked for if there is anything to verify them by, and required if
    ``verify_mode`` says so. All files are looked at every ``file_check_interval`` seconds; when
    they have changed, they are loaded again, without any interruption.
    """

    DEFAULT_HOST: ClassVar[str | None] = None

    def __init__(
            self,
            *,
            addr: str | None = None,
            port: int | None = None,
            path: str | None = None,
            host: str | None = None,
            cadata: bytes | None = None,
            cafile: StrPath | None = None,
            cadump: StrPath | None = None,
            context: ssl.SSLContext | None = None,
            insecure: bool = False,
            certfile: StrPath | None = None,
            pkeyfile: StrPath | None = None,
            password: str | None = None,
            extra_sans: Iterable[str] = (),
            verify_mode: ssl.VerifyMode | None = None,
            verify_cafile: StrPath | None = None,
            verify_capath: StrPath | None = None,
            verify_cadata: str | bytes | None = None,
            file_check_interval: float = 60.0,
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path
        self.host = host
        self.cadata = cadata
        self.cafile = cafile
        self.cadump = cadump
        self.context = context
        self.insecure = insecure
        self.certfile = certfile
        self.pkeyfile = pkeyfile
        self.password = password
        self.extra_sans = extra_sans
        self.verify_mode = verify_mode
        self.verify_cafile = verify_cafile
        self.verify_capath = verify_capath
        self.verify_cadata = verify_cadata
        self.file_check_interval = file_check_interval

    def __repr__(self) -> str:
        return f'<{self.__class__.__name__} at {self.addr or "*"}:{self.port or "*"}>'

    async def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        root = serving.normalise_root(self.path)
        host = self.host or await self._guess_host()
        listener = self._open(fn, root=root, remote=host is not None)
        try:
            host = host or _get_reachable(self.addr)
            url = serving.build_url(
                secure=not self.insecure, host=host, port=listener.port, root=root)
            own = self._make_pair(host)
            known: reviews.WebhookClientConfig | None = None
            files = [path for path in (
                self.certfile, self.pkeyfile, self.cafile, self.verify_cafile, self.verify_capath)
                if path is not None]
            while True:
                traces = certificates.look(files)
                try:
                    context = self._make_context(own)
                    bundle = self._get_bundle(own)
                    await listener.listen(context)
                except (OSError, ValueError) as e:
                    if known is None:
                        raise
                    logger.warning(f"The certificates have changed, but they cannot be used: {e}")
                else:
                    config = serving.as_config(url, bundle)
                    if known is None:
                        logger.info(f"Listening for webhooks at {url}")
                    else:
                        logger.info("The certificates of the webhooks have changed, and are used.")
                    if config != known:
                        known = config
                        yield config.copy()
                while traces == certificates.look(files):
                    await asyncio.sleep(self.file_check_interval)
        finally:
            await listener.close()

    async def _guess_host(self) -> str | None:
        return self.DEFAULT_HOST

    def _open(self, fn: reviews.WebhookFn, *, root: str, remote: bool) -> listeners.Listener:
        addr = self.addr
        if addr is None and not remote and self.certfile is None and self.context is None:
            addr = 'localhost'
        try:
            return serving.make_listener(
                fn, addr=addr, port=DEFAULT_PORT if self.port is None else self.port, root=root)
        except OSError as e:
            if self.port is not None or e.errno != errno.EADDRINUSE:
                raise OSError(e.errno, f"Cannot listen at {addr or 'all addresses'}, port "
                                       f"{self.port or DEFAULT_PORT}: {e.strerror or e}") from e
            return serving.make_listener(fn, addr=addr, port=0, root=root)

    def _make_pair(self, host: str) -> tuple[bytes, bytes] | None:
        """A self-signed certificate, where one is needed, and its key."""
        if self.insecure or self.certfile is not None or (
                self.context is not None and certificates.has_certificate(self.context)):
            return None
        names = [host, *([self.addr] if self.addr else []), *self.extra_sans]
        return self.build_certificate(names, self.password)

    def _make_context(self, own: tuple[bytes, bytes] | None) -> ssl.SSLContext | None:
        if self.insecure:
            return None
        context = self.context
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        if own is not None:
            certificates.load_pair(context, own, self.password)
        elif self.certfile is not None:
            context.load_cert_chain(self.certfile, self.pkeyfile, self.password)
        verifying = self.verify_cafile or self.verify_capath or self.verify_cadata
        if verifying:
            context.load_verify_locations(
                self.verify_cafile, self.verify_capath, self.verify_cadata)
        if self.verify_mode is not None:
            context.verify_mode = self.verify_mode
        elif verifying and context.verify_mode == ssl.CERT_NONE:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _get_bundle(self, own: tuple[bytes, bytes] | None) -> bytes | None:
        """The authority for the clients; it is also written to the file for that."""
        bundle = self.cadata
        if bundle is None and self.cafile is not None:
            bundle = Path(self.cafile).read_bytes()
        if bundle is None and own is not None:
            bundle = own[0]
        if bundle is not None and self.cadump is not None:
            Path(self.cadump).write_bytes(bundle)
        return bundle

    @staticmethod
    def build_certificate(
            hostnames: Iterable[str], password: str | None = None,
    ) -> tuple[bytes, bytes]:
        """
        Make a self-signed certificate for these names & addresses, and its private key, in PEM.

        The common name is the first name, or else the first address; ``0.0.0.0`` and the like
        are left out. With a password, the key is encrypted.
        """
        return certificates.build_certificate(hostnames, password)


class WebhookK3dServer(WebhookServer):
    """A server for K3d/K3s on the same machine: they know it by a name of their own."""
    DEFAULT_HOST: ClassVar[str | None] = 'host.k3d.internal'


class WebhookMinikubeServer(WebhookServer):
    """A server for Minikube on the same machine: it knows it by a name of its own."""
    DEFAULT_HOST: ClassVar[str | None] = 'host.minikube.internal'


class WebhookDockerDesktopServer(WebhookServer):
    """A server for Docker Desktop on the same machine: it knows it by a name of its own."""
    DEFAULT_HOST: ClassVar[str | None] = 'host.docker.internal'


def _get_reachable(addr: str | None) -> str:
    """How the address can be reached from the host itself."""
    try:
        parsed = ipaddress.ip_address((addr or '').strip('[]').partition('%')[0])
    except ValueError:
        return addr or 'localhost'
    if parsed.is_unspecified:
        return '127.0.0.1' if parsed.version == 4 else '::1'
    return str(parsed)
