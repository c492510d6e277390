import asyncio
import re
import signal
import threading

import aiohttp
import pytest

import kopf
from kopf._kits import running

pytestmark = pytest.mark.looptime


class Diary(list):
    """What the handlers of an operator without any cluster have seen, and when."""

    def __init__(self, error=None):
        super().__init__()
        self.registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=self.registry)
        async def login(**_):
            self.note('login')
            if error is not None:
                raise error
            await asyncio.Event().wait()

        @kopf.on.cleanup(registry=self.registry)
        async def cleanup(**_):
            self.note('cleanup')

    def note(self, what):
        self.append((what, round(asyncio.get_running_loop().time())))

    async def run(self, **kwargs):
        await kopf.operator(registry=self.registry, clusterwide=True, standalone=True, **kwargs)


def test_one_namespace_is_not_taken_for_its_letters():
    assert running.Options(namespaces='default').namespaces == ['default']


@pytest.fixture()
def diary():
    return Diary()


@pytest.mark.parametrize('name, value', [
    ('registry', 5), ('settings', {}), ('namespaces', [1]), ('namespaces', 5), ('lifecycle', 5),
    ('identity', 5), ('liveness_endpoint', 5)])
async def test_parameters_of_wrong_types_are_named(name, value):
    with pytest.raises(TypeError, match=rf"^{name}= must be .*, not {re.escape(repr(value))}"):
        await kopf.operator(**{'clusterwide': name != 'namespaces', name: value})


def test_a_wrong_event_loop_is_named():
    with pytest.raises(TypeError, match="^loop= must be .*, not 'x'"):
        kopf.run(clusterwide=True, loop='x')


async def test_nothing_is_asked_of_the_cluster_before_the_startup_has_succeeded(diary):
    stop, ready = asyncio.Event(), asyncio.Event()

    @kopf.on.startup(registry=diary.registry)
    async def startup(retry, **_):
        await asyncio.sleep(1000)
        if not retry:
            raise kopf.TemporaryError("not yet", delay=500)

    task = asyncio.create_task(diary.run(stop_flag=stop, ready_flag=ready))
    await asyncio.sleep(3000)
    stop.set()
    await task
    assert diary == [('login', 2500), ('cleanup', 3000)]


async def test_nothing_is_asked_of_the_cluster_if_the_startup_has_failed(diary):
    @kopf.on.startup(registry=diary.registry)
    async def startup(**_):
        raise kopf.PermanentError("no way")

    with pytest.raises(Exception, match="startup has failed.*no way"):
        await diary.run()
    assert diary == [('cleanup', 0)]


async def test_cleanups_are_not_tried_again_if_the_startup_has_failed(diary):
    @kopf.on.startup(registry=diary.registry)
    async def startup(memo, **_):
        raise kopf.PermanentError("no way")

    @kopf.on.cleanup(registry=diary.registry)
    async def close(memo, **_):
        await memo.session.close()

    with pytest.raises(Exception, match="startup has failed.*no way"):
        await asyncio.wait_for(diary.run(), timeout=3600)
    assert diary == [('cleanup', 0)]
    assert asyncio.get_running_loop().time() == 0


async def test_the_error_of_the_startup_is_raised_even_if_the_operator_is_stopped_meanwhile(diary):
    @kopf.on.startup(registry=diary.registry)
    async def startup(**_):
        raise kopf.PermanentError("no way")

    @kopf.on.cleanup(registry=diary.registry)
    async def cleanup(**_):
        stop_flag.set()
        await asyncio.sleep(100)

    stop_flag = asyncio.Event()
    with pytest.raises(Exception, match="startup has failed.*no way"):
        await diary.run(stop_flag=stop_flag)
    assert asyncio.get_running_loop().time() == 0


async def test_the_operator_is_cleaned_up_when_its_flag_is_raised(diary):
    stop = asyncio.Event()
    task = asyncio.create_task(diary.run(stop_flag=stop))
    await asyncio.sleep(10)
    stop.set()
    await task
    assert diary == [('login', 0), ('cleanup', 10)]


