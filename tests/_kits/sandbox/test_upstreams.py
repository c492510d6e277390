import asyncio
import contextlib
import json
import logging

import pytest

from kopf import testing
from kopf._cogs.clients import vaults
from kopf._cogs.structs import credentials
from kopf._kits.sandbox import collecting, upstreams
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.overlays import make_entry
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.sandbox.statuses import APIError, Conflict, Forbidden, NotFound
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing import apis, sandboxthreads, virtual
from tests import rights
from tests._kits.sandbox.conftest import CRD, Http, cm, toy
from tests._kits.sandbox.test_collecting import owned


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(collecting, 'NAMESPACE_DELAY', 0.01)


@pytest.fixture()
async def there():
    """The upstream."""
    async with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture()
def over(there):
    """A function that makes a sandbox over the upstream."""
    def over(origin=None, **options):
        origin = origin or apis.read_credentials(there.kubeconfig())
        return Sandbox(upstream=Upstream(origin, **options))
    return over


async def until(check):
    for _ in range(500):
        with contextlib.suppress(APIError):
            if await check():
                return
        await asyncio.sleep(0.01)
    pytest.fail("It has not come true.")


async def names(sandbox, kind, **options):
    return [obj['metadata']['name'] for obj in await sandbox.list(kind, 'default', **options)]


def stateless(obj):
    return {**obj, 'metadata': {**obj['metadata'], 'resourceVersion': ''}}


def describe(changes):
    def data(obj):
        return None if obj is None else obj.get('data')
    return [(change.kind.kind, change.key, data(change.base), data(change.local))
            for change in changes]


# Reading.

async def test_objects_are_those_of_the_upstream(there, over):
    created = await there.create(cm('one', data={'a': '1'}, metadata={'labels': {'x': 'y'}}))
    await there.create(cm('two'))
    async with over() as here:
        assert stateless(await here.get('cm', 'one')) == stateless(created)
        assert await names(here, 'cm') == ['one', 'two']
        assert await names(here, 'cm', labels='x=y') == ['one']
        assert await names(here, 'cm', fields='metadata.name=two') == ['two']
        assert [obj['metadata']['name'] for obj in await here.list('ns')] == [
            obj['metadata']['name'] for obj in await there.list('ns')]


async def test_watches_follow_the_upstream(there, over, session):
    await there.create(cm('one'))
    async with over() as here:
        http = Http(session, here.url)
        revision = (await here.get('cm', 'one'))['metadata']['resourceVersion']
        await there.create(cm('two'))
        await there.patch('cm', 'one', {'data': {'a': '1'}})
        await here.create(cm('three'))
        await there.delete('cm', 'two')

        async def is_seen():
            return await names(here, 'cm') == ['one', 'three'] and (
                (await here.get('cm', 'one')).get('data'))

        await until(is_seen)
        events = await http.watch('/api/v1/configmaps', resourceVersion=revision)
        seen = [(event['type'], event['object']['metadata']['name']) for event in events]
        assert [event for event in seen if event[1] != 'three'] == [
            ('ADDED', 'two'), ('MODIFIED', 'one'), ('DELETED', 'two')]
        assert ('ADDED', 'three') in seen


async def test_lists_go_on_over_pages(there, over, session):
    for number in range(5):
        await there.create(cm(f'c{number}'))
    async with over() as here:
        http = Http(session, here.url)
        first = (await http('GET', '/api/v1/namespaces/default/configmaps?limit=3')).body
        token = first['metadata']['continue']
        rest = (await http('GET', f'/api/v1/namespaces/default/configmaps?continue={token}')).body
        assert [item['metadata']['name'] for item in first['items'] + rest['items']] == [
            f'c{number}' for number in range(5)]


async def test_custom_resources_are_served_as_the_upstream_defines_them(there, over):
    await there.load(CRD)
    await there.create(toy('one', spec={'x': 1}))
    async with over() as here:
        assert (await here.get('toys', 'one'))['spec'] == {'x': 1}
        await here.patch('toys', 'one', {'status': {'done': True}}, subresource='status')
        assert (await here.get('toys', 'one'))['status'] == {'done': True}
        assert 'status' not in await there.get('toys', 'one')


