"""
How operators log in to a real API, and go on when their credentials change, expire, or are refused.
"""
import asyncio
import base64
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import yaml

from tests.e2e.proxy import Proxy
from tests.e2e.replicas import LEASES, LOST

DURATION = float(os.environ.get('KOPF_E2E_LOAD_SECONDS', '12'))
"""How long the load lasts, in seconds."""

PERIOD = 3.0
"""How often the tokens change under load, in seconds."""

RATE = 100
"""How many changes there are in a second."""

OBJECTS = 50

DURATION_OF_LEASE = 6
"""How long a Lease is valid, in seconds."""

NOTHING = '''
@kopf.on.event(*KIND)
def fn(name, **_):
    print(f"seen: {name}", flush=True)
'''


@pytest.fixture()
def proxy(cluster):
    with Proxy(cluster) as proxy:
        yield proxy


@pytest.fixture()
def config(cluster):
    return yaml.safe_load(pathlib.Path(cluster).read_text(encoding='utf-8'))


@pytest.fixture()
def declare(config):
    """The text of a login handler for the cluster; in words, the admin's token is ``TOKEN``."""
    cluster, user = config['clusters'][0]['cluster'], config['users'][0]['user']
    return lambda body, server=cluster['server']: f'''
SERVER = dict(server={server!r}, ca_data={cluster['certificate-authority-data']!r})
TOKEN = {user['token']!r}
{body}
'''


@pytest.mark.parametrize('is_late', [False, True])
@pytest.mark.parametrize('library', ['pykube', 'kubernetes'])
async def test_libraries_work_in_handlers_without_a_login_of_their_own(
        operator, kind, kube, library, is_late,
):
    pytest.importorskip(library)
    call = ("[x.name for x in pykube.Namespace.objects("
            "pykube.HTTPClient(pykube.KubeConfig.from_env()))]" if library == 'pykube' else
            "[x.metadata.name for x in kubernetes.client.CoreV1Api().list_namespace().items]")
    op = operator(f'''
{'' if is_late else f'import {library}'}
@kopf.on.create(*KIND)
def fn(name, **_):
    import {library}
    print("found:", {call}, flush=True)
''', kind=kind)
    await kube.create(kind, 'one')
    await op.wait_for("found: .*'kube-system'")


async def test_wrong_credentials_end_the_operator_at_once(operator, declare, kind):
    op = operator(declare(f'''
@kopf.on.login()
def login(**_):
    return kopf.ConnectionInfo(**SERVER, token='wrong')
{NOTHING}
'''), kind=kind)
    assert await op.wait() == 1
    assert op.find('Error: The API rejects the credentials')
    assert len(op.find("Activity 'login' succeeded")) == 2


async def test_a_login_that_fails_later_ends_the_operator_without_tracebacks(
        operator, declare, kind, kube,
):
    op = operator(declare('''
import datetime
logins = []
@kopf.on.login(retries=1)
def login(**_):
    logins.append(1)
    print("login", len(logins))
    if len(logins) > 1:
        raise kopf.PermanentError("the role is revoked")
    expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=3)
    return kopf.ConnectionInfo(**SERVER, token=TOKEN, expiration=expiration)
@kopf.timer(*KIND, interval=0.5)
def tick(patch, retry, **_):
    patch.metadata.labels['tick'] = str(datetime.datetime.now().timestamp())
@kopf.daemon(*KIND)
async def daemon(patch, stopped, **_):
    await stopped.wait(3.5)
    patch.metadata.labels['daemon'] = 'late'
'''), kind=kind)
    await kube.create(kind, 'one')
    assert await op.wait() == 1
    assert op.lines[-1].startswith('Error: All login handlers have failed')
    assert 'the role is revoked' in op.lines[-1]
    assert not op.find('Traceback')
    assert not op.find('login 3')


async def test_failed_logins_end_the_operator(operator, kind):
    op = operator('''
@kopf.on.login(retries=2)
def one(**_):
    raise kopf.TemporaryError("no luck", delay=0.1)
@kopf.on.login()
async def two(**_):
    raise kopf.PermanentError("no key")
''', kind=kind)
    assert await op.wait() == 1
    assert op.find('Error: All login handlers have failed: .*no key')
    assert not op.find('Traceback')


