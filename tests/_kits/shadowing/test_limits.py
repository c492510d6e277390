"""What is shown, and what is no difference."""
import asyncio
import collections
import secrets

import aiohttp
import pytest

import kopf
from kopf import testing
from kopf._kits.planning import plans
from kopf._kits.sandbox import overlays
from kopf._kits.shadowing import shadows, verdicts
from kopf._kits.testing import virtual
from tests._kits.external.clouds import Cloud, declare
from tests._kits.sandbox.conftest import CRD, Http, toy
from tests._kits.shadowing.conftest import perform


def applying(manifest):
    registry = kopf.OperatorRegistry()

    @kopf.on.create('toys', id='fn', registry=registry)
    async def fn(body, **_):
        made = {'apiVersion': 'v1', **manifest}
        kopf.adopt(made, owner=body)
        await kopf.apply(made)

    return registry


def writing(**status):
    registry = kopf.OperatorRegistry()

    @kopf.on.create('toys', id='fn', registry=registry)
    async def fn(patch, **_):
        patch.status.update(status)

    return registry


def run(old, new, check):
    async def scenario():
        async with perform(old, new) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            await check(stage)
    virtual.run(scenario())


def test_values_of_secrets_are_compared_but_not_shown():
    async def check(stage):
        assert stage.told == [
            'different: secrets default/s: data.key: "***" in production, "***" here '
            '(by fn for toys.sandbox.test default/one)']

    run(*(applying({'kind': 'Secret', 'metadata': {'name': 's'}, 'data': {'key': value}})
          for value in ('b2xk', 'bmV3')), check)


def test_the_debug_page_has_no_values():
    async def check(stage):
        assert stage.shadow.describe() == {
            'window_seconds': 60.0, 'total': {'different': 1}, 'latest': [{
                'category': 'different', 'object': 'toys.sandbox.test default/one',
                'handlers': ['fn for toys.sandbox.test default/one'],
                'fields': ['status.phase']}]}
        assert stage.shadow.counts == {('different', 'toy'): 1}

    run(writing(phase='a'), writing(phase='b'), check)


def test_differences_can_come_while_they_are_described():
    shadow = shadows.Shadow(kopf.OperatorRegistry(), window=1)

    class Place(plans.Place):
        def __str__(self):  # as if the thread of the sandbox did it
            tell()
            return super().__str__()

    def tell():
        shadow.tell(verdicts.Difference('more', 'toy', plans.Place('toys', 'default', 'two')))

    shadow.latest.append(verdicts.Difference('more', 'toy', Place('toys', 'default', 'one')))
    assert len(shadow.describe()['latest']) == 1
    assert len(shadow.describe()['latest']) == 2


def test_timestamps_and_observed_generations_do_not_differ():
    async def check(stage):
        assert stage.told == []

    run(writing(time='2020-01-01T00:00:00Z', observedGeneration=1),
        writing(time='2021-12-31T23:59:59Z', observedGeneration=2), check)


def test_what_others_with_kopf_write_does_not_differ():
    async def check(stage):
        async with aiohttp.ClientSession() as session:
            answer = await Http(session, stage.there.url)(
                'POST', '/api/v1/namespaces/default/configmaps?fieldManager=kopf',
                {'metadata': {'name': 'alien'}})
        assert answer.status == 201
        await stage.wait()
        assert stage.told == []

    run(writing(), writing(), check)


def test_pauses_by_the_command_are_those_of_the_shadow_too():
    def make():
        registry = kopf.OperatorRegistry()
        kopf.on.update('toys', id='fn', registry=registry)(
            lambda spec, patch, **_: patch.status.update(n=spec['n']))
        return registry

    async def check(stage):
        for text, told in (('yes', 1), (None, 2)):
            async with aiohttp.ClientSession() as session:
                answer = await Http(session, stage.there.url)(
                    'PATCH', '/apis/sandbox.test/v1/namespaces/default/toys/one?fieldManager=kopf',
                    {'metadata': {'annotations': {'kopf.dev/paused': text}}},
                    type='application/merge-patch+json')
            assert answer.status == 200
            await stage.there.patch('toys', 'one', {'spec': {'n': 2}})
            await stage.wait()
            for sandbox in (stage.there, stage.here):
                obj = await sandbox.get('toys', 'one')
                assert ('status' in obj) == (told == 2)
        assert stage.told == []

    run(make(), make(), check)


async def create_as(manager, stage, **annotations):
    """Create an object with annotations, and then another one without, as a user does."""
    async with aiohttp.ClientSession() as session:
        for name, chosen in (('two', annotations), ('three', {})):
            made = toy(name, spec={'n': 1})
            made['metadata']['annotations'] = chosen
            answer = await Http(session, stage.there.url)(
                'POST', '/apis/sandbox.test/v1/namespaces/default/toys'
                        f'?fieldManager={manager}', made)
            assert answer.status == 201
            await stage.wait()
    assert len(await stage.here.list('toys')) == 3