async def test_the_operator_is_cleaned_up_when_it_is_cancelled(diary):
    task = asyncio.create_task(diary.run())
    await asyncio.sleep(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary == [('login', 0), ('cleanup', 10)]


async def test_the_operator_is_cleaned_up_when_it_has_failed():
    diary = Diary(kopf.PermanentError("boo"))
    with pytest.raises(kopf.LoginError):
        await diary.run()
    assert diary == [('login', 0), ('cleanup', 0)]


async def test_cleanup_handlers_take_as_long_as_they_need(diary):
    stop = asyncio.Event()

    @kopf.on.cleanup(id='slow', registry=diary.registry)
    async def slow(retry, **_):
        await asyncio.sleep(3600)
        if retry < 2:
            raise kopf.TemporaryError("not yet", delay=600)
        diary.note('cleaned up')

    task = asyncio.create_task(diary.run(stop_flag=stop))
    await asyncio.sleep(10)
    stop.set()
    await task
    assert diary == [
        ('login', 0), ('cleanup', 10), ('cleaned up', 10 + 3 * 3600 + 2 * 600)]


async def test_settings_are_of_one_operator_and_changed_by_its_startup(diary):
    seen = []
    another = Diary()
    for owner in (diary, another):
        @kopf.on.startup(registry=owner.registry, param=owner is diary)
        async def startup(param, settings, **_):
            if param:
                settings.watching.server_timeout = 600
            seen.append(settings)

    tasks = [asyncio.create_task(owner.run()) for owner in (diary, another)]
    await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert [settings.watching.server_timeout for settings in seen] == [600, None]


async def test_outside_of_the_main_thread_signals_are_not_handled_and_it_is_said(diary, caplog):
    stop, ready = asyncio.Event(), asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    handlers = []

    @kopf.on.startup(registry=diary.registry)
    async def startup(**_):
        handlers.append(signal.getsignal(signal.SIGTERM))
        stop.set()

    def run():
        asyncio.run(diary.run(stop_flag=stop, ready_flag=ready))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]
    assert "OS signals are ignored: running not in the main thread." in caplog.messages


# The end.


@pytest.mark.looptime(False)
async def test_connections_are_closed_however_often_the_shutdown_is_cancelled():
    registry, session = kopf.OperatorRegistry(), aiohttp.ClientSession()
    requested = asyncio.Event()

    class Silent(asyncio.Protocol):
        def data_received(self, data):
            requested.set()

    server = await asyncio.get_running_loop().create_server(Silent, '127.0.0.1', 0)
    port = server.sockets[0].getsockname()[1]

    @kopf.on.login(registry=registry)
    async def login(**_):
        return kopf.AiohttpSession(server=f'http://127.0.0.1:{port}', aiohttp_session=session)

    present = asyncio.all_tasks()
    running = asyncio.create_task(kopf.operator(
        registry=registry, clusterwide=True, peering_name='default'))
    await requested.wait()
    while tasks := asyncio.all_tasks() - present:
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
    assert running.done()
    assert session.closed
    server.close()


@pytest.mark.looptime(False)  # threads do not wait for its time
@pytest.mark.parametrize('is_cancelled', [False, True])
@pytest.mark.parametrize('activity', ['startup', 'login'])
async def test_an_operator_that_is_stopped_during_a_sync_handler_does_not_start(
        activity, is_cancelled):
    registry, seen = kopf.OperatorRegistry(), []
    begun, may_end = threading.Event(), threading.Event()

    def block(**_):
        begun.set()
        may_end.wait(20)
        return kopf.ConnectionInfo(server='http://127.0.0.1:1') if activity == 'login' else None

    getattr(kopf.on, activity)(registry=registry)(block)
    if activity == 'startup':
        kopf.on.login(registry=registry)(lambda **_: seen.append('login'))
    kopf.on.cleanup(registry=registry)(lambda **_: seen.append('cleanup'))
    kopf.on.event('kopfexamples', registry=registry)(lambda **_: None)
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(kopf.operator(
        registry=registry, clusterwide=True, standalone=True, stop_flag=stop, ready_flag=ready))
    assert await asyncio.to_thread(begun.wait, 20)
    if is_cancelled:
        task.cancel()
    else:
        stop.set()
    await asyncio.sleep(0.1)
    may_end.set()
    await asyncio.wait([task], timeout=20)
    assert task.done() and task.cancelled() is is_cancelled
    assert seen == ['cleanup']
    assert not ready.is_set()


async def test_an_earlier_cancellation_of_the_task_is_no_reason_not_to_start(diary):
    stop = asyncio.Event()

    @kopf.on.startup(registry=diary.registry)
    async def startup(**_):
        await asyncio.sleep(10)

    async def go_on():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await diary.run(stop_flag=stop)

    task = asyncio.create_task(go_on())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(100)
    stop.set()
    await task
    assert diary == [('login', 11), ('cleanup', 101)]
