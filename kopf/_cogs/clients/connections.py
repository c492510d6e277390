"""
Connections: the HTTP sessions with one set of credentials, and everything they can prepare once.
"""
import logging
import os
import ssl as ssl_
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import TypedDict

import aiohttp

from kopf._cogs.clients import sockets, wires
from kopf._cogs.structs import credentials

logger = logging.getLogger(__name__)

USER_AGENT = 'kopf'
KEEPALIVE = 60.0
"""
How long (seconds) an idle connection is kept.

API servers close idle connections after 90 seconds. A shorter time here avoids requests over a
connection that the server is about to close.
"""
POOL_SIZE = 16
"""How many connections there are for regular requests."""
READ_BUFFER = 256 * 1024
FILES_CHECK_INTERVAL = 1.0
"""How often (seconds) the files of the credentials are checked for changes."""
TOKEN_READ_INTERVAL = 60.0
"""How often (seconds) the file of the token is read even if it seems to be unchanged."""

Mark = tuple[tuple[int, ...], ...]
"""The modification times, inodes, and sizes of files: it changes when any of the files changes."""


class Options(TypedDict, total=False):
    server_hostname: str
    proxy: str


class Connection:
    """
    The sessions with one set of credentials.

    `regular` is a small pool for short requests; `streaming` has a separate connection for each
    watch, so that watches do not occupy the pool; `wire` is for writes.

    The callers count themselves in `users`. A retired connection is closed when there are none.
    """

    def __init__(self, origin: credentials.Credentials, *, trust_env: bool = False) -> None:
        super().__init__()
        self.origin = origin
        url = credentials.parse_url(origin.server, 'API server')
        self.base = url.geturl()
        self.root = url.path
        """The path of the server's URL, which all paths of the API begin with; usually empty."""
        self.shown = credentials.strip_userinfo(self.base)
        self.users = 0
        self.closed = False
        self.options: Options = {}
        self.wire: wires.Wire | None = None
        """The fast connections for writes; None if `regular` must be used, e.g. with a proxy."""
        self.outdated = False
        """Whether the files of the certificates have changed since this connection was made."""
        self._retired = False
        self._has_files = False
        self._headers: dict[str, Mapping[str, str]] = {}
        self._auth: dict[str, str] = {}
        self._token_time = self._files_checked = time.monotonic()
        self._token_mark: Mark = ()
        self._tls_mark: Mark = ()

        if isinstance(origin, credentials.AiohttpSession):
            self.regular = self.streaming = origin.aiohttp_session
            return

        self._token_mark, self._tls_mark = self._look_at_token(), self._look_at_tls()
        self._has_files = bool(self._token_mark or self._tls_mark)
        self._auth = origin.as_http_headers()
        trust_env = trust_env or origin.trust_env
        if origin.tls_server_name:
            self.options['server_hostname'] = origin.tls_server_name
        proxy = origin.proxy_url or (_find_proxy(url) if trust_env else None)
        if proxy:
            self.options['proxy'] = credentials.parse_url(proxy, 'proxy').geturl()

        ssl = origin.as_ssl_context() if url.scheme == 'https' else None
        if not proxy:
            self.wire = _make_wire(url, ssl, origin.tls_server_name)

        # With trust_env, aiohttp takes passwords from ~/.netrc. They must not replace the
        # credentials.
        netrc = trust_env and not self._auth
        self.regular = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=ssl or True, limit=POOL_SIZE, keepalive_timeout=KEEPALIVE,
                socket_factory=sockets.make_socket),
            cookie_jar=aiohttp.DummyCookieJar(), trust_env=netrc,
        )
        self.streaming = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=ssl or True, limit=0, force_close=True, socket_factory=sockets.make_socket),
            cookie_jar=aiohttp.DummyCookieJar(), trust_env=netrc,
            read_bufsize=READ_BUFFER,
        )

    def get_headers(self, accept: str, content_type: str | None) -> Mapping[str, str]:
        """
        Get the headers of a request. They are prepared once, and again when the token changes.
        """
        key = f'{accept} {content_type}'
        headers = self._headers.get(key)
        if headers is None:
            headers = {
                'User-Agent': USER_AGENT, 'Accept': accept, 'Accept-Encoding': 'identity',
                **({'Content-Type': content_type} if content_type else {}), **self._auth,
            }
            self._headers[key] = headers
        return headers

    def renew_token(self, rejected: Mapping[str, str] | None = None) -> bool:
        """
        Read the file of the token again, and return whether the token has changed.

        With the headers of a ``rejected`` request, the token is compared with the one in the
        headers: another request can have renewed the token in the meantime.
        """
        if isinstance(self.origin, credentials.AiohttpSession) or self.origin.token_path is None:
            return False
        self._token_time = time.monotonic()
        self._token_mark = self._look_at_token()
        known = self._auth
        try:
            self._auth = self.origin.as_http_headers()
        except credentials.LoginError as e:
            logger.warning(f"The new token is of no use, and the former one is kept. {e}")
        if self._auth != known:
            self._headers.clear()
        old = known if rejected is None else rejected
        return self._auth.get('Authorization') != old.get('Authorization')

    async def retire(self) -> None:
        """Close the sessions when the requests under way have ended; there must be no new ones."""
        self._retired = True
        await self.release()

    async def release(self) -> None:
        """Close the sessions if this connection is retired and has no users."""
        if self._retired and self.users <= 0:
            await self.close()

    async def close(self) -> None:
        """Close the sessions, also if they are in use."""
        self.closed = True
        if self.wire is not None:
            self.wire.close()
        await self.regular.close()
        await self.streaming.close()

    def follow_files(self) -> None:
        """
        Check the files of the credentials for changes, at most once per `FILES_CHECK_INTERVAL`.
        """
        if not self._has_files:
            return
        now = time.monotonic()
        if now - self._files_checked < FILES_CHECK_INTERVAL:
            return
        self._files_checked = now
        self.outdated = self._look_at_tls() != self._tls_mark
        if self._token_mark and (
            now - self._token_time >= TOKEN_READ_INTERVAL
            or self._look_at_token() != self._token_mark
        ):
            self.renew_token()

    def has_new_certificates(self) -> bool:
        """Check the files of the certificates now, and return whether they have changed."""
        self.outdated = self._look_at_tls() != self._tls_mark
        return self.outdated

    def keep_certificates(self) -> None:
        """
        Ignore the present state of the certificates' files, which is broken, until they change.
        """
        self._tls_mark = self._look_at_tls()
        self.outdated = False

    def _look_at_token(self) -> Mark:
        origin = self.origin
        return () if isinstance(origin, credentials.AiohttpSession) else _look_at(origin.token_path)

    def _look_at_tls(self) -> Mark:
        origin = self.origin
        return () if isinstance(origin, credentials.AiohttpSession) else _look_at(
            origin.ca_path, origin.certificate_path, origin.private_key_path)


def _look_at(*paths: credentials.AnyPath | None) -> Mark:
    marks: list[tuple[int, ...]] = []
    for path in paths:
        if path is not None:
            try:
                stat = os.stat(os.path.expanduser(os.fsdecode(path)))
            except OSError:
                marks.append(())
            else:
                marks.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return tuple(marks)


def _make_wire(
        url: urllib.parse.SplitResult, ssl: ssl_.SSLContext | None, server_hostname: str | None,
) -> wires.Wire | None:
    if url.hostname is None or url.username is not None:
        return None
    return wires.Wire(
        host=url.hostname, port=url.port or (80 if ssl is None else 443), ssl=ssl,
        server_hostname=server_hostname, limit=POOL_SIZE, keepalive=KEEPALIVE)


def _find_proxy(url: urllib.parse.SplitResult) -> str | None:
    if urllib.request.proxy_bypass(url.netloc.rpartition('@')[-1]):
        return None
    proxy = urllib.request.getproxies().get(url.scheme)
    # The scheme can be omitted, as for kubectl and curl.
    return f'http://{proxy}' if proxy and '://' not in proxy else proxy