def test_who_restores_a_backup_with_kubectl_is_not_production():
    async def check(stage):
        await create_as('kubectl-create', stage, **{
            'kopf.zalando.org/last-handled-configuration': '{"spec": {"n": 1}}'})
        assert stage.told == []

    run(writing(phase='ok'), writing(phase='ok'), check)


def test_whose_manifests_adopt_things_is_not_production():
    cloud = Cloud()

    async def check(stage):
        key = cloud.add(None, {'n': 1})
        await create_as('helm', stage, **{'external.kopf.dev/account.adopt': key})
        assert stage.told == []

    run(billing(cloud), billing(cloud), check)


def test_changes_of_users_are_seen_though_production_has_changed_the_object_too():
    async def check(stage):
        await stage.there.patch('toys', 'one', {'metadata': {'labels': {'a': 'b'}}})
        await stage.wait(0.5)
        local = await stage.here.get('toys', 'one')
        assert local['metadata']['labels'] == {'a': 'b'}
        assert local['status'] == {'phase': 'b'}

    async def scenario():
        async with perform(writing(phase='a'), writing(phase='b')) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait(0.5)
            await check(stage)
    virtual.run(scenario())


def test_what_no_version_has_ever_written_is_followed():
    async def check(stage):
        await stage.there.patch('cm', 'users', {'data': {'a': '2'}})
        await stage.wait(0.1)
        assert (await stage.here.get('cm', 'users'))['data'] == {'a': '2'}

    async def scenario():
        async with perform(writing(), writing()) as stage:
            await stage.there.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'a': '1'},
                                      'metadata': {'name': 'users'}})
            await check(stage)
    virtual.run(scenario())


def test_objects_with_generated_names_are_the_same_by_their_content():
    async def check(stage):
        assert stage.told == []

    def generating():
        registry = kopf.OperatorRegistry()

        @kopf.on.create('toys', id='fn', registry=registry)
        async def fn(body, **_):
            async with aiohttp.ClientSession() as session:
                made = {'metadata': {'generateName': 'x-'}, 'data': {'a': 'b'}}
                kopf.adopt(made, owner=body)
                await Http(session, registry.url)(
                    'POST', '/api/v1/namespaces/default/configmaps?fieldManager=kopf', made)

        return registry

    versions = [generating(), generating()]

    async def scenario():
        async with perform(*versions) as stage:
            versions[0].url, versions[1].url = stage.there.url, stage.here.url
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            for sandbox in (stage.there, stage.here):
                assert len(await sandbox.list('cm', 'default')) == 1
            await check(stage)
    virtual.run(scenario())


def test_what_users_create_while_a_watch_is_interrupted_is_not_of_production(monkeypatch):
    async def scenario():
        async with perform(writing(phase='ok'), writing(phase='ok')) as stage:
            overlay = stage.upstream._overlay
            kind = overlay._cluster.kinds.named('sandbox.test/v1', 'Toy')
            accept = overlay.accept
            with monkeypatch.context() as patched:
                patched.setattr(overlay, 'accept', lambda kind, entry: (
                    None if kind.kind == 'Toy' else accept(kind, entry)))
                await stage.there.create(toy('one', spec={'n': 1}))
                await asyncio.sleep(5)
            listed = await stage.there.list('toys')
            assert 'annotations' in listed[0]['metadata']
            overlay.replace(kind, '', [overlays.make_entry(kind, obj) for obj in listed])
            assert await stage.here.list('toys')
            await stage.wait()
            assert stage.told == []
    virtual.run(scenario())


def test_addresses_that_the_api_assigns_do_not_differ():
    def serving():
        registry = kopf.OperatorRegistry()

        @kopf.reconcile('toys', id='fn', owns=['services'], registry=registry)
        async def fn(spec, **_):
            yield {'apiVersion': 'v1', 'kind': 'Service', 'metadata': {'name': 'svc'}, 'spec': {
                'type': 'NodePort', 'ports': [{'port': spec['n']}]}}

        return registry

    async def scenario():
        async with perform(serving(), serving()) as stage:
            await stage.there.create({'apiVersion': 'v1', 'kind': 'Service', 'metadata': {
                'name': 'other'}, 'spec': {'ports': [{'port': 1}]}})
            await stage.there.create(toy('one', spec={'n': 80}))
            await stage.wait()
            await stage.there.patch('toys', 'one', {'spec': {'n': 81}})
            await stage.wait()
            assert (await stage.here.get('services', 'svc'))['spec']['ports'][0]['port'] == 81
            assert stage.told == []
    virtual.run(scenario())


