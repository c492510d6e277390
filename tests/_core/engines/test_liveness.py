import asyncio
import concurrent.futures
import contextlib
import json
import logging
import socket
import threading
import time

import pytest

import kopf
from kopf._cogs.clients import vaults
from kopf._cogs.serving import endpoints, exchanges, inbound, pages
from kopf._core.actions import inflight
from kopf._core.engines.liveness import answering
from kopf._core.reactor import operating
from tests.e2e.ports import find_free_ports


class Probes:
    """Probe handlers of an operator, and what is wrong with it."""

    def __init__(self):
        self.results = {}
        self.problems = {}
        self.failed = []
        self.delay = 0
        self.finished = asyncio.Event()
        self.finished.set()
        self.runs = 0

    async def run(self):
        self.runs += 1
        await asyncio.sleep(self.delay)
        await self.finished.wait()
        return self.results, self.failed

    def make_answerer(self):
        return answering.Answerer(
            probe=self.run, diagnose=lambda: self.problems, underway=inflight.Calls())


@pytest.fixture()
def probes():
    return Probes()


def make_server(probes, url='http://127.0.0.1:0/'):
    """Make a server of the health checks."""
    answerer = probes.make_answerer()
    page = endpoints.Page(
        'health checks', '--liveness', endpoints.Endpoint.parse(url), answerer.respond)
    return pages.Server([page], watch=answerer.watch), answerer


@pytest.fixture()
async def serve(probes):
    """Serve the health checks on a local port; returns the port."""
    servers = []

    async def start(url='http://127.0.0.1:0/healthz'):
        server, answerer = make_server(probes, url)
        servers.append((server, answerer))
        port, = await server.start()
        return port

    yield start
    for server, answerer in servers:
        await answerer.close()
        await server.stop()


async def send(port, data, host='127.0.0.1', eof=True):
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        return (await reader.read()).decode()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def get_status(response):
    return int(response.split()[1])


async def get(port, path='/healthz', method='GET', **kwargs):
    """Make a request; returns the status, the headers, the body."""
    response = await send(
        port, f'{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n'.encode(), **kwargs)
    head, _, body = response.partition('\r\n\r\n')
    first, *lines = head.split('\r\n')
    return int(first.split()[1]), dict(line.split(': ') for line in lines), body


def get_in_thread(port):
    """Make a request without the loop; returns the status and the body."""
    with socket.create_connection(('127.0.0.1', port), timeout=200) as sock:
        sock.sendall(b'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n')
        response = b''.join(iter(lambda: sock.recv(1000), b'')).decode()
    return int(response.split()[1]), json.loads(response.partition('\r\n\r\n')[2])


@pytest.mark.parametrize('url, expected', [
    ('http://0.0.0.0:8080/healthz', ('0.0.0.0', 8080, '/healthz')),
    ('http://localhost:8080', ('localhost', 8080, '/')),
    ('http://localhost', ('localhost', 80, '/')),
    ('http://[::1]:8080/a/b', ('::1', 8080, '/a/b')),
    ('http://:8080/healthz', (None, 8080, '/healthz')),
    ('http://127.0.0.1:0/', ('127.0.0.1', 0, '/')),
    ('HTTP://127.0.0.1:1/', ('127.0.0.1', 1, '/')),
    ('http://user:pass@host:1/path?query=1#fragment', ('host', 1, '/path')),
    ('http://', (None, 80, '/')),
])
def test_endpoints_are_urls_of_which_all_but_the_scheme_can_be_omitted(url, expected):
    assert endpoints.Endpoint.parse(url) == expected


@pytest.mark.parametrize('url, reason', [
    ('https://host:1/', "only HTTP"),
    ('tcp://host:1', "only HTTP"),
    ('host:8080', "only HTTP"),
    ('/healthz', "only HTTP"),
    ('', "only HTTP"),
    ('http:host:1', "only HTTP"),
    ('http://host:99999/', "out of range"),
    ('http://host:many/', "not a URL"),
    ('http://[::1/', "not a URL"),
])
def test_other_endpoints_are_refused_with_a_hint(url, reason):
    with pytest.raises(endpoints.EndpointError, match=reason) as e:
        endpoints.Endpoint.parse(url)
    assert "Use http://host:port/path." in str(e.value)


