"""
Transfers: what comes of a request over HTTP, whatever library makes it.
"""
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import multidict


POOL_SIZE = 16
"""How many connections to a server there are for regular requests."""


class TransferError(Exception):
    """The connection or the response is broken. The server may have executed the request or not."""


class Response(NamedTuple):
    status: int
    headers: 'multidict.CIMultiDictProxy[str]'
    body: bytes
    is_repeated: bool = False
    """Whether the request was sent before, over a connection that was closed without a response."""
