"""
What handlers are called for, and with what.
"""

import asyncio
import datetime
import functools
import json
import logging
import threading

import kopf
from tests.e2e.journals import (
    FINALIZER,
    LAST_HANDLED,
    get_last_handled,
    wait_handled,
    wait_settled,
)

FOREIGN = 'example.com/hold'

COMMON_KWARGS = {'memo', 'logger', 'param', 'retry', 'started', 'runtime'}
ACTIVITY_KWARGS = COMMON_KWARGS | {'activity', 'settings'}
OBJECT_KWARGS = COMMON_KWARGS | {
    'resource', 'body', 'spec', 'meta', 'status', 'uid', 'name', 'namespace', 'labels',
    'annotations', 'patch',
}
CHANGE_KWARGS = OBJECT_KWARGS | {'reason', 'diff', 'old', 'new'}
EVENT_KWARGS = OBJECT_KWARGS | {'event', 'type'}


async def test_creation_is_handled_once_with_the_whole_object_as_new(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    async def fn(reason, old, new, diff, **_):
        journal.append((reason, old, new, tuple(diff)))

    embedded()
    await kube.create(
        kind, 'x', labels={'l': 'v'}, annotations={'a': 'v'}, spec={'field': 1}, other=['y'])
    obj = await wait_handled(kube, kind, 'x')
    essence = {
        'spec': {'field': 1}, 'other': ['y'],
        'metadata': {'labels': {'l': 'v'}, 'annotations': {'a': 'v'}},
    }
    assert journal == [('create', None, essence, (('add', (), None, essence),))]
    assert get_last_handled(obj) == essence


async def test_an_update_is_handled_with_the_exact_difference(kube, kind, journal, embedded):

    @kopf.on.update(*kind.selector)
    def fn(reason, old, new, diff, **_):
        journal.append((reason, old, new, [tuple(item) for item in diff]))

    embedded()
    await kube.create(
        kind, 'x', labels={'l1': 'a', 'l2': 'b'}, spec={'changed': 1, 'removed': {'a': 'b'}})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {
        'metadata': {'labels': {'l1': None, 'l2': 'c'}},
        'spec': {'changed': [1, 2], 'removed': None, 'added': {'x': {'y': 'z'}}},
    })
    await wait_handled(kube, kind, 'x')

    (reason, old, new, diff), = journal
    assert reason == 'update'
    assert old == {
        'metadata': {'labels': {'l1': 'a', 'l2': 'b'}},
        'spec': {'changed': 1, 'removed': {'a': 'b'}},
    }
    assert new == {
        'metadata': {'labels': {'l2': 'c'}},
        'spec': {'changed': [1, 2], 'added': {'x': {'y': 'z'}}},
    }
    assert sorted(diff, key=lambda item: item[1]) == [
        ('remove', ('metadata', 'labels', 'l1'), 'a', None),
        ('change', ('metadata', 'labels', 'l2'), 'b', 'c'),
        ('add', ('spec', 'added'), None, {'x': {'y': 'z'}}),
        ('change', ('spec', 'changed'), 1, [1, 2]),
        ('remove', ('spec', 'removed'), {'a': 'b'}, None),
    ]


async def test_changes_of_the_status_and_of_system_metadata_are_no_updates(
        kube, kind, journal, embedded):

    @kopf.on.update(*kind.selector)
    def fn(**_):
        journal.append('updated')

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'status': {'field': 1}})
    await kube.patch(kind, 'x', {'metadata': {'finalizers': [FOREIGN]}})
    edited = await kube.patch(kind, 'x', {'metadata': {'annotations': {
        'kubectl.kubernetes.io/last-applied-configuration': 'x'}}})
    assert await wait_settled(kube, kind, 'x') == edited
    assert journal == []


