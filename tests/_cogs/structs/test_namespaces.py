import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.references import match_namespace, select_specific_namespaces

NAMES = ['a', 'b', 'ab', 'abc', 'myapp-live', 'myapp-pr-456', 'myapp-pr-123', 'otherapp-live',
         'otherapp-pr-123']


@pytest.mark.parametrize('pattern, expected', [
    ('a', ['a']),
    ('*', NAMES),
    ('a*', ['a', 'ab', 'abc']),
    ('?', ['a', 'b']),
    ('a?', ['ab']),
    ('!a*', ['b', *NAMES[4:]]),
    ('!a,!b', ['ab', 'abc', *NAMES[4:]]),
    ('a*,!ab', ['a', 'abc']),
    ('!ab,a*', NAMES),
    ('a,b', ['a']),
    (' a* , !ab ', ['a', 'abc']),
    ('myapp-*,!*-pr-*,*-pr-123', ['myapp-live', 'myapp-pr-123']),
    (re.compile('a|ab'), ['a', 'ab']),
    (re.compile('a'), ['a']),
])
def test_patterns_of_namespaces(pattern, expected):
    assert [name for name in NAMES if match_namespace(name, pattern)] == expected


globs = st.text(alphabet='ab*?', min_size=1, max_size=3)


@given(
    name=st.text(alphabet='ab', min_size=1, max_size=4),
    parts=st.lists(st.tuples(st.booleans(), globs), min_size=1, max_size=4),
)
def test_the_last_matching_glob_wins_if_the_first_one_lets_in(name, parts):
    pattern = ','.join('!' * negated + glob for negated, glob in parts)
    verdict = parts[0][0]
    for index, (negated, glob) in enumerate(parts):
        if fnmatch.fnmatch(name, glob):
            verdict = not negated
        elif index == 0 and not negated:
            break
    decisive = parts[0][0] or fnmatch.fnmatch(name, parts[0][1])
    assert match_namespace(name, pattern) == (decisive and verdict)


def test_only_exact_names_are_specific():
    patterns = ['a', 'b*', '!c', 'd,e', 'f?', re.compile('x'), 'a']
    assert set(select_specific_namespaces(patterns)) == {'a'}
