"""
Servers for webhooks, in the process of the operator. The API server must be able to reach it.
"""
import asyncio
import contextlib
import dataclasses
import errno
import ipaddress
import logging
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from kopf._cogs.helpers import files
from kopf._cogs.structs import credentials, reviews
from kopf._kits import siblings
from kopf._kits.webhooks import certificates, httpreviews
from kopf._kits.webhooks.certificates import StrPath

if TYPE_CHECKING:
    from kopf._cogs.serving import inbound

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9443


@dataclasses.dataclass(eq=False, repr=False)
class WebhookContextManager:
    """
    A server whose resources are freed at the end of ``async with`` at the latest.

    Without ``async with``, the resources are freed when the iteration is cancelled or closed, or
    when the iterator is garbage-collected.
    """

    __stack: contextlib.AsyncExitStack = dataclasses.field(
        default_factory=contextlib.AsyncExitStack, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.__stack.aclose()

    def __call__(self, fn: reviews.WebhookFn) -> AsyncIterator[reviews.WebhookClientConfig]:
        generator = self._serve(fn)
        self.__stack.push_async_callback(generator.aclose)
        return generator

    def _serve(self, fn: reviews.WebhookFn) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        raise NotImplementedError


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WebhookServer(WebhookContextManager):
    """
    A webhook server in the process of the operator: HTTPS, or HTTP if ``insecure``.

    A server is for ``settings.admission.server``. Kopf reads all files again when they change,
    without interruptions.

    ::

        @kopf.on.startup()
        def configure(settings, **_):
            settings.admission.server = kopf.WebhookServer(host='operator.example.com')

    See "Validate and mutate objects" in the documentation.

    :param addr: the address to listen on. Default: only this machine; or all addresses, if there is
        a ``host``, a ``certfile``, or a ``context``.
    :param port: the port to listen on. Default: 9443, or any free port if 9443 is taken. With
        ``--processes``, all processes listen on this port, so they need one ``certfile``.
    :param path: the path at the beginning of all URLs. Default: none.
    :param host: the hostname under which the API server reaches this server. Default: the address.
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

    DEFAULT_HOST: ClassVar[str | None] = None

    addr: str | None = None
    port: int | None = None
    path: str | None = None
    host: str | None = None
    cadata: bytes | None = None
    cafile: StrPath | None = None
    cadump: StrPath | None = None
    context: ssl.SSLContext | None = None
    insecure: bool = False
    certfile: StrPath | None = None
    pkeyfile: StrPath | None = None
    password: str | None = None
    extra_sans: Iterable[str] = ()
    verify_mode: ssl.VerifyMode | None = None
    verify_cafile: StrPath | None = None
    verify_capath: StrPath | None = None
    verify_cadata: str | bytes | None = None
    file_check_interval: float = 60.0

    def __repr__(self) -> str:
        return f'<{self.__class__.__name__} at {self.addr or "*"}:{self.port or "*"}>'

    async def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        root = httpreviews.normalise_root(self.path)
        host = self.host or await self._guess_host()
        listener = self._open(fn, root=root, remote=host is not None)
        try:
            host = host or _get_reachable(self.addr)
            url = httpreviews.build_url(
                secure=not self.insecure, host=host, port=listener.port, root=root)
            own = self._make_pair(host)
            known: reviews.WebhookClientConfig | None = None
            paths = [path for path in (
                self.certfile, self.pkeyfile, self.cafile, self.verify_cafile, self.verify_capath)
                if path is not None]
            while True:
                mark = files.look(paths)
                try:
                    context = self._make_context(own)
                    bundle = self._get_bundle(own, host)
                    listener.listen(context)
                except (OSError, ValueError) as e:
                    if known is None:
                        raise
                    logger.warning(f"The certificates have changed, but they cannot be used: {e}")
                else:
                    config = httpreviews.add_bundle({'url': url}, bundle)
                    if known is None:
                        logger.info(f"Listening for webhooks at {url}")
                    else:
                        logger.info("The certificates of the webhooks have changed, and are used.")
                    if config != known:
                        known = config
                        yield config.copy()
                while mark == files.look(paths):
                    await asyncio.sleep(self.file_check_interval)
        finally:
            await listener.close()

    async def _guess_host(self) -> str | None:
        return self.DEFAULT_HOST

    def _open(self, fn: reviews.WebhookFn, *, root: str, remote: bool) -> 'inbound.Listener':
        addr = self.addr
        if addr is None and not remote and self.certfile is None and self.context is None:
            addr = 'localhost'
        shared = bool(self.port) and siblings.are_there()
        if shared and self._needs_pair():
            raise ValueError(
                f"Several processes (--processes) listen at port {self.port}, so they need one "
                f"certificate. Set certfile=, or omit port=.")
        try:
            return httpreviews.make_listener(
                fn, addr=addr, port=DEFAULT_PORT if self.port is None else self.port, root=root,
                shared=shared)
        except OSError as e:
            if self.port is not None or e.errno != errno.EADDRINUSE:
                raise OSError(e.errno, f"Cannot listen at {addr or 'all addresses'}, port "
                                       f"{self.port or DEFAULT_PORT}: {e.strerror or e}") from e
            return httpreviews.make_listener(fn, addr=addr, port=0, root=root)

    def _needs_pair(self) -> bool:
        return not self.insecure and self.certfile is None and (
            self.context is None or not certificates.has_certificate(self.context))

    def _make_pair(self, host: str) -> tuple[bytes, bytes] | None:
        """Make a self-signed certificate and its key, or None if they are not needed."""
        if not self._needs_pair():
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
            for path in (self.certfile, self.pkeyfile):
                if path is not None:
                    os.stat(path)  # its error names the file, unlike that of the context
            # First into another one: a half-renewed pair must not break the context that is served.
            for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
                each.load_cert_chain(
                    self.certfile, self.pkeyfile, self.password or credentials.refuse_encryption)
        verifying = self.verify_cafile or self.verify_capath or self.verify_cadata
        if verifying:
            context.load_verify_locations(
                self.verify_cafile, self.verify_capath, self.verify_cadata)
        if self.verify_mode is not None:
            context.verify_mode = self.verify_mode
        elif verifying and context.verify_mode == ssl.CERT_NONE:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _get_bundle(self, own: tuple[bytes, bytes] | None, host: str) -> bytes | None:
        """Get the authority for the clients, and write it to the file ``cadump``."""
        bundle = self.cadata
        if bundle is None and self.cafile is not None:
            bundle = Path(self.cafile).read_bytes()
        if bundle is None and own is not None:
            bundle = own[0]
        if bundle is None and self.certfile is not None and not self.insecure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certfile, self.pkeyfile, self.password)
            if not certificates.is_trusted(context, host):
                bundle = certificates.get_certificates(Path(self.certfile).read_bytes())
        if bundle is not None and self.cadump is not None:
            Path(self.cadump).write_bytes(bundle)
        return bundle

    @staticmethod
    def build_certificate(
            hostnames: Iterable[str], password: str | None = None,
    ) -> tuple[bytes, bytes]:
        """
        Make a self-signed certificate and its private key.

        The common name is the first hostname, or else the first address. Addresses such as
        ``0.0.0.0`` are left out.

        :param hostnames: the hostnames and the addresses of the server.
        :param password: the password to encrypt the private key with. Default: the key is not
            encrypted.
        :returns: the certificate and the private key, in PEM.
        """
        return certificates.build_certificate(hostnames, password)


class WebhookK3dServer(WebhookServer):
    """
    A webhook server for a K3d or K3s cluster on the same machine, which the cluster knows as
    ``host.k3d.internal``.

    See "Validate and mutate objects" in the documentation.

    :param addr: the address to listen on. Default: only this machine; or all addresses, if there is
        a ``host``, a ``certfile``, or a ``context``.
    :param port: the port to listen on. Default: 9443, or any free port if 9443 is taken. With
        ``--processes``, all processes listen on this port, so they need one ``certfile``.
    :param path: the path at the beginning of all URLs. Default: none.
    :param host: the hostname under which the API server reaches this server. Default:
        ``'host.k3d.internal'``.
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
    DEFAULT_HOST: ClassVar[str | None] = 'host.k3d.internal'


class WebhookMinikubeServer(WebhookServer):
    """
    A webhook server for a Minikube cluster on the same machine, which the cluster knows as
    ``host.minikube.internal``.

    See "Validate and mutate objects" in the documentation.

    :param addr: the address to listen on. Default: only this machine; or all addresses, if there is
        a ``host``, a ``certfile``, or a ``context``.
    :param port: the port to listen on. Default: 9443, or any free port if 9443 is taken. With
        ``--processes``, all processes listen on this port, so they need one ``certfile``.
    :param path: the path at the beginning of all URLs. Default: none.
    :param host: the hostname under which the API server reaches this server. Default:
        ``'host.minikube.internal'``.
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
    DEFAULT_HOST: ClassVar[str | None] = 'host.minikube.internal'


class WebhookDockerDesktopServer(WebhookServer):
    """
    A webhook server for the cluster of Docker Desktop on the same machine, which the cluster knows
    as ``host.docker.internal``.

    See "Validate and mutate objects" in the documentation.

    :param addr: the address to listen on. Default: only this machine; or all addresses, if there is
        a ``host``, a ``certfile``, or a ``context``.
    :param port: the port to listen on. Default: 9443, or any free port if 9443 is taken. With
        ``--processes``, all processes listen on this port, so they need one ``certfile``.
    :param path: the path at the beginning of all URLs. Default: none.
    :param host: the hostname under which the API server reaches this server. Default:
        ``'host.docker.internal'``.
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
    DEFAULT_HOST: ClassVar[str | None] = 'host.docker.internal'


def _get_reachable(addr: str | None) -> str:
    """Find the address for connections from the same host: e.g. 127.0.0.1 for ``0.0.0.0``."""
    try:
        parsed = ipaddress.ip_address((addr or '').strip('[]').partition('%')[0])
    except ValueError:
        return addr or 'localhost'
    if parsed.is_unspecified:
        return '127.0.0.1' if parsed.version == 4 else '::1'
    return str(parsed)