async def test_handlers_of_an_unhandled_object_and_of_resuming_are_mixed_as_declared(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def fn1(reason, **_):
        journal.append(('create 1', reason))

    @kopf.on.resume(*kind.selector)
    def fn2(reason, **_):
        journal.append(('resume', reason))

    @kopf.on.create(*kind.selector)
    def fn3(reason, **_):
        journal.append(('create 2', reason))

    @kopf.on.update(*kind.selector)
    def fn4(reason, **_):
        journal.append(('update', reason))

    await kube.create(kind, 'x')
    embedded()
    await wait_handled(kube, kind, 'x')
    assert journal == [('create 1', 'create'), ('resume', 'create'), ('create 2', 'create')]


async def test_resuming_happens_once_per_operator_and_object(
        kube, kind, journal, embedded):

    @kopf.on.resume(*kind.selector)
    def resume_fn(name, reason, old, new, diff, **_):
        journal.append((name, reason, old == new, len(diff)))

    @kopf.on.create(*kind.selector)
    @kopf.on.update(*kind.selector)
    def other_fn(name, reason, **_):
        journal.append((name, reason))

    await kube.create(kind, 'first')
    first = embedded()
    await wait_handled(kube, kind, 'first')  # from now on, objects are new
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.delete(kind, 'first')
    assert journal == [('first', 'create', False, 1), ('first', 'create'), ('x', 'create')]
    first.stop()
    journal.clear()

    second = embedded()
    await journal.wait(('x', 'resume', True, 0))
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await wait_handled(kube, kind, 'x')
    await kube.create(kind, 'y')
    await wait_handled(kube, kind, 'y')
    assert journal == [('x', 'resume', True, 0), ('x', 'update'), ('y', 'create')]
    second.stop()

    journal.clear()
    await kube.patch(kind, 'y', {'spec': {'field': 3}})
    embedded()
    await journal.wait(('x', 'resume', True, 0), ('y', 'update', False, 1), ('y', 'update'))
    await wait_handled(kube, kind, 'y')
    await wait_settled(kube, kind, 'y')
    assert len(journal) == 3


async def test_resuming_of_an_object_leaves_no_trace_on_it(kube, kind, journal, embedded):

    @kopf.on.resume(*kind.selector)
    def fn(name, **_):
        journal.append(name)

    embedded().stop()
    await kube.create(kind, 'x')
    operator = embedded()
    before = await wait_handled(kube, kind, 'x')
    operator.stop()
    embedded()
    await journal.wait('x', 'x')
    after = await wait_settled(kube, kind, 'x')
    assert after == before


async def test_one_function_for_creation_and_resuming_is_called_once(
        kube, kind, journal, embedded):

    @kopf.on.resume(*kind.selector)
    @kopf.on.create(*kind.selector)
    @kopf.on.update(*kind.selector)
    def fn(name, **_):
        journal.append(name)

    await kube.create(kind, 'x')
    operator = embedded()
    await wait_handled(kube, kind, 'x')
    await wait_settled(kube, kind, 'x')
    assert journal == ['x']
    operator.stop()
    embedded()
    await journal.wait('x', 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 'value'}})
    await wait_handled(kube, kind, 'x')
    assert journal == ['x', 'x', 'x']


async def test_resuming_happens_once_in_each_process_though_other_handlers_do_not_finish(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector, id='fn')
    @kopf.on.resume(*kind.selector, id='fn')
    def fn(**_):
        journal.append('fn')

    @kopf.on.create(*kind.selector, id='unfinished_fn')
    def unfinished_fn(**_):
        raise kopf.TemporaryError("Not yet.", delay=1000)

    def is_recorded(obj):
        records = obj['metadata'].get('annotations', {})
        return sum('"success":true' in record or 'Not yet' in record for record in records.values()
                   ) == 2

    operator = embedded()
    await kube.create(kind, 'x')
    for number in (1, 2, 3):
        await journal.wait(*['fn'] * number)
        await kube.wait_for(kind, 'x', is_recorded)
        await kube.patch(kind, 'x', {'metadata': {'labels': {'number': str(number)}}})
        operator.stop()
        assert journal == ['fn'] * number
        operator = embedded()
    await journal.wait(*['fn'] * 4)


async def test_a_failed_resuming_is_tried_again_but_not_repeated_then(
        kube, kind, journal, embedded):

    @kopf.on.resume(*kind.selector)
    def fn(retry, **_):
        journal.append(('resume', retry))
        if retry < 2:
            raise kopf.TemporaryError("Not yet.", delay=0.1)

    @kopf.on.update(*kind.selector)
    def update_fn(**_):
        journal.append('update')

    embedded().stop()
    await kube.create(kind, 'x')
    operator = embedded()
    await journal.wait(('resume', 2))
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 'value'}})
    await wait_handled(kube, kind, 'x')
    assert journal == [('resume', 0), ('resume', 1), ('resume', 2), 'update']
    operator.stop()


async def test_objects_deleted_while_the_operator_was_down_are_resumed_only_where_it_is_asked_for(
        kube, kind, journal, embedded):

    @kopf.on.resume(*kind.selector)
    def usual_fn(reason, **_):
        journal.append(('usual', reason))

    @kopf.on.resume(*kind.selector, deleted=True)
    def deleted_fn(reason, **_):
        journal.append(('deleted', reason))

    @kopf.on.delete(*kind.selector)
    def delete_fn(reason, **_):
        journal.append(('delete', reason))

    operator = embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    operator.stop()
    journal.clear()
    await kube.delete(kind, 'x')
    embedded()
    await kube.wait_gone(kind, 'x')
    assert journal == [('deleted', 'delete'), ('delete', 'delete')]


