import asyncio
import contextlib
import datetime
import json
import logging
import threading

import pytest

import kopf
from kopf import testing
from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api
from kopf._cogs.structs import credentials
from kopf._core.actions import reports
from kopf._core.engines import posting
from tests._cogs.clients.servers import Server, drop, hang, refuse, say

OBJ = {
    'apiVersion': 'example.com/v1', 'kind': 'Thing',
    'metadata': {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1', 'labels': {'a': 'b'}},
    'spec': {'field': 'value'},
}
REF = {
    'apiVersion': 'example.com/v1', 'kind': 'Thing',
    'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1',
}
WHEN = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)


@pytest.fixture()
def settings():
    settings = kopf.OperatorSettings()
    settings.posting.default_backoffs = (0.01, 0.01)
    settings.posting.logging_backoffs = (0.01,)
    settings.queueing.exit_timeout = 5
    return settings


@pytest.fixture()
def queue(settings):
    """The queue of the current operator, as handlers have it."""
    queue = reports.EventQueue(settings)
    token = posting.event_queue_var.set(queue)
    yield queue
    posting.event_queue_var.reset(token)


@pytest.fixture()
def server():
    server = Server()
    server.script(say({}, status=201))
    server.start()
    yield server
    server.stop()


@pytest.fixture()
def operating(server, settings, queue):
    """The context in which the events are being posted; all of them are posted at its end."""
    @contextlib.asynccontextmanager
    async def operating():
        info = credentials.ConnectionInfo(server=server.url, token='token')
        async with api.Client(credentials=info, settings=settings) as client:
            task = asyncio.create_task(
                posting.poster(client=client, queue=queue))
            await asyncio.sleep(0)
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])
    return operating


def drain(queue):
    return list(iter(queue.get_nowait, None))


def get_bodies(server):
    return [json.loads(request.body) for request in server.requests]


# ----- the calls


def test_events_are_put_to_the_queue(queue):
    before = datetime.datetime.now(datetime.UTC)
    kopf.event(OBJ, type='SomeType', reason='SomeReason', message='some message', backoffs=[5])
    event, = drain(queue)
    assert event[:-1] == (REF, 'SomeType', 'SomeReason', 'some message', [5])
    assert before <= event.when <= datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize('fn, type_', [
    (kopf.info, 'Normal'), (kopf.warn, 'Warning'), (kopf.exception, 'Warning'),
])
def test_shortcuts_have_their_types(queue, settings, fn, type_):
    fn(OBJ, reason='SomeReason', message='some message')
    event, = drain(queue)
    assert event[:-1] == (
        REF, type_, 'SomeReason', 'some message', settings.posting.default_backoffs)


@pytest.mark.parametrize('kwargs, reason, message', [
    ({}, 'ValueError', 'boo!'),
    ({'reason': 'SomeReason'}, 'SomeReason', 'boo!'),
    ({'message': 'some message:'}, 'ValueError', 'some message: boo!'),
    ({'exc': TypeError('other')}, 'TypeError', 'other'),
])
def test_exceptions_are_described(queue, kwargs, reason, message):
    try:
        raise ValueError("boo!")
    except ValueError:
        kopf.exception(OBJ, **kwargs)
    event, = drain(queue)
    assert (event.reason, event.message) == (reason, message)


@pytest.mark.parametrize(('message', 'text'), [
    (ValueError("boo!"), "boo!"), (5, '5'), ({'a': 1}, "{'a': 1}"), (None, ''),
])
def test_messages_can_be_of_any_type(queue, message, text):
    kopf.warn(OBJ, reason=ValueError, message=message)
    event = queue.get_nowait()
    assert (event.reason, event.message) == ("<class 'ValueError'>", text)


def test_exceptions_are_not_needed(queue):
    kopf.exception(OBJ, message='some message')
    event, = drain(queue)
    assert (event.reason, event.message) == ('Error', 'some message')


@pytest.mark.parametrize('objs', [
    pytest.param(kopf.Body(OBJ), id='body'),
    pytest.param([OBJ], id='list'),
    pytest.param((kopf.Body(OBJ),), id='tuple'),
    pytest.param(iter([OBJ]), id='iterator'),
    pytest.param([[OBJ]], id='nested'),
    pytest.param({**OBJ, 'api_version': OBJ['apiVersion'], 'apiVersion': None}, id='to_dict()'),
])
def test_objects_are_taken_in_all_forms(queue, objs):
    kopf.info(objs, reason='SomeReason')
    assert [event.ref for event in drain(queue)] == [REF]


