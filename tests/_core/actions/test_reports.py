import asyncio
import datetime
import logging

import pytest

import kopf
from kopf._core.actions import reports

REF = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'name': 'n', 'namespace': 'ns', 'uid': 'u'}
WHEN = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)


def make_event(message=''):
    return reports.K8sEvent(REF, 'Type', 'Reason', message, (), WHEN)


def make_record(message='hello', *, level=logging.INFO, ref=REF, **attrs):
    record = logging.LogRecord('kopf.objects', level, __file__, 1, message, (), None)
    record.__dict__.update({'k8s_ref': ref, 'k8s_skip': False, **attrs})
    return record


@pytest.fixture()
def settings():
    return kopf.OperatorSettings()


@pytest.fixture()
def queue(settings):
    return reports.EventQueue(settings)


@pytest.fixture()
def connected(queue):
    reports.log_poster.connect(queue)
    yield queue
    reports.log_poster.disconnect(queue)


@pytest.fixture()
def logger(settings, caplog):
    caplog.set_level(logging.DEBUG)
    raw = {**REF, 'metadata': {'name': 'n', 'namespace': 'ns', 'uid': 'u'}}
    return kopf.ObjectLogger(body=kopf.Body(raw), settings=settings)


def drain(queue):
    return [event.message for event in iter(queue.get_nowait, None)]


def test_explicit_events_go_before_lines_of_the_log(queue):
    queue.put_record(make_record('logged'))
    queue.put_nowait(make_event('explicit'))
    assert drain(queue) == ['explicit', 'logged']


def test_lines_become_events_with_their_level_and_time(queue, settings):
    record = make_record('hello', level=logging.WARNING)
    record.created = WHEN.timestamp()
    queue.put_record(record)
    assert queue.get_nowait() == reports.K8sEvent(
        REF, 'Warning', 'Logging', 'hello', settings.posting.logging_backoffs, WHEN)


def test_lines_come_with_their_tracebacks(queue):
    try:
        raise ValueError("boo!")
    except ValueError as e:
        queue.put_record(make_record('hello', exc_info=(type(e), e, e.__traceback__)))
    message = queue.get_nowait().message
    assert message.startswith("hello\nTraceback (most recent call last):\n")
    assert message.endswith("\nValueError: boo!")


@pytest.mark.parametrize('level, type_', [
    (10, 'Normal'), (20, 'Normal'), (25, 'Warning'), (30, 'Warning'), (40, 'Warning'),
    (50, 'Warning'),
])
def test_types_of_events_by_levels_of_lines(queue, settings, level, type_):
    settings.posting.level = logging.DEBUG
    queue.put_record(make_record('hello', level=level))
    assert queue.get_nowait().type == type_


def test_lines_about_one_object_are_limited(queue, caplog):
    for _ in range(100):
        queue.put_record(make_record())
    assert len(queue) == 25
    assert queue.dropped == 75
    assert [r.message for r in caplog.records if r.name == reports.__name__] == [
        "Some lines are not posted as events: there are too many for one object."]


def test_lines_about_other_objects_are_not_limited_by_that(queue):
    for i in range(100):
        queue.put_record(make_record(ref={**REF, 'uid': str(i)}))
    assert len(queue) == 100


def test_dropped_lines_are_said_with_the_next_one_posted(queue, monkeypatch):
    monkeypatch.setattr(reports.time, 'monotonic', lambda: 0)
    for _ in range(30):
        queue.put_record(make_record())
    drain(queue)
    monkeypatch.setattr(reports.time, 'monotonic', lambda: 301)
    queue.put_record(make_record())
    assert drain(queue) == ['hello (and 5 lines before it, not posted)']


def test_explicit_events_are_not_limited_per_object(queue):
    for _ in range(1000):
        queue.put_nowait(make_event())
    assert len(queue) == 1000


def test_waiting_lines_are_limited_in_total(queue):
    for i in range(reports.LOGGING_LIMIT + 5):
        queue.put_record(make_record(ref={**REF, 'uid': str(i)}))
    assert len(queue) == reports.LOGGING_LIMIT
    assert queue.dropped == 5


def test_waiting_events_are_limited_in_total(queue):
    for _ in range(reports.EXPLICIT_LIMIT + 5):
        queue.put_nowait(make_event())
    assert len(queue) == reports.EXPLICIT_LIMIT
    assert queue.dropped == 5


@pytest.mark.parametrize('api_version', ['v1', 'events.k8s.io/v1', 'events.k8s.io/v1beta1'])
def test_lines_about_events_are_not_posted(queue, api_version):
    queue.put_record(make_record(ref={**REF, 'kind': 'Event', 'apiVersion': api_version}))
    assert len(queue) == 0


def test_kinds_that_are_only_called_events_are_posted(queue):
    queue.put_record(make_record(ref={**REF, 'kind': 'Event'}))
    assert len(queue) == 1


def test_everything_that_waits_is_announced_when_attached(queue):
    calls = []
    queue.put_nowait(make_event())
    queue.put_record(make_record())
    queue.attach(lambda: calls.append(1))
    queue.put_nowait(make_event())
    assert len(calls) == 3


def test_lines_of_objects_are_taken_from_the_log(connected, logger):
    logger.info("hello")
    assert drain(connected) == ['hello']


@pytest.mark.parametrize('level, posted', [
    (logging.DEBUG, ['debug', 'info', 'warning']),
    (logging.INFO, ['info', 'warning']),
    (logging.WARNING, ['warning']),
])
def test_lines_are_posted_from_the_level_up(connected, logger, settings, level, posted):
    settings.posting.level = level
    logger.debug('debug')
    logger.info('info')
    logger.warning('warning')
    assert drain(connected) == posted


def test_lines_are_not_posted_with_loggers_off(connected, logger, settings):
    settings.posting.loggers = False
    logger.info("hello")
    assert len(connected) == 0


def test_lines_are_not_posted_with_posting_off(connected, logger, settings):
    settings.posting.enabled = False
    logger.info("hello")
    assert len(connected) == 0


def test_lines_of_local_loggers_are_not_posted(connected, settings):
    kopf.LocalObjectLogger(body=kopf.Body({}), settings=settings).error("hello")
    assert len(connected) == 0


def test_lines_of_other_operators_are_not_taken(connected):
    other = kopf.OperatorSettings()
    kopf.ObjectLogger(body=kopf.Body({}), settings=other).error("hello")
    assert len(connected) == 0


async def test_lines_are_taken_from_threads(connected, logger):
    await asyncio.to_thread(logger.info, "hello")
    assert drain(connected) == ['hello']


def test_the_log_is_left_alone_when_no_operator_is_connected(queue):
    reports.log_poster.connect(queue)
    assert reports.log_poster in logging.getLogger('kopf.objects').handlers
    reports.log_poster.disconnect(queue)
    assert reports.log_poster not in logging.getLogger('kopf.objects').handlers


def test_errors_in_formatting_do_not_reach_the_caller(connected, logger, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger('kopf.objects'), 'propagate', False)
    logger.error("%d", "not a number")
    assert 'TypeError' in capsys.readouterr().err
    assert len(connected) == 0
