import functools

import pytest

import kopf
from kopf._cogs.structs.references import Selector
from kopf._core.intents import registries
from kopf._core.intents.causes import Activity, Reason
from kopf._core.intents.handlers import Handler
from kopf._core.intents.registries import OperatorRegistry, get_default_registry

ACTIVITIES = [kopf.on.startup, kopf.on.cleanup, kopf.on.login, kopf.on.probe]
CHANGES = [kopf.on.create, kopf.on.update, kopf.on.delete, kopf.on.resume]
FIELD_CHANGES = [kopf.on.update, functools.partial(kopf.on.field)]
RESOURCES = {
    kopf.on.create: '_changing',
    kopf.on.update: '_changing',
    kopf.on.delete: '_changing',
    kopf.on.resume: '_changing',
    kopf.on.event: '_watching',
    kopf.on.index: '_indexing',
    kopf.on.daemon: '_spawning',
    kopf.on.timer: '_spawning',
    kopf.on.validate: '_webhooks',
    kopf.on.mutate: '_webhooks',
}


def fn(**_):
    pass


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    registry = OperatorRegistry()
    monkeypatch.setattr(registries, '_default_registry', registry)
    return registry


def get_handler(registry=None):
    registry = get_default_registry() if registry is None else registry
    [handler] = [*registry._activities, *registry.iter_resource_handlers()]
    return handler


@pytest.fixture()
def subregistry():
    """Be inside of a running handler."""
    parent = registries.Parent(Handler(id='parent', fn=fn))
    token = registries.parent_var.set(parent)
    yield parent.declared
    registries.parent_var.reset(token)


@pytest.mark.parametrize('decorator', ACTIVITIES)
def test_activity_handlers_are_returned_as_they_are(decorator):
    assert decorator()(fn) is fn


@pytest.mark.parametrize('decorator', RESOURCES)
def test_resource_handlers_are_returned_as_they_are(decorator):
    assert decorator('kex')(fn) is fn


@pytest.mark.parametrize('decorator, activity', [
    (kopf.on.startup, Activity.STARTUP),
    (kopf.on.cleanup, Activity.CLEANUP),
    (kopf.on.login, Activity.AUTHENTICATION),
    (kopf.on.probe, Activity.PROBE),
])
def test_activities(decorator, activity):
    decorator()(fn)
    assert get_handler().activity == activity


@pytest.mark.parametrize('decorator', ACTIVITIES)
def test_activity_handlers_have_what_is_declared(decorator):
    decorator(id='x', param=1, errors=kopf.ErrorsMode.IGNORED, timeout=2, retries=3, backoff=4)(fn)
    handler = get_handler()
    assert (handler.id, handler.fn, handler.param) == ('x', fn, 1)
    assert (handler.errors, handler.timeout, handler.retries, handler.backoff) == (
        kopf.ErrorsMode.IGNORED, 2, 3, 4)


@pytest.mark.parametrize('decorator', [
    *CHANGES, functools.partial(kopf.on.field), kopf.on.index, kopf.on.daemon, kopf.on.timer])
def test_retried_handlers_have_what_is_declared(decorator):
    decorator('kex', id='x', param=1, errors=kopf.ErrorsMode.IGNORED, timeout=2, retries=3,
              backoff=4, field='spec')(fn)
    handler = get_handler()
    name = 'x' if decorator is kopf.on.index else 'x/spec'  # the index is passed by its id
    assert (handler.id, handler.fn, handler.param) == (name, fn, 1)
    assert (handler.errors, handler.timeout, handler.retries, handler.backoff) == (
        kopf.ErrorsMode.IGNORED, 2, 3, 4)


@pytest.mark.parametrize('decorator', [*RESOURCES, functools.partial(kopf.on.field)])
def test_filters_are_as_declared(decorator):
    decorator('kex', labels={'a': 'b'}, annotations={'c': kopf.PRESENT}, when=fn,
              field='spec.x', value=kopf.ABSENT)(fn)
    handler = get_handler()
    assert handler.labels == {'a': 'b'}
    assert handler.annotations == {'c': kopf.PRESENT}
    assert handler.when is fn
    assert (handler.field, handler.value) == (('spec', 'x'), kopf.ABSENT)