async def test_definitions_come_and_go_with_those_of_the_upstream(there, over):
    async with over() as here:
        await there.load(CRD)
        await there.create(toy('one'))
        await until(lambda: here.list('toys'))
        await there.delete('crds', 'toys.sandbox.test')

        async def is_gone():
            try:
                await here.list('toys')
            except NotFound:
                return True

        async def is_settled():  # the objects can go here before the upstream has deleted them
            return here.upstream.changes() == []

        await until(is_gone)
        await until(is_settled)
        spec = json.loads(json.dumps(CRD['spec']))
        spec['versions'][0]['name'] = 'v2'
        await there.load({**CRD, 'spec': spec})
        await there.create({**toy('two'), 'apiVersion': 'sandbox.test/v2'})

        async def is_back():
            return await names(here, 'toys') == ['two']

        await until(is_back)


async def test_resources_that_only_the_upstream_serves_are_logged_once(
        there, over, session, caplog):
    there._cluster.kinds.add(Kind(
        group='metrics.k8s.io', version='v1beta1', plural='nodes', kind='NodeMetrics'))
    async with over() as here:
        http = Http(session, here.url)
        for _ in range(2):
            assert (await http('GET', '/apis/metrics.k8s.io/v1beta1/nodes')).status == 404
        assert [record.message for record in caplog.records if 'metrics' in record.message] == [
            "The upstream serves nodes.v1beta1.metrics.k8s.io, but the sandbox does not."]


async def test_resources_that_the_upstream_does_not_serve_are_only_here(there, over):
    there._cluster.kinds.remove('batch', 'jobs')
    async with over() as here:
        await here.create({
            'apiVersion': 'batch/v1', 'kind': 'Job', 'metadata': {'name': 'one'}, 'spec': {
                'template': {'spec': {'restartPolicy': 'Never', 'containers': [
                    {'name': 'app', 'image': 'app'}]}}}})
        assert await names(here, 'jobs') == ['one']
        assert 'watch' in here.upstream.requests


# Requests to the upstream.

async def test_nothing_is_written_to_the_upstream(there, over):
    await there.create(cm('one'))
    await there.create(cm('two'))
    before = there._cluster.store.revision
    async with over() as here:
        await here.create(cm('three'))
        await here.patch('cm', 'one', {'data': {'a': '1'}})
        await here.delete('cm', 'two')
        assert await names(here, 'cm') == ['one', 'three']
        assert there._cluster.store.revision == before
        assert set(here.upstream.requests) == {'get', 'list', 'watch'}


@pytest.mark.parametrize('method, options', [
    ('POST', {}), ('PATCH', {'body': b'{}'}), ('DELETE', {}), ('GET', {'body': b'{}'})])
async def test_other_requests_than_get_are_not_sent(there, over, method, options):
    async with over() as here:
        client = here.upstream._link.client
        before = dict(here.upstream.requests)
        with pytest.raises(ValueError, match="Nothing is written upstream"):
            await client.request(method, '/api/v1/namespaces', **options)
        assert dict(here.upstream.requests) == before


async def test_resources_are_listed_once_and_by_pages(there, over):
    for number in range(501):
        await there.create(cm(f'c{number}'))
    async with over() as here:
        before = here.upstream.requests['list']
        found = await asyncio.gather(*(here.list('cm', 'default') for _ in range(5)))
        assert [len(objs) for objs in found] == [501] * 5
        assert here.upstream.requests['list'] == before + 2


async def test_events_are_created_without_listing_all_others(there, over):
    async with over() as here:
        before = here.upstream.requests.copy()
        await here.create({
            **cm('one', metadata={'namespace': 'default'}), 'kind': 'Event',
            'involvedObject': {'namespace': 'default'}})
        for verb in 'get', 'list':  # the first watch can begin late
            assert here.upstream.requests[verb] == before[verb]
        assert await names(here, 'events') == ['one']


