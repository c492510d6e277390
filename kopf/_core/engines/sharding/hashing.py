"""
Hashing: which shard an object belongs to. It must never change: all replicas have to agree.

The uids are hashed as API servers do it for their own shards of lists and watches (KEP-5866): by
FNV-1a in 64 bits; each shard is a range of these hashes. Names, e.g. those of namespaces, often
differ only in their last letters, and so FNV-1a puts them into the same range: they are mixed.
"""
from collections.abc import Collection

from kopf._cogs.clients import shardselectors
from kopf._cogs.clients.shardselectors import MASK, hash_text


def mix(value: int) -> int:
    """Let each of the 64 bits depend on all bits, by the finalizer of MurmurHash3."""
    value = (value ^ value >> 33) * 0xff51afd7ed558ccd & MASK
    value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53 & MASK
    return value ^ value >> 33


def find_shard_of_uid(uid: str, count: int) -> int:
    """Find the shard (from 0) of an object by its uid, of so many shards."""
    return hash_text(uid) * count >> 64


def find_shard_of_key(key: str, count: int) -> int:
    """Find the shard (from 0) of any other key, of so many shards."""
    return mix(hash_text(key)) * count >> 64


def select(shards: Collection[int], count: int) -> shardselectors.ShardSelector | None:
    """Select the objects of these shards, by their own uids; None if these are all shards."""
    if len(shards) == count:
        return None
    ranges = [(-(-(shard << 64) // count), -(-(shard + 1 << 64) // count)) for shard in shards]
    return shardselectors.make_selector(ranges or [(0, 1)])  # an empty range is refused
