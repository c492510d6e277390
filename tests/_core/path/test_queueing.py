import asyncio
import contextlib
import functools
import itertools
import json
import logging

import pytest

import kopf
from kopf._cogs.aiokits.wakeups import Wakeups
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.references import Resource
from kopf._core.intents.handlers import ChangingHandler, ReconcilingHandler, WatchingHandler
from kopf._core.intents.registries import ResourceHandlers
from kopf._core.path import inboxes, queueing
from kopf._core.path.intake import InformerFactory
from kopf._core.path.objects import Phase
from kopf._core.path.queueing import WorkQueue
from kopf._core.path.switches import Switch
from tests._core.reactor.worlds import accompany, run_virtually

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)


def fn(**_):
    pass


CHANGING = ResourceHandlers(changing=(ChangingHandler(id='fn', fn=fn),))
WATCHING = ResourceHandlers(watching=(WatchingHandler(id='fn', fn=fn),))
RECONCILING = ResourceHandlers(reconciling=(ReconcilingHandler(id='fn', fn=fn),))
CHANGING_TOO = ResourceHandlers(
    changing=CHANGING.changing, reconciling=RECONCILING.reconciling)


def make(version, *, uid='uid1', name='obj', **fields):
    meta = {'uid': uid, 'name': name, 'namespace': 'ns', 'resourceVersion': str(version)}
    return {'metadata': meta, **fields}


class Passes:
    """What the passes have seen; they can be held until they are let go."""

    def __init__(self):
        self.congested = False
        self.overloaded = False
        self.seen = []
        self.running = []
        self.peak = 0
        self.gate = asyncio.Event()
        self.gate.set()

    def start(self, item):
        return functools.partial(self.process, item)

    async def save(self, item):
        pass

    def is_congested(self):
        return self.congested

    def is_overloaded(self):
        return self.overloaded

    async def index(self, item, raw):
        return None

    def discard(self, item):
        pass

    def reconsider(self, item, raw):
        pass

    async def process(self, item):
        assert item.uid not in self.running, "two passes of one object"
        self.running.append(item.uid)
        self.peak = max(self.peak, len(self.running))
        try:
            while item.inbox.has_events:
                event = item.inbox.take_event()
                self.seen.append((event['type'], item.uid, version_of(event['object'])))
            if item.gone:
                self.seen.append(('gone', item.uid))
                item.inbox.take()
                return
            raw = item.inbox.take()
            if raw is not None:
                self.seen.append((item.uid, version_of(raw)))
            item.notice()
            await self.gate.wait()
        finally:
            self.running.remove(item.uid)


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


def make_informers(settings, passes):
    queue = WorkQueue(
        settings=settings, switch=Switch(), alarms=Wakeups(), processor=passes)
    informers = InformerFactory(queue)
    informers.seal()
    return informers


@pytest.fixture()
async def informers(settings, passes):
    informers = make_informers(settings, passes)
    yield informers
    passes.gate.set()
    await informers.stop(asyncio.get_running_loop().time() + 1)


@pytest.fixture()
def informer(informers):
    return informers.open(RESOURCE, None, CHANGING)


def list_all(informer, *bodies, restored=False):
    informer.list_started(restored=restored)
    for body in bodies:
        informer.listed(body)
    informer.list_ended()


