"""
Which spans there are of what an operator does, and how they belong together.
"""
import asyncio
import json
import logging
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, export
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import k8s_attributes

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.clients import errors
from kopf._cogs.structs.references import Resource
from kopf._core.actions import loggers, observers
from kopf._core.actions.execution import Context
from kopf._core.engines import activities
from kopf._core.engines.admission import reviewing, webhooks
from kopf._core.intents import causes, registries
from kopf._kits.observing import tracing
from tests._core.reactor.worlds import Api, Operator, run_virtually
from tests._kits.external.clouds import Cloud, declare

OBJECT = {
    'k8s.namespace.name': 'ns', 'k8s.object.api_version': 'kopf.dev/v1',
    'k8s.object.kind': 'KopfExample', 'k8s.object.name': 'obj', 'k8s.object.uid': 'uid1',
}
OBJ = {'metadata': {'namespace': 'ns', 'name': 'obj', 'uid': 'uid1'}}
PARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
"""A header ``traceparent``: its trace, its span, and that it is sampled."""


class Recording:
    """A tracer whose spans are kept here when they have ended."""

    def __init__(self):
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(export.SimpleSpanProcessor(self._exporter))
        self.tracer = tracing.Tracer(provider)
        self.own = provider.get_tracer('own')
        """The tracer that handlers use."""

    @property
    def spans(self):
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time)

    @property
    def names(self):
        return [span.name for span in self.spans]

    def get(self, name):
        """Get the only span of this name."""
        span, = [span for span in self.spans if span.name == name]
        return span

    def get_parent(self, span):
        """Get the name of the parent; None if the span begins a trace."""
        return None if span.parent is None else next(
            (other.name for other in self.spans
             if other.context.span_id == span.parent.span_id), "an unknown span")

    def get_tree(self):
        """Get the name of each span with that of its parent."""
        return {(span.name, self.get_parent(span)) for span in self.spans}


@pytest.fixture()
def recording():
    return Recording()


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def live(recording, registry, caplog):
    """Let an operator handle objects for so long (seconds)."""
    def live(*names, lasts=10, faults=(), subresource=False, move=None, spec=()):
        async def run():
            api = Api()
            for name in names or ['obj']:
                api.create(name, spec=dict(spec))
            api.faults.extend(faults)
            operator = Operator(
                api, registry, observer=recording.tracer, subresource=subresource)
            operator.settings.queueing.error_delays = [3]
            operator.start()
            await asyncio.sleep(lasts / 2)
            if move is not None:
                move(api)
            await asyncio.sleep(lasts / 2)
            await operator.stop()
        run_virtually(run())
        assert [record for record in caplog.records if 'opentelemetry' in record.name] == []
    return live


# What belongs to what.

def test_reconciliation_is_a_trace_of_the_attempts_and_of_the_writes(registry, recording, live):
    kopf.on.create('kopfexamples', id='created', registry=registry)(lambda **_: 'result')
    kopf.on.event('kopfexamples', id='seen', registry=registry)(lambda **_: None)
    live()
    assert recording.get_tree() == {
        ('reconcile kopfexample', None),
        ('handler seen', 'reconcile kopfexample'),
        ('handler created', 'reconcile kopfexample'),
        ('PATCH kopfexamples', 'reconcile kopfexample'),
    }
    created, write = recording.get('handler created'), recording.get('PATCH kopfexamples')
    assert created.attributes == {
        **OBJECT, 'kopf.handler.id': 'created', 'kopf.reason': 'create', 'kopf.outcome': 'success'}
    assert created.kind is trace.SpanKind.INTERNAL
    assert write.attributes == {**OBJECT, 'http.request.method': 'PATCH'}
    assert write.kind is trace.SpanKind.CLIENT
    assert {dict(span.attributes)['kopf.sequel'] for span in recording.spans
            if span.name == 'reconcile kopfexample'} == {'rest'}
    assert {span.status.status_code for span in recording.spans} == {trace.StatusCode.UNSET}
    assert {span.instrumentation_scope.name for span in recording.spans} == {'kopf'}


