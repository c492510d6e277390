"""The reference has everything that is public."""
import ast
import dataclasses
import inspect
import re
import xml.etree.ElementTree

import pytest

import kopf
from kopf import cli, lifecycles, on, testing
from kopf._cogs.structs import references
from tests.docs.snippets import DOCS

API = ''.join(path.read_text() for path in DOCS.glob('api/*.md')) + (DOCS / 'api.md').read_text()
NAMES = {
    f"kopf.{name.removeprefix('kopf.')}"
    for name in re.findall(r'^(?:\.\. (?:auto|py:)\w+::| {11,}) ?(\w\S+)', API, re.MULTILINE)}


def test_all_names_of_the_framework_are_in_the_reference():
    assert {f'kopf.{name}' for name in kopf.__all__} <= NAMES | {'kopf.on', 'kopf.lifecycles'}


def test_all_decorators_are_in_the_reference():
    decorators = {
        name for name, value in vars(on).items()
        if inspect.isfunction(value) and value.__module__ == 'kopf.on' and name[0] != '_'}
    assert {name for name in decorators
            if not {f'kopf.{name}', f'kopf.on.{name}'} & NAMES} == set()


def test_all_lifecycles_are_in_the_reference():
    functions = {name for name in lifecycles.__all__ if name.islower()}
    assert {name for name in functions
            if not {f'kopf.{name}', f'kopf.lifecycles.{name}'} & NAMES} == set()


def test_all_names_for_testing_are_in_the_reference():
    assert {f'kopf.testing.{name}' for name in testing.__all__} <= NAMES


def test_docstrings_refer_to_existing_pages():
    titles = {
        title for path in DOCS.glob('*.md')
        for title in re.findall(r'^# (.*?)(?: \([^()]*\))?$', path.read_text(), re.MULTILINE)}
    quoted = {
        title
        for folder in ['kopf', 'pytest_kopf']
        for path in (DOCS.parent / folder).rglob('*.py')
        for part in re.findall(r'See ([^.]*?) in the documentation', ' '.join(
            path.read_text().replace('# ', '').split()))
        for title in re.findall(r'"([^"]+)"', part)}
    assert len(quoted) > 10
    assert quoted <= titles


def test_all_sections_of_the_settings_are_in_the_reference():
    sections = {field.name for field in dataclasses.fields(kopf.OperatorSettings)}
    page = (DOCS / 'configuration.md').read_text()
    assert set(re.findall(r'^```\{settings\} (\w+)', page, re.MULTILINE)) == sections


def test_all_commands_are_in_the_reference():
    page = (DOCS / 'cli.md').read_text()
    assert set(re.findall(r'^```\{command\} (\w+)', page, re.MULTILINE)) == set(cli.main.commands)


def test_all_messages_in_the_documentation_are_in_the_code():
    _, _, part = (DOCS / 'troubleshooting.md').read_text().partition('(wrong-ideas)=')
    ideas, _, part = part.partition('## Messages')
    messages = re.findall(r'^\| `(.*?)` \|', part, re.MULTILINE)
    messages += re.findall(r'`([^`]*…)`', ideas)
    texts = list(get_texts())
    assert len(messages) > 30
    for message in messages:
        pattern = '.*'.join(re.escape(part) for part in message.split('…'))
        assert any(re.search(pattern, text) for text in texts), message


def get_texts():
    """All texts of the framework; what varies in them is shown as dots."""
    for path in (DOCS.parent / 'kopf').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield ''.join(
                    str(part.value) if isinstance(part, ast.Constant) else '…'
                    for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize('path', sorted(DOCS.glob('drawings/*')), ids=lambda path: path.name)
def test_drawings_are_well_formed_named_and_used(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.find('{http://www.w3.org/2000/svg}title').text
    pages = '\n'.join(page.read_text() for page in DOCS.glob('*.md'))
    assert f'{{drawing}} {path.name}\n' in pages


def test_patterns_of_namespaces_match_as_told():
    page = (DOCS / 'scopes.md').read_text()
    pattern = "myapp-*,!*-pr-*,*-pr-123"
    assert f"-n '{pattern}'" in page
    rows = re.findall(r'^\| `(\S+)` \| (yes|no) \|', page, re.MULTILINE)
    assert len(rows) == 4
    for namespace, served in rows:
        assert references.match_namespace(namespace, pattern) == (served == 'yes')
