"""
Transports: the end of a connection at once.
"""
import asyncio
import contextlib


def abort(transport: asyncio.BaseTransport) -> None:
    """
    Close the connection at once, without sending what is buffered; do nothing if it is closed.

    The first patch releases of Python 3.11 raise an error for TLS connections that were closed
    twice, e.g. by aiohttp and by the other side.
    """
    with contextlib.suppress(AttributeError):
        transport.abort()  # type: ignore[attr-defined]
