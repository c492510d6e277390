"""
Connections: the HTTP clients with one set of credentials, and everything they can prepare once.
"""
import logging
import os
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.clients import transfers
from kopf._cogs.structs import credentials

if TYPE_CHECKING:
    from kopf._cogs.clients import httpsessions

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
FILES_CHECK_INTERVAL = 1.0
"""How often (seconds) the files of the credentials are checked for changes."""
TOKEN_READ_INTERVAL = 60.0
"""How often (seconds) the file of the token is read even if it seems to be unchanged."""

Exchange = Callable[..., Awaitable[transfers.Response]]

Mark = tuple[tuple[int, ...], ...]
"""The modification times, inodes, and sizes of files: it changes when any of the files changes."""


class Connection:
    """
    The HTTP client with one set of credentials.

    The callers count themselves in `users`. A retired connection is closed when there are none.
    """

    def __init__(self, origin: credentials.Credentials, *, trust_env: bool = False) -> None:
        super().__init__()
        self.origin = origin
        url = credentials.parse_url(origin.server, 'API server')
        self.root = url.path
        """The path of the server's URL, which all paths of the API begin with; usually empty."""
        self.shown = credentials.strip_userinfo(url.geturl())
        self.users = 0
        self.closed = False
        self.outdated = False
        """Whether the files of the certificates have changed since this connection was made."""
        self._retired = False
        self._headers: dict[str, Mapping[str, str]] = {}
        self._token_time = self._files_checked = time.monotonic()
        self._token_mark, self._tls_mark = self._look_at_token(), self._look_at_tls()
        self._has_files = bool(self._token_mark or self._tls_mark)
        self._auth = (
            {} if isinstance(origin, credentials.AiohttpSession) else origin.as_http_headers())
        self.http = _make_http(url, origin, trust_env=trust_env)
        self.exchange: Exchange = self.http.exchange
        """Sends a request and returns its response, see `httpsessions.Sessions`."""
        self.stream: Any = self.http.stream
        """Sends a request and yields its response as a stream, see `httpsessions.Sessions`."""

    def use(self, *, exchange: Exchange, stream: Any) -> None:
        """Use these functions for all further requests: they wrap those used so far."""
        self.exchange, self.stream = exchange, stream

    def get_headers(
            self, accept: str, content_type: str | None, *, encoding: str = 'identity',
    ) -> Mapping[str, str]:
        """
        Get the headers of a request. They are prepared once, and again when the token changes.

        ``encoding`` is that of the response, if the server has it.
        """
        key = f'{accept} {content_type} {encoding}'
        headers = self._headers.get(key)
        if headers is None:
            headers = {
                'User-Agent': USER_AGENT, 'Accept': accept, 'Accept-Encoding': encoding,
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
        """Close the client when the requests under way have ended; there must be no new ones."""
        self.prepare_end()
        await self.release()

    def prepare_end(self) -> None:
        """Let the client be closed as soon as there are no users any more."""
        self._retired = True

    async def release(self) -> None:
        """Close the client if this connection is retired and has no users."""
        if self._retired and self.users <= 0:
            await self.close()

    async def close(self) -> None:
        """Close the client, also if it is in use."""
        self.closed = True
        await self.http.close()

    def reset_writes(self) -> None:
        """Let the writes under way fail, and discard what of them is not transmitted yet."""
        self.http.reset()

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
            except (OSError, ValueError):  # absent, or no path at all: e.g. with a null byte
                marks.append(())
            else:
                marks.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return tuple(marks)


def _make_http(
        url: urllib.parse.SplitResult, origin: credentials.Credentials, *, trust_env: bool,
) -> 'httpsessions.Sessions':
    from kopf._cogs.clients import httpsessions  # aiohttp takes long, and commands do without it
    base = url._replace(path='').geturl()
    if isinstance(origin, credentials.AiohttpSession):
        session = origin.aiohttp_session
        return httpsessions.Sessions(
            base, regular=session, streaming=session, pool_size=POOL_SIZE, options={})

    trust_env = trust_env or origin.trust_env
    proxy = origin.proxy_url or (_find_proxy(url) if trust_env else None)
    options: httpsessions.Options = {}
    if origin.tls_server_name:
        options['server_hostname'] = origin.tls_server_name
    if proxy:
        options['proxy'] = credentials.parse_url(proxy, 'proxy').geturl()
    return httpsessions.make_sessions(
        base, ssl=origin.as_ssl_context() if url.scheme == 'https' else None,
        pool_size=POOL_SIZE, keepalive=KEEPALIVE, options=options,
        # aiohttp takes passwords from ~/.netrc, too. They must not replace the credentials.
        trust_env=trust_env and not origin.as_http_headers())


def _find_proxy(url: urllib.parse.SplitResult) -> str | None:
    import urllib.request  # only if it is used
    if urllib.request.proxy_bypass(url.netloc.rpartition('@')[-1]):
        return None
    proxy = urllib.request.getproxies().get(url.scheme)
    # The scheme can be omitted, as for kubectl and curl.
    return f'http://{proxy}' if proxy and '://' not in proxy else proxy
