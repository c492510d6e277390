"""
Credentials: the address of the API server, and how to connect and authenticate.

Credentials are returned by login handlers, kept in a vault, and used by the API client. Their
``repr()`` contains no secrets, so they can be logged, and can appear in tracebacks.
"""
import base64
import binascii
import dataclasses
import datetime
import numbers
import os
import re
import ssl
import urllib.parse
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_SECRETS = frozenset({'password', 'token', 'certificate_data', 'private_key_data', 'ca_data'})
_URLS = frozenset({'server', 'proxy_url'})

_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    'priority': (numbers.Real, "a number"),
    'expiration': (datetime.datetime, "a datetime"),
    'insecure': (bool, "True, False"),
    **dict.fromkeys(
        ['default_namespace', 'username', 'password', 'scheme', 'token', 'tls_server_name',
         'proxy_url'], (str, "a string")),
    **dict.fromkeys(
        ['ca_data', 'certificate_data', 'private_key_data'], ((str, bytes), "a string, bytes")),
    **dict.fromkeys(
        ['ca_path', 'certificate_path', 'private_key_path', 'token_path'],
        ((str, bytes, os.PathLike), "a path")),
}
"""The types of the fields that would fail later and far from their cause, or be misunderstood."""


class LoginError(Exception):
    """There are no credentials, or they are unusable, or the API server rejects all of them."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class _Endpoint:
    server: str
    priority: int = 0
    default_namespace: str | None = None
    expiration: datetime.datetime | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            known = _TYPES.get(field.name)
            if known is not None and value != field.default and not isinstance(value, known[0]):
                optional = ", or None" if field.default is None else ""
                raise TypeError(f"{field.name}= must be {known[1]}{optional}, not of the type "
                                f"{type(value).__name__!r}.")

    def __repr__(self) -> str:
        shown = ', '.join(
            f"{field.name}={_conceal(field.name, getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"{self.__class__.__name__}({shown})"

    @property
    def expires(self) -> datetime.datetime | None:
        """The expiration with a timezone. Times without a timezone are in UTC."""
        if self.expiration is None or self.expiration.tzinfo is not None:
            return self.expiration
        return self.expiration.replace(tzinfo=datetime.UTC)

    def is_expired(self, now: datetime.datetime) -> bool:
        """Whether the credentials have expired."""
        return self.expires is not None and now >= self.expires

    def is_usable(self) -> bool:
        """Whether the credentials can be used again after they were rejected."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ConnectionInfo(_Endpoint):
    """
    The address of an API server, and the credentials and options for connecting to it.

    Login handlers return it. Certificates and keys are PEM texts, or PEM texts in base64 as in
    kubeconfigs. Kopf reads the files whenever it makes a connection pool. ``repr()`` shows no
    secrets. See "Authenticate to the API server" in the documentation.

    :param server: the URL of the API server, with the scheme ``https`` or ``http``. Required.
    :param priority: a number; Kopf uses the credentials with the highest priority. Default: 0.
    :param default_namespace: the namespace for clients that ask for it, and for the Lease of the
        leader election. Default: none.
    :param expiration: a `datetime.datetime` after which Kopf does not use the credentials; in UTC
        if it has no timezone. Default: never.
    :param ca_path: the path of the certificates that sign the certificate of the server. Default:
        those of the system.
    :param ca_data: the same certificates as data. It excludes ``ca_path``.
    :param insecure: whether to accept any certificate of the server. Default: no.
    :param username: the username for basic authentication, with the ``password``.
    :param password: the password for basic authentication, with the ``username``.
    :param scheme: the scheme of the header ``Authorization``. Default: ``Bearer``.
    :param token: the token for the header ``Authorization``.
    :param token_path: the path of a file with the token, which Kopf reads again when the file
        changes. It takes precedence over ``token``.
    :param certificate_path: the path of the client certificate.
    :param certificate_data: the client certificate as data. It excludes ``certificate_path``.
    :param private_key_path: the path of the private key of the client certificate.
    :param private_key_data: the private key as data. It excludes ``private_key_path``.
    :param tls_server_name: the name that the certificate of the server must contain. Default: the
        host of the URL.
    :param proxy_url: the URL of a proxy, with the scheme ``https`` or ``http``. Default: no proxy.
    :param trust_env: whether to use the proxies of the environment, and ``~/.netrc``. Default: no.
    :raises TypeError: if a value is of another type, e.g. if ``insecure`` is not a boolean.
    :raises ValueError: if both the path and the data of the same thing are given.
    """
    ca_path: AnyPath | None = None
    ca_data: str | bytes | None = None
    insecure: bool | None = None
    username: str | None = None
    password: str | None = None
    scheme: str | None = None
    token: str | None = None
    token_path: AnyPath | None = None
    certificate_path: AnyPath | None = None
    certificate_data: str | bytes | None = None
    private_key_path: AnyPath | None = None
    private_key_data: str | bytes | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    trust_env: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, path, data in (
                ("CA", self.ca_path, self.ca_data),
                ("certificate", self.certificate_path, self.certificate_data),
                ("private key", self.private_key_path, self.private_key_data)):
            if path is not None and data is not None:
                raise ValueError(
                    f"Both the path and the data of the {what} are set. Only one is needed.")

    def as_http_headers(self) -> dict[str, str]:
        """
        Make the headers for authentication. They contain secrets: never log them.

        The file of the token is read at every call. If it is absent or empty, ``token`` is used.

        :raises LoginError: if the token or the scheme has characters that a header cannot have, or
            if the username or the password cannot be encoded.
        """
        if self.username is not None and self.password is not None:
            try:
                pair = f'{self.username}:{self.password}'.encode()
            except UnicodeEncodeError:
                raise LoginError(
                    "The username or the password has characters that cannot be encoded.") from None
            return {'Authorization': f'Basic {base64.b64encode(pair).decode()}'}
        token = self._read_token() or self.token
        if not token and not self.scheme:
            return {}
        header = f"{self.scheme or 'Bearer'} {token}" if token else f'{self.scheme}'
        if not (header.isascii() and header.isprintable()):
            raise LoginError("The token (or its scheme) has characters that cannot be in a header "
                             "of HTTP: only printable ones of ASCII can. Get another token.")
        return {'Authorization': header}

    def as_aiohttp_basic_auth(self) -> 'aiohttp.BasicAuth | None':
        """
        Make the basic authentication for aiohttp; None without both a username and a password.
        """
        if self.username is None or self.password is None:
            return None
        import aiohttp
        with warnings.catch_warnings():  # aiohttp deprecates BasicAuth, but this method is public
            warnings.simplefilter('ignore', DeprecationWarning)
            return aiohttp.BasicAuth(self.username, self.password)

    def as_ssl_context(self) -> ssl.SSLContext:
        """
        Make the TLS context with the CA and the client certificate.

        :raises LoginError: if a file is absent or unreadable, or a certificate or key is wrong.
        """
        try:
            return self._make_ssl_context()
        except FileNotFoundError as e:
            paths = (self.ca_path, self.certificate_path, self.private_key_path)
            absent = [str(path) for path in paths
                      if path is not None and not os.path.exists(_expand(path) or '')]
            raise LoginError(f"A file of the TLS credentials is absent: "
                             f"{', '.join(absent) or e.filename}") from e
        except (OSError, ValueError) as e:
            raise LoginError(f"The TLS credentials are unusable: {e}") from e

    def _make_ssl_context(self) -> ssl.SSLContext:
        context = make_client_context(
            _expand(self.ca_path),
            None if self.ca_data is None else _as_pem(self.ca_data, 'CA').decode('ascii'))
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_path is None and self.certificate_data is None:
            return context

        # Python loads client certificates only from files, so the data are written to temporary
        # files.
        import tempfile  # only if it is used
        with tempfile.TemporaryDirectory(prefix='kopf-') as folder:
            certificate = _expand(self.certificate_path)
            if self.certificate_data is not None:
                certificate = os.path.join(folder, 'tls.crt')
                _write(certificate, _as_pem(self.certificate_data, 'client certificate'))
            private_key = _expand(self.private_key_path)
            if self.private_key_data is not None:
                private_key = os.path.join(folder, 'tls.key')
                _write(private_key, _as_pem(self.private_key_data, 'private key'))
            assert certificate is not None
            context.load_cert_chain(certificate, private_key, refuse_encryption)
        return context

    def _read_token(self) -> str | None:
        path = _expand(self.token_path)
        if path is None:
            return None
        try:
            with open(path, encoding='utf-8') as file:
                return file.read().strip()
        except (OSError, ValueError):
            return None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AiohttpSession(_Endpoint):
    """
    A session of aiohttp with everything that is needed to connect to the API server.

    Login handlers can return it instead of `kopf.ConnectionInfo`. The operator uses the session for
    all requests, also for watches. The operator closes the session when the API server rejects its
    credentials, or when the operator exits.

    :param server: the URL of the API server, with the scheme ``https`` or ``http``. Required.
    :param aiohttp_session: the ``aiohttp.ClientSession``. Required.
    :param priority: a number; Kopf uses the credentials with the highest priority. Default: 0.
    :param default_namespace: the namespace for clients that ask for it, and for the Lease of the
        leader election. Default: none.
    :param expiration: a `datetime.datetime` after which Kopf does not use the credentials; in UTC
        if it has no timezone. Default: never.
    :raises TypeError: if a value is of another type.
    """
    aiohttp_session: 'aiohttp.ClientSession'

    def is_usable(self) -> bool:
        return not self.aiohttp_session.closed


