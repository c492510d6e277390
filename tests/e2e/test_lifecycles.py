"""
In which order handlers are called, and how often their outcomes are written.
"""

import pytest

import kopf
from tests.e2e.journals import Watching, wait_handled

NAMES = ['a', 'b', 'c', 'd', 'e']


def declare(kind, journal):

    def fn(param, **_):
        journal.append(param)
        return param

    for name in NAMES:
        kopf.on.create(*kind.selector, id=name, param=name)(fn)


async def count_writes(kube, kind, embedded, **kwargs):
    """Handle an object, and count how many times it was written by the operator."""
    embedded(**kwargs)
    async with Watching(kube, kind) as watching:
        await kube.create(kind, 'x')
        obj = await wait_handled(kube, kind, 'x')
        await watching.wait_state(obj)
        assert obj['status'] == {name: name for name in NAMES}
        return len(watching.get_states('x')) - 1


@pytest.mark.parametrize('name, writes, is_ordered', [
    ('asap', 1, True),
    ('all_at_once', 1, True),
    ('shuffled', 1, False),
    ('one_by_one', 5, True),
    ('randomized', 5, False),
])
async def test_built_in_lifecycles_call_each_handler_once(
        kube, kind, journal, embedded, name, writes, is_ordered):
    declare(kind, journal)
    lifecycle = getattr(kopf.lifecycles, name)
    assert await count_writes(kube, kind, embedded, lifecycle=lifecycle) == writes
    assert sorted(journal) == NAMES
    assert journal == NAMES or not is_ordered


async def test_five_quick_handlers_are_one_write_by_default(kube, kind, journal, embedded):
    declare(kind, journal)
    assert await count_writes(kube, kind, embedded) == 1


async def test_five_quick_handlers_are_two_writes_where_the_status_is_a_subresource(
        kube, status_kind, journal, embedded):
    declare(status_kind, journal)
    assert await count_writes(kube, status_kind, embedded) == 2


async def test_one_write_per_handler_is_made_if_nothing_is_to_be_repeated(
        kube, kind, journal, embedded, settings):
    settings.persistence.flush_delay = 0
    declare(kind, journal)
    assert await count_writes(kube, kind, embedded) == 5


async def test_an_own_lifecycle_chooses_by_all_it_knows_of_the_cause(
        kube, kind, journal, embedded):
    seen = []

    def lifecycle(handlers, *, state, spec, reason, **kwargs):
        seen.append((reason, [handler.id for handler in handlers], kwargs.keys()))
        assert all(state[handler.id].retries == 0 for handler in handlers)
        return sorted(handlers, key=lambda handler: handler.id, reverse=spec['reverse'])[:2]

    declare(kind, journal)
    embedded(lifecycle=lifecycle)
    await kube.create(kind, 'x', spec={'reverse': True})
    await wait_handled(kube, kind, 'x')
    assert journal == ['e', 'd', 'c', 'b', 'a']
    assert [ids for _, ids, _ in seen] == [['a', 'b', 'c', 'd', 'e'], ['a', 'b', 'c'], ['a']]
    assert {reason for reason, *_ in seen} == {'create'}
    assert seen[0][2] >= {
        'body', 'meta', 'status', 'patch', 'diff', 'old', 'new', 'memo', 'logger', 'resource'}


async def test_the_default_lifecycle_can_be_set_for_all_operators(
        kube, kind, journal, embedded):
    declare(kind, journal)
    kopf.set_default_lifecycle(lambda handlers, **_: list(reversed(handlers)))
    try:
        embedded()
        await kube.create(kind, 'x')
        await wait_handled(kube, kind, 'x')
    finally:
        kopf.set_default_lifecycle(None)
    assert journal == NAMES[::-1]


async def test_those_with_the_fewest_tries_come_first_by_default(kube, kind, journal, embedded):

    def fn(param, retry, **_):
        journal.append(param)
        if retry < 2 and param in ('a', 'b'):
            raise kopf.TemporaryError("again!", delay=None if param == 'a' else 0.2)

    for name in ['a', 'b', 'c']:
        kopf.on.create(*kind.selector, id=name, param=name)(fn)
    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == ['a', 'b', 'c', 'a', 'a', 'b', 'b']


@pytest.mark.parametrize('choice', [[], None], ids=repr)
async def test_a_lifecycle_that_chooses_nothing_is_an_error_of_that_object_only(
        kube, kind, journal, embedded, settings, caplog, choice):
    settings.queueing.error_delays = [0.3]
    choices = [choice]

    def lifecycle(handlers, *, name, **_):
        return choices.pop() if choices and name == 'x' else handlers

    declare(kind, journal)
    embedded(lifecycle=lifecycle)
    for name in ['x', 'y']:
        await kube.create(kind, name)
        await wait_handled(kube, kind, name)
    assert journal == NAMES * 2
    errors = [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']
    assert len(errors) == 1
    assert errors[0].startswith("Throttling for 0.3 seconds due to an unexpected error: ")
