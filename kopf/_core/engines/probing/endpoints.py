"""
Endpoints: where the health checks are served.
"""
import urllib.parse
from typing import NamedTuple

DEFAULT_PORT = 80


class EndpointError(Exception):
    """The health checks cannot be served there."""


class Endpoint(NamedTuple):
    host: str | None
    """A name or an address, of IPv4 or IPv6 (then without brackets); None for all interfaces."""
    port: int
    """Zero for any free port."""
    path: str

    @classmethod
    def parse(cls, url: str) -> 'Endpoint':
        """
        Understand a URL: ``http://0.0.0.0:8080/healthz``; all but the scheme can be omitted.

        :raises EndpointError: if it is none, or not of HTTP.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as e:
            raise EndpointError(f"not a URL: {e}. Use http://host:port/path.") from None
        if parts.scheme != 'http' or not url.lower().startswith('http://'):
            raise EndpointError("only HTTP is served. Use http://host:port/path.")
        return cls(parts.hostname or None, DEFAULT_PORT if port is None else port,
                   parts.path or '/')

    def __str__(self) -> str:
        host = f'[{self.host}]' if self.host and ':' in self.host else self.host or '*'
        return f"http://{host}:{self.port}{self.path}"
