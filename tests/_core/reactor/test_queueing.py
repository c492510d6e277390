import asyncio
import itertools

import pytest

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.references import Resource
from kopf._core.intents.handlers import ChangingHandler, WatchingHandler
from kopf._core.intents.registries import ResourceHandlers
from kopf._core.reactor import queueing, streams
from kopf._core.reactor.queueing import Lines

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)


def fn(**_):
    pass


CHANGING = ResourceHandlers(changing=(ChangingHandler(id='fn', fn=fn),))
WATCHING = ResourceHandlers(watching=(WatchingHandler(id='fn', fn=fn),))


def make(version, *, uid='uid1', name='obj', **fields):
    meta = {'uid': uid, 'name': name, 'namespace': 'ns', 'resourceVersion': str(version)}
    return {'metadata': meta, **fields}


class Passes:
    """What the passes have seen; they can be held until they are let go."""

    def __init__(self):
        self.seen = []
        self.running = []
        self.peak = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, line):
        assert line.uid not in self.running, "two passes of one object"
        self.running.append(line.uid)
        self.peak = max(self.peak, len(self.running))
        try:
            while line.events:
                event = line.events.popleft()
                self.seen.append((event['type'], line.uid, version_of(event['object'])))
            if line.gone:
                self.seen.append(('gone', line.uid))
                line.take()
                return
            raw = line.take()
            if raw is not None:
                self.seen.append((line.uid, version_of(raw)))
            line.noticed = True
            await self.gate.wait()
        finally:
            self.running.remove(line.uid)


def version_of(raw):
    return raw['metadata']['resourceVersion']


async def calm():
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture()
def settings():
    return OperatorSettings()


@pytest.fixture()
async def passes():
    return Passes()


@pytest.fixture()
async def lines(settings, passes):
    lines = Lines(settings=settings, process=passes)
    yield lines
    passes.gate.set()
    await lines.stop()


@pytest.fixture()
def stream(lines):
    return lines.sink(RESOURCE, None, CHANGING)


def list_all(stream, *bodies, restored=False):
    stream.begin(restored=restored)
    for body in bodies:
        stream.listed(body)
    stream.end()


