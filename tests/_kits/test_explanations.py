import asyncio
import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf import testing
from kopf._cogs.aiokits import clocks
from kopf._cogs.structs.references import Resource
from kopf._kits import explanations
from kopf._kits.explanations import Change
from kopf._kits.testing.virtual import run as run_virtually
from tests._core.reactor.worlds import Api, Operator

HANDLED = 'kopf.zalando.org/last-handled-configuration'
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
NOW = clocks.Moment(0, datetime.datetime.now(datetime.UTC))
PODS = Resource('', 'v1', 'pods', kind='Pod', namespaced=True)


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


def make(spec=None, *, handled=None, **meta):
    if handled is not None:
        annotations = {HANDLED: json.dumps({'spec': handled}), **meta.pop('annotations', {})}
        meta['annotations'] = annotations
    return {'metadata': meta, 'spec': spec or {}}


def explain(registry, *args, **kwargs):
    return testing.explain(make(*args, **kwargs), registry=registry)


def get_verdicts(found):
    return {item.id: (item.is_called, item.because) for item in found.handlers}


def record(registry, decorator, id='fn', **options):
    @decorator('kopfexamples', registry=registry, id=id, **options)
    def fn(**_):
        raise AssertionError("explaining calls no handlers")


def test_creations(registry):
    record(registry, kopf.on.create, 'created')
    record(registry, kopf.on.update, 'updated')
    found = explain(registry, {'x': 1})
    assert found.cause == 'create'
    assert found.changes == []
    assert get_verdicts(found) == {
        'created': (True, "it matches, and is due"),
        'updated': (False, "it is for updates, but this is a creation"),
    }
    assert found.next == "the operator calls created"


def test_pauses(registry):
    record(registry, kopf.on.create, 'created')
    record(registry, kopf.timer, 'tick', interval=10)
    record(registry, kopf.on.event, 'watched')
    found = explain(registry, {'x': 1}, finalizers=[FINALIZER], annotations={
        'kopf.dev/paused': 'Moving the disks'})
    assert get_verdicts(found) == {
        'created': (
            False, "it matches, but nothing is done: The object is paused: Moving the disks"),
        'tick': (False, "the object is paused"),
        'watched': (True, "for each event of the object"),
    }
    assert found.next == "nothing. The object is paused: Moving the disks"


def test_indices(registry):
    record(registry, kopf.index, 'complete')
    record(registry, kopf.index, 'partial', sharded=True)
    assert get_verdicts(explain(registry)) == {
        'complete': (True, "the object is in the index"),
        'partial': (True, "the object is in the index; if the operator is sharded, only in the "
                          "replica that holds its shard"),
    }


def test_updates_with_their_changes(registry):
    record(registry, kopf.on.update, 'updated')
    found = explain(registry, {'x': 1, 'y': [2]}, handled={'x': 2, 'z': 3})
    assert found.cause == 'update'
    assert found.changes == [
        Change('change', 'spec.x', 2, 1), Change('add', 'spec.y', None, [2]),
        Change('remove', 'spec.z', 3, None)]
    assert [*found.describe()][3:6] == [
        "  spec.x has changed: 2 -> 1", "  spec.y is added: [2]",
        "  spec.z is removed: it was 3"]


def test_values_of_secrets_are_not_shown(registry):
    for key, value in [('a', 'x'), ('b', kopf.ABSENT)]:
        @kopf.on.update('v1', 'secrets', registry=registry, field=f'data.{key}', value=value)
        def fn(**_):
            pass

    handled = json.dumps({'data': {'a': 'hunter1', 'b': 'hunter2'}})
    raw = {'apiVersion': 'v1', 'kind': 'Secret', 'data': {'a': 'hunter3', 'b': 'hunter2'},
           'metadata': {'name': 'one', 'annotations': {HANDLED: handled}}}
    found = testing.explain(raw, registry=registry)
    assert found.changes == [Change('change', 'data.a', '***', '***')]
    assert 'hunter' not in '\n'.join(found.describe())


