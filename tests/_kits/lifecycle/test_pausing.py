import datetime

import pytest

from kopf import testing
from kopf._cogs.clients.vaults import Vault
from kopf._core.intents import pauses
from kopf._kits import commanding
from kopf._kits.lifecycle import annotating, pausing, sweeping
from tests.crds import make_crd

PAUSED = 'kopf.dev/paused'
THING = {'apiVersion': 'example.com/v1', 'kind': 'Thing'}
GLOBE = {'apiVersion': 'example.com/v1', 'kind': 'Globe'}


NOW = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)


@pytest.fixture()
def lines():
    """What the command says."""
    return []


@pytest.fixture()
def annotate(lines):
    """Run the command on the API."""
    async def annotate(api, text, *names, kind='things', **options):
        defaults = {'kind': kind, 'names': names, 'annotation': PAUSED}
        async with sweeping.begin(
                'annotated', say=lines.append, vault=Vault({'test': api.credentials})) as sweep:
            return await annotating.annotate(
                sweep, text, annotating.Options(**{**defaults, **options}),
                done=pauses.parse(text).describe() if text else "The object is not paused any more",
                known="It was paused so already" if text else "It was not paused")
    return annotate


async def prepare(api, *names, namespace='default', **metadata):
    await api.client.load(
        make_crd('Thing', 'things'), make_crd('Globe', 'globes', scope='Cluster'))
    for name in names:
        await api.client.create({**THING, 'metadata': {
            'name': name, 'namespace': namespace, **metadata}})


async def get_pauses(api, resource='things'):
    return {item['metadata']['name']: item['metadata'].get('annotations', {}).get(PAUSED)
            for item in await api.client.list(resource)}


@testing.virtual_time
async def test_objects_are_paused_and_unpaused_by_their_names(annotate, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', 'b', 'c')
        assert await annotate(api, 'x; deletion=allow', 'a', 'c')
        assert await get_pauses(api) == {
            'a': 'x; deletion=allow', 'b': None, 'c': 'x; deletion=allow'}
        assert await annotate(api, 'x; deletion=allow', 'a')
        assert await annotate(api, 'x; until=2999-12-01T08:00+01:00', 'c')
        assert await annotate(api, None, 'a', 'b')
        assert await get_pauses(api) == {
            'a': None, 'b': None, 'c': 'x; until=2999-12-01T08:00+01:00'}
    assert lines == [
        "default/a: The object is paused: x.", "default/c: The object is paused: x.",
        "default/a: It was paused so already.",
        "default/c: The object is paused until 2999-12-01 07:00:00 UTC: x.",
        "default/b: It was not paused.", "default/a: The object is not paused any more."]


@testing.virtual_time
async def test_objects_are_selected_by_their_labels_in_all_namespaces(annotate):
    async with testing.open_api('sandbox') as api:
        await api.client.create('namespaces', 'other')
        await prepare(api, 'a', 'b', labels={'app': 'db'})
        await prepare(api, 'c', labels={'app': 'db'}, namespace='other')
        await prepare(api, 'd')
        assert await annotate(api, 'x', selector='app=db', namespace='other')
        assert await get_pauses(api) == {'a': None, 'b': None, 'c': 'x', 'd': None}
        assert await annotate(api, 'x', selector='app=db', clusterwide=True)
        assert await get_pauses(api) == {'a': 'x', 'b': 'x', 'c': 'x', 'd': None}


@testing.virtual_time
async def test_objects_of_the_cluster_have_no_namespace(annotate, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        await api.client.create({**GLOBE, 'metadata': {'name': 'earth'}})
        assert await annotate(api, 'x', 'earth', kind='globe')
        assert await get_pauses(api, 'globes') == {'earth': 'x'}
    assert lines == ["earth: The object is paused: x."]


@testing.virtual_time
async def test_another_annotation_can_be_named(annotate):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        assert await annotate(api, 'x', 'a', annotation='example.com/stop')
        assert (await api.client.get('things', 'a'))['metadata']['annotations'] == {
            'example.com/stop': 'x'}


@pytest.mark.parametrize('options, message', [
    ({'kind': 'thinks', 'names': ['a']},
     "The cluster has no such resource as 'thinks'. Did you mean things.v1.example.com?"),
    ({'names': ['a', 'z']}, "There is no Thing 'z' in the namespace 'default'."),
    ({'names': ['a'], 'namespace': 'other'}, "There is no Thing 'a' in the namespace 'other'."),
    ({'names': ['z'], 'clusterwide': True}, "There is no Thing 'z'."),
    ({'selector': 'x=y'}, "The selector 'x=y' matches no Thing in the namespace 'default'."),
    ({'selector': '!!'}, "The objects cannot be annotated: "),
])
@testing.virtual_time
async def test_what_does_not_exist_is_refused_before_anything_is_written(
        annotate, options, message):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        with pytest.raises(commanding.CommandError) as e:
            await annotate(api, 'x', **options)
        assert str(e.value).startswith(message)
        assert await get_pauses(api) == {'a': None}


@testing.virtual_time
async def test_who_may_not_list_is_told_so(annotate):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a')
        api.sandbox.faults.add(testing.Fault(
            action='refuse', verb='list', resource='things', status=403))
        with pytest.raises(commanding.CommandError, match="Check your permissions to list"):
            await annotate(api, 'x', 'a')


@testing.virtual_time
async def test_what_is_refused_is_named_and_the_others_are_paused(annotate, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api, 'a', 'b')
        api.sandbox.faults.add(testing.Fault(action='refuse', verb='patch', name='a', status=403))
        assert not await annotate(api, 'x', 'a', 'b')
        assert await get_pauses(api) == {'a': None, 'b': 'x'}
    assert len([line for line in lines if line.startswith("default/a: ")]) == 1


def compose(**options):
    return pausing.compose(**{
        'reason': '', 'until': None, 'deletion': 'wait', 'now': NOW, **options})


@pytest.mark.parametrize('options, text', [
    ({}, 'true'),
    ({'reason': 'Disks'}, 'Disks'),
    ({'deletion': 'allow'}, 'deletion=allow'),
    ({'reason': 'Disks', 'until': '2999-12-01', 'deletion': 'allow'},
     'Disks; until=2999-12-01T00:00:00+00:00; deletion=allow'),
    ({'until': '2999-12-01T08:00+01:00'}, 'until=2999-12-01T07:00:00+00:00'),
])
def test_annotations_are_composed(options, text):
    assert compose(**options) == text


@pytest.mark.parametrize('options, message', [
    ({'until': 'tomorrow'}, "--until=tomorrow is no time in ISO 8601"),
    ({'until': '2001-01-01T00:00+01:00'},
     "--until=2001-01-01T00:00+01:00 is in the past: it is 2000-12-31 23:00:00+00:00."),
    ({'reason': 'until=never'}, "The reason 'until=never' would be read as something else."),
    ({'reason': 'False'}, "The reason 'False' would be read as something else."),
])
def test_what_would_be_no_pause_is_refused(options, message):
    with pytest.raises(ValueError) as e:
        compose(**options)
    assert str(e.value).startswith(message)
