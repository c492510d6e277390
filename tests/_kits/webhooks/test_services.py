"""
Servers behind a Service, in operators on the sandbox. In virtual time, certificates live shortly:
TLS knows the real time only.
"""
import asyncio
import base64
import contextlib
import datetime
import pathlib
import socket
import sys

import pytest

import kopf
from kopf import testing
from kopf._cogs.structs.dicts import resolve
from kopf._core.engines.admission.configurations import WRITER_ANNOTATION
from kopf._kits.webhooks import certificates, generations
from tests.conversions import convert_first
from tests.crds import make_crd

PEERING = pathlib.Path(__file__).parents[3] / 'peering.yaml'
SECRET = 'my-operator-webhook-tls'
TIMES = generations.Times(*(
    datetime.timedelta(minutes=minutes) for minutes in (30, 1, 5, 15)))


def find_port():
    with socket.create_server(('127.0.0.1', 0)) as sock:
        return sock.getsockname()[1]


def make_settings(port=None, **kwargs):
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.admission.managed = 'my-operator.example.com'
    port = find_port() if port is None else port
    settings.admission.server = kopf.WebhookServiceServer(**{
        'service': 'my-operator', 'namespace': 'default', 'addr': '127.0.0.1', 'port': port,
        'url': f'https://127.0.0.1:{port}/', **kwargs})
    settings.admission.server._times = TIMES
    return settings


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.validate('things', registry=registry)
    def check(spec, **_):
        if spec.get('bad'):
            raise kopf.AdmissionError("It is bad.", code=418)

    return registry


@contextlib.asynccontextmanager
async def run(registry, settings, *, standalone=True, **kwargs):
    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        api.client._api.settings.networking.error_backoffs = ()  # no failure is to be hidden
        await prepare(api, **kwargs)
        async with api.operator(
                registry=registry, settings=settings, rbac=True, standalone=standalone) as operator:
            yield api, operator


async def prepare(api, secret=None, load=()):
    if load:
        await api.client.load(*load)
    if secret is not None:
        await api.client.create({
            'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': SECRET}, **secret})


async def is_refused(api):
    """Whether the handler is asked, and refuses. Failures are raised."""
    try:
        await api.client.create({
            'apiVersion': 'example.com/v1', 'kind': 'Thing',
            'metadata': {'generateName': 'x', 'namespace': 'default'}, 'spec': {'bad': True}})
    except testing.APIError as e:
        if 'It is bad' not in str(e):
            raise
        return True
    return False


async def wait_served(api):
    while not await is_refused(api):
        await asyncio.sleep(0.1)


async def get_data(api):
    data = (await api.client.get('secrets', SECRET)).get('data') or {}
    return {key: base64.b64decode(value) for key, value in data.items()}


async def get_bundle(api):
    configuration = await api.client.get(
        'validatingwebhookconfigurations', 'my-operator.example.com')
    return base64.b64decode(configuration['webhooks'][0]['clientConfig']['caBundle'])


async def change(api, data, **fields):
    await api.client.patch('secrets', SECRET, {**fields, 'data': {
        key: value and base64.b64encode(value).decode() for key, value in data.items()}})


def build(left=datetime.timedelta(minutes=30), names=('127.0.0.1', 'my-operator'), now=None):
    return certificates.build_certificate(
        [*names, 'my-operator.default', 'my-operator.default.svc'], validity=left, now=now)


def encode(pair, **others):
    data = {'tls.crt': pair[0], 'tls.key': pair[1], **others}
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


@testing.virtual_time
async def test_certificates_are_renewed_with_exactly_the_printed_rights(registry):
    async with run(registry, make_settings()) as (api, operator):
        await wait_served(api)
        first = (await get_data(api))['tls.crt']
        for _ in range(30 * 6):
            assert await is_refused(api)
            await asyncio.sleep(10)
        data = await get_data(api)
        assert set(data) == {'tls.crt', 'tls.key'}
        assert data['tls.crt'] != first
        assert await get_bundle(api) == data['tls.crt']
    assert not [right for right in operator.confinement.refused if 'mutating' not in str(right)]
    rights = {str(right) for right in operator.confinement.rights}
    assert {"create secrets in 'default'", *(
        f"{verb} secrets {SECRET!r} in 'default'" for verb in ('list', 'watch', 'patch'))} <= rights
    assert not [right for right in operator.confinement.unused if 'secrets' in right]
    log = operator.text
    assert 'PRIVATE' not in log and base64.b64encode(data['tls.key']).decode() not in log


def make_versions():
    """Make a registry that converts a kind, and the definition of that kind."""
    registry = kopf.OperatorRegistry()
    for old, new in [('v1', 'v2'), ('v2', 'v1')]:
        kopf.on.convert('olds.example.com', old, new, registry=registry)(lambda obj: None)
    crd = make_crd('Old', 'olds')
    first, = crd['spec']['versions']
    crd['spec']['versions'].append({**first, 'name': 'v2', 'storage': False})
    return registry, crd