async def test_the_rate_of_requests_is_limited(there, over, monkeypatch):
    monkeypatch.setattr(upstreams, 'BURST', 7)
    monkeypatch.setattr(upstreams, 'RATE', 0.001)
    async with over() as here:
        await here.list('cm')
        listing = asyncio.create_task(here.list('secrets'))
        await until(lambda: asyncio.sleep(0, here.upstream._link.client._bucket.refused > 0))
        assert sum(here.upstream.requests.values()) == 7
        listing.cancel()


async def test_an_absent_upstream_is_an_error():
    upstream = Upstream(credentials.ConnectionInfo(server='http://127.0.0.1:1'))
    with pytest.raises(APIError, match="The upstream fails") as error:
        await Sandbox(upstream=upstream).start()
    assert error.value.code == 503


async def test_an_upstream_that_fails_is_an_error_until_it_works(there, over, monkeypatch):
    monkeypatch.setattr(vaults, 'PAUSES', [0.01])
    async with over() as here:
        real = there._access.of_token
        there._access.of_token = lambda token: None
        with pytest.raises(APIError, match="The upstream fails") as error:
            await here.list('cm')
        assert error.value.code == 503
        there._access.of_token = real


async def test_a_state_cannot_be_kept(tmp_path):
    upstream = Upstream(credentials.ConnectionInfo(server='http://127.0.0.1:1'))
    with pytest.raises(ValueError, match="has no state"):
        Sandbox(upstream=upstream, state=tmp_path / 'state')


def test_contexts_are_those_of_the_kubeconfig(tmp_path, monkeypatch):
    path = tmp_path / 'kubeconfig'
    path.write_text(json.dumps({
        'current-context': 'a', 'clusters': [{'name': 'c', 'cluster': {'server': 'http://c'}}],
        'contexts': [{'name': 'a', 'context': {'cluster': 'absent'}},
                     {'name': 'b', 'context': {'cluster': 'c'}}]}))
    monkeypatch.setenv('KUBECONFIG', str(path))
    Upstream(context='b')
    for context in (None, 'c'):
        with pytest.raises(credentials.LoginError, match="There is no"):
            Upstream(context=context)


async def test_renewed_tokens_of_the_kubeconfig_are_used(there, tmp_path, monkeypatch):
    path = tmp_path / 'kubeconfig'
    config = there.kubeconfig()
    token = config['users'][0]['user'].pop('token')

    def write(token, context):
        config['users'][0]['user']['token'] = token
        path.write_text(json.dumps({**config, 'current-context': context}))

    write('former', config['current-context'])
    monkeypatch.setenv('KUBECONFIG', str(path))
    upstream = Upstream()
    write(token, 'other')
    monkeypatch.setenv('KUBECONFIG', '/nonexistent')
    await there.create(cm('one'))
    async with Sandbox(upstream=upstream) as here:
        assert await names(here, 'cm') == ['one']


async def test_a_vault_logs_in(there, over):
    async def log_in():
        return {'it': apis.read_credentials(there.kubeconfig())}
    async with over(vaults.Vault(login=log_in)) as here:
        assert await here.list('ns')


# Without following, and in virtual time.

async def test_without_following_objects_stay_as_they_were(there, over):
    await there.create(cm('one', data={'a': '1'}))
    async with over(follow=False) as here:
        assert await names(here, 'cm') == ['one']
        await there.patch('cm', 'one', {'data': {'a': '2'}})
        await there.create({**cm('two'), 'kind': 'Secret'})
        assert await names(here, 'secrets') == ['two']
        assert (await here.get('cm', 'one'))['data'] == {'a': '1'}
        assert 'watch' not in here.upstream.requests


@pytest.mark.parametrize('follow', [True, False])
def test_virtual_time_stands_still_while_the_upstream_answers(follow):
    with sandboxthreads.run_sandbox() as there:
        there.client.create(cm('one'))

        async def use():
            loop = asyncio.get_running_loop()
            async with Sandbox(upstream=Upstream(there.credentials, follow=follow)) as here:
                timer = asyncio.create_task(asyncio.sleep(0.001))
                assert await names(here, 'cm') == ['one']
                assert loop.time() == 0
                await timer
                assert loop.time() == 0.001
                await here.delete('cm', 'one')
                assert loop.time() == 0.001
                assert not loop._selector.foreign  # so nothing holds the time up later
                await asyncio.sleep(36000)

        virtual.run(use())


