import base64
import json
import random
import string
import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kopf._cogs.configs.compaction import (
    Digest,
    Reduced,
    complete,
    digest,
    encode,
    is_reduced,
    mark,
    pack,
    unpack,
)
from kopf._cogs.structs.diffs import diff

KEYS = st.sampled_from(['a', 'b', 'kopf.dev/digest:x', 'é'])
TEXTS = st.text(max_size=5) | st.text(min_size=50, max_size=90) | st.builds(
    'kopf.dev/digest:{}'.format, st.text(max_size=3))
LEAVES = st.none() | st.booleans() | st.integers() | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=10)
ESSENCES = st.dictionaries(KEYS, VALUES, max_size=3)
MARKED = st.dictionaries(
    st.sampled_from(['a', 'kopf.dev/compressed', 'kopf.dev/digests']), VALUES, max_size=3)


def make_noise(length, seed=0):
    """A text which can be compressed by a quarter at most."""
    return ''.join(random.Random(seed).choices(string.ascii_letters + string.digits, k=length))


def pass_through(essence, room):
    return unpack(json.loads(pack(essence, encode(essence), room)))


def strip(value):
    return {key: strip(val) for key, val in value.items() if val is not None} if (
        isinstance(value, dict)) else value


# The forms.


@given(ESSENCES)
def test_what_fits_is_packed_as_it_is(essence):
    plain = encode(essence)
    assert pack(essence, plain, len(plain)) == plain


@given(ESSENCES, st.integers(-100, 500))
def test_the_room_is_kept_unless_even_digests_need_more(essence, room):
    packed = pack(essence, encode(essence), room)
    least = pack(essence, encode(essence), 0)
    assert len(packed) <= max(room, len(least))
    assert len(least) <= 22 + sum(len(encode(key)) + 52 for key in essence)


def test_what_does_not_fit_is_compressed():
    essence = {'spec': {'text': 'x' * 1000}}
    packed = json.loads(pack(essence, encode(essence), 900))
    assert list(packed) == ['kopf.dev/compressed']
    assert json.loads(zlib.decompress(base64.b64decode(packed['kopf.dev/compressed']))) == essence
    assert unpack(packed) == essence


def test_only_the_largest_values_of_what_does_not_fit_compressed_are_digests():
    essence = {'spec': {'a': 1, 'b': {'c': make_noise(1000), 'd': make_noise(100)}, 'e': [2]},
               'metadata': {'labels': {'f': 'g'}}}
    packed = pack(essence, encode(essence), 400)
    assert len(packed) <= 400
    assert is_reduced(packed)
    assert json.loads(packed) == {
        'kopf.dev/digests': 1,
        'spec': {'a': 1, 'b': {'c': str(digest(make_noise(1000))), 'd': make_noise(100)}, 'e': [2]},
        'metadata': {'labels': {'f': 'g'}}}


def test_too_many_values_have_one_digest():
    essence = {'data': {make_noise(10, i): make_noise(30, i) for i in range(1000)}, 'x': 1}
    assert json.loads(pack(essence, encode(essence), 1000)) == {
        'kopf.dev/digests': 1, 'data': str(digest(essence['data'])), 'x': 1}


# Reading.


@given(MARKED | ESSENCES, st.integers(0, 500))
def test_what_was_packed_equals_what_is_unpacked(essence, room):
    unpacked = pass_through(essence, room)
    if isinstance(unpacked, Reduced):
        assert strip(unpacked) == strip(essence)
        assert not diff(complete(unpacked, essence), essence)
    else:
        assert unpacked == essence


@given(ESSENCES, ESSENCES, st.integers(0, 300))
def test_what_was_packed_shows_the_changed_fields_and_no_others(essence, other, room):
    expected = {item.field for item in diff(essence, other)}
    old = complete(pass_through(essence, room), other)
    found = {item.field for item in diff(old, other)}
    assert bool(found) == bool(expected)
    for field in expected:  # or a parent of it, if the parent has one digest
        assert any(field[:len(other)] == other for other in found)
    for field in found:
        assert any(other[:len(field)] == field for other in expected)


@given(ESSENCES, st.integers(0, 300), st.integers(0, 300))
def test_what_was_packed_can_be_packed_again(essence, room, other_room):
    once = pass_through(essence, room)
    again = pass_through(once, other_room)
    assert isinstance(again, Reduced) or not isinstance(once, Reduced)
    assert strip(again) == strip(essence)
    assert digest(again) == digest(once) == digest(essence)


@pytest.mark.parametrize('value', [None, 1, 'text', [], {}, {'spec': {'a': 'kopf.dev/digest:x'}}])
def test_what_is_plain_is_unpacked_as_it_is(value):
    unpacked = unpack(value)
    assert unpacked is value


@pytest.mark.parametrize('packed', [
    None, 1, {}, 'ä', '!', '', base64.b64encode(b'no zlib').decode(),
    base64.b64encode(zlib.compress(b'{"spec":{}}' * 100)[:-10]).decode(),
    base64.b64encode(zlib.compress(b'{"spec":')).decode(),
    base64.b64encode(zlib.compress(b'"' + b'x' * 20_000_000 + b'"')).decode(),
    base64.b64encode(zlib.compress(b'[' * 1000 + b']' * 1000)).decode(),
])
def test_what_is_damaged_is_an_error(packed):
    with pytest.raises(ValueError):
        unpack({'kopf.dev/compressed': packed})


@given(ESSENCES, st.integers(0, 300))
def test_marked_essences_are_unpacked_as_they_are(essence, room):
    unpacked = pass_through(essence, room)
    assume(isinstance(unpacked, Reduced))
    assert unpack(json.loads(encode(mark(unpacked)))) == unpacked


# Digests.


@given(VALUES, VALUES)
def test_digests_are_equal_if_the_values_do_not_differ(value, other):
    is_same = encode_typed(value) == encode_typed(other)  # for Python, also True equals 1
    assert (digest(value) == digest(other)) is is_same
    assert (digest(value) != digest(other)) is not is_same
    assert (digest(value) == other) is is_same
    assert (other == digest(value)) is is_same
    assert ([other] != [digest(value)]) is not is_same


def encode_typed(value):
    return json.dumps(strip(value), sort_keys=True)


@pytest.mark.parametrize('other', [
    object(), {1: 2, 'a': 3}, {'a': object()}, [object()], 'x', None])
def test_digests_differ_from_anything_else(other):
    assert digest('value') != other
    assert not digest('value') == other  # noqa: SIM201


def test_digests_are_texts_which_are_kept_as_they_are():
    value = digest('value')
    assert value == 'value'
    assert str(value).startswith('kopf.dev/digest:')
    assert json.loads(json.dumps(value)) == str(value)
    assert hash(value) == hash(str(value))
    assert isinstance(value, Digest)


def test_only_the_changed_fields_are_unknown():
    old = {'spec': {'a': digest('a'), 'b': digest('b'), 'c': {'d': digest('d'), 'e': 1}}}
    assert complete(old, {'spec': {'a': 'a', 'b': 'x', 'c': 2}}) == {
        'spec': {'a': 'a', 'b': digest('b'), 'c': {'d': digest('d'), 'e': 1}}}
    assert complete(old, None) == old
