import functools

import pytest

import kopf
from kopf._kits.typed import rights
from kopf._kits.typed.rights import Right


@pytest.mark.parametrize('wider, narrower', [
    (Right('', 'pods', 'get'), Right('', 'pods', 'get', 'x')),
    (Right('', 'pods', 'get'), Right('', 'pods', 'get', namespace='a')),
    (Right('', 'pods', 'get', namespace='a'), Right('', 'pods', 'get', 'x', 'a')),
    (Right('*', 'pods', 'get'), Right('', 'pods', 'get')),
    (Right('', '*', 'get'), Right('', 'pods/log', 'get')),
    (Right('', '*/log', 'get'), Right('', 'pods/log', 'get')),
    (Right('', 'pods', '*'), Right('', 'pods', 'get')),
])
def test_rights_include_narrower_ones(wider, narrower):
    assert wider.covers(narrower) and not narrower.covers(wider)


@pytest.mark.parametrize('other', [
    Right('apps', 'pods', 'get'), Right('', 'nodes', 'get'), Right('', 'pods', 'list'),
    Right('', 'pods/log', 'get'), Right('', 'pods', 'get', namespace='a'),
])
def test_rights_do_not_include_others(other):
    assert not Right('', 'pods', 'get', namespace='b').covers(other)


def test_a_right_in_any_namespace_can_be_that_of_the_operator():
    own = Right('', 'pods', 'get', namespace='')
    assert Right('', 'pods', 'get', namespace='a').covers(own)
    assert not own.covers(Right('', 'pods', 'get', namespace='a'))


@pytest.mark.parametrize('right, text', [
    (Right('', 'pods', 'list'), "list pods"),
    (Right('apps', 'deployments/scale', 'get', 'x', 'a'),
     "get deployments.apps/scale 'x' in 'a'"),
    (Right('', 'pods', 'list', namespace=''), "list pods in the operator's namespace"),
])
def test_rights_are_shown_as_they_are_said(right, text):
    assert str(right) == text


def test_needs_are_kept_with_the_function_in_the_order_of_the_source():
    @kopf.needs('secrets', verbs=['get'])
    @kopf.needs(('apps', 'v1', 'deployments/scale'), verbs=['get', 'patch'])
    def fn(**_):
        pass

    first, second = rights.get_needs(fn)
    assert (str(first.selector), first.subresource, first.verbs) == ('secrets', '', ('get',))
    assert str(second.selector) == 'deployments.v1.apps'
    assert (second.subresource, second.verbs) == ('scale', ('get', 'patch'))


def test_needs_are_kept_by_wrappers():
    @kopf.needs('secrets', verbs=['get'])
    def fn(**_):
        pass

    @functools.wraps(fn)
    def wrapper(**kwargs):
        fn(**kwargs)

    assert rights.get_needs(wrapper) == rights.get_needs(fn) != ()


@pytest.mark.parametrize('verbs', ['get', [], [None]])
def test_verbs_must_be_strings_in_a_collection(verbs):
    with pytest.raises(TypeError, match=r"verbs= must be a collection of verbs, e.g. \['get'\]"):
        kopf.needs('secrets', verbs=verbs)


def test_names_must_be_in_a_collection():
    with pytest.raises(TypeError, match=r"names= must be a collection of names, e.g. \['x'\]"):
        kopf.needs('secrets', verbs=['get'], names='x')


def test_needs_are_for_a_resource():
    with pytest.raises(TypeError, match="no name of a resource"):
        kopf.needs('se crets', verbs=['get'])