async def test_deletion_waits_for_its_handlers_and_leaves_foreign_finalizers(
        kube, kind, journal, embedded):
    proceed = threading.Event()

    @kopf.on.delete(*kind.selector)
    def fn(reason, meta, old, new, diff, **_):
        journal.append((reason, 'deletionTimestamp' in meta, old, new, tuple(diff)))
        proceed.wait(10)

    embedded()
    await kube.create(kind, 'x', finalizers=[FOREIGN], spec={'field': 1})
    obj = await wait_handled(kube, kind, 'x')
    assert obj['metadata']['finalizers'] == [FOREIGN, FINALIZER]
    await kube.delete(kind, 'x')
    await journal.wait_length(1)
    obj = await wait_settled(kube, kind, 'x')
    assert obj['metadata']['finalizers'] == [FOREIGN, FINALIZER]
    proceed.set()
    obj = await kube.wait_for(kind, 'x', lambda obj: FINALIZER not in obj['metadata']['finalizers'])
    await kube.patch(kind, 'x', {'metadata': {'finalizers': None}})
    await kube.wait_gone(kind, 'x')
    essence = {'spec': {'field': 1}}
    assert journal == [('delete', True, essence, essence, ())]


async def test_an_edit_and_a_deletion_while_the_operator_is_down_are_a_deletion_with_a_difference(
        kube, kind, journal, embedded):

    @kopf.on.update(*kind.selector)
    def update_fn(**_):
        journal.append('update')

    @kopf.on.delete(*kind.selector)
    def delete_fn(diff, **_):
        journal.append(('delete', tuple(diff)))

    operator = embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    operator.stop()
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await kube.delete(kind, 'x')
    embedded()
    await kube.wait_gone(kind, 'x')
    assert journal == [('delete', (('change', ('spec', 'field'), 1, 2),))]


async def test_optional_deletion_handlers_put_no_finalizer_and_are_called_while_the_object_is_held(
        kube, kind, journal, embedded):

    @kopf.on.delete(*kind.selector, optional=True)
    def fn(name, **_):
        journal.append(name)

    embedded()
    await kube.create(kind, 'free')
    await kube.create(kind, 'held', finalizers=[FOREIGN])
    assert 'finalizers' not in (await wait_handled(kube, kind, 'free'))['metadata']
    assert (await wait_handled(kube, kind, 'held'))['metadata']['finalizers'] == [FOREIGN]
    await kube.delete(kind, 'free')
    await kube.delete(kind, 'held')
    await kube.wait_gone(kind, 'free')
    await journal.wait('held')
    obj = await wait_settled(kube, kind, 'held')
    assert obj['metadata']['finalizers'] == [FOREIGN]
    await kube.patch(kind, 'held', {'metadata': {'labels': {'some': 'label'}}})
    await wait_settled(kube, kind, 'held')
    assert journal == ['held']


