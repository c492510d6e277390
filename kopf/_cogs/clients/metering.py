"""
Metering: counts the requests of an API client.

The connections of a client that counts nothing are not wrapped: so, that costs nothing.
"""
import contextlib
import functools
import urllib.parse
from collections.abc import AsyncIterator, Callable
from typing import Any

from kopf._cogs.clients import api, connections, transfers

Count = Callable[[int | None, str, str], None]
"""Counts a request by the HTTP status (None for errors of the network), the method, the host."""


def meter(client: api.Client, count: Count) -> None:
    """Count all requests of the client and of its copies from now on: each attempt of each."""
    client.instrument(functools.partial(_wrap, count))


def _wrap(count: Count, connection: connections.Connection) -> None:
    plain_exchange, plain_stream = connection.exchange, connection.stream
    host = urllib.parse.urlsplit(connection.shown).netloc

    async def exchange(method: str, target: str, **options: Any) -> transfers.Response:
        try:
            response = await plain_exchange(method, target, **options)
        except api.NETWORK_ERRORS:
            count(None, method, host)
            raise
        count(response.status, method, host)
        return response

    @contextlib.asynccontextmanager
    async def stream(target: str, **options: Any) -> AsyncIterator[Any]:
        is_counted = False
        try:
            async with plain_stream(target, **options) as response:
                count(response.head.status, 'GET', host)
                is_counted = True
                yield response
        except api.NETWORK_ERRORS:
            if not is_counted:
                count(None, 'GET', host)
            raise

    connection.use(exchange=exchange, stream=stream)
