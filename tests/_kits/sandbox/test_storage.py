import json

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.statuses import APIError
from kopf._kits.sandbox.storage import MAX_SIZE, Store, TooOld

THINGS = ('test', 'things')


def put(store, name, namespace='ns', **kwargs):
    obj = {'metadata': {'name': name, 'namespace': namespace, 'uid': name}, **kwargs}
    return store.put(THINGS, (namespace, name), obj, encoding.encode)


def remove(store, name, namespace='ns'):
    return store.remove(THINGS, (namespace, name), encoding.encode)


def names(entries):
    return [entry.key[1] for entry in entries]


def test_every_write_has_a_revision_of_its_own():
    store = Store()
    revisions = [put(store, 'a').revision, put(store, 'a').revision, put(store, 'b').revision,
                 remove(store, 'a').revision]
    assert revisions == sorted(set(revisions))
    assert store.revision == revisions[-1]


def test_the_revision_is_in_the_object():
    entry = put(Store(), 'a')
    assert entry.decode()['metadata']['resourceVersion'] == str(entry.revision)


def test_what_is_read_cannot_alter_what_is_stored():
    store = Store()
    put(store, 'a', spec={'x': 1}).decode()['spec']['x'] = 2
    assert store.get(THINGS, ('ns', 'a')).decode()['spec'] == {'x': 1}


def test_lists_are_in_the_order_of_namespaces_and_names():
    store = Store()
    for namespace, name in [('b', 'a'), ('a', 'c'), ('a', 'b'), ('c', 'a')]:
        put(store, name, namespace)
    assert [entry.key for entry in store.select(THINGS)] == [
        ('a', 'b'), ('a', 'c'), ('b', 'a'), ('c', 'a')]
    assert [entry.key for entry in store.select(THINGS, 'a')] == [('a', 'b'), ('a', 'c')]
    assert [entry.key for entry in store.select(THINGS, after=('a', 'c'))] == [
        ('b', 'a'), ('c', 'a')]


def test_what_was_at_a_revision_is_still_known():
    store = Store()
    put(store, 'a', spec=1)
    before = put(store, 'b').revision
    put(store, 'a', spec=2)
    put(store, 'c')
    remove(store, 'b')
    entries = list(store.select_at(before, THINGS))
    assert names(entries) == ['a', 'b']
    assert entries[0].decode()['spec'] == 1


def test_only_so_many_changes_are_kept():
    store = Store(history=2)
    first, *_ = [put(store, name).revision for name in 'abcd']
    with pytest.raises(TooOld):
        store.since(THINGS, first)
    with pytest.raises(TooOld):
        list(store.select_at(first, THINGS))
    assert [change.new.key[1] for change in store.since(THINGS, first + 1)] == ['c', 'd']


def test_a_compaction_forgets_all_changes():
    store = Store()
    first = put(store, 'a').revision
    last = put(store, 'b').revision
    store.compact()
    with pytest.raises(TooOld):
        store.since(THINGS, first)
    assert store.since(THINGS, last) == []


def test_listeners_hear_of_their_resource_only_until_they_stop():
    store, heard = Store(), []
    stop = store.listen(THINGS, lambda change: heard.append((change.type, change.new.key[1])))
    store.put(('', 'others'), ('', 'x'), {'metadata': {'uid': 'x'}}, encoding.encode)
    put(store, 'a')
    put(store, 'a', spec=1)
    remove(store, 'a')
    stop()
    put(store, 'b')
    assert heard == [('ADDED', 'a'), ('MODIFIED', 'a'), ('DELETED', 'a')]


def test_too_large_objects_are_refused_and_take_no_revision():
    store = Store()
    before = store.revision
    with pytest.raises(APIError, match="request is too large"):
        put(store, 'a', data='x' * MAX_SIZE)
    assert store.revision == before
    assert store.get(THINGS, ('ns', 'a')) is None


@hypothesis.given(st.lists(st.tuples(st.sampled_from('abcde'), st.booleans())))
def test_the_order_and_the_past_hold_whatever_is_written(steps):
    store, model, past = Store(), {}, {}
    for number, (name, is_put) in enumerate(steps):
        if is_put:
            put(store, name, spec=number)
            model[name] = number
        elif name in model:
            remove(store, name)
            del model[name]
        past[store.revision] = dict(model)
    for revision, then in past.items():
        found = {entry.key[1]: json.loads(entry.raw)['spec']
                 for entry in store.select_at(revision, THINGS)}
        assert found == then
    assert names(store.select(THINGS)) == sorted(model)
