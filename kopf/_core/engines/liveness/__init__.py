"""
Liveness: the health checks of the operator over HTTP, for the liveness probes of Kubernetes.

A healthy operator responds with HTTP 200. The body is JSON with the results of the probe handlers;
``{}`` if there are none. The probe handlers are called on a request; their results are also used
for the requests of the next 10 seconds.

An unhealthy operator responds with ``{"problems": {…}}``, which describes the problems by aspects.
The status is HTTP 500 if the only problem is that probe handlers have failed, else HTTP 503. The
aspects, and how long a problem must last before it is reported:

- ``loop``: the event loop is blocked. After 10 seconds (`answering.LOOP_TIMEOUT`).
- ``watching``: a watch makes no progress. 30 seconds after all timeouts of the watch itself
  (`kopf._core.reactor.watches.orchestration.WATCHING_SLACK`).
- ``login``: requests wait for credentials. After 90 seconds (`health.LOGIN_TIMEOUT`).
- ``threads``: synchronous handlers wait for a thread, and other handlers do not give back theirs.
  After 5 minutes (`health.FULL_TIMEOUT`); after 1 minute, the log names those handlers.
- ``posting``: the task that posts Kubernetes events has ended. At once.
- ``probes``: probe handlers have failed, at once; or they have no results yet, after 4 seconds
  (`answering.ANSWER_TIMEOUT`). Each run is one attempt: the next request is the retry.

A problem is reported as long as it lasts. The responses contain no texts of errors, as these can
contain secrets: the texts are in the log.

The modules: `health` finds the problems; `answering` makes the answers, and runs the probe
handlers. The server is that of `kopf._cogs.serving.pages`. It starts after the startup handlers,
and stops after the cleanup handlers.

The package may import the actions, the intents, and the cogs. The package guarantees that every
request is answered in time, whatever the operator or other clients do, and without any secrets.
"""
