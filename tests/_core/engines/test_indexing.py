import asyncio
import collections
import copy
import logging
import pickle
import sys
import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Context
from kopf._core.engines.indexing import OperatorIndex, OperatorIndexers

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


@pytest.mark.parametrize('duplicate', [
    copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)),
])
def test_indices_can_be_copied_and_the_copies_do_not_change(duplicate):
    index = OperatorIndex()
    index.replace('u1', {'key': [1]})
    copied = duplicate(index)
    index.replace('u1', {'key': [2], 'more': 3})
    assert {key: list(store) for key, store in copied.items()} == {'key': [[1]]}
    copied.discard('u1')
    assert not copied and len(index) == 2


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

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)


class Indexing:
    """One index ``idx``, and the objects which are put there."""

    def __init__(self, fn, **options):
        self.registry = kopf.OperatorRegistry()
        kopf.index('kopfexamples', id='idx', registry=self.registry, **options)(fn)
        self.indexers = OperatorIndexers()
        self.indexers.ensure(self.registry._indexing)

    async def put(self, name='x', **fields):
        """Index a state of an object; returns the time when to try again, if ever."""
        raw = {'metadata': {'name': name, 'uid': name, 'namespace': 'default'}, **fields}
        return await self.indexers.index(
            self.registry._indexing, uid=name, resource=RESOURCE, raw=raw, memo=kopf.Memo(),
            context=Context(
                settings=kopf.OperatorSettings(), clock=Clock(), indices=self.indexers),
            is_gone=lambda: False)

    def gone(self, name='x'):
        self.indexers.discard(name, self.registry._indexing)

    @property
    def content(self):
        return {key: list(store) for key, store in self.indexers['idx'].items()}


OBJECT = object()
MEMO = kopf.Memo(key='value')


@pytest.mark.parametrize(('result', 'content'), [
    ({'key': 'value'}, {'key': ['value']}),
    ({'key': None}, {'key': [None]}),
    ({'key': {'nested': 'value'}}, {'key': [{'nested': 'value'}]}),
    ({('ns', 'name'): 1}, {('ns', 'name'): [1]}),
    ({'a': 1, 'b': 1}, {'a': [1], 'b': [1]}),
    ({}, {}),
    (None, {}),
    ('text', {None: ['text']}),
    (0, {None: [0]}),
    (('ns', 'name'), {None: [('ns', 'name')]}),
    (['a', 'b'], {None: [['a', 'b']]}),
    ({'a', 'b'}, {None: [{'a', 'b'}]}),
    (OBJECT, {None: [OBJECT]}),
    (MEMO, {None: [MEMO]}),
    (collections.OrderedDict(key='value'), {None: [collections.OrderedDict(key='value')]}),
    (types.MappingProxyType({'a': 1}), {None: [types.MappingProxyType({'a': 1})]}),
])
async def test_only_true_dicts_have_keys_and_all_else_is_collected_as_it_is(result, content):
    indexing = Indexing(lambda **_: result)
    await indexing.put()
    assert indexing.content == content


async def test_values_of_all_objects_are_merged_under_their_keys():
    indexing = Indexing(lambda spec, **_: {spec['key']: spec['value']})
    await indexing.put('x', spec={'key': 'key1', 'value': 'a'})
    await indexing.put('y', spec={'key': 'key1', 'value': 'a'})
    await indexing.put('z', spec={'key': 'key2', 'value': 'b'})
    assert indexing.content == {'key1': ['a', 'a'], 'key2': ['b']}
    indexing.gone('z')
    assert indexing.content == {'key1': ['a', 'a']}


async def test_whole_objects_can_be_indexed():
    indexing = Indexing(lambda name, namespace, body, **_: {(namespace, name): body})
    await indexing.put('x', spec={'field': 1}, status={'replicas': 2})
    body, *_ = indexing.indexers['idx']['default', 'x']
    assert (body.meta.name, body.spec['field'], body.status.get('replicas')) == ('x', 1, 2)


async def test_an_index_exists_and_is_empty_before_anything_is_indexed():
    assert Indexing(lambda **_: None).content == {}


async def test_indices_are_read_only_for_handlers():
    indexing = Indexing(lambda **_: 1)
    await indexing.put()
    index = indexing.indexers['idx']
    assert isinstance(index, kopf.Index)
    assert isinstance(index[None], kopf.Store)
    with pytest.raises(TypeError):
        index[None] = [2]
    with pytest.raises(TypeError):
        del index[None]
    with pytest.raises(AttributeError):
        index[None].append(2)


async def test_indexing_functions_get_the_indices_themselves():
    seen = []
    indexing = Indexing(lambda name, idx, **_: seen.append(dict(idx)) or name)
    await indexing.put('x')
    await indexing.put('y')
    assert [len(index) for index in seen] == [0, 1]


def test_an_index_of_a_field_has_the_name_of_the_function():
    registry = kopf.OperatorRegistry()

    @kopf.index('kopfexamples', field='spec.a', registry=registry)
    @kopf.index('kopfexamples', field='spec.b', id='named', registry=registry)
    def idx(**_):
        pass

    assert [handler.id for handler in registry._indexing] == ['named', idx.__qualname__]


