"""
Handlers: whatever one of them returns, raises, or patches, is its own error on this object. Other
handlers and other objects are handled, and nothing is repeated in a hurry.
"""
import datetime
import decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._core.actions import progression
from kopf.testing import virtual_time
from tests.hostile import anything, worlds


class Strange:
    """An object that cannot even be looked at."""

    def __repr__(self):
        raise RuntimeError("It cannot be shown.")

    __str__ = __repr__
    __bool__ = __repr__
    __eq__ = __repr__
    __hash__ = None


def make_loop():
    loop = {}
    loop['self'] = [loop]
    return loop


def make_deep(levels):
    value = None
    for _ in range(levels):
        value = {'k': [value]}
    return value


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("It cannot be shown.")

    __repr__ = __str__


no_json = st.sampled_from([
    float('nan'), float('inf'), b'bytes', {1, 2}, object(), lambda: None, datetime.datetime.min,
    decimal.Decimal('1.5'), {1: 2}, {None: 1}, {(1, 2): 3}, make_loop(), make_deep(200),
    make_deep(3000), 10 ** 5000, '\ud800', 'x' * 2_000_000, Strange(), [Strange()],
    {'k': Strange()}, kopf, type, iter([]), range(5), NotImplemented, ...])
objects = anything.values | no_json | st.lists(no_json, min_size=1, max_size=2) | (
    st.dictionaries(anything.keys, no_json, min_size=1, max_size=2))
errors = st.sampled_from([
    Exception(), Exception(Strange()), Unspeakable(), kopf.PermanentError(Strange()),
    kopf.PermanentError(None), kopf.TemporaryError('x' * 100_000, delay=10),
    kopf.TemporaryError("again", delay=float('inf')), RecursionError(), MemoryError(),
    StopIteration(), StopAsyncIteration(), ExceptionGroup('x', [Unspeakable()]), AssertionError(),
    kopf.HandlerTimeoutError(), Exception('\ud800'), KeyError(Strange()), UnicodeError('x')])
fields = st.sampled_from(['status', 'spec', 'metadata', 'kind', 'apiVersion', 'other', 5, None])
FIELDS = [
    'name', 'namespace', 'uid', 'resourceVersion', 'labels', 'annotations', 'finalizers',
    'ownerReferences', 'deletionTimestamp', 'generation', 'managedFields']


async def assert_that_others_are_handled(fn):
    """The function is a handler of all causes and kinds, of the bad object only."""
    registry = worlds.make_registry()
    only = {'registry': registry, 'when': lambda name, **_: name == 'bad'}
    for decorate in (
        kopf.on.create, kopf.on.update, kopf.on.resume, kopf.on.event, kopf.index,
    ):
        decorate('kopfexamples', **only)(fn)
    kopf.on.field('kopfexamples', field='spec.field', **only)(fn)
    kopf.on.delete('kopfexamples', retries=2, **only)(fn)
    kopf.daemon('kopfexamples', cancellation_timeout=1, **only)(fn)
    kopf.timer('kopfexamples', interval=60, **only)(fn)

    async with worlds.open_world(registry) as world:
        await world.create('bad', spec={'field': 1})
        await world.create('good')
        await world.wait_handled('good')
        await world.operator.wait_log(r"\[default/bad\] Handler 'good' succeeded", timeout=1000)
        asked, said = await world.rest(600)
        assert asked < 1500 and said < 9000, (asked, said, world.show())
        await world.api.sandbox.patch('kopfexamples', 'bad', {'spec': {'field': 2}})
        await world.rest(60)
        await world.api.sandbox.delete('kopfexamples', 'bad')
        await world.create('later')
        await world.wait_handled('later')


@given(objects)
@virtual_time
async def test_any_results(result):
    async def fn(**_):
        return result

    await assert_that_others_are_handled(fn)


@given(errors)
@virtual_time
async def test_any_errors(error):
    async def fn(**_):
        raise error

    await assert_that_others_are_handled(fn)


@pytest.mark.parametrize('delay', [0, -1, None])
@virtual_time
async def test_any_number_of_immediate_attempts(delay):
    """In virtual time, handlers without any pause would let no time pass."""
    calls = 0

    async def fn(**_):
        nonlocal calls
        calls += 1
        raise kopf.TemporaryError("again", delay=delay)

    registry = worlds.make_registry()
    only = {'registry': registry, 'when': lambda name, **_: name == 'bad'}
    kopf.on.create('kopfexamples', **only)(fn)
    kopf.daemon('kopfexamples', cancellation_timeout=1, **only)(fn)
    async with worlds.open_world(registry) as world:
        await world.create('bad')
        await world.create('good')
        await world.wait_handled('good')
        before = calls
        await world.rest(10)
        assert 100 < calls - before <= 2 * 10 / progression.MIN_PAUSE + 2


@given(fields, objects)
@virtual_time
async def test_any_patches(field, value):
    async def fn(patch, **_):
        patch[field] = value

    await assert_that_others_are_handled(fn)


@given(st.sampled_from(FIELDS), objects)
@virtual_time
async def test_any_patches_of_the_metadata(field, value):
    async def fn(patch, **_):
        patch.meta[field] = value

    await assert_that_others_are_handled(fn)


@given(fields, objects)
@virtual_time
async def test_any_functions_in_patches(field, value):
    async def fn(patch, **_):
        patch.fns.append(lambda body: body.update({field: value}))

    await assert_that_others_are_handled(fn)