async def test_listed_objects_get_a_pass_each(informer, passes):
    list_all(informer, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    assert passes.seen == [('a', '1'), ('b', '2')]


async def test_a_pass_takes_the_newest_state_and_skips_those_in_between(informer, passes):
    list_all(informer)
    passes.gate.clear()
    informer.changed('ADDED', make(1))
    await calm()
    for version in range(2, 6):
        informer.changed('MODIFIED', make(version))
    passes.gate.set()
    await calm()
    assert passes.seen == [('uid1', '1'), ('uid1', '5')]


async def test_a_state_taken_from_a_response_is_not_processed_again(informer, passes):
    list_all(informer, make(1))
    await calm()
    informer.find('uid1').accept(make(7))
    informer.changed('MODIFIED', make(5))
    informer.changed('MODIFIED', make(7))
    await calm()
    assert passes.seen == [('uid1', '1')]


async def test_a_state_newer_than_the_response_is_processed(informer, passes):
    list_all(informer, make(1))
    await calm()
    informer.find('uid1').accept(make(7))
    informer.changed('MODIFIED', make(8))
    await calm()
    assert passes.seen[-1] == ('uid1', '8')


async def test_versions_are_compared_as_numbers(informer, passes):
    list_all(informer, make(9))
    await calm()
    informer.changed('MODIFIED', make(10))
    await calm()
    assert passes.seen[-1] == ('uid1', '10')


async def test_opaque_versions_wait_for_the_own_write_to_come_back(informer, passes):
    list_all(informer, make('x1'))
    await calm()
    informer.find('uid1').accept(make('x3'))
    informer.changed('MODIFIED', make('x2'))
    await calm()
    assert passes.seen == [('uid1', 'x1')]
    informer.changed('MODIFIED', make('x3'))
    informer.changed('MODIFIED', make('x4'))
    await calm()
    assert passes.seen == [('uid1', 'x1'), ('uid1', 'x4')]


@pytest.mark.looptime
async def test_opaque_versions_are_processed_if_the_own_write_does_not_come(
        informer, passes, settings):
    settings.persistence.consistency_timeout = 0.05
    list_all(informer, make('x1'))
    await calm()
    informer.find('uid1').accept(make('x3'))
    informer.changed('MODIFIED', make('x2'))
    await asyncio.sleep(0.1)
    assert passes.seen == [('uid1', 'x1'), ('uid1', 'x2')]


async def test_relists_pass_on_only_what_has_changed(informer, passes):
    list_all(informer, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    list_all(informer, make(1, uid='a', name='a'), make(5, uid='b', name='b'))
    await calm()
    assert passes.seen[2:] == [('b', '5')]


async def test_what_a_relist_does_not_show_is_gone(informer, passes):
    list_all(informer, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    list_all(informer, make(1, uid='a', name='a'))
    await calm()
    assert informer.find('b') is None
    assert informer.find('a') is not None


async def test_an_unfinished_list_makes_nothing_gone(informer, passes):
    list_all(informer, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    informer.list_started(restored=False)
    informer.listed(make(1, uid='a', name='a'))
    list_all(informer, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    assert {item.uid for item in informer} == {'a', 'b'}


async def test_a_lower_version_counts_after_a_restored_database(informer, passes):
    list_all(informer, make(100))
    await calm()
    list_all(informer, make(7), restored=True)
    await calm()
    assert passes.seen == [('uid1', '100'), ('uid1', '7')]


async def test_objects_of_the_first_list_are_initial_and_others_are_not(informer):
    list_all(informer, make(1, uid='a', name='a'))
    list_all(informer, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    informer.changed('ADDED', make(3, uid='c', name='c'))
    assert informer.find('a').initial
    assert not informer.find('b').initial
    assert not informer.find('c').initial
    await calm()


async def test_a_deletion_is_told_before_anything_of_a_namesake(informers, passes):
    informer = informers.open(RESOURCE, None, WATCHING)
    list_all(informer)
    passes.gate.clear()
    informer.changed('ADDED', make(1, uid='old'))
    await calm()
    informer.changed('DELETED', make(2, uid='old'))
    informer.changed('ADDED', make(3, uid='new'))
    await calm()
    assert passes.seen == [('ADDED', 'old', '1'), ('old', '1')]
    passes.gate.set()
    await calm()
    assert passes.seen[2:] == [
        ('DELETED', 'old', '2'), ('gone', 'old'), ('ADDED', 'new', '3'), ('new', '3')]


async def test_a_namesake_found_by_a_relist_waits_for_the_older_one_too(informers, passes):
    informer = informers.open(RESOURCE, None, WATCHING)
    list_all(informer, make(1, uid='old'))
    passes.gate.clear()
    await calm()
    list_all(informer, make(3, uid='new'))
    await calm()
    assert not any('new' in item for item in passes.seen)
    passes.gate.set()
    await calm()
    assert [item for item in passes.seen if 'new' in item] == [
        ('ADDED', 'new', '3'), ('new', '3')]
    assert passes.seen.index(('gone', 'old')) < passes.seen.index(('ADDED', 'new', '3'))


@pytest.mark.parametrize('handlers', [CHANGING, WATCHING], ids=['changing', 'watching'])
async def test_a_namesake_waits_also_if_another_one_has_come_and_gone_meanwhile(
        informers, passes, handlers):
    informer = informers.open(RESOURCE, None, handlers)
    list_all(informer)
    passes.gate.clear()
    informer.changed('ADDED', make(1, uid='old'))
    await calm()
    informer.changed('DELETED', make(2, uid='old'))
    informer.changed('ADDED', make(3, uid='brief'))
    informer.changed('DELETED', make(4, uid='brief'))
    informer.changed('ADDED', make(5, uid='new'))
    await calm()
    assert not any('new' in item or 'brief' in item for item in passes.seen)
    passes.gate.set()
    await calm()
    assert ('new', '5') in passes.seen
    assert passes.seen.index(('gone', 'old')) < passes.seen.index(('new', '5'))


async def test_raw_events_are_all_seen_in_order_with_the_own_echoes(informers, passes):
    informer = informers.open(RESOURCE, None, WATCHING)
    list_all(informer, make(1))
    await calm()
    informer.find('uid1').accept(make(3))
    informer.changed('MODIFIED', make(2))
    informer.changed('MODIFIED', make(3))
    informer.changed('DELETED', make(4))
    await calm()
    assert [item for item in passes.seen if len(item) == 3] == [
        (None, 'uid1', '1'), ('MODIFIED', 'uid1', '2'), ('MODIFIED', 'uid1', '3'),
        ('DELETED', 'uid1', '4')]


async def test_relists_make_up_the_deletions_for_those_who_want_to_see_them(informers, passes):
    informer = informers.open(RESOURCE, None, WATCHING)
    list_all(informer, make(1))
    await calm()
    list_all(informer)
    await calm()
    assert ('DELETED', 'uid1', '1') in passes.seen


async def test_too_many_raw_events_are_coalesced_with_one_warning(
        informers, passes, monkeypatch, caplog):
    monkeypatch.setattr(inboxes, 'MAX_EVENTS', 3)
    informer = informers.open(RESOURCE, None, WATCHING)
    list_all(informer)
    passes.gate.clear()
    informer.changed('ADDED', make(1))
    await calm()
    for version in range(2, 10):
        informer.changed('MODIFIED', make(version))
    passes.gate.set()
    await calm()
    events = [item for item in passes.seen if len(item) == 3]
    assert events[-1] == ('MODIFIED', 'uid1', '9')
    assert len(events) == 4
    assert len([record for record in caplog.records if 'come faster' in record.message]) == 1


async def test_the_limit_is_on_passes_at_work(informers, passes, settings):
    settings.queueing.worker_limit = 2
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer)
    passes.gate.clear()
    for index in range(5):
        informer.changed('ADDED', make(index + 1, uid=f'u{index}', name=f'n{index}'))
    await calm()
    assert len(passes.running) == 2
    passes.gate.set()
    await calm()
    assert len(passes.seen) == 5
    assert passes.peak == 2


@pytest.mark.looptime
async def test_live_changes_go_before_the_backlog(informers, passes, settings):
    settings.queueing.worker_limit = 1
    informer = informers.open(RESOURCE, None, CHANGING)
    passes.gate.clear()
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(1, 20)))
    await calm()
    informer.changed('ADDED', make(100, uid='live', name='live'))
    passes.gate.set()
    await asyncio.sleep(0.1)
    assert passes.seen.index(('live', '100')) <= 1
    assert len(passes.seen) == 20


@pytest.mark.looptime
async def test_the_backlog_waits_while_there_is_congestion(settings, passes):
    passes.congested = True
    passes.gate.clear()
    informers = make_informers(settings, passes)
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(20)))
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert len(passes.running) == queueing.PATIENT_MINIMUM
    passes.congested = False
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert len(passes.running) == 20
    passes.gate.set()
    await informers.stop(asyncio.get_running_loop().time() + 1)


@pytest.mark.looptime
async def test_changes_of_objects_that_are_only_reconciled_wait_while_there_is_congestion(
        informers, passes):
    passes.congested = True
    passes.gate.clear()
    informer = informers.open(RESOURCE, None, RECONCILING)
    list_all(informer)
    for n in range(20):
        informer.changed('ADDED', make(n, uid=f'u{n}', name=f'n{n}'))
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert len(passes.running) == queueing.PATIENT_MINIMUM
    passes.congested = False
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert len(passes.running) == 20
    passes.gate.set()
    await calm()


@pytest.mark.looptime
@pytest.mark.parametrize('served', [CHANGING, RECONCILING], ids=['changing', 'reconciling'])
async def test_nobody_starves_while_there_is_congestion(informers, passes, served):
    passes.congested = True
    informer = informers.open(RESOURCE, None, served)
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(50)))
    await asyncio.sleep(queueing.PATIENT_PAUSE * 20)
    assert len(passes.seen) == 50