@testing.virtual_time
async def test_a_standby_converts_by_its_first_connection_and_lists_nothing_before():
    registry, crd = make_versions()
    kopf.on.event('olds', registry=registry)(lambda **_: None)
    settings = make_settings(port := find_port())
    settings.leadership.name, settings.leadership.namespace = 'held', 'default'
    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        await api.client.create({
            'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease', 'metadata': {'name': 'held'},
            'spec': {'holderIdentity': 'other', 'leaseDurationSeconds': 3600}})
        lists = api.sandbox.faults.add(testing.Fault(
            action='delay', verb='list', resource='olds.example.com', seconds=0))
        converting = asyncio.create_task(convert_first(
            port, 'olds.example.com',
            {'apiVersion': 'example.com/v1', 'kind': 'Old', 'metadata': {'name': 'x'}}, 'v2'))
        async with api.operator(registry=registry, settings=settings, rbac=True) as operator:
            assert (await converting)['apiVersion'] == 'example.com/v2'
            await operator.wait_log("Waiting until olds.example.com is converted by a webhook")
            assert lists.hits == 0
            webhook = {'clientConfig': {'url': f'https://127.0.0.1:{port}/'},
                       'conversionReviewVersions': ['v1']}
            await api.client.patch('customresourcedefinitions', 'olds.example.com', {
                'spec': {'conversion': {'strategy': 'Webhook', 'webhook': webhook}}})
            while not lists.hits:
                await asyncio.sleep(1)


@testing.virtual_time
async def test_conversions_go_on_while_certificates_are_renewed():
    registry, crd = make_versions()
    async with run(registry, make_settings(), load=[crd]) as (api, _):
        path = ('spec', 'conversion', 'webhook', 'clientConfig', 'caBundle')
        await api.client.wait('customresourcedefinitions', 'olds.example.com',
                              lambda obj: resolve(obj, path, None))
        await api.client.create({
            'apiVersion': 'example.com/v1', 'kind': 'Old', 'metadata': {'name': 'x'}})
        for _ in range(30 * 6):
            await api.client.request('GET', '/apis/example.com/v2/namespaces/default/olds/x')
            await asyncio.sleep(10)
        found = await api.client.get('customresourcedefinitions', 'olds.example.com')
        data = await get_data(api)
        assert set(data) == {'tls.crt', 'tls.key'}
        assert base64.b64decode(resolve(found, path)) == data['tls.crt']


@testing.virtual_time
async def test_overwritten_bundles_are_written_again(registry):
    async with run(registry, make_settings()) as (api, _):
        await wait_served(api)
        configuration = await api.client.get(
            'validatingwebhookconfigurations', 'my-operator.example.com')
        bundle = await get_bundle(api)
        configuration['webhooks'][0]['clientConfig']['caBundle'] = base64.b64encode(
            build()[0]).decode()
        await api.client.patch('validatingwebhookconfigurations', 'my-operator.example.com', {
            'webhooks': configuration['webhooks']})
        assert await get_bundle(api) != bundle
        await asyncio.sleep(6 * 60)
        assert await get_bundle(api) == bundle
        assert await is_refused(api)


@testing.virtual_time
async def test_a_deleted_secret_is_made_again_with_the_same_certificate(registry):
    async with run(registry, make_settings()) as (api, _):
        await wait_served(api)
        data = await get_data(api)
        await api.client.delete('secrets', SECRET)
        await asyncio.sleep(5)
        assert await get_data(api) == data
        assert await is_refused(api)


@pytest.mark.parametrize('secret', [{}, {'data': encode((b'garbage', b'garbage'))}])
def test_an_empty_or_damaged_secret_is_filled(registry, secret):
    @testing.virtual_time
    async def test():
        async with run(registry, make_settings(), secret=secret) as (api, _):
            await wait_served(api)
            assert (await get_data(api))['tls.crt'].startswith(b'-----BEGIN CERTIFICATE')
    test()


@testing.virtual_time
async def test_an_expired_certificate_is_replaced_at_once(registry):
    old = build(datetime.timedelta(seconds=-60))
    async with run(registry, make_settings(), secret={'data': encode(old)}) as (api, _):
        await asyncio.sleep(5)
        assert await is_refused(api)
        assert set(await get_data(api)) == {'tls.crt', 'tls.key'}


@testing.virtual_time
async def test_a_certificate_that_is_not_valid_yet_is_replaced_at_once(registry):
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=10)
    pair = build(now=later)
    async with run(registry, make_settings(), secret={'data': encode(pair)}) as (api, _):
        await asyncio.sleep(5)
        assert await is_refused(api)
        assert set(await get_data(api)) == {'tls.crt', 'tls.key'}


