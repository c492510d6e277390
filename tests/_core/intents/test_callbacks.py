import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.intents.callbacks import all_, any_, none_, not_, verify_handler


def truth(*_, **__):
    return 1


def falsehood(*_, **__):
    return ''


@given(values=st.lists(st.booleans()))
def test_combinations_are_as_of_booleans(values):
    fns = [truth if value else falsehood for value in values]
    assert all_(fns)() is all(values)
    assert any_(fns)() is any(values)
    assert none_(fns)() is not any(values)


@pytest.mark.parametrize('fn, expected', [(truth, False), (falsehood, True)])
def test_negation(fn, expected):
    assert not_(fn)() is expected


@pytest.mark.parametrize('combine', [
    lambda fn: not_(fn), lambda fn: all_([fn]), lambda fn: any_([fn]), lambda fn: none_([fn])])
def test_arguments_are_passed_through(combine):
    calls = []
    combine(lambda *args, **kwargs: calls.append((args, kwargs)))('value', name='x')
    assert calls == [(('value',), {'name': 'x'})]


def test_combinations_can_be_combined():
    assert all_([not_(falsehood), any_([falsehood, truth]), none_([falsehood])])()


@pytest.mark.parametrize('fn', [
    lambda **_: None, lambda spec, **kwargs: None, lambda *args, **kwargs: None,
    lambda logger, memo, param, retry, runtime, started: None, functools.partial(print), print])
def test_functions_that_take_all_kwargs_are_accepted(fn):
    verify_handler(fn)


def test_functions_that_cannot_take_all_kwargs_are_refused_with_what_to_write():
    def fn(spec, name='x'):
        pass

    with pytest.raises(TypeError) as e:
        verify_handler(fn)
    assert "(logger, memo, param, retry, runtime, started, and others)" in str(e.value)
    assert str(e.value).endswith("Add **_: def fn(spec, name='x', **_)")


@pytest.mark.parametrize('combine', [all_, any_, none_])
@pytest.mark.parametrize('fns', [
    'abc', ['x'], lambda **_: True, (each for each in [lambda **_: True])])
def test_filters_are_combined_of_functions(combine, fns):
    with pytest.raises(TypeError, match="a collection of functions, not of "):
        combine(fns)


def test_only_functions_can_be_negated():
    with pytest.raises(TypeError, match="functions, not of \\['x'\\]"):
        not_('x')
