"""
What is where; which floors import which is checked by import-linter, see pyproject.toml.
"""
import ast
import pathlib

import kopf

ROOT = pathlib.Path(kopf.__file__).parent


def get_imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


def test_nothing_else_is_public():
    names = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == '.py'}
    assert {name for name in names if not name.startswith('_')} == {
        'cli', 'on', 'testing', 'lifecycles'}


def test_only_clients_talk_to_the_api():
    paths = {
        path.relative_to(ROOT).as_posix()
        for folder in ('_cogs', '_core') for path in (ROOT / folder).rglob('*.py')
        if any(name.split('.')[0] in {'aiohttp', 'requests'} for name in get_imports(path))}
    assert paths
    assert {path for path in paths if not path.startswith('_cogs/clients/')} == {
        '_cogs/structs/credentials.py'}  # which makes sessions out of what it has