async def test_listed_objects_get_a_pass_each(stream, passes):
    list_all(stream, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    assert passes.seen == [('a', '1'), ('b', '2')]


async def test_a_pass_takes_the_newest_state_and_skips_those_in_between(stream, passes):
    list_all(stream)
    passes.gate.clear()
    stream.changed('ADDED', make(1))
    await calm()
    for version in range(2, 6):
        stream.changed('MODIFIED', make(version))
    passes.gate.set()
    await calm()
    assert passes.seen == [('uid1', '1'), ('uid1', '5')]


async def test_a_state_taken_from_a_response_is_not_processed_again(stream, passes):
    list_all(stream, make(1))
    await calm()
    stream.by_uid['uid1'].accept(make(7))
    stream.changed('MODIFIED', make(5))
    stream.changed('MODIFIED', make(7))
    await calm()
    assert passes.seen == [('uid1', '1')]


async def test_a_state_newer_than_the_response_is_processed(stream, passes):
    list_all(stream, make(1))
    await calm()
    stream.by_uid['uid1'].accept(make(7))
    stream.changed('MODIFIED', make(8))
    await calm()
    assert passes.seen[-1] == ('uid1', '8')


async def test_versions_are_compared_as_numbers(stream, passes):
    list_all(stream, make(9))
    await calm()
    stream.changed('MODIFIED', make(10))
    await calm()
    assert passes.seen[-1] == ('uid1', '10')


async def test_opaque_versions_wait_for_the_own_write_to_come_back(stream, passes):
    list_all(stream, make('x1'))
    await calm()
    stream.by_uid['uid1'].accept(make('x3'))
    stream.changed('MODIFIED', make('x2'))
    await calm()
    assert passes.seen == [('uid1', 'x1')]
    stream.changed('MODIFIED', make('x3'))
    stream.changed('MODIFIED', make('x4'))
    await calm()
    assert passes.seen == [('uid1', 'x1'), ('uid1', 'x4')]


async def test_opaque_versions_are_processed_if_the_own_write_does_not_come(
        stream, passes, settings):
    settings.persistence.consistency_timeout = 0.05
    list_all(stream, make('x1'))
    await calm()
    stream.by_uid['uid1'].accept(make('x3'))
    stream.changed('MODIFIED', make('x2'))
    await asyncio.sleep(0.1)
    assert passes.seen == [('uid1', 'x1'), ('uid1', 'x2')]


async def test_relists_pass_on_only_what_has_changed(stream, passes):
    list_all(stream, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    list_all(stream, make(1, uid='a', name='a'), make(5, uid='b', name='b'))
    await calm()
    assert passes.seen[2:] == [('b', '5')]


async def test_what_a_relist_does_not_show_is_gone(stream, passes):
    list_all(stream, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    list_all(stream, make(1, uid='a', name='a'))
    await calm()
    assert 'b' not in stream.by_uid
    assert 'a' in stream.by_uid


async def test_an_unfinished_list_makes_nothing_gone(stream, passes):
    list_all(stream, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    stream.begin(restored=False)
    stream.listed(make(1, uid='a', name='a'))
    list_all(stream, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    assert set(stream.by_uid) == {'a', 'b'}


async def test_a_lower_version_counts_after_a_restored_database(stream, passes):
    list_all(stream, make(100))
    await calm()
    list_all(stream, make(7), restored=True)
    await calm()
    assert passes.seen == [('uid1', '100'), ('uid1', '7')]


async def test_objects_of_the_first_list_are_initial_and_others_are_not(stream):
    list_all(stream, make(1, uid='a', name='a'))
    list_all(stream, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    stream.changed('ADDED', make(3, uid='c', name='c'))
    assert stream.by_uid['a'].initial
    assert not stream.by_uid['b'].initial
    assert not stream.by_uid['c'].initial
    await calm()


async def test_a_deletion_is_told_before_anything_of_a_namesake(lines, passes):
    stream = lines.sink(RESOURCE, None, WATCHING)
    list_all(stream)
    passes.gate.clear()
    stream.changed('ADDED', make(1, uid='old'))
    await calm()
    stream.changed('DELETED', make(2, uid='old'))
    stream.changed('ADDED', make(3, uid='new'))
    await calm()
    assert passes.seen == [('ADDED', 'old', '1'), ('old', '1')]
    passes.gate.set()
    await calm()
    assert passes.seen[2:] == [
        ('DELETED', 'old', '2'), ('gone', 'old'), ('ADDED', 'new', '3'), ('new', '3')]


async def test_a_namesake_found_by_a_relist_waits_for_the_older_one_too(lines, passes):
    stream = lines.sink(RESOURCE, None, WATCHING)
    list_all(stream, make(1, uid='old'))
    passes.gate.clear()
    await calm()
    list_all(stream, make(3, uid='new'))
    await calm()
    assert not any('new' in item for item in passes.seen)
    passes.gate.set()
    await calm()
    assert [item for item in passes.seen if 'new' in item] == [
        ('ADDED', 'new', '3'), ('new', '3')]
    assert passes.seen.index(('gone', 'old')) < passes.seen.index(('ADDED', 'new', '3'))


async def test_raw_events_are_all_seen_in_order_with_the_own_echoes(lines, passes):
    stream = lines.sink(RESOURCE, None, WATCHING)
    list_all(stream, make(1))
    await calm()
    stream.by_uid['uid1'].accept(make(3))
    stream.changed('MODIFIED', make(2))
    stream.changed('MODIFIED', make(3))
    stream.changed('DELETED', make(4))
    await calm()
    assert [item for item in passes.seen if len(item) == 3] == [
        (None, 'uid1', '1'), ('MODIFIED', 'uid1', '2'), ('MODIFIED', 'uid1', '3'),
        ('DELETED', 'uid1', '4')]


async def test_relists_make_up_the_deletions_for_those_who_want_to_see_them(lines, passes):
    stream = lines.sink(RESOURCE, None, WATCHING)
    list_all(stream, make(1))
    await calm()
    list_all(stream)
    await calm()
    assert ('DELETED', 'uid1', '1') in passes.seen


async def test_too_many_raw_events_are_coalesced_with_one_warning(
        lines, passes, monkeypatch, caplog):
    monkeypatch.setattr(streams, 'MAX_EVENTS', 3)
    stream = lines.sink(RESOURCE, None, WATCHING)
    list_all(stream)
    passes.gate.clear()
    stream.changed('ADDED', make(1))
    await calm()
    for version in range(2, 10):
        stream.changed('MODIFIED', make(version))
    passes.gate.set()
    await calm()
    events = [item for item in passes.seen if len(item) == 3]
    assert events[-1] == ('MODIFIED', 'uid1', '9')
    assert len(events) == 4
    assert len([record for record in caplog.records if 'come faster' in record.message]) == 1


async def test_the_limit_is_on_passes_at_work(lines, passes, settings):
    settings.queueing.worker_limit = 2
    stream = lines.sink(RESOURCE, None, CHANGING)
    list_all(stream)
    passes.gate.clear()
    for index in range(5):
        stream.changed('ADDED', make(index + 1, uid=f'u{index}', name=f'n{index}'))
    await calm()
    assert len(passes.running) == 2
    passes.gate.set()
    await calm()
    assert len(passes.seen) == 5
    assert passes.peak == 2


async def test_live_changes_go_before_the_backlog(lines, passes, settings):
    settings.queueing.worker_limit = 1
    stream = lines.sink(RESOURCE, None, CHANGING)
    passes.gate.clear()
    list_all(stream, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(1, 20)))
    await calm()
    stream.changed('ADDED', make(100, uid='live', name='live'))
    passes.gate.set()
    await asyncio.sleep(0.1)
    assert passes.seen.index(('live', '100')) <= 1
    assert len(passes.seen) == 20


async def test_the_backlog_waits_while_there_is_congestion(settings, passes):
    congested = True
    lines = Lines(settings=settings, process=passes, is_congested=lambda: congested)
    stream = lines.sink(RESOURCE, None, CHANGING)
    list_all(stream, make(1, uid='a', name='a'))
    await calm()
    assert not passes.seen
    congested = False
    await asyncio.sleep(queueing.BACKLOG_PAUSE * 3)
    assert passes.seen == [('a', '1')]
    await lines.stop()


async def test_objects_of_a_dropped_resource_are_forgotten(lines, stream, passes):
    list_all(stream, make(1))
    await calm()
    line = stream.by_uid['uid1']
    lines.drop(RESOURCE, None)
    assert line.gone
    assert not stream.by_uid


async def test_objects_are_not_resumed_again_under_another_version(lines, stream, passes):
    list_all(stream, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    stream.by_uid['a'].initial = False
    lines.drop(RESOURCE, None)
    other = lines.sink(Resource('kopf.dev', 'v2', 'kopfexamples'), None, CHANGING)
    list_all(other, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    assert not other.by_uid['a'].initial
    assert other.by_uid['b'].initial
    await calm()


async def test_objects_are_shown_again_to_other_handlers(lines, stream, passes):
    list_all(stream, make(1))
    await calm()
    again = lines.sink(RESOURCE, None, CHANGING)
    list_all(again, make(1))
    await calm()
    assert passes.seen == [('uid1', '1'), ('uid1', '1')]


async def test_a_line_wakes_up_at_its_time(stream, passes):
    list_all(stream, make(1))
    await calm()
    line = stream.by_uid['uid1']
    woken = []
    passes.seen = woken
    line.keep(make(1))
    line.wait_until(asyncio.get_running_loop().time() + 0.02)
    await asyncio.sleep(0.05)
    assert woken == [('uid1', '1')]


async def test_stopping_takes_no_more_work_and_interrupts_what_lasts(settings, passes):
    settings.queueing.exit_timeout = 0.01
    lines = Lines(settings=settings, process=passes)
    stream = lines.sink(RESOURCE, None, CHANGING)
    list_all(stream)
    passes.gate.clear()
    stream.changed('ADDED', make(1))
    await calm()
    await lines.stop()
    stream.changed('MODIFIED', make(2))
    await calm()
    assert passes.seen == [('uid1', '1')]
    assert not passes.running


async def test_errors_of_a_pass_do_not_stop_the_others(settings):
    seen = []
    counter = itertools.count()

    async def process(line):
        line.take()
        seen.append(line.uid)
        if next(counter) == 0:
            raise asyncio.CancelledError()

    lines = Lines(settings=settings, process=process)
    stream = lines.sink(RESOURCE, None, CHANGING)
    list_all(stream)
    stream.changed('ADDED', make(1, uid='a', name='a'))
    stream.changed('ADDED', make(2, uid='b', name='b'))
    await calm()
    stream.changed('MODIFIED', make(3, uid='a', name='a'))
    await calm()
    assert seen == ['a', 'b', 'a']
    await lines.stop()