def test_each_retry_is_a_trace_of_its_own(registry, recording, live):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(retry, **_):
        if retry < 2:
            raise kopf.TemporaryError("not yet", delay=1)

    live()
    attempts = [span for span in recording.spans if span.name == 'handler fn']
    passes = {span.context.trace_id: span for span in recording.spans if span.parent is None}
    assert [passes[span.context.trace_id].attributes['kopf.sequel'] for span in attempts] == [
        'later', 'later', 'rest']
    assert len({span.context.trace_id for span in attempts}) == 3
    assert {span.name for span in passes.values()} == {'reconcile kopfexample'}


def test_subhandlers_are_within_their_handlers_and_named_without_their_objects(
        registry, recording, live):
    async def nested(**_):
        @kopf.subhandler(id='deep')
        async def deep(**_):
            pass

    @kopf.on.create('kopfexamples', id='parent', registry=registry)
    async def parent(spec, **_):
        for item in spec['items']:
            kopf.register(nested, id=item)

    live(spec={'items': ['item1']})
    names = {span.attributes.get('kopf.handler.id'): span.name for span in recording.spans}
    parents = {span.attributes.get('kopf.handler.id'): recording.get_parent(span)
               for span in recording.spans}
    assert names.pop(None)
    assert names == {
        'parent': 'handler parent', 'parent/item1': 'handler parent/*',
        'parent/item1/deep': 'handler parent/*'}
    assert parents['parent'] == 'reconcile kopfexample'
    assert parents['parent/item1'] == 'handler parent'
    assert parents['parent/item1/deep'] == 'handler parent/*'


@pytest.mark.parametrize('decorate, name', [
    (kopf.daemon, 'handler fn'), (kopf.index, 'handler fn'),
    (lambda *args, **kwargs: kopf.timer(*args, interval=60, **kwargs), 'handler fn'),
])
def test_daemons_timers_and_indices_are_traces_of_their_own(
        registry, recording, live, decorate, name):
    decorate('kopfexamples', id='fn', registry=registry)(lambda **_: None)
    live()
    span = recording.get(name)
    assert span.parent is None
    assert span.attributes == {**OBJECT, 'kopf.handler.id': 'fn', 'kopf.outcome': 'success'}


def test_patches_of_timers_belong_to_their_attempts(registry, recording, live):
    @kopf.timer('kopfexamples', id='fn', interval=2, registry=registry)
    async def fn(patch, retry, **_):
        patch.spec['seen'] = asyncio.get_running_loop().time()

    live(lasts=5)
    ticks = [span for span in recording.spans if span.name == 'handler fn']
    writes = [span for span in recording.spans
              if recording.get_parent(span) == 'handler fn']
    assert [span.name for span in writes] == ['PATCH kopfexamples'] * len(ticks)
    assert len(ticks) >= 2
    assert [span.parent.span_id for span in writes] == [span.context.span_id for span in ticks]
    assert len({span.context.trace_id for span in ticks}) == len(ticks)


def test_patches_of_running_daemons_belong_to_their_attempts(registry, recording, live):
    @kopf.daemon('kopfexamples', id='fn', registry=registry)
    async def fn(patch, stopped, **_):
        for number in range(2):
            patch.spec['seen'] = number
            await stopped.wait(3)
        patch.spec['seen'] = 'all'

    live()
    parents = [recording.get_parent(span) for span in recording.spans
               if span.name == 'PATCH kopfexamples']
    assert set(parents) == {'reconcile kopfexample', 'handler fn'}  # the former is of the finalizer
    assert parents.count('handler fn') == 3


def test_reconciling_handlers_belong_to_reconciliations(registry, recording, live):
    kopf.reconcile('kopfexamples', id='fn', registry=registry)(lambda **_: None)
    live()
    assert recording.get('handler fn').attributes['kopf.reason'] == 'reconcile'
    assert ('handler fn', 'reconcile kopfexample') in recording.get_tree()


