"""
Shard selectors: let the API server select the objects of lists and watches by hashes of their uids.

See KEP-5866, the feature gate ``ShardedListAndWatch``. A server without it ignores the selector,
and sends all objects. The responses do not tell that reliably (``metadata.shardInfo`` is never in
those of custom resources), but the objects do: see `ShardSelector.covers`.
"""
import dataclasses
import itertools
from collections.abc import Iterable

from kopf._cogs.clients import errors
from kopf._cogs.structs import bodies

OFFSET, PRIME, MASK = 0xcbf29ce484222325, 0x100000001b3, 0xffffffffffffffff

MAX_RANGES = 64
"""How many ranges are requested at most: their URL is then shorter than the usual 8 KB."""

Range = tuple[int, int]
"""The first hash, and the one after the last. The hashes have 64 bits."""


def hash_text(text: str) -> int:
    """Calculate FNV-1a of the text in UTF-8: 64 bits."""
    value = OFFSET
    for byte in text.encode():
        value = (value ^ byte) * PRIME & MASK
    return value


@dataclasses.dataclass(frozen=True)
class ShardSelector:
    """Selects the objects whose uids have hashes in these ranges."""
    ranges: tuple[Range, ...]

    @property
    def query(self) -> str:
        """The selector as the query parameter ``shardSelector``."""
        return ' || '.join(
            f"shardRange(object.metadata.uid, '0x{begin:016x}', '0x{end:016x}')"
            for begin, end in self.ranges)

    def covers(self, body: bodies.RawBody) -> bool:
        """Whether the object is selected. If any other one comes, the server has not selected."""
        value = hash_text(body['metadata'].get('uid') or '')
        return any(begin <= value < end for begin, end in self.ranges)


def make_selector(ranges: Iterable[Range]) -> ShardSelector:
    """
    Select at least these ranges.

    If there are too many of them, those with the least in between are joined, so that some more
    objects come.
    """
    items = sorted(ranges)
    gaps = [
        (after[0] - before[1], index)
        for index, (before, after) in enumerate(itertools.pairwise(items), 1)
        if after[0] > before[1]]
    cuts = sorted(index for _, index in sorted(gaps)[-(MAX_RANGES - 1):])
    return ShardSelector(tuple(
        (items[first][0], items[end - 1][1])
        for first, end in itertools.pairwise([0, *cuts, len(items)])))


def is_refusal(error: errors.APIError) -> bool:
    """
    Whether a request can have failed because of its selector.

    Kubernetes 1.36 responds to selectors that it does not understand with HTTP 500, and without a
    reason.
    """
    return error.status in (400, 414, 422, 431) or 'shard selector' in str(error)
