import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs import encoders

ENCODERS = [
    json.JSONEncoder(),
    json.JSONEncoder(separators=(',', ':')),
    json.JSONEncoder(allow_nan=False),
]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner))


def attempt(encode, value):
    try:
        return encode(value)
    except Exception as e:
        return type(e), str(e)


@pytest.mark.parametrize('encoder', ENCODERS)
@given(value=VALUES)
def test_the_text_or_the_error_is_that_of_the_encoder(encoder, value):
    encode = encoders.make_encode(encoder)
    assert attempt(encode, value) == attempt(encoder.encode, value)


@pytest.mark.parametrize('value', [object(), {'a': {1}}, {(1, 2): 3}, b'bytes'])
def test_values_of_other_types_are_refused_as_by_the_encoder(value):
    encoder = json.JSONEncoder()
    assert attempt(encoders.make_encode(encoder), value) == attempt(encoder.encode, value)


def test_a_value_that_contains_itself_is_refused_as_by_the_encoder():
    value = {}
    value['self'] = [value]
    with pytest.raises(ValueError, match="Circular reference"):
        encoders.make_encode(json.JSONEncoder())(value)


def test_a_refused_value_does_not_affect_the_next_one():
    encode = encoders.make_encode(json.JSONEncoder())
    value = {'good': 1, 'bad': object()}
    with pytest.raises(TypeError):
        encode(value)
    del value['bad']
    assert encode(value) == '{"good": 1}'