async def test_functions_with_the_same_name_fill_the_same_index():
    indexing = Indexing(lambda **_: {'a': 1, 'b': 1}, field='spec.a')
    calls = []

    @kopf.index('kopfexamples', id='idx', field='spec.b', registry=indexing.registry)
    @kopf.index('kopfexamples', id='idx', field='spec.c', registry=indexing.registry)
    def fn(spec, **_):
        calls.append(spec)
        return {'b': 2, 'c': 2}

    await indexing.put(spec={'a': 1, 'b': 1, 'c': 1})
    assert len(calls) == 1
    assert indexing.content == {'b': [2], 'c': [2]}
    await indexing.put(spec={'a': 1})
    assert indexing.content == {'a': [1], 'b': [1]}
    await indexing.put(spec={'c': 1})
    assert indexing.content == {'b': [2], 'c': [2]}
    await indexing.put(spec={})
    assert indexing.content == {}


async def test_an_index_wins_over_a_kwarg_of_the_same_name():
    seen = []
    registry = kopf.OperatorRegistry()
    indexing = Indexing(lambda **_: 1)
    kopf.index('kopfexamples', id='spec', registry=registry)(lambda spec, **_: seen.append(spec))
    indexing.registry = registry
    indexing.indexers.ensure(registry._indexing)
    await indexing.put(spec={'field': 1})
    assert seen == [indexing.indexers['spec']]


async def test_the_first_filter_that_does_not_match_any_more_takes_the_object_out():
    indexing = Indexing(lambda name, **_: name, labels={'on': 'yes'}, when=lambda spec, **_: spec)
    on = {'name': 'x', 'uid': 'x', 'labels': {'on': 'yes'}}
    await indexing.put(metadata=on, spec={'field': 1})
    assert indexing.content == {None: ['x']}
    await indexing.put(metadata=on, spec={})
    assert indexing.content == {}


def fail(error):
    def fn(spec, **_):
        if spec.get('bad'):
            raise error
        return 1
    return fn


@pytest.mark.looptime
@pytest.mark.parametrize(('error', 'options', 'delay'), [
    (Exception("boo"), {'errors': kopf.ErrorsMode.TEMPORARY}, 60),
    (Exception("boo"), {'errors': kopf.ErrorsMode.TEMPORARY, 'backoff': 7}, 7),
    (kopf.TemporaryError("boo"), {}, 60),
    (kopf.TemporaryError("boo", delay=30), {}, 30),
])
async def test_temporary_errors_exclude_the_object_until_their_delay_is_over(
        error, options, delay, looptime):
    indexing = Indexing(fail(error), **options)
    await indexing.put()
    assert await indexing.put(spec={'bad': True}) == looptime + delay
    assert indexing.content == {}
    await asyncio.sleep(delay - 1)
    await indexing.put()
    assert indexing.content == {}
    await asyncio.sleep(1)
    await indexing.put()
    assert indexing.content == {None: [1]}


@pytest.mark.looptime
@pytest.mark.parametrize(('error', 'options'), [
    (Exception("boo"), {'errors': kopf.ErrorsMode.TEMPORARY, 'backoff': 0}),
    (kopf.TemporaryError("boo", delay=0), {}),
    (kopf.TemporaryError("boo", delay=None), {}),
])
async def test_objects_are_not_excluded_where_there_is_no_delay(error, options):
    indexing = Indexing(fail(error), **options)
    assert await indexing.put(spec={'bad': True}) <= asyncio.get_running_loop().time()
    await indexing.put()
    assert indexing.content == {None: [1]}


@pytest.mark.looptime
@pytest.mark.parametrize(('error', 'options'), [
    (kopf.PermanentError("boo"), {}),
    (Exception("boo"), {'errors': kopf.ErrorsMode.PERMANENT}),
    (Exception("boo"), {'errors': kopf.ErrorsMode.TEMPORARY, 'retries': 1}),
    (kopf.TemporaryError("boo", delay=1), {'timeout': 1}),
])
async def test_objects_are_excluded_for_ever_by_permanent_errors_and_at_the_limits(error, options):
    indexing = Indexing(fail(error), **options)
    await indexing.put(spec={'bad': True})
    await asyncio.sleep(1)
    await indexing.put(spec={'bad': True})
    await asyncio.sleep(1000)
    assert await indexing.put() is None
    assert indexing.content == {}


@pytest.mark.looptime
async def test_a_success_begins_the_counting_of_failures_anew():
    seen = []

    def fn(spec, retry, runtime, **_):
        seen.append((retry, runtime.total_seconds()))
        if spec.get('bad'):
            raise kopf.TemporaryError("boo", delay=1)
        return 1

    indexing = Indexing(fn)
    for bad in [True, True, False, True, True]:
        await indexing.put(spec={'bad': bad})
        await asyncio.sleep(1)
    assert [retry for retry, _ in seen] == [0, 1, 2, 0, 1]
    assert [round(runtime) for _, runtime in seen] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(('error', 'has_traceback'), [
    (kopf.PermanentError("boo"), False),
    (kopf.TemporaryError("boo"), False),
    (Exception("boo"), True),
])
async def test_only_unexpected_errors_are_logged_with_their_tracebacks(
        error, has_traceback, caplog):
    indexing = Indexing(fail(error))
    await indexing.put(spec={'bad': True})
    record, = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "boo" in record.getMessage()
    assert bool(record.exc_info) == has_traceback


async def test_a_change_costs_as_much_as_the_object_has_keys_however_many_there_are():
    index = OperatorIndex()
    for i in range(1000):
        index.replace(f'u{i}', {i: i, 'all': i})
    touched = []

    class Spy(dict):
        def __getitem__(self, key):
            touched.append(key)
            return super().__getitem__(key)

        def __iter__(self):
            raise AssertionError("all the keys are gone through")

    index._stores = Spy(index._stores)
    index.replace('u1', {1: 'new', 'all': 'new'})
    index.discard('u2')
    assert touched.count('all') <= 2 and len(touched) <= 4
