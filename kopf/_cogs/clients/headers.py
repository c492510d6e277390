"""
Headers: adds headers to the requests of an API client, e.g. for traces.

The connections of a client to which nothing is added are not wrapped: so, that costs nothing.
"""
import functools
from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.clients import api, connections, transfers

MakeHeaders = Callable[[], Mapping[str, str]]
"""Makes the headers for the next request, in the context in which it is sent."""


def add_headers(client: api.Client, make: MakeHeaders) -> None:
    """
    Add headers to all requests of the client and of its copies from now on, except for streams.
    """
    client.instrument(functools.partial(_wrap, make))


def _wrap(make: MakeHeaders, connection: connections.Connection) -> None:
    plain_exchange = connection.exchange

    async def exchange(
            method: str, target: str, *, headers: Mapping[str, str], **options: Any,
    ) -> transfers.Response:
        return await plain_exchange(method, target, headers={**headers, **make()}, **options)

    connection.use(exchange=exchange, stream=connection.stream)
