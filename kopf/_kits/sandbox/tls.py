"""
Throw-away certificates for HTTPS: an authority, the server's, and an administrator's.
"""
import base64
import contextlib
import datetime
import functools
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ('localhost', 'kubernetes', 'kubernetes.default', 'kubernetes.default.svc')
VALIDITY = datetime.timedelta(days=365)


@dataclass(frozen=True, slots=True, repr=False)
class Certificates:
    """All in PEM; they are made for one run of one server, and trusted by nobody else."""
    authority: bytes
    server: bytes
    server_key: bytes
    admin: bytes
    admin_key: bytes

    def context(self) -> ssl.SSLContext:
        """For the server: clients may have certificates of the same authority, or none."""
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cadata=self.authority.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        with tempfile.TemporaryDirectory(prefix='kopf-sandbox-') as folder:  # only of this user
            path = Path(folder, 'server.pem')
            path.write_bytes(self.server + self.server_key)
            context.load_cert_chain(path)
        return context


def make(host: str) -> Certificates:
    """
    New certificates for a server on this host.

    Raises `ImportError` if there is no library for it: it comes with the extra ``kopf[sandbox]``.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    from kopf._cogs.helpers import signing

    now = datetime.datetime.now(datetime.UTC)
    addresses = {ipaddress.ip_address(address) for address in ('127.0.0.1', '::1')}
    with contextlib.suppress(ValueError):  # it is a name
        addresses.add(ipaddress.ip_address(host))
    sign = functools.partial(
        signing.sign, since=now - datetime.timedelta(minutes=5), until=now + VALIDITY)

    def name(*parts: tuple[Any, str]) -> x509.Name:
        return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])

    def usage(oid: Any) -> list[tuple[Any, bool]]:
        return [(x509.BasicConstraints(ca=False, path_length=None), True),
                (x509.ExtendedKeyUsage([oid]), False)]

    ca_key, server_key, admin_key = (signing.make_key() for _ in range(3))
    ca = sign(name((NameOID.COMMON_NAME, 'kopf-sandbox-ca')), ca_key, [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)])
    server = sign(name((NameOID.COMMON_NAME, 'kopf-sandbox')), server_key, [
        (x509.SubjectAlternativeName([
            *map(x509.DNSName, NAMES), *map(x509.IPAddress, addresses)]), False),
        *usage(ExtendedKeyUsageOID.SERVER_AUTH)], issuer=ca.subject, signer=ca_key)
    admin = sign(
        name((NameOID.ORGANIZATION_NAME, 'system:masters'), (NameOID.COMMON_NAME, 'admin')),
        admin_key, usage(ExtendedKeyUsageOID.CLIENT_AUTH), issuer=ca.subject, signer=ca_key)
    return Certificates(
        signing.dump(ca, ca_key)[0], *signing.dump(server, server_key),
        *signing.dump(admin, admin_key))


def encoded(pem: bytes) -> str:
    """As kubeconfigs have it."""
    return base64.b64encode(pem).decode()
