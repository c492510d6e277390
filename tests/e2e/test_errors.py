"""
What follows of the errors of handlers: retries, limits, and the harm that they must not do.
"""

import asyncio
import datetime
import signal
import threading
import time

import pytest

import kopf
from tests.e2e.journals import (
    FINALIZER,
    get_progress,
    wait_handled,
    wait_settled,
)

STRICT_SCHEMA = {'type': 'object', 'properties': {
    'spec': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True},
    'status': {'type': 'object', 'properties': {'kept': {'type': 'string'}}},
}}


def get_messages(caplog, level):
    return [record.getMessage() for record in caplog.records
            if record.name == 'kopf.objects' and record.levelname == level]


async def test_arbitrary_errors_are_tried_again_after_the_backoff(
        kube, kind, journal, embedded, settings, caplog):
    settings.execution.default_backoff = 0.3

    @kopf.on.create(*kind.selector, id='sync')
    def sync_fn(retry, started, runtime, **_):
        journal.append(('sync', retry, started, runtime, time.monotonic()))
        if retry < 2:
            raise ValueError("boo!")

    @kopf.on.create(*kind.selector, id='async', backoff=0.1)
    async def async_fn(retry, started, runtime, **_):
        journal.append(('async', retry, started, runtime, time.monotonic()))
        if retry < 2:
            raise ValueError("boo!")

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    for id, backoff in [('sync', 0.3), ('async', 0.1)]:
        entries = [entry for entry in journal if entry[0] == id]
        assert [retry for _, retry, *_ in entries] == [0, 1, 2]
        assert len({started for _, _, started, *_ in entries}) == 1
        pauses = [b[4] - a[4] for a, b in zip(entries, entries[1:], strict=False)]
        assert all(backoff <= pause < backoff + 1 for pause in pauses), pauses
        assert entries[2][3] >= datetime.timedelta(seconds=2 * backoff)
        assert get_messages(caplog, 'ERROR').count(
            f"Handler {id!r} failed with an exception and will try again in {backoff} seconds: "
            f"boo!") == 2


async def test_the_modes_of_errors_decide_what_arbitrary_errors_mean(
        kube, kind, journal, embedded, caplog):
    caplog.set_level('INFO')

    def fail(param, retry, **_):
        journal.append(param)
        if not retry:
            raise Exception("boo!")

    for mode in kopf.ErrorsMode:
        kopf.on.create(*kind.selector, id=mode.name, param=mode.name, errors=mode, backoff=0.1)(
            fail)

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal.count() == {'IGNORED': 1, 'TEMPORARY': 2, 'PERMANENT': 1}
    assert "Creation is processed: 2 succeeded; 1 failed." in get_messages(caplog, 'INFO')
    assert get_messages(caplog, 'ERROR') == [
        "Handler 'IGNORED' failed with an exception and will ignore it: boo!",
        "Handler 'TEMPORARY' failed with an exception and will try again in 0.1 seconds: boo!",
        "Handler 'PERMANENT' failed with an exception and will stop now: boo!",
    ]


async def test_temporary_and_permanent_errors_overrule_the_mode(
        kube, kind, journal, embedded, caplog):

    @kopf.on.create(*kind.selector, id='temporary', errors=kopf.ErrorsMode.PERMANENT)
    async def temporary_fn(retry, **_):
        journal.append(('temporary', time.monotonic()))
        if retry < 2:
            raise kopf.TemporaryError("wait!", delay=[0.3, None][retry])

    @kopf.on.create(*kind.selector, id='permanent', errors=kopf.ErrorsMode.IGNORED)
    async def permanent_fn(**_):
        journal.append(('permanent', 0))
        raise kopf.PermanentError("never!")

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    times = [when for id, when in journal if id == 'temporary']
    assert len(times) == 3
    assert 0.3 <= times[1] - times[0] < 1.3
    assert 0 <= times[2] - times[1] < 1
    assert len(journal) == 4
    assert get_messages(caplog, 'ERROR') == [
        "Handler 'temporary' failed temporarily: wait! (will try again in 0.3 seconds)",
        "Handler 'permanent' failed permanently: never!",
        "Handler 'temporary' failed temporarily: wait! (will try again at once)",
    ]


async def test_a_failed_handler_is_called_again_for_the_next_change(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    @kopf.on.update(*kind.selector)
    def fn(reason, **_):
        journal.append(str(reason))
        raise kopf.PermanentError("never!")

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 1}})
    await wait_handled(kube, kind, 'x')
    assert journal == ['create', 'update']


