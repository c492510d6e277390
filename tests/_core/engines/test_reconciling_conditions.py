import asyncio
import copy
import datetime

import pytest

import kopf
import kopf.testing
from kopf._cogs.structs.references import Resource
from kopf._core.actions import invocation
from kopf._core.engines.reconciling.conditions import Problems, report
from tests.crds import make_crd
from tests.docs.snippets import DOCS

LONG_AGO = '2020-01-01T00:00:00Z'
WITH_STATUS = Resource('example.com', 'v1', 'things', subresources=frozenset({'status'}))
WITHOUT_STATUS = Resource('example.com', 'v1', 'things')
BODY = kopf.Body({'metadata': {'generation': 7}})


def apply(patch, body=None):
    """Return the conditions of the body after the patch, by their types."""
    raw = copy.deepcopy(body or {})
    raw.setdefault('metadata', {}).setdefault('generation', 7)
    for fn in patch.fns:
        fn(raw)
    return {condition['type']: condition for condition in raw['status']['conditions']}


def make(**fields):
    condition = {'type': 'Ready', 'status': 'True', 'reason': 'Fine', 'message': '',
                 'lastTransitionTime': LONG_AGO, **fields}
    return {'status': {'conditions': [condition]}}


@pytest.fixture()
def patch():
    return kopf.Patch()


@pytest.fixture()
def in_handler():
    """Be in a handler of an object whose resource has the status as a subresource."""
    token = invocation.kwargs_var.set({'resource': WITH_STATUS, 'body': BODY})
    yield
    invocation.kwargs_var.reset(token)


def test_a_new_condition_has_all_fields(patch):
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    kopf.set_condition(patch, 'Ready', True, 'Fine', 'All is well.')
    condition = apply(patch)['Ready']
    time = datetime.datetime.fromisoformat(condition.pop('lastTransitionTime'))
    assert before <= time <= datetime.datetime.now(datetime.UTC)
    assert condition == {
        'type': 'Ready', 'status': 'True', 'reason': 'Fine', 'message': 'All is well.'}


@pytest.mark.parametrize(('status', 'text'), [
    (True, 'True'), (False, 'False'), (None, 'Unknown'),
    ('True', 'True'), ('False', 'False'), ('Unknown', 'Unknown'),
])
def test_a_status_is_a_text(patch, status, text):
    kopf.set_condition(patch, 'Ready', status, 'Reason')
    assert apply(patch)['Ready']['status'] == text


@pytest.mark.parametrize('status', ['true', '', 'Yes', 2, [], 1.5], ids=repr)
def test_another_status_is_an_error(patch, status):
    with pytest.raises(ValueError, match=r"^The status of a condition is True, False, or Unknown"):
        kopf.set_condition(patch, 'Ready', status, 'Reason')
    assert not patch


@pytest.mark.parametrize(('type', 'reason', 'message', 'error'), [
    ('', 'Reason', '', ValueError), ('Ready', '', '', ValueError),
    ('Ready', 'two words', '', ValueError), ('Ready', None, '', TypeError),
    ('Ready', 'Reason', None, TypeError), (None, 'Reason', '', TypeError)])
def test_what_kubernetes_would_refuse_is_an_error(patch, type, reason, message, error):
    with pytest.raises(error, match="^(A condition has|The type, the reason)"):
        kopf.set_condition(patch, type, True, reason, message)
    assert not patch


def test_the_time_stays_while_the_status_is_the_same(patch):
    kopf.set_condition(patch, 'Ready', True, 'Other', 'Another message.')
    condition = apply(patch, make())['Ready']
    assert condition['lastTransitionTime'] == LONG_AGO
    assert (condition['reason'], condition['message']) == ('Other', 'Another message.')


def test_the_time_moves_with_the_status(patch):
    kopf.set_condition(patch, 'Ready', False, 'Fine')
    assert apply(patch, make())['Ready']['lastTransitionTime'] > LONG_AGO


def test_a_missing_time_is_added(patch):
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    body = make()
    del body['status']['conditions'][0]['lastTransitionTime']
    assert apply(patch, body)['Ready']['lastTransitionTime'] > LONG_AGO


def test_the_same_condition_changes_nothing(patch):
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    assert apply(patch, make()) == {'Ready': make()['status']['conditions'][0]}


@pytest.mark.usefixtures('in_handler')
def test_the_generation_is_observed_if_the_status_is_a_subresource(patch):
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    assert apply(patch)['Ready']['observedGeneration'] == 7


@pytest.mark.usefixtures('in_handler')
def test_another_generation_does_not_move_the_time(patch):
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    condition = apply(patch, make(observedGeneration=6))['Ready']
    assert condition['observedGeneration'] == 7 and condition['lastTransitionTime'] == LONG_AGO


