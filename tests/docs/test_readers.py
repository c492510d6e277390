"""What readers take for the same as on the page."""
import pytest

from tests.docs import readers


@pytest.mark.parametrize('shown, output', [
    ('16:26:08,017 INFO    Connected.\n',
     '\x1b[2m07:08:30,432\x1b[0m \x1b[32mINFO    \x1b[0m Connected.\r\n'),
    ('NAME    AGE\nhello   10s\n', 'NAME    AGE\nhello   2m5s\n'),
    ('hello   10s\n', 'hello   3m\n'),
    ('http://127.0.0.1:8053/records\n', 'http://127.0.0.1:41234/records\n'),
    ('1 passed in 1.10s\n', '\x1b7\x1b[KExploring: run 1 of 2\x1b81 passed in 9.99s\n'),
    ('…\nlast\n', 'first\nsecond\nlast\n'),
    ('an error: …\n', 'an error: whatever\n'),
])
def test_times_places_and_ellipses_do_not_matter(shown, output):
    assert readers.is_same(shown, output)


@pytest.mark.parametrize('shown, output', [
    ('hello\n', 'hallo\n'),
    ('hello\n', 'hello\nmore\n'),
    ('hello\nmore\n', 'hello\n'),
    ('1 passed in 1.10s\n', '2 passed in 1.10s\n'),
    ('…\nlast\n', 'first\nlast one\n'),
])
def test_everything_else_matters(shown, output):
    assert not readers.is_same(shown, output)


def test_commands_have_what_is_shown_after_them():
    text = '$ first \\\n    more\nshown\n\nshown again\n$ second\n'
    assert readers.find_commands(text) == [
        ('first \\\n    more', 'shown\n\nshown again\n'), ('second', '')]
