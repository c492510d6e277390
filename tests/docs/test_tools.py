"""What coding tools read is true: the links lead to pages, and the handler is the first example."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [*ROOT.glob('*.md'), ROOT / 'llms.txt']


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r'\]\((?!https?:)([^)#]+)', page.read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_handler_is_the_first_example():
    block, = re.findall(r'^```python\n(.*?)^```$', (ROOT / 'llms.txt').read_text(), re.M | re.S)
    assert block == (ROOT / 'examples' / 'website' / 'handlers.py').read_text()


def test_the_scripts_exist():
    text = (ROOT / 'AGENTS.md').read_text()
    scripts = set(re.findall(r'\bscripts/\w+\b(?!\.)', text)) | {'.ci/run'}
    assert len(scripts) > 4
    assert [name for name in scripts if not (ROOT / name).exists()] == []
