import os
import subprocess
import sys

import pytest

HANDLERS = """
import kopf

@kopf.on.create('kopfexamples')
def create_fn(spec, retry, **_):
    if retry < 2:
        raise kopf.TemporaryError("not yet", delay=3600)
    return {'size': spec['size']}
"""

QUICK = """
import kopf

@kopf.on.create('kopfexamples')
async def create_fn(spec, retry, **_):
    if retry < 2:
        raise kopf.TemporaryError("not yet", delay=10)
    return {'size': spec['size']}
"""

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kopfexamples.kopf.dev}
spec:
  group: kopf.dev
  scope: Namespaced
  names: {kind: KopfExample, plural: kopfexamples, singular: kopfexample}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


TESTS = """
import asyncio
import kopf

def test_passing(kopf_client, kopf_operator, kopf_time):
    kopf_client.load('crd.yaml')
    operator = kopf_operator('handlers.py')
    kopf_client.create('kopfexamples', 'obj', spec={'size': 5})
    operator.wait_log("not yet")
    kopf_time.sleep(7199)
    assert 'status' not in kopf_client.get('kopfexamples', 'obj')
    kopf_time.sleep(1)
    assert kopf_client.get('kopfexamples', 'obj')['status'] == {'create_fn': {'size': 5}}

def test_failing(kopf_client, kopf_operator):
    kopf_client.load('crd.yaml')
    kopf_operator('handlers.py')
    kopf_client.create('kopfexamples', 'obj', spec={'size': 5})
    kopf_client.wait('kopfexamples', 'obj', lambda obj: obj['status']['create_fn']['size'] == 6,
                     timeout=9000)

def test_erring(kopf_client, kopf_operator):
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry, id='err')
    async def err(spec, **_):
        spec['typo']

    kopf_client.load('crd.yaml')
    kopf_operator(registry=registry)
    kopf_client.create('kopfexamples', 'obj', spec={'size': 5})
    kopf_client.wait('kopfexamples', 'obj', lambda obj: obj['status']['size'])

def test_breaking(kopf_operator):
    registry = kopf.OperatorRegistry()

    @kopf.on.cleanup(registry=registry)
    async def fn(**_):
        raise kopf.PermanentError("boo")

    kopf_operator(registry=registry)

def test_looping(kopf_client):
    async def main():
        kopf_client.list('pods')
    asyncio.run(main())

def test_sandboxed(kopf_sandbox, kopf_client):
    assert kopf_sandbox.url.startswith('http://127.0.0.1:')
    assert kopf_client.list('namespaces')
"""

EXPLORED = """
import pytest

pytestmark = pytest.mark.kopf_explore('quick.py', load=['crd.yaml'], strikes=['crash'])
RUNS = []

@pytest.mark.parametrize('size', [5, 6])
async def test_passing(kopf_client, tmp_path, size):
    RUNS.append(size)
    assert tmp_path.exists()
    await kopf_client.create('kopfexamples', 'obj', spec={'size': size})
    await kopf_client.wait(
        'kopfexamples', 'obj', lambda obj: obj['status']['create_fn']['size'] == size, timeout=600)

class TestMethods:
    async def test_passing(self, kopf_client):
        RUNS.append(0)
        await kopf_client.create('kopfexamples', 'obj', spec={'size': 0})

async def test_failing(kopf_client):
    assert len(await kopf_client.list('kopfexamples')) == 1

async def test_alone():
    pass

def test_sync(kopf_client):
    pass

def teardown_module():
    print("RUNS:", *map(RUNS.count, [5, 6, 0]))
"""

ALONE = """
import sys

def test_it():
    assert [name for name in sys.modules if name.partition('.')[0] == 'kopf'] == []
    assert 'pytest_kopf' in sys.modules
"""


def run(folder, text, *options, **env):
    (folder / 'test_it.py').write_text(text)
    process = subprocess.run(
        [sys.executable, '-m', 'pytest', '-rA', '-p', 'no:cacheprovider', *options, 'test_it.py'],
        cwd=folder, capture_output=True, text=True, env={**os.environ, **env})
    return process.returncode, process.stdout


@pytest.fixture(scope='module')
def project(tmp_path_factory):
    """The folder of a project with an operator."""
    folder = tmp_path_factory.mktemp('project')
    (folder / 'handlers.py').write_text(HANDLERS)
    (folder / 'quick.py').write_text(QUICK)
    (folder / 'crd.yaml').write_text(CRD)
    return folder


@pytest.fixture(scope='module')
def out(project):
    """What pytest has said about the tests of the project."""
    return run(project, TESTS)[1]


def test_an_operator_is_tested_in_virtual_time(out):
    assert "PASSED test_it.py::test_passing" in out


def test_a_failure_shows_the_object_and_the_log(out):
    assert "FAILED test_it.py::test_failing" in out
    assert "kopfexamples 'obj' has not met the condition in 9000 seconds" in out
    assert "size: 5" in out
    assert "Handler 'create_fn' failed temporarily: not yet" in out


def test_a_failure_begins_with_the_error_of_the_handler(out):
    shown = out.split(" test_erring ", 1)[1].split(" test_looping ", 1)[0]
    error = shown.index("E       AssertionError: [default/obj] Handler 'err' failed")
    cause = shown.index("E       KeyError: 'typo'")
    assert error < cause < shown.index("has not met the condition")
    assert "E   " not in shown[:error]
    assert "During handling of the above exception" not in shown
    assert "run_until_complete" not in shown
    assert "managedFields" not in shown.split("Captured log", 1)[0]


def test_an_error_of_the_operator_is_an_error_of_the_test(out):
    assert "ERROR test_it.py::test_breaking" in out
    assert "ActivityError: The cleanup has failed: " in out


def test_async_tests_are_told_what_to_use(out):
    assert "FAILED test_it.py::test_looping" in out
    assert "Kopf's fixtures are for sync tests; in an async one, use kopf.testing.open_api()" in out


def test_the_sandbox_is_there_for_its_faults(out):
    assert "PASSED test_it.py::test_sandboxed" in out


@pytest.mark.parametrize('options, env', [
    (['-o', 'asyncio_mode=auto'], {}),
    (['-p', 'pytest_kopf'], {'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'}),
], ids=['auto', 'alone'])
def test_marked_tests_are_explored_with_and_without_plugins_for_async_tests(project, options, env):
    _, out = run(project, EXPLORED, '-s', '--strict-markers', *options, **env)
    assert "PASSED test_it.py::test_passing[5]" in out
    assert "PASSED test_it.py::test_passing[6]" in out
    assert "PASSED test_it.py::TestMethods::test_passing" in out
    assert "RUNS: 4 4 4" in out  # without faults, and after each of three writes
    assert "FAILED test_it.py::test_failing - AssertionError: The scenario fails" in out
    mistake = "Failed: The marker kopf_explore is for async tests"
    assert f"FAILED test_it.py::test_alone - {mistake}"[:60] in out
    assert f"FAILED test_it.py::test_sync - {mistake}"[:60] in out


def test_nothing_of_kopf_is_imported_where_it_is_not_used(tmp_path):
    code, out = run(tmp_path, ALONE)
    assert code == 0, out