async def test_an_object_first_seen_when_it_is_deleted_already_is_not_handled(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    @kopf.on.resume(*kind.selector, deleted=True)
    @kopf.on.update(*kind.selector)
    @kopf.on.delete(*kind.selector)
    def fn(name, reason, **_):
        journal.append((name, reason))

    await kube.create(kind, 'x', finalizers=[FOREIGN])
    deleted = await kube.delete(kind, 'x')
    embedded()
    await kube.create(kind, 'y')
    await wait_handled(kube, kind, 'y')
    obj = await wait_settled(kube, kind, 'x')
    assert journal == [('y', 'create')]
    assert obj['metadata']['resourceVersion'] == deleted['metadata']['resourceVersion']


async def test_a_finalizer_that_was_taken_away_is_put_back(kube, kind, embedded):

    @kopf.on.delete(*kind.selector)
    def fn(**_):
        pass

    embedded()
    await kube.create(kind, 'x')
    await kube.wait_for(kind, 'x', lambda obj: FINALIZER in obj['metadata']['finalizers'])
    await kube.patch(kind, 'x', {'metadata': {'finalizers': None}})
    await kube.wait_for(kind, 'x', lambda obj: FINALIZER in obj['metadata']['finalizers'])


async def test_a_finalizer_taken_away_in_the_middle_of_deletion_ends_it(
        kube, kind, journal, embedded):

    @kopf.on.delete(*kind.selector)
    def fn(retry, **_):
        journal.append(retry)
        raise kopf.TemporaryError("wait!", delay=3)

    embedded()
    await kube.create(kind, 'x')
    await kube.wait_for(kind, 'x', lambda obj: FINALIZER in obj['metadata']['finalizers'])
    await kube.delete(kind, 'x')
    await journal.wait(0)
    await kube.patch(kind, 'x', {'metadata': {'finalizers': None}})
    await kube.wait_gone(kind, 'x')
    await asyncio.sleep(3.2)
    assert journal == [0]


async def test_a_finalizer_goes_when_no_handler_needs_it_any_more(
        kube, kind, journal, embedded):

    @kopf.on.delete(*kind.selector, labels={'held': 'yes'})
    def fn(**_):
        journal.append('deleted')

    @kopf.on.create(*kind.selector)
    def create_fn(**_):
        pass

    embedded()
    await kube.create(kind, 'x', labels={'held': 'yes'})
    await wait_handled(kube, kind, 'x')
    obj = await kube.get(kind, 'x')
    assert obj['metadata']['finalizers'] == [FINALIZER]
    await kube.patch(kind, 'x', {'metadata': {'labels': {'held': 'no'}}})
    await kube.wait_for(kind, 'x', lambda obj: 'finalizers' not in obj['metadata'])
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    assert journal == []


async def test_field_handlers_see_the_field_from_its_appearance_to_its_removal(
        kube, kind, journal, embedded):

    @kopf.on.field(*kind.selector, field='spec.field')
    def spec_fn(old, new, diff, **_):
        journal.append(('spec', old, new, tuple(diff)))

    @kopf.on.field(*kind.selector, field='metadata.labels')
    def labels_fn(old, new, diff, **_):
        journal.append(('labels', old, new, tuple(diff)))

    embedded()
    await kube.create(kind, 'x', spec={'other': 1, 'field': {'a': 1}})
    await wait_handled(kube, kind, 'x')
    assert journal == [('spec', None, {'a': 1}, (('add', (), None, {'a': 1}),))]

    journal.clear()
    await kube.patch(kind, 'x', {'spec': {'other': 2}, 'metadata': {'annotations': {'a': 'v'}}})
    await wait_handled(kube, kind, 'x')
    assert journal == []

    await kube.patch(kind, 'x', {'spec': {'field': {'a': 2}}})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'metadata': {'labels': {'l1': 'a', 'l2': 'b'}}})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'metadata': {'labels': {'l1': None, 'l2': 'c'}}})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': None}})
    await wait_handled(kube, kind, 'x')
    assert journal == [
        ('spec', {'a': 1}, {'a': 2}, (('change', ('a',), 1, 2),)),
        ('labels', None, {'l1': 'a', 'l2': 'b'},
         (('add', (), None, {'l1': 'a', 'l2': 'b'}),)),
        ('labels', {'l1': 'a', 'l2': 'b'}, {'l2': 'c'},
         (('remove', ('l1',), 'a', None), ('change', ('l2',), 'b', 'c'))),
        ('spec', {'a': 2}, None, (('remove', (), {'a': 2}, None),)),
    ]


async def test_fields_that_cannot_be_there_are_absent(kube, kind, journal, embedded):

    @kopf.on.field(*kind.selector, field='spec.field.sub.subsub')
    def fn(old, new, **_):
        journal.append((old, new))

    embedded()
    for value in ['text', 1, [{'sub': 1}], {'sub': 'text'}, {'sub': {'subsub': 'value'}}, [], None]:
        await kube.create(kind, 'x') if value == 'text' else None
        await kube.patch(kind, 'x', {'spec': {'field': value}})
        await wait_handled(kube, kind, 'x')
    assert journal == [(None, 'value'), ('value', None)]


