"""
Webhook servers and tunnels: ways for API servers to reach the operator's admission handlers.

`connections` and `listeners` are a small server of HTTP, made for one purpose and for strangers on
the other side; `certificates` are what HTTPS needs; `servers`, `detection`, `tunnels` are what
authors put into ``settings.admission.server``.
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
