"""
What is where; which layers import which is checked by import-linter, see pyproject.toml.
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
        '_cogs/serving/inbound.py',  # which serves
        '_cogs/structs/credentials.py'}  # which makes sessions out of what it has


def test_handlers_are_called_from_one_place_only():
    calls = {
        (path.relative_to(ROOT).as_posix(), name)
        for folder in ('_core', '_kits') for path in (ROOT / folder).rglob('*.py')
        for name in iter_calls_of_handlers(path)}
    assert calls == {
        ('_core/actions/execution.py', 'invocation.invoke'),
        ('_core/actions/invocation.py', 'handler.fn'),
    }


def iter_calls_of_handlers(path):
    """What is called, passed, or imported that could be used to call a handler."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(value=ast.Name(id='invocation'), attr='invoke'):
                yield 'invocation.invoke'
            case ast.ImportFrom(module='kopf._core.actions.invocation'):
                yield from (alias.name for alias in node.names if alias.name == 'invoke')
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr='fn')):
                yield f'{name}.fn'


def test_no_attribute_of_another_object_is_assigned_in_the_core():
    """Each state has one owner: others change it only by the methods of the owner."""
    found = {
        (path.relative_to(ROOT).as_posix(), ast.unparse(target))
        for path in (ROOT / '_core').rglob('*.py')
        for target in iter_assigned(path)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) != 'self'}
    assert {(path, target) for path, target in found if not target.startswith('settings.')} == {
        ('_core/path/objects.py', '_phase.successors'),  # once, where the phases are defined
    }


def iter_assigned(path):
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from targets
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                yield target
