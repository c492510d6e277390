"""
JSON as the API reads and writes it: compact, and strict where Python is lenient.

The API accepts values of 10,000 levels, which Python cannot parse. So, values below some level are
folded: they are kept as strings of JSON with a secret mark, and are unfolded when the object is
encoded. For the other modules, a folded value is one plain value: it is pruned, defaulted, owned,
or replaced as a whole.
"""
import itertools
import json
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from kopf._cogs.structs import nesting
from kopf._kits.sandbox.statuses import Obj

#: As deep as the API reads; deeper bodies are refused before they are parsed.
MAX_DEPTH = 10_000

#: Below that level, values are folded. In the metadata, it is a deeper one: there are the fields of
#: others as deep as they are.
FOLDED_DEPTH, FOLDED_METADATA_DEPTH = 150, 240

_MARK = f'\udcff{secrets.token_hex(8)}:'  # half of a surrogate pair: it cannot be sent by itself
_FOLDED = re.compile(rf'"{_MARK}((?:[^"\\]|\\.)*)"')
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_SURROGATES = re.compile('[\ud800-\udfff]')


class DecodingError(ValueError):
    """Not JSON; the text is as the API's parser would put it."""


def encode(value: Any, *, sort_keys: bool = False) -> bytes:
    """Compact JSON; halves of surrogate pairs become U+FFFD, as they cannot be sent."""
    text = _unfold(json.dumps(
        value, separators=(',', ':'), ensure_ascii=False, sort_keys=sort_keys))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub('\ufffd', text).encode()


def encode_sorted(value: Any) -> bytes:
    """Encode with the keys in alphabetical order, as in responses for custom resources."""
    return encode(value, sort_keys=True)


def decode(raw: bytes) -> Any:
    """
    Any JSON value. Floats that are whole become integers, as they do on the way through the API.

    Raises `DecodingError` for anything else, with the reason in the words of the API.
    """
    try:
        text = raw.decode('utf-8', 'replace').lstrip('\ufeff')
        return _DECODER.decode(_fold(
            text, lambda inner: encode_sorted(_DECODER.decode(inner)).decode()))
    except json.JSONDecodeError as e:
        raise DecodingError(_told(e)) from None
    except RecursionError:
        raise DecodingError("invalid character '{' exceeded max depth") from None
    except ValueError as e:
        raise DecodingError(str(e)) from None


def decode_own(raw: bytes) -> Obj:
    """What was encoded here before: nothing is checked."""
    found: Obj = json.loads(_fold(raw.decode(), lambda inner: inner))
    return found


def _fold(text: str, normalise: Callable[[str], str]) -> str:
    """
    The same JSON with strings in place of what is too deep. Raises `DecodingError`.

    Each folded text is normalised by itself, with what is folded in it; so it is never deep.
    """
    if nesting.is_shallow(text):
        return text
    parts: list[str] = []
    outer: list[list[str]] = []
    depth = copied = 0
    key = ''
    limit = FOLDED_DEPTH
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in '{[':
            if depth == 1:
                limit = FOLDED_METADATA_DEPTH if key == '"metadata"' else FOLDED_DEPTH
            depth += 1
            if depth > MAX_DEPTH:
                raise DecodingError("invalid character '{' exceeded max depth")
            if depth > limit and (depth - limit) % FOLDED_DEPTH == 1:
                parts.append(text[copied:found.start()])
                copied = found.start()
                outer.append(parts)
                parts = []
        elif token in '}]':
            if depth > limit and (depth - limit) % FOLDED_DEPTH == 1:
                inner = _unfold(normalise(''.join([*parts, text[copied:found.end()]])))
                copied = found.end()
                parts = outer.pop()
                parts.append(json.dumps(_MARK + inner, ensure_ascii=False))
            depth -= 1
        elif depth == 1:
            key = token
    return ''.join([*itertools.chain(*outer), *parts, text[copied:]])


def _unfold(text: str) -> str:
    return _FOLDED.sub(lambda found: str(json.loads(f'"{found[1]}"')), text) if (
        _MARK in text) else text


def duplicates(raw: bytes) -> list[str]:
    """Paths of the keys that an object has twice, e.g. ``data.a``; for JSON known to be good."""
    class Pairs(list[tuple[str, Any]]):
        """An object with such keys."""

    found: list[Pairs] = []

    def keep(pairs: list[tuple[str, Any]]) -> Any:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        found.append(Pairs(pairs))
        return found[-1]

    def walk(value: Any, path: str) -> Iterable[str]:
        if isinstance(value, Pairs | dict):
            seen: set[str] = set()
            for key, nested in value.items() if isinstance(value, dict) else value:
                where = f'{path}.{key}' if path else key
                if key in seen:
                    yield where
                seen.add(key)
                yield from walk(nested, where)
        elif isinstance(value, list):
            for index, nested in enumerate(value):
                yield from walk(nested, f'{path}[{index}]')

    root = json.loads(_fold(raw.decode(), lambda inner: inner), object_pairs_hook=keep)
    return list(dict.fromkeys(walk(root, ''))) if found else []


def _parse_float(text: str) -> float | int:
    value = float(text)
    if value in (float('inf'), float('-inf')):
        raise ValueError(f"json: cannot unmarshal number {text} into Go value of type float64")
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


def _parse_constant(text: str) -> None:
    raise ValueError(f"invalid character '{text[0]}' looking for beginning of value")


def _told(error: json.JSONDecodeError) -> str:
    if error.pos >= len(error.doc.rstrip()) or error.msg.startswith('Unterminated string'):
        return "unexpected end of JSON input"
    where = next((place for start, place in _PLACES.items() if error.msg.startswith(start)),
                 "looking for beginning of value")
    return f"invalid character '{error.doc[error.pos]}' {where}"


_PLACES = {
    'Extra data': "after top-level value",
    'Expecting property name': "looking for beginning of object key string",
    "Expecting ':'": "after object key",
    "Expecting ','": "after object key:value pair",
}
"""Where the API finds an error, by what the parser here says of it."""


_DECODER = json.JSONDecoder(parse_float=_parse_float, parse_constant=_parse_constant)
