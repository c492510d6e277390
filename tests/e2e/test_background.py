"""
What runs while objects exist, and what is known about all of them: daemons, timers, indices, memos.
"""

import asyncio
import logging
import threading
import time

import pytest

import kopf
from kopf import DaemonStoppingReason as Reason
from tests.e2e.journals import FINALIZER, wait_handled, wait_settled
from tests.e2e.proxy import Proxy, is_watch

ON = {'on': 'yes'}


def is_finalized(obj):
    return FINALIZER in obj['metadata'].get('finalizers', [])


async def test_async_daemons_run_from_creation_until_deletion(kube, kind, journal, embedded):

    @kopf.daemon(*kind.selector)
    async def fn(name, stopped, **_):
        journal.append(('begins', name))
        while not stopped:
            await stopped.wait(100)
        journal.append(('ends', name, stopped.reason))

    embedded()
    await kube.create(kind, 'x')
    await journal.wait(('begins', 'x'))
    assert is_finalized(await kube.get(kind, 'x'))
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert journal == [('begins', 'x'), ('ends', 'x', Reason.RESOURCE_DELETED)]


async def test_sync_daemons_run_in_threads_of_their_own(
        kube, kind, journal, embedded, settings):
    settings.execution.max_workers = 1

    @kopf.daemon(*kind.selector)
    def fn(name, stopped, **_):
        journal.append((name, threading.current_thread()))
        stopped.wait()

    @kopf.on.create(*kind.selector)
    def created(name, **_):
        journal.append((name, 'created'))

    embedded()
    for name in 'xyz':
        await kube.create(kind, name)
    await journal.wait_length(6)
    assert {(name, 'created') for name in 'xyz'} <= set(journal)
    assert len({thread for name, thread in journal}) == 4
    for name in 'xyz':
        await kube.delete(kind, name)
        await kube.wait_gone(kind, name)


async def test_sync_daemons_use_the_executor_of_the_author(kube, kind, journal, embedded, settings):
    from concurrent.futures import ThreadPoolExecutor
    settings.execution.executor = ThreadPoolExecutor(thread_name_prefix='own')

    @kopf.daemon(*kind.selector)
    def fn(stopped, **_):
        journal.append(threading.current_thread().name)
        stopped.wait()

    embedded()
    await kube.create(kind, 'x')
    await journal.wait_length(1)
    assert journal[0].startswith('own_')


async def test_daemons_and_timers_follow_the_filters_back_and_forth(
        kube, kind, journal, embedded):

    @kopf.daemon(*kind.selector, labels=ON)
    async def daemon(stopped, **_):
        journal.append('begins')
        await stopped.wait()
        journal.append(stopped.reason)

    @kopf.timer(*kind.selector, interval=0.1, labels=ON)
    async def timer(**_):
        journal.append('tick')

    embedded()
    await kube.create(kind, 'x')
    await asyncio.sleep(0.5)
    assert not journal and not is_finalized(await kube.get(kind, 'x'))
    for _ in range(2):
        journal.clear()
        await kube.patch(kind, 'x', {'metadata': {'labels': ON}})
        await journal.wait('begins', 'tick', 'tick')
        await kube.patch(kind, 'x', {'metadata': {'labels': {'on': None}}})
        await journal.wait(Reason.FILTERS_MISMATCH)
        await kube.wait_for(kind, 'x', lambda obj: not is_finalized(obj))
        count = len(journal)
        await asyncio.sleep(0.3)
        assert len(journal) == count
        assert journal.count()['begins'] == 1


TEXT = '''
import asyncio

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.daemon(*KIND)
async def daemon(name, stopped, **_):
    print(f"{name} begins")
    await stopped.wait()
    print(f"{name} ends: {stopped.reason}")

@kopf.timer(*KIND, interval=0.2)
async def timer(name, memo, **_):
    memo.count = memo.get('count', 0) + 1
    print(f"{name} ticks {memo.count}")

@kopf.index(*KIND)
def names(name, **_):
    return name

@kopf.on.event(*KIND)
def event(names, **_):
    print(f"indexed: {sorted(names.get(None, []))}")
'''


