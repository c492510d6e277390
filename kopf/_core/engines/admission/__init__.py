"""
Admission: handlers validate and mutate objects before the API server stores them.

See "Dynamic Admission Control" in the Kubernetes documentation for the terms.

The modules: `webhooks` arranges handlers into webhooks, and makes the webhook configurations;
`questions` parses the request of an AdmissionReview; `answers` makes its response; `reviewing`
calls the handlers in between; `configurations` writes the webhook configurations to the cluster;
`sites` is the interface of the operator for webhook servers.
`kopf._core.reactor.admitting` runs the webhook server.

The package may import the actions, the intents, and the cogs. The package guarantees:

* An operation is allowed only if all handlers that match the request have succeeded.
* Nothing of a review is kept in memory when the review is over.
"""
