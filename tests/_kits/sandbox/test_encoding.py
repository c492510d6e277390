import json

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._kits.sandbox import encoding

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner:
    st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@hypothesis.given(values)
def test_what_is_encoded_is_decoded_again(value):
    assert encoding.decode(encoding.encode(value)) == value
    assert encoding.decode_own(encoding.encode_sorted(value)) == value


@pytest.mark.parametrize(('text', 'value'), [
    (b'1.0', 1), (b'1.5', 1.5), (b'1e3', 1000), (b'-0.0', 0), (b'1e22', 1e22)])
def test_whole_floats_become_integers(text, value):
    assert encoding.decode(text) == value
    assert type(encoding.decode(text)) is type(value)


@pytest.mark.parametrize(('text', 'message'), [
    (b'', "unexpected end of JSON input"),
    (b'{"a":', "unexpected end of JSON input"),
    (b'{"a"}', "invalid character '}' after object key"),
    (b'{"a":1 2}', "invalid character '2' after object key:value pair"),
    (b'{a}', "invalid character 'a' looking for beginning of object key string"),
    (b'x', "invalid character 'x' looking for beginning of value"),
    (b'{} x', "invalid character 'x' after top-level value"),
    (b'NaN', "invalid character 'N' looking for beginning of value"),
    (b'[' * 100_000, "invalid character '{' exceeded max depth"),
])
def test_what_is_no_json_is_refused_in_the_words_of_the_api(text, message):
    with pytest.raises(encoding.DecodingError) as error:
        encoding.decode(text)
    assert str(error.value) == message


@hypothesis.given(st.binary(max_size=50))
def test_any_bytes_are_json_or_not(raw):
    try:
        encoding.decode(raw)
    except encoding.DecodingError:
        pass


def test_halves_of_surrogate_pairs_are_replaced():
    assert json.loads(encoding.encode({'a': '\ud800'})) == {'a': '\ufffd'}


def test_doubled_keys_are_found_with_their_paths():
    raw = b'{"a":{"b":1,"b":2},"c":[{"d":1,"d":1}],"a":3}'
    assert encoding.duplicates(raw) == ['a.b', 'c[0].d', 'a']
    assert encoding.duplicates(b'{"a":{"a":1}}') == []
