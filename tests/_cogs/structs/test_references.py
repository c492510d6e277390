import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.references import (
    EVERYTHING,
    Resource,
    Selector,
    SelectorMapping,
)

PODS = Resource('', 'v1', 'pods', kind='Pod', singular='pod', namespaced=True,
                shortcuts=frozenset({'po'}), categories=frozenset({'all'}))
POD_METRICS = Resource('metrics.k8s.io', 'v1beta1', 'pods', kind='PodMetrics', namespaced=True)
EVENTS = Resource('', 'v1', 'events', kind='Event', singular='event', namespaced=True,
                  shortcuts=frozenset({'ev'}), categories=frozenset({'all'}))
NEW_EVENTS = Resource('events.k8s.io', 'v1', 'events', kind='Event', singular='event',
                      shortcuts=frozenset({'ev'}), categories=frozenset({'all'}), namespaced=True)
KEX = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', singular='kopfexample',
               shortcuts=frozenset({'kex', 'kexes'}), categories=frozenset({'all', 'mine'}),
               namespaced=True)
OLD_KEX = dataclasses.replace(KEX, version='v1beta1', preferred=False)
OTHER_KEX = dataclasses.replace(KEX, group='other.dev', categories=frozenset())
NODES = Resource('', 'v1', 'nodes', kind='Node', singular='node', namespaced=False)
ALL = [PODS, POD_METRICS, EVENTS, NEW_EVENTS, KEX, OLD_KEX, OTHER_KEX, NODES]


def test_resources_are_equal_by_what_makes_their_urls():
    assert Resource('g', 'v', 'p') == Resource('g', 'v', 'p', kind='K', preferred=False)


def test_equal_resources_have_equal_hashes():
    assert hash(Resource('g', 'v', 'p')) == hash(Resource('g', 'v', 'p', kind='K'))


@pytest.mark.parametrize('other', [
    Resource('x', 'v', 'p'), Resource('g', 'x', 'p'), Resource('g', 'v', 'x'), 'p.v.g'])
def test_resources_differ_by_each_part_of_their_urls(other):
    assert Resource('g', 'v', 'p') != other


def test_resources_are_unpacked_into_what_makes_their_urls():
    group, version, plural = KEX
    assert (group, version, plural) == (KEX.group, KEX.version, KEX.plural)


def test_resources_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PODS.group = 'x'  # type: ignore[misc]


@pytest.mark.parametrize('resource, text', [(PODS, 'pods.v1'), (KEX, 'kopfexamples.v1.kopf.dev')])
def test_resources_are_shown_as_in_selectors(resource, text):
    assert str(resource) == repr(resource) == text


@pytest.mark.parametrize('resource, kwargs, url', [
    (PODS, {}, '/api/v1/pods'),
    (KEX, {}, '/apis/kopf.dev/v1/kopfexamples'),
    (PODS, {'namespace': 'ns'}, '/api/v1/namespaces/ns/pods'),
    (PODS, {'namespace': 'ns', 'name': 'n'}, '/api/v1/namespaces/ns/pods/n'),
    (NODES, {'name': 'n'}, '/api/v1/nodes/n'),
    (NODES, {'name': 'a:b.c-d_e'}, '/api/v1/nodes/a:b.c-d_e'),
    (PODS, {'namespace': 'ns/secrets?x='}, '/api/v1/namespaces/ns%2Fsecrets%3Fx%3D/pods'),
    (PODS, {'namespace': 'a#b', 'name': '../c%2Fä'},
     '/api/v1/namespaces/a%23b/pods/..%2Fc%252F%C3%A4'),
    (NODES, {'name': 'n', 'subresource': 'status'}, '/api/v1/nodes/n/status'),
    (PODS, {'params': {'a': 'b c', 'd': '/&='}}, '/api/v1/pods?a=b+c&d=%2F%26%3D'),
    (PODS, {'params': {}}, '/api/v1/pods'),
    (PODS, {'server': 'https://host/path/'}, 'https://host/path/api/v1/pods'),
    (KEX, {'server': 'https://host', 'namespace': 'ns', 'name': 'n', 'subresource': 'status',
           'params': {'a': 'b c'}},
     'https://host/apis/kopf.dev/v1/namespaces/ns/kopfexamples/n/status?a=b+c'),
])
def test_urls(resource, kwargs, url):
    assert resource.get_url(**kwargs) == url


