import copy
import gc
import threading
import tracemalloc
import uuid

import pytest

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.references import Resource
from kopf._core.engines.reconciling.children import (
    Child,
    ChildStore,
    OperatorChildren,
)
from kopf._core.engines.reconciling.desired import (
    DIGEST_ANNOTATION,
    HANDLER_LABEL,
    OWNER_LABEL,
    Key,
    prepare,
)

THINGS = Resource('example.com', 'v1', 'things', kind='Thing', namespaced=True)
CONFIGMAPS = Resource('', 'v1', 'configmaps', kind='ConfigMap', singular='configmap',
                      shortcuts=frozenset({'cm'}), namespaced=True)
SECRETS = Resource('', 'v1', 'secrets', kind='Secret', namespaced=True)
KEY = Key('', 'ConfigMap', 'ns', 'child')
MANAGER = 'kopf/fn'
FIELDS = {
    'f:metadata': {
        'f:labels': {f'f:{OWNER_LABEL}': {}, f'f:{HANDLER_LABEL}': {}},
        'f:annotations': {f'f:{DIGEST_ANNOTATION}': {}},
        'f:ownerReferences': {'k:{"uid":"parent"}': {}}},
    'f:data': {'f:a': {}}}


@pytest.fixture()
def store():
    store = ChildStore()
    store.register(MANAGER)
    return store


@pytest.fixture()
def news(store):
    """The uids of the parents whose children have changed, as often as they have."""
    found = []
    store.on_change = found.append
    return found


@pytest.fixture()
def watch(store):
    """What the watch of the children feeds; its first list is empty."""
    watch = store.open(CONFIGMAPS, 'ns')
    watch.list_started(restored=False)
    watch.list_ended()
    return watch


def want(data='b', *, name='child', **more):
    parent = Body({'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {
        'name': 'parent', 'namespace': 'ns', 'uid': 'parent'}})
    manifest = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                'data': {'a': data}, **more}
    found, errors = prepare(
        manifest, parent=parent, find={('', 'ConfigMap'): CONFIGMAPS}.get,
        manager=MANAGER)
    assert not errors
    return next(iter(found.values()))


def make(
        version, *, uid='u1', name='child', data='b', fields=FIELDS, labels=None,
        binaryData=None, **meta):
    """A child as the API server shows it after the manifest was applied."""
    more = {} if binaryData is None else {'binaryData': binaryData}
    raw = copy.deepcopy(want(data, name=name, **more).manifest)
    raw['metadata'].update(uid=uid, resourceVersion=str(version), managedFields=[
        {'manager': 'other', 'operation': 'Update', 'fieldsV1': {'f:data': {'f:z': {}}}},
        {'manager': MANAGER, 'operation': 'Apply', 'subresource': 'status', 'fieldsV1': {}},
        *([] if fields is None else [
            {'manager': MANAGER, 'operation': 'Apply', 'fieldsV1': fields}]),
    ], **meta)
    raw['metadata']['labels'].update(labels or {})
    return raw


LOST = {key: val for key, val in FIELDS.items() if key != 'f:data'}
"""The fields of a child whose data somebody else has changed."""


# The order of what comes.

def test_a_response_makes_a_child_known_and_is_no_news(store, news):
    store.accept(CONFIGMAPS, make(1))
    assert store.of('parent').keys() == {KEY} and not news


def test_a_status_in_a_response_is_news_as_the_watch_will_not_tell_it(store, watch, news):
    store.accept(CONFIGMAPS, {**make(2), 'status': {'ready': False}})
    assert news == ['parent']
    store.accept(CONFIGMAPS, {**make(4), 'status': {'ready': False}})
    assert news == ['parent']
    store.accept(CONFIGMAPS, {**make(6), 'status': {'ready': True}})
    assert news == ['parent', 'parent']
    watch.changed('MODIFIED', {**make(5), 'status': {'ready': True}}, b'')
    assert news == ['parent', 'parent']


def test_a_default_status_of_a_new_child_is_no_news(store, news):
    raw = {**make(1), 'status': {'loadBalancer': {}}}
    del raw['metadata']['managedFields'][1]
    store.accept(CONFIGMAPS, raw)
    assert not news


def test_the_echo_of_a_write_is_no_news(store, watch, news):
    store.accept(CONFIGMAPS, make(1))
    watch.changed('ADDED', make(1), b'')
    assert not news