def test_nothing_has_changed(registry):
    record(registry, kopf.on.update, 'updated')
    record(registry, kopf.on.resume, 'resumed')
    found = explain(registry, {'x': 1}, handled={'x': 1})
    assert found.cause == 'noop'
    assert get_verdicts(found) == {
        'updated': (
            False, "it is for updates, but nothing has changed (the status does not count)"),
        'resumed': (True, "once, when the operator starts"),
    }
    assert found.next.startswith("nothing. Something has changed, but we are not interested")


def test_finalizers(registry):
    record(registry, kopf.on.delete, 'deleted')
    record(registry, kopf.on.delete, 'optional', optional=True)
    record(registry, kopf.timer, 'ticked', interval=9)
    record(registry, kopf.reconcile, 'reconciled')
    found = explain(registry, finalizers=[FINALIZER, 'x.io/y', 'kopf.dev/children'])
    assert found.finalizers == {
        FINALIZER: "of this operator, needed by: timer ticked, delete deleted",
        'x.io/y': "of another controller, which has to remove it",
        'kopf.dev/children': "of this operator, which deletes the owned resources first",
    }
    assert explain(registry).next == (
        "the operator patches the object. "
        "Adding the finalizer, thus preventing the actual deletion.")


@pytest.mark.parametrize('finalizer, step', [
    ('kopf.dev/children', "no handlers of changes. The operator deletes the owned resources"),
    ('x.io/y', "nothing. Deletion, but we are done with it, and we do not care."),
])
def test_reconciling_handlers_are_not_called_for_deleted_objects(registry, finalizer, step):
    record(registry, kopf.reconcile, 'reconciled')
    found = explain(
        registry, finalizers=[finalizer], deletionTimestamp='2020-01-01T00:00:00Z')
    assert found.next == step


def test_reconciling_handlers_are_what_comes_next(registry):
    record(registry, kopf.reconcile, 'reconciled')
    assert explain(registry, finalizers=['kopf.dev/children']).next == (
        "no handlers of changes. The operator calls reconciled when something changes, and again "
        "after an error")
    assert explain(registry, annotations={'kopf.dev/paused': 'why'}).next.startswith("nothing.")


def test_finalizers_of_resources_without_handlers_are_not_removed(registry):
    kopf.on.delete('pods', registry=registry)(lambda **_: None)
    kopf.on.startup(registry=registry)(lambda **_: None)
    stamp = '2020-01-01T00:00:00Z'
    found = explain(
        registry, name='obj', namespace='ns', deletionTimestamp=stamp,
        finalizers=['x.io/y', FINALIZER, 'kopf.dev/children'])
    assert found.next == "nothing. This operator does not watch kopfexamples.v1.kopf.dev."
    assert found.finalizers['x.io/y'] == "of another controller, which has to remove it"
    assert found.finalizers[FINALIZER] == (
        "of an operator made with Kopf; but this operator does not watch kopfexamples.v1.kopf.dev, "
        "so it does not remove it. If no other operator does: kubectl patch "
        "kopfexamples.v1.kopf.dev obj -n ns --type=json -p '"
        '[{"op": "test", "path": "/metadata/finalizers/1", "value": "' + FINALIZER + '"}, '
        '{"op": "remove", "path": "/metadata/finalizers/1"}]' + "'")
    assert '"path": "/metadata/finalizers/2"' in found.finalizers['kopf.dev/children']


def test_finalizers_of_resources_with_webhooks_only_are_not_removed(registry):
    record(registry, kopf.on.validate)
    found = explain(registry, name='obj', finalizers=[FINALIZER])
    assert "this operator does not watch kopfexamples.v1.kopf.dev" in found.finalizers[FINALIZER]
    assert found.next == "nothing. This operator does not watch kopfexamples.v1.kopf.dev."


def test_finalizers_of_resources_with_indices_only_are_removed(registry):
    record(registry, kopf.index)
    found = explain(registry, name='obj', finalizers=[FINALIZER])
    assert found.finalizers[FINALIZER].endswith("no handler needs it: the operator removes it")


def test_finalizers_for_owned_resources_are_not_removed_without_reconciling_handlers(registry):
    record(registry, kopf.on.create)
    found = explain(registry, name='obj', finalizers=['kopf.dev/children'])
    assert found.finalizers['kopf.dev/children'].startswith(
        "of an operator made with Kopf; but this operator does not reconcile "
        "kopfexamples.v1.kopf.dev, so it does not remove it. If no other operator does: kubectl ")