def test_the_generation_is_not_observed_if_each_write_of_the_status_is_a_new_one(patch):
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    assert 'observedGeneration' not in apply(patch)['Ready']


def test_the_generation_is_not_observed_if_the_status_is_no_subresource(patch):
    token = invocation.kwargs_var.set({'resource': WITHOUT_STATUS, 'body': BODY})
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    invocation.kwargs_var.reset(token)
    assert 'observedGeneration' not in apply(patch)['Ready']


def test_the_generation_is_not_observed_if_there_is_none(patch):
    body = kopf.Body({'metadata': {}})
    token = invocation.kwargs_var.set({'resource': WITH_STATUS, 'body': body})
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    invocation.kwargs_var.reset(token)
    assert 'observedGeneration' not in apply(patch)['Ready']


@pytest.mark.usefixtures('in_handler')
def test_each_state_of_an_object_gets_the_condition_as_if_it_were_the_first(patch):
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    expected = copy.deepcopy(apply(patch))
    assert apply(patch, make(observedGeneration=6))['Ready']['lastTransitionTime'] == LONG_AGO
    assert apply(patch) == expected


def test_others_conditions_and_others_fields_remain(patch):
    body = make(custom='kept')
    body['status']['conditions'].insert(0, {'type': 'Other', 'status': 'Odd'})
    body['status']['field'] = 'value'
    kopf.set_condition(patch, 'Ready', False, 'Bad')
    conditions = apply(patch, body)
    assert [*conditions] == ['Other', 'Ready'] and conditions['Other']['status'] == 'Odd'
    assert conditions['Ready']['custom'] == 'kept'


def test_several_conditions_are_set_one_by_one(patch):
    kopf.set_condition(patch, 'A', True, 'One')
    kopf.set_condition(patch, 'B', True, 'Two')
    kopf.set_condition(patch, 'A', False, 'Three')
    assert {type: item['reason'] for type, item in apply(patch).items()} == {
        'A': 'Three', 'B': 'Two'}


@pytest.mark.parametrize('status', [None, {}, {'conditions': None}, {'conditions': []}])
def test_a_status_without_conditions_gets_them(patch, status):
    kopf.set_condition(patch, 'Ready', True, 'Fine')
    assert [*apply(patch, {'status': status})] == ['Ready']


@pytest.mark.parametrize(('problems', 'expected'), [
    ({}, {
        'Ready': ('True', 'Reconciled', ''), 'Reconciling': ('False', 'Reconciled', ''),
        'Stalled': ('False', 'Reconciled', '')}),
    ({'own': Problems(('a', 'b'), is_stalled=False)}, {
        'Ready': ('False', 'Retrying', 'a; b'), 'Reconciling': ('True', 'Retrying', 'a; b'),
        'Stalled': ('False', 'Retrying', '')}),
    ({'own': Problems(('a',), is_stalled=True)}, {
        'Ready': ('False', 'Failed', 'a'), 'Reconciling': ('False', 'Failed', ''),
        'Stalled': ('True', 'Failed', 'a')}),
    ({'y': Problems(('a', 'b'), is_stalled=False), 'own': Problems(('c',), is_stalled=True),
      'x': Problems(('d',), is_stalled=False)}, {
        'Ready': ('False', 'Failed', 'c; x: d; y: a; y: b'), 'Reconciling': ('False', 'Failed', ''),
        'Stalled': ('True', 'Failed', 'c; x: d; y: a; y: b')}),
], ids=['success', 'retry', 'failure', 'several'])
def test_reports_are_as_kstatus_reads_them(patch, problems, expected):
    report(patch, problems, reporter='own', observed=None)
    assert {type: (item['status'], item['reason'], item['message'])
            for type, item in apply(patch).items()} == expected


@pytest.mark.parametrize('generation', [6, None])
def test_all_conditions_of_a_report_are_about_the_same_generation(patch, generation):
    report(patch, {}, reporter='own', observed=generation)
    assert {item.get('observedGeneration') for item in apply(patch).values()} == {generation}


@pytest.mark.parametrize('is_reconciling', [True, False])
@kopf.testing.virtual_time
async def test_no_handler_observes_a_change_that_comes_while_it_runs(is_reconciling):
    registry = kopf.OperatorRegistry()

    async def fn(patch, **_):
        await asyncio.sleep(10)
        if not is_reconciling:
            kopf.set_condition(patch, 'Ready', True, 'Fine')

    if is_reconciling:
        kopf.reconcile('things', registry=registry, conditions=True)(fn)
    else:
        kopf.on.create('things', registry=registry)(fn)
        kopf.on.update('things', registry=registry)(fn)
    async with kopf.testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with api.operator(registry=registry):
            await api.client.create('things', 'a', spec={'n': 1})
            await asyncio.sleep(5)
            await api.client.patch('things', 'a', {'spec': {'n': 2}})
            seen = []
            while 2 not in seen:
                await asyncio.sleep(1)
                obj = await api.client.get('things', 'a')
                seen += [item['observedGeneration']
                         for item in obj.get('status', {}).get('conditions', ())
                         if item['type'] == 'Ready']
    assert len(seen) > 5
    assert set(seen[:5]) == {1}


