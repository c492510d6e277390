import pytest

import kopf
from kopf import testing

RIGHT = '''
import kopf

@kopf.on.create('kopfexamples')
async def create(name, namespace, **_):
    await kopf.apply({
        'apiVersion': 'v1', 'kind': 'ConfigMap',
        'metadata': {'name': name, 'namespace': namespace}, 'data': {'key': 'value'}})

@kopf.on.create('kopfexamples')
async def retried(retry, patch, **_):
    if retry < 1:
        raise kopf.TemporaryError("not yet", delay=10)
    patch.status['tries'] = retry
'''

WRONG = RIGHT.replace("'value'", "str(len(known))").replace("**_", "known, **_", 1) + '''
@kopf.index('configmaps')
async def known(namespace, name, **_):
    return {(namespace, name): None}
'''


async def scenario(client):
    await client.create('kopfexamples', 'obj', spec={})
    await client.wait('kopfexamples', 'obj', lambda obj: obj['status']['tries'], timeout=300)


async def test_it_is_for_sync_tests(crd, script):
    with pytest.raises(RuntimeError, match="sync tests"):
        testing.explore(scenario, script(RIGHT), load=[crd])


def test_a_right_operator_survives_all_faults_at_all_writes(crd, script):
    explored = testing.explore(scenario, script(RIGHT), load=[crd])
    assert 'patch configmaps default/obj' in explored.writes
    assert explored.runs == 10 * len(explored.writes)


LOOKING = """
import uuid
import kopf

@kopf.index('configmaps')
async def known(body, **_):
    return {owner['name']: None for owner in body.metadata.get('ownerReferences', [])}

@kopf.on.create('kopfexamples')
async def create(name, known, **_):
    if name not in known:
        copy = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'x-{uuid.uuid4()}'}}
        kopf.adopt(copy)
        await kopf.apply(copy)

@kopf.on.create('kopfexamples')
async def retried(patch, **_):
    patch.status['tries'] = 1
"""

DESPAIRING = """
import kopf
from kopf import testing

@kopf.on.create('kopfexamples')
async def create(name, namespace, **_):
    try:
        await kopf.apply({
            'apiVersion': 'v1', 'kind': 'ConfigMap',
            'metadata': {'name': name, 'namespace': namespace}})
    except testing.APIError as e:
        if e.status == 422:
            raise kopf.PermanentError("It will never work.")
        raise

@kopf.on.create('kopfexamples')
async def retried(patch, **_):
    patch.status['tries'] = 1
"""

PERSONAL = """
import kopf
OWN = []

@kopf.on.startup()
async def number(settings, **_):
    OWN.append(settings.peering.priority + 1)

@kopf.on.create('kopfexamples')
async def retried(retry, patch, **_):
    if retry < 1:
        raise kopf.TemporaryError("not yet", delay=10)
    patch.status['tries'] = OWN[0]
"""


@pytest.mark.parametrize('handlers, strike, advice', [
    (LOOKING, 'stale:1', "Indices and lists can be older"),
    (DESPAIRING, 'refuse-422:1', "Do not give up after an error of the API"),
    (PERSONAL, 'handover:1', "What is only in memory is lost with the process"),
])
def test_some_mistakes_show_at_one_fault_only(handlers, strike, advice, crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(scenario, script(handlers), load=[crd], ignore=['configmaps:metadata.name'])
    assert [str(finding.strike) for finding in found.value.findings] == [strike]
    [told] = [hint for hint in found.value.findings[0].hints if hint.startswith("What to change:")]
    assert advice in told


def test_an_operator_is_served_an_older_state_until_the_server_has_caught_up(crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(
            scenario, script(LOOKING), load=[crd], only='stale:1',
            ignore=['configmaps:metadata.name'])
    story = found.value.findings[0].story
    assert get_order(
        story, "is killed after write 1", "starts again", "Handler 'create' is invoked",
        "write 2", "is served the newest state again")


def test_a_replica_takes_over_and_hands_back(crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(scenario, script(PERSONAL), load=[crd], only='handover:1')
    story = found.value.findings[0].story
    assert get_order(
        story, "replica 1: write 1", "takes over after write 1", "replica 2: write 2",
        "replica 2 is stopped by a signal")


def test_replicas_of_one_namespace_hand_over(crd, script):
    testing.explore(
        scenario, script(RIGHT), load=[crd], strikes=['handover'], namespaces=['def*'],
        settings=kopf.OperatorSettings(), priority=5)


def get_order(story, *texts):
    """Whether the texts are in the story in this order."""
    lines = iter(story)
    return all(any(text in line for line in lines) for text in texts)


def test_what_depends_on_the_number_of_calls_is_found_with_its_story(crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(scenario, script(WRONG), load=[crd], strikes=['crash'])
    text = str(found.value)
    number = found.value.findings[0].strike.number
    assert f"If the operator is killed between write {number} and write {number + 1}:" in text
    assert f"write {number}: patch configmaps default/obj: creates it" in text
    assert (f"write {number + 1}: patch kopfexamples default/obj: "
            f"sets annotation kopf.zalando.org/create" in text)
    assert "configmaps default/obj differs" in text
    assert "the handler 'create' for [default/obj] was called 2 times, not 1" in text
    assert text.count("What to change: A repeated call must write the same values") == 1
    assert f"*** the operator is killed after write {number} ***" in text
    assert f"To run only this: only='crash:{number}'" in text


def test_one_fault_can_be_run_alone(crd, script):
    assert testing.explore(scenario, script(RIGHT), load=[crd], only='lose:1').runs == 1


def test_fields_can_be_ignored(crd, script):
    explored = testing.explore(
        scenario, script(WRONG), load=[crd], strikes=['crash'], ignore=['configmaps:data.key'])
    assert explored.runs == len(explored.writes)


def test_a_scenario_has_to_pass_without_faults(crd, script):
    async def impossible(client):
        await client.create('kopfexamples', 'obj', spec={})
        await client.wait('kopfexamples', 'obj', lambda obj: obj['status']['never'])

    with pytest.raises(AssertionError, match="The scenario fails without faults"):
        testing.explore(impossible, script(RIGHT), load=[crd])


def test_an_operator_that_never_rests_is_found(crd, script):
    handlers = RIGHT + '''
@kopf.timer('kopfexamples', interval=1)
async def tick(patch, **_):
    patch.status['ticks'] = _['status'].get('ticks', 0) + 1
'''
    with pytest.raises(AssertionError, match="There is no rest in 100 seconds"):
        testing.explore(scenario, script(handlers), load=[crd], limit=100)


@pytest.mark.parametrize('options', [
    {'strikes': ['thunder']}, {'only': 'thunder:1'}, {'only': 'crash'}])
def test_unknown_faults_are_errors(options):
    with pytest.raises(ValueError, match='crash'):
        testing.explore(scenario, registry=None, **options)
