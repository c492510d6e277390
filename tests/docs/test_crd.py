"""The pages of typed kinds have the rules of the code, and their definition is one of the API."""
import re

from click.testing import CliRunner

from kopf import cli
from kopf._kits.typed import kinds
from kopf._kits.typed.findings import RULES, SOURCES
from tests.docs import snippets


def test_rules_are_those_of_the_code():
    page = (snippets.DOCS / 'crd.md').read_text()
    rows = [tuple(line.strip('| ').split(' | ')) for line in page.splitlines()
            if re.match(r'\| `', line)]
    assert rows == [
        (f'`{rule.name}`', rule.level, rule.meaning,
         ', '.join(f'[{source}]({SOURCES[source]})' for source in rule.sources))
        for rule in RULES.values()]


def test_the_tutorial_makes_a_definition_without_findings(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, '_declared', {})
    page = (snippets.DOCS / 'typed-kinds.md').read_text()
    operator = next(snippet.text for snippet in snippets.read('typed-kinds.md', page)
                    if snippet.marks.get('file') == 'handlers.py')
    path, output = tmp_path / 'handlers.py', tmp_path / 'crd.yaml'
    path.write_text(operator)
    for args in [['-o', output], ['--drift', output], ['--against', output]]:
        result = CliRunner().invoke(cli.main, ['crd', str(path), *map(str, args)])
        assert (result.exit_code, result.stdout) == (0, ''), result.stdout
    assert 'MySQL has at most 3 replicas' in output.read_text()