@pytest.mark.parametrize('how', ['stopped', 'killed'])
async def test_everything_begins_anew_after_the_operator_was(kube, kind, operator, how):
    first = operator(TEXT, kind=kind)
    await kube.create(kind, 'x')
    await first.wait_for("x ticks 3")
    if how == 'stopped':
        assert first.stop() == 0
        assert first.find("x ends: .*OPERATOR_EXITING")
    else:
        first.kill()
    await kube.create(kind, 'y')
    second = operator(TEXT, kind=kind)
    await second.wait_for("x ticks 3")
    await second.wait_for("y ticks 3")
    assert len(second.find("begins")) == 2
    assert "['x', 'y']" in second.find("indexed")[0]
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert second.find("x ends: .*RESOURCE_DELETED")


async def test_objects_deleted_while_the_operator_is_down_are_let_go_without_any_daemon(
        kube, kind, operator):
    first = operator(TEXT, kind=kind)
    await kube.create(kind, 'x')
    await first.wait_for("x begins")
    first.kill()
    await kube.delete(kind, 'x')
    second = operator(TEXT, kind=kind)
    await kube.wait_gone(kind, 'x')
    assert not second.find("begins") and not second.find("ticks")


async def test_a_namesake_has_daemons_timers_memos_of_its_own(kube, kind, operator):
    instance = operator(TEXT, kind=kind)
    for count in (1, 2):
        await kube.create(kind, 'x')
        await instance.wait_for("x begins", count=count)
        await instance.wait_for("x ticks 1$", count=count)
        await kube.delete(kind, 'x')
        await kube.wait_gone(kind, 'x')
    assert len(instance.find("x ends")) == 2


@pytest.mark.parametrize('change', ['deleted', 'mismatching'])
async def test_what_is_missed_while_the_watch_is_broken_is_made_up_for(
        kube, kind, journal, embedded, cluster, tmp_path, monkeypatch, settings, change):
    settings.networking.error_backoffs = [0.1]
    indexed = []

    @kopf.daemon(*kind.selector, labels=ON, id='daemon')
    async def daemon(name, memo, stopped, **_):
        journal.append((name, 'begins', memo.setdefault('number', len(journal))))
        await stopped.wait()
        journal.append((name, 'ends'))

    @kopf.index(*kind.selector, labels=ON, id='names')
    async def names(name, **_):
        return name

    @kopf.timer(*kind.selector, interval=0.05, labels={'spy': 'yes'}, id='spy')
    async def spy(names, **_):
        indexed[:] = names.get(None, [])

    with Proxy(cluster) as proxy:
        monkeypatch.setenv('KUBECONFIG', proxy.write_kubeconfig(tmp_path / 'kubeconfig.yaml'))
        operator = embedded()
        await kube.create(kind, 'spy', labels={'spy': 'yes'})
        await kube.create(kind, 'x', labels=ON)
        await journal.wait(('x', 'begins', 0))
        while indexed != ['x']:
            await asyncio.sleep(0.02)
        fault = proxy.refuse(match=is_watch)
        proxy.cut_streams()
        if change == 'deleted':
            await kube.patch(kind, 'x', {'metadata': {'finalizers': []}})
            await kube.delete(kind, 'x')
        else:
            await kube.patch(kind, 'x', {'metadata': {'labels': {'on': None}}})
        await asyncio.sleep(0.5)
        fault.end()
        await journal.wait(('x', 'ends'), timeout=15)
        while indexed:
            await asyncio.sleep(0.02)
        operator.stop()