@pytest.mark.parametrize('kwargs, url', [
    ({'namespace': 'ns', 'name': 'n'}, '/apis/g/v/namespaces/ns/p/n'),
    ({'name': 'n'}, '/apis/g/v/p/n'),
])
def test_urls_of_resources_that_may_or_may_not_be_namespaced(kwargs, url):
    assert Resource('g', 'v', 'p').get_url(**kwargs) == url


@pytest.mark.parametrize('resource, kwargs, error', [
    (NODES, {'namespace': 'ns'},
     'Specific namespaces are not supported for cluster-scoped resources.'),
    (PODS, {'name': 'n'}, 'Objects of namespaced resources have no URL without a namespace.'),
    (PODS, {'namespace': '..', 'name': 'n'}, "'..' is not a name."),
    (NODES, {'name': '.'}, "'.' is not a name."),
    (PODS, {'subresource': 'status'},
     'Only objects have subresources: the name of an object is needed.'),
])
def test_urls_that_cannot_be(resource, kwargs, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        resource.get_url(**kwargs)


@pytest.mark.parametrize('args, kwargs, expected', [
    (['kopf.dev', 'v1', 'kopfexamples'], {}, [KEX]),
    (['kopf.dev/v1', 'kopfexamples'], {}, [KEX]),
    (['kopf.dev/v1beta1', 'kopfexamples'], {}, [OLD_KEX]),
    (['', 'v1', 'pods'], {}, [PODS]),
    (['', 'pods'], {}, [PODS]),
    (['v1', 'pods'], {}, [PODS]),
    (['pods'], {}, [PODS]),
    (['pods.v1'], {}, [PODS]),
    (['Pod.v1'], {}, [PODS]),
    (['kopf.dev', 'kopfexamples'], {}, [KEX]),
    (['kopf.dev', 'KopfExample'], {}, [KEX]),
    (['kopf.dev', 'kopfexample'], {}, [KEX]),
    (['kopf.dev', 'kex'], {}, [KEX]),
    (['kopfexamples.kopf.dev'], {}, [KEX]),
    (['kex.kopf.dev'], {}, [KEX]),
    (['kopfexamples.v1beta1.kopf.dev'], {}, [OLD_KEX]),
    (['kopfexamples.v1beta1'], {}, [OLD_KEX]),
    (['pods.metrics.k8s.io'], {}, [POD_METRICS]),
    (['metrics.k8s.io', 'pods'], {}, [POD_METRICS]),
    (['PodMetrics'], {}, [POD_METRICS]),
    (['kopfexamples'], {}, [KEX, OTHER_KEX]),
    (['KOPFEXAMPLES'], {}, []),
    (['v1', 'kopfexamples'], {}, []),
    (['unknown'], {}, []),
    ([], {'kind': 'Pod'}, [PODS]),
    ([], {'plural': 'pods'}, [PODS]),
    ([], {'singular': 'pod'}, [PODS]),
    ([], {'shortcut': 'po'}, [PODS]),
    ([], {'kind': 'pods'}, []),
    ([], {'plural': 'pod'}, []),
    ([], {'singular': 'Pod'}, []),
    ([], {'shortcut': 'pod'}, []),
    ([], {'group': 'kopf.dev', 'plural': 'kopfexamples'}, [KEX]),
    ([], {'group': 'kopf.dev', 'version': 'v1beta1', 'plural': 'kopfexamples'}, [OLD_KEX]),
    (['kex'], {'group': 'other.dev'}, [OTHER_KEX]),
    ([], {'category': 'all'}, [PODS, KEX]),
    ([], {'category': 'mine'}, [KEX]),
    ([], {'category': 'mine', 'version': 'v1beta1'}, [OLD_KEX]),
    ([EVERYTHING], {}, [PODS, POD_METRICS, KEX, OTHER_KEX, NODES]),
    (['v1', EVERYTHING], {}, [PODS, NODES]),
    (['kopf.dev', EVERYTHING], {}, [KEX]),
    (['kopf.dev/v1beta1', EVERYTHING], {}, [OLD_KEX]),
    (['kopf.dev', 'v1', EVERYTHING], {}, [KEX]),
    ([EVERYTHING], {'group': 'kopf.dev'}, [KEX]),
    ([lambda resource: True], {}, [PODS, POD_METRICS, KEX, OLD_KEX, OTHER_KEX, NODES]),
    ([lambda resource: resource.plural == 'pods'], {}, [PODS, POD_METRICS]),
    ([lambda resource: True], {'group': 'kopf.dev'}, [KEX, OLD_KEX]),
    ([lambda resource: True], {'kind': 'Pod'}, [PODS]),
    ([lambda resource: False], {}, []),
])
def test_selection_of_resources(args, kwargs, expected):
    assert list(Selector(*args, **kwargs).select(ALL)) == expected


@pytest.mark.parametrize('args, kwargs, expected', [
    (['events'], {}, [EVENTS]),
    (['ev'], {}, [EVENTS]),
    (['v1', 'events'], {}, [EVENTS]),
    (['events.k8s.io', 'events'], {}, [NEW_EVENTS]),
    ([], {'kind': 'Event'}, [EVENTS]),
    ([lambda resource: True], {'plural': 'events', 'group': ''}, [EVENTS]),
    ([EVERYTHING], {}, []),
    (['v1', EVERYTHING], {}, []),
    (['events.k8s.io', EVERYTHING], {}, []),
    ([lambda resource: True], {}, []),
    ([lambda resource: True], {'group': 'events.k8s.io'}, []),
    ([], {'category': 'all'}, []),
])
def test_events_are_selected_only_by_name(args, kwargs, expected):
    assert list(Selector(*args, **kwargs).select([EVENTS, NEW_EVENTS])) == expected


@pytest.mark.parametrize('args, kwargs', [
    ([], {}),
    ([''], {}),
    ([], {'kind': ''}),
    ([], {'group': 'kopf.dev'}),
    ([], {'version': 'v1'}),
    (['pods'], {'plural': 'pods'}),
    ([], {'kind': 'Pod', 'plural': 'pods'}),
    ([EVERYTHING], {'kind': 'Pod'}),
    ([EVERYTHING, 'pods'], {}),
    (['v1', 'pods'], {'group': 'apps'}),
    (['v1', 'pods'], {'category': 'all'}),
    (['kopf.dev', '', 'kex'], {}),
    ([lambda resource: True, 'pods'], {}),
    (['v1', lambda resource: True], {}),
    ([5], {}),
    (['a', 'b', 'c', 'd'], {}),
])
def test_contradictory_selectors_are_refused(args, kwargs):
    with pytest.raises(TypeError):
        Selector(*args, **kwargs)


@pytest.mark.parametrize('selector, expected', [
    (Selector('pods'), True),
    (Selector('v1', 'pods'), True),
    (Selector(kind='Pod'), True),
    (Selector(category='all'), False),
    (Selector(EVERYTHING), False),
    (Selector(lambda resource: True), False),
    (Selector(lambda resource: True, kind='Pod'), False),
])
def test_only_names_are_specific(selector, expected):
    assert selector.is_specific is expected


def test_selectors_are_equal_by_what_they_select():
    assert Selector('kopf.dev/v1', 'kex') == Selector('kopf.dev', 'v1', 'kex')


def test_selectors_show_only_what_is_specified():
    assert repr(Selector('kopf.dev/v1', 'kex')) == (
        "Selector(group='kopf.dev', version='v1', any_name='kex')")


def test_duplicates_are_selected_once():
    assert list(Selector('kopf.dev', 'kex').select([KEX, KEX])) == [KEX]


names = st.sampled_from(['a', 'b', 'A', 'B'])
maybe_names = st.none() | names
resources = st.builds(
    Resource,
    group=st.sampled_from(['', 'x.io', 'y.io']),
    version=st.sampled_from(['v1', 'v2beta1']),
    plural=names, kind=maybe_names, singular=maybe_names,
    shortcuts=st.frozensets(names), categories=st.frozensets(names),
    preferred=st.booleans(),
)


@given(
    resources=st.lists(resources, max_size=5, unique=True),
    group=st.none() | st.sampled_from(['', 'x.io']),
    version=st.none() | st.sampled_from(['v1', 'v2beta1']),
    name=names,
    by=st.sampled_from(['any', 'kind', 'plural', 'singular', 'shortcut', 'category', 'fn']),
)
def test_selection_is_as_in_a_plain_model(resources, group, version, name, by):
    args = {'any': [name], 'fn': [lambda resource: resource.kind == name]}.get(by, [])
    kwargs = {} if args else {by: name}
    selector = Selector(*args, group=group, version=version, **kwargs)

    named = {
        'any': lambda r: name in {r.plural, r.kind, r.singular, *r.shortcuts},
        'kind': lambda r: r.kind == name,
        'plural': lambda r: r.plural == name,
        'singular': lambda r: r.singular == name,
        'shortcut': lambda r: name in r.shortcuts,
        'category': lambda r: name in r.categories,
        'fn': lambda r: r.kind == name,
    }[by]
    expected = {r for r in resources if named(r)}
    if group is not None:
        expected = {r for r in expected if r.group == group}
    if version is not None:
        expected = {r for r in expected if r.version == version}
    elif by != 'fn':
        expected = {r for r in expected if r.preferred}
    expected_core = {r for r in expected if r.group == ''}
    if expected_core and by not in {'fn', 'category'}:
        expected = expected_core

    assert set(selector.select(resources)) == expected


@given(resource=resources)
def test_resources_are_selected_by_how_they_are_shown(resource):
    assert Selector(str(resource)).check(resource)


@pytest.mark.parametrize('key, same_key', [
    ('pods', Selector('pods')),
    ('pods.v1', ('pods.v1',)),
    (('v1', 'pods'), ('', 'v1', 'pods')),
    (('kopf.dev', 'v1', 'kex'), ('kopf.dev/v1', 'kex')),
    (EVERYTHING, Selector(EVERYTHING)),
])
def test_selector_mappings_have_keys_of_any_form(key, same_key):
    mapping = SelectorMapping({key: 'value'})
    assert mapping[same_key] == 'value'


def test_selector_mappings_have_callables_as_keys():
    def selector_fn(resource: Resource) -> bool:
        return True

    mapping: SelectorMapping = SelectorMapping()
    mapping[selector_fn] = 'value'
    assert mapping[selector_fn] == 'value'


@pytest.mark.parametrize('key', ['', (), 5, None, ('a', 'b', 'c', 'd')])
def test_selector_mappings_refuse_what_is_no_selector(key):
    with pytest.raises(TypeError):
        SelectorMapping()[key] = 'value'


def test_selector_mappings_forget_what_is_deleted():
    mapping: SelectorMapping = SelectorMapping({'pods': 'value'})
    del mapping[('pods',)]
    assert not mapping


def test_selector_mappings_collect_all_values_of_a_resource():
    mapping: SelectorMapping = SelectorMapping({EVERYTHING: '1', 'kex': '2', 'pods': '3'})
    assert mapping.collect(KEX) == ['1', '2']


@pytest.mark.parametrize('selector, expected', [
    (Selector('pods'), 'pods'),
    (Selector('apps', 'v1', 'deployments'), 'deployments.v1.apps'),
    (Selector('kopfexamples.kopf.dev'), 'kopfexamples.kopf.dev'),
    (Selector(category='all'), 'category=all'),
    (Selector('kopf.dev', EVERYTHING), 'group=kopf.dev,any_name=EVERYTHING'),
    (Selector(lambda _: True, plural='pods'), 'plural=pods,fn=<lambda>'),
])
def test_selectors_are_named_as_people_would_do(selector, expected):
    assert sorted(str(selector).split(',')) == sorted(expected.split(','))