def test_what_differs_when_both_have_deleted_the_object_is_not_later():
    def holding(phase, delay):
        registry = writing(phase=phase)

        @kopf.on.delete('toys', registry=registry)
        async def fn(**_):
            await asyncio.sleep(delay)

        return registry

    async def scenario():
        async with perform(holding('a', 5), holding('b', 0)) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait(1.5)
            await stage.there.delete('toys', 'one')
            await stage.wait()
            assert stage.told == []
    virtual.run(scenario())


def test_after_a_difference_the_shadow_continues_as_production():
    async def check(stage):
        assert (await stage.here.get('toys', 'one'))['status'] == {'phase': 'a'}

    run(writing(phase='a'), writing(phase='b'), check)


def test_a_write_that_the_api_refuses_is_told_once_but_is_no_difference():
    def selecting(label):
        registry = kopf.OperatorRegistry()

        @kopf.reconcile('toys', id='fn', owns=['deployments'], registry=registry)
        def fn(name, **_):
            return {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name},
                    'spec': {'selector': {'matchLabels': {label: 'x'}}, 'template': {
                        'metadata': {'labels': {'a': 'x', 'b': 'x'}},
                        'spec': {'containers': [{'name': 'app', 'image': 'nginx:1'}]}}}}

        return registry

    async def scenario():
        async with perform(selecting('a'), selecting('b'), existing=[toy('one')]) as stage:
            await stage.wait()
            assert stage.told == []
            [refused] = stage.shadow.refused.values()
            assert (str(refused.place), refused.verb) == ('deployments.apps default/one', 'patch')
            assert 'spec.selector: Invalid value' in refused.message
            assert refused.handlers == ['fn for toys.sandbox.test default/one']
    virtual.run(scenario())


def billing(cloud, *, colour='blue', interval=30, **options):
    registry = kopf.OperatorRegistry()
    external = declare(
        cloud, kind='toys', registry=registry, interval=interval, consistency=0, **options)

    @external.desired
    def desired(spec, **_):
        return {'n': spec['n']}

    @kopf.reconcile('toys', id='child', owns=['configmaps'], after=[external], registry=registry)
    async def child(name, body, **_):
        return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                'data': {'key': external.get_key(body), 'colour': colour}}

    return registry


@pytest.mark.parametrize('latency', [0, 0.5, 5])
@pytest.mark.parametrize(('colour', 'told'), [('blue', []), ('red', [
    'different: configmaps default/one: data.colour: "blue" in production, "red" here '
    '(by child for toys.sandbox.test default/one)'])])
def test_external_systems_are_left_to_production(colour, told, latency):
    cloud = Cloud(latency=latency)

    async def scenario():
        async with perform(billing(cloud), billing(cloud, colour=colour)) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            await stage.there.patch('toys', 'one', {'spec': {'n': 2}})
            await stage.wait()
            assert [thing.content for thing in cloud.living] == [{'n': 2}]
            await stage.there.delete('toys', 'one')
            await stage.wait()
            assert stage.told == told
            assert not cloud.living
            assert await stage.there.list('toys') == await stage.here.list('toys') == []
        verbs = collections.Counter(call.verb for call in cloud.calls)
        assert verbs['create'] == verbs['update'] == 1
        assert verbs['delete'] <= 2
        assert {verb for verb, *_ in stage.shadow.withheld} <= {'create', 'update', 'delete'}
    virtual.run(scenario())


@pytest.mark.parametrize('options', [
    {'interval': 300}, {'interval': None}, {'replace': True, 'immutable': ['n']}])
def test_what_externals_show_of_an_edit_does_not_differ(options):
    options = {'conditions': True, 'shown': ['n'], **options}
    cloud = Cloud()

    async def scenario():
        async with perform(billing(cloud, **options), billing(cloud, **options)) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            await stage.there.patch('toys', 'one', {'spec': {'n': 2}})
            await stage.wait(10)
            assert [thing.content for thing in cloud.living] == [{'n': 2}]
            assert stage.told == []
    virtual.run(scenario())


def test_a_shadow_is_alone_though_a_retried_startup_handler_has_set_otherwise():
    new = writing(phase='new')

    @kopf.on.startup(registry=new)
    async def configure(settings, retry, **_):
        if retry == 0:
            raise kopf.TemporaryError("The secrets are not mounted yet.", delay=1)
        settings.peering.name, settings.peering.mandatory = 'absent', True
        settings.peering.standalone = False

    async def check(stage):
        assert stage.told == [
            'different: toys.sandbox.test default/one: status.phase: "old" in production, '
            '"new" here (by fn for toys.sandbox.test default/one)']

    run(writing(phase='old'), new, check)


