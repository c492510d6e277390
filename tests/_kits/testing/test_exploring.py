import asyncio
import contextlib
import importlib
import os
import subprocess
import sys
import threading
import time

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


THREADED = {
    'a request': RIGHT.replace('async ', '').replace('await ', '').replace("}})", "}}).result()"),
    'a flag': """
import kopf

@kopf.daemon('kopfexamples')
def accompany(name, namespace, stopped, **_):
    manifest = {
        'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name, 'namespace': namespace}}
    stopped.wait(60)
    kopf.apply(manifest).result()
    stopped.wait()
""",
    'a thread of its own': """
import asyncio
import time
import kopf

@kopf.on.create('kopfexamples')
async def create(name, namespace, **_):
    slow = asyncio.create_task(asyncio.to_thread(time.sleep, 0.1))
    await kopf.apply({
        'apiVersion': 'v1', 'kind': 'ConfigMap',
        'metadata': {'name': name, 'namespace': namespace}, 'data': {'key': 'value'}})
    await slow
""",
}


@pytest.mark.parametrize('awaited', THREADED)
def test_threads_of_killed_operators_do_not_hold_the_time(crd, script, awaited):
    async def scenario(client):
        await client.create('kopfexamples', 'obj', spec={})
        await client.wait('configmaps', 'obj', timeout=300)

    testing.explore(
        scenario, script(THREADED[awaited]), load=[crd], strikes=['crash'], real_limit=60)


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


REFUSED = {
    'daemon': "async def act(stopped, patch, spec, **_):",
    'timer': "async def act(patch, spec, **_):",
    'on.event': "async def act(patch, spec, **_):"}


@pytest.mark.parametrize('kind', REFUSED)
def test_it_is_no_mistake_that_a_refused_patch_is_lost(kind, crd, script):
    handlers = f"""
import kopf

@kopf.{kind}('kopfexamples')
{REFUSED[kind]}
    patch.status['tries'] = 1
"""

    async def scenario(client):
        await client.create('kopfexamples', 'obj', spec={})
        await asyncio.sleep(100)

    path = script(handlers + ("    await stopped.wait()" if kind == 'daemon' else ""))
    explored = testing.explore(scenario, path, load=[crd])
    assert explored.runs == 10 * len(explored.writes)


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


@pytest.mark.parametrize('strike', ['lose:0', 'lose:99', 'call-lose:1'])
def test_one_fault_that_hits_nothing_is_an_error(strike, crd, script):
    with pytest.raises(ValueError, match=f"Nothing is hit by '{strike}': there are . writes"):
        testing.explore(scenario, script(RIGHT), load=[crd], only=strike)


def test_fields_can_be_ignored(crd, script):
    explored = testing.explore(
        scenario, script(WRONG), load=[crd], strikes=['crash'], ignore=['configmaps:data.key'])
    assert explored.runs == len(explored.writes)


GENERATING = """
import secrets
import kopf

@kopf.reconcile('kopfexamples', owns=['secrets', 'configmaps'])
async def login(name, patch, **_):
    yield {
        'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name},
        'stringData': {'password': kopf.generated(lambda: secrets.token_hex(4))}}
    yield {
        'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
        'data': {'id': kopf.generated(make)}}
    patch.status['tries'] = 1

async def make():
    return f'"{secrets.token_urlsafe()}"'
"""


def test_generated_values_may_differ(crd, script):
    explored = testing.explore(scenario, script(GENERATING), load=[crd], strikes=['crash'])
    assert explored.runs == len(explored.writes) > 4


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


@pytest.mark.parametrize('options', [
    {'load': 'crd.yaml'}, {'strikes': 'crash'}, {'ignore': 'status.x'},
    {'external': testing.FakeCloud()}])
def test_single_things_instead_of_collections_are_errors(options):
    with pytest.raises(TypeError, match=f"{next(iter(options))}= must be a collection"):
        testing.explore(scenario, registry=None, **options)


def test_an_exploration_without_any_fault_is_an_error(crd, script):
    async def idle(client):
        await client.create('configmaps', 'a')

    with pytest.raises(ValueError, match="Nothing was hit: the operator has written nothing"):
        testing.explore(idle, script(RIGHT), load=[crd])