@pytest.mark.parametrize('decorator, name', RESOURCES.items())
def test_handlers_go_to_the_registry_of_their_sort(registry, decorator, name):
    decorator('kex')(fn)
    assert len(getattr(registry, name)._handlers) == 1


@pytest.mark.parametrize('decorator', [*ACTIVITIES, *(
    functools.partial(decorator, 'kex') for decorator in RESOURCES)])
def test_handlers_go_to_the_registry_asked_for(registry, decorator):
    other = OperatorRegistry()
    decorator(registry=other)(fn)
    assert get_handler(other).fn is fn
    assert not [*registry._activities, *registry.iter_resource_handlers()]


@pytest.mark.parametrize('decorator', RESOURCES)
@pytest.mark.parametrize('args, kwargs', [
    (['kex'], {}),
    (['kopf.dev', 'v1', 'kex'], {}),
    ([kopf.EVERYTHING], {'group': 'kopf.dev'}),
    ([], {'kind': 'X', 'group': 'g', 'version': 'v'}),
    ([], {'plural': 'x'}),
    ([], {'singular': 'x'}),
    ([], {'shortcut': 'x'}),
    ([], {'category': 'x'}),
    ([len], {}),
])
def test_resources_are_as_in_selectors(decorator, args, kwargs):
    decorator(*args, **kwargs)(fn)
    assert get_handler().selector == Selector(*args, **kwargs)


@pytest.mark.parametrize('decorator', RESOURCES)
def test_resources_must_be_specified(decorator):
    with pytest.raises(TypeError, match="The resource is not specified"):
        decorator()(fn)


@pytest.mark.parametrize('decorator, reason, initial, field_needs_change, requires_finalizer', [
    (kopf.on.create, Reason.CREATE, None, None, None),
    (kopf.on.update, Reason.UPDATE, None, True, None),
    (kopf.on.delete, Reason.DELETE, None, None, True),
    (kopf.on.resume, None, True, None, None),
    (functools.partial(kopf.on.field, field='spec'), None, None, True, None),
])
def test_reasons(decorator, reason, initial, field_needs_change, requires_finalizer):
    decorator('kex')(fn)
    handler = get_handler()
    assert handler.reason == reason
    assert handler.initial == initial
    assert handler.field_needs_change == field_needs_change
    assert handler.requires_finalizer == requires_finalizer


@pytest.mark.parametrize('optional, required', [(None, True), (False, True), (True, False)])
def test_optional_deletion_handlers_require_no_finalizer(optional, required):
    kopf.on.delete('kex', optional=optional)(fn)
    assert get_handler().requires_finalizer == required


def test_resuming_of_deleted_objects():
    kopf.on.resume('kex', deleted=True)(fn)
    assert get_handler().deleted


@pytest.mark.parametrize('decorator', FIELD_CHANGES)
def test_old_and_new_values(decorator):
    decorator('kex', field='spec', old='x', new='y')(fn)
    assert (get_handler().old, get_handler().new) == ('x', 'y')


def test_field_handlers_need_a_field():
    with pytest.raises(TypeError, match='field'):
        kopf.on.field('kex')  # type: ignore[call-arg]


@pytest.mark.parametrize('decorator', FIELD_CHANGES)
@pytest.mark.parametrize('kwargs', [{'old': 'x'}, {'new': 'x'}, {'old': 'x', 'new': 'x'}])
def test_values_exclude_old_and_new_values(decorator, kwargs):
    with pytest.raises(TypeError, match="Either value= or old=/new= can be used"):
        decorator('kex', field='spec', value='x', **kwargs)


@pytest.mark.parametrize('decorator', RESOURCES)
def test_values_need_a_field(decorator):
    with pytest.raises(TypeError, match="field= is needed"):
        decorator('kex', value='x')


@pytest.mark.parametrize('kwargs', [{'old': 'x'}, {'new': 'x'}])
def test_old_and_new_values_need_a_field(kwargs):
    with pytest.raises(TypeError, match="field= is needed"):
        kopf.on.update('kex', **kwargs)