async def test_fields_of_the_metadata_are_handled_where_they_are_named(
        kube, kind, borrow, journal, embedded):
    another = borrow()

    @kopf.on.field(*kind.selector, field='metadata.finalizers')
    def finalizers_fn(old, new, **_):
        journal.append((old, new))

    @kopf.on.field(*another.selector, field='metadata')
    def metadata_fn(diff, **_):
        journal.extend(tuple(item) for item in diff)

    @kopf.on.create(*another.selector)
    @kopf.on.update(*another.selector)
    def another_fn(**_):
        return 'result'

    embedded()
    await kube.create(kind, 'x')
    await kube.wait_for(kind, 'x', lambda obj: obj['metadata']['annotations'][LAST_HANDLED])
    await kube.patch(kind, 'x', {'metadata': {'finalizers': [FOREIGN]}})
    await journal.wait((None, [FOREIGN]))
    await wait_settled(kube, kind, 'x')
    assert journal == [(None, [FOREIGN])]

    await kube.create(another, 'x')
    await kube.wait_for(another, 'x', lambda obj: obj['metadata']['annotations'][LAST_HANDLED])
    await wait_settled(kube, another, 'x')
    journal.clear()
    await kube.patch(another, 'x', {'metadata': {
        'finalizers': [FOREIGN], 'annotations': {'a': 'v'}, 'labels': {'l': 'v'}}})
    await journal.wait_length(3)
    await wait_settled(kube, another, 'x')
    assert sorted(journal, key=lambda item: item[1]) == [
        ('add', ('annotations',), None, {'a': 'v'}),
        ('add', ('finalizers',), None, [FOREIGN]),
        ('add', ('labels',), None, {'l': 'v'}),
    ]


async def test_one_function_for_several_fields_is_called_for_each_with_its_own_values(
        kube, kind, journal, embedded):

    @kopf.on.update(*kind.selector, field='spec', param='whole')
    @kopf.on.update(*kind.selector, field='spec.field', param='field')
    @kopf.on.update(*kind.selector, field='spec.other', param='other')
    def fn(param, old, new, diff, **_):
        journal.append((param, old, new, tuple(diff)))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    assert journal == []
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await wait_handled(kube, kind, 'x')
    assert journal == [
        ('field', 1, 2, (('change', (), 1, 2),)),
        ('whole', {'field': 1}, {'field': 2}, (('change', ('field',), 1, 2),)),
    ]


async def test_the_status_is_handled_where_it_is_named_and_own_results_are_no_change_of_it(
        kube, kind, status_kind, journal, embedded):

    @kopf.on.update(*kind.selector, id='fn', field='status')
    @kopf.on.update(*status_kind.selector, id='fn', field='status')
    def fn(old, new, resource, **_):
        journal.append((resource.plural, old, new))
        return {'done': True}

    embedded()
    for k in (kind, status_kind):
        subresource = 'status' if k is status_kind else None
        await kube.create(k, 'x', spec={'field': 1})
        await kube.wait_for(k, 'x', lambda obj: LAST_HANDLED in obj['metadata']['annotations'])
        await kube.patch(k, 'x', {'status': {'phase': 'a'}}, subresource=subresource)
        await kube.wait_for(k, 'x', lambda obj: obj['status']['fn/status'])
        await wait_settled(kube, k, 'x')
        await kube.patch(k, 'x', {'status': {'phase': 'b'}}, subresource=subresource)
        await journal.wait_length(2)
        obj = await wait_settled(kube, k, 'x')
        assert len(journal) == 2, journal
        (_, old1, new1), (_, old2, new2) = journal
        assert ((old1 or {}).get('phase'), new1['phase']) == (None, 'a')
        assert (old2['phase'], new2['phase']) == ('a', 'b')
        assert obj['status'] == {'phase': 'b', 'fn/status': {'done': True}}
        journal.clear()


async def test_the_status_is_essential_where_a_timer_names_it_as_in_the_release(
        kube, kind, journal, embedded):

    @kopf.on.update(*kind.selector)
    def updated(diff, **_):
        journal.append(tuple(diff))

    @kopf.timer(*kind.selector, field='status.phase', interval=1000)
    def ticked(**_):
        pass

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'status': {'phase': 'a', 'other': 'b'}})
    await journal.wait_length(1)
    obj = await wait_settled(kube, kind, 'x')
    assert journal == [(('add', ('status',), None, {'phase': 'a'}),)]
    assert json.loads(obj['metadata']['annotations'][LAST_HANDLED])['status'] == {'phase': 'a'}


async def test_an_object_without_the_field_of_an_update_is_created_when_it_comes_in_scope(
        kube, kind, journal, embedded):

    @kopf.on.event(*kind.selector)
    def seen(body, **_):
        journal.append(('seen', body['metadata'].get('labels')))

    @kopf.on.create(*kind.selector, labels={'wanted': kopf.PRESENT})
    def created(**_):
        journal.append('created')

    @kopf.on.update(*kind.selector, field='spec.field')
    def updated(old, new, **_):
        journal.append(('updated', old, new))

    embedded()
    await kube.create(kind, 'x', spec={'other': 1})
    await journal.wait_length(1)
    await kube.patch(kind, 'x', {'metadata': {'labels': {'wanted': 'yes'}}})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'spec': {'field': 1}})
    await wait_handled(kube, kind, 'x')
    assert [call for call in journal if call[0] != 'seen'] == ['created', ('updated', None, 1)]


