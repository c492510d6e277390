"""
Accounts in a billing system over HTTP: of two replicas, one is killed in the middle of a call.
"""
import asyncio
import http.server
import json
import threading
import urllib.parse
import uuid

import pytest

from tests.e2e import commands
from tests.e2e.replicas import LEADING

TEXT = '''
import os, json, signal, urllib.error, urllib.request
URL = {url!r}

def ask(method, path, content=None):
    request = urllib.request.Request(
        URL + path, method=method, data=None if content is None else json.dumps(content).encode())
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.load(response)
    except urllib.error.HTTPError as e:
        if e.code == 404 and method == 'GET':
            return None
        raise

billing = kopf.external(
    *KIND, id='billing', interval=1, consistency=1, timeout=2, conditions=True)

@billing.desired
def desired(spec, **_):
    return {{'plan': spec['plan']}}

@billing.observe
def observe(key, **_):
    return ask('GET', '/' + key)

@billing.create
def create(spec, desired, token, **_):
    if spec.get('die') == 'before' and WHO == 'a':
        os.kill(os.getpid(), signal.SIGKILL)
    key = ask('POST', '/', {{**desired, 'reference': token}})
    if spec.get('die') == 'after' and WHO == 'a':
        os.kill(os.getpid(), signal.SIGKILL)
    return key

@billing.update
def update(key, desired, **_):
    ask('PUT', '/' + key, desired)

@billing.delete
def delete(key, spec, **_):
    if spec.get('die') == 'delete' and WHO == 'a':
        os.kill(os.getpid(), signal.SIGKILL)
    ask('DELETE', '/' + key)
'''

FIND = '''
@billing.find
def find(token, **_):
    return ask('GET', '/?reference=' + token)
'''


class Billing(http.server.ThreadingHTTPServer):
    """A billing system: it neither recognises repeated calls, nor forgets anything."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.accounts = {}
        self.created = 0

    @property
    def url(self):
        return f'http://127.0.0.1:{self.server_port}'


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def _respond(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _read(self):
        return json.loads(self.rfile.read(int(self.headers['Content-Length'])))

    def do_GET(self):
        url, accounts = urllib.parse.urlsplit(self.path), self.server.accounts
        found = accounts.get(url.path[1:])
        if url.query:
            reference = urllib.parse.parse_qs(url.query)['reference'][0]
            found = next((key for key, content in accounts.items()
                          if content['reference'] == reference), None)
        self._respond(404 if found is None else 200, found)

    def do_POST(self):
        key = uuid.uuid4().hex[:8]
        self.server.accounts[key] = self._read()
        self.server.created += 1
        self._respond(200, key)

    def do_PUT(self):
        self.server.accounts[self.path[1:]].update(self._read())
        self._respond(200, None)

    def do_DELETE(self):
        found = self.server.accounts.pop(self.path[1:], None)
        self._respond(404 if found is None else 200, None)


@pytest.fixture()
def billing():
    with Billing() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def wait_phase(kube, kind, name, phase):
    def has_phase(obj):
        text = obj['metadata'].get('annotations', {}).get('external.kopf.dev/billing', '{}')
        return json.loads(text).get('phase') == phase
    return await kube.wait_for(kind, name, has_phase)


async def wait_plans(billing, *plans):
    async with asyncio.timeout(30):
        while [account['plan'] for account in billing.accounts.values()] != [*plans]:
            await asyncio.sleep(0.1)


async def test_an_account_follows_its_object(kube, kind, replicas, billing):
    await replicas.start_both(TEXT.format(url=billing.url) + FIND)
    await kube.create(kind, 'obj', spec={'plan': 'small'})
    await wait_phase(kube, kind, 'obj', 'known')
    await kube.patch(kind, 'obj', {'spec': {'plan': 'large'}})
    await wait_plans(billing, 'large')
    next(iter(billing.accounts.values()))['plan'] = 'drifted'
    await wait_plans(billing, 'large')
    await kube.delete(kind, 'obj')
    await kube.wait_gone(kind, 'obj')
    assert not billing.accounts
    assert billing.created == 1


@pytest.mark.parametrize('moment', ['before', 'after'])
async def test_an_operator_is_killed_around_the_call_that_creates(
        kube, kind, replicas, billing, moment):
    _, b = await replicas.start_both(TEXT.format(url=billing.url) + FIND)
    await kube.create(kind, 'obj', spec={'plan': 'small', 'die': moment})
    await b.wait_for(LEADING)
    await wait_phase(kube, kind, 'obj', 'known')
    assert billing.created == 1
    await kube.delete(kind, 'obj')
    await kube.wait_gone(kind, 'obj')
    assert not billing.accounts


async def test_an_operator_is_killed_before_a_deletion(kube, kind, replicas, billing):
    _, b = await replicas.start_both(TEXT.format(url=billing.url) + FIND)
    await kube.create(kind, 'obj', spec={'plan': 'small', 'die': 'delete'})
    await wait_phase(kube, kind, 'obj', 'known')
    await kube.delete(kind, 'obj')
    await b.wait_for(LEADING)
    await kube.wait_gone(kind, 'obj')
    assert not billing.accounts


async def test_where_nobody_can_tell_people_are_asked(cluster, kube, kind, replicas, billing):
    _, b = await replicas.start_both(TEXT.format(url=billing.url))
    await kube.create(kind, 'obj', spec={'plan': 'small', 'die': 'after'})
    await b.wait_for(LEADING)
    await b.wait_for('kopf external adopt .* obj billing --key KEY')
    assert billing.created == 1
    key, = billing.accounts
    code, output = await commands.run(
        cluster, 'external', 'adopt', f'{kind.plural}.{kind.group}', 'obj', 'billing',
        '--key', key, '-n', 'default')
    assert code == 0, output
    assert output.endswith(f"default/obj: It is adopted by the key {key}.\n")
    await wait_phase(kube, kind, 'obj', 'known')
    code, output = await commands.run(
        cluster, 'external', 'retry', f'{kind.plural}.{kind.group}', 'obj', 'billing',
        '-n', 'default')
    assert code == 1
    assert output.endswith(f"default/obj: This cannot be, as it exists by the key {key}.\n")
    assert not [name for name in (await kube.get(kind, 'obj'))['metadata']['annotations']
                if name.endswith('.retry')]
    await kube.delete(kind, 'obj')
    await kube.wait_gone(kind, 'obj')
    assert not billing.accounts
    assert billing.created == 1
