"""
The snippets of the documentation: each fenced block, with what is told about it to the tests.

That is told by comments of MyST right before the block, which readers do not see. Without any, it
is run as what it is. Otherwise:

* ``% file: NAME``: it is in this file, next to those that were shown before on the page.
* ``% continued``: it goes on from the previous Python block of the page, of the same file.
* ``% fails: REASON``: its handlers are meant to fail.
* ``% script: REASON``: it is imported, but it is not an operator of itself.
* ``% test``: it is a test, run by pytest.
* ``% fragment: REASON``: it is not whole, so only its syntax is looked at.
* ``% terminal: NAME``: it is typed or shown in this terminal of the reader.
* ``% interrupts: NAME``: Ctrl+C is pressed in this terminal before it is shown.
* ``% status: NUMBER``: the last command has this exit status.
"""
import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator

DOCS = pathlib.Path(__file__).parents[2] / 'docs'

DIRECTIVES = re.compile(r'\{.*')
"""Blocks of Sphinx, not snippets."""

SEQUELS = {'walkthrough.md': 'quickstart.md'}
"""The pages that go on from others, with the files of these."""

FENCE = re.compile(r'(?P<indent> *)(?P<fence>```+|:::+)(?P<language>\S*)')
MARK = re.compile(
    r' *% (?P<name>file|continued|fails|script|test|fragment|terminal|interrupts|status)'
    r'(: (?P<text>.+))?$')


@dataclasses.dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str]
    before: tuple['Snippet', ...] = dataclasses.field(repr=False)
    """What is shown before on the same page, and on the one from which it goes on."""

    def __str__(self) -> str:
        return f'{self.page}:{self.line}'

    @property
    def source(self) -> str:
        """The text with what it goes on from, on the same lines as on the page."""
        if 'continued' not in self.marks:
            return '\n' * self.line + self.text
        previous = next(
            other for other in reversed(self.before)
            if other.language == 'python' and not {'fragment', 'test'} & set(other.marks)
            and self.marks.get('file') in (None, other.marks.get('file')))
        head = previous.source.rstrip('\n')
        return head + '\n' * (self.line - head.count('\n')) + self.text

    def write_files(self, folder: pathlib.Path) -> pathlib.Path:
        """Write this one and the files shown before, the newest ones of the same names."""
        for other in self.before:
            if 'file' in other.marks:
                (folder / other.marks['file']).write_text(other.source)
        path = folder / self.marks.get('file', f'snippet_{self.line}.py')
        path.write_text(self.source)
        return path


def collect() -> Iterator[Snippet]:
    for path in sorted(DOCS.glob('**/*.md')):
        yield from read(path.relative_to(DOCS).as_posix(), path.read_text(encoding='utf-8'))


def read(page: str, text: str) -> Iterator[Snippet]:
    known: list[Snippet] = []
    if page in SEQUELS:
        known += read(SEQUELS[page], (DOCS / SEQUELS[page]).read_text(encoding='utf-8'))
    marks: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if mark := MARK.match(line):
            marks[mark['name']] = mark['text'] or ''
        elif line.lstrip().startswith('% '):
            raise ValueError(f"{page}:{number}: There is no such mark: {line.strip()}")
        elif (fence := FENCE.match(line)) and fence['fence'].startswith('`'):
            block: list[str] = []
            for _, inner in lines:
                if inner.strip() == fence['fence']:
                    break
                block.append(inner)
            if not DIRECTIVES.match(fence['language']):
                snippet = Snippet(
                    page, number, fence['language'], textwrap.dedent('\n'.join(block)) + '\n',
                    marks, tuple(known))
                known.append(snippet)
                yield snippet
            marks = {}
        elif line.strip() and marks:
            raise ValueError(f"{page}:{number}: Marks must be right before a block.")
