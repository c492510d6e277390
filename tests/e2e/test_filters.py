"""
Which objects and which changes handlers are called for; all others are not even touched.
"""

import logging

import pytest

import kopf
from kopf import ABSENT, PRESENT
from tests.e2e.journals import (
    FINALIZER,
    get_last_handled,
    is_handled,
    wait_handled,
    wait_settled,
)

OBJECTS = {
    'bare': {},
    'labelled': {'labels': {'l': 'v', 'm': 'w'}},
    'mislabelled': {'labels': {'l': 'x'}},
    'emptily-labelled': {'labels': {'l': ''}},
    'annotated': {'annotations': {'a': 'v'}, 'spec': {'field': 'world', 'items': ['world']}},
    'filled': {'labels': {'l': 'v'}, 'spec': {'field': 'other', 'nested': {'a': [1]}}},
    'nulled': {'spec': {'field': '', 'nested': {}}},
}

IS_V = lambda value, **_: value == 'v'  # noqa: E731
IS_LONG = lambda value, **_: len(value or '') > 1  # noqa: E731
IS_LABELLED = lambda labels, **_: 'l' in labels  # noqa: E731
IS_FILLED = lambda spec, **_: bool(spec.get('field'))  # noqa: E731

FILTERS = {
    'no-filter': ({}, set(OBJECTS)),
    'label': ({'labels': {'l': 'v'}}, {'labelled', 'filled'}),
    'labels': ({'labels': {'l': 'v', 'm': 'w'}}, {'labelled'}),
    'label-present': (
        {'labels': {'l': PRESENT}}, {'labelled', 'mislabelled', 'emptily-labelled', 'filled'}),
    'label-absent': ({'labels': {'l': ABSENT}}, {'bare', 'annotated', 'nulled'}),
    'label-callback': ({'labels': {'l': IS_V}}, {'labelled', 'filled'}),
    'annotation': ({'annotations': {'a': 'v'}}, {'annotated'}),
    'annotation-present': ({'annotations': {'a': PRESENT}}, {'annotated'}),
    'annotation-absent': ({'annotations': {'a': ABSENT}}, set(OBJECTS) - {'annotated'}),
    'annotation-callback': ({'annotations': {'a': kopf.not_(IS_V)}}, set(OBJECTS) - {'annotated'}),
    'field': ({'field': 'spec.field'}, {'annotated', 'filled', 'nulled'}),
    'value': ({'field': 'spec.field', 'value': 'world'}, {'annotated'}),
    'value-of-dict': ({'field': ('spec', 'nested'), 'value': {'a': [1]}}, {'filled'}),
    'empty-value': ({'field': 'spec.field', 'value': ''}, {'nulled'}),
    'value-present': (
        {'field': 'spec.field', 'value': PRESENT}, {'annotated', 'filled', 'nulled'}),
    'value-absent': (
        {'field': 'spec.field', 'value': ABSENT},
        {'bare', 'labelled', 'mislabelled', 'emptily-labelled'}),
    'value-callback': ({'field': 'spec.field', 'value': IS_LONG}, {'annotated', 'filled'}),
    'field-of-metadata': ({'field': 'metadata.labels.m', 'value': 'w'}, {'labelled'}),
    'when': ({'when': IS_FILLED}, {'annotated', 'filled'}),
    'when-name': ({'when': lambda name, **_: name.endswith('labelled')},
                  {'labelled', 'mislabelled', 'emptily-labelled'}),
    'all': ({'when': kopf.all_([IS_FILLED, IS_LABELLED])}, {'filled'}),
    'any': ({'when': kopf.any_([IS_FILLED, IS_LABELLED])},
            {'annotated', 'filled', 'labelled', 'mislabelled', 'emptily-labelled'}),
    'none': ({'when': kopf.none_([IS_FILLED, IS_LABELLED])}, {'bare', 'nulled'}),
    'not': ({'when': kopf.not_(IS_FILLED)}, set(OBJECTS) - {'annotated', 'filled'}),
    'combined': (
        {'labels': {'l': 'v'}, 'field': 'spec.field', 'value': IS_LONG, 'when': IS_FILLED},
        {'filled'}),
}


@pytest.mark.parametrize(
    'what', ['create', 'event', 'resume', 'delete', 'daemon', 'timer', 'subhandlers'])