def test_attempts_of_reconciling_handlers_fail_with_their_owned_resources(
        registry, recording, live):
    kopf.reconcile('kopfexamples', id='fn', registry=registry)(lambda **_: {'kind': 'ConfigMap'})
    live(lasts=0.1)
    spans = [span for span in recording.spans if span.name == 'handler fn']
    assert {span.attributes['kopf.outcome'] for span in spans} == {'retry'}
    assert not any(span.status.is_ok for span in spans)


def test_calls_of_external_systems_belong_to_reconciliations(registry, recording, live):
    declare(Cloud(), registry=registry, kind='kopfexamples', consistency=2)
    live(move=lambda api: api.delete('obj'), lasts=100)
    calls = {name for name in recording.names if name.startswith('handler ')}
    assert calls == {f'handler account/{verb}' for verb in (
        'desired', 'create', 'observe', 'delete')}
    assert {(name, 'reconcile kopfexample') for name in calls} < recording.get_tree()
    created = recording.get('handler account/create')
    assert created.attributes == {
        **OBJECT, 'kopf.handler.id': 'account/create', 'kopf.reason': 'reconcile',
        'kopf.outcome': 'success'}
    assert created.kind is trace.SpanKind.INTERNAL
    writes = [span for span in recording.spans if span.name == 'PATCH kopfexamples']
    assert writes[0].end_time <= created.start_time <= created.end_time <= writes[1].start_time
    assert {span.context.trace_id for span in writes[:2]} == {created.context.trace_id}


def test_failed_calls_of_external_systems_are_errors(registry, recording, live):
    cloud = Cloud()
    declare(cloud, registry=registry, kind='kopfexamples')
    cloud.faults.append('refused')
    live()
    failed, created = [
        span for span in recording.spans if span.name == 'handler account/create']
    assert failed.attributes['kopf.outcome'] == 'retry'
    assert failed.attributes['error.type'].endswith('.CloudError')
    assert (failed.status.status_code, failed.status.description) == (
        trace.StatusCode.ERROR, "The cloud responds with HTTP 400.")
    assert created.attributes['kopf.outcome'] == 'success'
    assert failed.context.trace_id != created.context.trace_id


def test_no_name_is_of_an_object(registry, recording, live):
    kopf.on.create('kopfexamples', id='created', registry=registry)(lambda **_: 'result')
    live('one', 'two', 'three', subresource=True)
    assert set(recording.names) == {
        'reconcile kopfexample', 'handler created',
        'PATCH kopfexamples', 'PATCH kopfexamples/status'}
    assert {span.attributes['k8s.object.name'] for span in recording.spans} == {
        'one', 'two', 'three'}


# The spans of handlers and of their libraries.

def test_spans_of_handlers_are_within_their_attempts(registry, recording, live):
    async def do(name):
        with recording.own.start_as_current_span(name):
            await asyncio.sleep(1)

    @kopf.on.create('kopfexamples', id='coro', registry=registry)
    async def coro(**_):
        await do("in a coroutine")

    @kopf.on.create('kopfexamples', id='task', registry=registry)
    async def task(**_):
        await asyncio.create_task(do("in a task"))

    @kopf.on.create('kopfexamples', id='thread', registry=registry)
    def thread(**_):
        with recording.own.start_as_current_span("in a thread"):
            pass

    @kopf.on.create('kopfexamples', id='other', registry=registry)
    async def other(**_):
        await asyncio.to_thread(thread)

    live()
    own = {pair for pair in recording.get_tree() if pair[0].startswith("in a")}
    assert own == {
        ("in a coroutine", 'handler coro'), ("in a task", 'handler task'),
        ("in a thread", 'handler thread'), ("in a thread", 'handler other')}