async def test_good_credentials_are_used_beside_wrong_ones(operator, declare, kind, kube):
    op = operator(declare(f'''
@kopf.on.login()
def failing(**_):
    raise kopf.PermanentError("no key")
@kopf.on.login()
def wrong(**_):
    return kopf.ConnectionInfo(**SERVER, token='wrong', priority=100)
@kopf.on.login()
def good(**_):
    return kopf.ConnectionInfo(**SERVER, token=TOKEN)
{NOTHING}
'''), kind=kind)
    await kube.create(kind, 'one')
    await op.wait_for('seen: one')
    assert len(op.find("Activity 'good' succeeded")) == 1


async def test_a_moment_without_authentication_is_survived(
        operator, proxy, kind, kube, tmp_path,
):
    op = operator(NOTHING, kind=kind, kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))
    await kube.create(kind, 'one')
    await op.wait_for('seen: one')
    fault = proxy.fail(401, times=None)
    proxy.cut_streams()
    await op.wait_for('There are no credentials that the API accepts')
    await asyncio.sleep(2)
    fault.end()
    await op.wait_for('The API accepts the credentials again.')
    await kube.create(kind, 'two')
    await op.wait_for('seen: two')
    rejected = [request for request in proxy.requests if request.status == 401]
    assert len(rejected) < 20


async def test_secrets_get_neither_into_logs_nor_into_errors(
        operator, declare, config, kind, kube, tmp_path,
):
    op = operator(declare(f'''
@kopf.on.login()
def wrong(logger, **_):
    info = kopf.ConnectionInfo(**SERVER, token='wr0ng-t0ken', password='pa55word', priority=9)
    logger.info(f"This is {{info}}, and {{info!r}}.")
    return info
@kopf.on.login()
def good(logger, **_):
    return kopf.ConnectionInfo(**SERVER, token=TOKEN)
{NOTHING}
@kopf.on.create(*KIND)
def failing(**_):
    raise kopf.PermanentError("boo!")
'''), '--debug', kind=kind)
    await kube.create(kind, 'one')
    await op.wait_for('boo!')
    op.stop()
    secrets = ['wr0ng-t0ken', 'pa55word', config['users'][0]['user']['token'],
               config['clusters'][0]['cluster']['certificate-authority-data'], 'Bearer']
    assert [secret for secret in secrets if secret in op.text] == []


@pytest.mark.parametrize('code', [0, 1])
async def test_what_plugins_print_does_not_get_into_logs(
        operator, cluster, config, kind, tmp_path, code,
):
    config['users'][0]['user'] = {'exec': {
        'apiVersion': 'client.authentication.k8s.io/v1', 'command': sys.executable,
        'interactiveMode': 'Never', 'env': [{'name': 'KEY', 'value': 's3cret-env'}],
        'args': ['-c', 'import sys; print("s3cret-output"); print("s3cret-error", '
                       f'file=sys.stderr); sys.exit({code})'],
    }}
    path = tmp_path / 'config'
    path.write_text(yaml.safe_dump(config))
    op = operator('''
@kopf.on.event(*KIND)
def fn(**_):
    pass
''', '--debug', kind=kind, kubeconfig=str(path))
    assert await op.wait() == 1
    assert op.find('Error: Nothing to log in with.*credential plugin')
    assert 's3cret' not in op.text


async def test_tokens_in_files_are_rotated_without_a_restart(
        operator, proxy, kind, kube, tmp_path,
):
    (tmp_path / 'token').write_text('first')
    path = pathlib.Path(proxy.write_kubeconfig(tmp_path / 'proxied'))
    config = yaml.safe_load(path.read_text())
    config['users'][0]['user'] = {'tokenFile': 'token'}
    path.write_text(yaml.safe_dump(config))
    op = operator(NOTHING, kind=kind, kubeconfig=str(path))
    await kube.create(kind, 'one')
    await op.wait_for('seen: one')
    replace(tmp_path / 'token', b'second')
    proxy.fail(401, match=lambda request: request.headers['Authorization'] != 'Bearer second',
               times=None)
    proxy.cut_streams()
    await kube.create(kind, 'two')
    await op.wait_for('seen: two')
    assert not op.find('Re-authentication')


