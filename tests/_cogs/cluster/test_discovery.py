import asyncio
import contextlib
import logging
import re

import pytest

from kopf._cogs.clients import watching
from kopf._cogs.cluster import discovery, tracking
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.references import Resource
from tests._cogs.clients.servers import (
    drop,
    flow,
    make_error,
    make_event,
    refuse,
    say,
    show,
)
from tests._cogs.clients.test_scanning import NODE, THING, aggregate, serve

CRDS = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'
NAMESPACES = '/api/v1/namespaces'

logger = logging.getLogger('test')


@pytest.fixture()
def insights():
    return discovery.Insights()


@pytest.fixture()
def cluster(server, monkeypatch):
    """There are one CRD, its resource, and one more resource; and two namespaces."""
    monkeypatch.setattr(tracking, 'SETTLING', (0.02, 0.04, 0.06))
    monkeypatch.setattr(discovery, 'FORBIDDEN_PAUSES', (0.05,))
    monkeypatch.setattr(watching, 'MIN_INTERVAL', 0.05)
    server.script(aggregate(('', [serve('v1', NODE)])), on='/api')
    server.script(aggregate(('g.test', [serve('v1', THING)])), on='/apis')
    set_group(server, 'g.test', 'things')
    server.script(show('things.g.test'), on=CRDS)
    server.script(show('ns1', 'ns2'), on=NAMESPACES)
    server.script(flow(), on='watch')
    return server


def set_group(server, group, *plurals):
    server.script(say({'name': group, 'versions': [{'version': 'v1'}]}), on=f'/apis/{group}')
    server.script(say({'resources': [
        {'name': plural, 'kind': plural.title(), 'namespaced': True, 'verbs': []}
        for plural in plurals
    ]}), on=f'/apis/{group}/v1')


@pytest.fixture()
def observe(client, settings, insights):
    @contextlib.asynccontextmanager
    async def run(fn, **kwargs):
        task = asyncio.create_task(fn(
            client=client, settings=settings, insights=insights, logger=logger, **kwargs))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return run


@pytest.fixture()
def observe_resources(observe):
    return lambda groups=None: observe(discovery.observe_resources, groups=groups)


@pytest.fixture()
def observe_namespaces(observe):
    return lambda *patterns, clusterwide=False: observe(
        discovery.observe_namespaces, clusterwide=clusterwide, patterns=patterns)


def name(insights):
    return {resource.plural for resource in insights.resources or ()}


# Insights.


def test_subscribers_are_told_of_changes(insights):
    event = asyncio.Event()
    insights.subscribe(event)
    insights.set_resources([Resource('g', 'v', 'a')])
    assert event.is_set()


def test_subscribers_are_told_of_changed_details(insights):
    insights.set_resources([Resource('g', 'v', 'a')])
    event = asyncio.Event()
    insights.subscribe(event)
    insights.set_resources([Resource('g', 'v', 'a', subresources=frozenset({'status'}))])
    assert event.is_set()


def test_subscribers_are_not_told_of_the_same(insights):
    insights.set_resources([Resource('g', 'v', 'a')])
    insights.set_namespaces([None])
    event = asyncio.Event()
    insights.subscribe(event)
    insights.set_resources([Resource('g', 'v', 'a')])
    insights.set_namespaces([None])
    assert not event.is_set()


def test_those_who_unsubscribed_are_not_told(insights):
    event = asyncio.Event()
    insights.subscribe(event)
    insights.unsubscribe(event)
    insights.set_namespaces([None])
    assert not event.is_set()


# Resources.


async def test_resources_are_known_soon(cluster, observe_resources, insights, until):
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})


async def test_resources_of_other_groups_are_not_needed(
        cluster, observe_resources, insights, until,
):
    async with observe_resources({'g.test'}):
        await until(lambda: name(insights) == {'things'})


async def test_nothing_is_asked_if_nothing_is_needed(cluster, observe_resources, insights, until):
    async with observe_resources(set()) as task:
        await task
    assert insights.resources == frozenset()
    assert not cluster.requests


