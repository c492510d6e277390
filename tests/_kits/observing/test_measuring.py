"""
What the metrics of an operator tell, under names that the dashboards of controller-runtime know.
"""
import asyncio
import concurrent.futures
import dataclasses
import logging
import subprocess
import sys
import threading
import types

import prometheus_client
import pytest

import kopf
from kopf._cogs.serving import endpoints, exchanges, pages
from kopf._core.actions import brakes
from kopf._core.engines.admission import questions
from kopf._kits.observing import debug, metrics
from tests import expressions
from tests._core.engines.test_liveness import get, show
from tests._core.reactor.worlds import run_virtually
from tests._kits.observing.scrapes import Measured, Releasing


def declare_all(registry):
    """All kinds of handlers."""
    declare_created(registry)
    kopf.on.update('kopfexamples', id='updated', registry=registry)(nothing)
    kopf.on.event('kopfexamples', id='seen', registry=registry)(nothing)
    kopf.timer('kopfexamples', id='timer', interval=10, registry=registry)(nothing)

    @kopf.index('kopfexamples', id='index', registry=registry)
    async def index(name, **_):
        return {'any': name, name: 1}

    @kopf.daemon('kopfexamples', id='daemon', registry=registry)
    async def daemon(stopped, **_):
        await stopped.wait()


def declare_created(registry):
    @kopf.on.create('kopfexamples', id='created', registry=registry)
    async def created(spec, retry, **_):
        if spec.get('fails') == 'temporarily' and not retry:
            raise kopf.TemporaryError("not yet", delay=3)
        if spec.get('fails') == 'arbitrarily' and not retry:
            raise Exception("boo!")
        if spec.get('fails') == 'permanently':
            raise kopf.PermanentError("never")
        await asyncio.sleep(spec.get('lasts', 0))


async def nothing(**_):
    pass


def measure(declare, *specs, lasts=10, faults=()):
    """Let an operator handle objects with such specs for so long; return what is scraped then."""
    async def run():
        async with Measured(declare) as measured:
            measured.api.faults.extend(faults)
            for number, spec in enumerate(specs):
                measured.api.create(f'obj{number}', spec=spec)
            await asyncio.sleep(lasts)
            return await measured.scrape()

    return run_virtually(run())


@pytest.mark.parametrize('spec, lasts, results, errors, terminal, retries', [
    ({}, 10, {'success': 1}, 0, 0, 0),
    ({'fails': 'temporarily'}, 2, {'requeue_after': 1}, 0, 0, 1),
    ({'fails': 'temporarily'}, 10, {'requeue_after': 1, 'success': 1}, 0, 0, 1),
    ({'fails': 'arbitrarily'}, 10, {'error': 1, 'success': 1}, 1, 0, 1),
    ({'fails': 'permanently'}, 10, {'error': 1}, 1, 1, 0),
])
def test_reconciliations_are_counted_by_their_results(
        spec, lasts, results, errors, terminal, retries):
    scrape = measure(declare_created, spec, lasts=lasts)
    own, both = {'controller': 'kopfexample'}, {'name': 'kopfexample', 'controller': 'kopfexample'}
    assert scrape.get_all('controller_runtime_reconcile_total', 'result', **own) == results
    assert scrape.get('controller_runtime_reconcile_errors_total', **own) == errors
    assert scrape.get('controller_runtime_terminal_reconcile_errors_total', **own) == terminal
    assert scrape.get('workqueue_retries_total', **both) == retries


def test_errors_of_the_api_are_errors_of_reconciliations():
    scrape = measure(declare_created, {}, faults=['before'])
    assert scrape.get_all('controller_runtime_reconcile_total', 'result') == {'error': 1}
    assert scrape.get_all('kopf_objects_waiting', 'reason') == {'throttled': 1}


@pytest.mark.parametrize('text', ['Disks', 'Disks; until=2999-12-01'])
def test_paused_objects_are_counted(text):
    async def run():
        async with Measured(declare_created) as measured:
            measured.api.create('obj0', spec={}, metadata={
                'annotations': {'kopf.dev/paused': text}})
            measured.api.create('obj1', spec={})
            await asyncio.sleep(10)
            return await measured.scrape()

    scrape = run_virtually(run())
    assert scrape.get_all('kopf_objects_waiting', 'reason') == {'paused': 1}


