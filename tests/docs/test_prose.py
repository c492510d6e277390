"""
The linter of the prose finds the terms that the documentation avoids, and clumsy habits in
docstrings and comments, but neither in code.
"""
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location('prose', ROOT / 'scripts' / 'prose.py')
prose = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prose)


@pytest.fixture()
def lint(tmp_path, monkeypatch):
    def fn(text, name='page.md'):
        path = tmp_path / name
        path.write_text(text)
        return list(prose.lint(path, {'kopf': True}))

    monkeypatch.setattr(prose, 'ROOT', tmp_path)
    prose.register()
    return fn


@pytest.fixture()
def lint_module(tmp_path, monkeypatch):
    def fn(text):
        path = tmp_path / 'module.py'
        path.write_text(text)
        return list(prose.lint_module(path))

    monkeypatch.setattr(prose, 'ROOT', tmp_path)
    return fn


@pytest.mark.parametrize('text', [
    "Define a kind of objects.",
    "The children are deleted.",
    "It needs the rights for that.",
    "The second try succeeds.",
    "When the operator leaves, it says so.",
    "A sign of life is renewed.",
    "Each attempt is told to an observer.",
    "Handlers get a passing memo.",
    "The object is made anew.",
    "The rooms of the house.",
    "The way of an event is short.",
    "One PATCH per pass is sent.",
    "Use the filters of the server.",
    "Say what is to be done.",
    "It is of no use.",
    'Someone said: "It failed for good."',
])
def test_coined_terms_are_found(lint, text):
    line, = lint(f"# Title\n\n{text}\n")[:1]
    assert line.startswith("page.md:3:") and "Write " in line


def test_texts_between_blocks_are_read(lint):
    blocks = "```{tip}\nRead this.\n```\n\nThe second try succeeds.\n\n```python\nx = 1\n```\n"
    line, = lint(f"# Title\n\n{blocks}")
    assert line.startswith("page.md:7:")


@pytest.mark.parametrize('text', [
    "These handlers are called, too.",
    "The timers get it too.",
    "The daemons do this also.",
    "It needs no permissions, either.",
    "The object will be deleted after that.",
    "Remove the finalizer by `kopf release`.",
    "Declare them by [`kopf.needs`](page.md).",
    "Daemons run for long.",
    "Use a lock, in case that the handler is slow.",
    "It counts from the begin of the cycle.",
    "Kopf restores drift.",
    "Kopf holds it for unavailable.",
    "Kopf adds the finalizer as soon as Kopf sees the object.",
    "Kopf does this. Kopf does that. Kopf does more.",
    "The handler waits. The handler is\ncalled again. The handler fails.",
])
def test_clumsy_habits_are_found(lint, text):
    line, = lint(f"# Title\n\n{text}\n")
    assert line.startswith("page.md:3:")


@pytest.mark.parametrize('text', [
    "Too many handlers are too slow, and also wait.",
    "This is either here or there.",
    "The note is shown by `kubectl describe`.",
    "If nothing is written for long enough, threads for long-running daemons end.",
    "Kopf adds the finalizer as soon as it sees the object.",
    "Kopf does this. It does that. Kopf does more.",
])
def test_similar_sentences_are_no_habits(lint, text):
    assert lint(f"# Title\n\n{text}\n") == []


def test_code_is_left_out(lint):
    assert lint(
        "Use `status.children.name` or [a page](page.md#rights).\n\n"
        "% fails: it is told\n\n```python\ntell('children')\n```\n") == []


def test_directives_are_prose(lint):
    line, = lint("```{note}\nThese are the children.\n```\n")
    assert line.startswith("page.md:2:")


def test_examples_are_linted_by_their_first_paragraph(lint):
    line, = lint('"""\nHow to\nmake children.\n"""\nchildren = []\n', 'example.py')
    assert line.startswith("example.py:3:")


def test_terms_say_what_to_write_instead():
    assert all(prose.TERMS.values())


@pytest.mark.parametrize('text, position', [
    ('"""\nThe module.\n\nOthers write it, too.\n"""\n', '4:16'),
    ('def fn():\n    """Others write it too."""\n', '2:23'),
    ('class Some:\n    value = 1\n    r"""Others\n    write it also."""\n', '4:14'),
    ('x = 1\n# Others\n# write it, too.\ny = 2\n', '3:11'),
    ('x = 1  # others write it, too\ny = 2\n', '1:25'),
    ('# Say what is to be done.\n', '1:12'),
    ('def fn(a,\n       b):  # it has to be b\n    """Do."""\n', '2:18'),
])
def test_clumsy_docstrings_and_comments_are_found_in_their_places(lint_module, text, position):
    line, = lint_module(text)
    assert line.startswith(f"module.py:{position}: ")


@pytest.mark.parametrize('text', [
    "print('Others write it, too.')\n",
    "x = (\n    'Others write it, too.'\n)\n",
    "x = 1  # others write `, too.` as well\n",
    '"""Run ``fn(x, too)``: `, too.`"""\n',
    '"""The children are told: too many of them wait."""\n',
    "x = '# others, too'\n",
])
def test_code_and_strings_of_modules_are_left_out(lint_module, text):
    assert lint_module(text) == []


def test_all_modules_are_linted():
    modules = {path for pattern in prose.MODULES for path in prose.ROOT.glob(pattern)}
    assert ROOT / 'kopf' / 'on.py' in modules
    assert ROOT / 'kopf' / '_core' / 'path' / 'turns.py' in modules
