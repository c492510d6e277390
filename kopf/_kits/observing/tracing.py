"""
Tracing: what an operator does, as spans of OpenTelemetry.

A reconciliation of an object is a trace of its own. The attempts of its handlers and its writes are
spans within, and so are the spans of the handlers and of their libraries: the context of
OpenTelemetry is a context variable, which tasks and threads of handlers inherit. An attempt of a
daemon, a timer, or an index is also a trace of its own, as it belongs to no reconciliation.

The names of the spans are of the kinds of objects and of the handlers, never of objects. Of errors,
the spans have what the log says: the type and the message, without the traceback.

This module imports ``opentelemetry-api``, and is imported only if tracing is on. The author decides
where the spans go, with the SDK of OpenTelemetry.

:raises SettingsError: if the library is absent; raised by the import of this module.
"""
import asyncio
import logging
import sys
from collections.abc import Callable, Mapping

from kopf._cogs.clients import api, errors
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import versions
from kopf._cogs.structs import bodies, references
from kopf._core.actions import loggers, observers, progression
from kopf._core.intents import causes, handlers
from kopf._kits.observing import outcomenames

try:
    from opentelemetry import context, propagate, trace
except ModuleNotFoundError as e:
    if (e.name or '').partition('.')[0] != 'opentelemetry':
        raise
    raise configuration.SettingsError(
        "Traces need the library opentelemetry-api. Install it: pip install opentelemetry-api; or "
        "omit --tracing (settings.tracing.enabled).") from None

logger = logging.getLogger('kopf._kits.observing.tracing')

Attributes = dict[str, str | int]

ROOT = context.Context()
"""The context of what begins a trace."""

HANDLER_KEY = context.create_key('kopf-handler')
"""The id of the handler under way; for sub-handlers, that of the topmost one."""

CONVENTIONS: Mapping[tuple[str, str | None], str] = {
    ('autoscaling', 'HorizontalPodAutoscaler'): 'k8s.hpa',
    **{(group, kind): f'k8s.{kind.lower()}' for group, kinds in {
        '': ('Node', 'PersistentVolume', 'PersistentVolumeClaim', 'Pod', 'ReplicationController',
             'ResourceQuota', 'Service'),
        'apps': ('DaemonSet', 'Deployment', 'ReplicaSet', 'StatefulSet'),
        'batch': ('CronJob', 'Job')}.items() for kind in kinds}}
"""By the groups and kinds: the attributes that the semantic conventions have for their objects."""


def follow(client: api.Client) -> None:
    """
    Put the ids of traces into the requests of the client and into the log, from now on.

    This warns if there is nothing that could record the spans.
    """
    client.add_headers(make_headers)
    loggers.add_filter(mark)
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        logger.warning(
            "Tracing is on, but the SDK of OpenTelemetry is not set up: nothing records the spans. "
            "Run the operator with opentelemetry-instrument, or set a tracer provider at startup.")


def make_headers() -> Mapping[str, str]:
    """Make the headers that tell the API server the current span; none if there is no span."""
    made: dict[str, str] = {}
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(made)
    return made


def mark(record: logging.LogRecord) -> bool:
    """Add the ids of the current span to a record of the log, under the names of OpenTelemetry."""
    current = trace.get_current_span().get_span_context()
    if current.is_valid:
        record.__dict__.update(
            trace_id=trace.format_trace_id(current.trace_id),
            span_id=trace.format_span_id(current.span_id),
            trace_flags=f'{current.trace_flags:02x}')
    return True