async def test_crds_are_not_watched_where_there_can_be_none(
        cluster, observe_resources, until, insights,
):
    async with observe_resources({'', 'apps'}):
        await until(lambda: name(insights) == {'nodes'})
    assert all(request.path != CRDS for request in cluster.requests)


@pytest.mark.parametrize('type', ['ADDED', 'MODIFIED'])
async def test_new_kinds_are_noticed(cluster, observe_resources, insights, until, type):
    cluster.script(flow(0.1, make_event(type, 'others.g.test', '101')), on=f'watch {CRDS}')
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})
        set_group(cluster, 'g.test', 'things', 'others')
        await until(lambda: name(insights) == {'nodes', 'things', 'others'})


async def test_kinds_that_are_served_late_are_noticed(cluster, observe_resources, insights, until):
    cluster.script(flow(make_event('ADDED', 'lates.h.test', '101')), on=f'watch {CRDS}')
    cluster.script(*[refuse(404)] * 6, say({
        'name': 'h.test', 'versions': [{'version': 'v1'}]}), on='/apis/h.test')
    cluster.script(say({'resources': [
        {'name': 'lates', 'kind': 'Late', 'namespaced': True}]}), on='/apis/h.test/v1')
    async with observe_resources():
        await until(lambda: 'lates' in name(insights))


async def test_vanishing_kinds_are_noticed(cluster, observe_resources, insights, until):
    cluster.script(flow(0.1, make_event('DELETED', 'things.g.test', '101')), on=f'watch {CRDS}')
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})
        cluster.script(refuse(404), on='/apis/g.test')
        await until(lambda: name(insights) == {'nodes'})


async def test_kinds_are_known_to_be_deleted_even_if_the_discovery_is_ahead_of_the_watch(
        cluster, observe_resources, insights, until, monkeypatch,
):
    monkeypatch.setattr(tracking, 'SETTLING', (0.02, 0.04, 5.0))
    cluster.script(show('things.g.test'), on=CRDS)
    cluster.script(flow(
        0.05, make_event('MODIFIED', 'things.g.test', '101'),
        0.2, make_event('DELETED', 'things.g.test', '102')), on=f'watch {CRDS}')
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})
        cluster.script(refuse(404), on='/apis/g.test')
        await until(lambda: name(insights) == {'nodes'})
    assert [resource.plural for resource in insights.deleted] == ['things']


async def test_kinds_that_are_not_served_for_a_moment_are_kept(
        cluster, observe_resources, insights, until, monkeypatch,
):
    monkeypatch.setattr(tracking, 'SETTLING', (0.02, 0.04, 5.0))
    cluster.script(show('things.g.test'), on=CRDS)
    cluster.script(flow(0.05, make_event('MODIFIED', 'things.g.test', '101')), on=f'watch {CRDS}')
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})
        cluster.script(refuse(404), on='/apis/g.test')
        await until(lambda: sum(req.path == '/apis/g.test' for req in cluster.requests) == 2)
        assert name(insights) == {'nodes', 'things'}


async def test_kinds_that_vanished_while_not_watching_are_noticed(
        cluster, observe_resources, insights, until,
):
    cluster.script(show('things.g.test'), show(), on=CRDS)
    cluster.script(flow(0.1, make_error(410)), flow(), on=f'watch {CRDS}')
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})
        cluster.script(refuse(404), on='/apis/g.test')
        await until(lambda: name(insights) == {'nodes'})


async def test_only_the_changed_group_is_asked_about(cluster, observe_resources, insights, until):
    cluster.script(flow(make_event('ADDED', 'others.h.test', '101')), on=f'watch {CRDS}')
    set_group(cluster, 'h.test', 'others')
    async with observe_resources():
        await until(lambda: 'others' in name(insights))
    paths = [request.path for request in cluster.requests]
    assert paths.count('/apis') == paths.count('/api') == 1
    assert '/apis/g.test' not in paths