@pytest.mark.parametrize('decorator', RESOURCES)
@pytest.mark.parametrize('stanza', ['labels', 'annotations'])
def test_none_is_no_filter_for_metadata(decorator, stanza):
    with pytest.raises(ValueError, match=r"use kopf\.PRESENT or kopf\.ABSENT"):
        decorator('kex', **{stanza: {'key': None}})


def test_daemons_have_what_is_declared():
    kopf.daemon('kex', initial_delay=1, cancellation_backoff=2, cancellation_timeout=3,
                cancellation_polling=4)(fn)
    handler = get_handler()
    assert handler.initial_delay == 1
    assert handler.cancellation_backoff == 2
    assert handler.cancellation_timeout == 3
    assert handler.cancellation_polling == 4


def test_timers_have_what_is_declared():
    kopf.timer('kex', interval=1, initial_delay=fn, sharp=True, idle=2)(fn)
    handler = get_handler()
    assert handler.interval == 1
    assert handler.initial_delay is fn
    assert handler.sharp
    assert handler.idle == 2


def test_reconcilers_have_what_is_declared():
    kopf.reconcile('kex', owns=['pods', ('apps', 'deployments')], interval=1, prune=False,
                   recreate=True, conditions=True)(fn)
    handler = get_handler()
    assert handler.owns == (
        Selector('pods'), Selector('apps', 'deployments'))
    assert handler.interval == 1
    assert not handler.prune
    assert handler.recreate
    assert handler.conditions


def test_owned_resources_must_be_in_a_collection():
    with pytest.raises(TypeError, match=r"e.g. \['pods'\]"):
        kopf.reconcile('kex', owns='pods')


@pytest.mark.parametrize('watches', ['pods', ['pods'], {'pods': ['index']}], ids=repr)
def test_used_resources_must_be_in_a_dict(watches):
    with pytest.raises(TypeError, match=r"watches= must be a dict .* e.*: users\}, not "):
        kopf.reconcile('kex', watches=watches)


@pytest.mark.parametrize(['interval', 'error'], [
    (-1, ValueError), ('5', TypeError), (float('nan'), TypeError)])
def test_the_interval_of_a_reconciler_is_a_number(interval, error):
    with pytest.raises(error, match='interval= must '):
        kopf.reconcile('kex', interval=interval)(lambda **_: None)


@pytest.mark.parametrize('decorator, reason', [
    (kopf.on.validate, 'validating'), (kopf.on.mutate, 'mutating')])
def test_webhooks_have_what_is_declared(decorator, reason):
    decorator('kex', operations=['CREATE', 'UPDATE'], subresource='status', persistent=True,
              side_effects=True, ignore_failures=True)(fn)
    handler = get_handler()
    assert handler.reason == reason
    assert handler.operations == {'CREATE', 'UPDATE'}
    assert handler.subresource == 'status'
    assert handler.persistent and handler.side_effects and handler.ignore_failures


@pytest.mark.parametrize('decorator', [kopf.on.validate, kopf.on.mutate])
def test_webhooks_are_for_all_operations_by_default(decorator):
    decorator('kex')(fn)
    assert get_handler().operations is None


@pytest.mark.parametrize('decorator', [kopf.on.validate, kopf.on.mutate])
def test_single_operations_are_deprecated(decorator):
    with pytest.deprecated_call(match="use operations=") as warnings:
        decorator('kex', operation='CREATE')(fn)
    assert warnings[0].filename == __file__
    assert get_handler().operations == {'CREATE'}


@pytest.mark.parametrize('operations, error', [([], ValueError), ('CREATE', TypeError)])
@pytest.mark.parametrize('decorator', [kopf.on.validate, kopf.on.mutate])
def test_wrong_operations_are_refused(decorator, operations, error):
    with pytest.raises(error, match="operations="):
        decorator('kex', operations=operations)


@pytest.mark.parametrize('option', ['errors', 'timeout', 'retries', 'backoff'])
@pytest.mark.parametrize('decorator', [kopf.on.validate, kopf.on.mutate])
def test_webhooks_cannot_be_tried_again(decorator, option):
    with pytest.raises(TypeError, match=option):
        decorator('kex', **{option: None})