def test_durations_of_reconciliations_are_measured():
    scrape = measure(declare_created, {'lasts': 2}, {'lasts': 2})
    assert scrape.get('controller_runtime_reconcile_time_seconds_count') == 2
    assert scrape.get('controller_runtime_reconcile_time_seconds_sum') == pytest.approx(4, abs=0.2)
    assert scrape.get('controller_runtime_reconcile_time_seconds_bucket', le='1.5') == 0
    assert scrape.get('controller_runtime_reconcile_time_seconds_bucket', le='2.5') == 2
    assert scrape.get('workqueue_work_duration_seconds_sum') == pytest.approx(4, abs=0.2)
    assert scrape.get('workqueue_adds_total') == 2


def test_present_work_is_shown():
    scrape = measure(declare_created, {'lasts': 100}, {}, {'lasts': 100}, lasts=10)
    assert scrape.get('controller_runtime_active_workers') == 2
    assert scrape.get('controller_runtime_max_concurrent_reconciles') == float('inf')
    assert scrape.get('workqueue_unfinished_work_seconds') == pytest.approx(20, abs=0.5)
    assert scrape.get('workqueue_longest_running_processor_seconds') == pytest.approx(10, abs=0.5)
    assert scrape.get('workqueue_depth') == 0
    assert scrape.get('kopf_objects') == 3
    assert scrape.get('kopf_cycles_open') == 2


def test_waiting_in_the_queue_is_measured():
    async def run():
        async with Measured(declare_created) as measured:
            measured.operator.settings.queueing.worker_limit = 1
            for number in range(3):
                measured.api.create(f'obj{number}', spec={'lasts': 5})
            await asyncio.sleep(2)
            before = await measured.scrape()
            await asyncio.sleep(20)
            return before, await measured.scrape()

    before, after = run_virtually(run())
    assert (before.get('workqueue_depth'), after.get('workqueue_depth')) == (2, 0)
    assert after.get('workqueue_queue_duration_seconds_count') == 3
    assert after.get('workqueue_queue_duration_seconds_sum') == pytest.approx(15, abs=0.5)
    assert after.get('workqueue_adds_total') == 3
    assert after.get('controller_runtime_reconcile_total', result='success') == 3


def test_queue_forgets_what_waits_at_a_pause():
    async def run():
        async with Measured(declare_created) as measured:
            measured.operator.settings.queueing.worker_limit = 1
            for number in range(3):
                measured.api.create(f'obj{number}', spec={'lasts': 5})
            await asyncio.sleep(2)
            measured.operator.stand_by()
            scrape = await measured.scrape()
            measured.operator.take_over()
            return scrape

    assert run_virtually(run()).get('workqueue_depth') == 0


def test_attempts_are_counted_by_handlers_and_outcomes():
    scrape = measure(declare_all, {}, {'fails': 'temporarily'}, {'fails': 'permanently'})
    key = {'handler': 'created', 'kind': 'kopfexample'}
    assert scrape.get_all('kopf_handler_total', 'outcome', **key) == {
        'success': 2, 'retry': 1, 'failure': 1}
    assert scrape.get_all('kopf_handler_seconds_count', 'outcome', **key) == {
        'success': 2, 'retry': 1, 'failure': 1}
    assert scrape.get_all('kopf_handler_total', 'handler', outcome='success').keys() == {
        'created', 'seen', 'timer', 'index'}
    assert scrape.get('kopf_handler_total', handler='updated', outcome='success') == 0


def test_ignored_errors_are_no_successes():
    def declare(registry):
        @kopf.on.event('kopfexamples', id='event', registry=registry)
        @kopf.on.create(
            'kopfexamples', id='created', errors=kopf.ErrorsMode.IGNORED, registry=registry)
        @kopf.index('kopfexamples', id='index', registry=registry)
        def fn(**_):
            raise ValueError("boo!")

    scrape = measure(declare, {}, lasts=1)
    assert scrape.get_all('kopf_handler_total', 'outcome').keys() == {'ignored'}
    assert scrape.get_all('kopf_handler_total', 'handler').keys() == {'event', 'created', 'index'}