async def test_the_number_of_tries_is_limited_by_retries(kube, kind, journal, embedded, caplog):

    def fail(param, **_):
        journal.append(param)
        raise kopf.TemporaryError("wait!", delay=0.05) if param == 'a' else Exception("boo!")

    kopf.on.create(*kind.selector, id='a', param='a', retries=3)(fail)
    kopf.on.create(*kind.selector, id='b', param='b', retries=2, backoff=0.05)(fail)
    kopf.on.create(*kind.selector, id='c', param='c', retries=1)(fail)
    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal.count() == {'a': 3, 'b': 2, 'c': 1}
    assert [message for message in get_messages(caplog, 'ERROR') if 'exceed' in message] == [
        "Handler 'c' failed with an exception and will stop now (it would exceed 1 retries on the "
        "next attempt): boo!",
        "Handler 'b' failed with an exception and will stop now (it would exceed 2 retries on the "
        "next attempt): boo!",
        "Handler 'a' failed temporarily but will exceed 3 retries: wait!",
    ]


async def test_tries_end_when_the_timeout_is_over(kube, kind, journal, embedded, caplog):

    @kopf.on.create(*kind.selector, id='fn', timeout=3)
    def fn(**_):
        journal.append('tried')
        raise kopf.TemporaryError("wait!", delay=1.2)

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == ['tried'] * 3
    assert "Handler 'fn' has timed out after" in get_messages(caplog, 'ERROR')[-1]


async def test_a_running_async_handler_is_interrupted_by_its_timeout_and_has_failed(
        kube, kind, journal, embedded, caplog):
    caplog.set_level('INFO')

    @kopf.on.create(*kind.selector, id='fn', timeout=0.3)
    async def fn(patch, **_):
        patch.status['begun'] = True
        try:
            await asyncio.sleep(100)
        finally:
            journal.append(time.monotonic())

    embedded()
    started = time.monotonic()
    await kube.create(kind, 'x')
    obj = await wait_handled(kube, kind, 'x')
    assert 0.3 <= journal[0] - started < 3
    assert len(journal) == 1
    assert obj['status'] == {'begun': True}
    assert get_messages(caplog, 'ERROR')[0].startswith("Handler 'fn' has timed out after 0:00:00.")
    assert "Creation is processed: 0 succeeded; 1 failed." in get_messages(caplog, 'INFO')


async def test_timeouts_inside_of_a_handler_are_errors_as_any_other(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector, timeout=10, backoff=0.1)
    async def fn(retry, **_):
        journal.append(retry)
        if not retry:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(100)

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == [0, 1]


@pytest.mark.parametrize('error', [StopIteration, StopAsyncIteration, asyncio.CancelledError])
async def test_errors_with_a_meaning_for_python_are_errors_as_any_other(
        kube, kind, journal, embedded, error):

    @kopf.on.create(*kind.selector, backoff=0.1)
    def sync_fn(retry, **_):
        journal.append(('sync', retry))
        if not retry:
            raise error()

    @kopf.on.create(*kind.selector, backoff=0.1)
    async def async_fn(retry, **_):
        journal.append(('async', retry))
        if not retry:
            raise error()

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == [('sync', 0), ('async', 0), ('sync', 1), ('async', 1)]


async def test_one_handler_waiting_for_its_retry_does_not_hold_the_others_up(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector, id='waiting')
    def waiting_fn(retry, **_):
        journal.append('waiting')
        if not retry:
            raise kopf.TemporaryError("wait!", delay=0.7)

    @kopf.on.create(*kind.selector, id='quick')
    def quick_fn(**_):
        journal.append('quick')
        return 'done'

    embedded()
    await kube.create(kind, 'x')
    obj = await kube.wait_for(kind, 'x', lambda obj: obj['status']['quick'] == 'done')
    assert get_progress(obj).keys() == {'waiting', 'quick'}
    assert get_progress(obj)['waiting']['message'] == 'wait!'
    obj = await wait_handled(kube, kind, 'x')
    assert journal == ['waiting', 'quick', 'waiting']
    assert obj['status'] == {'quick': 'done'}