async def test_certificates_in_files_are_rotated_without_a_restart(
        operator, declare, config, kind, kube, tmp_path,
):
    if all(user['name'] != 'cert' for user in config['users']):
        pytest.skip("The cluster has no user with a certificate.")
    user = next(user['user'] for user in config['users'] if user['name'] == 'cert')
    good = {'crt': base64.b64decode(user['client-certificate-data']),
            'key': base64.b64decode(user['client-key-data'])}
    bad = make_certificate(tmp_path)
    replace_certificate(tmp_path, good)
    op = operator(declare(f'''
@kopf.on.login()
def login(**_):
    return kopf.ConnectionInfo(
        **SERVER, certificate_path={str(tmp_path / 'tls.crt')!r},
        private_key_path={str(tmp_path / 'tls.key')!r})
@kopf.on.create(*KIND)
def fn(name, **_):
    return 'done'
'''), kind=kind)
    await kube.create(kind, 'one')
    await kube.wait_for(kind, 'one', lambda obj: obj['status']['fn'])

    replace_certificate(tmp_path, bad)
    await asyncio.sleep(1.1)
    await kube.create(kind, 'two')
    await op.wait_for('There are no credentials that the API accepts|PATCH .* APIConnectionError')

    replace_certificate(tmp_path, good)
    await kube.wait_for(kind, 'two', lambda obj: obj['status']['fn'], timeout=20)


def replace_certificate(folder, parts):
    for name, content in parts.items():
        replace(folder / f'tls.{name}', content)


def replace(path, content):
    """Write all of it at once: an operator never reads a file that is half-written."""
    new = path.with_name(f'new.{path.name}')
    new.write_bytes(content)
    os.replace(new, path)


def make_certificate(folder):
    subprocess.run(
        ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', '/CN=nobody',
         '-keyout', str(folder / 'bad.key'), '-out', str(folder / 'bad.crt')],
        check=True, capture_output=True)
    return {name: (folder / f'bad.{name}').read_bytes() for name in ['crt', 'key']}


BLOCKING = '''
import datetime, pathlib, time
@kopf.on.startup()
def configure(settings, **_):
    settings.execution.max_workers = 1
@kopf.on.login()
def login(**_):
    print("login")
    expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    return kopf.ConnectionInfo(**SERVER, token=TOKEN, expiration=expiration)
'''


async def test_logins_need_no_thread_of_handlers_that_wait_for_requests(
        operator, declare, kind, kube,
):
    op = operator(declare(f'''{BLOCKING}
@kopf.on.create(*KIND)
def fn(body, **_):
    time.sleep(2.5)
    kopf.apply({{'apiVersion': body['apiVersion'], 'kind': body['kind'], 'spec': {{'x': 1}},
                'metadata': {{'name': body.metadata['name'], 'namespace': 'default'}}}}).result()
    print("applied")
'''), kind=kind)
    await kube.create(kind, 'one')
    await op.wait_for('applied')
    assert op.stop() == 0


async def test_sync_handlers_cost_no_leader_its_lease(
        operator, declare, kind, kube, lease, tmp_path,
):
    gate = tmp_path / 'gate'
    op = operator(declare(f'''{BLOCKING}
@kopf.on.startup()
def configure_leadership(settings, **_):
    settings.leadership.namespace = 'default'
    settings.leadership.lease_duration = {DURATION_OF_LEASE}
    settings.leadership.renew_deadline = {DURATION_OF_LEASE - 1}
    settings.leadership.retry_period = 0.5
@kopf.on.create(*KIND)
def fn(**_):
    print("handling")
    while not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.1)
    print("handled")
'''), f'--leader-elect={lease}', kind=kind, scope=('--namespace=default', '--verbose'))
    await kube.create(kind, 'one')
    await op.wait_for('handling')
    begun = datetime.datetime.now(datetime.UTC)
    until = (begun + datetime.timedelta(seconds=2 * DURATION_OF_LEASE)).isoformat()
    await kube.wait_for(LEASES, lease, lambda obj: obj['spec']['renewTime'] > until)
    gate.touch()
    await op.wait_for('handled')
    assert not op.find(LOST)
    assert op.stop() == 0


