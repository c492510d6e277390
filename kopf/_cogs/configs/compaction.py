"""
The text of an essence if there is little room for it.

There are three forms. Each of them is a JSON object, so that every version of Kopf can read it:

* The essence itself, if it fits.
* The compressed essence: ``{"kopf.dev/compressed": "…"}``, with zlib in Base64.
* The essence with digests of its largest values: ``{"kopf.dev/digests": 1, "spec": {…}}``. Values
  that start with ``kopf.dev/digest:`` are digests.

A digest tells whether a value is the same, but not what the value was. The digest of a dict depends
on the digests of its values only. So it does not matter which of them are replaced with digests.
"""
import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import encoders, nesting

COMPRESSED = 'kopf.dev/compressed'
DIGESTS = 'kopf.dev/digests'
_PREFIX = 'kopf.dev/digest:'
_LENGTH = len(_PREFIX) + 32
_DIGEST_SIZE = _LENGTH + len('""')
_MAX_DECOMPRESSED = 10_000_000

encode = encoders.make_encode(json.JSONEncoder(separators=(',', ':')))
"""Encode an essence as JSON, in the same form everywhere."""

_encode_sorted = encoders.make_encode(json.JSONEncoder(separators=(',', ':'), sort_keys=True))


class Digest(str):
    """The digest of a value that is not known. It equals each value that has this digest."""
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Digest):
            try:
                other = digest(other)
            except (TypeError, ValueError, RecursionError):  # not JSON
                return False
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Reduced(dict[str, Any]):
    """An essence of which some values are digests."""


def digest(value: object) -> Digest:
    """Make the digest of a value. Fields that are null are the same as absent ones."""
    if isinstance(value, Digest):
        return value
    text = _summarise(value) if isinstance(value, Mapping) else _encode_sorted(value)
    return Digest(_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:_LENGTH - len(_PREFIX)])


def _summarise(value: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for key in sorted(value):
        child = value[key]
        if child is None:
            continue
        text = child if isinstance(child, Digest) else (
            _summarise(child) if isinstance(child, Mapping) else _encode_sorted(child))
        if not isinstance(child, Digest) and (len(text) > _LENGTH or _is_like_digest(child)):
            text = digest(child)
        parts.append(f'{_encode_sorted(key)}:{text}')
    return f"{{{','.join(parts)}}}"


def pack(essence: Mapping[str, Any], plain: str, room: int) -> str:
    """
    Encode an essence in the first form that has at most so many bytes; else, in the shortest.

    ``plain`` is the essence as encoded by `encode`.
    """
    is_marked = DIGESTS in essence or COMPRESSED in essence
    is_known = not has_digests(essence, plain)
    if is_known and len(plain) <= room and not is_marked:
        return plain
    if is_known:
        packed = base64.b64encode(zlib.compress(plain.encode())).decode()
        compressed = encode({COMPRESSED: packed})
        if len(compressed) <= room or is_marked:
            return compressed
    clean = _clean(essence)
    reduced = _reduce(clean, room - len(encode({DIGESTS: 1})) + 1)
    if isinstance(reduced, Digest):
        reduced = {key: _reduce(value, _DIGEST_SIZE) for key, value in clean.items()}
    return encode({DIGESTS: 1, **reduced})


def has_digests(essence: Mapping[str, Any], plain: str) -> bool:
    """Whether some values of an essence are digests. ``plain`` is the essence as encoded."""
    return _PREFIX in plain and _has_digests(essence)


def mark(essence: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make an essence with digests of which `unpack` knows that it has some."""
    return {DIGESTS: 1, **_clean(essence)}


def unpack(value: Any) -> Any:
    """
    Convert any form to the essence. What is not an essence is returned as it is.

    :raises ValueError: if it is damaged.
    """
    if not isinstance(value, dict):
        return value
    if DIGESTS in value:
        return Reduced({key: _revive(val) for key, val in value.items() if key != DIGESTS})
    if COMPRESSED in value:
        return _decompress(value[COMPRESSED])
    return value


def is_reduced(encoded: object) -> bool:
    """Whether this text of an essence has digests."""
    return isinstance(encoded, str) and encoded.startswith(f'{{"{DIGESTS}"')


def complete(old: Any, current: Any) -> Any:
    """Replace the digests with the current values where these have not changed."""
    if isinstance(old, Digest):
        return current if old == current else old
    if isinstance(old, dict):
        known = current if isinstance(current, Mapping) else {}
        return {key: complete(value, known.get(key)) for key, value in old.items()}
    return old


def _decompress(packed: str) -> Any:
    try:
        decompressor = zlib.decompressobj()
        raw = decompressor.decompress(base64.b64decode(packed, validate=True), _MAX_DECOMPRESSED)
    except (binascii.Error, zlib.error, TypeError) as e:
        raise ValueError(f"it cannot be decompressed: {e}") from e
    if not decompressor.eof:
        raise ValueError("it is not complete, or too large")
    return nesting.parse(raw)


def _is_like_digest(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_PREFIX)


def _has_digests(value: Any) -> bool:
    return isinstance(value, Digest) or (
        isinstance(value, Mapping) and any(_has_digests(child) for child in value.values()))


def _clean(value: Any) -> Any:
    """Copy without nulls, and with digests of the texts that look like digests."""
    if isinstance(value, Mapping):
        return {key: _clean(child) for key, child in value.items() if child is not None}
    return digest(value) if _is_like_digest(value) else value


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _revive(child) for key, child in value.items()}
    return Digest(value) if _is_like_digest(value) else value


def _reduce(value: Any, room: int) -> Any:
    """Replace the largest values with their digests, until the value has the room."""
    if len(encode(value)) <= room:
        return value
    if not isinstance(value, dict) or not value:
        return digest(value)
    room -= sum(len(encode(key)) + len(':,') for key in value) + 1
    sizes = {key: len(encode(child)) for key, child in value.items()}
    if room < sum(min(size, _DIGEST_SIZE) for size in sizes.values()):
        return digest(value)
    reduced: dict[str, Any] = {}
    for left, key in enumerate(sorted(sizes, key=lambda key: sizes[key])):
        reduced[key] = _reduce(value[key], max(room // (len(sizes) - left), _DIGEST_SIZE))
        room -= len(encode(reduced[key]))
    return {key: reduced[key] for key in value}
