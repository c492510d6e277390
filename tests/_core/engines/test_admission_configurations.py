"""
The configurations in the cluster, and the server behind them.
"""
import asyncio
import json
import logging

import pytest

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.clients import errors
from kopf._cogs.cluster import discovery
from kopf._cogs.structs import patches
from kopf._cogs.structs.references import Resource
from kopf._core.engines.activities import ActivityError
from kopf._core.engines.admission.configurations import Manager
from kopf._core.engines.admission.sites import Site
from kopf._core.path import saving
from kopf._core.reactor.admitting import Admission

MARK = 'kopf.dev/webhooks-of'
RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', namespaced=True)


class Client:
    """A cluster with configurations by their paths, and with faults."""

    def __init__(self):
        self.objects = {}
        self.requests = []
        self.faults = []

    async def request(self, method, path, *, body, **_):
        await asyncio.sleep(0)
        self.requests.append((method, path.partition('?')[0].rpartition('v1/')[2]))
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        body = json.loads(body)
        folder = path.partition('?')[0]
        if method == 'PATCH':
            if folder not in self.objects:
                raise errors.APINotFoundError("no", status=404)
            if isinstance(body, list):
                test, add = body
                if test['value'] != self.objects[folder]['metadata']['annotations'][MARK]:
                    raise errors.APIUnprocessableError("test failed", status=422)
                body = {'webhooks': add['value']}
            self.objects[folder] = patches.merge(self.objects[folder], body)
            return self.objects[folder]
        assert method == 'POST'
        folder = f"{folder}/{body['metadata']['name']}"
        if folder in self.objects:
            raise errors.APIConflictError("already", status=409)
        self.objects[folder] = body
        return body

    def unfenced(self):
        return self

    def get(self, plural, name='auto.test'):
        obj = self.objects.get(f'/apis/admissionregistration.k8s.io/v1/{plural}/{name}')
        return None if obj is None else obj['webhooks']


@pytest.fixture()
def client():
    return Client()


@pytest.fixture()
def settings():
    settings = kopf.OperatorSettings()
    settings.networking.error_backoffs = [0.01]
    yield settings
    settings.execution.executor.shutdown()


def make_manager(client, settings, **site):
    return Manager(client=client, name='auto.test', site=Site(
        client=client, settings=settings, clock=Clock(), wake=lambda: None, **site))


@pytest.fixture()
def manager(client, settings):
    return make_manager(client, settings, is_writer=True)


V, M = 'validatingwebhookconfigurations', 'mutatingwebhookconfigurations'


async def test_configurations_are_created_if_they_are_absent(client, manager):
    await manager.write({'validating': [{'name': 'x'}], 'mutating': [{'name': 'y'}]})
    assert client.requests == [
        ('PATCH', f'{V}/auto.test'), ('POST', V), ('PATCH', f'{M}/auto.test'), ('POST', M)]
    assert client.get(V) == [{'name': 'x'}]
    assert client.get(M) == [{'name': 'y'}]


async def test_configurations_are_overwritten_if_they_are_there(client, manager):
    await manager.write({'validating': [{'name': 'x'}]})
    client.requests.clear()
    await manager.write({'validating': [{'name': 'y'}]})
    assert client.requests == [('PATCH', f'{V}/auto.test')]
    assert client.get(V) == [{'name': 'y'}]


async def test_nothing_is_created_for_nothing(client, manager):
    await manager.write({'validating': []})
    assert client.objects == {}


async def test_nothing_is_written_twice(client, manager):
    await manager.write({'validating': [{'name': 'x'}]})
    client.requests.clear()
    await manager.write({'validating': [{'name': 'x'}]})
    assert client.requests == []


async def test_configurations_that_others_create_at_the_same_time_are_overwritten(
        client, manager, settings):
    other = make_manager(client, settings, is_writer=True)
    await asyncio.gather(*(
        each.write({'validating': [{'name': name}]})
        for each, name in [(manager, 'x'), (other, 'y')]))
    assert ('POST', V) in client.requests
    assert client.get(V) in ([{'name': 'x'}], [{'name': 'y'}])