@pytest.mark.parametrize('endpoint, shown', [
    (endpoints.Endpoint('::1', 80, '/x'), 'http://[::1]:80/x'),
    (endpoints.Endpoint(None, 80, '/x'), 'http://*:80/x'),
    (endpoints.Endpoint('1.2.3.4', 80, '/x'), 'http://1.2.3.4:80/x'),
])
def test_endpoints_are_shown_as_urls(endpoint, shown):
    assert str(endpoint) == shown


@pytest.mark.looptime
async def test_results_of_the_probes_are_the_answer(probes):
    probes.results = {'now': '2020-01-01', 'random': 123, 'name': 'é'}
    answer = await probes.make_answerer().answer()
    assert answer[:2] == (200, b'{"now": "2020-01-01", "random": 123, "name": "\\u00e9"}')


@pytest.mark.looptime
async def test_no_probes_are_an_empty_answer(probes):
    assert (await probes.make_answerer().answer())[:2] == (200, b'{}')


@pytest.mark.looptime
async def test_results_are_cached_for_a_while(probes):
    answerer = probes.make_answerer()
    await answerer.answer()
    await asyncio.sleep(answering.MAX_AGE - 0.1)
    await answerer.answer()
    assert probes.runs == 1
    await asyncio.sleep(0.2)
    await answerer.answer()
    assert probes.runs == 2


@pytest.mark.looptime
async def test_requests_at_the_same_time_share_one_run(probes):
    probes.delay = 1
    answerer = probes.make_answerer()
    answers = await asyncio.gather(*(answerer.answer() for _ in range(100)))
    assert {answer[:2] for answer in answers} == {(200, b'{}')}
    assert probes.runs == 1


@pytest.mark.looptime
async def test_a_run_goes_on_when_the_one_who_asked_is_gone(probes):
    probes.delay = 1
    answerer = probes.make_answerer()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answerer.answer(), 0.5)
    await answerer.answer()
    assert probes.runs == 1


@pytest.mark.looptime
async def test_a_run_is_ended_with_the_operator(probes):
    probes.delay = 1000
    answerer = probes.make_answerer()
    asking = asyncio.create_task(answerer.answer())
    await asyncio.sleep(1)
    await answerer.close()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.looptime
async def test_failed_probes_are_named(probes):
    probes.failed = ['a', 'b']
    status, body, *_ = await probes.make_answerer().answer()
    assert status == 500
    assert json.loads(body) == {'problems': {'probes': "failed: a, b; see the log."}}


@pytest.mark.looptime
async def test_failures_are_soon_looked_at_again(probes):
    answerer = probes.make_answerer()
    probes.failed = ['a']
    await answerer.answer()
    probes.failed = []
    await asyncio.sleep(answering.MAX_AGE_OF_FAILURES + 0.1)
    assert (await answerer.answer()).status == 200


@pytest.mark.looptime
@pytest.mark.parametrize('value', [object(), float('nan'), [float('inf')]])
async def test_results_that_are_no_json_are_a_failure(probes, value):
    probes.results = {'a': value}
    status, body, *_ = await probes.make_answerer().answer()
    assert status == 500
    assert json.loads(body) == {'problems': {'probes': "the results are no JSON."}}


@pytest.mark.looptime
async def test_problems_are_told_instead_of_results(probes):
    probes.results = {'a': 1}
    probes.problems = {'login': "no credentials"}
    status, body, *_ = await probes.make_answerer().answer()
    assert status == 503
    assert json.loads(body) == {'problems': {'login': "no credentials"}}
    assert not probes.runs


@pytest.mark.looptime
async def test_problems_are_logged_once_and_so_is_their_end(probes, caplog):
    caplog.set_level(logging.INFO)
    answerer = probes.make_answerer()
    probes.problems = {'login': "no credentials"}
    await answerer.answer()
    await answerer.answer()
    probes.problems = {}
    await answerer.answer()
    await answerer.answer()
    assert caplog.messages == [
        "The operator is not healthy: login: no credentials",
        "The operator is healthy again.",
    ]


async def test_answers_are_served_as_json(serve, probes):
    probes.results = {'a': 1}
    status, headers, body = await get(await serve())
    assert (status, body) == (200, '{"a": 1}')
    assert headers['Content-Type'] == 'application/json; charset=utf-8'
    assert headers['Content-Length'] == '8'


async def test_problems_are_served_as_unavailability(serve, probes):
    probes.problems = {'a': "b"}
    status, headers, body = await get(await serve())
    assert (status, body) == (503, '{"problems": {"a": "b"}}')
    assert headers['Content-Type'] == 'application/json; charset=utf-8'


