"""
A Kubernetes API server in Python, for trying operators and for testing them.

`kubectl`, the official clients, and Kopf can use the sandbox as they use a real API. The framework
never imports the sandbox; the sandbox may import the cogs only. It guarantees the same responses as
of the real API, as far as the conformance tests compare them. Nothing runs in the sandbox: a pod is
only an object, and no image is ever started.

`handling` receives a request, `requests` parses it, `access` authorizes it, and `reading`,
`watches`, or `writing` carries it out, by the `rules` of the resource. `storage` stores objects as
bytes. `establishing` and `collecting` do what the controllers of a cluster do after a change.
`upstreams` brings the objects of another cluster into the store, and `overlays` merges them with
what requests have changed.

Known differences from a real API: responses are never protobuf. Over plain HTTP, clients without
credentials have all permissions, because clients send no credentials there. Custom admission
policies, quotas, and aggregated APIs are stored, but have no effect. Webhooks cannot be called by
services, because no pods run. Schemas have no descriptions. Objects have at most 250 levels.
"""