def test_handlers_that_are_interrupted_at_the_exit_are_counted():
    async def run():
        measured = Measured(declare_created)
        async with measured:
            measured.api.create('obj', spec={'lasts': 100})
            await asyncio.sleep(1)
        return await measured.scrape()

    scrape = run_virtually(run())
    assert scrape.get_all('kopf_handler_total', 'outcome') == {'cancelled': 1}
    assert scrape.get_all('controller_runtime_reconcile_total', 'result') == {}


def test_subhandlers_are_counted_together_as_their_names_can_be_of_objects():
    def declare(registry):
        @kopf.on.create('kopfexamples', id='parent', registry=registry)
        async def parent(spec, **_):
            for name in spec['names']:
                kopf.register(nothing, id=name)

    scrape = measure(declare, {'names': ['a', 'b']}, {'names': ['c']})
    assert scrape.get_all('kopf_handler_total', 'handler', outcome='success') == {
        'parent': 2, 'parent/*': 3}


def test_what_an_operator_has_is_shown():
    scrape = measure(declare_all, {}, {}, {'fails': 'temporarily'}, lasts=1)
    assert scrape.get('kopf_daemons', handler='daemon', kind='kopfexample') == 3
    assert scrape.get('kopf_timers', handler='timer', kind='kopfexample') == 3
    assert scrape.get('kopf_index_keys', index='index') == 4
    assert scrape.get('kopf_index_objects', index='index') == 3
    assert scrape.get_all('kopf_objects_waiting', 'reason') == {'retry': 1}
    assert scrape.get('kopf_cycles_open') == 1
    assert scrape.get('kopf_watches') == 1


def test_what_is_being_released_is_shown():
    async def run():
        async with Measured(declare_all) as measured:
            measured.api.create('obj', spec={'lasts': 100})
            measured.inspected.role = Releasing(measured.operator, described=None)
            await asyncio.sleep(1)
            described = await debug.describe(measured.inspector)
            return described['at_work']['total'], await measured.scrape()

    at_work, scrape = run_virtually(run())
    assert at_work == 1
    assert scrape.get('kopf_objects') == 1
    assert scrape.get('kopf_daemons', handler='daemon', kind='kopfexample') == 1


def test_watches_tell_when_they_were_connected_and_have_heard_something():
    async def run():
        async with Measured(declare_created) as measured:
            for _ in range(3):
                measured.pulse.begin()
            measured.pulse.hear(None)
            await asyncio.sleep(7)
            return await measured.scrape()

    scrape = run_virtually(run())
    assert scrape.get('kopf_watch_restarts_total', kind='kopfexample') == 2
    assert scrape.get('kopf_watch_last_event_age_seconds', kind='kopfexample') == (
        pytest.approx(7, abs=0.1))


def test_watches_that_have_never_heard_anything_tell_for_how_long():
    async def run():
        async with Measured(declare_created) as measured:
            before = await measured.scrape()
            for _ in range(10):
                measured.pulse.begin()
                await asyncio.sleep(60)
            return before, await measured.scrape()

    before, after = run_virtually(run())
    assert 'kopf_watch_last_event_age_seconds' not in before.series
    assert after.get('kopf_watch_last_event_age_seconds', kind='kopfexample') == (
        pytest.approx(600, abs=0.1))


@pytest.mark.parametrize('role, value', [('leader', 1), ('standby', 0)])
def test_leadership_is_shown(role, value):
    async def run():
        async with Measured(declare_created, role=role) as measured:
            return await measured.scrape()

    assert run_virtually(run()).get('leader_election_master_status', name='my-lease') == value


