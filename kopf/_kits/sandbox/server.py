"""
The sandbox itself: a Kubernetes API on a port of this machine, and in this process.
"""
import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from kopf._kits import redirecting
from kopf._kits.sandbox import keeping, listening, tls
from kopf._kits.sandbox.access import PLAIN, Access
from kopf._kits.sandbox.admission import Admission
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.collecting import Collector
from kopf._kits.sandbox.direct import Direct
from kopf._kits.sandbox.dispatching import Dispatcher
from kopf._kits.sandbox.establishing import Definitions
from kopf._kits.sandbox.faults import Faults
from kopf._kits.sandbox.handling import Handler
from kopf._kits.sandbox.kinds import DATA
from kopf._kits.sandbox.requests import ADMIN, Target, User
from kopf._kits.sandbox.tls import Certificates, encoded
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.sandbox.watches import Watches
from kopf._kits.sandbox.writing import Writer

MAX_HEADER = 2 ** 20
"""How many bytes a header can have: as many as in an API server."""


class Sandbox(Direct):
    """
    A Kubernetes API server for development and tests, in the running event loop.

    It serves from `start` to `stop`, or for the block of ``async with``. ``faults`` are the faults
    to inject: ``sandbox.faults.add(kopf.testing.Fault(...))``. See "Use the sandbox" in the
    documentation.

    :param host: the address to listen on.
    :param port: the port to listen on. Default: 0, any free port.
    :param tls: whether to serve HTTPS, with certificates made for this run. Otherwise, HTTP.
    :param state: the file from which to load the objects, and in which to save them. Default: none.
    :param load: YAML files with objects, and objects as dicts, to apply at the start.
    :param upstream: the cluster whose objects are also here. Default: none.
    :param history: the number of the latest changes to keep for watches and for pages of lists.
    """

    def __init__(
            self,
            *,
            host: str = '127.0.0.1',
            port: int = 0,
            tls: bool = False,
            state: Path | None = None,
            load: Sequence[Mapping[str, Any] | Path] = (),
            upstream: Upstream | None = None,
            history: int = 10_000,
    ) -> None:
        if upstream is not None and state is not None:
            raise ValueError("A sandbox with an upstream has no state: it depends on the upstream.")
        self.upstream: Upstream | None = upstream
        self.faults: Faults = Faults()
        self._host = host
        self._port = port
        self._reserved: redirecting.Place | None = None
        self._tls = tls
        self._files = tuple(load)
        cluster = Cluster(history=history)
        writer = Writer(cluster, Admission(cluster))
        self._access = Access(cluster, tls=tls)
        self._dispatcher = Dispatcher(cluster, writer, self._access)
        super().__init__(cluster, self._dispatcher.dispatch)
        self._watches = Watches()
        self._definitions = Definitions(cluster, self._watches)
        self._collector = Collector(cluster, writer)
        self._keeper = keeping.Keeper(cluster.store, state) if state is not None else None
        self._certificates: Certificates | None = None
        self._tokens = {name: self._access.add_token(user)
                        for name, user in (('admin', ADMIN), ('plain', PLAIN))}
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: listening.Listener | None = None

    async def __aenter__(self) -> 'Sandbox':
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The URL of the sandbox."""
        host = f'[{self._host}]' if ':' in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    def occupy(self, place: redirecting.Place) -> None:
        """Listen at this place, to be called before the start."""
        self._reserved = place
        self._host, self._port = place.socket.getsockname()
        self._access.tokens[place.token] = ADMIN

    async def start(self) -> None:
        """
        Begin to serve.

        :raises StateError: if the file with the state is unusable.
        :raises OSError: if the port is in use.
        :raises ValueError: if a file with objects is broken, or the API refuses an object of it.
        """
        listeners = self._cluster.store.listeners
        listeners[:] = [self._definitions.hear, self._collector.hear]
        try:
            if self.upstream is not None:
                await self.upstream.start(self._cluster)
                self._cluster.store.compact()
            elif self._keeper is not None and self._keeper.load():
                self._definitions.restore()
                self._collector.restore()
            else:
                self._populate()
            if self._keeper is not None:
                listeners.append(self._keeper.hear)
                self._tasks.append(asyncio.create_task(self._keeper.run(), name='sandbox keeper'))
            self._tasks.append(asyncio.create_task(self._collector.run(), name='sandbox collector'))
            await self.load(*self._files)
            await self._serve()
        except BaseException:
            await self._stop()
            raise

    def _populate(self) -> None:
        """Store what every cluster has. It is in the file as if it had been created."""
        cluster = self._cluster
        for obj in json.loads((DATA / 'bootstrap.json').read_bytes()):
            kind = cluster.kinds.named(obj['apiVersion'], obj['kind'])
            assert kind is not None
            metadata, now = obj['metadata'], cluster.now()
            metadata |= {'uid': cluster.new_uid(), 'creationTimestamp': now}
            for entry in metadata['managedFields']:
                entry['time'] = now
            cluster.put(kind, obj)
        cluster.store.compact()

    async def _serve(self) -> None:
        context = None
        if self._tls:
            self._certificates = tls.make(self._host)
            context = self._certificates.context()
        handler = Handler(
            self._cluster, self._dispatcher, self._watches, self._access, self.faults,
            host=None if self._tls else self._host)
        server = web.Server(
            handler, handler_cancellation=True, access_log=None, max_field_size=MAX_HEADER)
        place: dict[str, Any] = {
            'host': self._host, 'port': self._port, 'reuse_address': True,
        } if self._reserved is None else {'sock': self._reserved.socket}
        listener = listening.Listener(server)
        self._port = await listener.start(ssl=context, **place)
        self._listener = listener

    async def stop(self) -> None:
        """
        End all watches and connections, and save the state.

        :raises OSError: if the state cannot be saved.
        """
        await self._stop()
        if self._keeper is not None:
            self._keeper.save()

    async def _stop(self) -> None:
        self._watches.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None
        if self.upstream is not None:
            await self.upstream.stop()

    def add_user(self, name: str, listener: Callable[[Target, bool], None]) -> str:
        """
        Add a user, who has only the rights of the roles that are bound, and return the token.

        :param name: the name of the user.
        :param listener: what is called with each request of the user, and whether it is allowed.
        """
        self._access.listeners[name] = listener
        return self._access.add_token(User(name, ('system:authenticated',), name))

    def share_user(self, token: str, other: str) -> None:
        """Let requests with the other token be those of the user with this token."""
        self._access.tokens[other] = self._access.tokens[token]

    def kubeconfig(self) -> dict[str, Any]:
        """
        Make a kubeconfig for clients on this machine, as a dict.

        It has the contexts ``admin`` (the current context, with all permissions), ``plain``
        (without permissions), both with tokens; and with TLS, ``cert`` (as ``admin``, with a client
        certificate). Over plain HTTP, clients without credentials have all permissions.
        """
        server: dict[str, Any] = {'server': self.url}
        users = {name: {'token': token} for name, token in self._tokens.items()}
        if self._certificates is not None:
            server['certificate-authority-data'] = encoded(self._certificates.authority)
            users['cert'] = {
                'client-certificate-data': encoded(self._certificates.admin),
                'client-key-data': encoded(self._certificates.admin_key),
            }
        return redirecting.make_kubeconfig(server, users)

    def write_kubeconfig(self, path: str | os.PathLike[str]) -> None:
        """
        Write the kubeconfig to a file that only this user can read.

        :param path: the path of the file.
        """
        text = yaml.safe_dump(self.kubeconfig(), sort_keys=False)
        keeping.write_secret(Path(path), text)
