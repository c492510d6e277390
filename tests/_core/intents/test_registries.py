import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.references import EVERYTHING, Resource, Selector
from kopf._core.intents import registries
from kopf._core.intents.causes import Activity, Reason
from kopf._core.intents.handlers import (
    ActivityHandler,
    ChangingHandler,
    DaemonHandler,
    IndexingHandler,
    ReconcilingHandler,
    TimerHandler,
    WatchingHandler,
    WebhookHandler,
)
from kopf._core.intents.registries import (
    OperatorRegistry,
    ResourceHandlers,
    get_default_registry,
    resolve,
    set_default_registry,
)

VERBS = frozenset({'list', 'watch', 'patch'})
PODS = Resource('', 'v1', 'pods', kind='Pod', verbs=VERBS)
KEX = Resource('kopf.dev', 'v1', 'kopfexamples', shortcuts=frozenset({'kex'}), verbs=VERBS)
OTHER_KEX = Resource('other.dev', 'v1', 'kopfexamples', verbs=VERBS)
LISTED = Resource('', 'v1', 'componentstatuses', verbs=frozenset({'list', 'get'}))
READONLY = Resource('', 'v1', 'readonly', verbs=frozenset({'list', 'watch', 'get'}))


def fn(**_):
    pass


def make_handler(cls, *selector, **kwargs):
    return cls(**{'id': 'fn', 'fn': fn, 'selector': Selector(*selector), **kwargs})


@pytest.fixture()
def registry():
    return OperatorRegistry()


@pytest.fixture()
def default_registry(monkeypatch):
    monkeypatch.setattr(registries, '_default_registry', OperatorRegistry())


@pytest.mark.usefixtures('default_registry')
def test_default_registry_is_always_the_same():
    assert get_default_registry() is get_default_registry()


@pytest.mark.usefixtures('default_registry')
def test_default_registry_is_the_same_in_threads():
    results = []
    expected = get_default_registry()
    thread = threading.Thread(target=lambda: results.append(get_default_registry()))
    thread.start()
    thread.join()
    assert results == [expected]


@pytest.mark.usefixtures('default_registry')
def test_default_registry_can_be_replaced(registry):
    set_default_registry(registry)
    assert get_default_registry() is registry


@pytest.mark.parametrize('name', [
    '_activities', '_indexing', '_watching', '_spawning', '_changing', '_webhooks'])
def test_registries_list_their_handlers(registry, name):
    handler = object()
    getattr(registry, name).append(handler)
    assert getattr(registry, name)._handlers == [handler]


def test_activity_handlers_are_in_the_order_of_declaration(registry):
    handlers = [ActivityHandler(id=id, fn=fn, activity=Activity.STARTUP) for id in 'cab']
    for handler in handlers:
        registry._activities.append(handler)
    assert registry.get_activity_handlers(Activity.STARTUP) == tuple(handlers)


def test_handlers_of_other_activities_are_excluded(registry):
    registry._activities.append(ActivityHandler(id='fn', fn=fn, activity=Activity.STARTUP))
    assert registry.get_activity_handlers(Activity.CLEANUP) == ()


def test_activity_handlers_are_deduplicated(registry):
    for _ in range(2):
        registry._activities.append(ActivityHandler(id='fn', fn=fn, activity=Activity.STARTUP))
    assert len(registry.get_activity_handlers(Activity.STARTUP)) == 1


def test_selectors_in_use_are_those_of_all_sorts_of_handlers(registry):
    registry._watching.append(make_handler(WatchingHandler, 'pods'))
    registry._changing.append(make_handler(ChangingHandler, 'kex'))
    registry._webhooks.append(make_handler(WebhookHandler, 'kex', reason='validating'))
    assert set(registry.get_selectors()) == {Selector('pods'), Selector('kex')}


def test_handlers_are_bound_to_their_resources(registry):
    watching = make_handler(WatchingHandler, 'pods')
    indexing = make_handler(IndexingHandler, 'pods')
    spawning = make_handler(DaemonHandler, 'pods')
    changing = make_handler(ChangingHandler, 'pods')
    webhooks = make_handler(WebhookHandler, 'pods', reason='mutating')
    registry._watching.append(watching)
    registry._indexing.append(indexing)
    registry._spawning.append(spawning)
    registry._changing.append(changing)
    registry._webhooks.append(webhooks)
    assert resolve(registry, [PODS, KEX]).handlers == {
        PODS: ResourceHandlers(watching=(watching,), indexing=(indexing,), spawning=(spawning,),
                               changing=(changing,), webhooks=(webhooks,)),
    }


