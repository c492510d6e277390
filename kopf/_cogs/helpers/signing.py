"""
Certificates that Kopf makes itself.

It needs the library ``cryptography``, so it is imported only where certificates are made.
"""
import datetime
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Key = ec.EllipticCurvePrivateKey


def make_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def sign(
        subject: x509.Name, key: Key, extensions: Iterable[tuple[x509.ExtensionType, bool]], *,
        since: datetime.datetime, until: datetime.datetime,
        issuer: x509.Name | None = None, signer: Key | None = None,
) -> x509.Certificate:
    """
    Make a certificate of a key. The extensions come with whether they are critical.

    By default, it is signed by its own key.
    """
    signer = key if signer is None else signer
    builder = x509.CertificateBuilder(
        issuer_name=subject if issuer is None else issuer, subject_name=subject,
        public_key=key.public_key(), serial_number=x509.random_serial_number(),
        not_valid_before=since, not_valid_after=until)
    identifiers = (
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()))
    for extension, is_critical in (*extensions, *((each, False) for each in identifiers)):
        builder = builder.add_extension(extension, is_critical)
    return builder.sign(signer, hashes.SHA256())


def dump(
        certificate: x509.Certificate, key: Key, password: str | None = None,
) -> tuple[bytes, bytes]:
    """Encode a certificate and its key in PEM; with a password, the key is encrypted."""
    encryption = (
        serialization.BestAvailableEncryption(password.encode()) if password else
        serialization.NoEncryption())
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