# The overlay.

async def test_what_is_changed_here_stays_and_the_rest_follows(there, over):
    await there.create(cm('one', data={'a': '1', 'b': '1'}))
    async with over() as here:
        await here.patch('cm', 'one', {'data': {'a': '2'}, 'metadata': {'finalizers': ['a.b/c']}})
        await there.patch('cm', 'one', {
            'data': {'a': '3', 'b': '3'}, 'metadata': {'labels': {'x': 'y'}}})

        async def is_merged():
            return (await here.get('cm', 'one'))['data'] == {'a': '2', 'b': '3'}

        await until(is_merged)
        metadata = (await here.get('cm', 'one'))['metadata']
        assert metadata['labels'] == {'x': 'y'}
        assert metadata['finalizers'] == ['a.b/c']
        assert describe(here.upstream.changes()) == [
            ('ConfigMap', ('default', 'one'), {'a': '3', 'b': '3'}, {'a': '2', 'b': '3'})]


async def test_an_object_that_becomes_the_same_follows_again(there, over):
    await there.create(cm('one', data={'a': '1'}))
    async with over() as here:
        await here.patch('cm', 'one', {'data': {'a': '2'}})
        await there.patch('cm', 'one', {'data': {'a': '2'}})

        async def is_same():
            return not here.upstream._overlay._bases

        await until(is_same)
        assert stateless(await here.get('cm', 'one')) == stateless(await there.get('cm', 'one'))


async def test_generations_rise_with_each_change_of_the_spec(there, over):
    await there.load(CRD)
    await there.create(toy('one', spec={'a': 1, 'b': 1}))
    async with over() as here:
        await here.patch('toys', 'one', {'spec': {'a': 2}})
        await there.patch('toys', 'one', {'spec': {'b': 2}})

        async def is_merged():
            return (await here.get('toys', 'one'))['spec'] == {'a': 2, 'b': 2}

        await until(is_merged)
        assert (await here.get('toys', 'one'))['metadata']['generation'] == 3
        await there.patch('toys', 'one', {'status': {'done': True}}, subresource='status')

        async def is_done():
            return (await here.get('toys', 'one')).get('status') == {'done': True}

        await until(is_done)
        assert (await here.get('toys', 'one'))['metadata']['generation'] == 3


async def test_generations_rise_once_with_a_change_of_the_upstream(there, over):
    await there.load(CRD)
    await there.create(toy('one', spec={'a': 1}))
    async with over() as here:
        await here.patch('toys', 'one', {'metadata': {'labels': {'own': 'label'}}})
        await there.patch('toys', 'one', {'spec': {'a': 2}})

        async def is_merged():
            return (await here.get('toys', 'one'))['spec'] == {'a': 2}

        await until(is_merged)
        assert (await here.get('toys', 'one'))['metadata']['generation'] == 2


async def test_fields_keep_their_managers(there, over):
    await there.create(cm('one', data={'a': '1', 'b': '1'}))
    async with over() as here:
        await here.patch('cm', 'one', cm('one', data={'a': '2'}), type='apply')
        await there.patch('cm', 'one', {'data': {'c': '3'}})

        async def is_merged():
            return len((await here.get('cm', 'one'))['data']) == 3

        await until(is_merged)
        managers = {(entry['operation'], *sorted(entry['fieldsV1']['f:data']))
                    for entry in (await here.get('cm', 'one'))['metadata']['managedFields']}
        assert managers == {('Apply', 'f:a'), ('Update', '.', 'f:b', 'f:c')}


async def test_changes_of_the_upstream_are_conflicts_with_older_versions(there, over):
    await there.create(cm('one'))
    async with over() as here:
        old = await here.get('cm', 'one')
        await there.patch('cm', 'one', {'data': {'a': '1'}})

        async def is_merged():
            return (await here.get('cm', 'one')).get('data')

        await until(is_merged)
        with pytest.raises(Conflict):
            await here.replace(old)