def test_a_child_that_others_have_made_is_news(store, watch, news):
    watch.changed('ADDED', make(1), b'')
    assert news == ['parent'] and KEY in store.of('parent')


def test_a_late_event_is_ignored(store, watch, news):
    store.accept(CONFIGMAPS, make(5, data='new'))
    watch.changed('MODIFIED', make(3, data='old'), b'')
    assert not news and store.of('parent')[KEY].body['data'] == {'a': 'new'}


def test_a_later_event_is_news(store, watch, news):
    store.accept(CONFIGMAPS, make(5))
    watch.changed('MODIFIED', make(6), b'')
    assert news == ['parent']


def test_an_event_ahead_of_the_response_waits_for_it_and_is_no_news(store, watch, news):
    with store.writing(KEY):
        watch.changed('ADDED', make(1), b'')
        assert not store.of('parent') and not news
        store.accept(CONFIGMAPS, make(1))
    assert KEY in store.of('parent') and not news


def test_a_foreign_change_during_a_write_is_news_after_it(store, watch, news):
    with store.writing(KEY):
        watch.changed('ADDED', make(1), b'')
        watch.changed('MODIFIED', make(2, fields=LOST), b'')
        store.accept(CONFIGMAPS, make(1))
    assert news == ['parent'] and not store.of('parent')[KEY].is_as(want())


def test_a_deletion_during_a_write_is_news_after_it(store, watch, news):
    watch.changed('ADDED', make(1), b'')
    news.clear()
    with store.writing(KEY):
        watch.changed('DELETED', make(3), b'')
        store.accept(CONFIGMAPS, make(2))
    assert not store.of('parent') and news == ['parent']


def test_a_deletion_during_a_write_leaves_nothing(store, watch):
    uid = uuid.uuid4().hex
    with store.writing(KEY):
        watch.changed('DELETED', make(3, uid=uid), b'')
        store.accept(CONFIGMAPS, make(2, uid=uid))
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Child) and each.uid == uid]


def test_the_end_of_a_namesake_leaves_the_new_child(store, watch, news):
    watch.changed('ADDED', make(1, uid='u1'), b'')
    store.accept(CONFIGMAPS, make(3, uid='u2'))
    news.clear()
    watch.changed('DELETED', make(2, uid='u1'), b'')
    assert store.of('parent')[KEY].uid == 'u2' and not news


def test_a_namesake_of_another_uid_replaces_the_child(store, watch):
    watch.changed('ADDED', make(1, uid='u1'), b'')
    watch.changed('ADDED', make(3, uid='u2'), b'')
    assert store.of('parent')[KEY].uid == 'u2'


def test_the_end_of_a_child_is_news(store, watch, news):
    store.accept(CONFIGMAPS, make(1))
    watch.changed('DELETED', make(2), b'')
    assert news == ['parent'] and not store.of('parent')


def test_the_end_of_a_child_that_was_pruned_is_no_news(store, watch, news):
    store.accept(CONFIGMAPS, make(1))
    store.of('parent')[KEY].note_deletion(is_pruned=True)
    watch.changed('MODIFIED', make(2, deletionTimestamp='2020-01-01T00:00:00Z'), b'')
    news.clear()
    watch.changed('DELETED', make(3), b'')
    assert not news and not store.of('parent')


def test_the_end_of_a_pruned_child_that_is_wanted_again_is_news(store, watch, news):
    store.accept(CONFIGMAPS, make(1))
    store.of('parent')[KEY].note_deletion(is_pruned=True)
    store.of('parent')[KEY].expect_return()
    watch.changed('DELETED', make(3), b'')
    assert news == ['parent']


def test_a_late_event_does_not_bring_a_deleted_child_back_to_life(store, watch):
    store.accept(CONFIGMAPS, make(1))
    store.of('parent')[KEY].note_deletion(is_pruned=True)
    watch.changed('MODIFIED', make(2), b'')
    assert store.of('parent')[KEY].is_deleting


# Lists.

def relist(watch, *items, restored=False):
    watch.reopen()
    watch.list_started(restored=restored)
    for item in items:
        watch.listed(item)
    watch.list_ended()


def test_items_of_lists_lack_their_kind(store, watch):
    raw = make(1)
    del raw['apiVersion'], raw['kind']
    relist(watch, raw)
    assert store.of('parent')[KEY].body['kind'] == 'ConfigMap'


