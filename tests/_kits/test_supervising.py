import json
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request

import pytest

import kopf
from kopf._cogs.serving import endpoints, exchanges, pages
from kopf._kits import supervising
from tests._kits.webhooks.clients import REVIEW
from tests.e2e.ports import find_free_ports

CRD = pathlib.Path(__file__).parents[2] / 'examples' / 'crd.yaml'
# Lines are written at once: those of the processes would be mixed up by print().
HANDLERS = '''
import os
import kopf

@kopf.on.startup()
def configure(settings, **_):
    os.write(1, b"STARTED %d\\n" % os.getpid())

@kopf.on.cleanup()
def clean_up(**_):
    os.write(1, b"CLEANED %d\\n" % os.getpid())
'''


WEBHOOKS = HANDLERS + '''
@kopf.on.startup()
def serve(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port={port}, {options})
    settings.admission.managed = 'auto.kopf.dev'

@kopf.on.validate('kopfexamples')
def check(warnings, **_):
    warnings.append(str(os.getpid()))
'''


@pytest.fixture()
def start(tmp_path):
    """Run the handlers by the command line with these options."""
    processes = []

    def run(*options, handlers=HANDLERS):
        (tmp_path / 'handlers.py').write_text(handlers)
        process = subprocess.Popen(
            [sys.executable, '-m', 'kopf', 'run', '-A', '--sandbox', f'--load={CRD}', *options,
             'handlers.py'],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def read_until(process, *texts):
    """Read the output until it contains all the texts; return it."""
    found = ''
    while not all(text in found for text in texts):
        line = process.stdout.readline()
        assert line, found
        found += line
    return found


def read_pids(process, number):
    found = []
    while len(found) < number:
        line = read_until(process, 'STARTED').splitlines()[-1]
        found.append(int(line.split()[-1]))
    return found


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_all_processes(start, number):
    process = start('--processes=2')
    pids = read_pids(process, 2)
    read_until(process, 'Joined the sharding', 'Joined the sharding')
    process.send_signal(number)
    rest = process.stdout.read()
    assert process.wait() == 0
    assert all(f'CLEANED {pid}' in rest for pid in pids)


def test_first_ctrl_c_is_never_taken_for_a_second_one():
    sent = []
    with supervising.forward_signals(sent.append) as forwarded:
        assert not forwarded.is_set()
        signal.raise_signal(signal.SIGINT)
        assert forwarded.is_set()
        signal.raise_signal(signal.SIGINT)
    assert sent == [signal.SIGTERM, signal.SIGINT]


def test_process_that_dies_ends_all(start):
    process = start('--processes=2')
    one, other = read_pids(process, 2)
    read_until(process, 'Joined the sharding')
    subprocess.run(['kill', '-KILL', str(one)], check=True)
    rest = process.stdout.read()
    assert process.wait() == 128 + signal.SIGKILL
    assert f'CLEANED {other}' in rest
    assert 'A process of the operator has ended: -9' in rest


def test_processes_stop_when_the_one_that_has_started_them_is_killed(start):
    process = start('--processes=2')
    pids = read_pids(process, 2)
    read_until(process, 'Joined the sharding')
    process.kill()
    rest = process.stdout.read()  # until the last of them has closed it
    assert all(f'CLEANED {pid}' in rest for pid in pids)
    assert "The process that has started this one is gone. Stopping." in rest


def test_processes_have_their_own_ports_of_health_checks():
    assert supervising.shift('http://0.0.0.0:8080/healthz', 0) == 'http://0.0.0.0:8080/healthz'
    assert supervising.shift('http://0.0.0.0:8080/healthz', 2) == 'http://0.0.0.0:8082/healthz'
    assert supervising.shift('http://[::1]:8080', 1) == 'http://[::1]:8081'
    assert supervising.shift('http://localhost/x', 1) == 'http://localhost:81/x'
    assert supervising.shift('http://localhost:0', 1) == 'http://localhost:0'


@pytest.mark.parametrize(('liveness', 'metrics', 'debug'), [
    (8080, 8083, 8086), (8083, 8080, 8090), (8080, 8090, 8090), (0, 0, 0), (8080, 8081, 0)])
def test_ports_that_are_far_apart_are_accepted(liveness, metrics, debug):
    served = {
        '--liveness': f'http://:{liveness}/', '--metrics': f'http://:{metrics}/',
        '--debug-endpoint': f'http://:{debug}/'}
    assert len(supervising.assign(2, served)) == 2


@pytest.mark.parametrize('metrics', [8080, 8082, 8079])
def test_ports_that_several_processes_would_use_are_refused(metrics):
    served = {
        '--liveness': 'http://:8080/healthz', '--metrics': f'http://127.0.0.1:{metrics}/metrics'}
    with pytest.raises(endpoints.EndpointError, match="these options be at least 3 apart"):
        supervising.assign(2, served)


def test_refused_ports_are_told_in_a_line(start):
    url = f'http://127.0.0.1:{find_free_ports(3)}'
    process = start('--processes=2', f'--liveness={url}/healthz', f'--metrics={url}/metrics')
    output = process.stdout.read()
    assert process.wait() == 1
    assert "has ports of its own for --liveness and --metrics. Let the ports" in output
    assert 'Traceback' not in output and 'STARTED' not in output


@pytest.fixture()
async def serve():
    """Serve this status and body as a process does; return where."""
    servers = []

    async def run(status, body):
        async def respond(_):
            return exchanges.Response(status, json.dumps(body).encode())

        endpoint = endpoints.Endpoint('127.0.0.1', 0, '/healthz')
        server = pages.Server([
            endpoints.Page('health checks', '--liveness', endpoint, respond)])
        servers.append(server)
        port, = await server.start()
        return endpoint._replace(port=port)

    yield run
    for server in servers:
        await server.stop()


@pytest.mark.parametrize(('statuses', 'expected'), [
    ([200, 200], 200), ([200, 500], 500), ([503, 200], 503)])
async def test_health_of_all_processes_is_the_worst_one(serve, statuses, expected):
    processes = [await serve(status, {'status': status}) for status in statuses]
    response = await supervising.gather_health(processes)
    assert response.status == expected
    assert json.loads(response.body) == {'processes': [{'status': item} for item in statuses]}


async def test_process_that_does_not_answer_is_not_healthy(serve):
    process = await serve(200, {'shards': '1 of 2'})
    response = await supervising.gather_health([process, process._replace(port=1)])
    assert response.status == 503
    one, other = json.loads(response.body)['processes']
    assert one == {'shards': '1 of 2'}
    assert other['problems']['process'].startswith("no answer at http://127.0.0.1:1/healthz: ")


def test_health_checks_at_the_given_url_are_of_all_processes(start):
    url = f'http://127.0.0.1:{find_free_ports(3)}/healthz'
    process = start('--processes=2', '--shards=6', f'--liveness={url}')
    read_until(process, '3 of 6 shards are held now', '3 of 6 shards are held now')

    with urllib.request.urlopen(url) as response:
        found = json.load(response)
    assert [list(answer) for answer in found['processes']] == [['shards'], ['shards']]
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait() == 0


def test_port_that_is_in_use_is_told_in_a_line(start):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        process = start('--processes=2', f'--liveness=http://127.0.0.1:{port}/healthz')
        output = process.stdout.read()
    assert process.wait() == 1
    assert f"cannot be served at http://127.0.0.1:{port}/healthz: Address already in use" in output
    assert 'Traceback' not in output


def test_all_shards_are_shared_by_the_processes(start):
    process = start('--processes=2', '--shards=6')
    found = read_until(process, '3 of 6 shards are held now', '3 of 6 shards are held now')
    while found.count('3 of 6 shards are held now') < 2:
        found += read_until(process, '3 of 6 shards are held now')
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait() == 0


@pytest.mark.parametrize('variable', ['KOPF_RUN_SANDBOX', 'KOPF_RUN_PROCESSES'])
def test_processes_share_one_sandbox_whoever_asks_for_it(start, monkeypatch, variable):
    monkeypatch.setenv('KOPF_RUN_LOAD', str(CRD))
    monkeypatch.setenv(variable, '2' if variable == 'KOPF_RUN_PROCESSES' else 'true')
    process = start('--processes=2' if variable == 'KOPF_RUN_SANDBOX' else '--verbose')
    found = ''
    while found.count('Joined the sharding') < 2:
        found += read_until(process, 'Joined the sharding')
    process.send_signal(signal.SIGTERM)
    found += process.stdout.read()
    assert process.wait() == 0
    assert found.count("The sandbox is at ") == 1


def test_webhooks_are_served_by_all_processes_at_one_port(start, tmp_path):
    port = find_free_ports(1)
    certfile = tmp_path / 'identity.pem'
    certfile.write_bytes(b''.join(kopf.WebhookServer.build_certificate(['127.0.0.1'])))
    process = start('--processes=2', handlers=WEBHOOKS.format(
        port=port, options=f'certfile={str(certfile)!r}'))
    pids = read_pids(process, 2)
    read_until(process, 'Listening for webhooks')
    context = ssl.create_default_context(cafile=certfile)
    answered = set()
    while answered != set(pids):
        request = urllib.request.Request(
            f'https://127.0.0.1:{port}/check', data=json.dumps(REVIEW).encode(),
            headers={'Content-Type': 'application/json'})
        with urllib.request.urlopen(request, context=context) as response:
            answered |= {int(pid) for pid in json.load(response)['response']['warnings']}
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait() == 0


def test_webhooks_of_several_processes_at_one_port_need_one_certificate(start):
    process = start('--processes=2', handlers=WEBHOOKS.format(
        port=find_free_ports(1), options=''))
    output = process.stdout.read()
    assert process.wait() == 1
    assert "so they need one certificate. Set certfile=, or omit port=." in output
    assert 'Traceback' not in output