async def test_an_object_that_is_created_on_both_sides_stays_as_it_is_here(there, over, caplog):
    caplog.set_level(logging.WARNING)
    async with over() as here:
        await here.create(cm('one', data={'here': '1'}))
        await there.create(cm('one', data={'there': '1'}))

        async def is_logged():
            return "configmaps default/one, which exists here" in caplog.text

        await until(is_logged)
        assert (await here.get('cm', 'one'))['data'] == {'here': '1'}
        await here.delete('cm', 'one')

        async def is_seen():
            return (await here.get('cm', 'one'))['data'] == {'there': '1'}

        await until(is_seen)


async def test_an_object_that_is_created_again_is_another_one(there, over, session):
    old = await there.create(cm('one'))
    async with over(follow=False) as here:
        revision = (await here.get('cm', 'one'))['metadata']['resourceVersion']
        await there.delete('cm', 'one')
        new = await there.create(cm('one'))
        kind = here._cluster.kind(('', 'configmaps'))
        here.upstream._overlay.replace(  # as after an interruption
            kind, 'default', [make_entry(kind, new)])
        events = await Http(session, here.url).watch('/api/v1/configmaps', resourceVersion=revision)
        assert [(event['type'], event['object']['metadata']['uid']) for event in events] == [
            ('DELETED', old['metadata']['uid']), ('ADDED', new['metadata']['uid'])]


async def test_finalizers_of_clients_here_hold_what_the_upstream_deletes(there, over):
    await there.create(cm('one', metadata={'finalizers': ['a.b/there']}))
    async with over() as here:
        await here.patch('cm', 'one', {'metadata': {'finalizers': ['a.b/there', 'a.b/here']}})
        await there.delete('cm', 'one')
        await there.patch('cm', 'one', {'metadata': {'finalizers': None}})

        async def is_deleted():
            return (await here.get('cm', 'one'))['metadata']['finalizers'] == ['a.b/here']

        await until(is_deleted)
        assert 'deletionTimestamp' in (await here.get('cm', 'one'))['metadata']
        await here.patch('cm', 'one', {'metadata': {'finalizers': None}})
        assert await names(here, 'cm') == []
        assert here.upstream.changes() == []


async def test_an_object_goes_when_its_finalizers_are_removed_here_only(there, over):
    await there.create(cm('one', metadata={'finalizers': ['a.b/c']}))
    async with over() as here:
        await here.patch('cm', 'one', {'metadata': {'finalizers': None}})
        await there.delete('cm', 'one')

        async def is_gone():
            return await names(here, 'cm') == []

        await until(is_gone)
        await there.patch('cm', 'one', {'data': {'a': '1'}})
        await there.create(cm('last'))

        async def is_next():
            return await names(here, 'cm') == ['last']

        await until(is_next)
        change, = here.upstream.changes()  # the finalizer was removed here
        assert change.base['metadata']['name'] == 'one' and change.local is None
        await there.patch('cm', 'one', {'metadata': {'finalizers': None}})

        async def is_same():
            return here.upstream.changes() == []

        await until(is_same)


async def test_pods_of_the_upstream_end_at_once(there, over):
    pod = {'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'one'}, 'spec': {
        'nodeName': 'n', 'containers': [{'name': 'app', 'image': 'app'}]}}
    await there.create(pod)
    async with over() as here:
        await here.delete('pods', 'one')
        assert await names(here, 'pods') == []
        await here.create({**pod, 'metadata': {'name': 'own'}})
        await here.delete('pods', 'own')
        assert await names(here, 'pods') == ['own']


# Owners, namespaces, definitions.

async def test_dependents_go_after_their_owner_though_nobody_has_looked_at_them(there, over):
    owner = await there.create(cm('owner'))
    await there.create({**cm('child', metadata=owned(owner)), 'kind': 'Secret'})
    async with over() as here:
        await here.delete('cm', 'owner')

        async def is_gone():
            return [(change.kind.kind, change.local) for change in here.upstream.changes()] == [
                ('ConfigMap', None), ('Secret', None)]

        await until(is_gone)
        assert await names(there, 'secrets') == ['child']


