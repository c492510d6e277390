import asyncio
import datetime
import pathlib

import pytest

from kopf import testing
from kopf._cogs.aiokits import clocks
from kopf._cogs.clients.vaults import Vault
from kopf._kits import commanding
from kopf._kits.lifecycle import releasing, sweeping
from tests.crds import make_crd

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
LAST = 'kopf.zalando.org/last-handled-configuration'
PEERINGS = pathlib.Path(__file__).parents[3] / 'peering.yaml'
PEERING = {
    'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}}
THING = {'apiVersion': 'example.com/v1', 'kind': 'Thing'}
GLOBE = {'apiVersion': 'example.com/v1', 'kind': 'Globe'}


@pytest.fixture()
def lines():
    """What the command says."""
    return []


@pytest.fixture()
def release(lines):
    """Run the command on the API."""
    async def release(api, *kinds, clusterwide=True, namespaces=(), **options):
        defaults = {'finalizer': FINALIZER, 'peering': 'default', 'lease': 'kopf-operator'}
        vault = Vault({'test': api.credentials})
        async with sweeping.begin('released', say=lines.append, vault=vault) as sweep:
            return await releasing.release(
                sweep, kinds or ['things'], releasing.Options(**{**defaults, **options}),
                clusterwide=clusterwide, namespaces=namespaces)
    return release


async def prepare(api, *names, finalizers=(FINALIZER,), **metadata):
    await api.client.load(
        make_crd('Thing', 'things'), make_crd('Globe', 'globes', scope='Cluster'), PEERINGS)
    for name in names:
        await api.client.create({**THING, 'metadata': {
            'name': name, 'finalizers': [*finalizers], **metadata}})


async def hold(api, *, name='kopf-operator', holder='pod', seconds=15, labels=None):
    now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')
    return await api.client.create({
        'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
        'metadata': {'name': name, 'labels': labels or {}},
        'spec': {'holderIdentity': holder, 'leaseDurationSeconds': seconds, 'renewTime': now}})


async def get_finalizers(api):
    return {item['metadata']['name']: item['metadata'].get('finalizers', [])
            for item in await api.client.list('things')}


@testing.virtual_time
async def test_finalizers_of_others_stay(release, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', 'b', finalizers=['example.com/x', FINALIZER, 'example.com/y'])
        await prepare(api, 'c', finalizers=['example.com/x'])
        assert await release(api)
        others = ['example.com/x', 'example.com/y']
        assert await get_finalizers(api) == {'a': others, 'b': others, 'c': others[:1]}
    assert lines == ["things.v1.example.com: 2 to release.",
                     "things.v1.example.com: 2 released, 0 left."]


@testing.virtual_time
async def test_all_pages_are_released(release, lines, monkeypatch):
    monkeypatch.setattr('kopf._cogs.clients.listing.DEFAULT_CHUNK_SIZE', 7)
    async with testing.open_api('sandbox') as api:
        await prepare(api, *[f'x{number}' for number in range(50)])
        assert await release(api)
        assert set(map(tuple, (await get_finalizers(api)).values())) == {()}
    assert lines[-1] == "things.v1.example.com: 50 released, 0 left."


@pytest.mark.parametrize('finalizer', ['kopf.dev/children', 'kopf.dev/external'])
@testing.virtual_time
async def test_what_stays_is_reported(release, lines, finalizer):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', finalizers=[finalizer])
        assert await release(api)
        assert await get_finalizers(api) == {'a': []}
    assert lines[1].startswith(f"things.v1.example.com: 1 with the finalizer {finalizer}. ")


@testing.virtual_time
async def test_another_finalizer_can_be_named(release):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', finalizers=['example.com/own', FINALIZER])
        assert await release(api, finalizer='example.com/own')
        assert await get_finalizers(api) == {'a': [FINALIZER]}


@pytest.mark.parametrize(('prefixes', 'left'), [
    ((), {LAST, 'own.example.com/fn', 'other'}),
    (('kopf.zalando.org',), {'own.example.com/fn', 'other'}),
    (('own.example.com', 'kopf.zalando.org'), {'other'}),
])
def test_annotations_are_removed_by_their_prefixes(release, prefixes, left):
    @testing.virtual_time
    async def act():
        async with testing.open_api('sandbox') as api:
            await prepare(api, 'a', annotations={LAST: '{}', 'own.example.com/fn': '{}',
                                                 'other': ''})
            assert await release(api, prefixes=prefixes)
            return (await api.client.get('things', 'a'))['metadata']
    metadata = act()
    assert metadata['annotations'].keys() == left
    assert 'finalizers' not in metadata


@testing.virtual_time
async def test_a_finalizer_that_somebody_adds_meanwhile_is_not_lost(release, monkeypatch):
    write = sweeping.Sweep.write

    async def write_late(sweep, resource, meta, changes):
        if not late:
            late.append(meta['name'])
            await api.client.patch('things', meta['name'], {
                'metadata': {'finalizers': [FINALIZER, 'example.com/late']}})
        await write(sweep, resource, meta, changes)

    late = []
    monkeypatch.setattr(sweeping.Sweep, 'write', write_late)
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        assert await release(api)
        assert await get_finalizers(api) == {'a': ['example.com/late']}


@testing.virtual_time
async def test_objects_that_are_deleted_meanwhile_are_released(release, lines, monkeypatch):
    write = sweeping.Sweep.write

    async def write_late(sweep, resource, meta, changes):
        await api.client.patch('things', meta['name'], {'metadata': {'finalizers': []}})
        await api.client.delete('things', meta['name'])
        await write(sweep, resource, meta, changes)

    monkeypatch.setattr(sweeping.Sweep, 'write', write_late)
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        assert await release(api)
    assert lines[-1] == "things.v1.example.com: 1 released, 0 left."


@testing.virtual_time
async def test_objects_are_left_that_are_being_deleted_since_they_were_listed(
        release, lines, monkeypatch):
    write = sweeping.Sweep.write

    async def write_late(sweep, resource, meta, changes):
        await api.client.delete('things', meta['name'])
        await write(sweep, resource, meta, changes)

    monkeypatch.setattr(sweeping.Sweep, 'write', write_late)
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        assert not await release(api)
        assert await get_finalizers(api) == {'a': [FINALIZER]}
    assert lines[-2:] == [
        "things.v1.example.com: 0 released, 1 left.",
        "thing default/a: It is being deleted now. Let the operator finish it, or add --deleting."]


@testing.virtual_time
async def test_what_is_refused_is_left_and_named(release, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', 'b')
        api.sandbox.faults.add(testing.Fault(
            action='refuse', verb='patch', resource='things', name='b', status=403))
        assert not await release(api)
        assert await get_finalizers(api) == {'a': [], 'b': [FINALIZER]}
    assert lines[1] == "things.v1.example.com: 1 released, 1 left."
    assert lines[2].startswith("thing default/b: ")


@testing.virtual_time
async def test_what_an_operator_adds_again_is_left(release, lines, monkeypatch):
    write = sweeping.Sweep.write

    async def write_and_revert(sweep, resource, meta, changes):
        await write(sweep, resource, meta, changes)
        await api.client.patch('things', meta['name'], {'metadata': {'finalizers': [FINALIZER]}})

    monkeypatch.setattr(sweeping.Sweep, 'write', write_and_revert)
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        assert not await release(api)
    assert lines[-1] == (
        "thing default/a: It was written again by an operator. Stop the operator.")


@testing.virtual_time
async def test_objects_that_are_being_deleted_need_an_option(release, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', 'b')
        await api.client.delete('things', 'a')
        with pytest.raises(commanding.CommandError, match=r"Being deleted: 1 \(default/a\)"):
            await release(api, force=True)
        assert await get_finalizers(api) == {'a': [FINALIZER], 'b': [FINALIZER]}
        assert await release(api, deleting=True)
        assert await get_finalizers(api) == {'b': []}
    assert any(line.startswith("Being deleted: 1 (default/a). ") for line in lines)


@testing.virtual_time
async def test_a_dry_run_writes_nothing(release, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', 'b')
        await api.client.delete('things', 'a')
        await hold(api, seconds=2)
        before = await api.client.list('things')
        assert await release(api, dry_run=True)
        assert await api.client.list('things') == before
    assert lines[1] == "things.v1.example.com: 2 to release."
    assert lines[2].startswith("It would be refused: Being deleted: 1 (default/a). ")
    assert lines[3] == "Nothing is written, as it is a dry run."


async def renew(api):
    while True:
        await asyncio.sleep(2)
        now = clocks.Clock().now().wall.strftime('%Y-%m-%dT%H:%M:%S.%fZ')
        await api.client.patch('leases', 'any', {'spec': {'renewTime': now}})


@pytest.mark.parametrize('labels', [
    {}, {'kopf.dev/sharding': 'kopf-operator', 'kopf.dev/sharding-role': 'member'}])
def test_it_is_refused_while_a_lease_is_renewed(release, lines, labels):
    @testing.virtual_time
    async def act():
        async with testing.open_api('sandbox') as api:
            await prepare(api, 'a')
            await hold(api, name='any', labels=labels)
            renewing = asyncio.create_task(renew(api))
            with pytest.raises(commanding.CommandError,
                               match="operator runs: the Lease default/any is held by 'pod'"):
                await release(api, lease='kopf-operator' if labels else 'any')
            assert await get_finalizers(api) == {'a': [FINALIZER]}
            assert await release(api, lease='kopf-operator' if labels else 'any', force=True)
            renewing.cancel()
            await asyncio.wait([renewing])
    act()
    assert lines[0] == ("Waiting, as the Lease default/any is held by 'pod'. It expires in 15 "
                        "seconds, unless it is renewed.")


@pytest.mark.parametrize('options', [
    {'name': 'other'},
    {'holder': ''},
    {'labels': {'kopf.dev/sharding': 'kopf-operator', 'kopf.dev/sharding-role': 'scheme'}},
    {'labels': {'kopf.dev/sharding': 'other', 'kopf.dev/sharding-role': 'member'}},
])
def test_other_leases_do_not_matter(release, lines, options):
    @testing.virtual_time
    async def act():
        async with testing.open_api('sandbox') as api:
            await prepare(api, 'a')
            await hold(api, **options)
            assert await release(api)
    act()
    assert lines[0] == "things.v1.example.com: 1 to release."


@testing.virtual_time
async def test_a_lease_of_an_operator_that_was_killed_expires(release):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        await hold(api, seconds=15)
        started = asyncio.get_running_loop().time()
        assert await release(api)
        assert 15 <= asyncio.get_running_loop().time() - started < 20


def make_record(*, ago):
    seen = clocks.Clock().now().wall - datetime.timedelta(seconds=ago)
    return {'lastseen': seen.isoformat(), 'lifetime': 60, 'priority': 0}


@testing.virtual_time
async def test_it_is_refused_while_a_peer_lives(release):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        await api.client.create({**PEERING, 'status': {'dead': make_record(ago=61)}})
        assert await release(api, dry_run=True)
        await api.client.patch(
            'clusterkopfpeerings', 'default', {'status': {'alive': make_record(ago=59)}})
        with pytest.raises(commanding.CommandError,
                           match="alive is in the ClusterKopfPeering 'default'"):
            await release(api)
        assert await release(api, peering='other')


@testing.virtual_time
async def test_without_the_right_to_see_leases_it_is_refused(release):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        api.sandbox.faults.add(testing.Fault(
            action='refuse', verb='list', resource='leases', status=403))
        with pytest.raises(commanding.CommandError, match="It cannot be seen whether .*--force"):
            await release(api)
        assert await release(api, lease=None)


@testing.virtual_time
async def test_only_the_namespaces_are_released(release):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        await api.client.create({'apiVersion': 'v1', 'kind': 'Namespace',
                                 'metadata': {'name': 'other'}})
        await prepare(api, 'b', namespace='other')
        assert await release(api, clusterwide=False, namespaces=['oth*'])
        assert await get_finalizers(api) == {'a': [FINALIZER], 'b': []}


@testing.virtual_time
async def test_several_kinds_are_released(release, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        await api.client.create({**GLOBE, 'metadata': {'name': 'b', 'finalizers': [FINALIZER]}})
        with pytest.raises(commanding.CommandError, match="globes.* is cluster-scoped"):
            await release(api, 'things', 'globes', clusterwide=False, namespaces=['default'])
        assert await release(api, 'things', 'globes')
        assert 'finalizers' not in (await api.client.get('globes', 'b'))['metadata']
    assert lines[-1] == "globes.v1.example.com: 1 released, 0 left."


async def test_the_progress_is_shown_on_terminals_only(capsys, monkeypatch):
    async def attempt(meta):
        pass

    metas = [{'uid': 'a'}, {'uid': 'b'}]
    await sweeping.for_each(metas, attempt, title='things')
    assert capsys.readouterr().err == ''
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    await sweeping.for_each(metas, attempt, title='things')
    assert capsys.readouterr().err == (
        '\rthings: 1 of 2\x1b[K\rthings: 2 of 2\x1b[K\r\x1b[K')


@testing.virtual_time
async def test_nothing_has_to_be_converted(release, lines):
    crd = make_crd('Thing', 'things')
    [version] = crd['spec']['versions']
    crd['spec']['versions'] = [
        {**version, 'storage': False}, {**version, 'name': 'v1alpha1', 'storage': True}]
    crd['spec']['conversion'] = {'strategy': 'Webhook', 'webhook': {
        'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://127.0.0.1:1/'}}}
    async with testing.open_api('sandbox') as api:
        await api.client.load(crd, {
            **THING, 'apiVersion': 'example.com/v1alpha1',
            'metadata': {'name': 'a', 'finalizers': [FINALIZER]}})
        assert await release(api)
    assert lines[-1] == "things.v1alpha1.example.com: 1 released, 0 left."