def test_generated_values_do_not_differ():
    def generating():
        registry = kopf.OperatorRegistry()

        @kopf.reconcile('toys', id='fn', owns=['secrets', 'configmaps'], interval=10,
                        registry=registry)
        async def fn(name, **_):
            yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name},
                   'stringData': {'password': kopf.generated(secrets.token_urlsafe)}}
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                   'data': {'id': kopf.generated(secrets.token_urlsafe)}}
            found = await kopf.get('secrets', name)
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-copy'},
                   'data': found['data'] if found else {}}

        return registry

    async def scenario():
        async with perform(generating(), generating()) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            made = await stage.there.get('secrets', 'one')
            assert made['data'] == (await stage.here.get('secrets', 'one'))['data']
            await stage.there.patch('secrets', 'one', {
                'metadata': {'annotations': {'kopf.dev/rotate': 'now'}}})
            await stage.wait()
            assert (await stage.there.get('secrets', 'one'))['data'] != made['data']
            assert stage.told == []

    virtual.run(scenario())


def test_a_default_that_a_definition_gets_does_not_differ():
    def labelling(colour):
        registry = kopf.OperatorRegistry()

        @kopf.on.update('toys', id='fn', labels={'late': 'yes'}, registry=registry)
        async def fn(patch, **_):
            patch.status['colour'] = colour

        @kopf.on.create('toys', registry=registry)
        async def create(patch, **_):
            patch.status['seen'] = True

        return registry

    async def scenario():
        async with perform(labelling('blue'), labelling('red')) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            await stage.there.patch('crds', CRD['metadata']['name'], [{
                'op': 'add', 'path': '/spec/versions/0/schema/openAPIV3Schema/properties',
                'value': {'spec': {'type': 'object', 'default': {}, 'properties': {
                    'n': {'type': 'integer'}, 'tier': {'type': 'string', 'default': 'slow'}}}}}],
                type='json')
            await stage.wait()
            assert (await stage.here.get('toys', 'one'))['spec'] == {'n': 1, 'tier': 'slow'}
            await stage.here.patch('toys', 'one', {'metadata': {'labels': {'late': 'yes'}}})
            await stage.wait()
            told, = stage.told
            assert told.startswith('more: ') and 'status.colour' in told and 'tier' not in told

    virtual.run(scenario())


def test_nothing_is_told_of_what_is_not_followed_any_more(monkeypatch):
    async def refuse():
        raise kopf.LoginError("The session has expired.")

    async def scenario():
        async with perform(writing(phase='a'), writing(phase='a')) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            vault = stage.upstream._link._vault
            monkeypatch.setattr(vault, 'select', lambda: None)
            monkeypatch.setattr(vault, 'obtain', refuse)
            stage.there.faults.add(testing.Fault(action='cut', verb='watch'))
            await stage.there.patch('toys', 'one', {'spec': {'n': 2}})  # it cuts the watches
            await stage.wait()
            await stage.here.patch('toys', 'one', {'spec': {'n': 3}})
            await stage.wait()
            assert not stage.told
        assert "How toys.sandbox.test differ in the end: all logins have failed." in (
            stage.shadow.unknown)
    virtual.run(scenario())


def test_objects_that_own_themselves_are_of_others():
    async def check(stage):
        params = '?fieldManager=kopf&force=true'
        obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'alien'}}
        async with aiohttp.ClientSession() as session:
            http = Http(session, stage.there.url)
            for field in ('a', 'b'):
                made = await http(
                    'PATCH', f'/api/v1/namespaces/default/configmaps/alien{params}',
                    {**obj, 'data': {'field': field}}, type='application/apply-patch+yaml')
                obj['metadata']['ownerReferences'] = [{
                    'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': 'alien',
                    'uid': made.body['metadata']['uid']}]
        await stage.wait()
        stage.upstream._twins.conclude()
        assert stage.told == []

    run(writing(), writing(), check)


def test_nothing_is_kept_of_objects_that_both_have_deleted():
    def keeping():
        registry = kopf.OperatorRegistry()

        @kopf.reconcile('toys', id='fn', owns=['configmaps'], registry=registry)
        async def fn(spec, **_):
            for number in range(spec['n']):
                yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'c{number}'}}

        return registry

    async def check(stage):
        known = stage.upstream._twins._names
        assert len(known) == 2
        await stage.there.patch('toys.sandbox.test', 'one', {'spec': {'n': 0}}, 'default')
        await stage.wait()
        assert not known

    run(keeping(), keeping(), check)


def test_requests_of_many_handlers_are_served():
    registry = kopf.OperatorRegistry()

    @kopf.on.create('toys', id='fn', registry=registry)
    async def fn(patch, **_):
        for number in range(150):
            @kopf.subhandler(id=f'{number:060}')
            async def each(**_):
                pass
        patch.status['phase'] = 'ok'

    async def check(stage):
        made = await stage.here.get('toys.sandbox.test', 'one', 'default')
        assert made['status']['phase'] == 'ok'
        assert stage.told == []

    run(registry, registry, check)
