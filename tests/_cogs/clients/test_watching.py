import asyncio
import json
import logging

import pytest

from kopf._cogs.aiokits import pulses
from kopf._cogs.clients import api, errors, screening, shardselectors, splitting, streaks, watching
from kopf._cogs.structs import credentials
from tests._cogs.clients.servers import (
    drop,
    flow,
    hang,
    make_bookmark,
    make_error,
    make_event,
    make_initial_end,
    make_object,
    refuse,
    say,
    say_raw,
    show,
)

WATCH = 'watch'


def get_warnings(caplog):
    return [rec.getMessage() for rec in caplog.records if rec.levelno >= logging.WARNING]


async def test_objects_are_listed_and_then_changes_follow(server, watch, sink):
    server.script(show('a', 'b'))
    server.script(
        flow(make_event('MODIFIED', 'a', '101'), make_event('DELETED', 'b', '102')), on=WATCH)
    async with watch():
        await sink.wait('DELETED', 'b', '102')
        assert sink.seen == [
            ('begin',), ('listed', 'a'), ('listed', 'b'), ('end',),
            ('MODIFIED', 'a', '101'), ('DELETED', 'b', '102'),
        ]


async def test_lists_are_consistent_and_streams_go_on_from_them(server, watch, sink, until):
    server.script(show(version='123'))
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: bool(server.watches))
        assert 'resourceVersion' not in server.lists[0].query
        assert server.watches[0].query['resourceVersion'] == '123'
        assert server.watches[0].query['allowWatchBookmarks'] == 'true'


async def test_listed_objects_have_their_kind_and_version(server, watch, sink):
    server.script(show('a'))
    server.script(flow(), on=WATCH)
    async with watch():
        await sink.wait('end')
        assert sink.bodies[0]['kind'] == 'Thing'
        assert sink.bodies[0]['apiVersion'] == 'g.test/v1'


async def test_cancelling_ends_it_and_is_logged(server, watch, sink, caplog):
    caplog.set_level(logging.DEBUG)
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch(namespace='ns1') as task:
        await sink.wait('end')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert "Starting the watch-stream for things.v1.g.test in 'ns1'." in caplog.messages
    assert "Stopping the watch-stream for things.v1.g.test in 'ns1'." in caplog.messages


async def test_the_whole_cluster_is_named_in_the_log(server, watch, sink, caplog):
    caplog.set_level(logging.DEBUG)
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch():
        await sink.wait('end')
        assert "Starting the watch-stream for things.v1.g.test cluster-wide." in caplog.messages


async def test_a_namespace_is_listed_and_watched_alone(server, watch, until):
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch(namespace='ns1'):
        await until(lambda: bool(server.watches))
        assert {req.path for req in server.requests} == {'/apis/g.test/v1/namespaces/ns1/things'}


@pytest.mark.parametrize('cut', [b'\n', b'"', b':', b'{"type'])
async def test_lines_may_be_split_anywhere(server, watch, sink, cut):
    text = make_event('ADDED', 'a', '101') + make_event('ADDED', 'b', '102')
    head, tail = text.split(cut, 1)
    server.script(show())
    server.script(flow(head, 0.01, cut + tail), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '102')
        assert sink.seen[2:] == [('ADDED', 'a', '101'), ('ADDED', 'b', '102')]


async def test_a_line_of_megabytes_is_passed_on(server, watch, sink):
    line = make_event('ADDED', 'a', '101').replace(b'"uid-a"', b'"' + b'x' * 5_000_000 + b'"')
    server.script(show())
    server.script(flow(line), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'a', '101')
        assert len(sink.bodies[0]['metadata']['uid']) == 5_000_000


async def test_a_line_without_an_end_is_given_up(server, watch, sink, monkeypatch, caplog):
    original = splitting.LineSplitter
    monkeypatch.setattr(splitting, 'LineSplitter', lambda: original(limit=1000))
    server.script(show())
    server.script(flow(b'x' * 5000), flow(), on=WATCH)
    async with watch():
        await sink.wait('end', count=2)
        assert "longer than 1000 bytes" in get_warnings(caplog)[0]


async def test_bookmarks_move_on_where_the_stream_is_continued(server, watch, until):
    server.script(show(version='100'))
    server.script(flow(make_bookmark('150'), then='end'), flow(), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1].query['resourceVersion'] == '150'