@pytest.mark.timeout(max(120, DURATION * 3))
@pytest.mark.parametrize('expiring', [False, True], ids=['rejected', 'expiring'])
async def test_nothing_is_lost_while_tokens_change_under_load(
        operator, proxy, kind, kube, tmp_path, expiring,
):
    token, log = tmp_path / 'token', tmp_path / 'log'
    token.write_text('token0')
    log.touch()
    valid = {'token0'}
    proxy.fail(401, times=None, match=lambda request: (
        request.headers['Authorization'].removeprefix('Bearer ') not in valid))
    op = operator(f'''
import datetime, pathlib
LOG = open({str(log)!r}, 'a', buffering=1)
@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
@kopf.on.login()
def login(**_):
    expiration = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds={PERIOD})
                  if {expiring} else None)
    LOG.write("login\\n")
    return kopf.ConnectionInfo(server={proxy.url!r}, expiration=expiration,
                               token=pathlib.Path({str(token)!r}).read_text())
@kopf.on.event(*KIND)
def seen(name, spec, **_):
    LOG.write(f"seen {{name}} {{spec['n']}}\\n")
@kopf.on.create(*KIND)
@kopf.on.update(*KIND)
def handled(name, spec, **_):
    LOG.write(f"handled {{name}} {{spec['n']}}\\n")
''', kind=kind, scope=('--all-namespaces', '--standalone', '--quiet'))

    def read(word):
        lines = [tuple(line.split()) for line in log.read_text().splitlines()]
        return [line[1:] for line in lines if line[0] == word]

    async def wait_until(fn):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not fn():
            await asyncio.sleep(0.2)

    changes = dict.fromkeys([f'obj{number}' for number in range(OBJECTS)], 0)
    for name in changes:
        await kube.create(kind, name, spec={'n': 0})
    await wait_until(lambda: len(read('handled')) == OBJECTS)
    changing = asyncio.create_task(rotate(token, valid))
    started = time.monotonic()
    count = 0
    while count < RATE * DURATION:  # it takes longer on slow machines
        names = [f'obj{(count + number) % OBJECTS}' for number in range(RATE // 20)]
        for name in names:
            changes[name] += 1
        await asyncio.gather(*(
            kube.patch(kind, name, {'spec': {'n': changes[name]}}) for name in names))
        count += len(names)
        await asyncio.sleep(max(0, started + count / RATE - time.monotonic()))
    took = time.monotonic() - started
    changing.cancel()
    rotations = int(token.read_text().removeprefix('token'))

    def find_lost():
        handled = set(read('handled'))
        return [name for name, n in changes.items() if (name, str(n)) not in handled]

    def find_unseen():
        seen = set(read('seen'))
        return [(name, n) for name, last in changes.items() for n in range(1, last + 1)
                if (name, str(n)) not in seen]

    # The response to a patch can bring a state before the watch shows it to the event handler.
    await wait_until(lambda: not find_lost() and not find_unseen())
    lost, unseen = find_lost(), find_unseen()
    logins = len(read('login'))
    rejected = sum(request.status == 401 for request in proxy.requests)
    print(json.dumps({
        'seconds': round(took, 1), 'changes': count, 'rate': round(count / took),
        'rotations': rotations, 'logins': logins, 'rejected': rejected,
        'requests': len(proxy.requests), 'lost': len(lost), 'unseen': len(unseen)}))
    assert lost == []
    assert unseen == []
    expected = took / PERIOD
    assert expected * 0.6 <= logins <= expected * 2 + 3
    assert op.text == '' or 'rror' not in op.text


async def rotate(path, valid):
    """Make a new token now and then; the former one is not valid from then on."""
    number = 0
    while True:
        await asyncio.sleep(PERIOD)
        number += 1
        replace(path, f'token{number}'.encode())
        valid.clear()
        valid.add(f'token{number}')