@pytest.mark.parametrize('sharded', [False, True])
def test_indices_are_sharded_as_declared(sharded):
    kopf.on.index('kex', sharded=sharded)(fn)
    assert get_handler().sharded is sharded


def test_indices_are_complete_by_default():
    kopf.on.index('kex')(fn)
    assert get_handler().sharded is False


def test_numbers_of_shards_are_refused_by_indices():
    with pytest.raises(TypeError, match="sharded= must be True or False, not 3"):
        kopf.on.index('kex', sharded=3)(fn)


@pytest.mark.parametrize('sharded', [False, True])
def test_functions_of_one_index_must_agree_whether_it_is_sharded(registry, sharded):
    kopf.on.index('kex', id='x', sharded=sharded)(fn)
    kopf.on.index('pods', id='x', sharded=sharded)(fn)
    kopf.on.index('pods', id='y', sharded=not sharded)(fn)
    with pytest.raises(ValueError, match="The index 'x' is filled by several functions"):
        kopf.on.index('pods', id='x', sharded=not sharded)(fn)
    assert len(registry._indexing) == 3


@pytest.mark.parametrize('name', ['daemon', 'timer', 'index', 'subhandler', 'register'])
def test_decorators_with_two_names(name):
    assert getattr(kopf, name) is getattr(kopf.on, name)


def test_decorators_can_be_stacked():
    @kopf.on.create('kex')
    @kopf.on.resume('kex')
    def func(**_): pass

    assert [handler.fn for handler in get_default_registry()._changing] == [func, func]


def test_partials_can_be_handlers():
    partial = functools.partial(fn, x=1)
    kopf.on.create('kex')(partial)
    assert (get_handler().fn, get_handler().id) == (partial, 'fn')


@pytest.mark.parametrize('declare', [
    lambda **kwargs: kopf.subhandler(**kwargs)(fn),
    lambda **kwargs: kopf.register(fn, **kwargs),
])
def test_subhandlers_have_what_is_declared(subregistry, declare):
    assert declare(id='x', param=1, errors=kopf.ErrorsMode.IGNORED, timeout=2, retries=3,
                   backoff=4, labels={'a': 'b'}, annotations={'c': 'd'}, when=fn) is fn
    [handler] = subregistry
    assert (handler.id, handler.fn, handler.param) == ('parent/x', fn, 1)
    assert (handler.errors, handler.timeout, handler.retries, handler.backoff) == (
        kopf.ErrorsMode.IGNORED, 2, 3, 4)
    assert (handler.labels, handler.annotations, handler.when) == ({'a': 'b'}, {'c': 'd'}, fn)


def test_subhandlers_are_for_any_reason(subregistry):
    kopf.register(fn)
    [handler] = subregistry
    assert handler.reason is None and handler.initial is None and handler.selector is None


def test_subhandlers_have_fields_in_their_ids(subregistry):
    kopf.subhandler(field='spec.x', old=1, new=2)(fn)
    [handler] = subregistry
    assert (handler.id, handler.field, handler.old, handler.new) == (
        'parent/fn/spec.x', ('spec', 'x'), 1, 2)


@pytest.mark.parametrize('decorator, expected', [
    (kopf.on.create, None), (kopf.on.update, True)])
def test_subhandlers_need_changes_if_their_parents_do(subregistry, decorator, expected):
    decorator('kex')(fn)
    parent = registries.Parent(get_handler())
    registries.parent_var.set(parent)
    kopf.register(fn)
    [handler] = parent.declared
    assert handler.field_needs_change == expected


def test_subhandlers_are_not_in_the_registry_of_the_operator(registry, subregistry):
    kopf.register(fn)
    assert not list(registry.iter_resource_handlers())


@pytest.mark.parametrize('declare', [lambda: kopf.subhandler()(fn), lambda: kopf.register(fn)])
def test_subhandlers_cannot_be_declared_outside_of_handlers(declare):
    with pytest.raises(LookupError, match="while a handler of changes is running"):
        declare()