def test_handlers_of_several_objects_do_not_mix_their_traces(registry, recording, live):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(name, **_):
        await asyncio.sleep(1)
        with recording.own.start_as_current_span(name):
            await asyncio.sleep(1)

    live('one', 'two', 'three')
    by_id = {span.context.span_id: span for span in recording.spans}
    found = {span.name: by_id[span.parent.span_id].attributes['k8s.object.name']
             for span in recording.spans if span.instrumentation_scope.name == 'own'}
    assert found == {'one': 'one', 'two': 'two', 'three': 'three'}


def test_nothing_is_left_current_after_a_reconciliation(registry, recording):
    kopf.on.create('kopfexamples', id='fn', registry=registry)(lambda **_: 'result')
    leave = recording.tracer.reconciliation(
        Resource('kopf.dev', 'v1', 'kopfexamples'), OBJ)
    assert trace.get_current_span().get_span_context().is_valid
    leave(observers.Sequel.REST, None, 1.0)
    assert not trace.get_current_span().get_span_context().is_valid


# Errors.

class BoomError(Exception):
    pass


class TemporaryError(Exception):
    """An error of the author, with the name of one of Kopf."""


def test_ignored_errors_are_in_the_span(registry, recording, live):
    @kopf.on.create('kopfexamples', id='fn', errors=kopf.ErrorsMode.IGNORED, registry=registry)
    def fn(**_):
        raise BoomError("boo!")

    live()
    span = recording.get('handler fn')
    assert span.attributes['kopf.outcome'] == 'ignored'
    assert span.attributes['error.type'] == f'{__name__}.BoomError'


@pytest.mark.parametrize('error, outcome, name, message', [
    (kopf.TemporaryError("not yet", delay=60), 'retry', 'kopf.TemporaryError', "not yet"),
    (kopf.PermanentError("never"), 'failure', 'kopf.PermanentError', "never"),
    (TemporaryError("boo!"), 'retry', f'{__name__}.TemporaryError', "boo!"),
    (BoomError("boo!"), 'retry', f'{__name__}.BoomError', "boo!"),
    (KeyError(), 'retry', 'KeyError', "KeyError()"),
])
def test_failed_attempts_have_the_type_and_the_message(
        registry, recording, live, error, outcome, name, message):
    @kopf.on.create('kopfexamples', id='fn', backoff=60, registry=registry)
    def fn(**_):
        raise error

    live()
    span = recording.get('handler fn')
    assert span.attributes['kopf.outcome'] == outcome
    assert span.attributes['error.type'] == name
    assert (span.status.status_code, span.status.description) == (
        trace.StatusCode.ERROR, message)
    event, = span.events
    assert (event.name, event.attributes) == (
        'exception', {'exception.type': name, 'exception.message': message})


def test_handlers_that_wait_for_their_subhandlers_have_not_failed(registry, recording, live):
    async def sub(**_):
        raise kopf.TemporaryError("not yet", delay=60)

    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(**_):
        kopf.register(sub, id='sub')

    live()
    span = recording.get('handler fn')
    assert span.attributes['kopf.outcome'] == 'waiting'
    assert span.status.status_code is trace.StatusCode.UNSET


def test_cancelled_attempts_end_without_an_error(registry, recording, live):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    async def fn(**_):
        await asyncio.sleep(1000)

    live()
    span = recording.get('handler fn')
    assert span.attributes['kopf.outcome'] == 'cancelled'
    assert {span.status.status_code for span in recording.spans} == {trace.StatusCode.UNSET}


def test_interrupted_attempts_end_with_all_that_is_within(registry, recording, live):
    async def sub(**_):
        with recording.own.start_as_current_span("own"):
            await asyncio.sleep(1000)

    @kopf.on.create('kopfexamples', id='fn', timeout=2, registry=registry)
    async def fn(**_):
        kopf.register(sub, id='sub')

    live()
    assert {'handler fn', 'handler fn/*', "own", 'reconcile kopfexample'} <= set(recording.names)
    assert recording.get('handler fn').attributes['kopf.outcome'] == 'failure'
    assert "timed out" in recording.get('handler fn').status.description