def test_a_list_with_the_same_is_no_news(store, watch, news):
    store.accept(CONFIGMAPS, make(1))
    relist(watch, make(1))
    assert not news


def test_a_list_shows_what_was_changed_and_what_is_gone(store, watch, news):
    for name in ('a', 'b', 'c'):
        watch.changed('ADDED', make(1, uid=name, name=name), b'')
    news.clear()
    relist(watch, make(1, uid='a', name='a'), make(2, uid='b', name='b'))
    assert [key.name for key in store.of('parent')] == ['a', 'b'] and news == ['parent'] * 2


def test_a_list_shows_that_a_child_is_gone_of_which_only_the_response_was_seen(store, watch, news):
    store.accept(CONFIGMAPS, make(1))
    relist(watch)
    assert not store.of('parent') and news == ['parent']


def test_a_child_that_is_made_while_the_list_comes_is_not_gone(store, watch, news):
    watch.list_started(restored=False)
    store.accept(CONFIGMAPS, make(1))
    watch.list_ended()
    assert KEY in store.of('parent') and not news


def test_a_list_of_a_restored_backup_counts_though_it_is_older(store, watch, news):
    store.accept(CONFIGMAPS, make(9, data='new'))
    relist(watch, make(5, data='old'), restored=True)
    assert store.of('parent')[KEY].body['data'] == {'a': 'old'} and news == ['parent']


def test_children_are_listed_when_the_list_is_complete(store):
    calls = []
    store.on_listed = lambda: calls.append('listed')
    watch = store.open(CONFIGMAPS, 'ns')
    watch.list_started(restored=False)
    assert not store.is_listed(CONFIGMAPS, 'ns') and not calls
    watch.list_ended()
    assert store.is_listed(CONFIGMAPS, 'ns') and calls == ['listed']
    assert not store.is_listed(CONFIGMAPS, 'other') and not store.is_listed(THINGS, 'ns')


def test_children_are_listed_anew_after_a_pause(store, watch):
    assert store.open(CONFIGMAPS, 'ns') is watch
    assert not store.is_listed(CONFIGMAPS, 'ns')


def test_a_cluster_wide_list_is_for_all_namespaces(store):
    watch = store.open(CONFIGMAPS, None)
    watch.list_started(restored=False)
    watch.list_ended()
    assert store.is_listed(CONFIGMAPS, 'ns') and store.is_listed(CONFIGMAPS, None)


def test_for_cluster_scoped_parents_all_served_namespaces_are_listed(store, watch):
    assert store.is_listed(CONFIGMAPS, None)
    other = store.open(CONFIGMAPS, 'other')
    assert not store.is_listed(CONFIGMAPS, None) and store.is_listed(CONFIGMAPS, 'ns')
    other.list_started(restored=False)
    other.list_ended()
    assert store.is_listed(CONFIGMAPS, None)


def test_children_of_kinds_that_are_not_watched_are_forgotten(store, watch, news):
    watch.changed('ADDED', make(1), b'')
    store.close(CONFIGMAPS, 'ns')
    assert not store.of('parent') and news == ['parent'] * 2


# Labels that others have changed.

def test_a_child_whose_label_is_changed_is_no_child_any_more(store, watch, news):
    watch.changed('ADDED', make(1), b'')
    news.clear()
    watch.changed('MODIFIED', make(2, labels={OWNER_LABEL: 'other'}), b'')
    assert not store.of('parent') and KEY in store.of('other')
    assert sorted(news) == ['other', 'parent']


# Whose an object is.

REFERENCE = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'name': 'parent', 'uid': 'parent',
             'controller': True}


def forge(*, namespace='ns', fields=None, owners=(), owner='parent'):
    """An object that somebody else has made, with the labels of a child."""
    raw = make(1, fields=fields, ownerReferences=list(owners), labels={OWNER_LABEL: owner})
    raw['metadata']['namespace'] = namespace
    return raw


def read(store, uid='parent', *, namespace='ns'):
    return list(OperatorChildren(store, uid, namespace))


@pytest.mark.parametrize('namespace', ['ns', 'other'])
def test_labels_alone_prove_nothing(store, namespace):
    store.open(CONFIGMAPS, None).changed('ADDED', forge(namespace=namespace), b'')
    assert read(store) == [] and len(OperatorChildren(store, 'parent', 'ns')) == 0
    assert OperatorChildren(store, 'parent', 'ns').get('cm', 'child', namespace=namespace) is None


