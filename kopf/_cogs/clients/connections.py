"""
Connections: the pools for one set of credentials, with all that can be prepared beforehand.
"""
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

USER_AGENT = 'kopf'
KEEPALIVE = 60.0  # less than the 90 seconds of the API servers, which so never hang up first
POOL_SIZE = 16
READ_BUFFER = 256 * 1024
FILES_CHECK_INTERVAL = 1.0
TOKEN_READ_INTERVAL = 60.0

Mark = tuple[tuple[int, ...], ...]
"""Something that changes with files: empty for those that are absent."""


class Options(TypedDict, total=False):
    server_hostname: str
    proxy: str


class Connection:
    """
    The sessions for one set of credentials: a small warm pool for regular requests, and one
    connection for each watch-stream.

    It is in use while `users` is positive; a retired one closes itself when it is not.
    """

    def __init__(self, origin: credentials.Credentials, *, trust_env: bool = False) -> None:
        super().__init__()
        self.origin = origin
        self.base = origin.server.rstrip('/')
        self.root = urllib.parse.urlsplit(self.base).path
        """What the paths of the API are under, if the server is not at the root of its URL."""
        self.shown = credentials.strip_userinfo(self.base)
        self.users = 0
        self.closed = False
        self.options: Options = {}
        self.wire: wires.Wire | None = None
        """For writes; None where these have to go as all other requests."""
        self.outdated = False
        """Whether the files of its certificates have changed since it was made."""
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
        proxy = origin.proxy_url or (_find_proxy(self.base) if trust_env else None)
        if proxy:
            self.options['proxy'] = proxy

        ssl = origin.as_ssl_context() if self.base.startswith('https:') else None
        if not proxy:
            self.wire = _make_wire(self.base, ssl, origin.tls_server_name)

        # With trust_env, aiohttp looks into ~/.netrc: only for those without other credentials.
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
        """Headers of a request, prepared once; anew when the file of the token changes."""
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
        Read the token's file again, and tell whether there is another token in it now.

        With the headers of a rejected request, it is compared with the token in these: other
        requests can have renewed it already.
        """
        if isinstance(self.origin, credentials.AiohttpSession) or self.origin.token_path is None:
            return False
        self._token_time = time.monotonic()
        self._token_mark = self._look_at_token()
        known, self._auth = self._auth, self.origin.as_http_headers()
        if self._auth != known:
            self._headers.clear()
        old = known if rejected is None else rejected
        return self._auth.get('Authorization') != old.get('Authorization')

    async def retire(self) -> None:
        """Take no new requests, and close when those under way have ended."""
        self._retired = True
        await self.release()

    async def release(self) -> None:
        """Close the connections if nobody needs them any more."""
        if self._retired and self.users <= 0:
            await self.close()

    async def close(self) -> None:
        """Close the connections, whoever uses them."""
        self.closed = True
        if self.wire is not None:
            self.wire.close()
        await self.regular.close()
        await self.streaming.close()

    def follow_files(self) -> None:
        """Look at the files of the credentials now and then: at most once a second."""
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
        """Look at the files of the certificates right now, and tell whether they have changed."""
        self.outdated = self._look_at_tls() != self._tls_mark
        return self.outdated

    def keep_certificates(self) -> None:
        """Take no notice of the files as they are now, only of the next change of them."""
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
        base: str, ssl: ssl_.SSLContext | None, server_hostname: str | None,
) -> wires.Wire | None:
    parts = urllib.parse.urlsplit(base)
    if parts.hostname is None or parts.username is not None:
        return None
    return wires.Wire(
        host=parts.hostname, port=parts.port or (80 if ssl is None else 443), ssl=ssl,
        server_hostname=server_hostname, limit=POOL_SIZE, keepalive=KEEPALIVE)


def _find_proxy(url: str) -> str | None:
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname or urllib.request.proxy_bypass(parts.netloc.rpartition('@')[-1]):
        return None
    return urllib.request.getproxies().get(parts.scheme)