@pytest.mark.looptime
async def test_nobody_starves_while_all_workers_are_busy(informers, passes, settings):
    settings.queueing.worker_limit = 1
    informer = informers.open(RESOURCE, None, CHANGING)
    passes.gate.clear()
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(3)))
    await calm()
    for n in range(100, 200):
        informer.changed('ADDED', make(n, uid=f'u{n}', name=f'n{n}'))
    passes.gate.set()
    await asyncio.sleep(0.1)
    assert passes.seen.index(('u2', '2')) < 50
    assert len(passes.seen) == 103


@pytest.mark.looptime
async def test_an_object_of_the_backlog_that_changes_waits_no_longer(informers, passes):
    passes.congested = True
    passes.gate.clear()
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(20)))
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert ('u15', '15') not in passes.seen
    informer.changed('MODIFIED', make(100, uid='u15', name='n15'))
    informer.changed('MODIFIED', make(101, uid='u15', name='n15'))
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert [seen for seen in passes.seen if seen[0] == 'u15'] == [('u15', '101')]
    passes.congested = False
    passes.gate.set()
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert len(passes.seen) == 20


async def test_changes_of_objects_with_handlers_of_changes_do_not_wait(informers, passes):
    passes.congested = True
    informer = informers.open(RESOURCE, None, CHANGING_TOO)
    list_all(informer)
    informer.changed('ADDED', make(1, uid='a', name='a'))
    await calm()
    assert passes.seen == [('a', '1')]


