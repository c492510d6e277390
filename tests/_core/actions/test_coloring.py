import logging
import re

import pytest

from kopf._core.actions import loggers


@pytest.fixture()
def formatter():
    return loggers.make_formatter(color=True, log_prefix=None)


def make(text, level=logging.INFO, name=None, **extra):
    record = logging.LogRecord('kopf.objects', level, __file__, 1, text, (), None)
    if name is not None:
        record.k8s_ref = {'name': name, 'namespace': 'ns'}
    record.__dict__.update(extra)
    return record


def strip(text):
    return re.sub(r'\033\[[0-9;]*m', '', text)


def test_lines_have_the_time_the_level_the_object_and_the_message(formatter):
    line = formatter.format(make("Hello!", name='obj'))
    assert re.fullmatch(r'\d\d:\d\d:\d\d,\d\d\d INFO     ns/obj Hello!', strip(line))


def test_messages_are_aligned_to_the_longest_name(formatter):
    names = ['longest-name', 'obj', None]
    lines = [strip(formatter.format(make("Hello!", name=name))) for name in names]
    assert len({line.index("Hello!") for line in lines}) == 1


def test_very_long_names_do_not_move_the_others(formatter):
    formatter.format(make("Hello!", name='x' * 200))
    assert len(strip(formatter.format(make("Hello!", name='obj')))) < 80


@pytest.mark.parametrize('level, color', [
    (logging.DEBUG, '2'), (logging.INFO, '32'), (logging.WARNING, '33'), (logging.ERROR, '31;1'),
    (logging.CRITICAL, '31;1')])
def test_levels_have_colours(formatter, level, color):
    line = formatter.format(make("Hello!", level=level))
    assert f'\033[{color}m{logging.getLevelName(level)}' in line


def test_names_have_a_colour(formatter):
    assert '\033[36mns/obj\033[0m' in formatter.format(make("Hello!", name='obj'))


def test_diffs_have_colours(formatter):
    line = formatter.format(make(
        "Updating diff: (('add', ('a',), None, 1), ('remove', ('b',), 1, None), "
        "('change', ('c',), 'add', 'remove'))", level=logging.DEBUG))
    assert "('\033[32madd\033[0m', (" in line
    assert "('\033[31mremove\033[0m', (" in line
    assert "('\033[33mchange\033[0m', (" in line
    assert "'add', 'remove'))" in line


def test_names_can_be_left_out():
    formatter = loggers.make_formatter(color=True, log_prefix=False)
    assert strip(formatter.format(make("Hello!", name='obj'))).endswith('INFO     Hello!')


def test_errors_are_shown(formatter):
    try:
        raise ValueError("boo")
    except ValueError as e:
        line = formatter.format(make("Hello!", exc_info=(type(e), e, e.__traceback__)))
    assert "ValueError: boo" in line


@pytest.mark.parametrize('log_format', [
    loggers.LogFormat.PLAIN, loggers.LogFormat.JSON, '%(message)s'])
def test_other_formats_are_never_coloured(log_format):
    formatter = loggers.make_formatter(log_format, color=True, log_prefix=None)
    assert '\033' not in formatter.format(make("Hello!", name='obj'))


def test_without_colours_lines_are_whole():
    line = loggers.make_formatter(log_prefix=None).format(make("Hello!", name='obj'))
    assert re.fullmatch(r'\[.{23}\] kopf.objects         \[INFO    \] \[ns/obj\] Hello!', line)
