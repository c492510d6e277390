"""
Traces of a real process: the spans, the log, and the requests belong together.
"""
import json
import re
import uuid

import pytest

from tests.e2e.journals import wait_handled
from tests.e2e.kubes import CONFIGMAPS
from tests.e2e.proxy import Proxy, is_patch

HANDLERS = '''
import urllib.error
import urllib.request
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, export

@kopf.on.startup()
def configure(**_):
    provider = TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(
        out=open({spans!r}, 'a', buffering=1), formatter=lambda span: span.to_json(None) + '\\n')))
    trace.set_tracer_provider(provider)

@kopf.on.create(*KIND)
def created(spec, logger, **_):
    with trace.get_tracer('own').start_as_current_span("work"):
        logger.info("working")
    if spec.get('fails'):
        raise kopf.PermanentError("never")
    return 'done'

@kopf.reconcile(*KIND, owns=['configmaps'])
def reconciled(**_):
    yield {{'apiVersion': 'v1', 'kind': 'ConfigMap'}}
'''


@pytest.fixture()
def path(tmp_path):
    return tmp_path / 'spans.jsonl'


@pytest.fixture()
def name():
    """The name of an object and of its config map, which other tests do not use."""
    return f'obj-{uuid.uuid4().hex[:8]}'


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_spans_and_log_and_requests_belong_together(
        kube, kind, cluster, operator, path, tmp_path, name):
    with Proxy(cluster) as proxy:
        op = operator(
            HANDLERS.format(spans=str(path)), '--tracing', '--log-format=json', kind=kind,
            kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))
        await kube.create(kind, name)
        await kube.create(kind, f'{name}-failing', spec={'fails': True})
        await wait_handled(kube, kind, name)
        await wait_handled(kube, kind, f'{name}-failing')
        await kube.wait_for(CONFIGMAPS, name, bool)
        await kube.wait_for(CONFIGMAPS, f'{name}-failing', bool)
        assert op.stop() == 0
        patches = [request for request in proxy.requests if request.method == 'PATCH']
        watches = [request for request in proxy.requests if request.is_watch]

    spans = {span['context']['span_id']: span for span in read(path)}

    def find(title, obj):
        """Find a span of the object; reconciling handlers can be called several times."""
        return next(span for span in spans.values() if span['name'] == title
                    and span['attributes'].get('k8s.object.name') == obj)

    created = find('handler created', name)
    assert spans[created['parent_id']]['name'] == f'reconcile {kind.kind.lower()}'
    assert created['attributes']['k8s.namespace.name'] == 'default'
    assert find('handler created', f'{name}-failing')['status'] == {
        'status_code': 'ERROR', 'description': "never"}
    assert find('handler reconciled', name)['attributes']['kopf.reason'] == 'reconcile'
    assert find('PATCH configmaps', name)['kind'] == 'SpanKind.CLIENT'

    # The own spans of the handlers, and the log.
    own = [span for span in spans.values() if span['name'] == 'work']
    assert {spans[span['parent_id']]['name'] for span in own} == {'handler created'}
    lines = [json.loads(line) for line in op.lines if line.startswith('{')]
    working = [line for line in lines if line['message'] == "working"]
    assert {(line['trace_id'], line['span_id']) for line in working} == {
        (span['context']['trace_id'][2:], span['context']['span_id'][2:]) for span in own}

    # The requests: all patches have a span, and are sent with its ids.
    sent = [re.fullmatch(r'00-(\w+)-(\w+)-\w\w', request.headers['traceparent'])
            for request in patches]
    assert {spans[f'0x{found[2]}']['kind'] for found in sent} == {'SpanKind.CLIENT'}
    assert {spans[f'0x{found[2]}']['context']['trace_id'] for found in sent} == {
        f'0x{found[1]}' for found in sent}
    assert not any('traceparent' in request.headers for request in watches)


async def test_spans_of_refused_writes_have_the_status(
        kube, kind, cluster, operator, path, tmp_path, name):
    with Proxy(cluster) as proxy:
        proxy.fail(422, match=is_patch, times=1)
        op = operator(
            HANDLERS.format(spans=str(path)), '--tracing', kind=kind,
            kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))
        await kube.create(kind, name)
        await wait_handled(kube, kind, name)
        assert op.stop() == 0
    failed = [span for span in read(path) if span['status']['status_code'] == 'ERROR']
    write = next(span for span in failed if span['name'].startswith('PATCH'))
    assert write['attributes']['http.response.status_code'] == 422
    assert write['attributes']['error.type'] == '422'


async def test_tracing_does_not_need_an_sdk(kube, kind, operator, name):
    op = operator('@kopf.on.create(*KIND)\ndef fn(**_): pass\n', '--tracing', kind=kind)
    await op.wait_for("nothing records the spans")
    await kube.create(kind, name)
    await op.wait_for("Handler 'fn' succeeded")
    assert op.stop() == 0