def test_number_of_series_does_not_depend_on_the_number_of_objects():
    kinds = [{}, {'fails': 'temporarily'}, {'fails': 'arbitrarily'}, {'fails': 'permanently'}]
    few, many = (measure(declare_all, *kinds * (count // 4), lasts=30) for count in (100, 800))
    assert (few.get('kopf_objects'), many.get('kopf_objects')) == (100, 800)
    assert len(few) == len(many) > 100


def test_no_label_is_of_an_object():
    scrape = measure(declare_all, {}, {'fails': 'temporarily'})
    assert not {value for series in scrape.series.values() for labels, _ in series
                for value in labels.values()} & {'obj0', 'obj1', 'ns', 'uid1', 'uid2'}


def load(role='leader'):
    """Scrape an operator that had to do with everything."""
    async def run():
        async with Measured(declare_all, role=role) as measured:
            for spec in [{}, {'fails': 'temporarily'}, {'fails': 'permanently'}]:
                measured.api.create(f'obj-{len(measured.api.objects)}', spec=spec)
            measured.measures.meter.count_request(200, 'PATCH', 'localhost:1')
            measured.measures.meter.count_request(None, 'GET', 'localhost:1')
            measured.measures.meter.lag.observe(0.001)
            measured.pulse.hear(None)
            await asyncio.sleep(60)
            return await measured.get_text()

    return expressions.parse_text(run_virtually(run()))


@pytest.fixture(scope='module')
def series():
    return load()


@pytest.mark.parametrize('expr', expressions.KUBEBUILDER)
def test_dashboards_of_kubebuilder_find_their_series(series, expr):
    assert expressions.find_missing(expr, series) == []


@pytest.mark.parametrize('expr', expressions.get_dashboard())
def test_dashboard_of_the_example_finds_its_series(series, expr):
    assert expressions.find_missing(expr, series) == []


@pytest.mark.parametrize('expr', expressions.get_alerts())
def test_alerts_of_the_example_find_their_series(series, expr):
    assert expressions.find_missing(expr, series) == []


@pytest.mark.parametrize('expr, missing', [
    ('absent_total', ['absent_total']),
    ('kopf_objects{kind="absent"} > 0', ['kopf_objects{kind="absent"}']),
    ('sum by (color) (rate(workqueue_adds_total[5m]))', ['color']),
])
def test_absent_series_and_labels_would_be_found(series, expr, missing):
    assert expressions.find_missing(expr, series) == missing


async def test_requests_without_an_answer_have_the_code_of_client_go():
    async with Measured(declare_created) as measured:
        measured.measures.meter.count_request(None, 'PATCH', 'localhost:1')
        measured.measures.meter.count_request(409, 'PATCH', 'localhost:1')
        scrape = await measured.scrape()
    assert scrape.get_all('rest_client_requests_total', 'code', host='localhost:1') == {
        '<error>': 1, '409': 1}


@pytest.mark.parametrize('error, code', [
    (None, '200'),
    (questions.MalformedRequestError("x"), '400'),
    (questions.UnknownResourceError("x"), '404'),
    (RuntimeError("x"), '500'),
])
async def test_reviews_are_counted_by_webhooks(error, code):
    async def review(request, **kwargs):
        assert kwargs == {'webhook': 'the-slug', 'headers': {'a': 'b'}}
        if error is not None:
            raise error
        return {'uid': '1'}

    directory = types.SimpleNamespace(
        webhooks=[types.SimpleNamespace(path='the_path', slug='the-slug')])
    async with Measured(declare_created) as measured:
        fn = measured.measures.observe_reviews(review, directory)
        try:
            assert await fn({}, webhook='the-slug', headers={'a': 'b'}) == {'uid': '1'}
        except type(error or ()) as e:
            assert e is error
        scrape = await measured.scrape()
    key = {'webhook': '/the_path'}
    assert scrape.get_all('controller_runtime_webhook_requests_total', 'code', **key) == {code: 1}
    assert scrape.get('controller_runtime_webhook_latency_seconds_count', **key) == 1
    assert scrape.get('controller_runtime_webhook_requests_in_flight', **key) == 0


async def test_webhooks_that_do_not_exist_have_no_labels_of_their_own():
    async def review(request, **_):
        return {}

    async with Measured(declare_created) as measured:
        fn = measured.measures.observe_reviews(review, types.SimpleNamespace(webhooks=[]))
        for number in range(10):
            await fn({}, webhook=f'invented{number}')
        scrape = await measured.scrape()
    assert scrape.get_all('controller_runtime_webhook_requests_total', 'webhook') == {'/': 10}


async def test_own_metrics_of_the_author_are_served_too():
    counter = prometheus_client.Counter('own_things_total', "Own things", ['color'])
    try:
        counter.labels('red').inc()
        async with Measured(declare_created) as first, Measured(declare_created) as second:
            for measured in (first, second):
                scrape = await measured.scrape()
                assert scrape.get('own_things_total', color='red') == 1
                assert scrape.get('process_resident_memory_bytes') > 0
                assert scrape.get('python_info') == 1
    finally:
        prometheus_client.REGISTRY.unregister(counter)


class SlowCollector(prometheus_client.registry.Collector):
    """A collector of the author that waits in its thread."""

    def __init__(self):
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.threads = []

    def describe(self):
        return []

    def collect(self):
        self.threads.append(threading.current_thread())
        self.begun.set()
        self.gate.wait(60)
        return []


@pytest.fixture()
def slow():
    slow = SlowCollector()
    prometheus_client.REGISTRY.register(slow)
    yield slow
    slow.gate.set()
    prometheus_client.REGISTRY.unregister(slow)
    for thread in slow.threads:
        thread.join()


@pytest.fixture()
async def port():
    """Serve the metrics and another page; returns the port."""
    async with Measured(declare_created) as measured:
        server = pages.Server([
            endpoints.Page(path, '--page', endpoints.Endpoint('127.0.0.1', 0, path), respond)
            for path, respond in [('/metrics', measured.measures.respond), ('/other', show)]])
        port, = await server.start()
        yield port
        await server.stop()


async def test_slow_collectors_hold_up_no_other_page(port, slow):
    async with asyncio.TaskGroup() as group:
        scrape = group.create_task(get(port, '/metrics'))
        await asyncio.to_thread(slow.begun.wait, 30)
        assert (await asyncio.wait_for(get(port, '/other'), 30))[0] == 200
        slow.gate.set()
    assert scrape.result()[0] == 200


async def test_collectors_run_once_at_a_time_even_if_clients_leave(port, slow):
    for _ in range(3):
        scrape = asyncio.create_task(get(port, '/metrics'))
        await asyncio.to_thread(slow.begun.wait, 30)
        await get(port, '/other')  # the server has accepted the scrape before
        scrape.cancel()
        await asyncio.wait([scrape])
    assert len(slow.threads) == 1
    slow.gate.set()
    assert (await get(port, '/metrics'))[0] == 200


async def test_hanging_collectors_do_not_hold_up_the_exit(slow):
    async with Measured(declare_created) as measured:
        server = pages.Server([endpoints.Page(
            'metrics', '--metrics', endpoints.Endpoint('127.0.0.1', 0, '/metrics'),
            measured.measures.respond)])
        port, = await server.start()
        scrape = asyncio.create_task(get(port, '/metrics'))
        await asyncio.to_thread(slow.begun.wait, 30)
        await asyncio.wait_for(server.stop(), 30)
        await asyncio.wait([scrape])
    assert scrape.exception() is not None
    assert [thread.daemon for thread in slow.threads] == [True]


async def test_nothing_is_registered_so_operators_in_one_process_do_not_clash():
    names = set(prometheus_client.REGISTRY._names_to_collectors)
    async with Measured(declare_created) as first, Measured(declare_created) as second:
        first.api.create('obj', spec={})
        await asyncio.sleep(0.3)
        assert (await first.scrape()).get('kopf_objects') == 1
        assert (await second.scrape()).get('kopf_objects') == 0
    assert set(prometheus_client.REGISTRY._names_to_collectors) == names


def ask(measures, accept=''):
    """Ask from another thread, with an event loop of its own, as the server does."""
    fields = [('Accept', accept)] if accept else []
    return asyncio.run(measures.respond(exchanges.Request('GET', '/', fields)))


async def test_format_is_what_the_client_accepts():
    async with Measured(declare_created) as measured:
        plain = await asyncio.to_thread(ask, measured.measures)
        other = await asyncio.to_thread(
            ask, measured.measures, 'application/openmetrics-text; version=1.0.0')
    assert plain.content_type.startswith('text/plain; version=0.0.4')
    assert other.content_type.startswith('application/openmetrics-text; version=1.0.0')
    assert (plain.status, other.status) == (200, 200)
    assert other.body.endswith(b'# EOF\n') and not plain.body.endswith(b'# EOF\n')


@pytest.mark.parametrize('accept', [
    'application/openmetrics-text; version=abc', 'application/openmetrics-text; version=1.0.0a',
    'text/plain; version=x', 'nonsense', ';=,;version',
])
async def test_format_is_the_default_one_if_the_client_asks_for_nonsense(accept):
    async with Measured(declare_created) as measured:
        response = await asyncio.to_thread(ask, measured.measures, accept)
    assert response.status == 200
    assert response.content_type.startswith('text/plain; version=0.0.4')


async def test_counters_are_served_while_the_event_loop_is_blocked(monkeypatch):
    async with Measured(declare_created) as measured:
        await asyncio.to_thread(ask, measured.measures)
        monkeypatch.setattr(metrics, 'PATIENCE', 0.01)
        measured.measures.meter.count_request(200, 'GET', 'localhost:1')
        with concurrent.futures.ThreadPoolExecutor() as executor:
            response = executor.submit(ask, measured.measures).result()  # it blocks the event loop
    series = expressions.parse_text(response.body.decode())
    assert series['rest_client_requests_total'] == [(
        {'code': '200', 'method': 'GET', 'host': 'localhost:1'}, 1)]
    assert series['kopf_objects'] == [({'kind': 'kopfexample'}, 0)]


def run_program(*lines):
    program = '\n'.join([
        'import asyncio, sys',
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
        'names = ["prometheus_client", "kopf._kits.observing.meters",',
        '         "kopf._kits.observing.metrics", "kopf._kits.observing.inspection",',
        '         "kopf._kits.observing.debug"]',
        'print([name for name in names if name in sys.modules])',
    ])
    return subprocess.check_output([sys.executable, '-c', program], text=True).splitlines()


def test_without_an_endpoint_nothing_of_it_is_even_imported():
    assert run_program('') == ['[]']


@pytest.mark.parametrize('line', [
    "settings.metrics.endpoint = 'http://127.0.0.1:0/metrics'",
    "kopf.on.startup(registry=registry)(lambda settings, **_: setattr("
    "settings.metrics, 'endpoint', 'http://127.0.0.1:0/metrics'))",
])
def test_endpoint_can_also_be_set_at_the_startup(line):
    names, = run_program('', line)
    assert 'prometheus_client' in names and 'observing.metrics' in names
    assert 'observing.debug' not in names


def test_lack_of_the_library_is_said_in_a_line_with_what_to_install():
    line, _ = run_program(
        'sys.modules["prometheus_client"] = None', 'settings.metrics.endpoint = "http://:0/"')
    assert line.startswith("SettingsError Metrics need the library prometheus_client. Install it")
    assert "pip install prometheus_client" in line


@pytest.mark.parametrize('groups', [['kopf.dev'], ['kopf.dev', 'example.com']])
def test_what_exceeds_the_brakes_is_counted(groups):
    async def run():
        async with Measured(declare_created) as measured:
            resource = measured.operator.informer.resource
            for number, group in enumerate(groups * 25):
                measured.inspected.brakes.take(
                    brakes.Risk.DELETION, dataclasses.replace(resource, group=group), f'u{number}',
                    total=0, parent={'metadata': {}}, owner=resource,
                    now=measured.inspected.clock.now(),
                    logger=logging.getLogger(__name__))
            return await measured.scrape()

    assert run_virtually(run()).get(
        'kopf_brakes_exceeded_total', risk='deletion', kind='kopfexample') == 5 * len(groups)