async def test_other_kinds_of_a_failing_group_are_kept(cluster, observe_resources, insights, until):
    cluster.script(flow(0.1, make_event('ADDED', 'others.g.test', '101')), on=f'watch {CRDS}')
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})
        cluster.script(refuse(503), on='/apis/g.test/v1')
        await until(lambda: sum(req.path == '/apis/g.test/v1' for req in cluster.requests) >= 3)
        assert name(insights) == {'nodes', 'things'}
        set_group(cluster, 'g.test', 'things', 'others')
        await until(lambda: name(insights) == {'nodes', 'things', 'others'})


async def test_failing_groups_are_warned_of_and_asked_about_again(
        cluster, observe_resources, insights, until, caplog,
):
    cluster.script(aggregate(
        ('g.test', [serve('v1', THING)]), ('h.test', [serve('v1', freshness='Stale')])), on='/apis')
    set_group(cluster, 'h.test', 'metrics')
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things', 'metrics'})
    assert caplog.messages == ["Resources of h.test/v1 cannot be found: its server does not answer"]


async def test_an_unreachable_api_is_waited_for(
        cluster, observe_resources, insights, until, caplog,
):
    cluster.script(drop(), refuse(503), aggregate(), on='/api')
    async with observe_resources():
        await until(lambda: name(insights) == {'things'})
    assert len([rec for rec in caplog.records if rec.levelname == 'WARNING']) == 1


@pytest.mark.parametrize('path', ['/api', '/apis'])
async def test_rights_for_discovery_are_waited_for(
        cluster, observe_resources, insights, until, caplog, settings, path,
):
    settings.networking.error_backoffs = (0.01,)
    answer = aggregate(('', [serve('v1', NODE)]), ('g.test', [serve('v1', THING)]))
    text = f'forbidden: User "x" cannot get path "{path}"'
    cluster.script(refuse(403, text), refuse(403, text), answer, on=path)
    async with observe_resources():
        await until(lambda: {'nodes', 'things'} <= name(insights))
    assert caplog.messages == [
        f"Scanning of the resources has failed, and will be tried again: {text}. Print the roles "
        "that the operator needs: kopf rbac"]


async def test_without_rights_for_crds_it_is_scanned_once(
        cluster, observe_resources, insights, until, caplog,
):
    cluster.script(refuse(403), on=CRDS)
    async with observe_resources():
        await until(lambda: name(insights) == {'nodes', 'things'})
        await until(lambda: sum(request.path == CRDS for request in cluster.requests) >= 3)
    assert len(caplog.messages) == 1
    assert "no permission to watch CRDs" in caplog.messages[0]


async def test_rights_given_later_are_used(cluster, observe_resources, insights, until):
    cluster.script(refuse(403), refuse(403), show('others.h.test'), on=CRDS)
    cluster.script(flow(make_event('MODIFIED', 'others.h.test', '101')), on=f'watch {CRDS}')
    set_group(cluster, 'h.test', 'others')
    async with observe_resources():
        await until(lambda: 'others' in name(insights))


async def test_with_scanning_disabled_it_is_scanned_once(
        cluster, observe_resources, insights, settings,
):
    settings.scanning.disabled = True
    async with observe_resources() as task:
        await task
    assert name(insights) == {'nodes', 'things'}
    assert all(request.path != CRDS for request in cluster.requests)


async def test_rejected_credentials_end_it(cluster, observe_resources):
    cluster.script(refuse(401), on=CRDS)
    cluster.script(refuse(401), on='/api')
    async with observe_resources() as task:
        with pytest.raises(LoginError):
            await task


# Namespaces.


async def test_the_whole_cluster_needs_no_requests(cluster, observe_namespaces, insights):
    async with observe_namespaces(clusterwide=True) as task:
        await task
    assert insights.namespaces == {None}
    assert not cluster.requests


@pytest.mark.parametrize('patterns, expected', [
    (['ns1'], {'ns1'}), (['ns*'], {'ns1', 'ns2'}), (['!ns1'], {'ns2'}), (['other'], set()),
    (['ns1', 'ns2', 'ns3'], {'ns1', 'ns2'}),
])
async def test_existing_namespaces_that_match_are_known(
        cluster, observe_namespaces, insights, until, patterns, expected,
):
    async with observe_namespaces(*patterns):
        await until(lambda: insights.namespaces == expected)


