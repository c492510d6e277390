#!/usr/bin/env python3
"""
Picks claims of the documentation at random, for somebody who checks them against the code.

``scripts/claims.py 25 --seed 7``: a seed always picks the same claims of the same pages. A claim is
a sentence, or a row of a table, that states something about a name, a number, or a behaviour.
"""
import argparse
import pathlib
import random
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ['README.md', 'docs/**/*.md']
OTHERS = {'changelog.md', 'contributing.md', 'glossary.md', 'index.md', 'vision.md'}
"""What repeats other pages, or has only opinions."""

CODE = re.compile(r"""
    ^(\ *)(```+)(?!\{(?:note|tip|warning)).*?^\1\2$  # a block of code
    | ^\ *%.*?$                                      # a mark of a snippet
    | ^\(.*?\)=$                                     # an anchor
    | ^\#.*?$                                        # a heading
    | ^\|[^\n]*\n\|\ ---[^\n]*$                       # the head of a table
""", re.MULTILINE | re.DOTALL | re.VERBOSE)
END = re.compile(r'(?<=[.!?])\s+(?=[A-Z`*\[])|\n\s*\n|\n(?=\s*(?:- |\* |\d+\. |: |\||:::))')
SUBJECT = re.compile(r'`|\d|\b(?:Kopf|operator|handler|server|sandbox|daemon|timer|command)s?\b')
ADVICE = re.compile(r"""
    (?:- |\d+\.\ |\*\*[^*]*\*\*\ ?)*
    (?:See|Use|Do|Keep|Let|Choose|Read|Write|Make|Add|Or|So|Raise|Yield|Give|Run|Put|Set)\b
""", re.VERBOSE)


def read(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """The sentences of a page, and their lines."""
    text = CODE.sub(lambda match: '\n' * match[0].count('\n'), path.read_text(encoding='utf-8'))
    start = 0
    for end in [*END.finditer(text), None]:
        sentence = text[start:end.start() if end else len(text)]
        line = text.count('\n', 0, start) + len(sentence) - len(sentence.lstrip('\n')) + 1
        yield line, ' '.join(sentence.split())
        start = end.end() if end else start


def is_claim(text: str) -> bool:
    return (len(text) > 40 and SUBJECT.search(text) is not None and not ADVICE.match(text)
            and not text.startswith(':::') and not text.endswith(('?', ':')))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('number', type=int, nargs='?', default=25)
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    claims = [
        (path.relative_to(ROOT), line, text)
        for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
        if path.name not in OTHERS
        for line, text in read(path) if is_claim(text)]
    chosen = random.Random(options.seed).sample(claims, min(options.number, len(claims)))
    for page, line, text in sorted(chosen):
        print(f'{page}:{line}: {text}\n')
    print(f'{len(chosen)} of {len(claims)} claims, with the seed {options.seed}.')
    return 0


if __name__ == '__main__':
    sys.exit(main())
