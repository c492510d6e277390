"""
Checks the prose of the documentation with proselint, and its terms by the table in ``terms.yaml``.

Code is left out: its names are not prose.
"""
import ast
import functools
import pathlib
import re
import sys
from collections.abc import Iterator

import yaml
from proselint.checks import __register__ as CHECKS
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags
from proselint.registry.checks.types import PreferredForms
from proselint.tools import LintFile

ROOT = pathlib.Path(__file__).parents[1]
TERMS = yaml.safe_load((ROOT / 'scripts' / 'terms.yaml').read_text())
PAGES = ['*.md', 'docs/**/*.md', 'benchmarks/*.md', 'examples/*.md', 'examples/*/example.py']

CODE = re.compile(r"""
    ^(\ *)```(?!\{) .*? ^\1```$   # a block of code
    | ^\ *```[^\n]*$              # the first and last lines of other blocks: these contain prose
    | ^\ *:::+\{grid\}[^\n]*$      # the numbers of columns
    | (`+)[^`]+\2                  # code within a sentence
    | \]\(\S*?\)                  # the target of a link
    | ^\ *%[^\n]*$                # a mark of a snippet
""", re.MULTILINE | re.DOTALL | re.VERBOSE)

HABITS = {re.compile(pattern, re.MULTILINE): advice for pattern, advice in {
    r",? too(?=[.;:)]|, |\n\.\n)": "Put 'also' before the verb, or leave 'too' out.",
    r"\balso(?=[.;])": "Put 'also' before the verb.",
    r", either(?=[.;])": "Leave 'either' out.",
    r"\b(?:will|shall) be (?:\w+ed|done|made|given|sent|written|shown|kept|found)\b":
        "Say who does it, in the present.",
    r"\b(?i:declare|write|read|remove|change|choose|print|instal|apply|pass|set|do|switch)\w*"
    r"(?: \w+){0,3} by (?=\[?`)": "Write 'with' for a tool.",
    r"\bKopf\b[^.!?|;:]*? (?:when|whenever|as|after|before|if|while|until|because)\s+Kopf\b":
        "Write 'it' for what was just named.",
    r"\b(Kopf|(?:The|An?) \w+)\b[^.!?|]*[.!?]\s+\1\b[^.!?|]*[.!?]\s+\1\b":
        "Three sentences with one subject: join them, or write 'it'.",
}.items()}
"""What is clumsy, and what to do about it."""

DISABLED = [
    'typography.symbols',  # quotes and dots are ASCII, as in the code
    'typography.diacritical_marks',  # to resume is not a résumé
    'industrial_language.chatspeak',  # asap is a lifecycle
]


def main() -> int:
    register()
    checks = {**dict.fromkeys(DISABLED, False), 'kopf': True, **DEFAULT['checks']}
    found = [line for pattern in PAGES for path in sorted(ROOT.glob(pattern))
             for line in lint(path, checks)]
    print('\n'.join(found) or "The prose is fine.")
    return 1 if found else 0


@functools.cache  # the registry is global, and takes the same checks twice
def register() -> None:
    registry = CheckRegistry()
    registry.register_many(CHECKS)
    registry.register(Check(
        path='kopf.terms', message="Write {!r} instead of {!r}.",
        check_type=PreferredForms({f'(?:{wrong})': right for wrong, right in TERMS.items()}),
        flags=CheckFlags(allow_quotes=True)))


def lint(path: pathlib.Path, checks: dict[str, bool]) -> Iterator[str]:
    name, text = path.relative_to(ROOT).as_posix(), read(path)
    for result in LintFile(name, text).lint({'max_errors': 1000, 'checks': checks}):
        line, column = result.pos
        yield f"{name}:{line}:{column}: {result.check_result.message}"
    if name.startswith('examples/'):
        return
    for habit, advice in HABITS.items():
        for match in habit.finditer(text):
            line = text.count('\n', 0, match.start()) + 1
            column = match.start() - text.rfind('\n', 0, match.start())
            yield f"{name}:{line}:{column}: {advice}"


def read(path: pathlib.Path) -> str:
    """The prose of the file, on the same lines and columns as there."""
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
        text = '\n' + (ast.get_docstring(ast.parse(text)) or '')
    text = CODE.sub(lambda match: re.sub(r'\S', '`', match[0]), text)
    return re.sub(r'^ *$', '.', text, flags=re.M)  # a word at the end is not repeated by a heading


if __name__ == '__main__':
    sys.exit(main())
