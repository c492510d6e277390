"""
Hashing: which shard an object belongs to. It must never change: all replicas have to agree.

The uids are hashed as API servers do it for their own shards of lists and watches (KEP-5866): by
FNV-1a in 64 bits; each shard is a range of these hashes. Names, e.g. those of namespaces, often
differ only in their last letters, and so FNV-1a puts them into the same range: they are mixed.
"""
OFFSET, PRIME, MASK = 0xcbf29ce484222325, 0x100000001b3, 0xffffffffffffffff


def hash_text(text: str) -> int:
    """Calculate FNV-1a of the text in UTF-8: 64 bits."""
    value = OFFSET
    for byte in text.encode():
        value = (value ^ byte) * PRIME & MASK
    return value


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