def declare_external(registry, id):
    external = kopf.external('kopfexamples', id=id, registry=registry, interval=300)
    external.observe(lambda **_: None)
    external.create(lambda **_: 'key')
    external.delete(lambda **_: None)


@pytest.mark.parametrize('declared, expected', [
    ([], "of an operator made with Kopf; but this operator does not have externals for "
         "kopfexamples.v1.kopf.dev, so it does not remove it. If no other operator does: kubectl "),
    (['old', 'new'], "of this operator, which deletes what is in external systems first"),
    (['new'], "of operators made with Kopf; but this operator has no externals for the records "
              "external.kopf.dev/old. If no other operator has: delete what they name in the "
              "systems, and then: kubectl annotate kopfexamples.v1.kopf.dev obj -n default "
              "external.kopf.dev/old-"),
])
def test_finalizers_for_external_systems_tell_which_records_hold_them(
        registry, declared, expected):
    @kopf.reconcile('kopfexamples', registry=registry)
    def apply(**_):
        return None

    for id in declared:
        declare_external(registry, id)
    found = explain(
        registry, name='obj', finalizers=['kopf.dev/external'], annotations={
            'external.kopf.dev/kopf-managed': 'yes',
            'external.kopf.dev/old': '{"phase":"known","key":"k"}',
            'external.kopf.dev/new.retry': ''})
    assert found.finalizers['kopf.dev/external'].startswith(expected)


def test_finalizers_of_builtin_resources_are_removed_by_a_name_that_kubectl_knows(registry):
    record(registry, kopf.on.create)
    raw = make(name='obj', namespace='ns', finalizers=[FINALIZER])
    found = testing.explain(
        {**raw, 'kind': 'Pod', 'apiVersion': 'v1'}, resource=PODS, registry=registry)
    assert "kubectl patch pods obj -n ns --type=json " in found.finalizers[FINALIZER]


def test_finalizers_that_nobody_needs(registry):
    record(registry, kopf.on.create)
    found = explain(registry, finalizers=[FINALIZER])
    assert found.finalizers == {
        FINALIZER: "of this operator, but no handler needs it: the operator removes it"}
    assert get_verdicts(found) == {'fn': (True, "it matches, and is called after that patch")}


@pytest.mark.parametrize('finalizer', [FINALIZER, None])
def test_the_end_of_a_daemon_comes_before_the_finalizer_is_removed(registry, finalizer):
    kopf.daemon('kopfexamples', id='guard', registry=registry)(lambda **_: None)
    found = explain(
        registry, deletionTimestamp='2020-01-01T00:00:00Z', finalizers=[finalizer or 'x.io/y'])
    assert ("waits for the end of guard" in found.next) == (finalizer is not None)



def test_deletions(registry):
    record(registry, kopf.on.delete, 'deleted')
    record(registry, kopf.timer, 'ticked', interval=9)
    stamp = '2020-01-01T00:00:00Z'
    found = explain(registry, deletionTimestamp=stamp, finalizers=[FINALIZER])
    assert found.cause == 'delete'
    assert get_verdicts(found) == {
        'deleted': (True, "it matches, and is due"),
        'ticked': (False, "the object is being deleted"),
    }
    found = explain(registry, deletionTimestamp=stamp, finalizers=['x.io/y'])
    assert get_verdicts(found)['deleted'] == (
        False, "it matches, but nothing is done: Deletion, but we are done with it, and we do not "
        "care.")


@pytest.mark.parametrize(('progress', 'is_called', 'because'), [
    ({'success': True, 'retries': 1}, False, "it has already succeeded for this change"),
    ({'failure': True, 'retries': 2, 'message': 'no way'}, False,
     "it has failed permanently for this change: no way"),
    ({'retries': 2, 'message': 'not yet'}, True, "the attempt 3 is due: not yet"),
    ({'retries': 1, 'message': 'not yet', 'delayed': '2999-01-01T00:00:00+00:00'}, True,
     "it waits until 2999-01-01 00:00:00 UTC"),
    ({'retries': 1, 'message': 'not yet', 'delayed': '2999-01-01T02:00:00+02:00'}, True,
     "it waits until 2999-01-01 00:00:00 UTC"),
])
def test_progress(registry, progress, is_called, because):
    record(registry, kopf.on.create)
    kept = {'started': '2020-01-01T00:00:00+00:00', 'purpose': 'create', **progress}
    found = explain(registry, annotations={'kopf.zalando.org/fn': json.dumps(kept)})
    [(id_, verdict)] = get_verdicts(found).items()
    assert verdict[0] == is_called
    assert verdict[1].startswith(because)
    [item] = found.progress
    assert (item.id, item.attempts) == ('fn', progress['retries'])
    assert item.because == verdict[1]


