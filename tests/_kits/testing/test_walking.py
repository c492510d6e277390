import sys
import threading

import hypothesis
import pytest
from hypothesis import strategies as st

import kopf
from kopf import testing

SPECS = [{'n': 1}, {'n': 2}, {}]

RIGHT = '''
@kopf.reconcile('kopfexamples', owns=['configmaps'])
async def example(name, spec, **_):
    if 'n' in spec:
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
               'data': {'n': str(spec['n'])}}
'''

HEAPING = '''
@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec')
async def copy(name, spec, **_):
    child = {'apiVersion': 'v1', 'kind': 'ConfigMap',
             'metadata': {'name': f"{name}-{spec.get('n', 0)}"}}
    kopf.adopt(child)
    await kopf.apply(child)
'''

ORPHANING = HEAPING.replace("    kopf.adopt(child)\n", "").replace(
    "'metadata': {", "'metadata': {'namespace': 'default', ").replace("-{spec.get('n', 0)}", "-x")

FAILING = '''
@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec')
async def fail(spec, **_):
    if spec.get('n') == 2:
        raise ValueError("Two is too many.")
'''

RESTLESS = '''
@kopf.timer('kopfexamples', interval=400, idle=1)
async def tick(patch, status, **_):
    patch.status['ticks'] = status.get('ticks', 0) + 1
'''

HOLDING = '''
@kopf.on.delete('kopfexamples')
async def hold(**_):
    raise kopf.TemporaryError("never", delay=1000)
'''

CRASHING = '''
@kopf.on.cleanup()
async def crash(**_):
    raise kopf.PermanentError("no way")
'''


async def test_it_is_for_sync_tests(crd, script):
    with pytest.raises(RuntimeError, match="sync tests"):
        testing.walk('kopfexamples', script(RIGHT), load=[crd], specs=SPECS)


def test_a_right_operator_passes(crd, script):
    assert testing.walk('kopfexamples', script(RIGHT), load=[crd], specs=SPECS, walks=10) == 10


def test_the_specs_can_come_from_a_strategy(crd, script):
    specs = st.fixed_dictionaries({'n': st.integers(1, 3)})
    assert testing.walk('kopfexamples', script(RIGHT), load=[crd], specs=specs, walks=3) == 3


@pytest.mark.parametrize('handlers, steps, problem', [
    (HEAPING, [{'n': 1}, {}], "configmaps default/example-1 is there, but should not be"),
    (ORPHANING, [{'n': 1}], "After the deletion, configmaps default/example-x is there"),
    (FAILING, [{'n': 2}], "failed with an exception and will try again in 60 seconds: Two is too"),
    (RESTLESS, [{'n': 1}], "At rest, the operator still writes: patch kopfexamples"),
    (HOLDING, [{'n': 1}], "After the deletion, kopfexamples default/example is there"),
])
def test_each_mistake_is_found_by_a_short_walk(handlers, steps, problem, crd, script):
    with pytest.raises(testing.WalkError) as found:
        testing.walk('kopfexamples', script(handlers), load=[crd], specs=SPECS, walks=10)
    assert len(found.value.steps) == len(steps)
    assert problem in '\n'.join(found.value.problems)
    with pytest.raises(testing.WalkError) as found:
        testing.walk('kopfexamples', script(handlers), load=[crd], only=steps)
    assert problem in '\n'.join(found.value.problems)
    assert f"To walk only this: only={steps!r}" in str(found.value)
    assert "the spec: " in str(found.value)


def test_an_operator_that_ends_with_an_error_is_found(crd, script):
    with pytest.raises(testing.WalkError, match="The operator fails"):
        testing.walk('kopfexamples', script(CRASHING), load=[crd], only=[{}])


def test_errors_can_be_expected(crd, script):
    handlers = FAILING.replace("create('kopfexamples'", "create('kopfexamples', retries=1")
    with pytest.raises(testing.WalkError):
        testing.walk('kopfexamples', script(handlers), load=[crd], only=[{'n': 2}])
    testing.walk(
        'kopfexamples', script(handlers), load=[crd], only=[{'n': 2}],
        expected=["Two is too many"])