async def test_a_configuration_that_others_create_and_delete_meanwhile_is_tried_again(
        client, manager):
    client.faults += [None, errors.APIConflictError("already", status=409)]
    records = {'validating': [{'name': 'x'}]}
    with pytest.raises(errors.APIConflictError):
        await manager.write(records)
    await manager.write(records)
    assert client.get(V) == [{'name': 'x'}]


async def test_a_failure_of_one_configuration_does_not_prevent_the_other(client, manager):
    client.faults.append(errors.APIForbiddenError("no", status=403))
    records = {'validating': [{'name': 'x'}], 'mutating': [{'name': 'y'}]}
    with pytest.raises(errors.APIForbiddenError):
        await manager.write(records)
    assert (client.get(V), client.get(M)) == (None, [{'name': 'y'}])
    await manager.write(records)
    assert client.get(V) == [{'name': 'x'}]


async def test_permissions_are_not_needed_for_a_configuration_without_webhooks(
        client, manager, caplog):
    caplog.set_level(logging.INFO)
    client.faults += [None, None, errors.APIForbiddenError("no", status=403)]
    records = {'validating': [{'name': 'x'}], 'mutating': []}
    await manager.write(records)
    await manager.write(records)
    assert client.requests == [
        ('PATCH', f'{V}/auto.test'), ('POST', V), ('PATCH', f'{M}/auto.test')]
    client.requests.clear()
    await manager.clean({})
    assert client.requests == [('PATCH', f'{V}/auto.test')]
    assert caplog.messages == [
        "Reconfiguring the validating webhook auto.test.",
        "Cleaning up the validating webhook auto.test."]


async def test_permissions_are_needed_to_remove_own_webhooks(client, manager):
    await manager.write({'validating': [{'name': 'x'}]})
    client.faults += [errors.APIForbiddenError("no", status=403)] * 2
    for _ in range(2):
        with pytest.raises(errors.APIForbiddenError):
            await manager.write({'validating': []})


async def test_other_failures_of_a_configuration_without_webhooks_are_tried_again(
        client, manager):
    client.faults.append(errors.APIServerError("no", status=500))
    with pytest.raises(errors.APIServerError):
        await manager.write({'mutating': []})
    await manager.write({'mutating': []})
    assert client.requests == [('PATCH', f'{M}/auto.test')] * 2


async def test_webhooks_that_another_operator_has_left_are_removed(client, manager, settings):
    other = make_manager(client, settings, is_writer=True)
    await other.write({'mutating': [{'name': 'x'}]})
    await manager.write({'mutating': []})
    assert client.get(M) == []


@pytest.mark.looptime
async def test_repeats_are_not_announced(client, manager, caplog):
    caplog.set_level(logging.INFO)
    client.faults += [errors.APIForbiddenError("no", status=403)] * 6
    task = asyncio.create_task(manager.run(asyncio.Event(), lambda: {'validating': [{'a': 'b'}]}))
    while client.get(V) is None:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert caplog.messages.count("Reconfiguring the validating webhook auto.test.") == 1


@pytest.mark.looptime
async def test_failures_are_tried_again_and_told_once(client, manager, caplog):
    client.faults += [errors.APIForbiddenError("no", status=403)] * 6
    task = asyncio.create_task(manager.run(asyncio.Event(), lambda: {'validating': [{'a': 'b'}]}))
    while client.get(V) is None:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1


@pytest.fixture()
def make_service(client, settings):
    def make(registry, bound=True):
        insights = discovery.Insights()
        if bound:
            insights.set_resources([RESOURCE])
        service = Admission(
            env=saving.Environment(
                client=client, settings=settings, clock=Clock(), indices={}, memo=None),
            registry=registry, insights=insights, find=lambda resource, uid: None)
        service.take_over()
        return service
    return make


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.validate('kopfexamples', registry=registry, id='passing')
    @kopf.on.validate('kopfexamples', registry=registry, id='kept', persistent=True)
    def fn(**_):
        pass

    return registry


