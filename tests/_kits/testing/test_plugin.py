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

ALONE = """
import sys

def test_it():
    assert [name for name in sys.modules if name.partition('.')[0] == 'kopf'] == []
    assert 'pytest_kopf' in sys.modules
"""


def run(folder, text, *options):
    (folder / 'test_it.py').write_text(text)
    process = subprocess.run(
        [sys.executable, '-m', 'pytest', '-rA', '-p', 'no:cacheprovider', *options, 'test_it.py'],
        cwd=folder, capture_output=True, text=True, timeout=30)
    return process.returncode, process.stdout


@pytest.fixture(scope='module')
def out(tmp_path_factory):
    """What pytest has said about the tests of a project with an operator."""
    folder = tmp_path_factory.mktemp('project')
    (folder / 'handlers.py').write_text(HANDLERS)
    (folder / 'crd.yaml').write_text(CRD)
    return run(folder, TESTS)[1]


def test_an_operator_is_tested_in_virtual_time(out):
    assert "PASSED test_it.py::test_passing" in out


def test_a_failure_shows_the_object_and_the_log(out):
    assert "FAILED test_it.py::test_failing" in out
    assert "kopfexamples 'obj' has not met the condition in 9000 seconds" in out
    assert "size: 5" in out
    assert "Handler 'create_fn' failed temporarily: not yet" in out


def test_an_error_of_the_operator_is_an_error_of_the_test(out):
    assert "ERROR test_it.py::test_breaking" in out
    assert "ActivityError: The cleanup has failed: " in out


def test_async_tests_are_told_what_to_use(out):
    assert "FAILED test_it.py::test_looping" in out
    assert "Kopf's fixtures are for sync tests; in an async one, use kopf.testing.open_api()" in out


def test_the_sandbox_is_there_for_its_faults(out):
    assert "PASSED test_it.py::test_sandboxed" in out


def test_nothing_of_kopf_is_imported_where_it_is_not_used(tmp_path):
    code, out = run(tmp_path, ALONE)
    assert code == 0, out
