import dataclasses

import pytest

from kopf._cogs.clients import errors, scanning
from kopf._cogs.structs.references import Resource
from tests._cogs.clients.servers import refuse, say


def aggregate(*groups):
    return say({'kind': 'APIGroupDiscoveryList', 'items': [
        {'metadata': {'name': name} if name else {}, 'versions': versions}
        for name, versions in groups
    ]})


def serve(version, *resources, freshness='Current'):
    return {'version': version, 'resources': list(resources), 'freshness': freshness}


THING = {
    'resource': 'things', 'singularResource': 'thing', 'scope': 'Namespaced',
    'responseKind': {'group': 'g.test', 'version': 'v1', 'kind': 'Thing'},
    'verbs': ['list', 'watch'], 'shortNames': ['th'], 'categories': ['all'],
    'subresources': [{'subresource': 'status'}, {'subresource': 'scale'}],
}
NODE = {
    'resource': 'nodes', 'singularResource': '', 'scope': 'Cluster',
    'responseKind': {'kind': 'Node'}, 'verbs': ['list'],
}
THING_OLD = [
    {'name': 'things', 'singularName': 'thing', 'namespaced': True, 'kind': 'Thing',
     'verbs': ['list', 'watch'], 'shortNames': ['th'], 'categories': ['all']},
    {'name': 'things/status', 'singularName': '', 'namespaced': True, 'kind': 'Thing', 'verbs': []},
    {'name': 'things/scale', 'singularName': '', 'namespaced': True, 'kind': 'Scale', 'verbs': []},
]
NODE_OLD = [
    {'name': 'nodes', 'singularName': '', 'namespaced': False, 'kind': 'Node', 'verbs': ['list']},
]
EXPECTED = {
    dataclasses.astuple(Resource(
        'g.test', 'v1', 'things', kind='Thing', singular='thing', shortcuts=frozenset({'th'}),
        categories=frozenset({'all'}), subresources=frozenset({'status', 'scale'}),
        namespaced=True, preferred=True, verbs=frozenset({'list', 'watch'}))),
    dataclasses.astuple(Resource(
        '', 'v1', 'nodes', kind='Node', singular='node', namespaced=False, preferred=True,
        verbs=frozenset({'list'}))),
}


def describe(findings):
    return {dataclasses.astuple(resource) for resource in findings.resources}


def name(findings):
    return {(resource.group, resource.version, resource.plural) for resource in findings.resources}


@pytest.fixture()
def new(server):
    server.script(aggregate(('', [serve('v1', NODE)])), on='/api')
    server.script(aggregate(('g.test', [serve('v1', THING)])), on='/apis')
    return server


@pytest.fixture()
def old(server):
    server.script(say({'kind': 'APIVersions', 'versions': ['v1']}), on='/api')
    server.script(say({'kind': 'APIGroupList', 'groups': [
        {'name': name, 'versions': [{'version': 'v1'}], 'preferredVersion': {'version': 'v1'}}
        for name in ['g.test', 'h.test']
    ]}), on='/apis')
    server.script(say({'resources': NODE_OLD}), on='/api/v1')
    server.script(say({'resources': THING_OLD}), on='/apis/g.test/v1')
    server.script(say({'resources': []}), on='/apis/h.test/v1')
    return server


async def test_all_is_found_in_two_requests(new, client):
    assert describe(await scanning.scan(client)) == EXPECTED
    assert len(new.requests) == 2
    assert 'v=v2;as=APIGroupDiscoveryList' in new.requests[0].headers['Accept']


async def test_the_same_is_found_in_old_apis(old, client):
    assert describe(await scanning.scan(client)) == EXPECTED


async def test_in_old_apis_only_the_groups_of_interest_are_asked_about(old, client):
    await scanning.scan(client, groups={'g.test'})
    assert {request.path for request in old.requests} == {'/apis', '/apis/g.test/v1'}


@pytest.mark.parametrize('groups, paths', [
    ({''}, {'/api'}), ({'g.test'}, {'/apis'}), ({'', 'g.test'}, {'/api', '/apis'}), (set(), set()),
])
async def test_only_what_is_needed_is_asked(new, client, groups, paths):
    await scanning.scan(client, groups=groups)
    assert {request.path for request in new.requests} == paths


async def test_other_groups_are_left_out(new, client):
    assert name(await scanning.scan(client, groups={'other.test'})) == set()


