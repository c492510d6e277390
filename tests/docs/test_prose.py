"""The linter of the prose finds the terms that the documentation avoids, but not in code."""
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