def test_handlers_are_bound_in_the_order_of_declaration(registry):
    handlers = [make_handler(ChangingHandler, 'kex', id=id) for id in 'cab']
    for handler in handlers:
        registry._changing.append(handler)
    assert resolve(registry, [KEX]).handlers[KEX].changing == tuple(handlers)


def test_handlers_of_one_function_for_different_reasons_are_all_bound(registry):
    for reason in [Reason.CREATE, Reason.UPDATE]:
        registry._changing.append(make_handler(ChangingHandler, 'kex', reason=reason))
    assert len(resolve(registry, [KEX]).handlers[KEX].changing) == 2


@pytest.mark.parametrize('preferred', ['v1', 'v2', None])
def test_reconciling_handlers_of_several_versions_are_bound_to_one(registry, preferred):
    versions = [
        Resource('kopf.dev', version, 'kopfexamples', verbs=VERBS, preferred=version == preferred)
        for version in ('v1', 'v2', 'v3')]
    handlers = [make_handler(ReconcilingHandler, 'kopf.dev', version, 'kopfexamples')
                for version in ('v1', 'v2')]
    other = make_handler(ReconcilingHandler, 'kopf.dev', 'v3', 'kopfexamples', id='other')
    for handler in [*handlers, other]:
        registry._reconciling.append(handler)
    number = 1 if preferred == 'v2' else 0
    bound = resolve(registry, versions).handlers
    assert {resource: served.reconciling for resource, served in bound.items()} == {
        versions[number]: (handlers[number],), versions[2]: (other,)}


@pytest.mark.parametrize(('needed_in', 'kept'), [((), ''), (('v1',), 'v2'), (('v1', 'v2'), '')])
def test_finalizers_are_left_to_the_versions_whose_handlers_need_them(registry, needed_in, kept):
    versions = [Resource('kopf.dev', name, 'kopfexamples', verbs=VERBS) for name in ('v1', 'v2')]
    other = Resource('other.dev', 'v1', 'kopfexamples', verbs=VERBS)
    for group in ('kopf.dev', 'other.dev'):
        registry._watching.append(make_handler(WatchingHandler, group, 'kopfexamples'))
    for version in ('v1', 'v2'):
        registry._changing.append(make_handler(
            ChangingHandler, 'kopf.dev', version, 'kopfexamples', id=version,
            requires_finalizer=version in needed_in))
    bound = resolve(registry, [*versions, other]).handlers
    assert [resource.version for resource, served in bound.items() if served.is_kept_elsewhere] == (
        [kept] if kept else [])


@pytest.mark.parametrize(('selector', 'failing', 'is_uncertain'), [
    (['kex'], set(), False), (['kex'], {'other.dev'}, False),
    (['absent'], set(), False), (['absent'], {'other.dev'}, True),
    (['other.dev', 'absent'], {'other.dev'}, True), (['other.dev', 'absent'], {'x.dev'}, False),
])
def test_what_handlers_own_is_uncertain_if_it_can_be_in_a_group_that_is_not_known(
        registry, selector, failing, is_uncertain):
    handler = make_handler(ReconcilingHandler, 'pods', owns=(Selector(*selector),))
    registry._reconciling.append(handler)
    found = registries.find_uncertain(resolve(registry, [PODS, KEX]), failing)
    assert found == ({handler} if is_uncertain else set())


def test_fields_of_handlers_are_essential(registry):
    registry._changing.append(make_handler(ChangingHandler, 'kex', field=('status', 'x')))
    registry._changing.append(make_handler(ChangingHandler, 'kex', field=('spec',)))
    registry._changing.append(make_handler(ChangingHandler, 'kex'))
    registry._changing.append(make_handler(ChangingHandler, 'pods', field=('metadata',)))
    registry._watching.append(make_handler(WatchingHandler, 'kex', field=('status', 'y')))
    registry._spawning.append(make_handler(TimerHandler, 'kex', field=('status', 'z')))
    registry._indexing.append(make_handler(IndexingHandler, 'kex', field=('status', 'i')))
    assert resolve(registry, [KEX, PODS]).handlers[KEX].extra_fields == (
        ('status', 'y'), ('status', 'z'), ('status', 'x'), ('spec',))


