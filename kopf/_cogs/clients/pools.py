"""
Pools: the connections of a client, one for each of its current credentials.
"""
import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials

if TYPE_CHECKING:
    from kopf._cogs.clients import connections


@dataclasses.dataclass(eq=False)
class Pool:
    """
    One connection for each of the credentials with the highest priority in a vault.

    A connection is made on demand, and re-created when the files of its certificates change. If its
    credentials are rejected or expire, the connection gets no new requests, and is closed after the
    last request. `close` all connections at the end.
    """

    vault: vaults.Vault
    settings: configuration.OperatorSettings
    logger: logging.Logger | logging.LoggerAdapter[Any]

    def __post_init__(self) -> None:
        self._opening = asyncio.Lock()
        self._opened: dict[connections.Connection, None] = {}
        """Also those which are retired, but still in use."""
        self._is_closed = False

    @property
    def shown(self) -> str:
        """The URL of the server for logs, without passwords; empty if there is no connection."""
        return next((item.shown for item in self._opened if not item.is_retired), '')

    async def close(self) -> None:
        """
        Close all connections, also those in use.

        What is still to be requested, e.g. by a handler that ends after the operator, gets a
        connection that is closed after its requests.
        """
        self._is_closed = True
        async with contextlib.AsyncExitStack() as stack:  # all, even if one is cancelled
            for connection in self._opened:
                stack.push_async_callback(connection.close)
            self._opened = {}

    def reset_writes(self) -> None:
        """Let the writes under way fail, and discard what of them is not transmitted yet."""
        for connection in self._opened:
            connection.reset()

    async def connect(self) -> 'connections.Connection':
        """
        Get a connection with any of the credentials with the highest priority; make it if needed.

        :raises LoginError: if there are no usable credentials.
        """
        connection = self._get_current()
        if connection is None:
            async with self._opening:
                connection = self._get_current() or await self._open()
        return connection

    def _get_current(self) -> 'connections.Connection | None':
        origin = self.vault.select()
        connection = self._find(origin) if origin is not None else None
        if connection is None:
            return None
        connection.follow_files()
        return None if connection.outdated else connection

    def _find(self, origin: credentials.Credentials) -> 'connections.Connection | None':
        for connection in self._opened:
            is_over = connection.is_retired or connection.is_closed
            if connection.origin is origin and not is_over:
                return connection
        return None

    async def _open(self) -> 'connections.Connection':
        """Make a connection with any credentials; invalidate those of which it cannot be made."""
        from kopf._cogs.clients import connections  # aiohttp takes long, and commands do without it
        failure: credentials.LoginError | None = None
        while True:
            try:
                origin = await self.vault.obtain()
            except credentials.LoginError:
                if failure is not None:
                    raise failure from None
                raise
            known = self._find(origin)
            if known is not None and not known.outdated:
                return known
            try:
                connection = connections.Connection(
                    origin, trust_env=self.settings.networking.trust_env)
            except credentials.LoginError as e:
                if known is not None:  # e.g. some files are replaced, but not all of them yet
                    self.logger.warning(f"{e} The former ones are used until that is mended.")
                    known.keep_certificates()
                    return known
                failure = e
                self.vault.invalidate(origin, reason=str(e))
                continue
            formers = [former for former in self._opened
                       if former is known or not self.vault.holds(former.origin)]
            connection.is_passing = self._is_closed
            self._opened[connection] = None  # before anything that can be cancelled
            for former in formers:
                await self._drop(former)
            return connection

    async def reject(
            self, connection: 'connections.Connection', headers: Mapping[str, str],
    ) -> None:
        """
        Note that the API server has rejected the credentials, so that the next ones are different.

        ``headers`` are those of the rejected request.
        """
        if connection.is_retired or connection.is_closed:
            return  # another request was rejected before, and there is a newer connection
        if connection.renew_token(headers) or connection.has_new_certificates():
            return
        self.vault.invalidate(connection.origin)
        await self._drop(connection)

    async def _drop(self, connection: 'connections.Connection') -> None:
        connection.is_retired = True
        await connection.release()
        self._opened = {opened: None for opened in self._opened if not opened.is_closed}