def test_errors_of_the_api_are_errors_of_the_write_and_of_the_reconciliation(
        registry, recording, live):
    kopf.on.create('kopfexamples', id='fn', registry=registry)(lambda **_: 'result')
    live(faults=['before'], lasts=2)
    failed = [span for span in recording.spans if span.status.status_code is trace.StatusCode.ERROR]
    assert {span.name for span in failed} == {'reconcile kopfexample', 'PATCH kopfexamples'}
    assert {span.status.description for span in failed} == {"lost on the way"}
    assert {span.attributes['error.type'] for span in failed} == {
        'kopf._cogs.clients.errors.APIConnectionError'}


def test_refused_writes_have_the_status(recording):
    end = recording.tracer.write(
        Resource('kopf.dev', 'v1', 'kopfexamples'), OBJ,
        content_type='merge', subresource=None)
    end(None, errors.APIConflictError("changed meanwhile", status=409), 1.0)
    span, = recording.spans
    assert (span.attributes['http.response.status_code'], span.attributes['error.type']) == (
        409, '409')
    assert span.status.description == "changed meanwhile"


def test_deletions_of_owned_resources_are_spans(recording):
    end = recording.tracer.write(
        Resource('', 'v1', 'configmaps', kind='ConfigMap'),
        {'metadata': {'namespace': 'ns', 'name': 'obj'}},
        content_type='delete', subresource=None)
    end(None, None, 1.0)
    span, = recording.spans
    assert (span.name, span.attributes['http.request.method']) == ('DELETE configmaps', 'DELETE')


def test_loss_of_the_lease_is_no_error(recording):
    end = recording.tracer.reconciliation(
        Resource('kopf.dev', 'v1', 'kopfexamples'), OBJ)
    end(None, errors.NotLeadingError("not leading"), 1.0)
    span, = recording.spans
    assert span.attributes['kopf.sequel'] == 'again'
    assert span.status.status_code is trace.StatusCode.UNSET


# Other handlers.

@pytest.fixture()
def context(recording):
    return Context(settings=kopf.OperatorSettings(), clock=Clock(), indices={},
                   observer=observers.Notifier([recording.tracer]))


async def test_handlers_of_the_operator_itself_are_spans(registry, recording, context):
    kopf.on.cleanup(id='fn', registry=registry)(lambda **_: None)
    with recording.own.start_as_current_span("own"):
        await activities.run_activity(
            registry=registry, activity=causes.Activity.CLEANUP, memo=kopf.Memo(),
            context=context)
    span = recording.get('handler fn')
    assert span.attributes == {
        'kopf.handler.id': 'fn', 'kopf.reason': 'cleanup', 'kopf.outcome': 'success'}
    assert recording.get_parent(span) == "own"


@pytest.fixture()
def review(registry, context):
    @kopf.on.validate('kopfexamples', id='fn', registry=registry)
    async def fn(**_):
        raise kopf.AdmissionError("no")

    declared = list(registry._webhooks)
    reviewer = reviewing.Reviewer(
        directory=webhooks.Directory(declared),
        context=context, find=lambda resource: (resource, declared),
        get_memo=lambda *_: kopf.Memo())
    request = {
        'apiVersion': 'admission.k8s.io/v1', 'kind': 'AdmissionReview', 'request': {
            'uid': 'uid1', 'operation': 'CREATE', 'name': 'obj', 'namespace': 'ns',
            'object': {'metadata': {}},
            'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': 'kopfexamples'}}}
    return lambda **options: reviewer(request, **options)


@pytest.mark.parametrize('header', ['traceparent', 'Traceparent'])
async def test_admission_reviews_continue_the_trace_of_the_api_server(recording, review, header):
    await review(headers={header: PARENT})
    span = recording.get('handler fn')
    assert f'00-{span.context.trace_id:032x}-{span.parent.span_id:016x}-01' == PARENT
    assert span.attributes['kopf.outcome'] == 'failure'
    assert span.attributes['k8s.object.name'] == 'obj'
    assert span.attributes['k8s.namespace.name'] == 'ns'