@pytest.mark.looptime
async def test_live_changes_wait_while_there_is_an_overload(informers, passes):
    passes.gate.clear()
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer)
    passes.congested = passes.overloaded = True
    for n in range(20):
        informer.changed('ADDED', make(n, uid=f'u{n}', name=f'n{n}'))
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert len(passes.running) == queueing.PATIENT_MINIMUM
    passes.congested = passes.overloaded = False
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert len(passes.running) == 20
    passes.gate.set()
    await calm()


@pytest.mark.looptime
async def test_later_changes_do_not_overtake_those_that_have_waited_in_an_overload(
        informers, passes):
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer)
    passes.congested = passes.overloaded = True
    for n in range(1, 40):
        informer.changed('ADDED', make(n, uid=f'u{n}', name=f'n{n}'))
    passes.overloaded = False
    for n in range(40, 60):
        informer.changed('ADDED', make(n, uid=f'u{n}', name=f'n{n}'))
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert passes.seen == [(f'u{n}', str(n)) for n in range(1, 60)]
    informer.changed('ADDED', make(100, uid='u100', name='n100'))
    await asyncio.sleep(0)
    assert passes.seen[-1] == ('u100', '100')


async def test_raw_events_and_ends_of_objects_do_not_wait_while_there_is_an_overload(
        informers, passes):
    other = Resource('kopf.dev', 'v1', 'others')
    informer = informers.open(RESOURCE, None, CHANGING)
    watching = informers.open(other, None, WATCHING)
    list_all(informer, make(1, uid='a', name='a'))
    list_all(watching)
    await calm()
    passes.congested = passes.overloaded = True
    informer.changed('DELETED', make(2, uid='a', name='a'))
    watching.changed('ADDED', make(3, uid='b', name='b'))
    await calm()
    assert passes.seen == [('a', '1'), ('gone', 'a'), ('ADDED', 'b', '3'), ('b', '3')]


@pytest.mark.looptime
async def test_objects_that_need_no_worker_do_not_wait_for_the_next_iteration(
        informers, passes, monkeypatch):
    def start(item):
        passes.seen.append((item.uid, version_of(item.inbox.take())))

    monkeypatch.setattr(passes, 'start', start)
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(1, 100)))
    await asyncio.sleep(0)
    assert len(passes.seen) == 99