async def test_a_stream_that_ends_is_continued_without_a_list(server, watch, sink, caplog):
    caplog.set_level(logging.INFO)
    server.script(show('a'))
    server.script(
        flow(make_event('MODIFIED', 'a', '101'), then='end'),
        flow(make_event('MODIFIED', 'a', '102')), on=WATCH)
    async with watch():
        await sink.wait('MODIFIED', 'a', '102')
        assert len(server.lists) == 1
        assert server.watches[1].query['resourceVersion'] == '101'
        assert not caplog.messages


async def test_streams_are_not_repeated_faster_than_allowed(server, watch, settings, until):
    settings.watching.reconnect_backoff = 0.2
    server.script(show())
    server.script(flow(make_bookmark('101'), then='end'), flow(), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1].time - server.watches[0].time >= 0.2


async def test_a_dropped_connection_is_continued_from_the_last_event(server, watch, sink, caplog):
    caplog.set_level(logging.INFO)
    server.script(show(version='100'), show(version='101'))
    server.script(
        flow(make_event('ADDED', 'a', '101'), then='drop'),
        flow(make_event('ADDED', 'b', '102')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '102')
        assert server.watches[1].query['resourceVersion'] == '101'
        assert sink.seen.count(('begin',)) == 1
        assert not caplog.messages  # it is usual that connections are dropped


@pytest.mark.parametrize('then', ['drop', 'end'])
async def test_half_a_line_is_ignored_and_comes_again_as_a_whole(server, watch, sink, then):
    line = make_event('ADDED', 'b', '102')
    server.script(show(version='100'), show(version='102'))
    server.script(
        flow(make_event('ADDED', 'a', '101'), line[:30], then=then), flow(line), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '102')
        assert sink.seen == [('begin',), ('end',), ('ADDED', 'a', '101'), ('ADDED', 'b', '102')]


async def test_a_silent_stream_is_made_anew(server, watch, sink, settings):
    settings.watching.inactivity_timeout = 0.1
    server.script(show(version='100'), show(version='101'))
    server.script(
        flow(make_event('ADDED', 'a', '101')), flow(make_event('ADDED', 'b', '102')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '102')
        assert server.watches[1].query['resourceVersion'] == '101'


async def test_bytes_without_events_are_silence_too(server, watch, until, settings):
    settings.watching.inactivity_timeout = 0.1
    server.script(show())
    server.script(flow(*[b' ', 0.03] * 100), flow(), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1].time - server.watches[0].time < 3


async def test_bookmarks_keep_the_stream_alive(server, watch, until, settings):
    settings.watching.inactivity_timeout = 0.6
    chunks = [item for n in range(6) for item in [make_bookmark(f'{101 + n}'), 0.2]]
    server.script(show())
    server.script(flow(*chunks, then='end'), flow(), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1].query['resourceVersion'] == '106'


async def test_a_server_that_never_answers_is_silence_too(server, watch, until, settings, caplog):
    settings.watching.inactivity_timeout = 0.05
    server.script(show())
    server.script(hang(), flow(), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        assert "nothing has come for 0.05s" in get_warnings(caplog)[0]


async def test_the_client_side_timeout_ends_the_stream_quietly(
        server, watch, until, settings, caplog,
):
    caplog.set_level(logging.INFO)
    settings.watching.client_timeout = 0.05
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 3)
        assert len(server.lists) == 1
        assert not caplog.messages


async def test_the_server_side_timeout_is_asked_of_the_server(server, watch, until, settings):
    settings.watching.server_timeout = 123.4
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: bool(server.watches))
        assert server.watches[0].query['timeoutSeconds'] == '123'


@pytest.mark.parametrize('limit', [0, -1, float('inf')])
async def test_zero_and_infinity_are_no_limits(server, watch, sink, settings, limit):
    settings.watching.server_timeout = settings.watching.client_timeout = limit
    settings.watching.inactivity_timeout = settings.networking.request_timeout = limit
    settings.watching.connect_timeout = settings.networking.connect_timeout = limit
    server.script(show(version='100'))
    server.script(flow(0.1, make_event('ADDED', 'a', '101')), on=WATCH)
    pulse = pulses.Pulse()
    async with watch(pulse=pulse):
        await sink.wait('ADDED', 'a', '101')
        assert len(server.watches) == 1
        assert 'timeoutSeconds' not in server.watches[0].query
        assert not pulse.is_late(asyncio.get_running_loop().time() + 1e6)


async def test_by_default_the_server_decides_on_its_timeout(server, watch, until):
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: bool(server.watches))
        assert 'timeoutSeconds' not in server.watches[0].query


