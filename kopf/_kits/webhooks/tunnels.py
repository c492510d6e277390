"""
Tunnels: they make a local server reachable from remote clusters.
"""
import asyncio
import dataclasses
import importlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from kopf._cogs.structs import reviews
from kopf._kits.webhooks import certificates, detection, httpreviews, servers

logger = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WebhookNgrokTunnel(servers.WebhookContextManager):
    """
    A tunnel by ngrok to a webhook server in the process of the operator, for remote clusters.

    It needs the library ``pyngrok``, which comes with ``kopf[dev]``. Everybody who knows the URL
    can send reviews to the operator: use a ``path`` that is hard to guess. See "Validate and mutate
    objects" in the documentation.

    :param addr: the address of the local server. Default: ``localhost``.
    :param port: the port of the local server. Default: any free port.
    :param path: the path at the beginning of all URLs. Default: none.
    :param token: the token of an ngrok account. Default: that of ngrok's own configuration.
    :param region: the region where the tunnel enters ngrok's network. Default: ngrok's choice.
    :param binary: the path of the program ``ngrok``. Default: the library finds or downloads it.
    """

    addr: str | None = None
    port: int | None = None
    path: str | None = None
    token: str | None = None
    region: str | None = None
    binary: certificates.StrPath | None = None

    async def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        ngrok, pyngrok_config = _import_pyngrok()
        root = httpreviews.normalise_root(self.path)
        listener = httpreviews.make_listener(
            fn, addr=self.addr or 'localhost', port=self.port or 0, root=root)
        options: dict[str, Any] = {
            'ngrok_path': None if self.binary is None else str(self.binary),
            'auth_token': self.token, 'region': self.region}
        config = pyngrok_config(**{key: val for key, val in options.items() if val is not None})
        try:
            listener.listen(None)
            connecting = asyncio.create_task(asyncio.to_thread(
                ngrok.connect, str(listener.port), pyngrok_config=config, bind_tls=True))
            try:
                tunnel = await asyncio.shield(connecting)
                url = f'{tunnel.public_url}{root}'
                logger.info(f"Listening for webhooks at {tunnel.public_url}")  # no secret path
                yield {'url': url}
                await asyncio.Event().wait()
            finally:
                tunnel = await connecting  # a thread cannot be cancelled
                await asyncio.to_thread(ngrok.disconnect, tunnel.public_url, pyngrok_config=config)
        finally:
            await listener.close()


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WebhookAutoTunnel(detection.ClusterDetector, servers.WebhookContextManager):
    """
    A webhook server if the cluster can reach this machine directly, otherwise a tunnel by ngrok.

    `kopf.WebhookAutoServer` describes which clusters can, `kopf.WebhookNgrokTunnel` what a tunnel
    needs.

    :param addr: the address of the server. Default: as in `kopf.WebhookServer`, or ``localhost``
        for a tunnel.
    :param port: the port of the server. Default: as in `kopf.WebhookServer`, or any free port for a
        tunnel.
    :param path: the path at the beginning of all URLs. Default: none.
    """

    addr: str | None = None
    port: int | None = None
    path: str | None = None

    async def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        host = await self.guess_host()
        server: servers.WebhookContextManager = (
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
            "Tunnels by ngrok need the library pyngrok: `pip install pyngrok`.") from e
    return ngrok, conf.PyngrokConfig
