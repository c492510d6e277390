"""
Whatever happens to objects while they are handled: nothing is lost, repeated, or done to others.
"""

import asyncio
import random
import threading
import time

import pytest

import kopf
from tests.e2e.journals import (
    FINALIZER,
    get_last_handled,
    get_progress,
    is_handled,
    wait_handled,
    wait_settled,
)


class Gate:
    """Lets a handler wait in the middle; ``entered`` & ``opened`` can be used from any thread."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def pass_through(self) -> None:
        self.entered.set()
        assert self.opened.wait(10)

    async def wait_entered(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.01)


@pytest.fixture()
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


async def test_an_edit_between_two_creation_handlers_is_an_update_for_all_handlers_of_updates(
        kube, kind, journal, embedded, gate):

    @kopf.on.create(*kind.selector)
    def create_fn1(spec, **_):
        journal.append(('create 1', spec['field']))
        gate.pass_through()

    @kopf.on.create(*kind.selector)
    def create_fn2(spec, **_):
        journal.append(('create 2', spec['field']))

    @kopf.on.update(*kind.selector, field='spec.field')
    def update_fn1(old, new, **_):
        journal.append(('update 1', old, new))

    @kopf.on.update(*kind.selector, field='spec.field')
    def update_fn2(old, new, **_):
        journal.append(('update 2', old, new))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await gate.wait_entered()
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gate.opened.set()
    await wait_handled(kube, kind, 'x')
    assert journal == [
        ('create 1', 1), ('create 2', 2), ('update 1', 1, 2), ('update 2', 1, 2)]


async def test_an_edit_between_two_update_handlers_is_seen_by_both(
        kube, kind, journal, embedded, gate):

    @kopf.on.update(*kind.selector, field='spec.field')
    def update_fn1(old, new, **_):
        journal.append(('fn1', old, new))
        if new == 2:
            gate.pass_through()

    @kopf.on.update(*kind.selector, field='spec.field')
    def update_fn2(old, new, **_):
        journal.append(('fn2', old, new))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await gate.wait_entered()
    await kube.patch(kind, 'x', {'spec': {'field': 3}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gate.opened.set()
    await wait_handled(kube, kind, 'x')
    assert [entry for entry in journal if entry[0] == 'fn1'] == [('fn1', 1, 2), ('fn1', 2, 3)]
    assert [entry for entry in journal if entry[0] == 'fn2'] == [('fn2', 1, 3), ('fn2', 2, 3)]


async def test_an_edit_reverted_between_two_handlers_is_reverted_for_those_who_have_seen_it(
        kube, kind, journal, embedded, gate):

    @kopf.on.update(*kind.selector, field='spec.field')
    def update_fn1(old, new, **_):
        journal.append(('fn1', old, new))
        if new == 2:
            gate.pass_through()

    @kopf.on.update(*kind.selector, field='spec.field')
    def update_fn2(old, new, **_):
        journal.append(('fn2', old, new))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await gate.wait_entered()
    await kube.patch(kind, 'x', {'spec': {'field': 1}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gate.opened.set()
    await journal.wait(('fn1', 2, 1))
    await wait_handled(kube, kind, 'x')
    assert [entry for entry in journal if entry[0] == 'fn1'] == [('fn1', 1, 2), ('fn1', 2, 1)]
    assert [entry for entry in journal if entry[0] == 'fn2'] == [('fn2', 2, 1)]


@pytest.mark.parametrize('labels', [None, {'some': 'label'}], ids=['alone', 'with-another-change'])
async def test_an_edit_reverted_to_what_only_some_have_seen_is_reverted_for_the_others(
        kube, kind, journal, embedded, labels):
    gates = {2: Gate(), 3: Gate()}

    def fn(param, new, **_):
        journal.append((param, new))
        if new in gates:
            gates[new].pass_through()

    kopf.on.update(*kind.selector, field='spec.field', id='fn1', param='fn1')(fn)
    kopf.on.update(*kind.selector, field='spec.field', id='fn2', param='fn2')(fn)

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await gates[2].wait_entered()
    await kube.patch(kind, 'x', {'spec': {'field': 3}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gates[2].opened.set()
    await gates[3].wait_entered()
    await kube.patch(kind, 'x', {'spec': {'field': 2}, 'metadata': {'labels': labels}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gates[3].opened.set()
    await journal.wait(('fn2', 2))
    await wait_handled(kube, kind, 'x')
    assert journal[:2] == [('fn1', 2), ('fn2', 3)]
    assert sorted(journal[2:]) == [('fn1', 2), ('fn2', 2)]


@pytest.mark.parametrize('final', [3, 1], ids=['edited', 'reverted'])
@pytest.mark.parametrize('is_down', [False, True], ids=['running', 'down'])
async def test_an_edit_while_a_retry_is_waited_for_is_seen_by_those_who_were_done(
        kube, kind, journal, embedded, is_down, final):
    errors = [kopf.TemporaryError("wait!", delay=1)]

    @kopf.on.update(*kind.selector, field='spec.field', id='done')
    def done_fn(old, new, **_):
        journal.append(('done', old, new))

    @kopf.on.update(*kind.selector, field='spec.field', id='retried')
    def retried_fn(old, new, **_):
        journal.append(('retried', old, new))
        if errors:
            raise errors.pop()

    operator = embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await kube.wait_for(kind, 'x', lambda obj: get_progress(obj)['retried.spec.field']['delayed'])
    if is_down:
        operator.stop()
    await kube.patch(kind, 'x', {'spec': {'field': final}})
    if is_down:
        embedded()
    await journal.wait(('done', 2, final))
    obj = await wait_handled(kube, kind, 'x')
    await wait_settled(kube, kind, 'x', quiet=1.2 if final == 1 else 0.3)
    assert obj['spec'] == {'field': final}
    assert [entry for entry in journal if entry[0] == 'done'] == [
        ('done', 1, 2), ('done', 2, final)]
    retried = [entry for entry in journal if entry[0] == 'retried']
    assert retried[0] == ('retried', 1, 2)
    assert retried[-1][2] == final
    if final == 3:
        assert retried[1:] == [('retried', 1, 3), ('retried', 2, 3)]


async def test_an_edit_before_any_handler_is_done_is_a_part_of_the_same_change(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def create_fn(spec, retry, **_):
        journal.append((retry, spec['field']))
        if spec['field'] == 1:
            raise kopf.TemporaryError("wait!", delay=0.5)

    @kopf.on.update(*kind.selector)
    def update_fn(**_):
        journal.append('update')

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await kube.wait_for(kind, 'x', get_progress)
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    obj = await wait_handled(kube, kind, 'x')
    last = len(journal) - 1
    assert last > 0 and journal == [*((retry, 1) for retry in range(last)), (last, 2)]
    assert get_last_handled(obj) == {'spec': {'field': 2}}


async def test_an_object_whose_last_handled_state_is_taken_away_is_a_new_one(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def fn(**_):
        journal.append('create')

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'metadata': {'annotations': None}})
    await wait_handled(kube, kind, 'x')
    assert journal == ['create', 'create']


@pytest.mark.parametrize('is_status', [False, True], ids=['plain', 'subresource'])
async def test_functions_and_results_are_applied_to_the_newest_state(
        kube, borrow, journal, embedded, gate, is_status):
    kind = borrow(status=is_status)

    @kopf.on.create(*kind.selector, id='create')
    def create_fn(patch, **_):
        gate.pass_through()
        patch.fns.append(lambda body: body['spec']['list'].append('by function'))
        patch.fns.append(lambda body: body.setdefault('status', {}).update(f='by function'))
        patch.status['p'] = 'by patch'
        return 'result'

    @kopf.on.update(*kind.selector)
    def update_fn(spec, **_):
        journal.append([*spec['list']])

    embedded()
    await kube.create(kind, 'x', spec={'list': []})
    await gate.wait_entered()
    await kube.patch(kind, 'x', {'spec': {'list': ['by others']}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gate.opened.set()
    await journal.wait_length(1)
    obj = await wait_handled(kube, kind, 'x')
    assert obj['spec'] == {'list': ['by others', 'by function']}
    assert obj['status'] == {'create': 'result', 'p': 'by patch', 'f': 'by function'}
    assert journal == [['by others', 'by function']]


async def test_an_edit_during_the_last_handler_is_an_update(kube, kind, journal, embedded, gate):

    @kopf.on.create(*kind.selector)
    async def create_fn(spec, **_):
        journal.append(('create', spec['field']))
        gate.entered.set()
        while not gate.opened.is_set():
            await asyncio.sleep(0.01)
        return spec['field']

    @kopf.on.update(*kind.selector)
    def update_fn(diff, **_):
        journal.append(('update', tuple(diff)))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await gate.wait_entered()
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gate.opened.set()
    await wait_handled(kube, kind, 'x')
    assert journal == [('create', 1), ('update', (('change', ('spec', 'field'), 1, 2),))]


async def test_own_patches_are_updates_only_if_they_are_of_the_last_handler(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def create_fn1(patch, **_):
        patch.spec['by-fn1'] = True

    @kopf.on.create(*kind.selector)
    def create_fn2(patch, spec, **_):
        journal.append(('create 2', dict(spec)))
        patch.spec['by-fn2'] = True

    @kopf.on.update(*kind.selector)
    def update_fn(diff, **_):
        journal.append(('update', tuple(diff)))

    embedded()
    await kube.create(kind, 'x', spec={})
    await journal.wait_length(2)
    await wait_handled(kube, kind, 'x')
    await wait_settled(kube, kind, 'x')
    assert journal == [
        ('create 2', {'by-fn1': True}),
        ('update', (('add', ('spec', 'by-fn2'), None, True),)),
    ]


async def test_a_storm_of_edits_is_handled_to_the_last_one_and_never_by_two_at_once(
        kube, kind, journal, embedded):
    running = threading.Semaphore(1)

    def check(new, **_):
        assert running.acquire(blocking=False)
        time.sleep(0.02)
        running.release()
        journal.append(new)

    kopf.on.update(*kind.selector, field='spec.field', id='fn1')(check)
    kopf.on.update(*kind.selector, field='spec.field', id='fn2')(check)

    @kopf.on.event(*kind.selector)
    def event_fn(**_):
        assert running.acquire(blocking=False)
        running.release()

    embedded()
    await kube.create(kind, 'x', spec={'field': 0})
    await wait_handled(kube, kind, 'x')
    for value in range(1, 51):
        await kube.patch(kind, 'x', {'spec': {'field': value}})
    obj = await wait_handled(kube, kind, 'x')
    assert get_last_handled(obj) == {'spec': {'field': 50}}
    assert journal[-2:] == [50, 50]
    assert sorted(journal) == journal
    assert len(journal) < 100


@pytest.mark.parametrize('seed', range(2))
async def test_whatever_happens_each_handler_has_seen_the_final_state_in_the_end(
        kube, kind, status_kind, embedded, settings, caplog, seed):
    chance = random.Random(seed)
    settings.queueing.exit_timeout = 0.1
    settings.persistence.flush_delay = chance.choice([0, 0.05, 1])
    deadline = time.monotonic() + 4
    seen = {}  # the latest values, by the uids of objects and the handlers

    def fail_sometimes():
        if random.random() < 0.15:
            raise kopf.TemporaryError("again!", delay=random.random() * 0.3)

    def sync_fn(uid, param, new, patch, **_):
        time.sleep(random.random() * 0.03)
        fail_sometimes()
        seen[uid, param] = new
        if random.random() < 0.3:
            patch.status[param] = random.random()
        if random.random() < 0.1:
            patch.meta.labels['own'] = str(random.randint(0, 5))
        return random.choice([None, 'result'])

    async def async_fn(uid, param, new, **_):
        await asyncio.sleep(random.random() * 0.05)
        fail_sometimes()
        seen[uid, param] = new

    fns = {'a': sync_fn, 'b': async_fn, 'c': sync_fn, 'd': async_fn}
    for k in (kind, status_kind):
        for param, fn in fns.items():
            for decorate in (kopf.on.create, kopf.on.update):
                decorate(*k.selector, id=f'{decorate.__name__}-{param}', param=param,
                         field='spec.field')(fn)

    async def edit(kind, name):
        await kube.create(kind, name, spec={'field': 0})
        while time.monotonic() < deadline:
            await asyncio.sleep(chance.random() * 0.3)
            match chance.randrange(10):
                case 0:
                    await kube.delete(kind, name)
                    await kube.create(kind, name, spec={'field': 0})
                case 1:
                    label = str(chance.random())
                    await kube.patch(kind, name, {'metadata': {'labels': {'foreign': label}}})
                case _:
                    await kube.patch(kind, name, {'spec': {'field': chance.randrange(3)}})

    async def restart():
        while time.monotonic() < deadline:
            operator = embedded()
            await asyncio.sleep(chance.random() * 2)
            await asyncio.to_thread(operator.stop)
        embedded()

    objs = [(k, f'obj{index}') for k in (kind, status_kind) for index in range(4)]
    await asyncio.gather(restart(), *(edit(k, name) for k, name in objs))
    for k, name in objs:
        await wait_handled(kube, k, name)
        obj = await wait_settled(kube, k, name)
        uid, value = obj['metadata']['uid'], obj['spec']['field']
        assert {param: seen.get((uid, param)) for param in fns} == dict.fromkeys(fns, value)
    errors = [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']
    assert [message for message in errors if 'again!' not in message] == []


async def test_a_deletion_in_the_middle_of_handling_comes_before_the_other_handlers(
        kube, kind, journal, embedded, gate):

    @kopf.on.create(*kind.selector)
    def create_fn1(meta, **_):
        journal.append(('create 1', FINALIZER in meta['finalizers']))
        gate.pass_through()
        return 'result'

    @kopf.on.create(*kind.selector)
    def create_fn2(**_):
        journal.append('create 2')

    @kopf.on.delete(*kind.selector)
    def delete_fn(status, **_):
        journal.append(('delete', list(status.values())))

    embedded()
    await kube.create(kind, 'x')
    await gate.wait_entered()
    await kube.delete(kind, 'x')
    await asyncio.sleep(0.5)  # so that the watch has brought it
    gate.opened.set()
    await kube.wait_gone(kind, 'x')
    assert journal == [('create 1', True), ('delete', ['result'])]


async def test_an_object_that_is_gone_in_the_middle_of_handling_is_let_alone(
        kube, kind, journal, embedded, gate, caplog):

    @kopf.on.create(*kind.selector)
    def create_fn1(name, **_):
        journal.append((name, 1))
        if name == 'x':
            gate.pass_through()
        return 'result'

    @kopf.on.create(*kind.selector)
    def create_fn2(name, **_):
        journal.append((name, 2))

    embedded()
    await kube.create(kind, 'x')
    await gate.wait_entered()
    await kube.delete(kind, 'x')
    await kube.create(kind, 'y')
    await wait_handled(kube, kind, 'y')
    gate.opened.set()
    await kube.create(kind, 'z')
    await wait_handled(kube, kind, 'z')
    assert journal == [('x', 1), ('y', 1), ('y', 2), ('z', 1), ('z', 2)]
    assert [record.getMessage() for record in caplog.records if record.levelno > 30] == []


async def test_an_object_that_is_gone_is_not_retried(kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def fn(retry, **_):
        journal.append(retry)
        raise kopf.TemporaryError("wait!", delay=3)

    embedded()
    await kube.create(kind, 'x')
    await kube.wait_for(kind, 'x', get_progress)
    await kube.delete(kind, 'x')
    await asyncio.sleep(3.5)
    assert journal == [0]


@pytest.mark.parametrize('is_status', [False, True], ids=['plain', 'subresource'])
@pytest.mark.parametrize('change', ['result', 'spec', 'labels', 'function', 'status-function'])
async def test_a_namesake_created_in_the_middle_of_handling_gets_nothing_of_it(
        kube, borrow, journal, embedded, gate, caplog, is_status, change):
    kind = borrow(status=is_status)

    @kopf.on.create(*kind.selector)
    def fn(uid, patch, **_):
        journal.append(uid)
        if uid != journal[0]:
            return None
        gate.pass_through()
        match change:
            case 'result':
                return 'of another'
            case 'spec':
                patch.spec['field'] = 'of another'
            case 'labels':
                patch.meta.labels['label'] = 'of.another'
            case 'function':
                patch.fns.append(lambda body: body['spec'].update(field='of another'))
            case 'status-function':
                patch.fns.append(lambda body: body.setdefault('status', {}).update(f='of another'))
        return None

    embedded()
    first = await kube.create(kind, 'x', spec={'field': 'original'})
    await gate.wait_entered()
    await kube.delete(kind, 'x')
    second = await kube.create(kind, 'x', spec={'field': 'original'})
    gate.opened.set()
    obj = await wait_handled(kube, kind, 'x')
    obj = await wait_settled(kube, kind, 'x')
    assert is_handled(obj)
    assert obj['metadata']['uid'] == second['metadata']['uid']
    assert obj['spec'] == {'field': 'original'}
    assert 'labels' not in obj['metadata']
    assert 'status' not in obj
    assert journal == [first['metadata']['uid'], second['metadata']['uid']]
    assert [record.getMessage() for record in caplog.records if record.levelno >= 40] == []


async def test_deletions_of_namesakes_are_told_in_order(kube, kind, journal, embedded):

    @kopf.on.event(*kind.selector)
    def fn(uid, type, **_):
        time.sleep(0.05)
        journal.append((uid, type))

    await kube.create(kind, 'first')
    embedded()
    await journal.wait_length(1)
    uids = []
    for _ in range(3):
        obj = await kube.create(kind, 'x')
        uids.append(obj['metadata']['uid'])
        await kube.delete(kind, 'x')
    await journal.wait_length(7)
    assert journal[1:] == [(uid, type) for uid in uids for type in ('ADDED', 'DELETED')]


async def test_thousands_of_objects_are_handled_once_each_and_new_ones_before_the_backlog(
        kube, make_kind, journal, embedded):
    kind = await make_kind()

    @kopf.on.create(*kind.selector)
    async def create_fn(name, **_):
        journal.append(name)

    @kopf.on.resume(*kind.selector)
    async def resume_fn(name, reason, **_):
        if reason == 'resume':
            journal.append(f'resumed {name}')

    async def create(names):
        left = list(names)
        async def work():
            while left:
                await kube.create(kind, left.pop(), spec={'field': 'value'})
        await asyncio.gather(*(work() for _ in range(20)))

    old = [f'old{index:04}' for index in range(2000)]
    new = [f'new{index:04}' for index in range(2000)]
    await create(old)
    operator = embedded()
    await journal.wait_length(1)
    await create(new)
    await journal.wait_length(4000, timeout=60)
    objs = []
    while not objs or not all(is_handled(obj) for obj in objs):
        await asyncio.sleep(0.2)
        objs = await kube.list_objects(kind)
    assert len(objs) == 4000
    assert sorted(journal) == sorted([*old, *new])
    backlog = [name for name in journal[:journal.index(new[-1])] if name in old]
    assert len(backlog) < 1000  # it was the first of the new ones
    operator.stop()

    journal.clear()
    embedded()
    await journal.wait_length(4000, timeout=60)
    assert sorted(journal) == sorted(f'resumed {name}' for name in [*old, *new])


async def test_no_more_objects_are_handled_at_once_than_the_limit_and_waiting_ones_do_not_count(
        kube, kind, journal, embedded, settings):
    settings.queueing.worker_limit = 2
    running, most, are_two = [], [], asyncio.Event()

    @kopf.on.create(*kind.selector)
    async def fn(name, retry, **_):
        if name.startswith('waiting') and not retry:
            raise kopf.TemporaryError("wait!", delay=1)
        running.append(name)
        most.append(len(running))
        if len(running) == 2:
            are_two.set()
        await are_two.wait()  # the next object can come late
        await asyncio.sleep(0.1)
        running.remove(name)
        journal.append(name)

    for index in range(3):
        await kube.create(kind, f'waiting{index}')
    embedded()
    for index in range(4):
        await kube.create(kind, f'usual{index}')
    await journal.wait_length(7)
    assert all(name.startswith('usual') for name in journal[:4])
    assert max(most) == 2


async def test_leaving_lets_handlers_finish_and_keeps_what_is_done(
        kube, kind, journal, embedded, settings):
    settings.queueing.exit_timeout = 5

    @kopf.on.create(*kind.selector, id='quick')
    def quick_fn(**_):
        journal.append('quick')

    @kopf.on.create(*kind.selector, id='slow')
    async def slow_fn(**_):
        journal.append('slow')
        await asyncio.sleep(0.7)
        journal.append('slow is done')
        return 'result'

    @kopf.on.create(*kind.selector, id='next')
    def next_fn(**_):
        journal.append('next')

    operator = embedded()
    await kube.create(kind, 'x')
    await journal.wait('slow')
    operator.stop()
    assert journal == ['quick', 'slow', 'slow is done']
    obj = await kube.get(kind, 'x')
    assert {id: record['success'] for id, record in get_progress(obj).items()} == {
        'quick': True, 'slow': True, 'next': False}
    assert obj['status'] == {'slow': 'result'}
    embedded()
    obj = await wait_handled(kube, kind, 'x')
    assert journal == ['quick', 'slow', 'slow is done', 'next']
    assert obj['status'] == {'slow': 'result'}


async def test_leaving_interrupts_async_handlers_after_the_timeout_and_keeps_what_was_done(
        kube, kind, journal, embedded, settings, caplog):
    settings.queueing.exit_timeout = 0.5

    @kopf.on.create(*kind.selector, id='quick')
    def quick_fn(patch, **_):
        patch.status['kept'] = True
        journal.append('quick')

    @kopf.on.create(*kind.selector, id='endless')
    async def endless_fn(retry, patch, **_):
        journal.append(f'endless {retry}')
        if len(journal) < 3:
            try:
                await asyncio.sleep(100)
            finally:
                journal.append('interrupted')

    operator = embedded()
    await kube.create(kind, 'x')
    await journal.wait('endless 0')
    started = time.monotonic()
    operator.stop()
    assert 0.4 < time.monotonic() - started < 20  # not the 100 seconds of the handler
    assert "1 objects are still being handled; interrupting their handlers." in caplog.messages
    obj = await kube.get(kind, 'x')
    assert get_progress(obj)['quick']['success']
    assert obj['status'] == {'kept': True}
    embedded()
    await wait_handled(kube, kind, 'x')
    assert journal == ['quick', 'endless 0', 'interrupted', 'endless 0']


async def test_leaving_waits_for_the_threads_of_sync_handlers_and_keeps_what_they_did(
        kube, kind, journal, embedded, settings):
    settings.queueing.exit_timeout = 0.1

    @kopf.on.create(*kind.selector, id='fn')
    def fn(**_):
        journal.append('begun')
        time.sleep(1)
        journal.append('done')
        return 'result'

    @kopf.on.create(*kind.selector, id='other')
    def other_fn(**_):
        journal.append('other')

    operator = embedded()
    await kube.create(kind, 'x')
    await journal.wait('begun')
    operator.stop()
    assert journal == ['begun', 'done']
    obj = await kube.get(kind, 'x')
    assert obj['status'] == {'fn': 'result'}
    embedded()
    await wait_handled(kube, kind, 'x')
    assert journal == ['begun', 'done', 'other']


@pytest.mark.parametrize('delay, least, most', [(1.0, 0.9, 3), (0.3, 0.2, 0.9), (0, 0, 0.9)])
async def test_what_is_done_is_kept_after_a_moment_also_while_the_next_handler_runs(
        kube, kind, journal, embedded, settings, gate, delay, least, most):
    settings.persistence.flush_delay = delay

    @kopf.on.create(*kind.selector, id='quick')
    def quick_fn(**_):
        journal.append(time.monotonic())
        return 'result'

    @kopf.on.create(*kind.selector, id='slow')
    def slow_fn(**_):
        gate.pass_through()

    embedded()
    await kube.create(kind, 'x')
    obj = await kube.wait_for(kind, 'x', lambda obj: get_progress(obj)['quick']['success'])
    assert least <= time.monotonic() - journal[0] < most
    assert gate.entered.is_set() or delay == 0
    assert not gate.opened.is_set()
    assert obj['status'] == {'quick': 'result'}
    gate.opened.set()
    obj = await wait_handled(kube, kind, 'x')
    assert obj['status'] == {'quick': 'result'}