@pytest.mark.parametrize('url, path', [
    ('http://127.0.0.1:0/healthz', '/healthz?a=b'),
    ('http://127.0.0.1:0/a%20b', '/a%20b'),
    ('http://127.0.0.1:0', '/'),
])
async def test_the_path_is_served(serve, url, path):
    status, _, _ = await get(await serve(url), path)
    assert status == 200


@pytest.mark.parametrize('path', ['/', '/healthz/', '/healthz/x', '/health', '//'])
async def test_other_paths_are_not_found(serve, path):
    status, _, body = await get(await serve(), path)
    assert (status, body) == (404, '404: Not Found')


async def test_only_the_head_is_served_if_asked_for(serve):
    status, headers, body = await get(await serve(), method='HEAD')
    assert (status, headers['Content-Length'], body) == (200, '2', '')


async def test_nothing_can_be_posted(serve):
    status, headers, _ = await get(await serve(), method='POST')
    assert (status, headers['Allow']) == (405, 'GET, HEAD')


@pytest.mark.parametrize('data', [
    b'nonsense\r\n\r\n', b'GET /healthz SSH-2\r\n\r\n', b'\xff /healthz \xff\r\n\r\n',
    b'GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n', b'GET * HTTP/1.1\r\nHost: x\r\n\r\n',
    b'GET http://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n', b'GET /healthz HTTP/1.1\r\n\r\n',
])
async def test_what_is_no_http_is_refused(serve, data):
    assert get_status(await send(await serve(), data)) == 400


async def test_huge_requests_are_refused(serve):
    data = b'GET /healthz HTTP/1.1\r\nX: ' + b'x' * 2 * pages.POLICY.head
    with contextlib.suppress(ConnectionError):
        assert get_status(await send(await serve(), data)) == 431


async def test_ipv6_is_served(serve):
    status, _, _ = await get(await serve('http://[::1]:0/healthz'), host='::1')
    assert status == 200


async def test_all_interfaces_are_served_if_there_is_no_host(serve):
    port = await serve(f'http://:{find_free_ports(1)}/healthz')
    assert (await get(port, host='127.0.0.1'))[0] == 200
    assert (await get(port, host='::1'))[0] == 200


@pytest.mark.parametrize('url, reason', [
    ('http://127.0.0.1:{port}/x', 'Address already in use'),
    ('http://203.0.113.1:0/x', '(Cannot assign requested|could not bind on any) address'),
    ('http://{long}:0/x', ''),
])
async def test_where_it_cannot_be_served_is_said_why(serve, url, reason):
    url = url.format(port=await serve(), long='x' * 100)
    with pytest.raises(endpoints.EndpointError, match=f"cannot be served at .+: .*{reason}"):
        await serve(url)


async def test_slow_clients_are_dropped(serve, monkeypatch):
    monkeypatch.setattr(pages, 'POLICY', pages.POLICY._replace(receiving=0.1))
    assert get_status(await send(await serve(), b'GET /healthz')) == 408
    assert await send(await serve(), b'') == ''


async def test_many_slow_clients_hold_up_nobody(serve):
    port = await serve()
    clients = [
        await asyncio.open_connection('127.0.0.1', port)
        for _ in range(pages.POLICY.connections * 2)]
    try:
        assert (await get(port))[0] == 200
    finally:
        for _, writer in clients:
            writer.close()
        await asyncio.gather(
            *(writer.wait_closed() for _, writer in clients), return_exceptions=True)


async def test_slow_probes_are_told_of_and_used_by_the_next_requests(serve, probes, monkeypatch):
    monkeypatch.setattr(answering, 'TICK', 0.1)
    monkeypatch.setattr(answering, 'ANSWER_TIMEOUT', 0.3)
    probes.finished.clear()
    port = await serve()
    status, _, body = await get(port)
    assert status == 503
    assert json.loads(body)['problems'].keys() == {'probes'}
    monkeypatch.setattr(answering, 'ANSWER_TIMEOUT', 60)
    probes.finished.set()
    assert (await get(port))[0] == 200
    assert probes.runs == 1


def test_answers_come_before_the_liveness_probe_of_the_page_gives_up():
    assert answering.ANSWER_TIMEOUT + answering.TICK < 5


