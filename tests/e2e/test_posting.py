"""
Lines of the log and explicit events, as they are seen in the cluster.
"""

import asyncio
import threading

import kopf
from tests.e2e.kubes import EVENTS


async def test_lines_of_handlers_are_in_the_events_of_the_object(kube, kind, operator):
    op = operator('''
@kopf.on.create(*KIND)
def fn(logger, **_):
    logger.debug("not this")
    logger.info("hello")
    logger.warning("careful")
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await op.wait_for("Creation is processed")
    events = await kube.wait_events(obj, 4)
    assert [(event['type'], event['reason'], event['message']) for event in events] == [
        ('Normal', 'Logging', "hello"),
        ('Warning', 'Logging', "careful"),
        ('Normal', 'Logging', "Handler 'fn' succeeded."),
        ('Normal', 'Logging', "Creation is processed: 1 succeeded; 0 failed."),
    ]


async def test_errors_of_handlers_are_in_the_events_of_the_object(kube, kind, operator):
    operator('''
@kopf.on.create(*KIND)
def fn(retry, **_):
    raise [kopf.TemporaryError("wait!", delay=0.1), kopf.PermanentError("never!")][retry]
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    events = await kube.wait_events(obj, 3)
    assert [(event['type'], event['message']) for event in events] == [
        ('Warning', "Handler 'fn' failed temporarily: wait! (will try again in 0.1 seconds)"),
        ('Warning', "Handler 'fn' failed permanently: never!"),
        ('Normal', "Creation is processed: 0 succeeded; 1 failed."),
    ]


async def test_lines_are_not_posted_if_so_set(kube, kind, operator):
    op = operator('''
@kopf.on.startup()
def configure(settings, **_):
    settings.posting.loggers = False

@kopf.on.create(*KIND)
def fn(logger, body, **_):
    logger.info("hello")
    kopf.info(body, reason='Explicit')
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await op.wait_for("Creation is processed")
    events = await kube.wait_events(obj, 1)
    op.stop()
    assert [event['reason'] for event in await kube.list_events(obj)] == ['Explicit']
    assert len(events) == 1


async def test_nothing_is_posted_if_disabled(kube, kind, operator):
    op = operator('''
@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.on.create(*KIND)
def fn(logger, body, **_):
    logger.info("hello")
    kopf.warn(body, reason='Explicit')
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await op.wait_for("Creation is processed")
    op.stop()
    assert await kube.list_events(obj) == []


async def test_lines_of_event_handlers_are_not_posted(kube, kind, operator):
    op = operator('''
@kopf.on.event(*KIND)
def fn(logger, **_):
    logger.info("hello")
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await op.wait_for("hello")
    op.stop()
    assert await kube.list_events(obj) == []


async def test_explicit_events_are_as_described(kube, kind, operator):
    op = operator('''
@kopf.on.create(*KIND)
async def fn(body, **_):
    kopf.event(body, type='SomeType', reason='SomeReason', message='some message')
    kopf.warn(body, reason='LongReason', message='a' * 2000)
    kopf.info(body, reason='WideReason', message='\\u20ac' * 2000)
    try:
        raise ValueError("boo!")
    except ValueError:
        kopf.exception(body)
''', '--quiet', kind=kind, scope=('--all-namespaces', '--standalone'))
    obj = await kube.create(kind, 'obj')
    events = await kube.wait_events(obj, 4)
    op.stop()
    by_reason = {event['reason']: event for event in events}
    assert by_reason['SomeReason']['type'] == 'SomeType'
    assert by_reason['SomeReason']['message'] == 'some message'
    assert by_reason['SomeReason']['metadata']['name'].startswith('kopf-event-')
    assert by_reason['SomeReason']['source'] == {'component': 'kopf'}
    assert by_reason['SomeReason']['involvedObject'] == {
        'apiVersion': kind.api_version, 'kind': kind.kind,
        'name': 'obj', 'namespace': 'default', 'uid': obj['metadata']['uid'],
    }
    assert len(by_reason['LongReason']['message']) == 1024
    assert len(by_reason['WideReason']['message'].encode()) <= 1024
    assert by_reason['ValueError']['type'] == 'Warning'
    assert by_reason['ValueError']['message'] == 'boo!'


async def test_events_about_objects_without_namespaces_are_in_the_default_one(
        kube, make_kind, operator):
    kind = await make_kind(namespaced=False)
    op = operator('''
@kopf.on.create(*KIND)
def fn(body, **_):
    kopf.info(body, reason='SomeReason')
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await op.wait_for("Creation is processed")
    events = await kube.wait_events(obj, 1)
    assert events[0]['metadata']['namespace'] == 'default'


async def test_events_about_objects_without_namespaces_are_shown_by_kubectl(
        kube, make_kind, operator):
    kind = await make_kind(namespaced=False)
    operator('''
@kopf.on.create(*KIND)
def fn(body, **_):
    kopf.info(body, reason='SomeReason')
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await kube.wait_events(obj, 1)
    shown = await kube.list_objects(EVENTS, field_selector=(  # as `kubectl describe` asks
        'involvedObject.name=obj,involvedObject.namespace=,'
        f'involvedObject.kind={kind.kind},involvedObject.uid={obj["metadata"]["uid"]}'))
    assert 'SomeReason' in {event['reason'] for event in shown}


async def test_floods_of_lines_are_cut_and_said(kube, kind, operator):
    op = operator('''
@kopf.on.create(*KIND)
def fn(logger, body, **_):
    for i in range(100):
        logger.info(f"line {i}")
    for i in range(30):
        kopf.info(body, reason='Explicit', message=str(i))
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await op.wait_for("Creation is processed")
    assert len(op.find("Some lines are not posted as events")) == 1
    async with asyncio.timeout(30):  # at the exit, only some seconds remain for them
        while len(await kube.list_events(obj)) < 25 + 30:
            await asyncio.sleep(0.1)
    op.stop()
    reasons = [event['reason'] for event in await kube.list_events(obj)]
    assert reasons.count('Logging') == 25
    assert reasons.count('Explicit') == 30
    assert op.find("In total, 77 events were dropped")


async def test_events_of_the_last_moment_are_posted(kube, kind, operator):
    op = operator('''
import time

@kopf.on.create(*KIND)
def fn(body, **_):
    FN.append(body)

FN = []

@kopf.on.cleanup()
def cleanup(**_):
    kopf.info(FN, reason='Goodbye')
''', kind=kind)
    obj = await kube.create(kind, 'obj')
    await op.wait_for("Creation is processed")
    op.stop()
    assert 'Goodbye' in [event['reason'] for event in await kube.list_events(obj)]


async def test_events_are_posted_from_wherever_they_are_asked_for(
        kube, kind, embedded, settings):
    settings.posting.enabled = True
    settings.posting.loggers = False
    others = [await kube.create(kind, f'other{index}') for index in range(2)]
    tasks = set()

    async def post_later(body):
        await asyncio.sleep(0)
        kopf.info(body, reason='Task', message="some message")

    @kopf.on.create(*kind.selector, when=lambda name, **_: name == 'obj')
    def sync_fn(body, **_):
        kopf.info(body, reason='Sync', message="some message")
        thread = threading.Thread(
            target=kopf.info, args=[body], kwargs={'reason': 'Thread', 'message': "some message"})
        thread.start()
        thread.join()

    @kopf.on.create(*kind.selector, when=lambda name, **_: name == 'obj')
    async def async_fn(body, **_):
        kopf.info(body, reason='Async', message="some message")
        kopf.info(others, reason='Others', message="some message")
        kopf.info({
            'api_version': body['apiVersion'], 'kind': body['kind'],
            'metadata': {'name': body.metadata.name, 'namespace': 'default', 'uid': body.meta.uid,
                         'creation_timestamp': None},
        }, reason='SnakeCase', message="some message")
        tasks.add(asyncio.create_task(post_later(body)))

    embedded()
    obj = await kube.create(kind, 'obj')
    events = await kube.wait_events(obj, 5)
    assert {event['reason'] for event in events} == {
        'Sync', 'Thread', 'Async', 'SnakeCase', 'Task'}
    for other in others:
        events = await kube.wait_events(other, 1)
        assert [event['reason'] for event in events] == ['Others']


async def test_nothing_is_posted_about_events(kube, kind, embedded, settings, journal, caplog):
    caplog.set_level('INFO')
    settings.posting.enabled = True
    marker = kind.plural

    @kopf.on.create('v1', 'events', field='involvedObject.name', value=marker)
    def event_fn(body, logger, **_):
        logger.warning("A line about an event.")
        kopf.event(body, type='Normal', reason='Explicit')
        journal.append(body['reason'])

    @kopf.on.create(*kind.selector)
    def create_fn(body, **_):
        kopf.info(body, reason='First')
        journal.append('created')

    embedded()
    obj = await kube.create(kind, marker)
    await journal.wait('created', 'First', 'Logging', 'Logging')
    await asyncio.sleep(0.3)
    assert journal.count() == {'created': 1, 'First': 1, 'Logging': 2}
    for event in await kube.list_events(obj):
        assert await kube.list_events(event) == []