async def test_ends_of_objects_that_are_only_reconciled_do_not_wait(informers, passes):
    informer = informers.open(RESOURCE, None, RECONCILING)
    list_all(informer, make(1, uid='a', name='a'))
    await calm()
    passes.congested = True
    informer.changed('DELETED', make(2, uid='a', name='a'))
    await calm()
    assert passes.seen == [('a', '1'), ('gone', 'a')]


@pytest.mark.looptime
async def test_changes_of_objects_that_are_only_reconciled_go_before_the_backlog(
        informers, passes):
    passes.congested = True
    informer = informers.open(RESOURCE, None, RECONCILING)
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(1, 20)))
    informer.changed('ADDED', make(100, uid='live', name='live'))
    passes.congested = False
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert passes.seen[0] == ('live', '100')
    assert len(passes.seen) == 20


@pytest.mark.looptime
async def test_a_burst_of_objects_that_are_only_reconciled_is_worked_off_bit_by_bit(
        informers, passes):
    passes.gate.clear()
    passes.is_congested = lambda: len(passes.running) >= 16
    informer = informers.open(RESOURCE, None, RECONCILING)
    list_all(informer)
    for n in range(100):
        informer.changed('ADDED', make(n, uid=f'u{n}', name=f'n{n}'))
    await calm()
    assert 16 <= len(passes.running) < 16 + 2 * queueing.PATIENT_STEP
    passes.gate.set()
    await asyncio.sleep(queueing.PATIENT_PAUSE * 10)
    assert len(passes.seen) == 100


async def test_objects_of_a_dropped_resource_are_forgotten(informers, informer, passes):
    list_all(informer, make(1))
    await calm()
    item = informer.find('uid1')
    informers.close(RESOURCE, None)
    assert item.gone
    assert not list(informer)


async def test_event_handlers_see_that_objects_are_gone_with_their_definition(informers, passes):
    informer = informers.open(RESOURCE, None, WATCHING)
    list_all(informer, make(1))
    await calm()
    informers.close(RESOURCE, None, deleted=True)
    await calm()
    assert passes.seen[-2:] == [('DELETED', 'uid1', '1'), ('gone', 'uid1')]