def test_progress_of_unknown_handlers_is_shown_by_its_annotation(registry):
    kept = {'started': '2020-01-01T00:00:00+00:00', 'retries': 3, 'message': 'boo'}
    found = explain(registry, annotations={'kopf.zalando.org/fn': json.dumps(kept)})
    assert [(item.id, item.attempts, item.because) for item in found.progress] == [
        ('kopf.zalando.org/fn', 3, "the attempt 4 is due: boo")]
    assert found.next == "unknown without the handlers: pass the file with the handlers, too"


def test_errors_of_several_lines_look_like_no_other_lines(registry):
    record(registry, kopf.on.create)
    kept = {'started': '2020-01-01T00:00:00+00:00', 'retries': 3, 'message': "oops\nNext: nothing",
            'purpose': 'create'}
    lines = list(explain(registry, annotations={
        'kopf.zalando.org/fn': json.dumps(kept)}).describe())
    assert [line for line in '\n'.join(lines).split('\n') if line.startswith("Next:")] == [
        "Next: the operator calls fn"]


def test_finalizers_of_absent_operators_can_be_released(registry):
    [why] = explain(registry, finalizers=[FINALIZER]).finalizers.values()
    assert why.endswith("If there is no such operator any more, kopf release removes it")


def test_damaged_records_are_problems(registry):
    record(registry, kopf.on.create)
    found = explain(registry, annotations={HANDLED: '{bad'})
    [problem] = found.problems
    assert problem.startswith("The last-handled state of the object is not readable")
    assert found.next == "the operator logs this error, and handles nothing before it is mended"
    assert any(line.startswith("Problem: ") for line in found.describe())


def test_handlers_of_other_resources(registry):
    record(registry, kopf.on.create)
    found = testing.explain({'kind': 'Pod', 'apiVersion': 'v1'}, resource=PODS, registry=registry)
    assert get_verdicts(found) == {'fn': (False, "it is for kopfexamples, not for pods.v1")}


def test_handlers_with_failing_selectors(registry):
    @kopf.on.create(lambda resource: resource.nonsense, registry=registry, id='fn')
    def fn(**_):
        pass

    is_called, because = get_verdicts(explain(registry))['fn']
    assert not is_called
    assert because.startswith("the selector of its resources fails: AttributeError(")