async def until(predicate):
    async with asyncio.timeout(5):
        while not predicate():
            await asyncio.sleep(0)


async def test_handlers_need_a_server(make_service, registry):
    with pytest.raises(ActivityError, match=r"settings.admission.server.*'kept', 'passing'"):
        make_service(registry).start()


async def test_without_handlers_nothing_is_served(make_service, settings, client):
    async def server(fn):
        raise AssertionError
        yield

    settings.admission.server = server
    service = make_service(kopf.OperatorRegistry())
    service.start()
    waiting = asyncio.create_task(service.serve())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    await service.stop(asyncio.get_running_loop().time() + 5)
    assert client.requests == []


@pytest.mark.looptime
async def test_a_server_that_is_slow_to_leave_is_interrupted_before_the_deadline(
        make_service, settings, registry, looptime):
    left = []

    async def server(fn):
        try:
            yield {'url': 'https://localhost/'}
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.sleep(100)  # a review in progress
            finally:
                left.append(asyncio.get_running_loop().time())

    settings.admission.server = server
    service = make_service(registry)
    service.start()
    await asyncio.sleep(1)
    begun = asyncio.get_running_loop().time()
    await service.stop(begun + 5)
    assert left == [begun + 4.5]


async def test_webhooks_are_in_the_cluster_while_served_and_the_persistent_ones_after(
        make_service, settings, registry, client):
    ended = []

    async def server(fn):
        try:
            yield {'url': 'https://host/first'}
            await asyncio.Event().wait()
        finally:
            ended.append(len(client.get(V)))

    settings.admission.server = server
    settings.admission.managed = 'auto.test'
    service = make_service(registry)
    service.start()
    await until(lambda: client.get(V))
    assert [record['name'] for record in client.get(V)] == ['kept.auto.test', 'passing.auto.test']
    await service.stop(asyncio.get_running_loop().time() + 5)
    assert [record['name'] for record in client.get(V)] == ['kept.auto.test']
    assert ended == [1]  # the server ends last


async def test_unmanaged_configurations_are_left_alone(make_service, settings, registry, client):
    async def server(fn):
        yield {'url': 'https://host/first'}
        await asyncio.Event().wait()

    settings.admission.server = server
    service = make_service(registry)
    service.start()
    await asyncio.sleep(0.01)
    await service.stop(asyncio.get_running_loop().time() + 5)
    assert client.requests == []


async def test_every_client_config_is_applied(make_service, settings, registry, client):
    more = asyncio.Event()

    async def server(fn):
        yield {'url': 'https://host/first'}
        await more.wait()
        yield {'service': {'name': 'second'}}
        await asyncio.Event().wait()

    settings.admission.server = server
    settings.admission.managed = 'auto.test'
    service = make_service(registry)
    service.start()
    await until(lambda: client.get(V))
    assert client.get(V)[0]['clientConfig'] == {'url': 'https://host/first/kept'}
    more.set()
    await until(lambda: 'service' in client.get(V)[0]['clientConfig'])
    await service.stop(asyncio.get_running_loop().time() + 5)


async def test_nothing_is_written_before_the_resources_are_known(
        make_service, settings, registry, client):
    async def server(fn):
        yield {'url': 'https://host/first'}
        await asyncio.Event().wait()

    settings.admission.server = server
    settings.admission.managed = 'auto.test'
    service = make_service(registry, bound=False)
    service.start()
    await asyncio.sleep(0.01)
    await service.stop(asyncio.get_running_loop().time() + 5)
    assert client.requests == []


async def test_an_unreachable_cluster_does_not_hold_the_exit(
        make_service, settings, registry, client, caplog):
    async def server(fn):
        yield {'url': 'https://host/first'}
        await asyncio.Event().wait()

    settings.admission.server = server
    settings.admission.managed = 'auto.test'
    service = make_service(registry)
    service.start()
    await until(lambda: client.get(V))
    client.faults += [errors.APIConnectionError("gone")] * 10
    await service.stop(asyncio.get_running_loop().time() + 5)
    assert "The webhooks are left in the cluster" in caplog.text


