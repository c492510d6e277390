import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients import splitting

TEXTS = st.lists(st.binary(min_size=1).filter(lambda b: b'\n' not in b and not b.isspace()))


@hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@given(TEXTS, st.lists(st.integers(min_value=0, max_value=200)))
def test_lines_come_out_as_they_went_in_however_they_are_cut(texts, cuts):
    stream = b''.join(text + b'\n' for text in texts)
    points = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    splitter = splitting.LineSplitter()
    result = []
    for start, end in zip(points, points[1:]):
        result.extend(splitter.feed(stream[start:end]))
    assert result == texts


def test_unfinished_lines_are_kept():
    splitter = splitting.LineSplitter()
    assert splitter.feed(b'a\nb') == [b'a']
    assert splitter.feed(b'c') == []
    assert splitter.feed(b'd\n') == [b'bcd']


@pytest.mark.parametrize('blank', [b'', b' ', b'\r'])
def test_blank_lines_are_left_out(blank):
    assert splitting.LineSplitter().feed(b'a\n' + blank + b'\nb\n') == [b'a', b'b']


def test_lines_have_a_limit():
    splitter = splitting.LineSplitter(limit=10)
    splitter.feed(b'1234567890')
    with pytest.raises(splitting.LineTooLongError):
        splitter.feed(b'1')


def test_the_limit_is_of_each_line_alone():
    splitter = splitting.LineSplitter(limit=3)
    assert splitter.feed(b'123\n123\n') == [b'123', b'123']
    assert splitter.feed(b'123\n') == [b'123']