async def test_results_and_errors_of_timers_and_daemons(kube, kind, journal, embedded, caplog):
    caplog.set_level(logging.DEBUG)

    @kopf.timer(*kind.selector, interval=100, id='timer')
    def timer(retry, patch, **_):
        if retry < 2:
            raise kopf.TemporaryError("not yet", delay=0.1)
        patch.spec['field'] = 'value'
        return {'retries': retry}

    @kopf.daemon(*kind.selector, id='daemon')
    def daemon(retry, **_):
        if retry < 1:
            raise kopf.TemporaryError("not yet", delay=0.1)
        return 'done'

    @kopf.timer(*kind.selector, interval=0.1, id='failing')
    async def failing(retry, **_):
        journal.append(retry)
        raise kopf.PermanentError("no way")

    embedded()
    await kube.create(kind, 'x')
    obj = await kube.wait_for(kind, 'x', lambda obj: len(obj.get('status', {})) == 2)
    obj = await wait_settled(kube, kind, 'x')
    assert obj['spec'] == {'field': 'value'}
    assert obj['status'] == {'timer': {'retries': 2}, 'daemon': 'done'}
    assert 'annotations' not in obj['metadata']
    assert journal == [0]
    assert "Timer 'failing' failed permanently: no way" in caplog.text
    assert "Daemon 'daemon' has exited on its own" in caplog.text


async def test_the_results_go_to_the_subresource_too(kube, status_kind, embedded):

    @kopf.daemon(*status_kind.selector, id='fn')
    async def fn(**_):
        return 'done'

    embedded()
    await kube.create(status_kind, 'x')
    await kube.wait_for(status_kind, 'x', lambda obj: obj.get('status') == {'fn': 'done'})


async def test_patches_that_are_refused_are_the_fault_of_the_timer_only(
        kube, kind, journal, embedded, caplog):

    @kopf.timer(*kind.selector, interval=0.1, id='bad')
    async def bad(patch, **_):
        journal.append('bad')
        patch.meta.labels['label'] = 'not valid!'

    @kopf.timer(*kind.selector, interval=0.1, id='good')
    async def good(**_):
        journal.append('good')

    embedded()
    await kube.create(kind, 'x')
    await journal.wait_until(
        lambda: "Timer 'bad' failed permanently: its patch is refused" in caplog.text)
    before = journal.count()['good']
    await journal.wait_until(lambda: journal.count()['good'] >= before + 5)
    assert journal.count()['bad'] == 1


async def test_updates_made_by_timers_are_handled(kube, kind, journal, embedded):

    @kopf.timer(*kind.selector, initial_delay=0.5, id='fn')
    async def fn(patch, **_):
        patch.spec['field'] = 'value'

    @kopf.on.create(*kind.selector)
    async def created(**_):
        journal.append('created')

    @kopf.on.update(*kind.selector)
    async def updated(diff, **_):
        journal.append(str(diff))

    embedded()
    await kube.create(kind, 'x', spec={})
    await journal.wait('created', "(('add', ('spec', 'field'), None, 'value'),)")
    await wait_handled(kube, kind, 'x')


@pytest.mark.parametrize('sort', ['timer', 'daemon'])
async def test_a_change_that_also_ends_a_companion_is_handled_once_by_each_handler(
        kube, kind, journal, embedded, sort):
    names = [f'x{index}' for index in range(10)]

    @kopf.on.event(*kind.selector)
    async def event_fn(**_):
        pass

    @kopf.on.update(*kind.selector, id='patching')
    async def patching_fn(name, spec, patch, **_):
        journal.append((name, 'patching'))
        patch.spec['own'] = spec['field']

    @kopf.on.update(*kind.selector, id='looking')
    async def looking_fn(name, **_):
        journal.append((name, 'looking'))

    if sort == 'timer':
        @kopf.timer(*kind.selector, interval=1, labels={'on': 'yes'})
        async def timer_fn(**_):
            pass
    else:
        @kopf.daemon(*kind.selector, labels={'on': 'yes'})
        async def daemon_fn(stopped, **_):
            await stopped.wait()

    embedded()
    for name in names:
        await kube.create(kind, name, spec={'field': 1}, labels={'on': 'yes'})
    for name in names:
        await wait_handled(kube, kind, name)
    for name in names:
        await kube.patch(
            kind, name, {'spec': {'field': 2}, 'metadata': {'labels': {'on': 'no'}}})
    for name in names:
        await wait_settled(kube, kind, name)
    assert journal.count() == {
        (name, id): 1 for name in names for id in ['patching', 'looking']}