class Tracer(observers.Observer):
    """Makes the spans of an operator; by default, with the tracer provider of the process."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        super().__init__()
        self._tracer = trace.get_tracer('kopf', versions.version, provider)

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
    ) -> observers.Ended[progression.Outcome]:
        attributes: Attributes = {'kopf.handler.id': handler.id}
        parent = context.get_current()
        label: object = handler.id
        if isinstance(cause, causes.ResourceCause):
            attributes |= describe(cause.resource, *cause.get_identity())
        match cause:
            case causes.ChangingCause() | causes.ReconcilingCause():
                attributes['kopf.reason'] = cause.reason
                if isinstance(handler, handlers.ChangingHandler) and handler.selector is None:
                    label = f'{context.get_value(HANDLER_KEY)}/*'  # ids can be of objects
            case causes.ActivityCause():
                attributes['kopf.reason'] = cause.activity
            case causes.SpawningCause() | causes.IndexingCause():
                parent = ROOT
            case causes.WebhookCause():
                if not trace.get_current_span().get_span_context().is_valid:
                    parent = propagate.extract(
                        {key.lower(): value for key, value in cause.headers.items()})
        if not str(label).endswith('/*'):
            parent = context.set_value(HANDLER_KEY, handler.id, parent)
        span = self._tracer.start_span(f'handler {label}', parent, attributes=attributes)
        leave = enter(span, parent)

        def end(
                outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
        ) -> None:
            if not isinstance(cause, causes.SpawningCause):  # else, its patch is written afterwards
                leave()
            span.set_attribute('kopf.outcome', outcomenames.name_outcome(outcome))
            exception = None if outcome is None else outcome.exception or outcome.ignored
            if outcome is not None and exception is not None and not outcome.waiting:
                fail(span, exception, outcome.message)
            finish(span, error)

        return end

    omission = observers.Observer.omission  # not notified: it is no attempt
    passage = observers.Observer.passage  # not notified: objects in the queue have no spans

    def reconciliation(
            self, resource: references.Resource, raw: bodies.RawBody,
    ) -> observers.Ended[observers.Sequel]:
        span = self._tracer.start_span(
            f'reconcile {(resource.kind or resource.plural).lower()}', ROOT,
            attributes=describe(resource, *identify(raw)))
        leave = enter(span, ROOT)

        def end(
                sequel: observers.Sequel | None, error: BaseException | None, seconds: float,
        ) -> None:
            leave()
            if sequel is not None:
                span.set_attribute('kopf.sequel', sequel.name.lower())
            if isinstance(error, errors.NotLeadingError):
                span.set_attribute('kopf.sequel', observers.Sequel.AGAIN.name.lower())
                error = None
            finish(span, error)

        return end

    def write(
            self, resource: references.Resource, raw: bodies.RawBody, *,
            content_type: str, subresource: str | None = None,
    ) -> observers.Ended[bodies.RawBody]:
        method = 'DELETE' if content_type == 'delete' else 'PATCH'
        target = resource.plural if subresource is None else f'{resource.plural}/{subresource}'
        parent = context.get_current()
        span = self._tracer.start_span(
            f'{method} {target}', parent, kind=trace.SpanKind.CLIENT,
            attributes={'http.request.method': method,
                        **describe(resource, *identify(raw))})
        leave = enter(span, parent)

        def end(newest: bodies.RawBody | None, error: BaseException | None, seconds: float) -> None:
            leave()
            if isinstance(error, errors.APIError) and error.status:
                span.set_attribute('http.response.status_code', error.status)
            finish(span, error)

        return end


def enter(span: trace.Span, parent: context.Context) -> Callable[[], None]:
    """Make the span the current one; return the function that makes the former one current."""
    token = context.attach(trace.set_span_in_context(span, parent))
    return lambda: context.detach(token)


def finish(span: trace.Span, error: BaseException | None) -> None:
    """End the span; cancellations are no errors."""
    if error is not None and not isinstance(error, asyncio.CancelledError):
        fail(span, error, str(error))
    span.end()


def fail(span: trace.Span, error: BaseException, message: str | None) -> None:
    """Say in the span why it has failed, as the log says it."""
    message = message or repr(error)
    cls = type(error)
    is_public = getattr(sys.modules['kopf'], cls.__qualname__, None) is cls
    module = 'kopf' if is_public else cls.__module__
    name = cls.__qualname__ if module == 'builtins' else f'{module}.{cls.__qualname__}'
    status = error.status if isinstance(error, errors.APIError) else 0
    span.set_attribute('error.type', str(status or name))
    span.add_event('exception', {'exception.type': name, 'exception.message': message})
    span.set_status(trace.StatusCode.ERROR, message)


def identify(raw: bodies.RawBody) -> tuple[str | None, str | None, str | None]:
    """Get the uid, the name, and the namespace. Objects under a review can lack some of them."""
    meta = raw['metadata']
    return meta.get('uid'), meta.get('name'), meta.get('namespace')


def describe(
        resource: references.Resource, uid: str | None, name: str | None, namespace: str | None,
) -> Attributes:
    """Make the attributes of an object; those that are not known are absent."""
    prefix = CONVENTIONS.get((resource.group, resource.kind))
    is_namespace = (resource.group, resource.kind) == ('', 'Namespace')
    attributes = {
        'k8s.namespace.name': name if is_namespace else namespace,
        'k8s.object.api_version': resource.api_version,
        'k8s.object.kind': resource.kind,
        'k8s.object.name': name,
        'k8s.object.uid': uid,
    }
    if prefix is not None:
        attributes[f'{prefix}.name'] = name
        attributes[f'{prefix}.uid'] = uid
    return {key: value for key, value in attributes.items() if value is not None}
