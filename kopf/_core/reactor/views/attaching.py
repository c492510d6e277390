"""
Attaching: what the settings add to an operator, so that people can observe it from outside.
"""
from collections.abc import Iterator

from kopf._core.engines.liveness import endpoints
from kopf._core.reactor import operating


def attach(operator: operating.Operator) -> Iterator[operating.Extension]:
    """
    Make the extensions of an operator: for traces, for metrics, and for its present state.

    :raises SettingsError: if the library for any of them is absent.
    :raises EndpointError: if an endpoint is not a valid URL.
    """
    settings = operator.settings
    if settings.tracing.enabled:
        from kopf._core.engines import tracing  # only if it is used
        tracing.follow(operator.client)
        yield operating.Extension(observer=tracing.Tracer())
    if settings.metrics.endpoint is not None:
        from kopf._core.reactor.views import inspection, metrics  # only if they are used
        measures = metrics.Measures(inspection.Inspector(operator))
        operator.client.count_requests(measures.meter.count_request)
        yield operating.Extension(
            observer=measures.meter,
            page=endpoints.Page(
                'metrics', '--metrics',
                endpoints.Endpoint.parse(settings.metrics.endpoint, default_path='/metrics'),
                measures.respond, measures.close),
            wrap_reviews=measures.observe_reviews, run=measures.meter.run)
    if settings.debugging.endpoint is not None:
        from kopf._core.reactor.views import debug, inspection  # only if they are used
        debugger = debug.Debugger(inspection.Inspector(operator))
        yield operating.Extension(page=endpoints.Page(
            'insides of the operator', '--debug-endpoint',
            endpoints.Endpoint.parse(settings.debugging.endpoint, default_path='/debug'),
            debugger.respond, debugger.close))