@contextlib.asynccontextmanager
async def operating_with(fn):
    """Run an operator with such a probe handler; yields the port of the health checks."""
    registry, ready, port = kopf.OperatorRegistry(), asyncio.Event(), find_free_ports(1)
    kopf.on.probe(id='first', registry=registry)(lambda **_: 1)
    kopf.on.probe(id='fn', registry=registry)(fn)
    options = operating.Options(
        registry=registry, clusterwide=True, ready_flag=ready,
        liveness_endpoint=f'http://127.0.0.1:{port}/healthz',
        vault=vaults.Vault({'': kopf.ConnectionInfo(server='http://127.0.0.1')}))
    operator = operating.Operator(
        options, settings=kopf.OperatorSettings(), underway=inflight.Calls())
    task = asyncio.create_task(operator.run())
    await ready.wait()
    try:
        yield port
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize('error', [
    ConnectionError("password=secret"), kopf.TemporaryError("password=secret", delay=100),
    kopf.PermanentError("password=secret")])
async def test_errors_of_probes_are_told_at_once_and_the_next_request_is_the_retry(
        monkeypatch, error):
    monkeypatch.setattr(answering, 'MAX_AGE_OF_FAILURES', 0.0)
    errors = [error]

    async def fn(**_):
        if errors:
            raise errors.pop()
        return 2

    async with operating_with(fn) as port:
        answers = [await get(port), await get(port)]
    assert [(status, json.loads(body)) for status, _, body in answers] == [
        (500, {'problems': {'probes': "failed: fn; see the log."}}), (200, {'first': 1, 'fn': 2})]


async def test_hanging_probes_are_named(monkeypatch):
    monkeypatch.setattr(answering, 'TICK', 0.1)
    monkeypatch.setattr(answering, 'ANSWER_TIMEOUT', 1.0)
    gate = threading.Event()
    async with operating_with(lambda **_: gate.wait(60)) as port:
        status, _, body = await get(port)
        gate.set()
    assert status == 503
    assert json.loads(body) == {'problems': {'probes': "no results after 1 s: fn."}}


async def test_an_answer_that_is_there_at_once_is_served(serve, monkeypatch):
    def answer_at_once(work, loop):
        work.close()
        future = concurrent.futures.Future()
        future.set_result(exchanges.Response(200, b'{"a": 1}'))
        return future

    def wrap(future):  # as asyncio does since Python 3.14 if the future is done
        wrapped = asyncio.get_running_loop().create_future()
        wrapped.set_result(future.result())
        return wrapped

    port = await serve()
    with monkeypatch.context() as patching:
        patching.setattr(answering.asyncio, 'run_coroutine_threadsafe', answer_at_once)
        patching.setattr(answering.asyncio, 'wrap_future', wrap)
        status, _, body = await get(port)
    assert status == 200
    assert json.loads(body) == {'a': 1}


async def test_a_blocked_loop_is_told_of_in_its_time_and_so_is_its_end(serve, caplog, monkeypatch):
    monkeypatch.setattr(answering, 'TICK', 0.1)
    monkeypatch.setattr(answering, 'LOOP_TIMEOUT', 1.0)
    monkeypatch.setattr(answering, 'ANSWER_TIMEOUT', 0.2)
    caplog.set_level(logging.INFO)
    port = await serve()
    answers = []

    def ask():
        time.sleep(0.5)
        answers.append(get_in_thread(port))  # it is answered when that is decided
        answers.append(get_in_thread(port))

    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        time.sleep(0.1)  # as handlers should not
    thread.join()
    assert len(answers) == 2
    for status, body in answers:
        assert status == 503
        assert f"{__file__}:" in body['problems']['loop']
        assert 'test_a_blocked_loop' in body['problems']['loop']
    await asyncio.sleep(0.5)
    assert (await get(port))[0] == 200
    assert [message[:25] for message in caplog.messages[-2:]] == [
        "The event loop is blocked", "The event loop runs again"]


async def test_a_loop_blocked_for_a_moment_is_answered_for_by_the_latest_answer(
        serve, probes, monkeypatch):
    monkeypatch.setattr(answering, 'TICK', 0.05)
    probes.results = {'a': 1}
    port = await serve()
    await get(port)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(get_in_thread(port)))
    thread.start()
    while not answers:
        time.sleep(0.01)
    thread.join()
    assert answers == [(200, {'a': 1})]