async def test_all_filters_choose_the_objects(kube, kind, journal, embedded, what):

    def fn(name, param, **_):
        journal.append((param, name))

    if what == 'subhandlers':
        @kopf.on.create(*kind.selector)
        def parent_fn(**_):
            for id, (filters, _) in FILTERS.items():
                kopf.subhandler(id=id, param=id, **filters)(fn)
    else:
        decorate = getattr(kopf.on, what)
        for id, (filters, _) in FILTERS.items():
            decorate(*kind.selector, id=id, param=id, **filters)(fn)

    for name, content in OBJECTS.items():
        await kube.create(kind, name, **content)
    operator = embedded()
    expected = {(id, name): 1 for id, (_, names) in FILTERS.items() for name in names}
    if what in ('event', 'daemon', 'timer'):
        await journal.wait(*expected)
    else:
        for name in OBJECTS:
            await wait_handled(kube, kind, name)
    if what == 'delete':
        for name in OBJECTS:
            await kube.delete(kind, name)
            await kube.wait_gone(kind, name)
    operator.stop()
    assert journal.count() == expected


TRANSITIONS = {
    'x-to-y': ('x', 'y'),
    'none-to-x': (None, 'x'),
    'x-to-none': ('x', None),
    'y-to-x': ('y', 'x'),
    'y-to-z': ('y', 'z'),
    'x-stays': ('x', 'x'),
}
CHANGES = set(TRANSITIONS) - {'x-stays'}
UPDATE_FILTERS = {
    'nothing': ({}, CHANGES),
    'value': ({'value': 'x'}, {'x-to-y', 'none-to-x', 'x-to-none', 'y-to-x'}),
    'value-present': ({'value': PRESENT}, CHANGES),
    'value-absent': ({'value': ABSENT}, {'none-to-x', 'x-to-none'}),
    'value-callback': ({'value': lambda value, **_: value == 'z'}, {'y-to-z'}),
    'old-and-new': ({'old': 'x', 'new': 'y'}, {'x-to-y'}),
    'old': ({'old': 'x'}, {'x-to-y', 'x-to-none'}),
    'new': ({'new': 'x'}, {'none-to-x', 'y-to-x'}),
    'added': ({'old': ABSENT, 'new': PRESENT}, {'none-to-x'}),
    'removed': ({'old': PRESENT, 'new': ABSENT}, {'x-to-none'}),
    'edited': ({'old': PRESENT, 'new': PRESENT}, {'x-to-y', 'y-to-x', 'y-to-z'}),
    'callbacks': (
        {'old': lambda value, **_: value == 'y', 'new': lambda value, name, **_: 'z' in name},
        {'y-to-z'}),
}


@pytest.mark.parametrize('what', ['update', 'field'])
async def test_all_filters_choose_the_changes(kube, kind, journal, embedded, what):

    def fn(name, param, old, new, **_):
        assert (old, new) == TRANSITIONS[name]
        journal.append((param, name))

    @kopf.on.create(*kind.selector, id='dummy')
    def dummy_fn(**_):
        pass

    decorate = getattr(kopf.on, what)
    for id, (filters, _) in UPDATE_FILTERS.items():
        decorate(
            *kind.selector, id=id, param=id, field='spec.field',
            when=lambda old, **_: old is not None, **filters)(fn)
    if what == 'update':
        kopf.on.update(*kind.selector, id='whole', param='whole')(
            lambda name, **_: journal.append(('whole', name)))
        kopf.on.update(*kind.selector, id='is-x', when=lambda spec, **_: spec.get('field') == 'x')(
            lambda name, **_: journal.append(('is-x', name)))

    embedded()
    for name, (old, _) in TRANSITIONS.items():
        await kube.create(kind, name, spec={'field': old, 'other': 1})
        await wait_handled(kube, kind, name)
    journal.clear()
    for name, (_, new) in TRANSITIONS.items():
        await kube.patch(kind, name, {'spec': {'field': new, 'other': 2}})
    for name in TRANSITIONS:
        await wait_handled(kube, kind, name)
    expected = {(id, name): 1 for id, (_, names) in UPDATE_FILTERS.items() for name in names}
    if what == 'update':
        expected |= {('whole', name): 1 for name in TRANSITIONS}
        expected |= {('is-x', name): 1 for name, (_, new) in TRANSITIONS.items() if new == 'x'}
    assert journal.count() == expected