Credentials = ConnectionInfo | AiohttpSession


def strip_userinfo(url: str) -> str:
    """Remove the username and the password from a URL, so that it can be logged."""
    return re.sub(r'^([^/?#]*//)?[^/?#]*@', r'\1', url)


def parse_url(url: str, what: str) -> urllib.parse.SplitResult:
    """
    Parse a URL. The scheme is converted to lower case, and trailing slashes of the path are
    removed.

    ``what`` is the name of the URL for the error.

    :raises LoginError: if the URL has another scheme than http or https, or has no host, or has a
        query or a fragment.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except (AttributeError, TypeError, ValueError):
        raise LoginError(f"The URL of the {what} makes no sense: {_show_url(url)}. "
                         f"Check its host and its port.") from None
    if parts.scheme not in ('http', 'https'):
        raise LoginError(f"The URL of the {what} must begin with https:// (or http://): "
                         f"{_show_url(url)}.")
    if not host or port == 0 or parts.query or parts.fragment or re.search(r'[\s\\]', url.strip()):
        raise LoginError(f"The URL of the {what} must have a host, maybe a port and a path, and "
                         f"nothing more: {_show_url(url)}.")
    userinfo, at, _ = parts.netloc.rpartition('@')
    host = f'[{host}]' if ':' in host else host
    netloc = f'{userinfo}{at}{host}' + (f':{port}' if port is not None else '')
    return parts._replace(netloc=netloc, path=parts.path.rstrip('/'))


def _show_url(url: object) -> str:
    return repr(strip_userinfo(url)) if isinstance(url, str) else type(url).__name__


def _conceal(name: str, value: object) -> str:
    if name in _SECRETS:
        return '***'
    if name in _URLS and isinstance(value, str):
        return repr(strip_userinfo(value))
    return repr(value)


def _expand(path: AnyPath | None) -> str | None:
    return None if path is None else os.path.expanduser(os.fsdecode(path))


def _write(path: str, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'wb') as file:
        file.write(content)


def make_client_context(cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """
    Make a TLS context for clients that trust these authorities; by default, those of the system.

    Since 3.13, Python is strict by default, and refuses the authorities of many clusters, e.g.
    without a key usage. Kubernetes does not.

    :raises ssl.SSLError: if these are no certificates.
    """
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def refuse_encryption() -> str:
    """
    Take the place of the password of a private key, if there is none.

    Otherwise, OpenSSL would ask for the password at the terminal, and block the event loop.

    :raises ValueError: always: the key is encrypted.
    """
    raise ValueError("The private key is encrypted. Decrypt it: openssl pkey -in FILE -out FILE")


def _as_pem(data: str | bytes, what: str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    if b'-----BEGIN ' not in raw:
        try:
            raw = base64.b64decode(b''.join(raw.split()), validate=True)
        except binascii.Error:
            raw = b''
    if b'-----BEGIN ' not in raw:
        raise ValueError(f"The {what} is neither a PEM text nor one in base64.")
    return raw
