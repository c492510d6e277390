"""
What is served beside the health checks: the metrics, and the state of the operator.
"""
import asyncio
import json

import aiohttp
import pytest

from tests import expressions
from tests.e2e.journals import wait_handled
from tests.e2e.ports import find_free_ports

HANDLERS = '''
@kopf.on.startup()
def configure(settings, **_):
    settings.queueing.error_delays = [60]

@kopf.on.create(*KIND)
async def created(spec, **_):
    if spec.get('fails'):
        raise kopf.TemporaryError("password=secret", delay=600)

@kopf.timer(*KIND, interval=1)
async def tick(**_):
    pass

@kopf.index(*KIND)
async def index(name, **_):
    return {name: name}
'''


@pytest.fixture()
def url():
    return f'http://127.0.0.1:{find_free_ports(1)}'


async def fetch(url, **headers):
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as response:
        assert response.status == 200
        return response.headers['Content-Type'], await response.text()


async def test_metrics_and_state_are_served_beside_the_health_checks(kube, kind, operator, url):
    op = operator(
        HANDLERS, f'--liveness={url}/healthz', f'--metrics={url}/metrics',
        f'--debug-endpoint={url}/debug', kind=kind)
    await op.wait_for("The metrics are served")
    for number in range(5):
        await kube.create(kind, f'obj{number}', spec={})
    await kube.create(kind, 'failing', spec={'fails': True})
    for number in range(5):
        await wait_handled(kube, kind, f'obj{number}')
    await op.wait_for("password=secret")
    async with asyncio.timeout(30):
        while not json.loads((await fetch(f'{url}/debug'))[1])['waiting']['total']:
            await asyncio.sleep(0.05)

    content_type, text = await fetch(f'{url}/metrics')
    series = expressions.parse_text(text)
    assert content_type.startswith('text/plain')
    controller = kind.kind.lower()
    assert ({'controller': controller, 'result': 'success'}, 5) in (
        series['controller_runtime_reconcile_total'])
    assert ({'controller': controller, 'result': 'requeue_after'}, 1) in (
        series['controller_runtime_reconcile_total'])
    assert ({'kind': controller}, 6) in series['kopf_objects']
    assert ({'kind': controller, 'reason': 'retry'}, 1) in series['kopf_objects_waiting']
    requests = {(labels['method'], labels['code']): value
                for labels, value in series['rest_client_requests_total']}
    assert requests['PATCH', '200'] >= 6 and requests['GET', '200'] >= 2
    assert [expr for expr in expressions.KUBEBUILDER
            if expressions.find_missing(expr, series)] == []

    content_type, text = await fetch(f'{url}/metrics', Accept='application/openmetrics-text')
    assert content_type.startswith('application/openmetrics-text')
    assert text.endswith('# EOF\n')

    content_type, text = await fetch(f'{url}/debug')
    state = json.loads(text)
    assert 'secret' not in text
    assert [shown['name'] for shown in state['waiting']['shown']] == ['failing']
    assert [watch['running'] for watch in state['watches']['shown']] == [True]
    assert (await fetch(f'{url}/healthz'))[1] == '{}'
    assert op.stop() == 0


async def test_metrics_can_be_served_alone(kube, kind, operator, url):
    op = operator(HANDLERS, f'--metrics={url}', kind=kind)
    await op.wait_for(f"The metrics are served at {url}/metrics")
    assert 'kopf_objects' in (await fetch(f'{url}/metrics'))[1]
    assert op.stop() == 0
