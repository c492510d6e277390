import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.texts import cut


@pytest.mark.parametrize(('marker', 'expected'), [
    ('...', 'a' * 510 + '...' + 'b' * 511), (' [] ', 'a' * 510 + ' [] ' + 'b' * 510)])
def test_long_texts_are_cut_in_the_middle(marker, expected):
    assert cut('a' * 1000 + 'b' * 1000, 1024, marker=marker) == expected


def test_texts_of_the_very_limit_are_not_cut():
    assert cut('a' * 1024, 1024) == 'a' * 1024


@given(
    st.text(alphabet=st.characters(exclude_characters='.', exclude_categories=['Cs'])),
    st.integers(min_value=4, max_value=50))
def test_texts_always_fit_and_keep_their_ends(text, limit):
    result = cut(text, limit)
    assert len(result.encode()) <= limit
    if len(text.encode()) <= limit:
        assert result == text
    else:
        head, tail = result.split('...')
        assert text.startswith(head)
        assert text.endswith(tail)


def test_what_is_no_text_is_replaced():
    assert cut('a\udc80b', 10) == 'a?b'