async def test_callbacks_get_the_states_of_the_whole_object_and_handlers_of_their_field(
        kube, kind, journal, embedded):

    def callback(old, new, diff, **_):
        if old is not None:
            journal.append((old, new, tuple(diff)))
        return True

    @kopf.on.update(*kind.selector, field='spec.field', when=callback)
    def fn(old, new, diff, **_):
        journal.append((old, new, tuple(diff)))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    journal.clear()
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await wait_handled(kube, kind, 'x')
    whole = {'spec': {'field': 1}}, {'spec': {'field': 2}}, (('change', ('spec', 'field'), 1, 2),)
    assert whole in journal
    assert (1, 2, (('change', (), 1, 2),)) in journal


async def test_callbacks_get_the_kwargs_of_their_handlers_but_those_of_an_attempt(
        kube, kind, journal, embedded):
    seen = {}

    def check(id):
        def callback(*args, **kwargs):
            seen[id] = args, kwargs
            return True
        return callback

    def fn(**kwargs):
        journal.append(kwargs)

    kopf.on.create(
        *kind.selector, id='create', param=1, when=check('when'), labels={'l': check('label')},
        annotations={'a': check('annotation')}, field='spec.field', value=check('value'))(fn)
    kopf.on.event(*kind.selector, id='event', param=1, when=check('event'))(fn)
    embedded()
    await kube.create(kind, 'x', labels={'l': 'v'}, spec={'field': [1]})
    await wait_handled(kube, kind, 'x')
    attempt = {'param', 'retry', 'started', 'runtime'}
    event_kwargs, create_kwargs = journal[0], next(kw for kw in journal if 'diff' in kw)
    assert seen.keys() == {'when', 'label', 'annotation', 'value', 'event'}
    for id, args in [('when', ()), ('label', ('v',)), ('annotation', (None,)), ('value', ([1],))]:
        assert seen[id][0] == args
        assert seen[id][1].keys() == create_kwargs.keys() - attempt
    assert seen['event'][1].keys() == event_kwargs.keys() - attempt
    assert seen['when'][1]['body']['metadata']['name'] == 'x'


async def test_a_failing_callback_is_an_error_of_its_handler_on_that_object_only(
        kube, kind, journal, embedded, caplog):
    fails = [True]

    def callback(name, **_):
        if name == 'bad' and fails.pop() if fails else False:
            raise ValueError("boo!")
        return True

    @kopf.on.create(*kind.selector, id='filtered', when=callback, backoff=0.3)
    def filtered_fn(name, **_):
        journal.append(('filtered', name))

    @kopf.on.create(*kind.selector, id='usual')
    def usual_fn(name, **_):
        journal.append(('usual', name))

    @kopf.on.event(*kind.selector, id='event', when=lambda name, **_: name[:1] / 1)
    def event_fn(**_):
        journal.append('never')

    embedded()
    await kube.create(kind, 'bad')
    await kube.create(kind, 'good')
    await wait_handled(kube, kind, 'good')
    await wait_handled(kube, kind, 'bad')
    assert journal.count() == {
        ('filtered', 'good'): 1, ('usual', 'good'): 1, ('filtered', 'bad'): 1, ('usual', 'bad'): 1}
    errors = [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']
    assert len([error for error in errors if error.startswith(
        "Handler 'filtered' failed with an exception and will try again in 0.3 seconds: boo!")
    ]) == 1
    assert any(error.startswith("Handler 'event' failed permanently: ") for error in errors)


async def test_objects_that_nobody_concerns_are_never_touched_nor_mentioned(
        kube, kind, journal, embedded, caplog):
    caplog.set_level(logging.DEBUG)

    @kopf.on.create(*kind.selector, labels={'l': 'v'})
    @kopf.on.resume(*kind.selector, labels={'l': 'v'})
    @kopf.on.update(*kind.selector, annotations={'a': PRESENT})
    @kopf.on.delete(*kind.selector, field='spec.field', value='x')
    @kopf.on.field(*kind.selector, field='spec.other', old='x', new='y')
    @kopf.on.event(*kind.selector, when=lambda name, **_: name == 'known')
    def fn(name, **_):
        journal.append(name)

    await kube.create(kind, 'old')
    embedded()
    await kube.create(kind, 'known')
    await journal.wait('known')
    await kube.create(kind, 'new', spec={'field': 'y'})
    for name in ('old', 'new'):
        edited = await kube.patch(kind, name, {'spec': {'field': 'z'}})
        assert await wait_settled(kube, kind, name) == edited
        await kube.delete(kind, name)
    await kube.delete(kind, 'known')
    await journal.wait('known', 'known')
    assert journal == ['known', 'known']
    names = {record.k8s_ref['name'] for record in caplog.records if hasattr(record, 'k8s_ref')}
    assert names == {'known'}


async def test_an_object_that_comes_into_the_scope_is_a_new_one(kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector, labels={'l': 'v'})
    def create_fn(**_):
        journal.append('create')

    @kopf.on.update(*kind.selector, labels={'l': 'v'})
    def update_fn(diff, **_):
        journal.append(('update', tuple(diff)))

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await kube.patch(kind, 'x', {'spec': {'field': 2}})
    await kube.patch(kind, 'x', {'metadata': {'labels': {'l': 'v'}}})
    await wait_handled(kube, kind, 'x')
    assert journal == ['create']
    handled = await kube.get(kind, 'x')

    await kube.patch(kind, 'x', {'metadata': {'labels': {'l': 'w'}}})
    await kube.patch(kind, 'x', {'spec': {'field': 3}})
    obj = await wait_settled(kube, kind, 'x')
    assert journal == ['create']
    assert get_last_handled(obj) == get_last_handled(handled)

    await kube.patch(kind, 'x', {'metadata': {'labels': {'l': 'v'}}})
    await wait_handled(kube, kind, 'x')
    assert journal == ['create', ('update', (('change', ('spec', 'field'), 2, 3),))]


async def test_a_dummy_field_handler_brings_all_objects_into_the_scope(
        kube, kind, journal, embedded):

    @kopf.on.field(*kind.selector, field='spec.no-such-field')
    def dummy_fn(**_):
        journal.append('never')

    @kopf.on.create(*kind.selector, labels={'l': 'v'})
    def create_fn(**_):
        journal.append('create')

    @kopf.on.update(*kind.selector, labels={'l': 'v'})
    def update_fn(**_):
        journal.append('update')

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})
    await wait_handled(kube, kind, 'x')
    await kube.patch(kind, 'x', {'metadata': {'labels': {'l': 'v'}}})
    await wait_handled(kube, kind, 'x')
    assert journal == ['update']