@pytest.mark.parametrize('namespace', ['ns', None])
def test_owner_references_prove_whose_a_child_is(store, watch, namespace):
    watch.changed('ADDED', forge(owners=[REFERENCE]), b'')
    assert len(read(store, namespace=namespace)) == 1


def test_owner_references_prove_nothing_in_other_namespaces(store):
    store.open(CONFIGMAPS, None).changed(
        'ADDED', forge(namespace='other', owners=[REFERENCE]), b'')
    assert read(store) == []


@pytest.mark.parametrize('namespace', ['ns', 'other'])
def test_labels_that_the_handler_has_set_prove_whose_a_child_is(store, namespace):
    store.open(CONFIGMAPS, None).changed('ADDED', forge(namespace=namespace, fields=FIELDS), b'')
    assert len(read(store)) == 1


def test_labels_that_others_have_set_prove_nothing_though_the_handler_has_set_other_fields(store):
    fields = {**FIELDS, 'f:metadata': {'f:labels': {f'f:{HANDLER_LABEL}': {}}}}
    store.open(CONFIGMAPS, None).changed('ADDED', forge(namespace='other', fields=fields), b'')
    assert read(store) == []


def test_a_child_whose_label_is_changed_belongs_to_its_controller(store, watch):
    fields = {**FIELDS, 'f:metadata': {'f:labels': {f'f:{HANDLER_LABEL}': {}}}}
    watch.changed('ADDED', forge(fields=fields, owners=[REFERENCE], owner='other'), b'')
    assert len(read(store)) == 1 and read(store, 'other') == []


def test_children_are_found_in_the_namespace_of_the_object_by_default(store):
    children = OperatorChildren(store, 'parent', 'ns')
    store.open(CONFIGMAPS, None).changed('ADDED', forge(namespace='other', fields=FIELDS), b'')
    assert children.get('cm', 'child') is None
    assert children.get('cm', 'child', namespace='other') is not None


def test_there_is_no_default_namespace_for_children_of_cluster_scoped_objects(store, watch):
    children = OperatorChildren(store, 'parent', None)
    with pytest.raises(ValueError, match="needs the namespace of configmaps.v1 'child'"):
        children.get('cm', 'child')
    watch.changed('ADDED', make(1), b'')
    assert children.get('cm', 'child', namespace='ns') is not None


def test_cluster_scoped_children_are_found_without_a_namespace(store):
    resource = Resource('', 'v1', 'namespaces', kind='Namespace', namespaced=False)
    raw = make(1)
    del raw['metadata']['namespace']
    store.open(resource, None).changed('ADDED', {**raw, 'kind': 'Namespace'}, b'')
    for namespace in ('ns', None):
        assert OperatorChildren(store, 'parent', namespace).get('namespaces', 'child') is not None


# What is in order.

def test_a_child_is_in_order_after_its_manifest_was_applied(store):
    store.accept(CONFIGMAPS, make(1))
    assert store.of('parent')[KEY].is_as(want())


def test_a_child_is_in_order_after_a_start_if_all_its_fields_are_owned(store, watch):
    relist(watch, make(1))
    assert store.of('parent')[KEY].is_as(want())


def test_a_child_stays_in_order_when_others_change_other_things(store, watch):
    store.accept(CONFIGMAPS, make(1))
    watch.changed('MODIFIED', {**make(2), 'status': {'x': 'y'}}, b'')
    assert store.of('parent')[KEY].is_as(want())


@pytest.mark.parametrize('fields', [LOST, {}, None], ids=['some', 'all', 'the manager'])
def test_a_child_that_has_lost_fields_is_not_in_order(store, watch, fields):
    store.accept(CONFIGMAPS, make(1))
    watch.changed('MODIFIED', make(2, fields=fields), b'')
    assert not store.of('parent')[KEY].is_as(want())


@pytest.mark.parametrize('fields', [LOST, {}, None], ids=['some', 'all', 'the manager'])
def test_a_child_that_has_lost_fields_is_not_in_order_after_a_start(store, watch, fields):
    relist(watch, make(1, fields=fields))
    assert not store.of('parent')[KEY].is_as(want())


def test_a_child_of_another_manifest_is_not_in_order(store):
    store.accept(CONFIGMAPS, make(1, data='other'))
    assert not store.of('parent')[KEY].is_as(want())


