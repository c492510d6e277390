"""
Webhook servers and tunnels: API servers reach the admission handlers of an operator through them.

`inbound` and `listeners` are a small HTTP server for webhooks, which does not trust its clients.
`certificates` are for HTTPS. `servers`, `detection`, and `tunnels` are the values for
``settings.admission.server``.

The package may import the core and the cogs. It guarantees that no client has an effect on other
clients, whatever it sends or fails to send, and that nothing is left open when a server ends.
"""
from kopf._kits.webhooks.detection import WebhookAutoServer
from kopf._kits.webhooks.servers import (
    WebhookDockerDesktopServer,
    WebhookK3dServer,
    WebhookMinikubeServer,
    WebhookServer,
)
from kopf._kits.webhooks.tunnels import WebhookAutoTunnel, WebhookNgrokTunnel

__all__ = [
    'WebhookAutoServer',
    'WebhookAutoTunnel',
    'WebhookDockerDesktopServer',
    'WebhookK3dServer',
    'WebhookMinikubeServer',
    'WebhookNgrokTunnel',
    'WebhookServer',
]