async def test_the_finalizer_is_only_on_those_objects_whose_deletion_is_handled(
        kube, kind, journal, embedded):

    @kopf.on.delete(*kind.selector, labels={'l': 'v'})
    def delete_fn(name, **_):
        journal.append(name)

    @kopf.on.create(*kind.selector)
    def create_fn(**_):
        pass

    embedded()
    await kube.create(kind, 'held', labels={'l': 'v'})
    await kube.create(kind, 'free')
    await kube.wait_for(kind, 'held', is_handled)
    await kube.wait_for(kind, 'free', is_handled)
    assert (await kube.get(kind, 'held'))['metadata']['finalizers'] == [FINALIZER]
    assert 'finalizers' not in (await kube.get(kind, 'free'))['metadata']
    for name in ('free', 'held'):
        await kube.delete(kind, name)
        await kube.wait_gone(kind, name)
    assert journal == ['held']


async def test_the_finalizer_is_gone_when_the_field_of_a_deletion_handler_is_handled(
        kube, kind, journal, embedded):

    @kopf.on.delete(*kind.selector, field='spec.field', value=ABSENT)
    def delete_fn(**_):
        journal.append('delete')

    @kopf.on.create(*kind.selector)
    @kopf.on.update(*kind.selector)
    def change_fn(**_):
        pass

    embedded()
    await kube.create(kind, 'x', spec={'field': 1})  # absent before, but there is no deletion of it
    await kube.create(kind, 'y')
    await wait_settled(kube, kind, 'x')
    await wait_settled(kube, kind, 'y')
    assert 'finalizers' not in (await kube.get(kind, 'x'))['metadata']
    assert (await kube.get(kind, 'y'))['metadata']['finalizers'] == [FINALIZER]
    await kube.patch(kind, 'y', {'spec': {'field': 1}})
    await wait_handled(kube, kind, 'y')
    await wait_settled(kube, kind, 'y')
    assert 'finalizers' not in (await kube.get(kind, 'y'))['metadata']
    await kube.delete(kind, 'y')
    await kube.wait_gone(kind, 'y')
    assert journal == []
