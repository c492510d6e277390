"""
Tunnels: they make a local server reachable for clusters which are somewhere else.
"""
import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from kopf._cogs.structs import reviews
from kopf._kits.webhooks import certificates, contexts, detection, servers, serving

logger = logging.getLogger(__name__)


class WebhookNgrokTunnel(contexts.WebhookContextManager):
    """
    A tunnel by ngrok to a local server of HTTP at ``addr``, ``port`` (by default, any free one).

    It needs the library ``pyngrok``, which comes with ``kopf[dev]``; that one finds or downloads
    the program, unless ``binary`` is given. ``token`` is for accounts, ``region`` is where to enter
    ngrok's network. Everyone on the Internet who knows the URL can send reviews to the operator: a
    ``path`` that nobody can guess makes this a bit less likely.
    """

    def __init__(
            self,
            *,
            addr: str | None = None,
            port: int | None = None,
            path: str | None = None,
            token: str | None = None,
            region: str | None = None,
            binary: certificates.StrPath | None = None,
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path
        self.token = token
        self.region = region
        self.binary = binary

    async def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        ngrok, pyngrok_config = _import_pyngrok()
        root = serving.normalise_root(self.path)
        listener = serving.make_listener(
            fn, addr=self.addr or 'localhost', port=self.port or 0, root=root)
        options: dict[str, Any] = {
            'ngrok_path': None if self.binary is None else str(self.binary),
            'auth_token': self.token, 'region': self.region}
        config = pyngrok_config(**{key: val for key, val in options.items() if val is not None})
        tunnel: Any = None
        try:
            await listener.listen(None)
            tunnel = await asyncio.to_thread(
                ngrok.connect, str(listener.port), pyngrok_config=config, bind_tls=True)
            url = f'{tunnel.public_url}{root}'
            logger.info(f"Listening for webhooks at {url}")
            yield {'url': url}
            await asyncio.Event().wait()
        finally:
            try:
                if tunnel is not None:
                    await asyncio.to_thread(
                        ngrok.disconnect, tunnel.public_url, pyngrok_config=config)
            finally:
                await listener.close()


class WebhookAutoTunnel(detection.ClusterDetector, contexts.WebhookContextManager):
    """
    A server if the cluster is of a sort that can reach it directly, as `kopf.WebhookAutoServer`
    finds it out; or else a tunnel by ngrok.
    """

    def __init__(
            self,
            *,
            addr: str | None = None,
            port: int | None = None,
            path: str | None = None,
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path

    async def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        host = await self.guess_host()
        server: contexts.WebhookContextManager = (
            WebhookNgrokTunnel(addr=self.addr, port=self.port, path=self.path) if host is None else
            servers.WebhookServer(addr=self.addr, port=self.port, path=self.path, host=host))
        async with server:
            async for client_config in server(fn):
                yield client_config


def _import_pyngrok() -> tuple[Any, Any]:
    try:
        conf = importlib.import_module('pyngrok.conf')
        ngrok = importlib.import_module('pyngrok.ngrok')
    except ImportError as e:
        raise certificates.MissingLibraryError(
            "Tunnels by ngrok need the library pyngrok: `pip install kopf[dev]`.") from e
    return ngrok, conf.PyngrokConfig
