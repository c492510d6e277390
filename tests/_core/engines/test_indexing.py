import collections
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.engines.indexing import OperatorIndex

UIDS = st.sampled_from(['u1', 'u2', 'u3'])
KEYS = st.sampled_from(['k1', 'k2', None, (1, 2)])
VALUES = st.dictionaries(KEYS, st.integers(0, 2) | st.none(), max_size=3)


@given(changes=st.lists(st.tuples(UIDS, VALUES | st.just('discard'))))
def test_an_index_is_equal_to_the_latest_values_of_all_objects(changes):
    index, model = OperatorIndex(), {}
    for uid, values in changes:
        if values == 'discard':
            index.discard(uid)
            model.pop(uid, None)
        else:
            index.replace(uid, values)
            model[uid] = values
        expected = collections.defaultdict(list)
        for values in model.values():
            for key, value in values.items():
                expected[key].append(value)
        expected = {key: sorted(values, key=str) for key, values in expected.items()}
        assert {key: sorted(store, key=str) for key, store in index.items()} == expected
        assert {key: sorted(index[key], key=str) for key in index} == expected
        assert len(index) == len(expected) == len(index.values())
        assert all(key in index and len(index[key]) == len(expected[key]) for key in expected)


def test_absent_keys_are_errors():
    index = OperatorIndex()
    with pytest.raises(KeyError):
        index['key']
    assert index.get('key') is None and 'key' not in index


def test_collections_do_not_change_once_they_are_taken():
    index = OperatorIndex()
    index.replace('u1', {'key': 1})
    store = index['key']
    index.replace('u1', {'key': 2})
    index.discard('u1')
    assert list(store) == [1] and 1 in store and 2 not in store and repr(store) == '[1]'


def test_indices_and_collections_are_shown_by_their_content():
    index = OperatorIndex()
    index.replace('u1', {'key': 1})
    assert repr(index) == "{'key': [1]}"


def test_other_threads_see_every_object_exactly_once_at_any_moment():
    index = OperatorIndex()
    uids = [f'u{i}' for i in range(20)]
    for uid in uids:
        index.replace(uid, {0: uid, 'all': uid})
    is_over = threading.Event()
    errors = []
    counts = []

    def read():
        count = 0
        while not is_over.is_set():
            everything = dict(index.items())
            seen = [uid for key, store in everything.items() if key != 'all' for uid in store]
            if sorted(seen) != sorted(uids) or sorted(index['all']) != sorted(uids):
                errors.append(seen)
            list(index)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=read) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    try:
        for thread in threads:
            thread.start()
        for step in range(1, 1000):
            for uid in uids:
                index.replace(uid, {(step * len(uid)) % 7: uid, 'all': uid})
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not errors
    assert all(counts)