@pytest.mark.parametrize(('error', 'text'), [
    (None, "has ended, and so does the operator"), (ValueError("bad"), "has failed: bad")])
async def test_a_server_that_ends_is_an_error(make_service, settings, registry, error, text):
    async def server(fn):
        yield {'url': 'https://host/first'}
        if error is not None:
            raise error

    settings.admission.server = server
    service = make_service(registry)
    service.start()
    with pytest.raises(ActivityError, match=text):
        await service.serve()
    await service.stop(asyncio.get_running_loop().time() + 5)


async def test_servers_are_used_as_context_managers_if_they_are(make_service, settings, registry):
    log = []

    class Substitute:
        async def __call__(self, fn):
            log.append('called')
            yield {'url': 'https://host/first'}
            await asyncio.Event().wait()

    class Server:
        async def __aenter__(self):
            log.append('entered')
            return Substitute()

        async def __aexit__(self, *_):
            log.append('exited')

    settings.admission.server = Server()
    service = make_service(registry)
    service.start()
    await until(lambda: 'called' in log)
    await service.stop(asyncio.get_running_loop().time() + 5)
    assert log == ['entered', 'called', 'exited']


# Several replicas.

@pytest.fixture()
def replicas(make_service, settings, registry):
    """Two services of the same handlers, which serve at addresses of their own."""
    numbers = iter(range(2))

    async def server(fn):
        yield {'url': f'https://host/{next(numbers)}'}
        await asyncio.Event().wait()

    settings.admission.server = server
    settings.admission.managed = 'auto.test'
    return [make_service(registry) for _ in range(2)]


def get_urls(client):
    return [record['clientConfig']['url'].rpartition('/')[0] for record in client.get(V) or []]


FIRST, SECOND = ['https://host/0'] * 2, ['https://host/1'] * 2


async def test_webhooks_of_another_operator_are_not_removed(replicas, client, caplog):
    first, second = replicas
    first.start()
    await until(lambda: get_urls(client) == FIRST)
    second.start()
    await until(lambda: get_urls(client) == SECOND)
    caplog.set_level(logging.INFO)
    await first.stop(asyncio.get_running_loop().time() + 5)
    assert get_urls(client) == SECOND
    assert "auto.test are left in the cluster: another operator has written them." in caplog.text
    await second.stop(asyncio.get_running_loop().time() + 5)
    assert get_urls(client) == SECOND[:1]  # the persistent one


async def test_standbys_serve_but_write_nothing_until_they_take_over(replicas, client):
    first, second = replicas
    second.stand_by()
    first.start()
    second.start()
    await until(lambda: get_urls(client) == FIRST)
    second._changed.set()
    await asyncio.sleep(0.01)
    assert get_urls(client) == FIRST
    first.stand_by()
    second.take_over()
    await until(lambda: get_urls(client) == SECOND)
    first._changed.set()
    await asyncio.sleep(0.01)
    assert get_urls(client) == SECOND
    second.stand_by()
    first.take_over()
    await until(lambda: get_urls(client) == FIRST)
    for service in replicas:
        await service.stop(asyncio.get_running_loop().time() + 5)


async def test_standby_removes_what_nobody_has_overwritten(replicas, client):
    first, _ = replicas
    first.start()
    await until(lambda: get_urls(client) == FIRST)
    first.stand_by()
    await first.stop(asyncio.get_running_loop().time() + 5)
    assert get_urls(client) == FIRST[:1]


async def test_loss_of_the_lease_is_no_failure_of_the_management(client, manager, caplog):
    client.faults.append(errors.NotLeadingError("no"))
    woken = asyncio.Event()
    task = asyncio.create_task(manager.run(woken, lambda: {'validating': [{'a': 'b'}]}))
    await until(lambda: client.requests)
    await asyncio.sleep(0.01)
    assert (client.get(V), caplog.messages) == (None, [])
    woken.set()
    await until(lambda: client.get(V))
    task.cancel()
    await asyncio.wait([task])


# Conversions.

CRD = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com'
CONVERTED = {'things.example.com': [{'url': 'https://x/convert/things.example.com'}]}