async def test_failures_are_never_told_again_instead_of_a_new_answer(serve, probes, monkeypatch):
    monkeypatch.setattr(answering, 'TICK', 0.05)
    monkeypatch.setattr(answering, 'MAX_AGE_OF_FAILURES', 0.0)
    port = await serve()
    probes.failed = ['a']
    assert (await get(port))[0] == 500
    probes.failed, probes.delay = [], 0.3
    assert (await get(port))[0] == 200


async def test_nothing_is_left_when_it_is_stopped(probes):
    before = threading.active_count()
    server, _ = make_server(probes)
    port, = await server.start()
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    await server.stop()
    assert await reader.read() == b''
    writer.close()
    await writer.wait_closed()
    assert threading.active_count() == before


async def test_a_server_that_was_not_started_can_be_stopped(probes):
    server, _ = make_server(probes)
    await server.stop()


async def test_a_server_that_is_starting_can_be_stopped(probes):
    before = threading.active_count()
    server, _ = make_server(probes)
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await server.stop()
    assert threading.active_count() == before


# Other pages beside the health checks.

async def show(request):
    return exchanges.Response(
        200, f"{request.peer} {request.get_header('accept')}".encode(), 'text/x')


@pytest.fixture()
async def serve_pages(probes):
    """Serve the health checks, and the same page at other URLs; returns the ports."""
    servers = []

    async def start(liveness, *urls):
        responders = [(url, show) for url in urls]
        if liveness is not None:
            responders.insert(0, (liveness, probes.make_answerer().respond))
        server = pages.Server([
            endpoints.Page(f'page{number}', '--page', endpoints.Endpoint.parse(url), respond)
            for number, (url, respond) in enumerate(responders)])
        servers.append(server)
        return await server.start()

    yield start
    for server in servers:
        await server.stop()


async def test_pages_of_one_address_are_served_together(serve_pages):
    port, = await serve_pages('http://127.0.0.1:0/healthz', 'http://127.0.0.1:0/page')
    assert (await get(port, '/healthz'))[2] == '{}'
    status, headers, body = await get(port, '/page')
    assert (status, headers['Content-Type'], body) == (200, 'text/x', '127.0.0.1 ')
    assert (await get(port, '/other'))[0] == 404


async def test_pages_of_other_addresses_are_served_apart(serve_pages):
    first, second = await serve_pages('http://127.0.0.1:0/healthz', 'http://localhost:0/page')
    assert (await get(first, '/page'))[0] == (await get(second, '/healthz'))[0] == 404
    assert (await get(second, '/page'))[0] == 200


@pytest.mark.parametrize('is_started', [True, False])
async def test_pages_are_closed_with_the_server(is_started):
    closed = []

    async def close():
        closed.append(True)

    server = pages.Server([endpoints.Page(
        'page', '--page', endpoints.Endpoint.parse('http://127.0.0.1:0/page'), show, close)])
    if is_started:
        await server.start()
    await server.stop()
    assert closed == [True]


async def test_pages_need_no_health_checks(serve_pages):
    port, = await serve_pages(None, 'http://127.0.0.1:0/a', 'http://127.0.0.1:0/b')
    assert (await get(port, '/a'))[0] == (await get(port, '/b'))[0] == 200


async def test_pages_get_the_headers(serve_pages):
    port, = await serve_pages(None, 'http://127.0.0.1:0/a')
    response = await send(port, b'GET /a HTTP/1.1\r\nHost: x\r\naccept: a\r\nACCEPT: b\r\n\r\n')
    assert response.endswith('127.0.0.1 a,b')


@pytest.mark.parametrize('urls', [
    ('http://127.0.0.1:0/x', 'http://127.0.0.1:0/x'),
    (None, 'http://127.0.0.1:0/x', 'http://127.0.0.1:0/x'),
])
async def test_two_pages_at_one_url_are_refused(serve_pages, urls):
    with pytest.raises(endpoints.EndpointError, match="Choose another path: --page="):
        await serve_pages(*urls)


async def test_connections_that_cannot_be_accepted_are_worth_a_warning(serve, caplog, monkeypatch):
    port = await serve()

    def accept(_):
        monkeypatch.undo()
        raise OSError("Too many open files")

    monkeypatch.setattr(inbound, 'ACCEPTING_PAUSE', 0.01)
    monkeypatch.setattr(socket.socket, 'accept', accept)
    assert (await get(port))[0] == 200
    [message] = caplog.messages
    assert message == "Connections to the health checks cannot be accepted: Too many open files"
