"""
Endpoints: the URLs where health checks and other pages are served.
"""
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kopf._cogs.serving import exchanges

DEFAULT_PORT = 80


class EndpointError(Exception):
    """The endpoint is not a proper URL, or cannot be listened on."""


class Endpoint(NamedTuple):
    host: str | None
    """A host name, or an address of IPv4 or IPv6 (without brackets); None for all interfaces."""
    port: int
    """0 for any free port."""
    path: str

    @classmethod
    def parse(cls, url: str, *, default_path: str = '/') -> 'Endpoint':
        """
        Parse a URL, e.g. ``http://0.0.0.0:8080/healthz``. All parts except for the scheme are
        optional.

        :raises EndpointError: if it is not a URL, or its scheme is not HTTP.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as e:
            raise EndpointError(f"not a URL: {e}. Use http://host:port/path.") from None
        if parts.scheme != 'http' or not url.lower().startswith('http://'):
            raise EndpointError("only HTTP is served. Use http://host:port/path.")
        return cls(parts.hostname or None, DEFAULT_PORT if port is None else port,
                   parts.path or default_path)

    def __str__(self) -> str:
        host = f'[{self.host}]' if self.host and ':' in self.host else self.host or '*'
        return f"http://{host}:{self.port}{self.path}"


class Page(NamedTuple):
    """What is served at a URL. ``respond`` is called in the thread of the server."""
    title: str
    """What it is, for messages: e.g. "health checks"."""
    option: str
    """The option of the command line that sets the URL."""
    endpoint: Endpoint
    respond: 'exchanges.Respond'
    close: Callable[[], Awaitable[None]] | None = None
    """Ends what is under way for the page, when it is not served any more."""