async def test_objects_are_not_resumed_again_under_another_version(informers, informer, passes):
    list_all(informer, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    await calm()
    informer.find('a').resume()
    informers.close(RESOURCE, None)
    other = informers.open(Resource('kopf.dev', 'v2', 'kopfexamples'), None, CHANGING)
    list_all(other, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    assert not other.find('a').initial
    assert other.find('b').initial
    await calm()


@pytest.mark.parametrize('namespaces, is_resumed', [(['ns', 'other'], True), (['other'], False)])
async def test_resumed_objects_are_remembered_as_long_as_their_namespace_is_there(
        informers, passes, namespaces, is_resumed):
    informer = informers.open(RESOURCE, 'ns', CHANGING)
    list_all(informer, make(1))
    await calm()
    informer.find('uid1').resume()
    informers.close(RESOURCE, 'ns')
    informers.forget_except(namespaces)
    other = informers.open(Resource('kopf.dev', 'v2', 'kopfexamples'), 'ns', CHANGING)
    list_all(other, make(1))
    assert other.find('uid1').initial != is_resumed
    await calm()


async def test_resumed_cluster_scoped_objects_are_remembered_whatever_namespaces_there_are(
        informers, informer, passes):
    list_all(informer, make(1))
    await calm()
    informer.find('uid1').resume()
    informers.close(RESOURCE, None)
    informers.forget_except(['other'])
    other = informers.open(Resource('kopf.dev', 'v2', 'kopfexamples'), None, CHANGING)
    list_all(other, make(1))
    assert not other.find('uid1').initial
    await calm()


async def test_objects_are_shown_again_to_other_handlers(informers, informer, passes):
    list_all(informer, make(1))
    await calm()
    again = informers.open(RESOURCE, None, CHANGING)
    list_all(again, make(1))
    await calm()
    assert passes.seen == [('uid1', '1'), ('uid1', '1')]


@pytest.mark.looptime
async def test_what_is_kept_of_an_object_is_packed_when_it_has_rested(settings, informer, passes):
    settings.queueing.idle_timeout = 10
    list_all(informer, make(1))
    await calm()
    item = informer.find('uid1')
    item.inbox.keep(make(1))
    item.wake_up()
    await calm()
    await asyncio.sleep(9)
    assert item.inbox._kept == make(1)
    await asyncio.sleep(12)
    assert isinstance(item.inbox._kept, bytes)
    assert item.recall() == make(1)


async def test_an_informer_tells_how_many_objects_of_its_first_list_have_come(informer, passes):
    assert informer.listing == 0
    informer.list_started(restored=False)
    informer.listed(make(1))
    assert informer.listing == 1
    informer.list_ended()
    assert informer.listing is None
    list_all(informer, make(1))
    assert informer.listing is None


@pytest.mark.looptime
async def test_an_item_wakes_up_at_its_time(informers, informer, passes):
    list_all(informer, make(1))
    await calm()
    item = informer.find('uid1')
    alarms = informers._queue.alarms
    woken = []
    passes.seen = woken
    item.inbox.keep(make(1))
    alarms.sleep(item, asyncio.get_running_loop().time() + 0.02)
    await asyncio.sleep(0.05)
    assert woken == [('uid1', '1')]


@pytest.mark.looptime
async def test_stopping_takes_no_more_work_and_interrupts_what_lasts(settings, passes):
    settings.queueing.exit_timeout = 0.01
    informers = make_informers(settings, passes)
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer)
    passes.gate.clear()
    informer.changed('ADDED', make(1))
    await calm()
    await informers.stop(asyncio.get_running_loop().time() + 1)
    informer.changed('MODIFIED', make(2))
    await calm()
    assert passes.seen == [('uid1', '1')]
    assert not passes.running


class Late(Passes):
    """A pass whose handler returns at its interruption; what it has done is written then."""

    async def process(self, item):
        item.enter(Phase.CALLING)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            item.enter(Phase.WORKING)
        await asyncio.sleep(queueing.LAST_ATTEMPT / 2)
        self.seen.append('written')


@pytest.mark.looptime
async def test_writes_that_begin_after_the_deadline_are_not_interrupted_at_once(settings):
    settings.queueing.exit_timeout = 0.01
    passes = Late()
    informers = make_informers(settings, passes)
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer)
    passes.gate.clear()
    informer.changed('ADDED', make(1))
    await calm()
    await informers.stop(asyncio.get_running_loop().time() - 1)
    assert passes.seen == ['written']


async def test_errors_of_a_pass_do_not_stop_the_others(settings):
    seen = []
    counter = itertools.count()

    class Failing(Passes):
        async def process(self, item):
            item.inbox.take()
            seen.append(item.uid)
            if next(counter) == 0:
                raise asyncio.CancelledError()

    informers = make_informers(settings, Failing())
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer)
    informer.changed('ADDED', make(1, uid='a', name='a'))
    informer.changed('ADDED', make(2, uid='b', name='b'))
    await calm()
    informer.changed('MODIFIED', make(3, uid='a', name='a'))
    await calm()
    assert seen == ['a', 'b', 'a']
    await informers.stop(asyncio.get_running_loop().time() + 1)


async def test_items_are_found_by_the_uids_of_their_objects(informers):
    other = Resource('kopf.dev', 'v1', 'others')
    for namespace in ('ns1', 'ns2'):
        informer = informers.open(RESOURCE, namespace, ResourceHandlers())
        list_all(informer, make(1, uid=namespace, name='x'))
    assert informers.find(RESOURCE, 'ns1').source is not informers.find(RESOURCE, 'ns2').source
    assert informers.find(RESOURCE, 'ns3') is None
    assert informers.find(other, 'ns1') is None


@pytest.mark.looptime
@pytest.mark.parametrize('served', [CHANGING, RECONCILING], ids=['changing', 'reconciling'])
async def test_states_of_objects_are_packed_while_these_wait_in_a_long_queue(
        informers, passes, served, monkeypatch):
    monkeypatch.setattr(queueing, 'LONG_QUEUE', 10)
    passes.congested = True
    informer = informers.open(RESOURCE, None, served)
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(1, 100)))
    states = [item.inbox._pending for item in informer]
    assert sum(not isinstance(state, bytes) for state in states) == 10
    passes.congested = False
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert sorted(passes.seen) == sorted((f'u{n}', str(n)) for n in range(1, 100))