async def test_dependents_go_though_another_kind_cannot_be_read(there, over, monkeypatch):
    monkeypatch.setattr(upstreams, 'BACKOFFS', ())
    owner = await there.create(cm('owner'))
    await there.create({**cm('child', metadata=owned(owner)), 'kind': 'Secret'})
    there.faults.add(testing.Fault(
        action='refuse', verb='list', resource='serviceaccounts', status=500))
    async with over(follow=False) as here:
        await here.delete('cm', 'owner')

        async def is_gone():
            return [change.kind.kind for change in here.upstream.changes()] == [
                'ConfigMap', 'Secret']

        await until(is_gone)
        assert list(here.upstream.unread) == [('', 'serviceaccounts')]
        count = here.upstream.requests['list']
        await here.create(cm('another'))
        await here.delete('cm', 'another')
        assert here.upstream.requests['list'] == count


async def test_dependents_stay_if_their_owner_is_not_seen(there, over):
    owner = await there.create(cm('owner'))
    absent = {**owner, 'metadata': {**owner['metadata'], 'uid': 'absent'}}
    there._collector._enqueue = lambda *_: None
    await there.create({**cm('one', metadata=owned(owner)), 'kind': 'Secret'})
    await there.create({**cm('two', metadata=owned(absent)), 'kind': 'Secret'})
    async with over() as here:
        assert await names(here, 'secrets') == ['one', 'two']
        await here.list('cm')
        await here.patch('secrets', 'one', {'data': {'a': ''}})
        await here.patch('secrets', 'two', {'data': {'a': ''}})
        await here.create(cm('other', metadata=owned(absent)))  # it is only here, so it goes

        async def is_gone():
            return 'other' not in await names(here, 'cm')

        await until(is_gone)
        assert await names(here, 'secrets') == ['one', 'two']


async def test_dependents_here_go_when_the_upstream_deletes_their_owner(there, over):
    owner = await there.create(cm('owner'))
    async with over() as here:
        await here.create(cm('child', metadata=owned(owner)))
        await there.delete('cm', 'owner')

        async def is_gone():
            return await names(here, 'cm') == []

        await until(is_gone)


async def test_namespaces_are_emptied_of_what_the_upstream_has_in_them(there, over):
    await there.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ns'}})
    await there.create(cm('one', metadata={'namespace': 'ns'}))
    async with over() as here:
        await here.delete('ns', 'ns')

        async def is_gone():
            return 'ns' not in [obj['metadata']['name'] for obj in await here.list('ns')]

        await until(is_gone)
        assert await here.list('cm', 'ns') == []
        await there.create(cm('two', metadata={'namespace': 'ns'}))
        await there.create(cm('last'))

        async def is_next():
            return 'last' in await names(here, 'cm')

        await until(is_next)
        assert await here.list('cm', 'ns') == []


async def test_what_the_upstream_deletes_is_left_to_it_except_for_what_is_only_here(there, over):
    await there.load(CRD)
    await there.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ns'}})
    for make in (cm, toy):
        await there.create(make('held', metadata={
            'name': 'held', 'namespace': 'ns', 'finalizers': ['a.b/c']}))
    async with over() as here:
        for make in (cm, toy):
            await here.create(make('own', metadata={'name': 'own', 'namespace': 'ns'}))
        await there.delete('ns', 'ns')
        await there.delete('crds', 'toys.sandbox.test')

        async def is_emptied():
            found = [*await here.list('cm', 'ns'), *await here.list('toys', 'ns')]
            return [obj['metadata']['name'] for obj in found] == ['held', 'held']

        await until(is_emptied)
        assert here.upstream.changes() == []
        for kind in ('cm', 'toys'):
            await there.patch(kind, 'held', {'metadata': {'finalizers': None}}, 'ns')

        async def is_gone():
            return 'ns' not in [obj['metadata']['name'] for obj in await here.list('ns')] and (
                await here.list('crds') == [])

        await until(is_gone)
        assert here.upstream.changes() == []


