import asyncio
import json
import logging
import os
import threading

import pytest

import kopf
from kopf._core.actions import loggers

NAMESPACED = {
    'apiVersion': 'example.com/v1', 'kind': 'Thing',
    'metadata': {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1', 'labels': {'a': 'b'}},
}
CLUSTERED = {
    'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {'name': 'name1', 'uid': 'uid1'},
}
FORMATS = [*kopf.LogFormat, 'custom: %(message)s']


@pytest.fixture(autouse=True)
def _restored():
    affected = [logging.getLogger(name) for name in (None, 'asyncio', 'aiohttp')]
    levels = [logger.level for logger in affected]
    handlers = list(affected[0].handlers)
    yield
    affected[0].handlers[:] = handlers
    for logger, level in zip(affected, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture()
def read(capsys):
    """The lines that are printed to the log by now."""
    return lambda: capsys.readouterr().err.splitlines()


@pytest.fixture()
def make():
    def make(raw=NAMESPACED, cls=kopf.ObjectLogger):
        return cls(body=kopf.Body(raw), settings=kopf.OperatorSettings())
    return make


def test_plain_lines_are_only_messages(read, make):
    kopf.configure(log_format=kopf.LogFormat.PLAIN)
    make().info("hello, %s", "world")
    assert read() == ["hello, world"]


def test_full_lines_have_the_time_the_logger_and_the_level(read, make):
    kopf.configure(log_format=kopf.LogFormat.FULL)
    make().warning("hello")
    line, = read()
    assert line[0] == '['
    assert line[24:] == "] kopf.objects         [WARNING ] hello"


def test_templates_of_python_can_be_used_as_formats(read, make):
    kopf.configure(log_format='%(levelname)s: %(message)s', log_prefix=True)
    make().info("hello")
    assert read() == ["INFO: [ns1/name1] hello"]


def test_the_default_format_is_full_without_prefixes(read, make):
    kopf.configure()
    make().info("hello")
    assert read()[0].endswith("] hello")


@pytest.mark.parametrize('log_prefix', [True, None])
def test_namespaced_objects_are_named_with_their_namespaces(read, make, log_prefix):
    kopf.configure(log_format=kopf.LogFormat.PLAIN, log_prefix=log_prefix)
    make(NAMESPACED).info("hello")
    assert read() == ["[ns1/name1] hello"]


def test_clustered_objects_are_named_alone(read, make):
    kopf.configure(log_format=kopf.LogFormat.PLAIN, log_prefix=True)
    make(CLUSTERED).info("hello")
    assert read() == ["[name1] hello"]


@pytest.mark.parametrize('log_format', FORMATS)
def test_lines_not_about_objects_have_no_prefix(read, log_format):
    kopf.configure(log_format=log_format, log_prefix=True)
    logging.getLogger('some').info("hello")
    line, = read()
    assert 'hello' in line
    assert '] hello' not in line.removeprefix('[').replace('[INFO    ] hello', '')


def test_tracebacks_follow_the_message(read, make):
    kopf.configure(log_format=kopf.LogFormat.PLAIN, log_prefix=True)
    try:
        raise ValueError("boo!")
    except ValueError:
        make().exception("hello")
    lines = read()
    assert lines[0] == "[ns1/name1] hello"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: boo!"


def test_json_lines_have_the_object_the_severity_and_the_time(read, make):
    kopf.configure(log_format=kopf.LogFormat.JSON)
    make().info("hello, %s", "world")
    line = json.loads(read()[0])
    assert line.pop('timestamp').endswith('+00:00')
    assert line == {
        'message': "hello, world",
        'severity': 'info',
        'object': {
            'apiVersion': 'example.com/v1', 'kind': 'Thing',
            'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1',
        },
    }


def test_json_lines_not_about_objects_have_no_object(read):
    kopf.configure(log_format=kopf.LogFormat.JSON)
    logging.getLogger('some').info("hello")
    assert set(json.loads(read()[0])) == {'message', 'severity', 'timestamp'}


def test_the_field_of_json_for_the_object_can_be_chosen(read, make):
    kopf.configure(log_format=kopf.LogFormat.JSON, log_refkey='k8s-obj')
    make().info("hello")
    line = json.loads(read()[0])
    assert line['k8s-obj']['name'] == 'name1'
    assert 'object' not in line


@pytest.mark.parametrize('log_prefix, message', [
    (None, "hello"),
    (False, "hello"),
    (True, "[ns1/name1] hello"),
])
def test_json_messages_have_prefixes_only_if_asked_for(read, make, log_prefix, message):
    kopf.configure(log_format=kopf.LogFormat.JSON, log_prefix=log_prefix)
    make().info("hello")
    assert json.loads(read()[0])['message'] == message


@pytest.mark.parametrize('level, severity', [
    (5, 'debug'), (10, 'debug'), (15, 'info'), (20, 'info'), (30, 'warn'), (40, 'error'),
    (50, 'fatal'), (99, 'fatal'),
])
def test_severities_of_json(read, make, level, severity):
    kopf.configure(log_format=kopf.LogFormat.JSON, verbose=True)
    logging.getLogger().setLevel(1)
    make().log(level, "hello")
    assert json.loads(read()[0])['severity'] == severity


def test_tracebacks_and_extras_are_fields_of_json(read, make):
    kopf.configure(log_format=kopf.LogFormat.JSON)
    try:
        raise ValueError("boo!")
    except ValueError:
        make().exception("hello", extra={'more': 123})
    line = json.loads(read()[0])
    assert line['exc_info'].endswith("ValueError: boo!")
    assert line['more'] == 123


@pytest.mark.parametrize('options, levels', [
    ({}, ['info', 'warning', 'error']),
    ({'quiet': True}, ['warning', 'error']),
    ({'verbose': True}, ['debug', 'info', 'warning', 'error']),
    ({'debug': True}, ['debug', 'info', 'warning', 'error']),
])
def test_levels_of_own_messages(read, make, options, levels):
    kopf.configure(log_format=kopf.LogFormat.PLAIN, **options)
    for level in ['debug', 'info', 'warning', 'error']:
        getattr(make(), level)(level)
    assert read() == levels


@pytest.mark.parametrize('options, shown', [
    ({}, ['aiohttp: info', 'asyncio: error']),
    ({'verbose': True}, ['aiohttp: info', 'asyncio: error']),
    ({'debug': True}, [
        'aiohttp: debug', 'aiohttp: info', 'asyncio: debug', 'asyncio: info', 'asyncio: error']),
])
def test_the_insides_of_the_libraries_are_for_debugging(read, options, shown):
    kopf.configure(log_format=kopf.LogFormat.PLAIN, **options)
    for name, levels in [('aiohttp', ['debug', 'info']), ('asyncio', ['debug', 'info', 'error'])]:
        for level in levels:
            getattr(logging.getLogger(name), level)(f'{name}: {level}')
    assert read() == shown


def test_configuring_again_replaces_only_its_own_handler(read, make):
    foreign = logging.NullHandler()
    logging.getLogger().addHandler(foreign)
    kopf.configure(log_format=kopf.LogFormat.PLAIN)
    kopf.configure(log_format=kopf.LogFormat.PLAIN)
    make().info("hello")
    assert read() == ["hello"]
    assert foreign in logging.getLogger().handlers


def test_records_have_the_object_and_the_settings(make, caplog):
    logger = make()
    logger.error("hello", extra={'more': 123})
    record, = caplog.records
    assert record.name == 'kopf.objects'
    assert record.k8s_ref['name'] == 'name1'
    assert record.k8s_skip is False
    assert isinstance(record.settings, kopf.OperatorSettings)
    assert record.more == 123


def test_records_of_local_loggers_are_to_be_skipped(make, caplog):
    make(cls=kopf.LocalObjectLogger).error("hello")
    assert caplog.records[0].k8s_skip is True


def test_records_name_the_line_of_the_call(make, caplog):
    make().error("hello")
    assert caplog.records[0].pathname == __file__


def test_later_changes_of_the_object_do_not_change_who_it_was(caplog):
    raw = {'metadata': {'name': 'name1', 'namespace': 'ns1'}}
    logger = kopf.ObjectLogger(body=kopf.Body(raw), settings=kopf.OperatorSettings())
    logger.error("one")
    raw['metadata']['name'] = 'name2'
    logger.error("two")
    assert [record.k8s_ref['name'] for record in caplog.records] == ['name1', 'name1']


def test_nothing_is_built_for_lines_that_nobody_reads():
    class Untouchable(dict):
        def get(self, *_):
            raise AssertionError("It should not be used.")

    logger = loggers.ObjectLogger(
        body=kopf.Body(Untouchable()), settings=kopf.OperatorSettings())
    logging.getLogger().setLevel(logging.INFO)
    logger.debug("hello")


@pytest.mark.parametrize('kwargs', [{}, {'extra': {'x': 1}}, {'stack_info': True}])
@pytest.mark.parametrize('method', ['debug', 'info', 'warning', 'error'])
def test_records_tell_where_they_come_from(make, caplog, method, kwargs):
    caplog.set_level(logging.DEBUG)
    getattr(make(), method)("hello, %s", "world", **kwargs)
    record, = caplog.records
    assert record.funcName == 'test_records_tell_where_they_come_from'
    assert record.filename == 'test_loggers.py'
    assert record.getMessage() == "hello, world"


def test_factories_of_records_are_respected(make, caplog, monkeypatch):
    class Record(logging.LogRecord):
        pass

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(logging, '_logRecordFactory', Record)
    make().info("hello")
    record, = caplog.records
    assert isinstance(record, Record)
    assert record.funcName == 'test_factories_of_records_are_respected'


@pytest.mark.parametrize('surroundings', ['main', 'task', 'thread'])
def test_quick_records_have_the_same_attributes_as_others(make, caplog, surroundings):
    caplog.set_level(logging.INFO)
    logger = make()

    def log():
        for kwargs in ({}, {}, {'extra': {}}):  # the first one, the quick one, and a regular one
            logger.info("hello", **kwargs)

    async def work():
        log()

    if surroundings == 'main':
        log()
    elif surroundings == 'task':
        asyncio.run(work())
    else:
        thread = threading.Thread(target=log, name='own')
        thread.start()
        thread.join()
    first, quick, regular = [
        {key: value for key, value in vars(record).items() if not callable(value)}
        for record in caplog.records]
    times = {'asctime', 'created', 'msecs', 'relativeCreated'}
    assert {key: first[key] for key in first.keys() - times} == {
        key: regular[key] for key in regular.keys() - times}
    assert {key: quick[key] for key in quick.keys() - times} == {
        key: regular[key] for key in regular.keys() - times}
    assert first['created'] <= quick['created'] <= regular['created']
    assert first['relativeCreated'] <= quick['relativeCreated'] <= regular['relativeCreated']
    assert quick['msecs'] == int(quick['created'] % 1 * 1000)


def test_quick_records_name_their_own_lines_and_functions(make, caplog):
    caplog.set_level(logging.INFO)
    logger = make()

    def one():
        logger.info("1")

    def two():
        logger.info("2")

    for fn in (one, two, one):
        fn()
    line = one.__code__.co_firstlineno
    assert [(record.msg, record.funcName, record.lineno - line) for record in caplog.records] == [
        ('1', 'one', 1), ('2', 'two', 4), ('1', 'one', 1)]


def test_quick_records_of_generated_code_name_their_own_lines(make, caplog):
    caplog.set_level(logging.INFO)
    logger = make()
    for lines in range(10):  # the memory of the code of one is reused for the next one
        namespace = {}
        exec('\n' * lines + 'def fn(logger): logger.info("hello")', namespace)
        namespace.pop('fn')(logger)
    assert [record.lineno for record in caplog.records] == [*range(1, 11)]


@pytest.mark.filterwarnings('ignore:.* is multi-threaded:DeprecationWarning')  # by other tests
@pytest.mark.skipif(not hasattr(os, 'fork'), reason="there are no forks")
def test_records_of_forked_processes_have_their_own_numbers(make, capfd):
    loggers.configure(log_format='%(process)d')
    logger = make()
    logger.info("hello")
    if not (child := os.fork()):
        logger.info("hello")
        os._exit(0)
    os.waitpid(child, 0)
    assert capfd.readouterr().err.split() == [str(os.getpid()), str(child)]


def test_formats_with_unknown_fields_are_explained(make, capsys):
    loggers.configure(log_format='%(unknown)s')
    make().info("hello")
    assert "Formatting field not found in record: 'unknown'" in capsys.readouterr().err