def test_unresolved_selectors_are_complained_about(registry):
    registry._watching.append(make_handler(WatchingHandler, 'unknown'))
    assert list(resolve(registry, [PODS]).complaints()) == [
        "Unresolved resources cannot be served (try creating their CRDs): "
        "unknown"]


def test_ambiguous_selectors_are_not_served(registry):
    registry._watching.append(make_handler(WatchingHandler, 'kopfexamples'))
    assert resolve(registry, [KEX, OTHER_KEX]).handlers == {}


def test_ambiguous_selectors_are_complained_about(registry):
    registry._watching.append(make_handler(WatchingHandler, 'kopfexamples'))
    assert list(resolve(registry, [KEX, OTHER_KEX]).complaints()) == [
        "Ambiguous resources will not be served (try specifying API groups): "
        "kopfexamples => "
        "{kopfexamples.v1.kopf.dev, kopfexamples.v1.other.dev}"]


def test_each_problem_is_complained_about_once_and_again_if_it_returns(registry):
    registry._watching.append(make_handler(WatchingHandler, 'kopfexamples'))
    unresolved, solved, ambiguous = [resolve(registry, resources) for resources in (
        [], [KEX], [KEX, OTHER_KEX])]
    for previous, binding, expected in [
            (None, unresolved, ["Unresolved"]), (unresolved, unresolved, []),
            (unresolved, ambiguous, ["Ambiguous"]), (ambiguous, ambiguous, []),
            (ambiguous, solved, []), (solved, ambiguous, ["Ambiguous"])]:
        complaints = list(binding.complaints(previous))
        assert [complaint.split()[0] for complaint in complaints] == expected


@pytest.mark.parametrize('selector', [EVERYTHING, lambda resource: True])
def test_selectors_of_many_resources_are_not_ambiguous(registry, selector):
    registry._watching.append(make_handler(WatchingHandler, selector))
    binding = resolve(registry, [KEX, OTHER_KEX])
    assert set(binding.handlers) == {KEX, OTHER_KEX}
    assert not list(binding.complaints())


def test_unambiguous_handlers_are_served_beside_ambiguous_ones(registry):
    registry._watching.append(make_handler(WatchingHandler, 'kopfexamples'))
    registry._watching.append(make_handler(WatchingHandler, 'kopf.dev', 'kopfexamples'))
    assert set(resolve(registry, [KEX, OTHER_KEX]).handlers) == {KEX}


def test_failing_selectors_are_complained_about(registry):
    registry._watching.append(make_handler(WatchingHandler, lambda resource: 1 / 0))
    [complaint] = resolve(registry, [KEX]).complaints()
    assert 'ZeroDivisionError' in complaint


def test_failing_selectors_do_not_affect_others(registry):
    registry._watching.append(make_handler(WatchingHandler, lambda resource: 1 / 0))
    registry._watching.append(make_handler(WatchingHandler, 'kex'))
    assert len(resolve(registry, [KEX]).handlers[KEX].watching) == 1


@pytest.mark.parametrize('cls', [WatchingHandler, IndexingHandler, ChangingHandler, DaemonHandler])
def test_resources_that_cannot_be_watched_are_not_served(registry, cls):
    {WatchingHandler: registry._watching, IndexingHandler: registry._indexing,
     ChangingHandler: registry._changing, DaemonHandler: registry._spawning,
     }[cls].append(make_handler(cls, EVERYTHING))
    binding = resolve(registry, [LISTED, KEX])
    assert set(binding.handlers) == {KEX}
    assert list(binding.complaints()) == [
        "Non-watchable resources will not be served: {componentstatuses.v1}"]


