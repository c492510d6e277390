"""
Webhook servers and tunnels: API servers reach the admission handlers of an operator through them.

`httpreviews` answers the requests, which come through `kopf._cogs.serving`. `certificates` are for
HTTPS; `generations` decides how the replicas of an operator renew them. `servers`, `services`,
`detection`, and `tunnels` are the values for ``settings.admission.server``.

The package may import the core and the cogs. It guarantees that nothing is left open when a server
ends.
"""
