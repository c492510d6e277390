"""The script that picks claims finds sentences with their lines, and leaves out all others."""
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location('claims', ROOT / 'scripts' / 'claims.py')
claims = importlib.util.module_from_spec(spec)
spec.loader.exec_module(claims)


@pytest.fixture()
def find(tmp_path):
    def fn(text):
        path = tmp_path / 'page.md'
        path.write_text(text)
        return [(line, text) for line, text in claims.read(path) if claims.is_claim(text)]
    return fn


def test_sentences_are_found_with_their_lines(find):
    assert find(
        "# A title of Kopf which is long, and claims nothing\n\n"
        "Kopf retries the handler every 60 seconds,\nforever. "
        "Kopf stops after the given number of `retries=`.\n"
    ) == [(3, "Kopf retries the handler every 60 seconds, forever."),
          (4, "Kopf stops after the given number of `retries=`.")]


def test_rows_and_items_are_found_one_by_one(find):
    assert find(
        "| name | what the operator does with it |\n| --- | --- |\n"
        "| `first` | the operator does this with the object |\n\n"
        "- The second handler is called after 5 seconds.\n"
    ) == [(3, "| `first` | the operator does this with the object |"),
          (5, "- The second handler is called after 5 seconds.")]


def test_code_advice_and_questions_are_left_out(find):
    assert find(
        "```python\nx = 'Kopf retries the handler every 60 seconds, forever.'\n```\n\n"
        "Use `kopf.PermanentError` if the handler cannot succeed.\n\n"
        "Does the operator run, and does the handler succeed?\n") == []


def test_a_seed_picks_the_same_claims(capsys, monkeypatch):
    monkeypatch.setattr(claims.sys, 'argv', ['claims.py', '3', '--seed', '1'])
    claims.main()
    first = capsys.readouterr().out
    claims.main()
    assert capsys.readouterr().out == first
    assert "3 of " in first and "the seed 1." in first
