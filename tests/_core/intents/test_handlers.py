import functools
import inspect
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.intents.causes import Activity
from kopf._core.intents.handlers import (
    ActivityHandler,
    ChangingHandler,
    DaemonHandler,
    Handler,
    IndexingHandler,
    TimerHandler,
    WatchingHandler,
    WebhookHandler,
    generate_id,
    get_callable_id,
)


def fn(**_):
    pass


class Class:
    def method(self, **_): pass
    @staticmethod
    def static(**_): pass
    @classmethod
    def cls(cls, **_): pass
    def __call__(self, **_): pass


@functools.wraps(fn)
def wrapper(**_):
    pass


@functools.wraps(functools.partial(Class().method))  # which has no name to be copied
def wrapper_of_partial(**_):
    pass


@pytest.mark.parametrize('func, expected', [
    (fn, 'fn'),
    (functools.partial(fn, x=1), 'fn'),
    (functools.partial(functools.partial(fn, x=1), y=2), 'fn'),
    (functools.lru_cache(fn), 'fn'),
    (wrapper, 'fn'),
    (wrapper_of_partial, 'Class.method'),
    (Class().method, 'Class.method'),
    (functools.partial(Class().method, x=1), 'Class.method'),
    (Class.static, 'Class.static'),
    (Class.cls, 'Class.cls'),
])
def test_functions_are_identified_by_their_names(func, expected):
    assert get_callable_id(func) == expected


def test_inner_functions_are_identified_with_the_outer_ones():
    def inner(**_): pass
    assert get_callable_id(inner).endswith('outer_ones.<locals>.inner')


def test_lambdas_are_identified_by_their_place():
    func = lambda **_: None  # noqa: E731
    line = inspect.getsourcelines(func)[1]
    assert get_callable_id(func) == f'lambda:{__file__}:{line}'


def test_partials_of_lambdas_are_identified_as_lambdas():
    func = lambda **_: None  # noqa: E731
    assert get_callable_id(functools.partial(func)) == get_callable_id(func)


@pytest.mark.parametrize('func', [Class, Class(), functools.partial(Class()), print, 5])
def test_what_is_not_a_function_has_no_id(func):
    with pytest.raises(ValueError, match="Cannot get id of "):
        get_callable_id(func)


def test_ids_of_functions_are_the_same_in_every_process():
    code = ("from kopf._core.intents.handlers import get_callable_id as f\n"
            "print(f(f), f(lambda: 0))")
    runs = {
        subprocess.check_output([sys.executable, '-c', code], text=True) for _ in range(2)}
    assert runs == {'get_callable_id lambda:<string>:2\n'}


@pytest.mark.parametrize('kwargs, expected', [
    ({}, 'fn'),
    ({'id': 'x'}, 'x'),
    ({'field': ('spec', 'a.b')}, 'fn/spec.a.b'),
    ({'field': ()}, 'fn'),
    ({'parent': 'parent'}, 'parent/fn'),
    ({'parent': 'parent/child', 'id': 'x', 'field': ('spec',)}, 'parent/child/x/spec'),
])
def test_ids_are_made_of_parts(kwargs, expected):
    assert generate_id(fn, **kwargs) == expected


def test_functions_without_names_can_have_ids():
    assert generate_id(Class(), 'x') == 'x'


words = st.text(alphabet='ab-_', min_size=1)


@given(id=words, parent=st.none() | words, field=st.lists(words).map(tuple))
def test_ids_begin_with_the_parent_and_end_with_the_field(id, parent, field):
    parts = generate_id(fn, id, field=field, parent=parent).split('/')
    assert parts == [part for part in (parent, id, '.'.join(field)) if part]


@pytest.mark.parametrize('cls, kwargs, expected', [
    (Handler, {}, "Handler 'fn'"),
    (ActivityHandler, {'activity': Activity.STARTUP}, "Activity 'fn'"),
    (WatchingHandler, {}, "Handler 'fn'"),
    (ChangingHandler, {}, "Handler 'fn'"),
    (IndexingHandler, {}, "Indexer 'fn'"),
    (DaemonHandler, {}, "Daemon 'fn'"),
    (TimerHandler, {}, "Timer 'fn'"),
    (WebhookHandler, {'reason': 'validating'}, "Webhook 'fn'"),
])
def test_handlers_are_named_in_logs_by_what_they_are(cls, kwargs, expected):
    assert str(cls(id='fn', fn=fn, **kwargs)) == expected


def test_same_declarations_are_different_handlers():
    assert Handler(id='fn', fn=fn) != Handler(id='fn', fn=fn)


@pytest.mark.parametrize('kwargs', [
    {'labels': {'a': 'b'}}, {'annotations': {'a': 'b'}}, {'when': fn}, {'field': ('spec',)}])
def test_handlers_with_any_filter_are_not_unfiltered(kwargs):
    assert not ChangingHandler(id='fn', fn=fn, **kwargs).unfiltered


def test_handlers_without_filters_are_unfiltered():
    assert ChangingHandler(id='fn', fn=fn, labels={}).unfiltered
