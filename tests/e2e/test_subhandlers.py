"""
Handlers of handlers.
"""

import asyncio
import functools
import signal
import threading

import pytest

import kopf
from tests.e2e.journals import FINALIZER, get_progress, wait_handled


def declare_by_decorators(fns):
    def parent_fn(**_):
        for id, fn in fns.items():
            kopf.subhandler(id=id)(fn)
    return parent_fn


def declare_by_registering(fns):
    async def parent_fn(**_):
        for id, fn in fns.items():
            kopf.register(fn, id=id)
    return parent_fn


def execute_mapping(fns):
    async def parent_fn(**_):
        await kopf.execute(fns=fns)
    return parent_fn


def execute_declared(fns):
    async def parent_fn(**_):
        for id, fn in fns.items():
            kopf.subhandler(id=id)(fn)
        await kopf.execute()
    return parent_fn


STYLES = [declare_by_decorators, declare_by_registering, execute_mapping, execute_declared]


@pytest.mark.parametrize('style', STYLES, ids=lambda fn: fn.__name__)
async def test_subhandlers_are_handlers_with_results_and_retries_of_their_own(
        kube, kind, journal, embedded, style):

    def sync_fn(retry, reason, spec, **_):
        journal.append(('sync', retry, str(reason), spec['field']))
        return {'done': True}

    async def async_fn(retry, param, **_):
        journal.append(('async', retry))
        if retry < 2:
            raise kopf.TemporaryError("again!", delay=0.1)
        return 'result'

    def failing_fn(**_):
        journal.append('failing')
        raise kopf.PermanentError("never!")

    kopf.on.create(*kind.selector, id='parent')(
        style({'sync': sync_fn, 'async': async_fn, 'failing': failing_fn}))
    embedded()
    await kube.create(kind, 'x', spec={'field': 'value'})
    obj = await wait_handled(kube, kind, 'x')
    assert journal == [
        ('sync', 0, 'create', 'value'), ('async', 0), 'failing', ('async', 1), ('async', 2)]
    assert obj['status'] == {'parent/sync': {'done': True}, 'parent/async': 'result'}


async def test_functions_to_execute_name_themselves_if_nobody_does(
        kube, kind, embedded):

    def child(number=1, **_):
        return number

    @kopf.on.create(*kind.selector, id='parent')
    async def parent_fn(**_):
        child.__qualname__ = 'child'
        await kopf.execute(fns=[child])
        await kopf.execute(fns={
            f'item{number}': functools.partial(child, number=number) for number in (2, 3)})
        await kopf.execute(fns={'item4': lambda **_: 4})

    embedded()
    await kube.create(kind, 'x')
    obj = await wait_handled(kube, kind, 'x')
    assert obj['status'] == {
        'parent/child': 1, 'parent/item2': 2, 'parent/item3': 3, 'parent/item4': 4}


async def test_what_goes_after_executing_goes_after_all_subhandlers_and_once(
        kube, kind, journal, embedded):

    async def quick_fn(**_):
        journal.append('quick')

    async def slow_fn(retry, **_):
        journal.append(f'slow {retry}')
        if retry < 2:
            raise kopf.TemporaryError("again!", delay=0.1)

    @kopf.on.create(*kind.selector, id='parent', retries=1)
    async def parent_fn(retry, **_):
        journal.append(f'entered {retry}')
        await kopf.execute(fns={'quick': quick_fn, 'slow': slow_fn})
        journal.append('left')
        return 'result'

    embedded()
    await kube.create(kind, 'x')
    obj = await wait_handled(kube, kind, 'x')
    assert [entry for entry in journal if not entry.startswith('entered')] == [
        'quick', 'slow 0', 'slow 1', 'slow 2', 'left']
    assert [entry for entry in journal if entry.startswith('entered')] == [
        'entered 0', 'entered 1', 'entered 2']  # which are one attempt
    assert obj['status'] == {'parent': 'result'}


async def test_subhandlers_can_have_subhandlers(kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector, id='a')
    def a_fn(**_):

        @kopf.subhandler(id='b')
        async def b_fn(**_):

            async def d_fn(retry, **_):
                journal.append(f'd {retry}')
                if not retry:
                    raise kopf.TemporaryError("again!", delay=0.1)
                return 'd'

            @kopf.subhandler(id='c')
            def c_fn(**_):
                journal.append('c')
                return 'c'

            await kopf.execute(fns={'d': d_fn})
            await kopf.execute()
            return 'b'

        return 'a'

    embedded()
    await kube.create(kind, 'x')
    obj = await wait_handled(kube, kind, 'x')
    assert journal == ['d 0', 'd 1', 'c']
    assert obj['status'] == {'a': 'a', 'a/b': 'b', 'a/b/c': 'c', 'a/b/d': 'd'}