async def test_a_definition_that_is_changed_here_shows_the_same_objects(there, over):
    await there.load(CRD)
    await there.create(toy('one', spec={'x': 1}))
    async with over() as here:
        spec = json.loads(json.dumps(CRD['spec']))
        spec['versions'][0]['storage'] = False
        spec['versions'].append({**spec['versions'][0], 'name': 'v2', 'storage': True})
        await here.load({**CRD, 'spec': spec})
        found = await here.get('toys.v2.sandbox.test', 'one')
        assert (found['apiVersion'], found['spec']) == ('sandbox.test/v2', {'x': 1})
        await here.patch('toys.v2.sandbox.test', 'one', {'spec': {'y': 2}})
        await there.patch('toys', 'one', {'spec': {'x': 3}})

        async def is_merged():
            return (await here.get('toys.v1.sandbox.test', 'one'))['spec'] == {'x': 3, 'y': 2}

        await until(is_merged)


async def test_a_definition_that_is_changed_here_gives_defaults_to_all_objects(there, over):
    crd = json.loads(json.dumps(CRD))
    properties = {'a': {'type': 'integer'}}
    crd['spec']['versions'][0]['schema'] = {'openAPIV3Schema': {
        'type': 'object', 'properties': properties}}
    await there.load(crd)
    for name in ('untouched', 'touched'):
        await there.create(toy(name, a=1))
    async with over() as here:
        await here.patch('toys', 'touched', {'metadata': {'labels': {'x': 'y'}}})
        properties['b'] = {'type': 'integer', 'default': 3}
        await here.load(crd)
        await here.patch('toys', 'untouched', {'metadata': {'labels': {'x': 'y'}}})
        await there.create(toy('new', a=1))
        for name in ('untouched', 'touched'):
            await there.patch('toys', name, {'a': 2})

        async def is_read():
            return [(obj['a'], obj['b'], obj['metadata'].get('labels')) for obj in
                    await here.list('toys', 'default')] == [
                        (1, 3, None), (2, 3, {'x': 'y'}), (2, 3, {'x': 'y'})]

        await until(is_read)
        assert [(change.key[1], change.base['b']) for change in here.upstream.changes()
                if change.kind.plural == 'toys'] == [('touched', 3), ('untouched', 3)]


async def test_a_field_that_a_definition_here_does_not_know_is_not_lost(there, over):
    crd = json.loads(json.dumps(CRD))
    properties = {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}
    crd['spec']['versions'][0]['schema'] = {'openAPIV3Schema': {
        'type': 'object', 'properties': properties}}
    await there.load(crd)
    for name in ('early', 'merged'):
        await there.create(toy(name, a=1, b=2))

    async def list_toys(here):
        return {obj['metadata']['name']: (obj['a'], obj.get('b'))
                for obj in await here.list('toys', 'default')}

    async with over() as here:
        assert await list_toys(here) == {'early': (1, 2), 'merged': (1, 2)}
        del properties['b']
        await here.load(crd)
        await here.patch('toys', 'merged', {'a': 3})
        await there.patch('toys', 'merged', {'a': 3})
        await there.create(toy('late', a=1, b=2))

        async def is_followed():
            return await list_toys(here) == {
                'early': (1, None), 'merged': (3, None), 'late': (1, None)}

        await until(is_followed)
        properties['b'] = {'type': 'integer'}
        await here.load(crd)
        assert await list_toys(here) == {'early': (1, 2), 'merged': (3, 2), 'late': (1, 2)}
        found = await here.get('toys', 'late')
        await here.patch('toys', 'late', {
            'metadata': {'resourceVersion': found['metadata']['resourceVersion']}, 'a': 2})


# Webhooks.

def hook(url):
    return {
        'name': 'x.sandbox.test', 'admissionReviewVersions': ['v1'], 'sideEffects': 'None',
        'clientConfig': {'url': url}, 'rules': [{
            'apiGroups': [''], 'apiVersions': ['v1'], 'resources': ['configmaps'],
            'operations': ['*']}]}