async def test_admission_reviews_belong_to_the_span_of_the_server_if_there_is_one(
        recording, review):
    with recording.own.start_as_current_span("server"):
        await review(headers={'traceparent': PARENT})
    assert recording.get_parent(recording.get('handler fn')) == "server"


async def test_admission_reviews_without_any_trace_begin_one(recording, review):
    await review()
    assert recording.get('handler fn').parent is None


# Attributes.

@pytest.mark.parametrize('prefix', tracing.CONVENTIONS.values())
def test_attributes_of_known_kinds_are_those_of_the_conventions(prefix):
    known = {value for name, value in vars(k8s_attributes).items() if name.startswith('K8S_')}
    assert {f'{prefix}.name', f'{prefix}.uid'} <= known


def describe(resource, namespace, name, uid):
    return tracing.describe(resource, uid, name, namespace)


def test_objects_of_known_kinds_have_the_attributes_of_their_kinds_too():
    attributes = describe(Resource('', 'v1', 'pods', kind='Pod'), 'ns', 'pod1', 'uid1')
    assert attributes.items() >= {
        'k8s.namespace.name': 'ns', 'k8s.pod.name': 'pod1', 'k8s.pod.uid': 'uid1'}.items()
    assert describe(Resource('my.dev', 'v1', 'pods', kind='Pod'), 'ns', 'pod1', 'uid1') == {
        'k8s.namespace.name': 'ns', 'k8s.object.api_version': 'my.dev/v1',
        'k8s.object.kind': 'Pod', 'k8s.object.name': 'pod1', 'k8s.object.uid': 'uid1'}


def test_namespaces_are_in_the_attribute_of_namespaces():
    attributes = describe(Resource('', 'v1', 'namespaces', kind='Namespace'), None, 'ns', 'uid1')
    assert attributes['k8s.namespace.name'] == 'ns'


def test_what_is_not_known_has_no_attributes():
    assert describe(Resource('kopf.dev', 'v1', 'kopfexamples'), None, None, None) == {
        'k8s.object.api_version': 'kopf.dev/v1'}


# The log and the requests.

@pytest.fixture()
def configure_log(capsys):
    root = logging.getLogger()
    level, present = root.level, list(root.handlers)

    def configure(log_format):
        kopf.configure(log_format=log_format)
        loggers.add_filter(tracing.mark)

    yield configure
    root.setLevel(level)
    root.handlers[:] = present


def test_lines_of_json_have_the_ids_of_the_current_span(
        registry, recording, live, configure_log, capsys):
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    def fn(logger, **_):
        logger.info("from a thread")

    configure_log(kopf.LogFormat.JSON)
    live()
    logging.getLogger('other').warning("from elsewhere")
    read = map(json.loads, capsys.readouterr().err.splitlines())
    lines = {line['message']: line for line in read}
    span = recording.get('handler fn').context
    for message in ["from a thread", "Handler 'fn' succeeded."]:
        assert lines[message]['trace_id'] == f'{span.trace_id:032x}'
        assert lines[message]['span_id'] == f'{span.span_id:016x}'
        assert lines[message]['trace_flags'] == f'{span.trace_flags:02x}'
    assert not {'trace_id', 'span_id', 'trace_flags'} & lines["from elsewhere"].keys()


def test_lines_at_the_end_of_a_reconciliation_have_its_ids(
        registry, recording, live, configure_log, capsys):
    kopf.on.create('kopfexamples', id='fn', registry=registry)(lambda **_: 'result')
    configure_log(kopf.LogFormat.JSON)
    live(faults=['before'])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    found = [line for line in lines if line['message'].startswith("Throttling ")]
    failed, recovered = [
        span.context for span in recording.spans if span.name == 'reconcile kopfexample']
    assert [(line['trace_id'], line['span_id']) for line in found] == [
        (f'{span.trace_id:032x}', f'{span.span_id:016x}') for span in (failed, recovered)]


