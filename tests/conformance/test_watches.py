import time

import pytest

from tests.conformance.apis import PARTIAL, TABLE, make


@pytest.fixture()
def now(api, cms):
    """The current version of the config maps."""
    return api.get(cms).ok['metadata']['resourceVersion']


def test_changes_are_told_as_they_come(api, cms, now):
    with api.watch(cms, resourceVersion=now) as watch:
        api.post(cms, make('one')).ok
        api.patch(f'{cms}/one', {'data': {'a': 'b'}}).ok
        api.delete(f'{cms}/one').ok
        assert watch.names(3) == [('ADDED', 'one'), ('MODIFIED', 'one'), ('DELETED', 'one')]


def test_changes_since_a_version_are_told_first(api, cms, now):
    api.post(cms, make('one')).ok
    api.delete(f'{cms}/one').ok
    with api.watch(cms, resourceVersion=now) as watch:
        assert watch.names(2) == [('ADDED', 'one'), ('DELETED', 'one')]


def test_changes_up_to_a_version_are_not_told(api, cms):
    api.post(cms, make('one')).ok
    version = api.post(cms, make('two')).ok['metadata']['resourceVersion']
    with api.watch(cms, resourceVersion=version) as watch:
        api.post(cms, make('three')).ok
        assert watch.names(1) == [('ADDED', 'three')]


@pytest.mark.parametrize('params', [{}, {'resourceVersion': '0'}, {'resourceVersion': ''}])
def test_without_a_version_the_present_objects_are_told_first(api, cms, params):
    api.post(cms, make('one')).ok
    api.post(cms, make('two')).ok
    api.wait(cms, lambda answer: len(answer['items']) == 2, resourceVersion='0')
    with api.watch(cms, **params) as watch:
        assert sorted(watch.names(2)) == [('ADDED', 'one'), ('ADDED', 'two')]
        api.post(cms, make('three')).ok
        assert watch.names(1) == [('ADDED', 'three')]


def test_an_event_has_the_whole_object(api, cms, now):
    with api.watch(cms, resourceVersion=now) as watch:
        created = api.post(cms, make('one', data={'a': 'b'})).ok
        [event] = watch.take(1)
    assert event == {'type': 'ADDED', 'object': created}


def test_a_deletion_has_the_last_state_and_a_version_of_its_own(api, cms, now):
    created = api.post(cms, make('one', data={'a': 'b'})).ok
    with api.watch(cms, resourceVersion=created['metadata']['resourceVersion']) as watch:
        api.delete(f'{cms}/one').ok
        [event] = watch.take(1)
    assert event['object']['data'] == {'a': 'b'}
    assert int(event['object']['metadata']['resourceVersion']) > int(
        created['metadata']['resourceVersion'])


def test_a_marked_deletion_is_a_modification(api, cms, now):
    with api.watch(cms, resourceVersion=now) as watch:
        api.post(cms, make('one', metadata={'finalizers': ['x.test/f']})).ok
        api.delete(f'{cms}/one').ok
        api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok
        assert [event['type'] for event in watch.take(3)] == ['ADDED', 'MODIFIED', 'DELETED']


def test_writes_that_change_nothing_are_not_told(api, cms, now):
    with api.watch(cms, resourceVersion=now) as watch:
        api.post(cms, make('one', data={'a': 'b'})).ok
        api.patch(f'{cms}/one', {'data': {'a': 'b'}}).ok
        api.post(cms, make('two')).ok
        assert watch.names(2) == [('ADDED', 'one'), ('ADDED', 'two')]


def test_other_namespaces_are_not_told(api, cms, now):
    with api.watch(cms, resourceVersion=now) as watch:
        api.post('/api/v1/namespaces/default/configmaps', make('foreign-to-watch')).ok
        api.delete('/api/v1/namespaces/default/configmaps/foreign-to-watch').ok
        api.post(cms, make('one')).ok
        assert watch.names(1) == [('ADDED', 'one')]


def test_all_namespaces_are_told_together(api, cms, ns, now):
    with api.watch('/api/v1/configmaps', resourceVersion=now) as watch:
        api.post(cms, make('one')).ok
        event = next(event for event in watch if event['object']['metadata']['namespace'] == ns)
    assert event['object']['metadata']['name'] == 'one'


def test_one_object_is_watched_by_its_name(api, cms, now):
    with api.watch(cms, resourceVersion=now, fieldSelector='metadata.name=two') as watch:
        api.post(cms, make('one')).ok
        api.post(cms, make('two')).ok
        assert watch.names(1) == [('ADDED', 'two')]


def test_selections_are_entered_and_left(api, cms, now):
    with api.watch(cms, resourceVersion=now, labelSelector='a=b') as watch:
        api.post(cms, make('one')).ok
        api.patch(f'{cms}/one', {'metadata': {'labels': {'a': 'b'}}}).ok
        api.patch(f'{cms}/one', {'data': {'x': 'y'}}).ok
        api.patch(f'{cms}/one', {'metadata': {'labels': {'a': 'c'}}}).ok
        api.delete(f'{cms}/one').ok
        api.post(cms, make('two', metadata={'labels': {'a': 'b'}})).ok
        events = watch.take(4)
    assert [(event['type'], event['object']['metadata']['name']) for event in events] == [
        ('ADDED', 'one'), ('MODIFIED', 'one'), ('DELETED', 'one'), ('ADDED', 'two')]
    assert events[2]['object']['metadata']['labels'] == {'a': 'b'}


