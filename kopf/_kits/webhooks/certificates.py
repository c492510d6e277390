"""
Certificates: self-signed ones, and how TLS contexts get them.
"""
import contextlib
import datetime
import ipaddress
import os
import re
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path

from kopf._cogs.structs import credentials

StrPath = str | os.PathLike[str]

VALIDITY = datetime.timedelta(days=3650)
"""How long self-signed certificates are valid. Operators do not renew them, so it is long."""

CLOCK_SKEW = datetime.timedelta(hours=1)
"""By how much the clock of an API server can be behind."""

MAX_COMMON_NAME = 64

ADVICE = (
    "Self-signed certificates need the library cryptography: `pip install cryptography`; "
    "or give certificates as certfile= & pkeyfile=, or use insecure=True.")


class MissingLibraryError(Exception):
    """A library that an extra of Kopf needs is not installed."""


def build_certificate(
        hostnames: Iterable[str], password: str | None = None, *,
        validity: datetime.timedelta = VALIDITY, now: datetime.datetime | None = None,
) -> tuple[bytes, bytes]:
    """
    Make a self-signed certificate and its private key.

    The common name is the first hostname, or else the first address. Addresses such as ``0.0.0.0``
    are left out. The certificate is its own authority, so clients can use it as ``caBundle``.

    :param hostnames: the hostnames and the addresses of the server.
    :param password: the password to encrypt the private key with. Default: the key is not
        encrypted.
    :param validity: how long the certificate is valid.
    :param now: since when it is; its time begins earlier by `CLOCK_SKEW`. Default: now.
    :returns: the certificate and the private key, in PEM.
    :raises MissingLibraryError: if the library ``cryptography`` is not installed.
    :raises ValueError: if there are no names.
    """
    try:
        from cryptography import x509
        from cryptography.x509 import oid

        from kopf._cogs.helpers import signing
    except ImportError as e:
        raise MissingLibraryError(ADVICE) from e

    names, addresses = sort_hostnames(hostnames)
    if not names and not addresses:
        raise ValueError("A certificate needs a name or an address of the host.")
    common_name = (names or [str(address) for address in addresses])[0]
    subject = x509.Name(
        [x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name)]
        if len(common_name) <= MAX_COMMON_NAME else [])
    key = signing.make_key()
    now = datetime.datetime.now(datetime.UTC) if now is None else now
    certificate = signing.sign(subject, key, [
        (x509.SubjectAlternativeName([
            *map(x509.DNSName, names), *map(x509.IPAddress, addresses)]), not subject),
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, crl_sign=False,
            encipher_only=False, decipher_only=False), True),
        (x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ], since=now - CLOCK_SKEW, until=now + validity)
    return signing.dump(certificate, key, password)


def read(
        pem: bytes, key: bytes | None,
) -> tuple[frozenset[str], datetime.datetime, datetime.datetime]:
    """
    Read the names and the addresses of a certificate, and since and until when it is valid.

    :raises MissingLibraryError: if the library ``cryptography`` is not installed.
    :raises ValueError: if it is no certificate, or if the key, if given, is not its key.
    """
    try:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
    except ImportError as e:
        raise MissingLibraryError(ADVICE) from e
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        if key is not None and certificate.public_key() != serialization.load_pem_private_key(
                key, None).public_key():
            raise ValueError("The key is of another certificate.")
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, UnsupportedAlgorithm, TypeError) as e:
        raise ValueError("The certificate is of another sort.") from e
    names = [*sans.get_values_for_type(x509.DNSName),
             *map(str, sans.get_values_for_type(x509.IPAddress))]
    return frozenset(names), certificate.not_valid_before_utc, certificate.not_valid_after_utc


def sort_hostnames(
        hostnames: Iterable[str],
) -> tuple[list[str], list[ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Separate names from addresses, in their order, without duplicates, as in certificates."""
    names: dict[str, None] = {}
    addresses: dict[ipaddress.IPv4Address | ipaddress.IPv6Address, None] = {}
    for hostname in filter(None, hostnames):
        try:
            address = ipaddress.ip_address(hostname.strip('[]').partition('%')[0])
        except ValueError:
            names[hostname if hostname.isascii() else hostname.encode('idna').decode()] = None
        else:
            if not address.is_unspecified:
                addresses[address] = None
    return list(names), list(addresses)


def normalise(hostnames: Iterable[str]) -> frozenset[str]:
    """Make the names and the addresses as `read` returns them."""
    names, addresses = sort_hostnames(hostnames)
    return frozenset([*names, *map(str, addresses)])


def load_pair(context: ssl.SSLContext, pair: tuple[bytes, bytes], password: str | None) -> None:
    """Load a certificate and its key into the context, by files that only the operator can read."""
    with tempfile.TemporaryDirectory(prefix='kopf-') as folder:
        path = Path(folder, 'pair.pem')
        path.write_bytes(b'\n'.join(pair))
        context.load_cert_chain(path, password=password or None)


def has_certificate(context: ssl.SSLContext) -> bool:
    """Whether the context has a certificate. A context shows this only in a handshake."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    return _shake_hands(context, trusting, rounds=1) is not False  # it can demand one of the client


def is_trusted(context: ssl.SSLContext, host: str) -> bool:
    """Check if clients with the authorities of this machine accept a server with this context."""
    trusting = credentials.make_client_context()
    return _shake_hands(context, trusting, host, rounds=3) is True  # TLS needs two at most


def _shake_hands(
        context: ssl.SSLContext, client_context: ssl.SSLContext, host: str | None = None, *,
        rounds: int,
) -> bool | None:
    """Let a client and a server shake hands; None if they need more rounds to agree or not."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    try:
        for _ in range(rounds):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                return True
            with contextlib.suppress(ssl.SSLWantReadError):
                server.do_handshake()
    except ssl.SSLError:
        return False
    return None


def get_certificates(pem: bytes) -> bytes:
    """Get the certificates of a file without anything else in it, such as the private key."""
    return b''.join(re.findall(
        rb'^-----BEGIN CERTIFICATE-----.+?^-----END CERTIFICATE-----\s*', pem,
        flags=re.DOTALL | re.MULTILINE))
