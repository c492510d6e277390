"""
Selections by hashes: what is requested of the API server, and how its absence is noticed.
"""
import itertools
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients import errors, shardselectors
from kopf._cogs.clients.shardselectors import MAX_RANGES, ShardSelector, hash_text, make_selector


@pytest.mark.parametrize(('text', 'value'), [
    ('', 0xcbf29ce484222325), ('a', 0xaf63dc4c8601ec8c), ('foobar', 0x85944171f73967e8)])
def test_hash_is_fnv_1a(text, value):
    assert hash_text(text) == value


def test_selector_is_in_the_words_of_the_api():
    assert ShardSelector(((0, 1 << 60), (15 << 60, 1 << 64))).query == (
        "shardRange(object.metadata.uid, '0x0000000000000000', '0x1000000000000000') || "
        "shardRange(object.metadata.uid, '0xf000000000000000', '0x10000000000000000')")


def test_adjacent_ranges_are_joined():
    assert make_selector([(20, 30), (0, 10), (10, 20), (31, 40)]).ranges == ((0, 30), (31, 40))


def test_too_many_ranges_are_joined_over_the_narrowest_gaps():
    wide = [(100 * i, 100 * i + 50) for i in range(MAX_RANGES)]
    assert make_selector(wide).ranges == tuple(wide)
    assert make_selector([*wide, (151, 160)]).ranges == (wide[0], (100, 160), *wide[2:])


@given(st.sets(st.integers(0, 2 ** 64), min_size=2, max_size=300))
def test_what_is_joined_covers_all_that_was_to_be_selected(points):
    items = list(itertools.pairwise(sorted(points)))[::2]
    found = make_selector(items).ranges
    assert all(any(first <= begin and end <= last for first, last in found)
               for begin, end in items)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))
    assert len(found) == min(len(items), MAX_RANGES)


def test_selector_covers_the_objects_by_their_uids():
    source = random.Random(0)
    half = ShardSelector(((0, 1 << 63),))
    for _ in range(100):
        uid = str(uuid.UUID(int=source.getrandbits(128), version=4))
        assert half.covers({'metadata': {'uid': uid}}) == (hash_text(uid) < 1 << 63)


@pytest.mark.parametrize(('status', 'message', 'expected'), [
    (400, "no", True),
    (414, "no", True),
    (422, "no", True),
    (431, "no", True),
    (500, "invalid shard selector: no", True),
    (500, "no", False),
    (403, "no", False),
    (410, "no", False),
])
def test_refusals_of_selectors_are_known(status, message, expected):
    assert shardselectors.is_refusal(errors.APIError(message, payload={
        'message': message}, status=status)) == expected
