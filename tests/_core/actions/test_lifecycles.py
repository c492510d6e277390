import datetime

import pytest

from kopf._core.actions import lifecycles, progression
from kopf._core.intents import causes, handlers

NOW = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


async def fn(**_):
    pass


def make(id_):
    return handlers.ActivityHandler(id=id_, fn=fn, activity=causes.Activity.STARTUP)


@pytest.mark.parametrize('retries, expected', [
    ({}, 'a'),
    ({'a': 0, 'b': 0, 'c': 0}, 'a'),
    ({'a': 1}, 'b'),
    ({'a': 1, 'b': 1, 'c': 0}, 'c'),
    ({'a': 2, 'b': 1, 'c': 1}, 'b'),
    ({'a': 1, 'b': 1, 'c': 1}, 'a'),
])
def test_by_default_the_first_handler_with_the_fewest_attempts_is_chosen(retries, expected):
    state = progression.State({
        id_: progression.HandlerState(started=NOW, began=0, retries=count)
        for id_, count in retries.items()})
    chosen = lifecycles.asap([make('a'), make('b'), make('c')], state=state)
    assert [handler.id for handler in chosen] == [expected]