def test_a_scenario_is_async(crd, script):
    with pytest.raises(AssertionError, match="The scenario must be an async function."):
        testing.explore(lambda client: None, script(RIGHT), load=[crd])


VALIDATING = '''
import asyncio
import kopf

async def serve(fn):
    yield {'url': 'https://localhost:1/'}
    await asyncio.Event().wait()

@kopf.on.startup()
async def configure(settings, **_):
    settings.admission.managed = 'kopf.example.com'
    settings.admission.server = serve

@kopf.on.validate('kopfexamples', ignore_failures=True)
async def check(**_):
    pass

@kopf.on.create('kopfexamples')
async def create(patch, **_):
    patch.status['tries'] = 1
'''


def test_no_fault_hits_the_shutdown_at_the_end_of_a_run(crd, script):
    explored = testing.explore(scenario, script(VALIDATING), load=[crd], strikes=['crash'])
    assert 'create validatingwebhookconfigurations' in explored.writes
    assert len(explored.writes) == 4


def test_self_signed_certificates_and_free_ports_may_differ(crd, script):
    """The default port can be taken by another process at any time."""
    handlers = VALIDATING.replace("= serve", "= kopf.WebhookServer(port=0)")
    testing.explore(scenario, script(handlers), load=[crd], strikes=['crash', 'stop'])


def test_the_memory_is_lost_even_if_the_test_has_imported_the_file(crd, script, monkeypatch):
    path = script('''
CALLS = []

@kopf.on.create('kopfexamples')
async def create(patch, retry, **_):
    CALLS.append(retry)
    if not retry:
        raise kopf.TemporaryError("not yet", delay=10)
    patch.status['tries'] = len(CALLS)
''', 'module_with_memory.py')
    monkeypatch.syspath_prepend(os.path.dirname(path))
    importlib.import_module('module_with_memory')
    with pytest.raises(testing.ExplorationError, match="What is only in memory is lost"):
        testing.explore(scenario, path, load=[crd], only='crash:1')


NAMESPACES = '''
@kopf.index('namespaces')
async def known(name, **_):
    return {name: None}

@kopf.on.create('kopfexamples')
async def create(patch, known, **_):
    tries = len(known)
    await kopf.apply({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'team'}})
    patch.status['tries'] = tries
'''