@testing.virtual_time
async def test_a_paused_replica_renews_what_nobody_else_does(registry):
    old = build(datetime.timedelta(minutes=2))
    now = datetime.datetime.now(datetime.UTC).isoformat()
    peering = {'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {
        'name': 'default'}, 'status': {'x': {'priority': 9, 'lastseen': now, 'lifetime': 9999}}}
    configuration = {
        'apiVersion': 'admissionregistration.k8s.io/v1', 'kind': 'ValidatingWebhookConfiguration',
        'metadata': {'name': 'my-operator.example.com', 'annotations': {WRITER_ANNOTATION: 'x'}}}
    async with run(
            registry, make_settings(), secret={'data': encode(old)}, standalone=False,
            load=[PEERING, peering, configuration]) as (api, operator):
        await operator.wait_log("Pausing", timeout=60)
        await wait_served(api)
        for _ in range(180):
            assert await is_refused(api)
            await asyncio.sleep(1)
        data = await get_data(api)
        assert set(data) == {'tls.crt', 'tls.key'}
        assert data['tls.crt'] != old[0]
        await operator.stop()
        assert data['tls.crt'] in await get_bundle(api)  # the webhooks are those of the writer


@testing.virtual_time
async def test_a_certificate_without_the_new_address_is_replaced_at_once(registry):
    secret = {'data': encode(build(names=['my-operator']))}
    async with run(registry, make_settings(), secret=secret) as (api, _):
        await asyncio.sleep(5)
        assert await is_refused(api)


@testing.virtual_time
async def test_other_names_need_another_certificate(registry):
    secret = {'data': encode(build(names=['127.0.0.1']))}
    settings = make_settings(extra_sans=['other.example.com'])
    async with run(registry, settings, secret=secret) as (api, _):
        await wait_served(api)
        while set(await get_data(api)) != {'tls.crt', 'tls.key'} or (
                await get_data(api))['tls.crt'] == base64.b64decode(secret['data']['tls.crt']):
            assert await is_refused(api)
            await asyncio.sleep(1)
        names, *_ = certificates.read((await get_data(api))['tls.crt'], None)
        assert 'other.example.com' in names


@testing.virtual_time
async def test_secrets_of_others_are_served_and_never_written(registry):
    one, two = build(), build()
    secret = {'type': 'kubernetes.io/tls', 'data': encode(one, **{'ca.crt': one[0]})}
    async with run(registry, make_settings(), secret=secret) as (api, _):
        await wait_served(api)
        assert await get_bundle(api) == one[0]
        await change(api, {'tls.crt': two[0], 'tls.key': two[1], 'ca.crt': two[0]})
        version = (await api.client.get('secrets', SECRET))['metadata']['resourceVersion']
        bundles = set()
        for _ in range(120):
            assert await is_refused(api)
            bundles.add(await get_bundle(api))
            await asyncio.sleep(1)
        assert one[0] + two[0] in bundles
        found = await api.client.get('secrets', SECRET)
        assert found['metadata']['resourceVersion'] == version


@testing.virtual_time
async def test_a_deleted_secret_of_others_is_left_to_them(registry):
    one, two = build(), build()
    secret = {'type': 'kubernetes.io/tls', 'data': encode(one, **{'ca.crt': one[0]})}
    async with run(registry, make_settings(), secret=secret) as (api, _):
        await wait_served(api)
        await api.client.delete('secrets', SECRET)
        await asyncio.sleep(120)
        assert await is_refused(api)
        await api.client.create('secrets', {  # which fails if there is one
            'metadata': {'name': SECRET}, 'type': 'kubernetes.io/tls',
            'data': encode(two, **{'ca.crt': two[0]})})
        await asyncio.sleep(120)
        assert two[0] in await get_bundle(api)
        assert await is_refused(api)


@testing.virtual_time
async def test_a_replica_that_exits_removes_its_report(registry):
    async with run(registry, make_settings()) as (api, operator):
        await wait_served(api)
        await asyncio.sleep(1)
        secret = await api.client.get('secrets', SECRET)
        assert len(secret['metadata']['annotations']) == 1
        await operator.stop()
        secret = await api.client.get('secrets', SECRET)
        assert not secret['metadata'].get('annotations')


async def fail(registry, settings):
    async with run(registry, settings) as (_, operator):
        await operator.wait_log("webhook server has failed", timeout=30)


@pytest.mark.parametrize('change, message', [
    (lambda settings: setattr(settings.admission, 'managed', None), "needs settings.admission.man"),
    (lambda settings: sys.modules.__setitem__('cryptography', None), "pip install cryptography"),
])
def test_the_operator_ends_if_the_server_cannot_work(registry, change, message, monkeypatch):
    monkeypatch.setitem(sys.modules, 'cryptography', sys.modules['cryptography'])
    settings = make_settings()
    with pytest.raises(Exception, match=message):
        change(settings)
        testing.virtual_time(fail)(registry, settings)


async def test_the_service_is_named_for_the_api(registry, fn):
    server = make_settings(url=None, namespace='ns').admission.server
    assert server._make_config('ns', b'bundle') == {
        'service': {'name': 'my-operator', 'namespace': 'ns', 'port': 443},
        'caBundle': base64.b64encode(b'bundle').decode()}
    assert server.secret_name == SECRET
    assert repr(server) == f'<WebhookServiceServer my-operator at 127.0.0.1:{server.port}>'