def test_fields_that_the_api_server_does_not_record_cause_no_writes_again(store, watch):
    """The response is the best that there will be, also when only others' fields change later."""
    store.accept(CONFIGMAPS, make(1, fields=LOST))
    assert store.of('parent')[KEY].is_as(want())
    watch.changed('MODIFIED', {**make(2, fields=LOST), 'status': {}}, b'')
    assert store.of('parent')[KEY].is_as(want())


# What handlers see.

def test_what_the_api_server_does_not_record_is_learned_from_one_child_for_all(store, watch):
    keys = [KEY._replace(name='one'), KEY._replace(name='two')]
    for key in keys:
        watch.listed(make(1, uid=key.name, name=key.name, binaryData={}))

    def is_in_order(key):
        return store.of('parent')[key].is_as(want(name=key.name, binaryData={}))

    assert not is_in_order(keys[0]) and not is_in_order(keys[1])
    store.accept(
        CONFIGMAPS, make(1, uid='one', name='one', binaryData={}),
        want(name='one', binaryData={}))
    assert is_in_order(keys[0]) and is_in_order(keys[1])
    store.accept(SECRETS, make(1, uid='three', name='three', binaryData={}))
    assert not store.find(KEY._replace(kind='Secret', name='three')).shape.unrecorded


@pytest.mark.parametrize('kind', ['ConfigMap', 'configmaps', 'configmap', 'cm', 'configmaps.v1'])
def test_handlers_find_children_by_kind_and_name(store, kind):
    store.accept(CONFIGMAPS, make(1))
    children = OperatorChildren(store, 'parent', 'ns')
    assert children.get(kind, 'child').metadata.name == 'child'
    assert children.get(kind, 'child', namespace='ns') is not None


def test_handlers_find_only_children(store):
    store.accept(CONFIGMAPS, make(1))
    children = OperatorChildren(store, 'parent', 'ns')
    assert children.get('configmaps', 'other') is None and children.get('pods', 'child') is None
    assert children.get('configmaps', 'child', namespace='other') is None
    others = OperatorChildren(store, 'other', 'ns')
    assert len(others) == 0 and list(others) == []


def test_handlers_see_what_was_applied_and_the_status_and_essential_metadata(store):
    raw = {**make(1), 'status': {'x': 'y'}, 'data': {'a': 'b', 'z': 'foreign'}}
    store.accept(CONFIGMAPS, raw)
    child, = OperatorChildren(store, 'parent', 'ns')
    assert child.status == {'x': 'y'} and child['data'] == {'a': 'b'}
    assert child.metadata.uid == 'u1' and 'managedFields' not in child.metadata


@pytest.mark.parametrize('first', ['b', 'long' * 5000])
@pytest.mark.parametrize('data', ['b', 'c' * 10_000, 'é', '', '\0\x7f'])
def test_handlers_see_each_child_with_its_own_values(store, first, data):
    store.accept(CONFIGMAPS, make(1, uid='u0', name='first', data=first))
    store.accept(CONFIGMAPS, make(2, data=data))
    bodies = {body.metadata.name: body for body in OperatorChildren(store, 'parent', 'ns')}
    assert bodies['first']['data'] == {'a': first} and bodies['child']['data'] == {'a': data}
    assert bodies['child'].metadata.uid == 'u1'


def test_a_child_takes_less_than_a_kilobyte(store, watch):
    raws = [make(number, uid=str(uuid.uuid4()), name=f'child-{number}') for number in range(1000)]
    gc.collect()
    tracemalloc.start()
    try:
        for raw in raws:
            watch.changed('ADDED', copy.deepcopy(raw), b'')
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store.of('parent')) == 1000 and size < 1000 * 1024


def test_handlers_in_threads_can_look_while_children_come_and_go(store):
    children, is_over, errors = OperatorChildren(store, 'parent', 'ns'), threading.Event(), []

    def look():
        try:
            while not is_over.is_set():
                children.get('configmaps', 'none')
                list(children)
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=look)
    thread.start()
    raws = [make(1, uid=f'u{number}', name=f'c{number}') for number in range(30)]
    try:
        for _ in range(20):
            for raw in raws:
                store.accept(CONFIGMAPS, raw)
            for raw in raws:
                store.remove(KEY._replace(name=raw['metadata']['name']), raw['metadata']['uid'])
    finally:
        is_over.set()
        thread.join()
    assert not errors