async def test_webhooks_of_the_upstream_are_not_called(there, over):
    await there.create({
        'apiVersion': 'admissionregistration.k8s.io/v1', 'kind': 'ValidatingWebhookConfiguration',
        'metadata': {'name': 'x'}, 'webhooks': [hook('https://127.0.0.1:1/')]})
    async with over() as here:
        assert await here.list('validatingwebhookconfigurations')
        await here.create(cm('one'))
        await here.patch('validatingwebhookconfigurations', 'x', {
            'webhooks': [hook('https://127.0.0.1:2/')]})
        with pytest.raises(APIError, match="failed calling webhook"):
            await here.create(cm('two'))


async def test_with_a_conversion_of_the_upstream_only_the_stored_version_is_served(
        there, over, caplog):
    spec = json.loads(json.dumps(CRD['spec']))
    spec['versions'].append({**spec['versions'][0], 'name': 'v2', 'storage': False})
    spec['conversion'] = {'strategy': 'Webhook', 'webhook': {
        'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://127.0.0.1:1/'}}}
    await there.load({**CRD, 'spec': spec})
    await there.create(toy('one'))
    async with over() as here:
        assert await names(here, 'toys') == ['one']
        with pytest.raises(NotFound):
            await here.list('toys.v2.sandbox.test')
        assert "toys.sandbox.test are served in v1 only" in caplog.text
        await here.patch('crds', 'toys.sandbox.test', {'spec': {'conversion': {
            'strategy': 'None', 'webhook': None}}})
        assert await names(here, 'toys.v2.sandbox.test') == ['one']


# Rights.

async def add_user(there, *rules, namespace=''):
    token = there.add_user('limited', lambda *_: None)
    for obj in rights.make_role(*rules, namespace=namespace):
        await there.create(obj)
    return credentials.ConnectionInfo(
        server=there.url, token=token, default_namespace='default')


def rule(group, *resources):
    return rights.make_rule(*resources, group=group)


async def test_objects_are_read_where_it_is_allowed(there, over):
    await there.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ns'}})
    await there.create(cm('one'))
    await there.create(cm('two', metadata={'namespace': 'ns'}))
    await add_user(
        there, rule('', 'namespaces'), rule('apiextensions.k8s.io', 'customresourcedefinitions'))
    async with over(await add_user(there, rule('', 'configmaps'), namespace='ns')) as here:
        assert [obj['metadata']['name'] for obj in await here.list('cm')] == ['two']
        await there.create(cm('three', metadata={'namespace': 'ns'}))

        async def is_seen():
            return [obj['metadata']['name'] for obj in await here.list('cm')] == ['three', 'two']

        await until(is_seen)
        with pytest.raises(Forbidden, match="The upstream refuses: .*secrets"):
            await here.list('secrets')
        await here.delete('cm', 'two', 'ns')  # though secrets could be its dependents


async def test_without_rights_to_list_namespaces_that_of_the_user_is_served(there, over, caplog):
    await there.create(cm('one'))
    async with over(await add_user(there, rule('', 'configmaps'), namespace='default')) as here:
        assert await names(here, 'cm') == ['one']
        await here.create(cm('two'))
        assert "The custom resources of the upstream are not served" in caplog.text
        assert "Only these namespaces are served: default" in caplog.text


async def test_without_rights_to_list_namespaces_those_that_are_named_are_served(there, over):
    await there.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'ns'}})
    await there.create(cm('one', metadata={'namespace': 'ns'}))
    origin = await add_user(there, rule('', 'configmaps'), namespace='ns')
    async with over(origin, namespaces=['ns', 'other']) as here:
        assert [obj['metadata']['name'] for obj in await here.list('cm', 'ns')] == ['one']
        await here.create(cm('two', metadata={'namespace': 'other'}))


async def test_users_of_the_sandbox_have_the_rights_of_the_upstream(there, over, session):
    await add_user(there, rule('', 'configmaps'))
    async with over() as here:
        http = Http(session, here.url, here.add_user('limited', lambda *_: None))
        assert (await http('GET', '/api/v1/configmaps')).status == 200
        assert (await http('GET', '/api/v1/secrets')).status == 403
