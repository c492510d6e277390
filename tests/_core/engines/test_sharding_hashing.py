"""
The shards of objects: they are the same forever, and of about the same size.
"""
import collections
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients import shardselectors
from kopf._cogs.clients.shardselectors import hash_text
from kopf._core.engines.sharding import hashing


def test_known_objects_stay_in_their_shards():
    uid = '6f3b7d3e-93a5-4f5c-a6dc-0a3b1c2d4e5f'
    assert hashing.find_shard_of_uid(uid, 32) == hash_text(uid) >> 59
    assert [hashing.find_shard_of_key(f'ns{i}', 32) for i in range(4)] == [10, 2, 17, 27]


@pytest.mark.parametrize(('value', 'mixed'), [
    (0, 0), (1, 0xb456bcfc34c2cb2c), (2, 0x3abf2a20650683e7), (2**64 - 1, 0x64b5720b4b825f21)])
def test_keys_are_mixed_as_by_murmurhash3(value, mixed):
    assert hashing.mix(value) == mixed


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


@given(st.integers(2, 300), st.data())
def test_shards_are_selected_by_the_uids_of_their_objects(count, data):
    shards = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1).filter(
        lambda shards: len(shards) < 60))
    selection = hashing.select(shards, count)
    for _ in range(20):
        uid = data.draw(st.uuids().map(str))
        assert selection.covers({'metadata': {'uid': uid}}) == (
            hashing.find_shard_of_uid(uid, count) in shards)


def test_nothing_is_selected_if_all_shards_are_needed():
    assert hashing.select(range(8), 8) is None


def test_the_least_that_can_be_is_selected_if_no_shards_are_needed():
    assert hashing.select((), 8) == shardselectors.ShardSelector(((0, 1),))