async def test_event_handlers_see_every_event_with_its_type_and_own_echoes(
        kube, kind, journal, embedded):

    @kopf.on.event(*kind.selector)
    def event_fn(type, event, name, spec, body, **_):
        assert event['type'] == type
        assert event['object']['metadata']['name'] == name
        journal.append((name, type, spec.get('field'), LAST_HANDLED in body.meta.annotations))

    @kopf.on.create(*kind.selector, labels={'handled': 'yes'})
    def create_fn(**_):
        pass

    await kube.create(kind, 'x', spec={'field': 0})
    embedded()
    await journal.wait(('x', None, 0, False))
    await kube.patch(kind, 'x', {'spec': {'field': 1}})
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await kube.patch(kind, 'x', {'spec': {'field': 3}})
    await kube.create(kind, 'y', labels={'handled': 'yes'})
    await wait_handled(kube, kind, 'y')
    await kube.delete(kind, 'x')
    await journal.wait(('x', 'DELETED', 3, False))
    await journal.wait(('y', 'MODIFIED', None, True))
    assert [entry for entry in journal if entry[0] == 'x'] == [
        ('x', None, 0, False),
        ('x', 'MODIFIED', 1, False),
        ('x', 'MODIFIED', 2, False),
        ('x', 'MODIFIED', 3, False),
        ('x', 'DELETED', 3, False),
    ]
    assert [entry for entry in journal if entry[0] == 'y'] == [
        ('y', 'ADDED', None, False),
        ('y', 'MODIFIED', None, True),
    ]


async def test_event_handlers_alone_store_nothing_on_objects_and_their_errors_are_ignored(
        kube, kind, journal, embedded, caplog):

    @kopf.on.event(*kind.selector)
    def failing_fn(type, **_):
        raise Exception("boo!")

    @kopf.on.event(*kind.selector)
    async def temporary_fn(type, **_):
        raise kopf.TemporaryError("wait!", delay=0.1)

    @kopf.on.event(*kind.selector)
    async def permanent_fn(type, **_):
        raise kopf.PermanentError("never!")

    @kopf.on.event(*kind.selector)
    def silent_fn(type, **_):
        journal.append(type)

    created = await kube.create(kind, 'x')
    embedded()
    await journal.wait_length(1)
    obj = await wait_settled(kube, kind, 'x')
    assert obj == created
    assert journal == [None]
    for message in ['boo!', 'wait!', 'never!']:
        records = [record for record in caplog.records if message in record.getMessage()]
        assert [record.levelname for record in records] == ['ERROR']


async def test_results_of_event_handlers_are_put_into_the_status_when_they_change(
        kube, status_kind, journal, embedded):

    @kopf.on.event(*status_kind.selector, id='fn')
    def fn(spec, **_):
        journal.append(spec['field'])
        return {'seen': spec['field']}

    embedded()
    await kube.create(status_kind, 'x', spec={'field': 1})
    await kube.wait_for(status_kind, 'x', lambda obj: obj.get('status') == {'fn': {'seen': 1}})
    await kube.patch(status_kind, 'x', {'spec': {'field': 2}})
    await kube.wait_for(status_kind, 'x', lambda obj: obj['status'] == {'fn': {'seen': 2}})
    await journal.wait_length(4)
    obj = await wait_settled(kube, status_kind, 'x')
    assert 'annotations' not in obj['metadata']
    assert journal == [1, 1, 2, 2]


async def test_patches_of_event_handlers_are_applied(kube, status_kind, journal, embedded):

    @kopf.on.event(*status_kind.selector)
    def fn(type, patch, status, spec, **_):
        journal.append(type)
        if not status:
            patch.spec['seen'] = True
            patch.status['seen'] = True
            patch.fns.append(lambda body: body['spec'].update(transformed=True))

    await kube.create(status_kind, 'x', spec={'field': 1})
    embedded()
    obj = await kube.wait_for(status_kind, 'x', lambda obj: obj['spec']['transformed'])
    assert obj['spec'] == {'field': 1, 'seen': True, 'transformed': True}
    assert obj['status'] == {'seen': True}
    await journal.wait_length(3)
    obj = await wait_settled(kube, status_kind, 'x')
    assert 'annotations' not in obj['metadata']
    assert journal == [None, 'MODIFIED', 'MODIFIED']  # the status, and all the rest


