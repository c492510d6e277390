"""
Operators of several files: the modules are imported once, but each registry gets their handlers.
"""
import importlib
import sys

import pytest

import kopf
from kopf._kits.testing import operators

FILES = {
    'parts/__init__.py': '',
    'parts/first.py': """
        from . import second
        from alone import NUMBER
        @kopf.on.create('kopfexamples')
        def first_fn(**_): pass
        """,
    'parts/second.py': """
        @kopf.on.create('kopfexamples')
        def second_fn(**_): pass
        """,
    'parts/third.py': """
        @kopf.on.create('kopfexamples')
        def third_fn(**_): pass
        """,
    'alone.py': """
        NUMBER = 1
        @kopf.on.create('kopfexamples')
        def alone_fn(**_): pass
        """,
    'plain.py': """
        import parts.first
        @kopf.on.create('kopfexamples')
        def plain_fn(**_): pass
        """,
    'walking.py': """
        import importlib, pkgutil, parts
        for module in pkgutil.iter_modules(parts.__path__):
            importlib.import_module(f'parts.{module.name}')
        """,
    'relative.py': "from . import parts",
    'absent.py': "from parts import absent",
}
FIRST = ['second_fn', 'alone_fn', 'first_fn']


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        lines = [line.removeprefix(' ' * 8) for line in text.splitlines()]
        path.write_text('\n'.join(['import kopf', *lines]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
    former = kopf.get_default_registry()
    kopf.set_default_registry(kopf.OperatorRegistry())
    yield tmp_path
    kopf.set_default_registry(former)
    for name in {name.removesuffix('.py').partition('/')[0] for name in FILES}:
        for known in [*sys.modules]:
            if known == name or known.startswith(f'{name}.'):
                del sys.modules[known]


def load(*sources):
    return [handler.id for handler in operators.load(sources)._changing]


@pytest.mark.parametrize('sources, expected', [
    (['plain.py'], [*FIRST, 'plain_fn']),
    (['walking.py'], [*FIRST, 'third_fn']),
    (['parts.first'], FIRST),
    (['parts.third'], ['third_fn']),
    (['parts.third', 'parts.first'], ['third_fn', *FIRST]),
    (['alone', 'parts.first', 'plain.py'], ['alone_fn', 'second_fn', 'first_fn', 'plain_fn']),
])
@pytest.mark.parametrize('former', [
    [], ['plain.py'], ['walking.py'], ['parts.first'], ['parts.third', 'alone'],
])
def test_handlers_do_not_depend_on_what_was_loaded_before(former, sources, expected):
    for source in former:
        load(source)
    assert load(*sources) == expected
    assert load(*sources) == expected


def test_modules_that_the_test_has_imported_have_their_handlers():
    import alone  # type: ignore[import-not-found]
    assert load('plain.py') == [*FIRST, 'plain_fn']
    assert load(alone) == ['alone_fn']


@pytest.mark.parametrize('path', ['relative.py', 'absent.py'])
def test_errors_of_imports_are_as_always(path, folder):
    script = {'__name__': 'script', '__package__': ''}
    with pytest.raises(ImportError) as usual:
        exec((folder / path).read_text(), script)
    with pytest.raises(ImportError, match=r'.') as error:
        load(path)
    assert str(usual.value) in str(error.value)


def test_imports_are_as_always_after_the_loading():
    before = importlib.import_module, __builtins__['__import__']
    load('plain.py')
    assert before == (importlib.import_module, __builtins__['__import__'])
