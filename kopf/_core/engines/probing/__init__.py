"""
Probing: the health checks of the operator over HTTP, for the liveness probes of Kubernetes.

A healthy operator answers with HTTP 200 and the results of its probe handlers as JSON: ``{}`` if it
has none. Otherwise, it answers with ``{"problems": {…}}``, which says by aspects what is wrong:
with HTTP 500 if it is only that the probe handlers have failed, else with HTTP 503. There are no
texts of errors in it, for there can be secrets in them: those are in the log.

It is served by a thread with an event loop of its own: so the answer comes also when the loop of
the operator is blocked, and then names the line which blocks it.
"""