async def test_a_deletion_does_not_wait_for_the_retries_of_other_causes(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def create_fn(**_):
        journal.append('create')
        raise kopf.TemporaryError("wait!", delay=100)

    @kopf.on.delete(*kind.selector, id='delete')
    def delete_fn(retry, **_):
        journal.append(f'delete {retry}')
        if not retry:
            raise kopf.TemporaryError("wait!", delay=0.1)

    embedded()
    await kube.create(kind, 'x')
    await kube.wait_for(kind, 'x', get_progress)
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert journal == ['create', 'delete 0', 'delete 1']


async def test_deletion_goes_on_when_its_handlers_have_failed_for_good(
        kube, kind, journal, embedded, caplog):
    caplog.set_level('INFO')

    @kopf.on.delete(*kind.selector, retries=1)
    def fn(**_):
        raise Exception("boo!")

    embedded()
    await kube.create(kind, 'x')
    await kube.wait_for(kind, 'x', lambda obj: obj['metadata']['finalizers'] == [FINALIZER])
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert "Deletion is processed: 0 succeeded; 1 failed." in get_messages(caplog, 'INFO')


async def test_retries_and_delays_and_limits_go_on_after_a_restart(kube, kind, operator):
    text = '''
import time

@kopf.on.create(*KIND, id='done')
def done_fn(**_):
    print('CALLED done', flush=True)

@kopf.on.create(*KIND, id='failed')
def failed_fn(**_):
    print('CALLED failed', flush=True)
    raise kopf.PermanentError("never!")

@kopf.on.create(*KIND, id='retried', retries=3)
def retried_fn(retry, started, runtime, **_):
    print('CALLED retried', retry, started.isoformat(), time.time(), flush=True)
    raise kopf.TemporaryError("wait!", delay=3)

@kopf.on.create(*KIND, id='timed', timeout=6, backoff=3)
async def timed_fn(retry, started, runtime, **_):
    print('CALLED timed', retry, started.isoformat(), runtime.total_seconds(), flush=True)
    raise Exception("boo!")
'''
    first = operator(text, kind=kind)
    await kube.create(kind, 'x')
    await first.wait_for('CALLED timed 0')
    first.send(signal.SIGTERM)
    assert await first.wait() == 0
    assert sorted(line.split()[1] for line in first.find('^CALLED')) == [
        'done', 'failed', 'retried', 'timed']
    obj = await kube.get(kind, 'x')
    assert {id: (record['retries'], record['success'], record['failure'])
            for id, record in get_progress(obj).items()} == {
        'done': (1, True, False),
        'failed': (1, False, True),
        'retried': (1, False, False),
        'timed': (1, False, False),
    }

    second = operator(text, kind=kind)
    await second.wait_for('CALLED retried 1')
    await second.wait_for('CALLED timed 1')
    second.send(signal.SIGTERM)
    assert await second.wait() == 0
    third = operator(text, kind=kind)
    await wait_handled(kube, kind, 'x')
    assert await third.wait_for("Creation is processed: 1 succeeded; 3 failed.")
    assert await third.wait_for("Handler 'retried' failed temporarily but will exceed 3 retries")
    assert await third.wait_for("Handler 'timed' has timed out after 0:00:0[3-9]")

    lines = [line.split()[1:] for process in (first, second, third)
             for line in process.find('^CALLED')]
    retried = [line for line in lines if line[0] == 'retried']
    assert [int(retry) for _, retry, *_ in retried] == [0, 1, 2]
    assert len({started for _, _, started, _ in retried}) == 1
    for earlier, later, process in [(*retried[:2], second), (*retried[1:], third)]:
        line = process.find("Starting the watch-stream for things")[0]
        begun = datetime.datetime.strptime(line[1:24], '%Y-%m-%d %H:%M:%S,%f').timestamp()
        due = float(earlier[3]) + 3
        assert -0.1 < float(later[3]) - max(begun, due) < 2.8  # not as late as if begun anew
    timed = [line for line in lines if line[0] == 'timed']
    assert [int(retry) for _, retry, *_ in timed] == [0, 1]
    assert 2.9 < float(timed[1][3]) < 6
    assert len([line for line in lines if line[0] in ('done', 'failed')]) == 2


async def test_results_that_cannot_be_stored_are_errors_of_their_handlers(
        kube, kind, journal, embedded, caplog):
    caplog.set_level('INFO')
    results = {
        'object': object(), 'set': {1, 2}, 'nan': float('nan'), 'bytes': b'bytes',
        'nested': [{'type': kopf.Memo}],
    }

    @kopf.on.create(*kind.selector, id='good1')
    def good_fn1(**_):
        return 'good1'

    @kopf.on.create(*kind.selector, id='bad')
    def bad_fn(name, patch, **_):
        journal.append(name)
        patch.status['bad-patch'] = True
        return results[name]

    @kopf.on.create(*kind.selector, id='good2')
    def good_fn2(**_):
        return {'good2': [1, 2.5]}

    embedded()
    for name in results:
        await kube.create(kind, name)
        obj = await wait_handled(kube, kind, name)
        assert obj['status'] == {
            'good1': 'good1', 'good2': {'good2': [1, 2.5]}, 'bad-patch': True}
    assert journal == list(results)
    messages = get_messages(caplog, 'ERROR')
    assert len(messages) == len(results)
    assert all(message.startswith("Handler 'bad' failed permanently: the result cannot be stored")
               for message in messages)
    assert get_messages(caplog, 'INFO').count(
        "Creation is processed: 2 succeeded; 1 failed.") == len(results)


def put_an_object(patch):
    patch.spec['field'] = object()


def put_a_wrong_label(patch):
    patch.meta.labels['label'] = 'not valid!'


def put_a_huge_annotation(patch):
    patch.meta.annotations['annotation'] = 'x' * 300_000


def put_more_than_requests_can_have(patch):
    patch.spec['field'] = 'x' * 4_000_000


def put_more_than_the_database_can_have(patch):
    patch.spec['field'] = 'x' * 2_000_000


def transform_wrongly(patch):
    patch.fns.append(lambda body: body['metadata'].update(labels={'label': 'not valid!'}))


def transform_with_an_error(patch):
    patch.fns.append(lambda body: body['no-such-field'])


def transform_to_an_object(patch):
    patch.fns.append(lambda body: body['spec'].update(field=object()))


HARMS = {fn.__name__.replace('_', '-'): fn for fn in [
    put_an_object, put_a_wrong_label, put_a_huge_annotation, put_more_than_requests_can_have,
    put_more_than_the_database_can_have, transform_wrongly, transform_with_an_error,
    transform_to_an_object,
]}


@pytest.mark.parametrize('is_status', [False, True], ids=['plain', 'subresource'])
async def test_a_patch_that_cannot_be_made_fails_its_handler_and_no_other(
        kube, borrow, journal, embedded, caplog, is_status):
    caplog.set_level('INFO')
    kind = borrow(status=is_status)

    @kopf.on.create(*kind.selector, id='good1')
    def good_fn1(name, patch, **_):
        journal.append((name, 'good1'))
        patch.fns.append(lambda body: body['spec']['list'].append('good1'))
        return 'result1'

    @kopf.on.create(*kind.selector, id='bad')
    def bad_fn(name, patch, **_):
        journal.append((name, 'bad'))
        HARMS[name](patch)

    @kopf.on.create(*kind.selector, id='good2')
    def good_fn2(name, patch, **_):
        journal.append((name, 'good2'))
        patch.fns.append(lambda body: body['spec']['list'].append('good2'))
        return 'result2'

    def get_own_messages(name, level):
        return [record.getMessage() for record in caplog.records
                if record.levelname == level and getattr(record, 'k8s_ref', {}).get('name') == name]

    async def check(name):
        await kube.create(kind, name, spec={'list': []})
        obj = await wait_handled(kube, kind, name)
        assert obj['spec'] == {'list': ['good1', 'good2']}
        assert obj['status'] == {'good1': 'result1', 'good2': 'result2'}
        assert "Creation is processed: 2 succeeded; 1 failed." in get_own_messages(name, 'INFO')
        error, = get_own_messages(name, 'ERROR')
        assert error.startswith("Handler 'bad' failed permanently: ")

    embedded()
    await asyncio.gather(*(check(name) for name in HARMS))
    assert journal.count() == {
        (name, id): 1 for name in HARMS for id in ('good1', 'bad', 'good2')}


async def test_a_patch_that_cannot_be_made_does_not_hold_the_deletion_up(
        kube, status_kind, embedded, caplog):

    @kopf.on.delete(*status_kind.selector, id='good')
    def good_fn(patch, **_):
        patch.meta.annotations['good'] = 'yes'

    @kopf.on.delete(*status_kind.selector, id='bad')
    def bad_fn(name, patch, **_):
        HARMS[name](patch)

    async def check(name):
        await kube.create(status_kind, name, finalizers=['example.com/hold'])
        await kube.wait_for(
            status_kind, name, lambda obj: FINALIZER in obj['metadata']['finalizers'])
        await kube.delete(status_kind, name)
        obj = await kube.wait_for(
            status_kind, name, lambda obj: FINALIZER not in obj['metadata']['finalizers'])
        assert obj['metadata']['annotations']['good'] == 'yes'

    embedded()
    await asyncio.gather(*(check(name) for name in HARMS))
    messages = get_messages(caplog, 'ERROR')
    assert len(messages) == len(HARMS)
    assert all(message.startswith("Handler 'bad' failed permanently: ") for message in messages)


async def test_what_the_api_prunes_is_said(kube, make_kind, journal, embedded, caplog):
    kind = await make_kind(schema=STRICT_SCHEMA, status=True)

    @kopf.on.create(*kind.selector, id='fn')
    def fn(patch, **_):
        patch.status['kept'] = 'value'
        return 'lost'

    embedded()
    await kube.create(kind, 'x', spec={})
    obj = await wait_handled(kube, kind, 'x')
    assert obj['status'] == {'kept': 'value'}
    await journal.wait_until(lambda: get_messages(caplog, 'WARNING'))  # after the response
    message, = [record.getMessage() for record in caplog.records if 'status.fn' in record.msg]
    assert message == (
        f"Patching failed with inconsistencies: not stored: status.fn. Usually, the schema of "
        f"{kind.plural} in {kind.api_version} lacks this: add it there, or set "
        f"x-kubernetes-preserve-unknown-fields.")


async def test_what_the_api_prunes_of_transformed_objects_is_said(
        kube, make_kind, journal, embedded, caplog):
    kind = await make_kind(schema=STRICT_SCHEMA, status=True)

    @kopf.on.create(*kind.selector, id='fn')
    def fn(patch, **_):
        @patch.fns.append
        def transform(body):
            body.setdefault('status', {}).update(kept='value', made={'x': 1})

    embedded()
    await kube.create(kind, 'x', spec={})
    obj = await wait_handled(kube, kind, 'x')
    assert obj['status'] == {'kept': 'value'}
    await journal.wait_until(lambda: get_messages(caplog, 'WARNING'))  # after the response
    message, = get_messages(caplog, 'WARNING')
    assert message.startswith("Patching failed with inconsistencies: not stored: status.made.")


async def test_results_that_the_api_prunes_are_no_changes_to_those_who_handle_the_status(
        kube, make_kind, journal, embedded):
    kind = await make_kind(schema=STRICT_SCHEMA, status=True)

    @kopf.on.field(*kind.selector, field='status', id='fn')
    def fn(old, new, **_):
        journal.append((old, new))
        return 'lost'

    embedded()
    await kube.create(kind, 'x', spec={})
    await kube.wait_for(kind, 'x', lambda obj: obj['metadata']['annotations'])
    await kube.patch(kind, 'x', {'status': {'kept': 'value'}}, subresource='status')
    await journal.wait((None, {'kept': 'value'}))
    await wait_settled(kube, kind, 'x')
    assert journal == [(None, {'kept': 'value'})]


async def test_a_handler_that_blocks_its_thread_does_not_hinder_other_objects(
        kube, kind, journal, embedded):
    proceed = threading.Event()

    @kopf.on.create(*kind.selector)
    def fn(name, **_):
        if name == 'x':
            proceed.wait(10)
        journal.append(name)

    embedded()
    await kube.create(kind, 'x')
    await kube.create(kind, 'y')
    await wait_handled(kube, kind, 'y')
    assert journal == ['y']
    proceed.set()
    await wait_handled(kube, kind, 'x')
    assert journal == ['y', 'x']


async def test_a_bad_patch_of_an_event_handler_does_not_hinder_the_others(
        kube, kind, journal, embedded, settings, caplog):
    settings.queueing.error_delays = [600]

    @kopf.on.event(*kind.selector, when=lambda name, **_: name == 'x')
    def bad_fn(patch, **_):
        patch.meta.labels['label'] = 'not valid!'

    @kopf.on.event(*kind.selector)
    def event_fn(name, type, **_):
        journal.append((name, type))

    @kopf.on.create(*kind.selector)
    def create_fn(name, **_):
        journal.append(name)

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    await journal.wait('x', ('x', 'MODIFIED'))
    while len(messages := get_messages(caplog, 'ERROR')) < 2:
        await asyncio.sleep(0.02)
    await kube.delete(kind, 'x')
    await journal.wait(('x', 'DELETED'))
    assert journal.count() == {
        'x': 1, journal[0]: 1, ('x', 'MODIFIED'): 1, ('x', 'DELETED'): 1}
    assert all('not valid!' in message for message in messages)


async def test_a_failed_startup_ends_the_operator_with_an_error(operator, kind):
    text = '''
@kopf.on.startup(id='bad')
def bad_fn(**_):
    raise kopf.PermanentError("no way!")

@kopf.on.startup(id='good', backoff=0.1)
def good_fn(retry, **_):
    if not retry:
        raise Exception("boo!")

@kopf.on.create(*KIND)
def create_fn(**_):
    pass
'''
    process = operator(text, kind=kind)
    assert await process.wait() == 1
    assert process.find("Activity 'bad' failed permanently: no way!")
    assert process.find("Activity 'good' failed with an exception and will try again in 0.1 sec")
    assert process.find("Activity 'good' succeeded")
    assert not process.find("watch-stream for things")