def test_what_handlers_raise_intentionally_is_no_problem(crd, script):
    handlers = FAILING.replace("ValueError", "kopf.PermanentError")
    testing.walk('kopfexamples', script(handlers), load=[crd], only=[{'n': 2}])


def test_fields_can_be_ignored(crd, script):
    handlers = FAILING.replace("raise ValueError(", "return (")
    with pytest.raises(testing.WalkError):
        testing.walk('kopfexamples', script(handlers), load=[crd], only=[{'n': 2}, 'rest', {}])
    testing.walk('kopfexamples', script(handlers), load=[crd], only=[{'n': 2}, 'rest', {}],
                 ignore=['status'])


def make_strict(crd):
    """The same resource with a schema, and a rule that is not in the schema of a single field."""
    version = crd['spec']['versions'][0]
    spec = {
        'type': 'object', 'properties': {'n': {'type': 'integer'}, 'm': {'type': 'integer'}},
        'not': {'required': ['n', 'm']}}
    schema = {'openAPIV3Schema': {'type': 'object', 'properties': {'spec': spec}}}
    return {**crd, 'spec': {**crd['spec'], 'versions': [{**version, 'schema': schema}]}}


def test_the_specs_come_from_the_schema_and_refused_ones_are_passed_over(crd, script):
    count = testing.walk('kopfexamples', script(RIGHT), load=[make_strict(crd)], walks=10)
    assert 1 <= count <= 10


def test_a_single_sequence_that_is_refused_is_not_counted(crd, script):
    for steps, count in (([{'n': 1}], 1), ([{'n': 3, 'm': 3}], 0)):
        assert testing.walk(
            'kopfexamples', script(RIGHT), load=[make_strict(crd)], only=steps) == count


def test_specs_that_are_all_refused_are_an_error_with_the_reason(crd, script):
    with pytest.raises(testing.WalkError) as found:
        testing.walk(
            'kopfexamples', script(RIGHT), load=[make_strict(crd)], specs=[{'n': 3, 'm': 3}],
            steps=1)
    assert found.value.problems == ["The API server refuses all specs."]
    assert "the API server refuses it: KopfExample" in str(found.value)
    assert found.value.steps == [{'n': 3, 'm': 3}]


def test_a_strategy_that_makes_no_specs_is_an_error_of_hypothesis(crd, script):
    with pytest.raises(hypothesis.errors.Unsatisfiable):
        testing.walk(
            'kopfexamples', script(RIGHT), load=[crd], specs=st.just({}).filter(bool), walks=1)


def test_a_refused_spec_leaves_the_former_one(crd, script):
    with pytest.raises(testing.WalkError) as found:
        testing.walk(
            'kopfexamples', script(HEAPING), load=[make_strict(crd)],
            only=[{'n': 1}, 'rest', {'n': 2}, 'rest', {'n': 3, 'm': 3}])
    assert "example-1 is there, but should not be" in str(found.value)
    assert "example-2" not in '\n'.join(found.value.problems)
    assert "the API server refuses it" in str(found.value)


def test_an_unknown_resource_is_an_error(crd, script):
    with pytest.raises(ValueError, match="no custom resource 'things'"):
        testing.walk('things', script(RIGHT), load=[crd])


def test_the_library_is_named_if_it_is_missing(crd, script, monkeypatch):
    monkeypatch.setitem(sys.modules, 'hypothesis', None)
    with pytest.raises(ImportError, match=r"needs kopf\[testing\], or `pip install hypothesis`"):
        testing.walk('kopfexamples', script(RIGHT), load=[crd], specs=SPECS)


def test_a_walk_that_takes_too_long_in_reality_is_the_last_one(crd):
    released = threading.Event()
    registry = kopf.OperatorRegistry()
    calls = []

    @kopf.on.create('kopfexamples', registry=registry)
    def block(**_):
        calls.append(True)
        released.wait()

    try:
        with pytest.raises(testing.WalkError, match="It has not ended in 5 seconds of real time"):
            testing.walk('kopfexamples', registry=registry, load=[crd], specs=SPECS, real_limit=5)
    finally:
        released.set()
    assert len(calls) == 1