def test_a_watch_ends_in_the_time_asked_for(api, cms, now):
    started = time.monotonic()
    with api.watch(cms, resourceVersion=now, timeoutSeconds='1') as watch:
        assert list(watch) == []
    assert 0.5 < time.monotonic() - started < 100  # by default, it takes at least half an hour


def test_a_forgotten_version_is_gone(api, cms):
    api.post(cms, make('one')).ok
    with api.watch(cms, resourceVersion='1') as watch:
        [event] = watch.take(1)
        assert list(watch) == []
    assert event['type'] == 'ERROR'
    status = event['object']
    assert (status['kind'], status['code'], status['reason']) == ('Status', 410, 'Expired')
    assert status['message'].startswith('too old resource version: 1 (')


def test_a_future_version_tells_nothing_until_then(api, cms):
    with api.watch(cms, resourceVersion='999999999999', timeoutSeconds='1') as watch:
        assert [event['type'] for event in watch] in ([], ['ERROR'])


def test_initial_events_are_ended_by_a_bookmark(api, cms):
    for name in ('one', 'two'):
        api.post(cms, make(name)).ok
    with api.watch(cms, sendInitialEvents='true', allowWatchBookmarks='true',
                   resourceVersionMatch='NotOlderThan') as watch:
        *events, bookmark = watch.take(3)
    assert [(event['type'], event['object']['metadata']['name']) for event in events] == [
        ('ADDED', 'one'), ('ADDED', 'two')]
    assert bookmark['type'] == 'BOOKMARK'
    assert bookmark['object']['kind'] == 'ConfigMap'
    meta = bookmark['object']['metadata']
    assert meta['annotations'] == {'k8s.io/initial-events-end': 'true'}
    assert int(meta['resourceVersion']) >= int(events[-1]['object']['metadata']['resourceVersion'])


def test_initial_events_cannot_be_of_a_version_to_come(api, cms, now):
    with api.watch(cms, sendInitialEvents='true', resourceVersionMatch='NotOlderThan',
                   resourceVersion=str(int(now) + 1_000_000)) as watch:
        (event,) = watch.take(1)
    assert (event['type'], event['object']['code']) == ('ERROR', 504)
    assert 'Too large resource version' in event['object']['message']


def test_no_initial_events_are_sent_where_not_wanted(api, cms, kinds):
    api.post(cms, make('one')).ok
    with api.watch(cms, sendInitialEvents='false', allowWatchBookmarks='true',
                   resourceVersionMatch='NotOlderThan') as watch:
        api.post(cms, make('two')).ok
        assert watch.names(1) == [('ADDED', 'two')]


@pytest.mark.parametrize(('params', 'causes'), [
    ({'sendInitialEvents': 'true'}, [('FieldValueForbidden', 'resourceVersionMatch')]),
    ({'resourceVersionMatch': 'NotOlderThan', 'resourceVersion': '1'},
     [('FieldValueForbidden', 'resourceVersionMatch')]),
    ({'sendInitialEvents': 'true', 'resourceVersionMatch': 'Exact', 'resourceVersion': '1'},
     [('FieldValueForbidden', 'resourceVersionMatch'),
      ('FieldValueNotSupported', 'resourceVersionMatch')]),
])
def test_options_must_make_sense_together(api, cms, params, causes):
    answer = api.get(cms, watch='true', timeoutSeconds='1', **params)
    assert answer.error == (422, 'Invalid')
    assert answer.causes == causes


def test_only_the_metadata_is_told_to_those_who_ask(api, cms, now):
    with api.watch(cms, resourceVersion=now, accept=PARTIAL) as watch:
        api.post(cms, make('one', data={'a': 'b'})).ok
        [event] = watch.take(1)
    assert event['object']['kind'] == 'PartialObjectMetadata'
    assert 'data' not in event['object']


def test_tables_are_told_to_those_who_ask(api, cms, now):
    with api.watch(cms, resourceVersion=now, accept=TABLE) as watch:
        api.post(cms, make('one', data={'a': 'b'})).ok
        api.post(cms, make('two')).ok
        first, second = watch.take(2)
    assert first['object']['kind'] == 'Table'
    assert first['object']['rows'][0]['cells'][:2] == ['one', 1]
    assert first['object']['columnDefinitions']
    assert not second['object']['columnDefinitions']


def test_custom_objects_are_told_in_the_version_asked_for(api, things, kinds, ns):
    path = kinds.path('things', namespace=ns, version='v1beta1')
    version = api.get(path).ok['metadata']['resourceVersion']
    with api.watch(path, resourceVersion=version) as watch:
        api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
        [event] = watch.take(1)
    assert event['object']['apiVersion'] == f'{kinds.group}/v1beta1'


def test_the_stream_is_json_in_lines(api, cms, now):
    with api.watch(cms, resourceVersion=now) as watch:
        assert watch.headers['Content-Type'] == 'application/json'
        assert watch.headers['Transfer-Encoding'] == 'chunked'


def test_any_truth_makes_a_watch(api, cms, now):
    with api.watch(cms, resourceVersion=now, watch='1') as watch:
        api.post(cms, make('one')).ok
        assert watch.names(1) == [('ADDED', 'one')]
