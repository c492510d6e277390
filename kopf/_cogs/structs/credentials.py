"""
Credentials: where the API is, how to talk to it, and as whom.

They are made by login handlers, kept in a vault, and used by the API client. None of them ever
shows a secret in its ``repr()``, so they may be logged and may appear in tracebacks.
"""
import base64
import binascii
import dataclasses
import datetime
import os
import pathlib
import ssl
import tempfile
import urllib.parse
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_SECRETS = frozenset({
    'password', 'token', 'certificate_data', 'private_key_data', 'ca_data',
})
_URLS = frozenset({'server', 'proxy_url'})


class LoginError(Exception):
    """Raised when there is no way to log in to the API, or no credentials that it accepts."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Endpoint:
    server: str
    priority: int = 0
    default_namespace: str | None = None
    expiration: datetime.datetime | None = None

    def __repr__(self) -> str:
        shown = ', '.join(
            f"{field.name}={_conceal(field.name, getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"{self.__class__.__name__}({shown})"

    @property
    def expires(self) -> datetime.datetime | None:
        """The expiration with a timezone: naive times are in UTC."""
        if self.expiration is None or self.expiration.tzinfo is not None:
            return self.expiration
        return self.expiration.replace(tzinfo=datetime.UTC)

    def is_expired(self, now: datetime.datetime) -> bool:
        """Tell whether the credentials are of no use any more."""
        return self.expires is not None and now >= self.expires

    def is_usable(self) -> bool:
        """Whether it makes sense to use them again after they were dropped."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ConnectionInfo(_Endpoint):
    """
    A single endpoint of the API, with the credentials and the flags to connect to it.

    Everything that goes by a path can be given by its data instead, but not by both (`ValueError`).
    Data are PEM texts, or these in base64, as they are in kubeconfigs. Files are read each time the
    connections are set up; the file of the token also when it changes.

    Credentials with a higher priority are preferred; those past their expiration are not used.
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
        if self.ca_path is not None and self.ca_data is not None:
            raise ValueError("Both the path and the data of the CA are set. Only one is needed.")
        if self.certificate_path is not None and self.certificate_data is not None:
            raise ValueError(
                "Both the path and the data of the certificate are set. Only one is needed.")
        if self.private_key_path is not None and self.private_key_data is not None:
            raise ValueError(
                "Both the path and the data of the private key are set. Only one is needed.")

    def as_http_headers(self) -> dict[str, str]:
        """
        The headers by which the API knows the client. They contain secrets: never log them.

        The token's file is read on every call; while it is absent or empty, `token` is used.
        """
        if self.username is not None and self.password is not None:
            pair = f'{self.username}:{self.password}'.encode()
            return {'Authorization': f'Basic {base64.b64encode(pair).decode()}'}
        token = self._read_token() or self.token
        if token:
            return {'Authorization': f"{self.scheme or 'Bearer'} {token}"}
        if self.scheme:
            return {'Authorization': self.scheme}
        return {}

    def as_aiohttp_basic_auth(self) -> 'aiohttp.BasicAuth | None':
        """The user's name and password for aiohttp, if there are both."""
        if self.username is None or self.password is None:
            return None
        import aiohttp
        with warnings.catch_warnings():  # it is deprecated in aiohttp, but not by itself here
            warnings.simplefilter('ignore', DeprecationWarning)
            return aiohttp.BasicAuth(self.username, self.password)

    def as_ssl_context(self) -> ssl.SSLContext:
        """
        The TLS context with the CA and the client certificate, as Python needs it.

        Raises `LoginError` if anything of it is absent, unreadable, or not what it should be.
        """
        try:
            return self._make_ssl_context()
        except FileNotFoundError as e:
            raise LoginError(f"A file of the TLS credentials is absent: {e.filename}") from e
        except (OSError, ValueError) as e:
            raise LoginError(f"The TLS credentials are unusable: {e}") from e

    def _make_ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(
            cafile=_expand(self.ca_path),
            cadata=None if self.ca_data is None else _as_pem(self.ca_data, 'CA').decode('ascii'),
        )
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # many clusters' CAs are not that strict
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_path is None and self.certificate_data is None:
            return context

        # Python loads client certificates only from files: these are gone before it returns.
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
            context.load_cert_chain(certificate, private_key)
        return context

    def _read_token(self) -> str | None:
        path = _expand(self.token_path)
        if path is None:
            return None
        try:
            return pathlib.Path(path).read_text(encoding='utf-8').strip()
        except (OSError, ValueError):
            return None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AiohttpSession(_Endpoint):
    """
    A ready-made session of aiohttp, which carries all that is needed to connect to the server.

    The operator uses it for all of its requests, watching included, and closes it when it is of no
    use any more: when the API rejects it, or when the operator ends.
    """
    aiohttp_session: 'aiohttp.ClientSession'

    def is_usable(self) -> bool:
        return not self.aiohttp_session.closed


Credentials = ConnectionInfo | AiohttpSession


def strip_userinfo(url: str) -> str:
    """The URL without the name and the password in it, so that it may be shown."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition('@')[-1]).geturl()


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