def test_long_problems_are_cut(patch):
    problems = {'own': Problems(('x' * 5000,), is_stalled=False)}
    report(patch, problems, reporter='own', observed=None)
    assert len(apply(patch)['Ready']['message']) == 1000


@kopf.testing.virtual_time
async def test_conditions_are_about_all_reconciling_handlers():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('kopfexamples', id='first', conditions=True, registry=registry)
    async def first(spec, **_):
        if spec.get('first'):
            raise kopf.TemporaryError(spec['first'], delay=10)

    @kopf.reconcile('kopfexamples', id='second', annotations={'skip': kopf.ABSENT},
                    registry=registry)
    async def second(spec, **_):
        if spec.get('second'):
            raise kopf.PermanentError(spec['second'])

    @kopf.reconcile('kopfexamples', id='third', annotations={'skip': kopf.ABSENT},
                    registry=registry)
    async def third(retry, spec, **_):
        if retry < spec.get('third', 0):
            raise kopf.TemporaryError("boo!", delay=10)

    async with kopf.testing.open_api('sandbox') as api:
        await api.client.load(DOCS.parent / 'examples' / 'crd.yaml')
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'second': 'never'})

            async def wait(ready, reconciling, stalled, message):
                def is_so(obj):
                    found = {item['type']: item for item in obj['status'].get('conditions', ())}
                    return found and [found[type]['status'] for type in (
                        'Ready', 'Reconciling', 'Stalled')] == [ready, reconciling, stalled] and (
                        found['Ready']['message'] == message)
                await api.client.wait('kopfexamples', 'parent', is_so, timeout=60)

            async def edit(patch):
                await api.client.patch('kopfexamples', 'parent', patch)

            await wait('False', 'False', 'True', 'second: never')
            await edit({'spec': {'first': 'later'}})
            await wait('False', 'False', 'True', 'later; second: never')
            await edit({'spec': {'second': None, 'third': 1}})
            await wait('False', 'True', 'False', 'later; third: boo!')
            await edit({'spec': {'first': None, 'second': 'never', 'third': 1}})
            await wait('False', 'False', 'True', 'second: never')
            await edit({'metadata': {'annotations': {'skip': 'yes'}}})
            await wait('True', 'False', 'False', '')
            await edit({'metadata': {'annotations': {'skip': None}}})
            await wait('False', 'False', 'True', 'second: never')
            await edit({'spec': {'second': None, 'third': 2}})
            await wait('False', 'True', 'False', 'third: boo!')
            await wait('True', 'False', 'False', '')


@kopf.testing.virtual_time
async def test_an_object_is_not_ready_while_what_it_owns_is_being_deleted():
    registry = kopf.OperatorRegistry()

    @kopf.reconcile('kopfexamples', owns=['configmaps'], conditions=True, registry=registry)
    def fn(spec, name, **_):
        return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                'data': {'a': spec['a']}}

    async def read():
        obj = await api.client.get('kopfexamples', 'x')
        return {each['type']: (each['status'], each['message'])
                for each in obj['status']['conditions']}

    async with kopf.testing.open_api('sandbox') as api:
        await api.client.load(make_crd('KopfExample', 'kopfexamples'))
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'x', spec={'a': 'b'})
            await asyncio.sleep(5)
            await api.client.patch('configmaps', 'x', {'metadata': {'finalizers': ['x.y/z']}})
            await api.client.delete('configmaps', 'x')
            await asyncio.sleep(5)
            await api.client.patch('kopfexamples', 'x', {'spec': {'a': 'c'}})
            await asyncio.sleep(1000)
            told = await read()
            assert told['Ready'] == (
                'False', "ConfigMap default/x is being deleted; it is created again after that.")
            assert (told['Reconciling'][0], told['Stalled'][0]) == ('True', 'False')
            await api.client.patch('configmaps', 'x', {'metadata': {'finalizers': None}})
            await asyncio.sleep(5)
            assert (await read())['Ready'] == ('True', '')
            assert (await api.client.get('configmaps', 'x'))['data'] == {'a': 'c'}
            assert not [line for line in operator.log if 'ERROR' in line]