def test_lines_of_text_are_as_ever(registry, recording, live, configure_log, capsys):
    kopf.on.create('kopfexamples', id='fn', registry=registry)(lambda **_: None)
    configure_log(kopf.LogFormat.PLAIN)
    live()
    assert "Handler 'fn' succeeded." in capsys.readouterr().err.splitlines()


def test_requests_say_to_which_span_they_belong(recording):
    assert tracing.make_headers() == {}
    with recording.own.start_as_current_span("own") as span:
        ids = span.get_span_context()
        assert tracing.make_headers() == {
            'traceparent': f'00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}'}


# Whether it is on.

def run_program(*lines):
    program = '\n'.join([
        'import asyncio, logging, sys',
        'logging.basicConfig(format="%(message)s", stream=sys.stdout, level="WARNING")',
        *lines[:1],
        'import kopf, kopf.cli',
        'from kopf._cogs.clients.vaults import Vault',
        'ready = asyncio.Event()',
        'settings, registry = kopf.OperatorSettings(), kopf.OperatorRegistry()',
        *lines[1:],
        'try:',
        '    asyncio.run(kopf.operator(',
        '        registry=registry, clusterwide=True, standalone=True,',
        '        settings=settings, ready_flag=ready, stop_flag=ready,',
        '        vault=Vault({"": kopf.ConnectionInfo(server="http://127.0.0.1")})))',
        'except Exception as e:',
        '    print(type(e).__name__, e)',
        'names = ["opentelemetry", "kopf._kits.observing.tracing",',
        '         "kopf._kits.observing.metrics", "opentelemetry.sdk"]',
        'print([name for name in names if name in sys.modules])',
    ])
    return subprocess.check_output([sys.executable, '-c', program], text=True).splitlines()


def test_without_tracing_nothing_of_it_is_even_imported():
    assert run_program('') == ['[]']


@pytest.mark.parametrize('line', [
    "settings.tracing.enabled = True",
    "kopf.on.startup(registry=registry)(lambda settings, **_: setattr("
    "settings.tracing, 'enabled', True))",
])
def test_tracing_can_also_be_set_at_the_startup_and_says_if_nothing_records(line):
    warning, names = run_program('', line)
    assert warning.startswith("Tracing is on, but the SDK of OpenTelemetry is not set up")
    assert names == "['opentelemetry', 'kopf._kits.observing.tracing']"


def test_provider_that_is_set_at_the_startup_records():
    lines = run_program(
        '', 'settings.tracing.enabled = True',
        'from opentelemetry import trace',
        'from opentelemetry.sdk.trace import TracerProvider, export',
        '@kopf.on.startup(registry=registry)',
        'def configure(**_):',
        '    provider = TracerProvider()',
        '    provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(',
        '        formatter=lambda span: f"{span.name}\\n")))',
        '    trace.set_tracer_provider(provider)',
        'kopf.on.cleanup(id="fn", registry=registry)(lambda **_: None)')
    assert lines[0] == 'handler fn'
    assert not any(line.startswith("Tracing is on") for line in lines)


def test_lack_of_the_library_is_said_in_a_line_with_what_to_install():
    line, _ = run_program('sys.modules["opentelemetry"] = None', 'settings.tracing.enabled = True')
    assert line.startswith("SettingsError Traces need the library opentelemetry-api. Install it")
    assert "pip install opentelemetry-api" in line


def test_operators_with_other_observers_are_traced_too(recording):
    declared = registries.OperatorRegistry()
    told = []

    class Other(observers.Observer):
        def attempt(self, handler, cause):
            told.append(trace.get_current_span().get_span_context().is_valid)
            return lambda *_: None

    kopf.on.cleanup(id='fn', registry=declared)(lambda **_: None)
    asyncio.run(activities.run_activity(
        registry=declared, activity=causes.Activity.CLEANUP, memo=kopf.Memo(),
        context=Context(settings=kopf.OperatorSettings(), clock=Clock(), indices={},
                        observer=observers.Notifier([recording.tracer, Other()]))))
    assert told == [True]
    assert recording.names == ['handler fn']