def test_handlers_with_ambiguous_names(registry):
    record(registry, kopf.on.create)
    one, other = (Resource(group, 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
                  for group in ('a.io', 'b.io'))
    raw = {**make(name='x'), 'apiVersion': 'a.io/v1', 'kind': 'KopfExample'}
    found = explanations.explain(
        raw, resource=one, resources=[one, other], registry=registry,
        settings=kopf.OperatorSettings(), now=NOW)
    assert get_verdicts(found) == {'fn': (
        False, "kopfexamples is ambiguous in this cluster, add the API group: "
        "kopfexamples.v1.a.io, kopfexamples.v1.b.io")}


def test_handlers_of_requests(registry):
    record(registry, kopf.on.validate)
    assert get_verdicts(explain(registry)) == {
        'fn': (False, "it is for requests to the API server, not for objects at rest")}


def test_several_decorators_of_one_function(registry):
    @kopf.on.update('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    def fn(**_):
        pass

    assert [(item.is_called, item.because) for item in explain(
        registry, {'x': 1}, handled={}).handlers] == [
            (True, "it matches, and is due"),
            (False, "another decorator of the same function already matches")]


def test_explanations_as_json(registry):
    record(registry, kopf.on.create)
    found = explain(registry, {'x': 1}, name='abc', namespace='ns', uid='u', resourceVersion='7')
    assert json.loads(json.dumps(found.as_dict())) == {
        'kind': 'KopfExample', 'namespace': 'ns', 'name': 'abc', 'uid': 'u', 'version': '7',
        'cause': 'create', 'changes': [], 'later': [], 'progress': [], 'finalizers': {},
        'problems': [],
        'handlers': [{'decorator': 'create', 'id': 'fn', 'is_called': True,
                      'because': "it matches, and is due"}],
        'next': "the operator calls fn",
    }


# The verdicts are what the operator does.


CRITERIA = st.sampled_from([1, 2, kopf.PRESENT, kopf.ABSENT]) | st.just(lambda v, **_: v == 2)
FIELDS = st.fixed_dictionaries({}, optional={'field': st.just('spec.x'), 'value': CRITERIA}).filter(
    lambda options: 'field' in options or 'value' not in options)
OTHERS = st.fixed_dictionaries({}, optional={
    'labels': st.dictionaries(st.just('a'), st.sampled_from(['1', kopf.PRESENT, kopf.ABSENT])),
    'when': st.sampled_from([lambda **_: True, lambda spec, **_: spec.get('x') == 1]),
})
DECORATORS = st.sampled_from([
    ('create', {}), ('update', {}), ('delete', {}), ('delete', {'optional': True}), ('resume', {}),
    ('resume', {'deleted': True}), ('event', {}), ('timer', {'interval': 9}), ('daemon', {}),
])
SPECS = st.fixed_dictionaries({}, optional={'x': st.sampled_from([1, 2]), 'y': st.just(1)})
METAS = st.fixed_dictionaries({}, optional={
    'labels': st.dictionaries(st.just('a'), st.sampled_from(['1', '2'])),
    'finalizers': st.lists(st.sampled_from([FINALIZER, 'x.io/y']), unique=True, min_size=1),
})


def declare(registry, specs, calls):
    for number, ((name, own), field, others) in enumerate(specs):
        decorator = getattr(kopf.on, name, None) or getattr(kopf, name)

        @decorator('kopfexamples', registry=registry, id=f'fn{number}', **own, **field, **others)
        async def fn(n=number, **_):
            calls.add(n)


@given(
    specs=st.lists(st.tuples(DECORATORS, FIELDS, OTHERS), min_size=1, max_size=5),
    spec=SPECS, handled=st.none() | SPECS, meta=METAS, is_deleted=st.booleans())
def test_the_operator_calls_what_is_called_by_the_explanation(
        specs, spec, handled, meta, is_deleted):
    calls, registry = set(), kopf.OperatorRegistry()
    declare(registry, specs, calls)
    if is_deleted and meta.get('finalizers'):
        meta = {**meta, 'deletionTimestamp': '2020-01-01T00:00:00Z'}
    essence = {'labels': meta['labels']} if meta.get('labels') else {}
    if handled is not None:
        content = {'spec': handled, **({'metadata': essence} if essence else {})}
        meta = {**meta, 'annotations': {HANDLED: json.dumps(content)}}

    async def run():
        api = Api()
        api.create('obj', spec=spec, metadata=meta)
        found = testing.explain(api.objects['obj'], registry=registry)
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        await operator.stop()
        return found

    found = run_virtually(run())
    expected = {int(item.id.removeprefix('fn').partition('/')[0])
                for item in found.handlers if item.is_called}
    assert calls == expected


# Changes that come after the present cycle.


async def leave(registry, *edits, status=None):
    """Let an operator handle an object and its edits, and return what is on the object then."""
    api = Api()
    api.create('obj', spec={'size': 1}, **({} if status is None else {'status': status}))
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(5)
    for edit in edits:
        api.edit(edit)
        await asyncio.sleep(5)
    await operator.stop()
    return api.objects['obj']


def declare_resizing(registry):
    @kopf.on.update('kopfexamples', registry=registry, field='spec.size', id='resize')
    async def resize(**_):
        raise kopf.TemporaryError("too small", delay=60)

    @kopf.on.field('kopfexamples', registry=registry, field='metadata.labels', id='relabel')
    async def relabel(**_):
        pass


@pytest.mark.looptime
async def test_changes_after_the_success_of_a_handler_are_explained(registry):
    declare_resizing(registry)
    found = testing.explain(await leave(
        registry,
        {'spec': {'size': 0}},
        {'metadata': {'labels': {'app': 'x'}}},
        {'metadata': {'labels': {'owner': 'me'}}}), registry=registry)
    assert found.later == [Change('add', 'metadata.labels.owner', None, 'me')]
    assert get_verdicts(found)['relabel/metadata.labels'] == (True, (
        "it has already succeeded for this change; "
        "it is called again after this handling cycle, for the later changes"))
    lines = [*found.describe()]
    assert "Later changes, for the next handling cycle:" in lines
    assert "  metadata.labels.owner is added: 'me'" in lines


@pytest.mark.looptime
async def test_handlers_that_have_seen_everything_have_no_later_changes(registry):
    declare_resizing(registry)
    found = testing.explain(await leave(
        registry,
        {'spec': {'size': 0}},
        {'metadata': {'labels': {'app': 'x'}}}), registry=registry)
    assert found.later == []
    assert get_verdicts(found)['relabel/metadata.labels'] == (
        False, "it has already succeeded for this change")


@pytest.mark.looptime
async def test_updates_during_a_creation_are_explained(registry):
    @kopf.on.create('kopfexamples', registry=registry, id='quick')
    async def quick(**_):
        pass

    @kopf.on.create('kopfexamples', registry=registry, id='slow')
    async def slow(**_):
        raise kopf.TemporaryError("not yet", delay=60)

    record(registry, kopf.on.update, 'updated', field='spec.size')
    record(registry, kopf.on.update, 'other', field='spec.other')
    found = testing.explain(
        await leave(registry, {'spec': {'size': 2}}), registry=registry)
    assert found.cause == 'create'
    assert found.later == [Change('change', 'spec.size', 1, 2)]
    verdicts = get_verdicts(found)
    assert verdicts['quick'] == (False, "it has already succeeded for this change")
    assert verdicts['slow'][1].startswith("it waits until ")
    assert verdicts['updated/spec.size'] == (
        True, "after this handling cycle, for the later changes")
    assert verdicts['other/spec.other'] == (False, "it is for updates, but this is a creation")


CHANGES = st.tuples(
    st.sampled_from(['create', 'update', 'field']),
    st.sampled_from([{'field': 'spec.x'}, {'field': 'spec.y'}, {'field': 'spec'}]),
    st.sampled_from(['done', 'waits', 'waits twice']))
EDITS = st.fixed_dictionaries({}, optional={
    'x': st.sampled_from([1, 2, 3]), 'y': st.sampled_from([1, 2, 3])})


@given(
    specs=st.lists(CHANGES, min_size=2, max_size=4), spec=SPECS, is_handled=st.booleans(),
    edits=st.lists(EDITS, min_size=1, max_size=4))
def test_the_operator_calls_what_is_called_by_the_explanation_of_a_cycle(
        specs, spec, is_handled, edits):
    calls, registry = set(), kopf.OperatorRegistry()
    is_waiting = True
    for number, (name, options, kind) in enumerate(specs):
        @getattr(kopf.on, name)('kopfexamples', registry=registry, id=f'fn{number}', **options)
        async def fn(n=number, kind=kind, **kwargs):
            calls.add(n)
            if is_waiting and (kind == 'waits' or (kind == 'waits twice' and kwargs['retry'] < 2)):
                raise kopf.TemporaryError("not yet", delay=60 if kind == 'waits' else 2)

    async def run():
        nonlocal is_waiting
        api = Api()
        meta = {'annotations': {HANDLED: json.dumps({'spec': spec})}} if is_handled else {}
        api.create('obj', spec=spec, metadata=meta)
        operator = Operator(api, registry)
        operator.start()
        for edit in edits:
            await asyncio.sleep(3)
            api.edit({'spec': edit})
        await asyncio.sleep(3)
        await operator.stop()
        calls.clear()
        is_waiting = False
        found = testing.explain(api.objects['obj'], registry=registry)
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        await operator.stop()
        return found

    found = run_virtually(run())
    expected = {int(item.id.removeprefix('fn').partition('/')[0])
                for item in found.handlers if item.is_called}
    assert calls == expected
