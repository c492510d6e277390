"""
Observability: metrics for Prometheus, with a metric of the operator's own; a dashboard for Grafana,
and alerts. The metrics need ``pip install prometheus_client``. Type ``kopf run --all-namespaces
--liveness=http://127.0.0.1:8080/healthz --metrics=http://127.0.0.1:8080/metrics
--debug-endpoint=http://127.0.0.1:8080/debug examples/21-observability/example.py``, then
``kubectl apply -f examples/obj.yaml``, and see what changes in
``curl http://127.0.0.1:8080/metrics``: the counters of the handlers, of the work queue, of the
requests, and ``greetings_total``. While the handler waits for its second attempt, see the object in
``curl http://127.0.0.1:8080/debug``. Import ``examples/21-observability/dashboard.json`` into
Grafana; with the Prometheus Operator, type ``kubectl apply -f
examples/21-observability/alerts.yaml``. All metrics: see docs/metrics.md. ``kopf.testing.explore``
does not try its faults, as the metrics are no objects in the cluster, and exist only once in a
process. After a restart, all counters begin at 0 again.
"""
import kopf
import prometheus_client

GREETINGS = prometheus_client.Counter(
    'greetings_total', "Number of greetings by their language", ['language'])


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples')
async def greet(spec, retry, **_):
    if not retry:
        raise kopf.TemporaryError("Too shy to greet at the first attempt.", delay=10)
    GREETINGS.labels(spec.get('language', 'en')).inc()


@kopf.index('kopfexamples')
async def languages(name, spec, **_):
    return {spec.get('language', 'en'): name}


@kopf.timer('kopfexamples', interval=5)
async def remind(logger, **_):
    logger.debug("Somebody is waiting for a greeting.")


@kopf.daemon('kopfexamples')
async def listen(stopped, **_):
    await stopped.wait()
