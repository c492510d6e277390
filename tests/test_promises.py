"""
The promises of the documentation, each with the tests that show it: ``tests/promises/*.md``.

A row of a table has a promise and its tests, or a dash and the reason why there can be none.
"""
import ast
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator

import pytest

import kopf

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted(ROOT.glob('tests/promises/*.md'))
HEADER = ['promise', 'test']

files = pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)


def iter_rows(path: pathlib.Path) -> Iterator[list[str]]:
    """The cells of the tables, without the lines of dashes below the headers."""
    for line in path.read_text(encoding='utf-8').splitlines():
        if line.startswith('|') and not re.fullmatch(r'[|\s:-]+', line):
            yield [cell.strip() for cell in re.split(r'(?<!\\)\|', line.strip())[1:-1]]


def iter_promises(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    for row in iter_rows(path):
        if row != HEADER:
            promise, tests = row
            yield promise, tests


def split_tests(tests: str) -> list[str]:
    return [name.strip().strip('`') for name in tests.split('<br>')]


@functools.cache
def get_names(path: pathlib.Path) -> frozenset[str]:
    """The names of all the tests in the file."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(node.name for node in functions if node.name.startswith('test_'))


def has_test(name: str) -> bool:
    path, _, test = name.partition('::')
    return (ROOT / path).is_file() and test in get_names(ROOT / path)


def test_there_are_promises():
    assert FILES


@files
def test_tables_have_promises_and_tests(path):
    rows = list(iter_rows(path))
    assert HEADER in rows
    assert [row for row in rows if len(row) != len(HEADER)] == []


@files
def test_every_promise_has_a_test_or_a_reason(path):
    assert [
        promise for promise, tests in iter_promises(path)
        if not promise or not re.match(r'`?(tests|examples)/|— \w', tests)] == []


@files
def test_the_named_tests_exist(path):
    assert [
        name for _, tests in iter_promises(path) if not tests.startswith('—')
        for name in split_tests(tests) if not has_test(name)] == []


@files
def test_no_promise_is_told_twice(path):
    promises = [promise for promise, _ in iter_promises(path)]
    assert [promise for promise in promises if promises.count(promise) > 1] == []


def iter_settings() -> Iterator[str]:
    settings = kopf.OperatorSettings()
    for section in dataclasses.fields(settings):
        cls = type(getattr(settings, section.name))
        names = [field.name for field in dataclasses.fields(cls)]
        names += [name for name, value in vars(cls).items()
                  if isinstance(value, property) and value.fset is not None]
        yield from (f'{section.name}.{name}' for name in names if not name.startswith('_'))


def test_every_setting_has_the_tests_that_show_what_it_does():
    told = [promise.partition(':')[0].strip('`')
            for promise, _ in iter_promises(ROOT / 'tests/promises/settings.md')]
    assert sorted(told) == sorted(iter_settings())