def test_several_objects_have_an_event_each(queue):
    kopf.info([OBJ, OBJ], reason='SomeReason')
    assert len(queue) == 2


def test_objects_of_client_libraries_are_taken(queue):
    pykube = pytest.importorskip('pykube')
    client = pytest.importorskip('kubernetes.client')
    asyncio_client = pytest.importorskip('kubernetes_asyncio.client')
    meta = {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1'}
    kopf.info([
        pykube.Pod(None, {'metadata': meta}),
        pykube.Pod(None, {'apiVersion': 'v1', 'kind': 'Pod', 'metadata': meta}),
        client.V1Pod(api_version='v1', kind='Pod', metadata=client.V1ObjectMeta(**meta)),
        asyncio_client.V1Pod(
            api_version='v1', kind='Pod', metadata=asyncio_client.V1ObjectMeta(**meta)),
    ], reason='SomeReason')
    ref = {'apiVersion': 'v1', 'kind': 'Pod', **meta}
    assert [event.ref for event in drain(queue)] == [ref, ref, ref, ref]


@pytest.mark.parametrize('nothing', [None, [None], []])
def test_nothing_is_posted_about_nothing(queue, nothing):
    kopf.info(nothing, reason='SomeReason')
    assert len(queue) == 0


@pytest.mark.parametrize('wrong', ['text', 123, ['text']])
def test_what_is_no_object_is_refused(queue, wrong):
    with pytest.raises(TypeError, match='Expected an object'):
        kopf.info(wrong, reason='SomeReason')


@pytest.mark.parametrize('api_version', ['v1', 'events.k8s.io/v1'])
@pytest.mark.parametrize('key', ['apiVersion', 'api_version'])
def test_nothing_is_posted_about_events(queue, key, api_version):
    kopf.event({key: api_version, 'kind': 'Event', 'metadata': {'name': 'x'}}, type='', reason='')
    assert len(queue) == 0


@pytest.mark.parametrize('fn', [kopf.info, kopf.warn, kopf.exception])
def test_nothing_is_posted_when_it_is_disabled(queue, settings, fn):
    settings.posting.enabled = False
    kopf.event(OBJ, type='SomeType', reason='SomeReason')
    fn(OBJ, reason='SomeReason')
    assert len(queue) == 0


@pytest.mark.parametrize('level, types', [
    (logging.DEBUG, ['T', 'Normal', 'Warning', 'Warning']),
    (logging.WARNING, ['T', 'Warning', 'Warning']),
    (logging.CRITICAL, ['T']),
])
def test_shortcuts_are_posted_from_the_level_up_and_others_always(queue, settings, level, types):
    settings.posting.level = level
    kopf.event(OBJ, type='T', reason='SomeReason')
    kopf.info(OBJ, reason='SomeReason')
    kopf.warn(OBJ, reason='SomeReason')
    kopf.exception(OBJ, reason='SomeReason')
    assert [event.type for event in drain(queue)] == types


def test_explicit_events_do_not_depend_on_posting_of_the_log(queue, settings):
    settings.posting.loggers = False
    kopf.info(OBJ, reason='SomeReason')
    assert len(queue) == 1


def test_other_queues_can_be_used_in_tests():
    queue = asyncio.Queue()
    token = posting.event_queue_var.set(queue)
    try:
        kopf.info(OBJ, reason='SomeReason', message='some message')
    finally:
        posting.event_queue_var.reset(token)
    event = queue.get_nowait()
    assert (event.type, event.reason, event.message) == ('Normal', 'SomeReason', 'some message')


def test_without_operators_it_is_an_error():
    with pytest.raises(LookupError, match='no operator'):
        kopf.info(OBJ, reason='SomeReason')


def test_without_context_the_only_operator_posts(settings):
    queue = reports.EventQueue(settings)
    reports.log_poster.connect(queue)
    try:
        kopf.info(OBJ, reason='SomeReason')
    finally:
        reports.log_poster.disconnect(queue)
    assert len(queue) == 1


def test_without_context_several_operators_are_ambiguous():
    queues = [reports.EventQueue(kopf.OperatorSettings()) for _ in range(2)]
    for queue in queues:
        reports.log_poster.connect(queue)
    try:
        with pytest.raises(LookupError, match='Several operators'):
            kopf.info(OBJ, reason='SomeReason')
    finally:
        for queue in queues:
            reports.log_poster.disconnect(queue)


# ----- what is posted


def make_event(**changes):
    event = reports.K8sEvent(REF, 'SomeType', 'SomeReason', 'some message', (), WHEN)
    return event._replace(**changes)


def test_payloads_name_the_object_the_reporter_and_the_time(settings):
    assert posting.make_payload(make_event(), settings=settings) == {
        'metadata': {'namespace': 'ns1', 'generateName': 'kopf-event-'},
        'action': 'Handling',
        'type': 'SomeType',
        'reason': 'SomeReason',
        'message': 'some message',
        'reportingComponent': 'kopf',
        'reportingInstance': 'dev',
        'source': {'component': 'kopf'},
        'involvedObject': REF,
        'firstTimestamp': '2020-01-02T03:04:05Z',
        'lastTimestamp': '2020-01-02T03:04:05Z',
        'eventTime': '2020-01-02T03:04:05.678901Z',
    }


def test_payloads_follow_the_settings(settings):
    settings.posting.event_name_prefix = 'my-'
    settings.posting.reporting_component = 'me'
    settings.posting.reporting_instance = 'pod1'
    payload = posting.make_payload(make_event(), settings=settings)
    assert payload['metadata']['generateName'] == 'my-'
    assert payload['reportingComponent'] == 'me'
    assert payload['source'] == {'component': 'me'}
    assert payload['reportingInstance'] == 'pod1'


def test_events_about_objects_without_namespaces_go_to_the_default_one(settings):
    ref = {key: val for key, val in REF.items() if key != 'namespace'}
    payload = posting.make_payload(make_event(ref=ref), settings=settings)
    assert payload['metadata']['namespace'] == 'default'
    assert payload['involvedObject'] == ref
    assert 'eventTime' not in payload  # or Kubernetes 1.20 requires a namespace of the object


# ----- posting


async def test_events_are_posted(operating, server):
    async with operating():
        kopf.info(OBJ, reason='SomeReason', message='some message')
    request, = server.requests
    assert request.method == 'POST'
    assert request.path == '/api/v1/namespaces/ns1/events'
    body, = get_bodies(server)
    assert (body['type'], body['reason'], body['message']) == (
        'Normal', 'SomeReason', 'some message')


async def test_events_of_before_the_start_are_posted(operating, server):
    kopf.info(OBJ, reason='SomeReason', message='early')
    async with operating():
        pass
    assert [body['message'] for body in get_bodies(server)] == ['early']


async def test_events_from_sync_handlers_are_posted(operating, server):
    async with operating():
        await asyncio.to_thread(kopf.info, OBJ, reason='SomeReason', message='from a thread')
    assert [body['message'] for body in get_bodies(server)] == ['from a thread']


async def test_events_from_threads_of_the_user_are_posted(operating, server):
    async with operating():
        thread = threading.Thread(
            target=kopf.info, args=[OBJ], kwargs={'reason': 'SomeReason', 'message': 'alone'})
        thread.start()
        await asyncio.to_thread(thread.join)
    assert [body['message'] for body in get_bodies(server)] == ['alone']


async def test_lines_of_the_log_are_posted(operating, server, settings):
    async with operating():
        kopf.ObjectLogger(body=kopf.Body(OBJ), settings=settings).error("some message")
    body, = get_bodies(server)
    assert (body['type'], body['reason'], body['message']) == (
        'Warning', 'Logging', 'some message')


async def test_the_log_is_not_taken_anymore_after_the_end(operating, server, settings, queue):
    async with operating():
        pass
    kopf.ObjectLogger(body=kopf.Body(OBJ), settings=settings).error("some message")
    assert len(queue) == 0


async def test_failed_posting_is_repeated(operating, server):
    server.script(refuse(503), refuse(500), say({}, status=201))
    async with operating():
        kopf.info(OBJ, reason='SomeReason')
    assert len(server.requests) == 3


async def test_lost_connections_are_repeated(operating, server):
    server.script(drop(), say({}, status=201))
    async with operating():
        kopf.info(OBJ, reason='SomeReason')
    assert len(server.requests) == 2


async def test_backoffs_of_the_call_go_before_the_settings(operating, server, caplog):
    server.script(refuse(503))
    async with operating():
        kopf.info(OBJ, reason='SomeReason', backoffs=())
    assert len(server.requests) == 1
    assert "Failed to post an event: SomeReason: no" in caplog.messages


async def test_tries_are_as_many_as_the_backoffs_and_one(operating, server, caplog):
    server.script(refuse(503))
    async with operating():
        kopf.info(OBJ, reason='SomeReason')
    assert len(server.requests) == 3
    assert "Failed to post an event: SomeReason: no" in caplog.messages


@pytest.mark.parametrize('status', [400, 403, 404, 409, 422])
async def test_refusals_are_not_repeated(operating, server, caplog, status):
    server.script(refuse(status, 'because'))
    async with operating():
        kopf.info(OBJ, reason='SomeReason')
    assert len(server.requests) == 1
    assert "Failed to post an event: SomeReason: because" in caplog.messages


async def test_refusals_of_lines_are_said_once(operating, server, settings, caplog):
    server.script(refuse(403, 'because'))
    async with operating():
        for _ in range(5):
            kopf.ObjectLogger(body=kopf.Body(OBJ), settings=settings).error("some message")
    assert len(server.requests) == 5
    assert caplog.messages.count("Failed to post an event: Logging: because") == 1


async def test_one_failure_does_not_affect_other_events(operating, server):
    server.script(refuse(422), say({}, status=201))
    async with operating():
        kopf.info(OBJ, reason='SomeReason', message='one')
        while not get_bodies(server):
            await asyncio.sleep(0.01)
        kopf.info(OBJ, reason='SomeReason', message='two')
    assert [body['message'] for body in get_bodies(server)] == ['one', 'two']


@testing.virtual_time
async def test_not_more_are_posted_at_once_than_the_limit(settings, queue):
    settings.posting.worker_limit = 2
    settings.queueing.exit_timeout = 0
    async with testing.open_api('sandbox') as sandboxed:
        fault = sandboxed.sandbox.faults.add(
            testing.Fault(action='delay', seconds=60, resource='events*'))
        info = credentials.ConnectionInfo(server=sandboxed.sandbox.url)
        async with api.Client(credentials=info, settings=settings) as client:
            poster = asyncio.create_task(
                posting.poster(client=client, queue=queue))
            for _ in range(10):
                kopf.info({**OBJ, 'metadata': {'name': 'name1', 'namespace': 'default'}},
                          reason='SomeReason')
            await asyncio.sleep(59)
            assert fault.hits == 2
            await tasks.cancel([poster])


async def test_the_end_is_not_held_back_longer_than_the_exit_timeout(operating, server, settings):
    settings.queueing.exit_timeout = 0.1
    server.script(hang())
    loop = asyncio.get_running_loop()
    async with operating():
        kopf.info(OBJ, reason='SomeReason')
        started = loop.time()
    assert loop.time() - started < 1


async def test_calls_do_not_wait_for_the_api(operating, server, settings):
    settings.queueing.exit_timeout = 0
    server.script(hang())
    async with operating():
        for _ in range(1000):
            kopf.info(OBJ, reason='SomeReason')


@pytest.mark.parametrize('post, setting', [
    (lambda **_: kopf.info(OBJ, reason='SomeReason'), 'default_backoffs'),
    (lambda settings: kopf.ObjectLogger(body=kopf.Body(OBJ), settings=settings).error("message"),
     'logging_backoffs'),
])
async def test_calls_and_lines_have_backoffs_of_their_own(
        operating, server, settings, post, setting):
    settings.posting.default_backoffs = settings.posting.logging_backoffs = ()
    setattr(settings.posting, setting, (0.01, 0.01, 0.01))
    server.script(refuse(500))
    async with operating():
        post(settings=settings)
    assert len(server.requests) == 4


class Sink:
    """A client whose API takes everything at once."""

    async def request(self, *_, **__):
        pass


@pytest.mark.looptime
async def test_what_posts_ends_when_it_has_been_idle(settings, queue):
    settings.posting.idle_timeout = 100
    posting_task = asyncio.create_task(
        posting.poster(client=Sink(), queue=queue))
    await asyncio.sleep(0)
    before = asyncio.all_tasks()
    kopf.info(OBJ, reason='SomeReason')
    await asyncio.sleep(99)
    assert asyncio.all_tasks() - before
    await asyncio.sleep(2)
    assert not asyncio.all_tasks() - before
    posting_task.cancel()
    await asyncio.wait([posting_task])
