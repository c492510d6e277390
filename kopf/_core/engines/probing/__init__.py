"""
Probing: the health checks of the operator over HTTP, for the liveness probes of Kubernetes.

A healthy operator answers with HTTP 200 and the results of its probe handlers as JSON: ``{}`` if it
has none. They run on requests, and are used for the requests of the next 10 seconds, too.
Otherwise, it answers with ``{"problems": {…}}``, which says by aspects what is wrong: with HTTP 500
if it is only that the probe handlers have failed, else with HTTP 503. The aspects, and how long it
takes until they are told of:

- ``loop``: the event loop is blocked, and where; 10 seconds (`serving.LOOP_TIMEOUT`);
- ``watching``: a watch makes no progress, though it should; 30 seconds after all of its own
  timeouts (`kopf._core.reactor.orchestration.WATCHING_SLACK`);
- ``login``: there are no credentials; 90 seconds (`kopf._core.reactor.health.LOGIN_TIMEOUT`);
- ``threads``: synchronous handlers hold all the threads that others wait for, and which ones; 5
  minutes (`kopf._core.reactor.health.FULL_TIMEOUT`); after 1 minute they are named in the log;
- ``posting``: the task that posts the events is gone; at once;
- ``probes``: the probe handlers have failed, and which ones (at once); or they have no results yet
  (15 seconds, `serving.ANSWER_TIMEOUT`).

All of it ends when the reason does. There are no texts of errors in it, for there can be secrets in
them: those are in the log.

It is served by a thread with an event loop of its own: so the answer comes also when the loop of
the operator is blocked. It begins after the startup handlers, and ends after the cleanup handlers.
"""
