"""
The definitions of declared kinds, as the API itself takes them, with the objects of these kinds.
"""
import pytest

from tests._kits.typed import declared
from tests._kits.typed.declared import LIBRARIES
from tests.e2e.kubes import CRDS, KubeError

RULES_SINCE = 25
"""The minor version of Kubernetes that evaluates rules in CEL by default."""


def get_schema(library):
    [version] = declared.define(library)['spec']['versions']
    return version['schema']['openAPIV3Schema']['properties']['spec']


async def is_refused(judge, spec):
    try:
        await judge.create('some', dry=True, spec=spec)
    except KubeError as e:
        assert e.status in (400, 422), e
        return True
    return False


@pytest.mark.parametrize('library', LIBRARIES)
async def test_the_api_takes_the_definition_as_it_is(library, kube, minor):
    definition = declared.define(library)
    validation = {'fieldValidation': 'Strict'} if minor >= RULES_SINCE else {}
    stored = await kube.request(
        'POST', CRDS, body=definition, params={'dryRun': 'All', **validation})
    if minor >= RULES_SINCE:
        assert stored['spec'] == {**definition['spec'], 'conversion': {'strategy': 'None'}}


@pytest.mark.parametrize('library', LIBRARIES)
async def test_the_api_accepts_refuses_and_sets_what_the_types_say(library, judge, minor):
    await judge.set_schema(get_schema(library))
    for case in declared.list_cases(library):
        for value in case.valid:
            assert not await is_refused(judge, declared.hold(case, value)), (case.name, value)
        if minor >= RULES_SINCE or case.name != 'ruled':
            for value in case.invalid:
                assert await is_refused(judge, declared.hold(case, value)), (case.name, value)
        assert await is_refused(judge, declared.leave(case)) == case.is_required, case.name
        if not case.is_required:
            made = await judge.create('some', dry=True, spec=declared.leave(case))
            value = made['spec'][declared.to_wire(case.name)].get('value', declared.NOTHING)
            assert value == case.filled, case.name


async def test_the_api_lets_nobody_change_what_is_immutable(judge, minor):
    if minor < RULES_SINCE:
        pytest.skip("This API evaluates no rules.")
    await judge.set_schema(get_schema('dataclass'))
    for case in declared.CASES:
        for changes, must_refuse in [(case.invalid_changes, True), (case.valid_changes, False)]:
            for before, after in changes:
                old, new = (declared.leave(case) if value is None else declared.hold(case, value)
                            for value in (before, after))
                obj = await judge.create('some', dry=False, spec=old)
                try:
                    await judge.kube.replace(judge.kind, {**obj, 'spec': new})
                    was_refused = False
                except KubeError as e:
                    assert e.status == 422, e
                    was_refused = True
                assert was_refused == must_refuse, (case.name, before, after)
                await judge.kube.clear_kind(judge.kind)


async def test_the_api_agrees_on_random_shapes(kube, judge, minor):
    cases = declared.draw_cases(60)
    definition = declared.define_cases('dataclass', cases)
    validation = {'fieldValidation': 'Strict'} if minor >= RULES_SINCE else {}
    await kube.request('POST', CRDS, body=definition, params={'dryRun': 'All', **validation})
    [version] = definition['spec']['versions']
    await judge.set_schema(version['schema']['openAPIV3Schema']['properties']['spec'])
    for case in cases:
        for value in case.valid:
            assert not await is_refused(judge, declared.hold(case, value)), (case, value)
        for value in case.invalid:
            assert await is_refused(judge, declared.hold(case, value)), (case, value)