@pytest.mark.parametrize('expired', [
    pytest.param(flow(make_error(410, reason='Expired')), id='event'),
    pytest.param(refuse(410, reason='Expired'), id='response'),
])
async def test_objects_are_listed_again_when_the_stream_is_too_old(
        server, watch, sink, expired, caplog,
):
    caplog.set_level(logging.INFO)
    server.script(show('a', version='100'), show('b', version='200'))
    server.script(
        flow(make_event('ADDED', 'c', '150'), then='end'), expired,
        flow(make_event('ADDED', 'd', '201')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'd', '201')
        assert sink.seen == [
            ('begin',), ('listed', 'a'), ('end',), ('ADDED', 'c', '150'),
            ('begin',), ('listed', 'b'), ('end',), ('ADDED', 'd', '201'),
        ]
        assert server.watches[2].query['resourceVersion'] == '200'
        assert not caplog.messages  # it is usual that they are too old


async def test_endless_expirations_are_backed_off(server, watch, until, settings, caplog):
    settings.networking.error_backoffs = [0.1] * 10
    server.script(show())
    server.script(flow(make_error(410)), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 4)
        assert server.watches[3].time - server.watches[0].time >= 0.3
        assert len(get_warnings(caplog)) == 1


@pytest.mark.parametrize('failure', [
    pytest.param(refuse(403), id='403'),
    pytest.param(refuse(429), id='429'),
    pytest.param(refuse(500), id='500'),
    pytest.param(refuse(503), id='503'),
    pytest.param(refuse(418), id='418'),
    pytest.param(say_raw(b'<html>', status=502), id='html'),
    pytest.param(drop(), id='drop'),
    pytest.param(flow(make_error(403)), id='event-403'),
    pytest.param(flow(make_error(429)), id='event-429'),
    pytest.param(flow(make_error(500)), id='event-500'),
    pytest.param(flow(make_error(0)), id='event-without-code'),
    pytest.param(flow(b'garbage\n'), id='garbage'),
    pytest.param(flow(b'[]\n'), id='list'),
    pytest.param(flow(b'123\n'), id='number'),
    pytest.param(flow(b'{"type": "ADDED"}\n'), id='no-object'),
    pytest.param(flow(b'{"type": "ADDED", "object": null}\n'), id='null-object'),
    pytest.param(flow(b'{"type": "ADDED", "object": {}}\n'), id='no-metadata'),
    pytest.param(flow(b'\xff\xfe\n'), id='not-unicode'),
    pytest.param(flow(then='end'), id='end-at-once'),
    pytest.param(flow(then='drop'), id='drop-at-once'),
])
async def test_any_failure_of_streams_is_survived_with_one_warning(
        server, watch, sink, failure, caplog, monkeypatch,
):
    async def work(request):  # until here, no stream lasts long enough, however slow the machine is
        monkeypatch.setattr(watching, 'PROVEN_AFTER', 0.1)
        return await flow(make_event('ADDED', 'b', '101'))(request)

    monkeypatch.setattr(watching, 'PROVEN_AFTER', 1000)
    caplog.set_level(logging.INFO)
    server.script(show('a'))
    server.script(failure, failure, failure, work, on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '101')
        async with asyncio.timeout(20):
            while len(caplog.messages) < 2:
                await asyncio.sleep(0.01)
        assert [rec.levelname for rec in caplog.records] == ['WARNING', 'INFO']
        assert "Watching of things.v1.g.test cluster-wide has failed" in caplog.messages[0]
        assert "Watching of things.v1.g.test cluster-wide works again" in caplog.messages[1]


@pytest.mark.parametrize('failure', [
    pytest.param(refuse(403), id='403'),
    pytest.param(refuse(404), id='404'),
    pytest.param(refuse(410), id='410'),
    pytest.param(refuse(429, 'storage is (re)initializing'), id='429'),
    pytest.param(refuse(500), id='500'),
    pytest.param(drop(), id='drop'),
    pytest.param(say_raw(b'garbage'), id='garbage'),
    pytest.param(say_raw(b''), id='nothing'),
    pytest.param(say_raw(b'{'), id='half'),
    pytest.param(say({}), id='no-metadata'),
    pytest.param(say({'metadata': {'resourceVersion': '1'}, 'items': 1}), id='no-items'),
    pytest.param(say_raw(b'{"metadata": {"resourceVersion": "1"}, "items": [{"meta'), id='cut'),
])
async def test_any_failure_of_lists_is_survived_with_one_warning(
        server, watch, sink, failure, caplog, until,
):
    caplog.set_level(logging.INFO)
    server.script(failure, failure, failure, show('a'))
    server.script(flow(make_event('ADDED', 'b', '101')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '101')
        assert sink.seen[-4:] == [('begin',), ('listed', 'a'), ('end',), ('ADDED', 'b', '101')]
        assert sink.seen.count(('end',)) == 1
        assert len(get_warnings(caplog)) == 1


@pytest.mark.parametrize('status', [404, 429])
async def test_passing_failures_are_not_warned_of_at_once(server, watch, sink, caplog, status):
    caplog.set_level(logging.INFO)
    server.script(refuse(status), show('a'))
    server.script(flow(make_event('ADDED', 'b', '101')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '101')
        assert not caplog.messages


async def test_a_kind_that_was_gone_is_listed_again(server, watch, sink):
    server.script(show('a', version='100'), show('b', version='90'))
    server.script(
        flow(make_event('ADDED', 'c', '101'), then='end'), refuse(404), flow(), on=WATCH)
    async with watch():
        await sink.wait('listed', 'b')


async def test_repeated_failures_are_backed_off_by_the_settings(server, watch, until, settings):
    settings.networking.error_backoffs = [0.1, 0.2, 0.3]
    server.script(refuse(500), refuse(500), refuse(500), show())
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: bool(server.watches))
        times = [req.time for req in server.lists]
        assert times[1] - times[0] >= 0.1
        assert times[2] - times[1] >= 0.2
        assert times[3] - times[2] >= 0.3


async def test_retry_after_is_respected(server, watch, until):
    server.script(refuse(429, headers={'Retry-After': '1'}), show())
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: bool(server.watches))
        assert server.lists[1].time - server.lists[0].time >= 1


async def test_garbage_makes_a_list_when_it_does_not_pass(server, watch, sink):
    server.script(show('a'))
    server.script(flow(b'garbage\n'), flow(b'garbage\n'), flow(), on=WATCH)
    async with watch():
        await sink.wait('end', count=2)
        assert server.watches[1].query['resourceVersion'] == '100'


async def test_unknown_types_of_events_are_ignored(server, watch, sink):
    server.script(show())
    server.script(
        flow(make_event('NOVELTY', 'a', '101'), make_event('ADDED', 'b', '102')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '102')
        assert sink.seen == [('begin',), ('end',), ('ADDED', 'b', '102')]


async def test_rejected_credentials_end_it(server, watch):
    server.script(refuse(401))
    async with watch() as task:
        with pytest.raises(credentials.LoginError):
            await task


async def test_errors_that_are_asked_for_are_raised(server, watch):
    server.script(refuse(403))
    async with watch(raising=(errors.APIForbiddenError,)) as task:
        with pytest.raises(errors.APIForbiddenError):
            await task


async def test_after_an_outage_a_restored_database_is_noticed(server, watch, sink):
    server.script(show('a', version='100'), show(version='50'), show('b', version='50'))
    server.script(flow(make_event('ADDED', 'c', '120'), then='drop'), flow(), on=WATCH)
    async with watch():
        await sink.wait('end', count=2)
        assert sink.seen == [
            ('begin',), ('listed', 'a'), ('end',), ('ADDED', 'c', '120'),
            ('restored',), ('listed', 'b'), ('end',),
        ]
        assert server.lists[1].query['limit'] == '1'


async def test_after_an_outage_the_stream_is_continued_if_nothing_was_restored(server, watch, sink):
    server.script(show('a', version='100'), show(version='130'))
    server.script(
        flow(make_event('ADDED', 'c', '120'), then='drop'), refuse(503),
        flow(make_event('ADDED', 'd', '125')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'd', '125')
        assert sink.seen == [
            ('begin',), ('listed', 'a'), ('end',), ('ADDED', 'c', '120'), ('ADDED', 'd', '125'),
        ]
        assert server.watches[2].query['resourceVersion'] == '120'


async def test_a_restored_database_is_noticed_by_the_next_watch_of_the_same_pulse(
        server, watch, sink):
    server.script(show(version='100'), show(version='50'))
    server.script(flow(), flow(), on=WATCH)
    pulse = pulses.Pulse()
    async with watch(pulse=pulse):
        await sink.wait('end')
    async with watch(pulse=pulse):
        await sink.wait('end', count=2)
    assert sink.seen == [('begin',), ('end',), ('restored',), ('end',)]


async def test_a_bookmark_of_the_past_makes_a_list(server, watch, sink):
    server.script(show(version='100'), show(version='50'))
    server.script(flow(make_bookmark('40')), flow(), on=WATCH)
    async with watch():
        await sink.wait('restored')


async def test_versions_that_are_no_numbers_are_only_passed_back(server, watch, sink):
    server.script(show(version='xyz'))
    server.script(
        flow(make_event('ADDED', 'a', 'opq'), make_bookmark('abc'), then='end'), flow(), on=WATCH)
    async with watch():
        async with asyncio.timeout(20):
            while len(server.watches) < 2:
                await asyncio.sleep(0.01)
        assert server.watches[1].query['resourceVersion'] == 'abc'
        assert sink.seen.count(('begin',)) == 1


async def test_selectors_go_to_both_lists_and_streams(server, watch, settings, until):
    settings.watching.label_selectors['things'] = 'a=b'
    settings.watching.label_selectors[lambda resource: True] = 'c'
    settings.watching.label_selectors['others'] = 'z'
    settings.watching.field_selectors['g.test', 'things'] = 'metadata.name=x'
    settings.watching.shard_selectors['things'] = 'first'
    settings.watching.shard_selectors['g.test', 'v1', 'things'] = 'second'
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: bool(server.watches))
        for request in server.requests:
            assert request.query['labelSelector'] == 'a=b,c'
            assert request.query['fieldSelector'] == 'metadata.name=x'
            assert request.query['shardSelector'] == 'first'


def select(*names):
    """Select exactly these objects."""
    hashes = [shardselectors.hash_text(f'uid-{name}') for name in names]
    return shardselectors.make_selector([(value, value + 1) for value in hashes])


@pytest.mark.parametrize('streaming', [False, True])
async def test_objects_are_selected_by_the_server_in_both_lists_and_streams(
        server, watch, sink, settings, until, streaming):
    settings.watching.initial_streaming = streaming
    sink.select = lambda *, anew: select('a', 'b') if anew else select('a')
    server.script(show('a', 'b'))
    beginning = [make_event('ADDED', 'a', '90'), make_initial_end('100')] if streaming else []
    server.script(flow(*beginning, make_event('MODIFIED', 'a', '101'), then='end'), flow(),
                  on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        assert [request.query['shardSelector'] for request in server.requests] == [
            select('a', 'b').query, *([] if streaming else [select('a').query]),
            select('a').query]
        assert sink.seen[-1] == ('MODIFIED', 'a', '101')


async def test_shards_of_the_settings_precede(server, watch, sink, settings, until):
    settings.watching.shard_selectors['things'] = 'first'
    sink.select = lambda *, anew: select('a')
    server.script(show('a', 'b'))
    server.script(flow(), on=WATCH)
    async with watch():
        await until(lambda: bool(server.watches))
        assert {request.query['shardSelector'] for request in server.requests} == {'first'}
        assert sink.seen == [('begin',), ('listed', 'a'), ('listed', 'b'), ('end',)]


@pytest.mark.parametrize('streaming', [False, True])
async def test_all_objects_are_listed_again_if_the_server_does_not_select(
        server, watch, sink, settings, caplog, streaming):
    caplog.set_level(logging.INFO)
    settings.watching.initial_streaming = streaming
    sink.select = lambda *, anew: select('a')
    server.script(show('a', 'b'))
    server.script(flow(
        *([make_event('ADDED', 'a', '90'), make_event('ADDED', 'b', '95'), make_initial_end('100')]
          if streaming else []), make_event('MODIFIED', 'a', '101')), on=WATCH)
    async with watch():
        await sink.wait('MODIFIED', 'a', '101')
        assert sink.seen == [('begin',), ('listed', 'a'), ('begin',), ('listed', 'a'),
                             ('listed', 'b'), ('end',), ('MODIFIED', 'a', '101')]
        assert [bool(request.query.get('shardSelector')) for request in server.requests] == [
            True, *[False] * (1 if streaming else 2)]
        assert caplog.messages == [
            "The API server does not select the objects of things.v1.g.test cluster-wide by "
            "shards, so all of them are watched: objects of other shards come, too"]


@pytest.mark.parametrize('length', [0, screening.MIN_LENGTH])
async def test_all_objects_are_listed_again_if_a_stream_is_not_selected(
        server, watch, sink, length):
    sink.select = lambda *, anew: select('a')
    sink.screen = lambda type, body: body['metadata']['name'] == 'b'
    server.script(show('a'), show('a', 'b', 'c'))
    event = make_event('MODIFIED', 'b', '101').replace(b' ', b'')
    event = event.replace(b'}}}', b'},"spec":"' + b'x' * length + b'"}}')
    server.script(flow(event), flow(make_event('ADDED', 'd', '102')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'd', '102')
        assert sink.seen == [('begin',), ('listed', 'a'), ('end',), ('begin',), ('listed', 'a'),
                             ('listed', 'b'), ('listed', 'c'), ('end',), ('ADDED', 'd', '102')]


@pytest.mark.parametrize(('status', 'message'), [
    (400, "no"), (414, "no"), (500, "invalid shard selector: no")])
async def test_all_objects_are_listed_if_the_server_refuses_to_select(
        server, watch, sink, caplog, status, message):
    sink.select = lambda *, anew: select('a')
    server.script(refuse(status, message), show('a', 'b'))
    server.script(flow(make_event('MODIFIED', 'a', '101')), on=WATCH)
    async with watch():
        await sink.wait('MODIFIED', 'a', '101')
        assert [bool(request.query.get('shardSelector')) for request in server.requests] == [
            True, False, False]
        assert not get_warnings(caplog)


async def test_number_of_objects_is_unknown_if_the_server_selects(server, watch, sink):
    expected = []
    sink.expect = expected.append
    sink.select = lambda *, anew: select('a', 'b')
    server.script(say({
        'kind': 'ThingList', 'apiVersion': 'g.test/v1', 'items': [make_object('a')], 'metadata': {
            'resourceVersion': '100', 'continue': 'next', 'remainingItemCount': 30}}), show('b'))
    server.script(flow(), on=WATCH)
    async with watch():
        await sink.wait('end')
        assert expected == [None, 0]


async def test_the_first_state_is_streamed_if_so_wished(server, watch, sink, settings):
    settings.watching.initial_streaming = True
    server.script(flow(
        make_event('ADDED', 'a', '90'), make_event('ADDED', 'b', '95'), make_initial_end('100'),
        make_event('ADDED', 'c', '101')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'c', '101')
        assert sink.seen == [
            ('begin',), ('listed', 'a'), ('listed', 'b'), ('end',), ('ADDED', 'c', '101')]
        assert not server.lists
        assert server.watches[0].query['sendInitialEvents'] == 'true'
        assert server.watches[0].query['resourceVersionMatch'] == 'NotOlderThan'


@pytest.mark.parametrize('streaming', [False, True])
async def test_objects_of_no_use_are_not_parsed(
        server, watch, sink, settings, streaming, until):
    settings.watching.initial_streaming = streaming
    screened = []

    def screen(type, body):
        screened.append((type, body['metadata']['name'], sorted(body)))
        return body['metadata']['name'] != 'c'

    sink.screen = screen
    padding = b'"spec":{"text":"' + b'x' * screening.MIN_LENGTH + b'"}'
    lines = [
        b'{"type":"%s","object":{"apiVersion":"g.test/v1","kind":"Thing","metadata":{"name":"%s",'
        b'"uid":"u%s","resourceVersion":"%d"},%s}}\n' % (type, name, name, version, padding + rest)
        for type, name, version, rest in [
            (b'ADDED', b'a', 101, b',the rest is not JSON'), (b'DELETED', b'b', 102, b''),
            (b'ADDED', b'c', 103, b''), (b'ADDED', b'd', 104, b'')]]
    server.script(show())
    server.script(
        flow(*lines, *([make_initial_end('110')] if streaming else []), then='end'), flow(),
        on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        kind = None if streaming else 'ADDED'
        assert screened == [
            (kind, 'a', ['metadata']), ('DELETED', 'b', ['metadata']),
            (kind, 'c', ['metadata']), (kind, 'd', ['metadata'])]
        assert [item[:2] for item in sink.seen if len(item) > 1] == [
            ('listed' if streaming else 'ADDED', 'c')]
        assert server.watches[1].query['resourceVersion'] == ('110' if streaming else '104')


async def test_a_streamed_state_that_breaks_off_begins_anew(server, watch, sink, settings):
    settings.watching.initial_streaming = True
    server.script(
        flow(make_event('ADDED', 'a', '90'), then='drop'),
        flow(make_event('ADDED', 'a', '90'), make_initial_end('100'), then='end'),
        flow(), on=WATCH)
    async with watch():
        async with asyncio.timeout(20):
            while len(server.watches) < 3:
                await asyncio.sleep(0.01)
        assert sink.seen == [('begin',), ('listed', 'a'), ('begin',), ('listed', 'a'), ('end',)]
        assert server.watches[2].query['resourceVersion'] == '100'
        assert 'sendInitialEvents' not in server.watches[2].query


@pytest.mark.parametrize('status', [400, 422])
async def test_objects_are_listed_where_the_state_cannot_be_streamed(
        server, watch, sink, settings, status, caplog, client,
):
    caplog.set_level(logging.INFO)
    settings.watching.initial_streaming = True
    server.script(show('a'))
    server.script(
        refuse(status), flow(make_bookmark('100'), then='end'), flow(make_error(410)), flow(),
        on=WATCH)
    async with watch():
        await sink.wait('end', count=2)
        assert server.count(sendInitialEvents='true') == 1  # it is not tried again
        assert not get_warnings(caplog)


async def test_a_streamed_state_of_a_restored_database_is_known_as_such(
        server, watch, sink, settings,
):
    settings.watching.initial_streaming = True
    server.script(show(version='50'))
    server.script(
        flow(make_initial_end('100'), then='drop'), flow(make_initial_end('50')), on=WATCH)
    async with watch():
        await sink.wait('end', count=2)
        assert sink.seen == [('begin',), ('end',), ('restored',), ('end',)]


async def test_metadata_alone_are_asked_for_if_nothing_else_is_needed(server, watch, until):
    server.script(show())
    server.script(flow(), on=WATCH)
    async with watch(metadata_only=True):
        await until(lambda: bool(server.watches))
        assert 'as=PartialObjectMetadataList;' in server.lists[0].headers['Accept']
        assert 'as=PartialObjectMetadata;' in server.watches[0].headers['Accept']


async def test_huge_lists_do_not_block_the_loop(server, watch, sink):
    server.script(show(*[f'n{n}' for n in range(60_000)]))  # much longer than one step
    server.script(flow(), on=WATCH)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async with watch():
        await sink.wait('begin')
        ticking = asyncio.create_task(tick())
        await sink.wait('end')
        ticking.cancel()
    assert len(sink.bodies) == 60_000
    assert ticks >= 5


async def test_long_runs_of_events_do_not_block_the_loop(server, watch, sink):
    chunk = b''.join(make_event('ADDED', f'n{n}', f'{n}') for n in range(20_000))
    server.script(show())
    server.script(flow(chunk, make_event('ADDED', 'last', '99999')), on=WATCH)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    async with watch():
        await sink.wait('ADDED', 'n0', '0')
        ticks = 0
        await sink.wait('ADDED', 'last', '99999')
        ticking.cancel()
        assert ticks >= 5


async def test_waiting_for_events_is_no_long_work(server, watch, sink, monkeypatch):
    breaths = []
    monkeypatch.setattr(
        watching, '_breathe', lambda: asyncio.sleep(0, breaths.append(len(sink.seen)) or 1e9))
    monkeypatch.setattr(watching, 'MAX_BLOCKING', 1.0)
    server.script(show())
    server.script(flow(1.2, make_event('ADDED', 'a', '101')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'a', '101')
    assert not breaths


async def test_no_secrets_get_into_the_log(server, watch, sink, caplog):
    caplog.set_level(logging.DEBUG)
    server.script(refuse(500), drop(), show())
    server.script(flow(), on=WATCH)
    async with watch():
        await sink.wait('end')
        assert 's3cret' not in caplog.text


async def test_many_watches_share_no_connection_but_the_listing_pool(
        server, settings, resource, sink,
):
    settings.networking.error_backoffs = []
    server.script(show())
    server.script(flow(), on=WATCH)
    info = credentials.ConnectionInfo(server=server.url)
    async with api.Client(credentials=info, settings=settings) as client:
        tasks = [
            asyncio.create_task(watching.watch(
                client, settings=settings, resource=resource, namespace=None, sink=sink))
            for _ in range(50)
        ]
        await sink.wait('end', count=50)
        async with asyncio.timeout(20):
            while len(server.watches) < 50:
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_passing_errors_are_the_ones_of_kinds_that_come_and_go():
    assert errors.APINotFoundError in streaks.TEMPORARY
    assert errors.APITooManyRequestsError in streaks.TEMPORARY


def make_deep(name, version='101', *, depth, metadata=None):
    """An object of JSON that no recursive parser takes."""
    body = {'apiVersion': 'g.test/v1', 'kind': 'Thing', **make_object(name, version=version)}
    body['metadata'].update(metadata or {})
    return json.dumps({**body, 'spec': '*'}).replace('"*"', '{"k":' * depth + '1' + '}' * depth)


def make_deep_event(type, name, version='101', *, depth):
    text = make_deep(name, version, depth=depth)
    return f'{{"type":"{type}","object":{text}}}\n'.encode()


def get_errors(caplog):
    return [rec.getMessage() for rec in caplog.records if rec.levelno >= logging.ERROR]


@pytest.mark.parametrize('depth', [400, 900, 10_000])
async def test_objects_nested_too_deeply_are_skipped_in_streams(server, watch, sink, caplog, depth):
    server.script(show('a'))
    server.script(flow(
        make_deep_event('ADDED', 'bad', '101', depth=depth), make_event('ADDED', 'b', '102'),
        make_deep_event('MODIFIED', 'bad', '103', depth=depth),
        make_deep_event('DELETED', 'bad', '104', depth=depth), make_event('MODIFIED', 'b', '105'),
    ), on=WATCH)
    async with watch():
        await sink.wait('MODIFIED', 'b', '105')
        assert sink.seen[3:] == [
            ('skipped', 'ADDED', 'bad'), ('ADDED', 'b', '102'), ('skipped', 'MODIFIED', 'bad'),
            ('skipped', 'DELETED', 'bad'), ('MODIFIED', 'b', '105')]
        assert len(server.requests) == 2
    assert get_errors(caplog) == [
        "The object bad of things.v1.g.test is skipped: it is nested deeper than 250 levels. "
        "It is handled again when that is mended."]


@pytest.mark.parametrize('damage, reason', [
    ({'metadata': {}}, "without a name of things.v1.g.test is skipped: it has no name"),
    ({'metadata': {'name': 'x', 'uid': []}}, "x of things.v1.g.test is skipped: metadata.uid is"),
    ({'metadata': {'name': 'x', 'namespace': 'ns', 'labels': {'a': 1}}}, "ns/x of things.v1"),
])
async def test_damaged_objects_are_skipped_alone(server, watch, sink, caplog, damage, reason):
    server.script(show())
    lines = [json.dumps({'type': type, 'object': damage}).encode() + b'\n'
             for type in ('ADDED', 'MODIFIED')]
    server.script(flow(*lines, make_event('ADDED', 'b', '102')), on=WATCH)
    async with watch():
        await sink.wait('ADDED', 'b', '102')
    assert len(get_errors(caplog)) == 1
    assert reason in get_errors(caplog)[0]


@pytest.mark.parametrize('metadata_last', [False, True])
@pytest.mark.parametrize('depth', [400, 900, 10_000])
async def test_objects_nested_too_deeply_do_not_spoil_the_list(
        server, watch, sink, caplog, depth, metadata_last):
    items = f'"items":[{make_deep("bad", depth=depth)},{json.dumps(make_object("b"))}]'
    metadata = '"metadata":{"resourceVersion":"100"}'
    parts = [items, metadata] if metadata_last else [metadata, items]
    server.script(say_raw(f'{{{",".join(parts)}}}'.encode()))
    server.script(
        flow(make_deep_event('MODIFIED', 'bad', '101', depth=depth),
             make_event('MODIFIED', 'b', '102')), on=WATCH)
    async with watch():
        await sink.wait('MODIFIED', 'b', '102')
        assert sink.seen == [
            ('begin',), ('skipped', None, 'bad'), ('listed', 'b'), ('end',),
            ('skipped', 'MODIFIED', 'bad'), ('MODIFIED', 'b', '102')]
    assert len(get_errors(caplog)) == 1


async def test_objects_nested_too_deeply_are_skipped_in_streamed_lists(
        server, watch, sink, settings, caplog):
    settings.watching.initial_streaming = True
    server.script(flow(
        make_deep_event('ADDED', 'bad', '99', depth=3000), make_event('ADDED', 'b', '99'),
        make_initial_end('100')), on=WATCH)
    async with watch():
        await sink.wait('end')
        assert sink.seen == [
            ('begin',), ('skipped', None, 'bad'), ('listed', 'b'), ('end',)]
    assert len(get_errors(caplog)) == 1


async def test_streams_go_on_after_what_was_skipped(server, watch, sink, until):
    server.script(show())
    server.script(
        flow(make_deep_event('ADDED', 'bad', '123', depth=3000), then='end'), flow(), on=WATCH)
    async with watch():
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1].query['resourceVersion'] == '123'


async def test_errors_in_the_stream_can_be_nested_deeply(server, watch, sink):
    error = make_error(410).decode().replace('{}', '{"k":' * 3000 + '1' + '}' * 3000)
    server.script(show())
    server.script(flow(error.encode()), flow(), on=WATCH)
    async with watch():
        await sink.wait('end', count=2)
