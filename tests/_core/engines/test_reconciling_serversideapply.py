"""
Waiting for what is applied, in the threads of sync handlers.
"""
import asyncio
import concurrent.futures
import threading

import pytest

import kopf
from kopf._cogs.clients import api
from kopf._cogs.structs import credentials
from kopf._cogs.structs.references import Resource, Selector
from kopf._core.actions.invocation import invoke
from kopf._core.engines.reconciling.serversideapply import Applier, PendingRequest
from tests._cogs.clients.servers import Server, say

CONFIGMAPS = Resource('', 'v1', 'configmaps', kind='ConfigMap', namespaced=True)


@pytest.fixture()
def executor():
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        yield executor


def declare(fn):
    registry = kopf.OperatorRegistry()
    kopf.on.startup(id='fn', registry=registry)(fn)
    handler, = registry._activities
    return handler


class Request:
    """A request that is never answered."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.began = asyncio.Event()
        self.given_up = asyncio.Event()

    async def _hang(self):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()

    def start(self):
        return PendingRequest(asyncio.run_coroutine_threadsafe(self._hang(), self.loop))


async def test_an_interrupted_handler_waits_for_its_requests_no_more(executor):
    request, caught = Request(), []

    def fn(**_):
        for _ in range(2):
            try:
                request.start().result()
            except asyncio.CancelledError as e:
                caught.append(e)
        raise caught[0]

    task = asyncio.create_task(invoke(declare(fn), {}, executor))
    await request.began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(caught) == 2
    assert task.cancelled()
    await request.given_up.wait()


async def test_what_an_interrupted_handler_returns_is_its_result(executor):
    request = Request()

    def fn(**_):
        try:
            request.start().result()
        except asyncio.CancelledError:
            return 'cleaned up'

    task = asyncio.create_task(invoke(declare(fn), {}, executor))
    await request.began.wait()
    task.cancel()
    assert await task == 'cleaned up'


async def test_a_request_is_given_up_when_nobody_waits_for_it_any_more(executor):
    request = Request()

    def fn(**_):
        with pytest.raises(TimeoutError):
            request.start().result(timeout=0.01)

    await invoke(declare(fn), {}, executor)
    await request.given_up.wait()


async def test_a_request_that_was_given_up_before_is_not_sent(executor):
    def make(name):
        return {'apiVersion': 'v1', 'kind': 'ConfigMap',
                'metadata': {'name': name, 'namespace': 'ns'}}

    def start(name):
        return applier.start(make(name), manager='kopf', force=True)

    def fn(**_):
        start('first').result()
        blocked, released = threading.Event(), threading.Event()
        loop.call_soon_threadsafe(lambda: (blocked.set(), released.wait()))
        blocked.wait()
        with pytest.raises(TimeoutError):  # the connection is there, but the loop is blocked
            start('second').result(timeout=0)
        released.set()
        start('third').result()

    loop, server = asyncio.get_running_loop(), Server()
    server.script(say(make('any')))
    server.start()
    try:
        async with api.Client(
                credentials=credentials.ConnectionInfo(server=server.url),
                settings=kopf.OperatorSettings()) as client:
            applier = Applier(client)
            applier.enter()
            applier._found[Selector(group='', version='v1', kind='ConfigMap')] = CONFIGMAPS
            await invoke(declare(fn), {}, executor)
    finally:
        server.stop()
    names = [request.path.rpartition('/')[2] for request in server.requests]
    assert names == ['first', 'third']
