"""
Throw-away certificates for HTTPS: an authority, the server's, and an administrator's.
"""
import base64
import contextlib
import datetime
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
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    addresses = {ipaddress.ip_address(address) for address in ('127.0.0.1', '::1')}
    with contextlib.suppress(ValueError):  # it is a name
        addresses.add(ipaddress.ip_address(host))

    def build(
            subject: list[tuple[Any, str]], issuer: x509.Name | None, key: Any, signer: Any,
            extensions: list[tuple[Any, bool]],
    ) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
        builder = x509.CertificateBuilder(
            issuer_name=issuer or name, subject_name=name, public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(minutes=5), not_valid_after=now + VALIDITY)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        return builder.add_extension(identifier, False).sign(signer, hashes.SHA256())

    def usage(oid: Any) -> list[tuple[Any, bool]]:
        return [(x509.BasicConstraints(ca=False, path_length=None), True),
                (x509.ExtendedKeyUsage([oid]), False)]

    ca_key, server_key, admin_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = build(
        [(NameOID.COMMON_NAME, 'kopf-sandbox-ca')], None, ca_key, ca_key,
        [(x509.BasicConstraints(ca=True, path_length=0), True),
         (x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False),
         (x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)])
    server = build(
        [(NameOID.COMMON_NAME, 'kopf-sandbox')], ca.subject, server_key, ca_key,
        [(x509.SubjectAlternativeName([
            *(x509.DNSName(name) for name in NAMES),
            *map(x509.IPAddress, addresses),
        ]), False), *usage(ExtendedKeyUsageOID.SERVER_AUTH)])
    admin = build(
        [(NameOID.ORGANIZATION_NAME, 'system:masters'), (NameOID.COMMON_NAME, 'admin')],
        ca.subject, admin_key, ca_key, usage(ExtendedKeyUsageOID.CLIENT_AUTH))

    def pem(certificate: x509.Certificate) -> bytes:
        return certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(key: Any) -> bytes:
        text: bytes = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption())
        return text

    return Certificates(
        authority=pem(ca), server=pem(server), server_key=key_pem(server_key),
        admin=pem(admin), admin_key=key_pem(admin_key))


def encoded(pem: bytes) -> str:
    """As kubeconfigs have it."""
    return base64.b64encode(pem).decode()