async def test_subhandlers_go_on_after_a_restart(kube, kind, operator):
    text = '''
@kopf.on.create(*KIND, id='parent')
def parent_fn(spec, **_):
    for item in spec['items']:
        @kopf.subhandler(id=item)
        def child_fn(retry, item=item, **_):
            print('CALLED', item, retry, flush=True)
            if item == 'slow' and retry < 2:
                raise kopf.TemporaryError("again!", delay=0.9)
            return item
'''
    first = operator(text, kind=kind)
    await kube.create(kind, 'x', spec={'items': ['quick', 'slow', 'another']})
    await first.wait_for('CALLED another 0')
    first.send(signal.SIGTERM)
    assert await first.wait() == 0
    obj = await kube.get(kind, 'x')
    progress = get_progress(obj)
    assert progress.keys() == {'parent', 'parent.quick', 'parent.slow', 'parent.another'}
    assert progress['parent']['subrefs'] == ['parent/another', 'parent/quick', 'parent/slow']
    assert obj['status'] == {'parent/quick': 'quick', 'parent/another': 'another'}

    second = operator(text, kind=kind)
    obj = await wait_handled(kube, kind, 'x')
    assert obj['status'].keys() == {'parent/quick', 'parent/another', 'parent/slow'}
    lines = [*first.find('^CALLED'), *second.find('^CALLED')]
    assert lines == [
        'CALLED quick 0', 'CALLED slow 0', 'CALLED another 0', 'CALLED slow 1', 'CALLED slow 2']


async def test_an_error_of_the_parent_repeats_no_subhandler(kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector, id='parent', backoff=0.1)
    async def parent_fn(retry, **_):

        @kopf.subhandler(id='child')
        def child_fn(**_):
            journal.append('child')

        await kopf.execute()
        journal.append('parent')
        if not retry:
            raise Exception("boo!")

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == ['child', 'parent', 'parent']


async def test_subhandlers_for_every_cause_are_called_for_each_change_anew(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector, id='parent')
    @kopf.on.update(*kind.selector, id='parent', field='spec.items')
    @kopf.on.delete(*kind.selector, id='parent')
    def parent_fn(spec, reason, diff, **_):
        for item in spec['items']:
            @kopf.subhandler(id=item)
            def child_fn(old, retry, item=item, **_):
                if not retry:
                    raise kopf.TemporaryError("again!", delay=0)
                journal.append((str(reason), item))

    embedded()
    await kube.create(kind, 'x', spec={'items': ['a']})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'items': ['a', 'b']}})
    await wait_handled(kube, kind, 'x')
    assert FINALIZER in (await kube.get(kind, 'x'))['metadata']['finalizers']
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert journal == [
        ('create', 'a'), ('update', 'a'), ('update', 'b'), ('delete', 'a'), ('delete', 'b')]


async def test_an_explicit_lifecycle_is_for_the_executed_subhandlers(
        kube, kind, journal, embedded):

    def child(retry, param=None, **_):
        journal.append(retry)

    @kopf.on.create(*kind.selector, id='parent')
    async def parent_fn(**_):
        names = []

        def lifecycle(handlers, **kwargs):
            names.append([handler.id for handler in handlers])
            return handlers[-1:]

        await kopf.execute(fns={'a': child, 'b': child, 'c': child}, lifecycle=lifecycle)
        return names

    embedded()
    await kube.create(kind, 'x')
    obj = await wait_handled(kube, kind, 'x')
    assert obj['status'] == {'parent': [
        ['parent/a', 'parent/b', 'parent/c'], ['parent/a', 'parent/b'], ['parent/a']]}
    assert journal == [0, 0, 0]


async def test_an_edit_between_two_subhandlers_is_an_update_for_all(
        kube, kind, journal, embedded):
    entered, opened = threading.Event(), threading.Event()

    @kopf.on.create(*kind.selector, id='parent')
    @kopf.on.update(*kind.selector, id='parent')
    def parent_fn(reason, **_):

        @kopf.subhandler(id='a')
        def a_fn(spec, **_):
            journal.append((str(reason), 'a', spec['field']))
            entered.set()
            assert opened.wait(10)

        @kopf.subhandler(id='b')
        def b_fn(spec, **_):
            journal.append((str(reason), 'b', spec['field']))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await journal.wait(('create', 'a', 1))
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await asyncio.sleep(0.5)  # so that the watch has brought it
    opened.set()
    await journal.wait(('update', 'b', 2))
    await wait_handled(kube, kind, 'x')
    assert journal == [
        ('create', 'a', 1), ('create', 'b', 2), ('update', 'a', 2), ('update', 'b', 2)]


async def test_results_and_patches_of_subhandlers_are_seen_by_the_next_ones(
        kube, status_kind, journal, embedded):

    @kopf.on.create(*status_kind.selector, id='parent')
    def parent_fn(**_):

        @kopf.subhandler(id='a')
        def a_fn(patch, **_):
            patch.spec['field'] = 'patched'
            patch.status['field'] = 'patched'
            return 'result'

        @kopf.subhandler(id='b')
        def b_fn(spec, status, **_):
            journal.append((spec['field'], status['field'], status['parent/a']))

    embedded()
    await kube.create(status_kind, 'x', spec={'field': 'original'})
    await wait_handled(kube, status_kind, 'x')
    assert journal == [('patched', 'patched', 'result')]