async def test_conversions_are_written_to_the_definition(client, manager):
    client.objects[CRD] = {'metadata': {'name': 'x'}, 'spec': {'scope': 'Cluster', 'conversion': {
        'strategy': 'Webhook', 'webhook': {'clientConfig': {'service': {'name': 'former'}}}}}}
    await manager.write(CONVERTED)
    assert client.objects[CRD]['spec'] == {'scope': 'Cluster', 'conversion': {
        'strategy': 'Webhook', 'webhook': {
            'clientConfig': CONVERTED['things.example.com'][0],
            'conversionReviewVersions': ['v1']}}}


async def test_definitions_that_are_created_again_are_written_again(client, manager):
    for _ in range(2):
        client.objects[CRD] = {'metadata': {'name': 'x'}, 'spec': {}}
        await manager.write(CONVERTED)
        assert client.objects[CRD]['spec']['conversion']['strategy'] == 'Webhook'


async def test_definitions_that_do_not_exist_yet_are_tried_again(client, manager):
    await manager.write(CONVERTED)
    client.objects[CRD] = {'metadata': {'name': 'x'}, 'spec': {}}
    await manager.write(CONVERTED)
    assert client.objects[CRD]['spec']['conversion']['strategy'] == 'Webhook'


async def test_conversions_are_left_in_the_cluster(client, manager):
    client.objects[CRD] = {'metadata': {'name': 'x'}, 'spec': {}}
    await manager.write({**CONVERTED, 'validating': [{'name': 'x'}]})
    before = client.objects[CRD]
    await manager.clean({})
    assert client.objects[CRD] == before
    assert client.get(V) == []


async def test_without_rights_conversions_fail(client, manager):
    client.objects[CRD] = {'metadata': {'name': 'x'}, 'spec': {}}
    client.faults = [errors.APIForbiddenError("no", status=403)]
    with pytest.raises(errors.APIForbiddenError):
        await manager.write(CONVERTED)


async def run_for_a_moment(manager):
    woken = asyncio.Event()
    task = asyncio.create_task(manager.run(woken, lambda: {'validating': [{'a': 'b'}]}))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.looptime
async def test_configurations_are_refreshed_and_completion_is_noted(client, manager, caplog):
    caplog.set_level(logging.INFO)
    noted = []
    manager._site.note = lambda config: noted.append((config, client.get(V)))
    manager._site.config, manager._site.refresh = {'url': 'https://x'}, 0.01
    await run_for_a_moment(manager)
    assert len(noted) > 1
    assert noted[0] == ({'url': 'https://x'}, [{'a': 'b'}])
    assert client.requests.count(('PATCH', f'{V}/auto.test')) == len(noted)
    assert len(caplog.messages) == 1


@pytest.mark.looptime
async def test_failures_are_not_noted_as_complete(client, manager, settings):
    settings.networking.error_backoffs = [100]
    client.faults.append(errors.APIServerError("no", status=500))
    manager._site.config = {'url': 'https://x'}
    await run_for_a_moment(manager)
    assert manager._site.placed is None


async def test_bundles_that_are_stored_otherwise_are_failures(client, manager, monkeypatch):
    records = {'validating': [{'clientConfig': {'caBundle': 'eA=='}}]}
    await manager.write(records)
    manager.distrust()
    monkeypatch.setattr(patches, 'merge', lambda *_: {
        'metadata': {'name': 'x'}, 'webhooks': [{'clientConfig': {'caBundle': 'eQ=='}}]})
    with pytest.raises(errors.APIServerError, match="another caBundle"):
        await manager.write(records)


async def test_helpers_create_nothing_and_leave_the_mark_of_the_writer(client, manager, settings):
    other = make_manager(client, settings, is_helping=True)
    await other.write({'validating': [{'name': 'y'}]})
    assert client.get(V) is None
    await manager.write({'validating': [{'name': 'x'}]})
    other.distrust()
    await other.write({'validating': [{'name': 'y'}]})
    assert client.get(V) == [{'name': 'y'}]
    await manager.clean({})
    assert client.get(V) == []
