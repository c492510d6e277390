"""
The shards of objects: they are the same forever, and of about the same size.
"""
import collections
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.engines.sharding import hashing


@pytest.mark.parametrize(('text', 'value'), [
    ('', 0xcbf29ce484222325), ('a', 0xaf63dc4c8601ec8c), ('foobar', 0x85944171f73967e8)])
def test_hash_is_fnv_1a(text, value):
    assert hashing.hash_text(text) == value


def test_known_objects_stay_in_their_shards():
    uid = '6f3b7d3e-93a5-4f5c-a6dc-0a3b1c2d4e5f'
    assert hashing.find_shard_of_uid(uid, 32) == hashing.hash_text(uid) >> 59
    assert [hashing.find_shard_of_key(f'ns{i}', 32) for i in range(4)] == [10, 2, 17, 27]


@given(st.text(), st.integers(1, 1024))
def test_shard_is_one_of_those_there_are(key, count):
    assert 0 <= hashing.find_shard_of_uid(key, count) < count
    assert 0 <= hashing.find_shard_of_key(key, count) < count


def test_uids_are_spread_evenly():
    source = random.Random(0)
    counts = collections.Counter(
        hashing.find_shard_of_uid(str(uuid.UUID(int=source.getrandbits(128), version=4)), 32)
        for _ in range(32_000))
    assert len(counts) == 32
    assert 850 < min(counts.values()) <= max(counts.values()) < 1150


def test_names_that_differ_in_their_last_letters_are_spread_too():
    counts = collections.Counter(
        hashing.find_shard_of_key(f'team-{i}', 32) for i in range(3200))
    assert len(counts) == 32
    assert 60 < min(counts.values()) <= max(counts.values()) < 140
