"""
The examples are complete: numbered, listed, with a paragraph each, and tested.

That they do what they promise is shown by the end-to-end tests, or by tests of their own.
"""
import ast
import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = sorted(path.parent for path in ROOT.glob('examples/*/example.py'))
NAMES = [path.name for path in EXAMPLES]
MANIFESTS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob('examples/**/*.yaml'))
TESTS = ''.join(
    path.read_text() for path in ROOT.glob('tests/e2e/*.py')
    if path.name in ('test_examples.py', 'test_deployment.py'))


def test_all_folders_have_an_example():
    folders = [path for path in ROOT.glob('examples/[0-9]*') if path.is_dir()]
    assert sorted(folders) == EXAMPLES


def test_no_two_have_the_same_number():
    numbers = [name.partition('-')[0] for name in NAMES]
    assert len(set(numbers)) == len(numbers)


def test_all_are_listed_with_a_sentence_each_and_the_reconciler_is_the_second_one():
    first, *others = [name for name in NAMES if name != '20-reconcile']
    text = (ROOT / 'examples' / 'README.md').read_text()
    rows = re.findall(r'^\| \[(.+?)\]\((.+?)/example\.py\) \| (.+\.) \|$', text, re.MULTILINE)
    assert [(name, path) for name, path, _ in rows] == [
        (name, name) for name in [first, '20-reconcile', *others]]


@pytest.mark.parametrize('name', NAMES)
def test_each_begins_with_one_paragraph(name):
    source = (ROOT / 'examples' / name / 'example.py').read_text()
    doc = ast.get_docstring(ast.parse(source))
    assert doc and '\n\n' not in doc
    assert re.search(r'\bType\s``', doc) and re.search(r'\bsee\b', doc, re.IGNORECASE)


@pytest.mark.parametrize('name', NAMES)
def test_each_is_tested(name):
    assert re.search(rf"\brun\('{name}'|/ '{name}'", TESTS) or (
        ROOT / 'examples' / name / 'test_example.py').exists()


@pytest.mark.parametrize('name', NAMES)
def test_files_that_are_to_be_typed_exist(name):
    text = (ROOT / 'examples' / name / 'example.py').read_text()
    for path in re.findall(r'\bexamples/[-\w./]+', text.replace('\n', ' ')):
        assert (ROOT / path.rstrip('.')).exists(), path


@pytest.mark.parametrize('path', MANIFESTS)
def test_their_files_are_of_objects(path):
    for obj in yaml.safe_load_all((ROOT / path).read_text()):
        assert {'apiVersion', 'kind'} <= set(obj)
