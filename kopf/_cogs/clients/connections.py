"""
Connections: the HTTP sessions with one set of credentials, and everything they can prepare once.
"""
import logging
import os
import time
from collections.abc import Mapping

from kopf._cogs.clients import httpsessions
from kopf._cogs.helpers import files
from kopf._cogs.structs import credentials

logger = logging.getLogger(__name__)

USER_AGENT = 'kopf'
FILES_CHECK_INTERVAL = 1.0
"""How often (seconds) the files of the credentials are checked for changes."""
TOKEN_READ_INTERVAL = 60.0
"""How often (seconds) the file of the token is read even if it seems to be unchanged."""


class Connection(httpsessions.Sessions):
    """
    The HTTP sessions with one set of credentials.

    The callers count themselves in `users`. A retired connection is closed when there are none.
    """

    def __init__(self, origin: credentials.Credentials, *, trust_env: bool = False) -> None:
        self.origin = origin
        url = credentials.parse_url(origin.server, 'API server')
        self.root = url.path
        """The path of the server's URL, which all paths of the API begin with; usually empty."""
        self.shown = credentials.strip_userinfo(url.geturl())
        self.host = url.netloc.rpartition('@')[-1]
        self.users = 0
        self.is_retired = False
        """Whether there must be no new requests."""
        self.is_passing = False
        """Whether to close the sessions whenever there are no requests."""
        self.outdated = False
        """Whether the files of the certificates have changed since this connection was made."""
        self._headers: dict[str, Mapping[str, str]] = {}
        self._token_time = self._files_checked = time.monotonic()
        self._token_mark, self._tls_mark = self._look_at_token(), self._look_at_tls()
        base = url._replace(path='').geturl()
        if isinstance(origin, credentials.AiohttpSession):
            self._auth: Mapping[str, str] = {}
            super().__init__(base, session=origin.aiohttp_session)
            return

        self._auth = origin.as_http_headers()
        proxy = origin.proxy_url
        if trust_env or origin.trust_env:
            from kopf._cogs.helpers import environment  # its libraries take long, and are rare
            proxy = proxy or environment.find_proxy(url)
            if not self._auth and (login := environment.find_login(url.hostname or '')):
                self._auth = credentials.ConnectionInfo(
                    server=base, username=login[0], password=login[1]).as_http_headers()
        super().__init__(
            base, ssl=origin.as_ssl_context() if url.scheme == 'https' else None,
            server_hostname=origin.tls_server_name or None,
            proxy=credentials.parse_url(proxy, 'proxy').geturl() if proxy else None)

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

    async def release(self) -> None:
        """Close the sessions if this connection has no users, and gets no new ones."""
        if (self.is_retired or self.is_passing) and self.users <= 0:
            await self.close()

    def follow_files(self) -> None:
        """
        Check the files of the credentials for changes, at most once per `FILES_CHECK_INTERVAL`.
        """
        if not self._token_mark and not self._tls_mark:
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

    def _look_at_token(self) -> files.Mark:
        return _look_at(self.origin, 'token_path')

    def _look_at_tls(self) -> files.Mark:
        return _look_at(self.origin, 'ca_path', 'certificate_path', 'private_key_path')


def _look_at(origin: credentials.Credentials, *fields: str) -> files.Mark:
    paths = (getattr(origin, field, None) for field in fields)  # sessions have no files
    return files.look(os.path.expanduser(path) for path in paths if path is not None)
