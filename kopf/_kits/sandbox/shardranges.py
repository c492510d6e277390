"""
Shard selectors (``?shardSelector=``, KEP-5866): ranges of the hashes of a field, joined by ``||``.

The API parses them as CEL. Here, they are parsed as far as they can be right; what cannot be, is
refused in the words of the API where that is simple.
"""
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kopf._cogs.clients.shardselectors import hash_text
from kopf._kits.sandbox.statuses import APIError

FIELDS = ('object.metadata.uid', 'object.metadata.namespace')
END = 1 << 64
MAX_DEPTH = 250  # of CEL

_TOKENS = re.compile(r"""\s*(\|\||'[^']*'|"[^"]*"|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[0-9]+|\S)""")


@dataclass(frozen=True, slots=True)
class ShardSelector:
    """Ranges of hashes of one field: from the first hash to the one before the end."""
    field: str = ''
    ranges: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        return ' || '.join(f"shardRange({self.field}, '0x{start:016x}', '0x{end:016x}')"
                           for start, end in self.ranges)

    def matches(self, *, namespace: str, uid: str) -> bool:
        hashed = hash_text(uid if self.field == FIELDS[0] else namespace)
        return any(start <= hashed < end for start, end in self.ranges)


def parse(text: str) -> ShardSelector:
    """Raises `APIError`, as the API does: it is not even a ``BadRequest`` there."""
    if not text:
        return ShardSelector()
    if not text.strip():
        raise _bad("empty shard selector is not allowed; omit the parameter for unfiltered lists")
    calls = _Parser(text).parse()
    fields = list(dict.fromkeys(field for field, _, _ in calls))
    if len(fields) > 1:
        raise _bad(f'all shard ranges must use the same field, got "{fields[0]}" and "{fields[1]}"')
    return ShardSelector(fields[0], tuple((start, end) for _, start, end in calls))


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = [*_TOKENS.findall(text), '']
        self.at = 0
        self.depth = 0

    def next(self) -> str:
        token: str = self.tokens[self.at]
        self.at += bool(token)
        return token

    def expect(self, *expected: str) -> str:
        token = self.next()
        if token not in expected:
            raise _bad(f"CEL parse error: Syntax error: mismatched input '{token or '<EOF>'}'")
        return token

    def parse(self, end: str = '') -> list[tuple[str, int, int]]:
        calls: list[tuple[str, int, int]] = []
        while True:
            if self.tokens[self.at] == '(':
                self.next()
                self.depth += 1
                if self.depth > MAX_DEPTH:
                    raise _bad(f"CEL parse error: expression recursion limit exceeded: {MAX_DEPTH}")
                calls += self.parse(')')
                self.depth -= 1
            else:
                calls.append(self.call())
            if self.expect('||', end) == end:
                return calls

    def call(self) -> tuple[str, int, int]:
        name = self.next()
        if self.tokens[self.at] != '(':
            kind = 3 if name[:1].isalpha() else 5
            raise _bad(f"unexpected expression kind {kind}; expected shardRange() call or || "
                       "operator")
        self.next()
        args = [self.next()]
        while self.expect(',', ')') == ',':
            args.append(self.next())
        if name != 'shardRange':
            raise _bad(f'unsupported function "{name}"; only shardRange() and || are allowed')
        return _range(args)


def _range(args: Sequence[str]) -> tuple[str, int, int]:
    if len(args) != 3:
        raise _bad(f"shardRange() requires exactly 3 arguments, got {len(args)}")
    field, start, end = args[0], _bound('hexStart', args[1]), _bound('hexEnd', args[2])
    if field not in FIELDS:
        raise _bad(f'unsupported field path "{field}"; supported: {", ".join(FIELDS)}')
    if start >= end:
        raise _bad(f"shard range start {args[1][1:-1]} must be less than end {args[2][1:-1]}")
    return field, start, end


def _bound(name: str, literal: str) -> int:
    text = literal[1:-1]
    digits = text.removeprefix('0x')
    if literal[:1] not in ('"', "'"):
        raise _bad(f"{name} must be a string literal, got int64")
    if not text.startswith('0x'):
        raise _bad(f"{name} must have '0x' prefix, got \"{text}\"")
    if not digits:
        raise _bad(f"{name}: hex value is required after '0x'")
    if len(digits) > 17:
        raise _bad(f'{name}: hex value too long ({len(digits)} chars, max 17): "{digits}"')
    if wrong := re.search('[^0-9a-f]', digits):
        raise _bad(f'{name}: invalid hex character "{wrong[0]}" in "{text}"')
    if len(digits) == 17 and int(digits, 16) != END:
        raise _bad(f"{name}: 17-digit hex value must be '0x10000000000000000' (2^64), "
                   f'got "{text}"')
    if len(digits) < 16:
        raise _bad(f'{name} must be a 0x-prefixed 16-digit hex value, got "{text}" '
                   f'(did you mean "0x{int(digits, 16):016x}"?)')
    return int(digits, 16)


def _bad(why: str) -> APIError:
    return APIError(f"invalid shard selector: {why}", reason='')