async def test_groups_are_asked_about_one_by_one(old, client):
    old.script(say({'name': 'g.test', 'versions': [{'version': 'v1'}]}), on='/apis/g.test')
    findings = await scanning.scan_groups(client, groups={'', 'g.test', 'absent.test'})
    assert describe(findings) == EXPECTED
    assert not findings.failures


async def test_the_first_version_with_a_resource_is_the_preferred_one(server, client):
    server.script(aggregate(), on='/api')
    olds = {**NODE, 'resource': 'olds'}
    server.script(
        aggregate(('g.test', [serve('v2', THING), serve('v1', THING, olds)])), on='/apis')
    findings = await scanning.scan(client)
    assert {(res.version, res.plural, res.preferred) for res in findings.resources} == {
        ('v2', 'things', True), ('v1', 'things', False), ('v1', 'olds', True)}


async def test_preferred_versions_of_old_apis_go_first(server, client):
    server.script(say({'name': 'g.test', 'preferredVersion': {'version': 'v2'}, 'versions': [
        {'version': 'v1'}, {'version': 'v2'}]}), on='/apis/g.test')
    server.script(say({'resources': THING_OLD}), on='/apis/g.test/v1')
    server.script(say({'resources': THING_OLD}), on='/apis/g.test/v2')
    findings = await scanning.scan_groups(client, groups={'g.test'})
    assert {(res.version, res.preferred) for res in findings.resources} == {
        ('v1', False), ('v2', True)}


async def test_stale_groups_do_not_hide_others(server, client):
    server.script(aggregate(('', [serve('v1', NODE)])), on='/api')
    server.script(aggregate(
        ('stale.test', [serve('v1', freshness='Stale')]),
        ('g.test', [serve('v1', THING)])), on='/apis')
    findings = await scanning.scan(client)
    assert describe(findings) == EXPECTED
    assert set(findings.failures) == {('stale.test', 'v1')}


async def test_failing_groups_do_not_hide_others(old, client):
    old.script(refuse(503, 'service unavailable'), on='/apis/h.test/v1')
    findings = await scanning.scan(client)
    assert describe(findings) == EXPECTED
    assert findings.failures == {('h.test', 'v1'): 'service unavailable'}
    assert sum(request.path == '/apis/h.test/v1' for request in old.requests) == 1


async def test_groups_whose_versions_are_unknown_fail_as_such(server, client):
    server.script(refuse(503), on='/apis/g.test')
    findings = await scanning.scan_groups(client, groups={'g.test'})
    assert set(findings.failures) == {('g.test', '')}


async def test_versions_that_are_gone_meanwhile_do_not_fail(old, client):
    old.script(refuse(404), on='/apis/h.test/v1')
    assert not (await scanning.scan(client)).failures


@pytest.mark.parametrize('path', ['/api', '/apis'])
async def test_without_any_groups_it_is_an_error(new, client, path):
    new.script(refuse(503), on=path)
    with pytest.raises(errors.APIServerError):
        await scanning.scan(client)


@pytest.mark.parametrize('version', ['v1', ''])
def test_resources_known_before_are_kept_while_their_group_fails(version):
    known = [Resource('g', 'v1', 'kept'), Resource('g', 'v2', 'maybe'), Resource('h', 'v1', 'gone')]
    findings = scanning.Findings(
        frozenset({Resource('i', 'v1', 'new')}), {('g', version): 'failed'})
    expected = {'new', 'kept', 'maybe'} if version == '' else {'new', 'kept'}
    assert {resource.plural for resource in findings.complete(known)} == expected


@pytest.mark.parametrize('answer', [
    None, [], 'x', {'versions': 5}, {'groups': 5},
])
async def test_wrong_forms_of_all_groups_are_errors(new, client, answer):
    new.script(say(answer), on='/apis')
    with pytest.raises(errors.APIServerError):
        await scanning.scan(client)


@pytest.mark.parametrize('answer', [None, [], {'resources': [{}]}, {'resources': 5}, 'x'])
async def test_wrong_forms_of_one_group_do_not_hide_others(old, client, answer):
    old.script(say(answer), on='/apis/h.test/v1')
    findings = await scanning.scan(client)
    assert describe(findings) == EXPECTED
    assert set(findings.failures) == {('h.test', 'v1')}
