"""
Checks the prose of the documentation with proselint, and its terms by the table in ``terms.yaml``;
and the docstrings and comments of the package for clumsy habits.

Code is left out: its names are not prose.
"""
import ast
import functools
import io
import itertools
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping

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
MODULES = ['kopf/**/*.py']

CODE = re.compile(r"""
    ^(\ *)```(?=[^\s{]|\{eval-rst\}) .*? ^\1```$   # a block of code
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
    r"\bfor long\b(?!-| enough)": "Write 'for a long time'.",
    r"\bin case that\b": "Write 'in case' or 'if'.",
    r"\bthe begin of\b": "Write 'the beginning of'.",
    r"\b(?i:restor)\w* (?:the )?drift": "Drift is corrected.",
    r"\bh[eo]ld\w* (?:\w+ )?for (?:un)?\w+able\b": "Write 'considers it'.",
    r"\bKopf\b[^.!?|;:]*? (?:when|whenever|as|after|before|if|while|until|because)\s+Kopf\b":
        "Write 'it' for what was just named.",
    r"\b(Kopf|(?:The|An?) \w+)\b[^.!?|]*[.!?]\s+\1\b[^.!?|]*[.!?]\s+\1\b":
        "Three sentences with one subject: join them, or write 'it'.",
}.items()}
"""What is clumsy, and what to do about it."""

TO_BE = r'(?:is|are|was|were|has|have) to be'
MODULE_HABITS = {**HABITS, re.compile(rf'\b{TO_BE}\b'): f"Write {TERMS[TO_BE]}."}
"""The same for modules. Of the terms, only this one: the others are also names in the code."""

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
    found += [line for pattern in MODULES for path in sorted(ROOT.glob(pattern))
              for line in lint_module(path)]
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
    if not name.startswith('examples/'):
        yield from find_habits(name, text, HABITS)


def lint_module(path: pathlib.Path) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    yield from find_habits(name, mask(read_comments(path)), MODULE_HABITS)


def find_habits(name: str, text: str, habits: Mapping[re.Pattern[str], str]) -> Iterator[str]:
    for habit, advice in habits.items():
        for match in habit.finditer(text):
            line = text.count('\n', 0, match.start()) + 1
            column = match.start() - text.rfind('\n', 0, match.start())
            yield f"{name}:{line}:{column}: {advice}"


def read(path: pathlib.Path) -> str:
    """The prose of the file, on the same lines and columns as there."""
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
        text = '\n' + (ast.get_docstring(ast.parse(text)) or '')
    return mask(text)


def read_comments(path: pathlib.Path) -> str:
    """The docstrings and comments of the module, on the same lines and columns as there."""
    text = path.read_text(encoding='utf-8')
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline)
              if token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)]
    lines = [''] * (text.count('\n') + 2)
    starts = True  # whether a statement starts here: a docstring is a string that is a statement
    for token, following in itertools.pairwise(tokens):
        is_docstring = token.type == tokenize.STRING and starts and (
            following.type in (tokenize.NEWLINE, tokenize.COMMENT))
        if is_docstring or token.type == tokenize.COMMENT:
            marks = r'^\w*"+|"+$' if is_docstring else r'^#'
            prose = re.sub(marks, lambda match: ' ' * len(match[0]), token.string)
            for number, line in enumerate(prose.split('\n'), token.start[0] - 1):
                column = token.start[1] if number == token.start[0] - 1 else 0
                lines[number] = lines[number].ljust(column) + line
        if token.type != tokenize.COMMENT:
            starts = token.type == tokenize.NEWLINE
    return '\n'.join(lines)


def mask(text: str) -> str:
    """Leave out the code within the prose, and mark the ends of paragraphs."""
    text = CODE.sub(lambda match: re.sub(r'\S', '`', match[0]), text)
    return re.sub(r'^ *$', '.', text, flags=re.M)  # a word at the end is not repeated by a heading


if __name__ == '__main__':
    sys.exit(main())