async def test_a_function_registered_several_times_is_called_once_per_occasion(
        kube, kind, journal, embedded):
    group, version, plural = kind.selector

    @kopf.on.create(group, version, plural)
    @kopf.on.create(group, plural)
    @kopf.on.create(f'{plural}.{group}')
    @kopf.on.create(kind=kind.kind)
    def create_fn(**_):
        journal.append('create')

    @kopf.on.event(group, version, plural)
    @kopf.on.event(group, version, kopf.EVERYTHING)
    def event_fn(type, **_):
        journal.append(('event', type))

    @kopf.on.create(*kind.selector, id='a')
    @kopf.on.create(*kind.selector, id='b')
    def twice_fn(**_):
        journal.append('twice')

    await kube.create(kind, 'x')
    embedded()
    await wait_handled(kube, kind, 'x')
    await journal.wait(('event', 'MODIFIED'))
    assert journal.count() == {
        ('event', None): 1, ('event', 'MODIFIED'): 1, 'create': 1, 'twice': 2}


async def test_the_kwargs_are_complete_for_every_kind_of_handler(
        kube, kind, journal, embedded, settings, registry):
    seen: dict[str, dict[str, object]] = {}
    gets = {}

    def add(decorator, name, *, is_async):
        def sync_fn(**kwargs):
            seen.setdefault(name, kwargs)

        async def async_fn(**kwargs):
            seen.setdefault(name, kwargs)

        decorator(async_fn if is_async else sync_fn)
        gets[name] = decorator

    for is_async in (False, True):
        kind_of_fn = 'async' if is_async else 'sync'
        add(kopf.on.startup(id=f's{kind_of_fn}', param=1), f'startup {kind_of_fn}',
            is_async=is_async)
        add(kopf.on.cleanup(id=f'c{kind_of_fn}', param=1), f'cleanup {kind_of_fn}',
            is_async=is_async)
        for what in ('create', 'update', 'delete', 'resume', 'event'):
            decorator = getattr(kopf.on, what)(
                *kind.selector, id=f'{what}-{kind_of_fn}', param=1)
            add(decorator, f'{what} {kind_of_fn}', is_async=is_async)
        add(kopf.on.field(*kind.selector, id=f'field-{kind_of_fn}', field='spec.field', param=1),
            f'field {kind_of_fn}', is_async=is_async)

    @kopf.on.create(*kind.selector)
    def parent_fn(**_):

        @kopf.subhandler(param=1)
        def child_fn(**kwargs):
            seen['sub sync'] = kwargs

    embedded().stop()
    await kube.create(kind, 'x', spec={'field': 1})
    operator = embedded()
    await wait_handled(kube, kind, 'x')
    operator.stop()
    operator = embedded()
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await wait_handled(kube, kind, 'x')
    await kube.delete(kind, 'x')
    await kube.wait_gone(kind, 'x')
    operator.stop()

    expected = {
        'startup': ACTIVITY_KWARGS, 'cleanup': ACTIVITY_KWARGS, 'create': CHANGE_KWARGS,
        'update': CHANGE_KWARGS, 'delete': CHANGE_KWARGS, 'resume': CHANGE_KWARGS,
        'field': CHANGE_KWARGS, 'event': EVENT_KWARGS,
    }
    assert {name: kwargs.keys() for name, kwargs in seen.items()} == {
        'sub sync': CHANGE_KWARGS,
        **{f'{name} {kind_of_fn}': kwargs
           for name, kwargs in expected.items() for kind_of_fn in ('sync', 'async')},
    }
    for kwargs in seen.values():
        assert kwargs['param'] == 1
        assert kwargs['retry'] == 0
        assert isinstance(kwargs['started'], datetime.datetime)
        assert kwargs['started'].tzinfo is not None
        assert isinstance(kwargs['runtime'], datetime.timedelta)
    for name, kwargs in seen.items():
        if 'body' in kwargs:
            assert kwargs['name'] == 'x'
            assert kwargs['namespace'] == 'default'
            assert kwargs['uid'] == kwargs['body']['metadata']['uid']
            assert kwargs['spec']['field'] in (1, 2)
            assert kwargs['resource'].plural == kind.plural
            assert isinstance(kwargs['logger'], logging.LoggerAdapter)
        else:
            assert kwargs['settings'] is settings
            assert kwargs['activity'] == name.split()[0]
            assert isinstance(kwargs['logger'], logging.Logger)