@pytest.mark.looptime
async def test_states_that_have_come_as_json_are_not_packed_again(informers, passes, monkeypatch):
    monkeypatch.setattr(queueing, 'LONG_QUEUE', 0)
    passes.congested = passes.overloaded = True
    informer = informers.open(RESOURCE, None, CHANGING)
    listed, changed = [
        json.dumps({'type': 'ADDED', 'object': make(n, uid=f'u{n}')}).encode() for n in (1, 2)]
    informer.list_started(restored=False)
    informer.listed(make(1, uid='u1'), listed)
    informer.list_ended()
    informer.changed('ADDED', make(2, uid='u2'), changed)
    assert [item.inbox._pending for item in informer] == [listed, changed]
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert sorted(passes.seen) == [('u1', '1'), ('u2', '2')]


@pytest.mark.looptime
async def test_what_comes_while_a_packed_state_waits_replaces_it(informers, passes, monkeypatch):
    monkeypatch.setattr(queueing, 'LONG_QUEUE', 10)
    passes.congested = True
    informer = informers.open(RESOURCE, None, RECONCILING)
    list_all(informer, *(make(n, uid=f'u{n}', name=f'n{n}') for n in range(1, 100)))
    informer.changed('MODIFIED', make(200, uid='u99', name='n99'))
    passes.congested = False
    await asyncio.sleep(queueing.PATIENT_PAUSE * 3)
    assert ('u99', '200') in passes.seen and ('u99', '99') not in passes.seen
    assert len(passes.seen) == 99


def test_an_item_that_is_indexed_again_while_it_is_queued_is_not_queued_twice(caplog, monkeypatch):
    monkeypatch.setattr(queueing, 'PATIENT_MINIMUM', 0)
    running, most, seen = 0, 0, []

    def declare(registry):
        @kopf.index('kopfexamples', registry=registry)
        async def index(**_):
            pass

        @kopf.reconcile('kopfexamples', registry=registry)
        async def show(spec, **_):
            nonlocal running, most
            running += 1
            most = max(most, running)
            seen.append(spec.get('n'))
            await asyncio.sleep(1)
            running -= 1

    async def run():
        api, operator = await accompany(declare)
        await operator.rest()
        operator.client.congested = True  # so, the object waits in the queue
        for n in range(3):
            api.edit({'spec': {'n': n}})
            await asyncio.sleep(1)
        operator.client.congested = False
        await operator.rest()
        await operator.stop()

    run_virtually(run())
    assert seen == [None, 2]
    assert most == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(('version', 'is_judged'), [(2, False), (3, True), (4, True)])
async def test_a_list_after_a_pause_is_judged_unless_a_newer_state_is_known(
        settings, passes, version, is_judged):
    judged = []
    passes.reconsider = lambda item, raw: judged.append(version_of(raw))
    informers = make_informers(settings, passes)
    informer = informers.open(RESOURCE, None, CHANGING)
    list_all(informer, make(1))
    await calm()
    informers.pause()
    informer.find('uid1').accept(make(3))
    informers.resume()
    list_all(informer, make(version))
    assert judged == ([str(version)] if is_judged else [])
    await informers.stop(asyncio.get_running_loop().time() + 1)


def test_an_operator_ends_in_order_if_an_object_changes_while_a_thread_indexes_it(caplog):
    indexed = []

    def declare(registry):
        @kopf.index('kopfexamples', registry=registry)
        async def index(spec, **_):
            indexed.append(spec.get('n'))
            until = asyncio.get_running_loop().time() + 1
            while (left := until - asyncio.get_running_loop().time()) > 0:
                with contextlib.suppress(asyncio.CancelledError):  # as a thread goes on
                    await asyncio.sleep(left)

    async def run():
        api, operator = await accompany(declare)
        await operator.rest()
        for n in range(2):
            api.edit({'spec': {'n': n}})
            await asyncio.sleep(0.1)
        await operator.stop()
        await asyncio.sleep(10)

    run_virtually(run())
    assert indexed == [None, 0]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