async def test_deletion_handlers_run_while_daemons_are_being_stopped(
        kube, kind, journal, embedded):

    @kopf.daemon(*kind.selector, id='daemon')
    async def daemon(stopped, **_):
        journal.append('begins')
        await stopped.wait()
        await asyncio.sleep(1)
        journal.append('ends')

    @kopf.on.delete(*kind.selector)
    async def deleted(**_):
        journal.append('deleted')

    embedded()
    await kube.create(kind, 'x')
    await journal.wait('begins')
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert journal == ['begins', 'deleted', 'ends']


@pytest.mark.parametrize('options', [
    pytest.param({'initial_delay': 1000}, id='before_its_first_call'),
    pytest.param({'backoff': 1000}, id='between_its_tries'),
])
async def test_objects_are_let_go_at_once_while_their_daemons_sleep(
        kube, kind, journal, embedded, options):

    @kopf.daemon(*kind.selector, **options)
    async def daemon(**_):
        journal.append('tried')
        raise Exception("again")

    embedded()
    await kube.create(kind, 'x')
    if 'backoff' in options:
        await journal.wait('tried')
    await kube.wait_for(kind, 'x', is_finalized)
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert journal == (['tried'] if 'backoff' in options else [])


STAGES = {
    'told': "cancellation_backoff=1000, cancellation_timeout=1",
    'cancelled': "cancellation_timeout=1000",
    'polled': "cancellation_polling=1000",
}


@pytest.mark.parametrize('stage', STAGES)
async def test_after_a_kill_the_object_is_let_go_if_its_daemon_was(stage, kube, kind, operator):
    text = f'''
import asyncio

@kopf.daemon(*KIND, {STAGES[stage]})
async def daemon(stopped, **_):
    print("begins")
    try:
        await stopped.wait()
        print("told")
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        print("cancelled")
        await asyncio.sleep(1000)
'''
    first = operator(text, kind=kind)
    await kube.create(kind, 'x')
    await first.wait_for("begins")
    await kube.delete(kind, 'x')
    await first.wait_for({'polled': "is still exiting"}.get(stage, stage))
    first.kill()
    assert is_finalized(await kube.get(kind, 'x'))
    second = operator(text, kind=kind)
    await kube.wait_gone(kind, 'x')
    assert not second.find("begins")


@pytest.mark.filterwarnings('ignore:.*did not exit in time:ResourceWarning')
async def test_stubborn_daemons_are_cancelled_and_then_abandoned(
        kube, kind, journal, embedded, caplog):
    caplog.set_level(logging.DEBUG)
    release = threading.Event()

    @kopf.daemon(*kind.selector, cancellation_timeout=0.2, id='cancelled')
    async def cancelled(**_):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            journal.append('cancelled')
            raise

    @kopf.daemon(*kind.selector, cancellation_backoff=0.1, cancellation_timeout=0.2, id='stuck')
    def stuck(**_):
        journal.append('stuck')
        release.wait(20)

    embedded()
    await kube.create(kind, 'x')
    await journal.wait('stuck')
    await kube.delete(kind, 'x')
    try:
        await kube.wait_gone(kind, 'x')
    finally:
        release.set()
    assert sorted(journal) == ['cancelled', 'stuck']
    assert "Daemon 'stuck' did not exit in time. Leaving it orphaned." in caplog.text


async def test_bodies_of_daemons_are_live_in_threads_too(kube, kind, journal, embedded):

    @kopf.daemon(*kind.selector, id='fn')
    def fn(spec, stopped, **_):
        while not stopped:
            journal.append(spec.get('field'))
            stopped.wait(0.05)

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await journal.wait(1)
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await journal.wait(2)


async def test_indices_are_complete_before_any_handler_of_any_kind_is_called(
        kube, borrow, journal, embedded):
    indexed, handled = borrow(), borrow()
    for i in range(20):
        await kube.create(indexed, f'x{i}', spec={'group': i % 2})
    await kube.create(handled, 'y')

    @kopf.index(*indexed.selector, id='by_group')
    def by_group(name, spec, **_):
        time.sleep(0.02)
        return {spec['group']: name}

    @kopf.on.resume(*handled.selector)
    @kopf.on.create(*handled.selector)
    def fn(by_group, **_):
        journal.append({key: len(names) for key, names in by_group.items()})

    embedded()
    await journal.wait({0: 10, 1: 10})
    assert len(journal) == 1