def test_a_write_that_creates_a_namespace_is_told(crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(scenario, script(NAMESPACES), load=[crd], only='crash:1')
    assert "write 1: patch namespaces team: creates it" in str(found.value)


STUBBORN = '''
import asyncio

@kopf.on.create('kopfexamples')
async def create(patch, **_):
    patch.status['tries'] = 1

@kopf.on.cleanup()
async def stay(**_):
    while True:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass
'''


def test_an_operator_that_never_stops_is_found(crd, script):
    with pytest.raises(AssertionError) as found:
        testing.explore(scenario, script(STUBBORN), load=[crd])
    assert "The operator has not stopped in 3600 seconds." in str(found.value)
    assert "stay()" in str(found.value)


def make_blocked(*, threaded, released):
    registry = kopf.OperatorRegistry()

    def block(patch, retry, **_):
        if retry:
            while not released.is_set():
                time.sleep(0.01)
        patch.status['tries'] = 1
        raise kopf.TemporaryError("Once more.", delay=5)

    async def block_loop(**kwargs):
        block(**kwargs)

    kopf.on.create('kopfexamples', registry=registry, id='block')(block if threaded else block_loop)
    return registry


@pytest.mark.parametrize('threaded', [True, False])
def test_a_run_has_a_limit_of_real_time(crd, threaded, monkeypatch):
    monkeypatch.setattr('kopf._kits.testing.runs.BLOCKING', 0.1)
    released = threading.Event()
    registry = make_blocked(threaded=threaded, released=released)
    try:
        with pytest.raises(AssertionError) as found:
            testing.explore(scenario, registry=registry, load=[crd], real_limit=5)
    finally:
        released.set()
    assert "It has not ended in 5 seconds of real time. The virtual time is " in str(found.value)
    assert f"{'1 threads of handlers' if threaded else 'nothing'} held it." in str(found.value)
    assert ' block()' in str(found.value)


def test_a_start_that_fails_after_a_kill_is_told(crd):
    registry = kopf.OperatorRegistry()
    starts = []

    @kopf.on.startup(registry=registry)
    async def start(**_):
        starts.append(True)
        if len(starts) > 2:  # after the run without faults
            raise kopf.PermanentError("It was there already.")

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(patch, **_):
        patch.status['tries'] = 1

    async def scenario(client):
        for name in ['one', 'two']:
            await client.create('kopfexamples', name)
            await client.wait('kopfexamples', name, lambda obj: obj['status']['tries'])

    with pytest.raises(testing.ExplorationError, match=r"The operator has failed: .*It was there"):
        testing.explore(scenario, registry=registry, load=[crd], only='crash:1')


def test_an_exploration_ends_with_the_first_run_that_takes_too_long(crd):
    released = threading.Event()
    registry = kopf.OperatorRegistry()
    calls = []

    @kopf.on.create('kopfexamples', registry=registry)
    def create(patch, **_):
        calls.append(True)
        if len(calls) > 1:
            released.wait()
        patch.status['tries'] = 1

    try:
        with pytest.raises(testing.ExplorationError) as found:
            testing.explore(
                scenario, registry=registry, load=[crd], strikes=['crash', 'stop'], real_limit=5)
    finally:
        released.set()
    assert "1 of 1 runs" in str(found.value)
    assert "It has not ended in 5 seconds of real time. The virtual time is " in str(found.value)
    assert "1 threads of handlers held it. Tasks: " in str(found.value)
    assert "configmaps" not in str(found.value)


def test_an_exploration_can_be_interrupted(crd, script):
    started = []

    async def interrupted(client):
        await scenario(client)
        started.append(True)
        if len(started) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        testing.explore(interrupted, script(RIGHT), load=[crd], only='crash:1')


def test_the_progress_is_shown_on_a_terminal_even_if_the_output_is_captured(crd, script):
    path = script(f"""
from kopf import testing
SCRIPT = {script(RIGHT, 'operator.py')!r}

async def scenario(client):
    await client.create('kopfexamples', 'obj', spec={{}})
    await client.wait('kopfexamples', 'obj', lambda obj: obj['status']['tries'], timeout=300)

def test_it():
    testing.explore(scenario, SCRIPT, load=[{crd!r}], strikes=['crash'])
""", 'test_it.py')
    shown = run_on_terminal(sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', path)
    assert "Exploring: the run without faults …" in shown
    assert "Exploring: run 2 of 3, crash:2 …" in shown
    assert "1 passed" in shown


def run_on_terminal(*args):
    """Run a command on a terminal of its own; return what is shown there."""
    main, terminal = os.openpty()
    with subprocess.Popen(args, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = bytearray()
        with contextlib.suppress(OSError):  # the end of the terminal
            while data := os.read(main, 4096):
                shown += data
        os.close(main)
    assert process.returncode == 0, shown
    return shown.decode()


PAUSING = '''
import kopf

@kopf.reconcile('kopfexamples', conditions=True, interval=30, owns=['configmaps'])
async def reconcile(name, spec, **_):
    return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
             'data': {'n': str(spec['n'])}}]

@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples')
async def handle(spec, patch, **_):
    patch.status['n'] = spec['n']
'''


async def pause(client):
    def has(n):
        return lambda obj: obj.get('status', {}).get('n') == n

    await client.create('kopfexamples', 'obj', spec={'n': 1})
    await client.wait('kopfexamples', 'obj', has(1), timeout=300)
    await client.wait('configmaps', 'obj', timeout=300)
    await client.patch('kopfexamples', 'obj', {
        'metadata': {'annotations': {'kopf.dev/paused': ''}}})
    await client.patch('kopfexamples', 'obj', {'spec': {'n': 2}})
    await asyncio.sleep(100)
    assert (await client.get('configmaps', 'obj'))['data'] == {'n': '1'}
    assert (await client.get('kopfexamples', 'obj'))['status']['n'] == 1
    await client.patch('kopfexamples', 'obj', {
        'metadata': {'annotations': {'kopf.dev/paused': None}}})
    await client.wait('kopfexamples', 'obj', has(2), timeout=300)


def test_pauses_of_objects_hold_with_all_faults_at_all_writes(crd, script):
    assert testing.explore(pause, script(PAUSING), load=[crd]).runs > 10