@pytest.mark.parametrize(['selector', 'is_refused'], [
    (['kex'], True),
    (['kopf.dev', 'v1', 'kopfexamples'], False),
    ([EVERYTHING], False),
])
def test_of_reconcilers_with_the_same_id_and_objects_only_the_first_one_is_served(
        registry, selector, is_refused):
    first = make_handler(ReconcilingHandler, 'kex')
    second = make_handler(ReconcilingHandler, *selector)
    registry._reconciling.append(first)
    registry._reconciling.append(second)
    binding = resolve(registry, [KEX])
    assert binding.handlers[KEX].reconciling == (first,)
    [complaint] = binding.complaints()
    assert "will not be called for kopfexamples.v1.kopf.dev, as another handler" in complaint
    assert not list(binding.complaints(binding))
    with contextlib.ExitStack() as stack:
        if is_refused:
            stack.enter_context(pytest.raises(LookupError, match="two reconcilers have the id"))
        registry.verify()


def test_reconcilers_of_different_objects_can_have_the_same_id(registry):
    registry._reconciling.append(make_handler(ReconcilingHandler, 'kex'))
    registry._reconciling.append(make_handler(ReconcilingHandler, 'pods'))
    registry.verify()
    binding = resolve(registry, [KEX, PODS])
    assert not list(binding.complaints())
    assert [len(binding.handlers[kind].reconciling) for kind in (KEX, PODS)] == [1, 1]


@pytest.mark.parametrize('options', [{}, {'requires_finalizer': True}])
def test_handlers_that_need_a_finalizer_are_refused_if_there_is_none(registry, options):
    registry._changing.append(make_handler(ChangingHandler, 'kex', **options))
    registry.verify()
    with pytest.raises(LookupError, match="needs a finalizer") if options else (
            contextlib.nullcontext()):
        registry.verify(finalizer=None)


def test_all_handlers_of_a_kind_are_listed(registry):
    handler = make_handler(ChangingHandler, 'kex')
    registry._changing.append(handler)
    assert registry._changing.get_all_handlers() == [handler]


def test_the_default_registry_can_be_reset():
    former = get_default_registry()
    try:
        set_default_registry(None)
        assert get_default_registry() is get_default_registry() is not former
        assert get_default_registry().is_empty
    finally:
        set_default_registry(former)


def test_webhooks_need_no_watching(registry):
    registry._webhooks.append(make_handler(WebhookHandler, EVERYTHING, reason='validating'))
    binding = resolve(registry, [LISTED])
    assert set(binding.handlers) == {LISTED}
    assert not list(binding.complaints())


def test_resources_that_cannot_be_patched_are_served_only_where_nothing_is_stored(registry):
    registry._watching.append(make_handler(WatchingHandler, EVERYTHING))
    registry._changing.append(make_handler(ChangingHandler, EVERYTHING, field=('spec',)))
    registry._spawning.append(make_handler(DaemonHandler, EVERYTHING))
    binding = resolve(registry, [READONLY])
    assert binding.handlers[READONLY] == ResourceHandlers(watching=tuple(registry._watching))
    assert list(binding.complaints()) == [
        "Non-patchable resources will not be served: {readonly.v1}"]


def test_resources_whose_definitions_are_being_deleted_are_served(registry):
    registry._changing.append(make_handler(ChangingHandler, 'x', reason='delete'))
    verbs = frozenset({'delete', 'deletecollection', 'get', 'list', 'watch'})
    resource = Resource('g', 'v', 'x', verbs=verbs)
    binding = resolve(registry, [resource])
    assert binding.handlers[resource].changing == tuple(registry._changing)
    assert not list(binding.complaints())


def test_resources_with_unknown_verbs_are_served(registry):
    registry._changing.append(make_handler(ChangingHandler, 'x'))
    resource = Resource('g', 'v', 'x')
    assert set(resolve(registry, [resource]).handlers) == {resource}


@given(
    resources=st.lists(st.sampled_from([PODS, KEX, OTHER_KEX, LISTED, READONLY]), unique=True),
    selectors=st.lists(st.sampled_from(
        ['pods', 'kex', 'kopfexamples', 'readonly', 'unknown', EVERYTHING]), max_size=4),
)
def test_every_selector_is_either_served_or_complained_about(resources, selectors):
    registry = OperatorRegistry()
    for selector in selectors:
        registry._watching.append(make_handler(WatchingHandler, selector))
    binding = resolve(registry, resources)
    served = {
        handler.selector for bound in binding.handlers.values() for handler in bound.watching}
    unserved = {*binding.unresolved, *binding.ambiguous}
    assert served | unserved >= {Selector(selector) for selector in selectors} or (
        LISTED in binding.unwatchable)
    assert not served & unserved
