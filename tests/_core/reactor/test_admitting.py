"""
What reviews take from the rest of the operator.
"""
import asyncio
import json
import types

import pytest

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.clients import errors
from kopf._cogs.cluster import discovery
from kopf._cogs.structs.references import Resource
from kopf._core.engines.activities import ActivityError
from kopf._core.engines.admission import configurations, sites
from kopf._core.path import saving
from kopf._core.reactor.admitting import Admission
from tests._core.reactor.worlds import Api, Client

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', singular='kopfexample',
                    namespaced=True)
OTHER = Resource('kopf.dev', 'v1', 'others', namespaced=True)


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.validate('kopfexamples', registry=registry)
    def fn(**_):
        pass

    return registry


@pytest.fixture()
def insights():
    return discovery.Insights()


class Server:
    """A webhook server that answers what the test asks."""

    async def __call__(self, fn):
        self.fn = fn
        yield {'url': 'https://localhost'}
        await asyncio.get_running_loop().create_future()

    async def review(self, raw):
        return await self.fn({
            'apiVersion': 'admission.k8s.io/v1', 'kind': 'AdmissionReview', 'request': {
                'uid': 'uid1', 'operation': 'CREATE', 'object': raw, 'oldObject': None,
                'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': 'kopfexamples'},
            }})


@pytest.fixture()
def admission(registry, insights):
    settings = kopf.OperatorSettings()
    known = {'uid1': types.SimpleNamespace(memo=kopf.Memo(known=True))}
    env = saving.Environment(
        client=Client(Api(), settings), settings=settings, clock=Clock(), indices={},
        memo=kopf.Memo(shared=True))
    yield Admission(
        env=env, registry=registry, insights=insights,
        find=lambda resource, uid: known.get(uid) if resource == RESOURCE else None)
    settings.execution.executor.shutdown()


def test_resources_are_those_that_are_known(admission, insights):
    insights.set_resources([RESOURCE, OTHER])
    found, [handler] = admission._find(Resource('kopf.dev', 'v1', 'kopfexamples'))
    assert found is RESOURCE
    assert handler.id.endswith('fn')
    assert admission._find(OTHER) is None


def test_resources_that_are_not_known_yet_are_taken_as_told(admission, insights):
    assert admission._find(RESOURCE) is not None
    insights.set_resources([OTHER])
    assert admission._find(RESOURCE) is not None
    assert admission._find(Resource('', 'v1', 'pods')) is None


def test_resources_that_come_and_go_are_followed(admission, insights):
    admission._settings.managed = 'auto.test'
    admission._site.config = {'url': 'https://host'}
    assert admission._describe() is None
    for resources, expected in [([], []), ([RESOURCE], ['kopfexamples']), ([OTHER], [])]:
        insights.set_resources(resources)
        rules = [rule for record in admission._describe()['validating'] for rule in record['rules']]
        assert [name for rule in rules for name in rule['resources']] == expected


def test_memos_are_those_of_the_objects_or_passing_ones(admission):
    assert admission._get_memo(RESOURCE, 'uid1') == {'known': True}
    for resource, uid in [(RESOURCE, None), (RESOURCE, 'uid2'), (OTHER, 'uid1')]:
        memo = admission._get_memo(resource, uid)
        assert memo == {'shared': True}
        assert memo is not admission._env.memo


async def test_the_absence_of_a_server_is_a_failure_of_the_startup(admission):
    with pytest.raises(ActivityError, match="need a server"):
        admission.start()
    await admission.stop(asyncio.get_running_loop().time() + 1)


async def test_what_threads_want_in_a_later_term_than_that_of_the_review_is_not_written(
        admission, registry, insights):
    loop = asyncio.get_running_loop()
    client = admission._env.client
    client.api.create(spec={})
    server = admission._env.settings.admission.server = Server()
    terms, written = iter([2]), []

    async def write():
        return await client.request(
            'PATCH', '/kopfexamples/obj', content_type='application/merge-patch+json',
            body=json.dumps({'spec': {'n': 1}}).encode())

    @kopf.on.mutate('kopfexamples', registry=registry)
    def fn(**_):
        client.terms = next(terms, client.terms)
        try:
            asyncio.run_coroutine_threadsafe(write(), loop).result()
            written.append(True)
        except errors.NotLeadingError:
            written.append(False)

    insights.set_resources([RESOURCE])
    admission.start()
    await admission._changed.wait()
    await server.review(client.api.objects['obj'])
    assert written == [False]
    await server.review(client.api.objects['obj'])
    assert written == [False, True]
    await admission.stop(loop.time() + 1)


async def test_conversions_are_answered_and_need_no_admission_handlers(insights, registry):
    registry = kopf.OperatorRegistry()
    kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)(lambda obj: None)
    kopf.on.convert('things.example.com', 'v2', 'v1', registry=registry)(lambda obj: None)
    settings, server = kopf.OperatorSettings(), Server()
    settings.admission.server, settings.admission.managed = server, 'auto.test'
    env = saving.Environment(
        client=Client(Api(), settings), settings=settings, clock=Clock(), indices={},
        memo=kopf.Memo())
    admission = Admission(env=env, registry=registry, insights=insights, find=lambda *_: None)
    admission.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    response = await server.fn({
        'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'ConversionReview', 'request': {
            'uid': 'u', 'desiredAPIVersion': 'example.com/v2', 'objects': [
                {'apiVersion': 'example.com/v1', 'kind': 'Thing'}]}},
        webhook='convert/things.example.com')
    [made] = response['response']['convertedObjects']
    assert made['apiVersion'] == 'example.com/v2'
    insights.set_resources([RESOURCE])
    assert admission._describe() == {
        'things.example.com': [{'url': 'https://localhost/convert/things.example.com'}],
        'validating': [], 'mutating': []}
    await admission.stop(asyncio.get_running_loop().time() + 1)
    settings.execution.executor.shutdown()


async def test_conversions_without_a_server_are_an_error(insights):
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)(lambda obj: None)
    env = saving.Environment(
        client=Client(Api(), settings), settings=settings, clock=Clock(), indices={},
        memo=kopf.Memo())
    admission = Admission(env=env, registry=registry, insights=insights, find=lambda *_: None)
    with pytest.raises(ActivityError, match=r"^Conversions .* need a server .*things.example"):
        admission.start()
    settings.execution.executor.shutdown()


class SitedServer(Server, sites.SitedServer):
    """A server that looks at its site."""


async def test_servers_know_who_writes_and_what_is_written(admission, insights, monkeypatch):
    written = []

    async def write(_, records, **__):
        written.append(records)

    monkeypatch.setattr(configurations.Manager, 'write', write)
    server = admission._settings.server = SitedServer()
    admission._settings.managed = 'auto.test'
    insights.set_resources([RESOURCE])
    admission.start()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (server.site.is_writer, server.site.placed, written) == (False, None, [])
    admission.take_over()
    await server.site.news.wait()
    server.site.news.clear()
    await server.site.news.wait()
    assert server.site.placed == {'url': 'https://localhost'}
    admission.stand_by()
    assert (server.site.is_writer, server.site.placed) == (False, None)
    written.clear()
    server.site.ask(is_helping=True, refresh=None)
    await asyncio.sleep(0.01)
    assert len(written) == 1
    assert server.site.helps
    await admission.stop(asyncio.get_running_loop().time() + 1)