async def test_absent_namespaces_are_warned_of_once(
        cluster, observe_namespaces, insights, until, caplog,
):
    cluster.script(flow(0.05, make_event('ADDED', 'ns3', '101')), on='watch')
    async with observe_namespaces('ns1', 'absent', 'ns3', 'ab*'):
        await until(lambda: insights.namespaces == {'ns1', 'ns3'})
    warnings = [record.getMessage() for record in caplog.records if 'No such' in record.msg]
    assert len(warnings) == 1
    assert warnings[0].startswith("No such namespace: absent, ns3. ")


async def test_patterns_are_warned_of_if_none_of_them_matches(
        cluster, observe_namespaces, insights, until, caplog,
):
    async with observe_namespaces('absent', 'ab*', re.compile('x')):
        await until(lambda: insights.namespaces == set())
    assert "No such namespace: ab*, absent, re.compile('x'). It will be served" in caplog.text


async def test_new_namespaces_are_noticed(cluster, observe_namespaces, insights, until):
    cluster.script(flow(
        0.05, make_event('ADDED', 'ns3', '101'), make_event('ADDED', 'x', '102')), on='watch')
    async with observe_namespaces('ns*'):
        await until(lambda: insights.namespaces == {'ns1', 'ns2', 'ns3'})


async def test_namespaces_being_deleted_are_served_till_they_are_gone(
        cluster, observe_namespaces, insights, until,
):
    cluster.script(flow(
        make_event('MODIFIED', 'ns1', '101'), 0.1, make_event('DELETED', 'ns2', '102')), on='watch')
    async with observe_namespaces('ns*'):
        await until(lambda: insights.namespaces == {'ns1', 'ns2'})
        await until(lambda: insights.namespaces == {'ns1'})


async def test_namespaces_that_vanished_while_not_watching_are_noticed(
        cluster, observe_namespaces, insights, until,
):
    cluster.script(show('ns1', 'ns2'), show('ns2'), on=NAMESPACES)
    cluster.script(flow(0.05, make_error(410)), flow(), on='watch')
    async with observe_namespaces('ns*'):
        await until(lambda: insights.namespaces == {'ns1', 'ns2'})
        await until(lambda: insights.namespaces == {'ns2'})


async def test_without_rights_exact_names_are_assumed_to_exist(
        cluster, observe_namespaces, insights, until, caplog,
):
    cluster.script(refuse(403), on=NAMESPACES)
    async with observe_namespaces('nsA', 'ns*', 'nsB', '!x'):
        await until(lambda: insights.namespaces == {'nsA', 'nsB'})
        await until(lambda: len(cluster.requests) >= 3)
    assert caplog.messages == [
        "There is no permission to watch namespaces: only those are served that are named exactly: "
        "nsA, nsB."]


async def test_rights_taken_away_later_do_not_matter(cluster, observe_namespaces, insights, until):
    cluster.script(flow(0.05, make_error(410)), on='watch')
    cluster.script(show('ns1', 'ns2'), refuse(403), on=NAMESPACES)
    async with observe_namespaces('ns*'):
        await until(lambda: len(cluster.lists) >= 3)
        assert insights.namespaces == {'ns1', 'ns2'}


async def test_with_scanning_disabled_namespaces_are_listed_once(
        cluster, observe_namespaces, insights, settings,
):
    settings.scanning.disabled = True
    async with observe_namespaces('ns*') as task:
        await task
    assert insights.namespaces == {'ns1', 'ns2'}
    assert len(cluster.requests) == 1


async def test_with_scanning_disabled_and_no_rights_exact_names_are_assumed(
        cluster, observe_namespaces, insights, settings,
):
    settings.scanning.disabled = True
    cluster.script(refuse(403), on=NAMESPACES)
    async with observe_namespaces('ns*', 'ns1') as task:
        await task
    assert insights.namespaces == {'ns1'}