async def test_indices_follow_the_objects(kube, kind, journal, embedded):

    @kopf.index(*kind.selector, labels=ON, id='by_field')
    async def by_field(name, spec, **_):
        return {spec.get('field'): name, 'all': name}

    @kopf.on.probe()
    async def probe(by_field, **_):
        return None

    @kopf.timer(*kind.selector, interval=0.02, labels={'spy': 'yes'}, id='spy')
    def spy(by_field: kopf.Index, **_):
        journal[:] = [{key: sorted(store) for key, store in by_field.items()}]

    embedded()
    await kube.create(kind, 'spy', labels={'spy': 'yes'})
    await kube.create(kind, 'x', labels=ON, spec={'field': 1})
    await kube.create(kind, 'y', labels=ON, spec={'field': 1})
    await journal.wait({1: ['x', 'y'], 'all': ['x', 'y']})
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await journal.wait({1: ['y'], 2: ['x'], 'all': ['x', 'y']})
    await kube.patch(kind, 'y', {'metadata': {'labels': {'on': None}}})
    await journal.wait({2: ['x'], 'all': ['x']})
    await kube.delete(kind, 'x')
    await journal.wait({})


async def test_absent_kinds_do_not_hold_up_the_others(kube, kind, journal, embedded):

    @kopf.index('nothings.example.com', id='nothings')
    def nothings(**_):
        return 1

    @kopf.on.create(*kind.selector)
    def fn(nothings, **_):
        journal.append(dict(nothings))

    embedded()
    await kube.create(kind, 'x')
    await journal.wait({})


async def test_memos_are_the_same_from_indexing_to_deletion_and_copied_from_the_operators(
        kube, kind, journal, embedded):
    shared = []

    @kopf.on.startup()
    async def startup(memo, **_):
        memo.shared = shared

    @kopf.index(*kind.selector, id='index')
    async def index(memo, **_):
        memo.setdefault('seen', []).append('index')

    @kopf.daemon(*kind.selector, id='daemon')
    async def daemon(memo, stopped, **_):
        memo.seen.append('daemon')
        await stopped.wait()

    @kopf.on.create(*kind.selector)
    async def created(memo, **_):
        memo.seen.append('created')

    @kopf.on.event(*kind.selector)
    async def event(memo, type, **_):
        if type == 'DELETED':
            journal.append([entry for entry in memo.seen if entry != 'index'])

    @kopf.on.delete(*kind.selector)
    async def deleted(memo, **_):
        memo.seen.append('deleted')
        memo.shared.append(memo)

    embedded()
    await kube.create(kind, 'x')
    await wait_settled(kube, kind, 'x')
    await kube.delete(kind, 'x')
    await journal.wait_length(1)
    assert sorted(journal[0]) == ['created', 'daemon', 'deleted']
    assert len(shared) == 1


async def test_memos_can_be_of_any_class(kube, kind, journal, embedded):

    class Own:
        def __copy__(self):
            return self

    own = Own()

    @kopf.timer(*kind.selector, interval=100, id='timer')
    async def timer(memo, **_):
        journal.append(memo)

    @kopf.on.create(*kind.selector)
    async def created(memo, **_):
        journal.append(memo)

    embedded(memo=own)
    await kube.create(kind, 'x')
    await journal.wait_length(2)
    assert journal == [own, own]


async def test_a_thousand_daemons_are_stopped_at_once(kube, kind, journal, embedded):

    @kopf.daemon(*kind.selector, id='fn')
    async def fn(stopped, **_):
        journal.append('begins')
        await stopped.wait()
        journal.append('ends')

    operator = embedded()
    for first in range(0, 1000, 50):
        await asyncio.gather(*(kube.create(kind, f'x{first + i}') for i in range(50)))
    await journal.wait(*['begins'] * 1000, timeout=120)
    started = time.monotonic()
    operator.stop()
    assert time.monotonic() - started < 20
    assert journal.count() == {'begins': 1000, 'ends': 1000}

