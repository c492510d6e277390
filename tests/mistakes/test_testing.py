"""
What is read by those who make a mistake in a test of their handlers.
"""
import asyncio
import re

import pytest

import kopf
from kopf import testing
from kopf.testing import virtual_time


def fn(name, **_):
    return name


def read_before_the_block():
    return testing.KopfRunner(['run', '-A', 'absent.py'], timeout=1).stdout


async def invoke_in_a_loop():
    return testing.invoke_sync(fn)


MISTAKES = [
    ("testing.invoke_sync(fn(name='x'))", lambda: testing.invoke_sync(fn(name='x')),
     r"The handler must be a function, but it is 'x'\. Pass the function itself, without calling"),
    ("testing.invoke_sync(fn, 'obj')", lambda: testing.invoke_sync(fn, 'obj'),
     r"The object must be a dict, for example: \{'spec': \{\}\}, but it is 'obj'"),
    ("testing.invoke_sync(fn, {}, old='obj')", lambda: testing.invoke_sync(fn, {}, old='obj'),
     r"The old object must be a dict"),
    ("testing.invoke_sync(fn, {}, reason='created')",
     lambda: testing.invoke_sync(fn, {}, reason='created'),
     r"There is no reason 'created', only: create, update, delete"),
    ("testing.invoke_sync(lambda spec: None)", lambda: testing.invoke_sync(lambda spec: None),
     r"does not accept all the keyword arguments .* Add \*\*_: lambda spec, \*\*_"),
    ("testing.invoke_sync(fn) in an async test", lambda: asyncio.run(invoke_in_a_loop()),
     r"There is an event loop already: use `await kopf\.testing\.invoke\(\.\.\.\)`"),
    ("KopfRunner(...).stdout", read_before_the_block,
     r"The operator is not started\. Use the runner in a `with` block"),
]


@pytest.mark.parametrize('call, read', [case[1:] for case in MISTAKES],
                         ids=[typed for typed, *_ in MISTAKES])
def test_mistakes_in_tests_are_explained(call, read):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=read):
        call()


async def open_absent(_):
    async with testing.open_api('sandbx'):
        pass


API_MISTAKES = [
    ("open_api('sandbx')", open_absent,
     r"neither 'sandbox', nor 'envtest', nor the path of a kubeconfig: 'sandbx'"),
    ("client.create('kopfexamples', 'x')", lambda api: api.client.create('kopfexamples', 'x'),
     r"The API serves no kopfexamples\. Load its CustomResourceDefinition first, or check"),
    ("client.get('pods', 'x')", lambda api: api.client.get('pods', 'x'),
     r"pods \"x\" not found"),
    ("client.load('absent.yaml')", lambda api: api.client.load('absent.yaml'),
     r"No such file or directory: 'absent\.yaml'"),
    ("operator('absent.py')", lambda api: api.operator('absent.py').start(),
     r"Cannot load absent\.py: there is no such file\."),
    ("wait_for(5)", lambda _: testing.wait_for(5, timeout=1),
     r"The condition was not met in 1 seconds(.*\n)+.*'int' object is not callable"),
    ("operator.wait_log('typo')",
     lambda api: api.operator(registry=kopf.OperatorRegistry()).wait_log('typo'),
     r"The log has no lines with 'typo' after 10 seconds"),
]


@pytest.mark.parametrize('call, read', [case[1:] for case in API_MISTAKES],
                         ids=[typed for typed, *_ in API_MISTAKES])
@virtual_time
async def test_mistakes_in_tests_on_an_api_are_explained(call, read):
    async with testing.open_api('sandbox') as api:
        with pytest.raises(Exception) as caught:
            await call(api)
    assert re.search(read, str(caught.value))


@virtual_time
async def test_files_without_objects_are_no_objects(tmp_path):
    path = tmp_path / 'objects.yaml'
    path.write_text('kind: Pod')
    async with testing.open_api('sandbox') as api:
        with pytest.raises(ValueError, match=r"document 1 is not a Kubernetes object: .*api"):
            await api.client.load(path)