async def test_memos_are_kept_per_object_and_begin_as_copies_of_the_operators_one(
        kube, kind, journal, embedded):

    @kopf.on.startup()
    def startup_fn(memo, **_):
        memo.shared = ['operator']
        memo.own = 'operator'

    @kopf.on.create(*kind.selector)
    def create_fn(memo, name, **_):
        journal.append((name, memo.own))
        memo.own = name
        memo.shared.append(name)

    @kopf.on.update(*kind.selector)
    async def update_fn(memo, name, **_):
        journal.append((name, memo.own, sorted(memo.shared)))

    @kopf.on.cleanup()
    def cleanup_fn(memo, **_):
        journal.append(('cleanup', memo.own))

    operator = embedded(memo=kopf.Memo())
    for name in ('x', 'y'):
        await kube.create(kind, name)
        await wait_handled(kube, kind, name)
    for name in ('x', 'y'):
        await kube.patch(kind, name, {'spec': {'field': 1}})
        await wait_handled(kube, kind, name)
    operator.stop()
    assert journal == [
        ('x', 'operator'), ('y', 'operator'),
        ('x', 'x', ['operator', 'x', 'y']), ('y', 'y', ['operator', 'x', 'y']),
        ('cleanup', 'operator'),
    ]


async def test_partials_methods_and_lambdas_are_handlers_too(kube, kind, journal, embedded):

    def with_argument(argument, **_):
        journal.append(argument)

    async def async_with_argument(argument, **_):
        await asyncio.sleep(0)
        journal.append(argument)

    class Namespace:
        def method(self, **_):
            journal.append('method')

        @staticmethod
        @kopf.on.create(*kind.selector)
        async def static_method(**_):
            journal.append('static method')

    kopf.on.create(*kind.selector)(functools.partial(with_argument, 'partial'))
    kopf.on.create(*kind.selector)(functools.partial(async_with_argument, 'async partial'))
    kopf.on.create(*kind.selector)(Namespace().method)
    kopf.on.create(*kind.selector)(lambda **_: journal.append('lambda'))

    @kopf.on.create(*kind.selector, id='_unsafe id (with <everything>)/')
    @kopf.on.create(*kind.selector, id='long' * 100)
    @kopf.on.create(*kind.selector, id='ünïcödé')
    def fn(retry, **_):
        if not retry:
            raise kopf.TemporaryError("So that it is stored.", delay=0.1)
        journal.append('unusual')

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert sorted(journal) == [
        'async partial', 'lambda', 'method', 'partial', 'static method',
        'unusual', 'unusual', 'unusual']


async def test_patches_of_handlers_are_applied_also_when_they_fail(
        kube, kind, status_kind, embedded):

    def patching(patch, labels, retry, **_):
        patch.spec[f'try{retry}'] = True
        patch.status['tries'] = retry + 1
        patch.meta.labels['tries'] = str(retry + 1)
        patch.metadata.annotations['removed'] = None
        patch.fns.append(lambda body: body['spec'].setdefault('list', []).append(retry))
        if retry == 0:
            raise kopf.TemporaryError("again", delay=0.1)
        if retry == 1:
            raise kopf.PermanentError("never again")

    kopf.on.create(*kind.selector)(patching)
    kopf.on.create(*status_kind.selector)(patching)
    embedded()
    for k in (kind, status_kind):
        await kube.create(k, 'x', annotations={'removed': 'yes', 'kept': 'yes'}, spec={})
        obj = await kube.wait_for(k, 'x', lambda obj: obj['spec']['list'] == [0, 1])
        obj = await wait_settled(kube, k, 'x')
        assert obj['spec'] == {'try0': True, 'try1': True, 'list': [0, 1]}
        assert obj['status'] == {'tries': 2}
        assert obj['metadata']['labels'] == {'tries': '2'}
        assert obj['metadata']['annotations'].keys() == {'kept', LAST_HANDLED}


async def test_handlers_of_one_cause_see_what_the_others_have_done(
        kube, status_kind, journal, embedded):

    @kopf.on.create(*status_kind.selector, id='fn1')
    def fn1(patch, **_):
        patch.status['counter'] = 1
        return {'made': 'by fn1'}

    @kopf.on.create(*status_kind.selector)
    def fn2(patch, status, **_):
        journal.append((status['counter'], status['fn1']['made']))
        patch.spec['field'] = 'changed'

    @kopf.on.create(*status_kind.selector)
    def fn3(spec, status, **_):
        journal.append((spec['field'], status['counter']))

    embedded()
    await kube.create(status_kind, 'x', spec={'field': 'original'})
    await journal.wait_length(2)
    assert journal == [(1, 'by fn1'), ('changed', 1)]
