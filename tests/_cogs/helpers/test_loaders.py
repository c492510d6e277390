import sys
import textwrap
import threading

import pytest

from kopf._cogs.helpers import loaders
from kopf._cogs.helpers.loaders import LoadingError, preload


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setattr(sys, 'modules', dict(sys.modules))
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)


@pytest.fixture()
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path
    return write


@pytest.fixture()
def seen(monkeypatch):
    """What the files under test have reported: ``import sys; sys.seen.append(...)``."""
    seen = []
    monkeypatch.setattr(sys, 'seen', seen, raising=False)
    return seen


def test_files_are_loaded_before_modules_and_in_order(write, seen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write('mod1_of_test.py', 'import sys; sys.seen.append("mod1")')
    one = write('one.py', 'import sys; sys.seen.append("one")')
    two = write('two.py', 'import sys; sys.seen.append("two")')
    preload(paths=[two, str(one)], modules=['mod1_of_test'])
    assert seen == ['two', 'one', 'mod1']


def test_files_are_loaded_once(write, seen):
    path = write('one.py', 'import sys; sys.seen.append("one")')
    preload(paths=[path, path], modules=[])
    assert seen == ['one']


def test_files_that_exit_are_loaded_again(write, seen):
    path = write('one.py', 'import sys; sys.seen.append("one"); sys.exit(5)')
    for _ in range(2):
        with pytest.raises(LoadingError):
            preload(paths=[path], modules=[])
    assert seen == ['one', 'one']


@pytest.mark.parametrize('args, expected', [
    ('', 'None'), ('0', '0'), ('"Set TEAM."', "'Set TEAM.'")])
def test_files_and_modules_that_exit_are_said_in_one_line(write, args, expected):
    path = write('exiting_of_test.py', f'import sys; sys.exit({args})')
    for paths, modules, name in [([path], [], path), ([], [path.stem], path.stem)]:
        sys.path.insert(0, str(path.parent))
        with pytest.raises(LoadingError) as err:
            preload(paths=paths, modules=modules)
        assert str(err.value) == f"Cannot load {name}: it has called sys.exit({expected})."
        assert f'File "{path}", line 1' in err.value.details


@pytest.mark.parametrize('call', ['kopf.run()', 'asyncio.run(kopf.operator(clusterwide=True))'])
def test_files_run_no_operators_when_they_are_imported(write, call):
    path = write('handlers.py', f'import asyncio, kopf\n{call}')
    with pytest.raises(LoadingError, match="Put the call under: if __name__ == '__main__':$"):
        preload(paths=[path], modules=[])


def test_operators_run_in_other_threads_and_after_the_import(write, seen):
    path = write('handlers.py', '''
        import sys, threading
        import kopf

        async def note():
            sys.seen.append(threading.current_thread().name)

        def run():
            kopf.run(clusterwide=True, _command=note())

        thread = threading.Thread(target=run, name='beside')
        thread.start()
        thread.join()
        sys.run = run
    ''')
    preload(paths=[path], modules=[])
    sys.run()
    assert seen == ['beside', threading.current_thread().name]


def test_files_of_the_same_name_are_different(write, seen):
    one = write('a/handlers.py', 'import sys; sys.seen.append("a")')
    two = write('b/handlers.py', 'import sys; sys.seen.append("b")')
    preload(paths=[one, two], modules=[])
    assert seen == ['a', 'b']


def test_neighbours_can_be_imported(write, seen):
    write('neighbour_of_test.py', 'VALUE = 123')
    path = write('handlers.py', '''
        import sys
        import neighbour_of_test
        sys.seen.append(neighbour_of_test.VALUE)
    ''')
    preload(paths=[path], modules=[])
    assert seen == [123]


def test_a_file_does_not_hide_the_standard_module_of_its_name(write, seen):
    path = write('operator.py', '''
        import operator, sys
        sys.seen.append(operator.itemgetter(0)("x"))
    ''')
    preload(paths=[path], modules=[])
    assert seen == ['x']


def test_classes_in_files_find_their_modules(write, seen):
    path = write('handlers.py', '''
        from __future__ import annotations
        import dataclasses, sys, typing

        @dataclasses.dataclass
        class Sample:
            field: int

        sys.seen.append(typing.get_type_hints(Sample))
    ''')
    preload(paths=[path], modules=[])
    assert seen == [{'field': int}]


@pytest.mark.parametrize('name', ['absent.py', 'absent/handlers.py'])
def test_absent_files_are_said_in_one_line(tmp_path, name):
    with pytest.raises(LoadingError) as err:
        preload(paths=[tmp_path / name], modules=[])
    assert str(err.value) == f"Cannot load {tmp_path / name}: there is no such file."
    assert err.value.details == ''


def test_folders_are_no_files(tmp_path):
    with pytest.raises(LoadingError, match='it is not a file'):
        preload(paths=[tmp_path], modules=[])


def test_files_of_other_kinds_are_not_loaded(write):
    with pytest.raises(LoadingError, match='not a file of Python'):
        preload(paths=[write('handlers.yaml', '')], modules=[])


def test_absent_modules_are_said_in_one_line():
    with pytest.raises(LoadingError) as err:
        preload(paths=[], modules=['absent_module_of_test'])
    assert str(err.value) == (
        "Cannot load absent_module_of_test: "
        "ModuleNotFoundError: No module named 'absent_module_of_test'")
    assert err.value.details == (
        f"Check the name, or install it into the same environment: {sys.prefix}\n")


def test_a_removed_current_folder_is_said_in_one_line(tmp_path, monkeypatch):
    (tmp_path / 'folder').mkdir()
    monkeypatch.chdir(tmp_path / 'folder')
    (tmp_path / 'folder').rmdir()
    with pytest.raises(LoadingError, match="^Cannot load x: FileNotFoundError: "):
        preload(paths=[], modules=['x'])


def test_private_names_have_a_public_one(write):
    path = write('handlers.py', 'from kopf._core.actions.execution import Logger')
    with pytest.raises(LoadingError, match="cannot import name 'Logger'") as err:
        preload(paths=[path], modules=[])
    assert err.value.details.splitlines()[-1] == (
        "Modules with a leading underscore are private, and not those of the Kopf on PyPI. Use "
        "kopf.Logger instead.")


def test_syntax_errors_show_the_place(write):
    path = write('handlers.py', 'def fn(:\n  pass')
    with pytest.raises(LoadingError) as err:
        preload(paths=[path], modules=[])
    assert str(err.value).startswith(f"Cannot load {path}: SyntaxError: ")
    assert '\n' not in str(err.value)
    assert f'File "{path}", line 1' in err.value.details
    assert 'def fn(:' in err.value.details
    assert 'importlib' not in err.value.details


def test_other_errors_show_only_the_frames_of_the_user(write):
    write('helper_of_test.py', 'def fail(): raise ValueError("boo!")')
    path = write('handlers.py', 'import helper_of_test\nhelper_of_test.fail()')
    with pytest.raises(LoadingError) as err:
        preload(paths=[path], modules=[])
    assert str(err.value) == f"Cannot load {path}: ValueError: boo!"
    assert err.value.details.count('File "') == 2
    assert loaders.__file__ not in err.value.details
    assert 'importlib' not in err.value.details


def test_errors_of_the_framework_show_where_it_was_used(write):
    path = write('handlers.py', 'import kopf\n\n@kopf.on.create()\ndef fn(**_): pass')
    with pytest.raises(LoadingError) as err:
        preload(paths=[path], modules=[])
    assert err.value.details.count('File "') == 1
    assert f'File "{path}", line 3' in err.value.details


def test_failed_files_are_tried_anew_when_loaded_again(write, seen):
    path = write('handlers.py', 'raise ValueError("boo!")')
    with pytest.raises(LoadingError):
        preload(paths=[path], modules=[])
    path.write_text('import sys; sys.seen.append("good")')
    preload(paths=[path], modules=[])
    assert seen == ['good']
