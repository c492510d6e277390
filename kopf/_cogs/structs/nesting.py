"""
Parsing of JSON that others have written, with a limit of its nesting.

Kubernetes accepts objects of up to 10,000 levels, which Python cannot parse. Python can parse some
objects that Python cannot compare, merge, copy, or encode again: these operations are recursive,
and their limit depends on the current depth of calls. So, all incoming JSON has the same limit: far
below these limits, and far above the needs of real objects.
"""
import json
import re
from typing import Any

MAX_DEPTH = 250
"""How many levels of nested objects and arrays are accepted."""

SKIMMED_DEPTH = 4
"""How many levels `skim` parses: enough for the metadata of the object in a watch event."""

_PASSES = 20
_BRACKETS = b'{}[]'
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)

_CONTAINERS = (dict, list, tuple)
_decoder: Any = json.JSONDecoder()


class TooDeepError(ValueError):
    """The JSON is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"it is nested deeper than {MAX_DEPTH} levels")


def parse(raw: bytes | str) -> Any:
    """
    Parse a JSON document.

    :raises TooDeepError: if the document is nested too deeply.
    :raises ValueError: if the document is not JSON.
    """
    text = raw if isinstance(raw, str) else raw.decode()
    try:
        try:
            value, end = _decoder.scan_once(text, 0)
            is_whole = end == len(text) or text[end:] == '\n'
        except (ValueError, StopIteration):
            is_whole = False
        if not is_whole:  # there are spaces around the document; or it is not JSON
            value = json.loads(text)  # this takes longer for short documents
    except RecursionError:
        raise TooDeepError from None
    if isinstance(raw, str) or len(raw.translate(None, _OTHERS)) > MAX_DEPTH:
        verify_encoded(text, value)  # it counts precisely, but takes twice as long
    return value


def parse_at(text: str, index: int) -> tuple[Any, int]:
    """Parse the JSON value at the index; also return the index of its end. Errors: see `parse`."""
    try:
        value, end = _decoder.raw_decode(text, index)
    except RecursionError:
        raise TooDeepError from None
    if text.count('{', index, end) + text.count('[', index, end) > MAX_DEPTH:
        verify_encoded(text[index:end], value)
    return value, end


def verify_encoded(text: str, value: object) -> None:
    """
    Check the depth of a value by its JSON text, which is much faster than by the value.

    :raises TooDeepError: if the value is nested too deeply.
    """
    if text.count('{') + text.count('[') > MAX_DEPTH and not is_shallow(text):
        verify(value)


def is_shallow(text: str) -> bool:
    """
    Whether the brackets in the text show a small depth. If they do not, the depth is not known.

    Only brackets outside of strings count: in strings, those who write the object choose them, and
    could hide its depth. Without the escaped characters, every second quote ends a string.
    """
    unescaped = text.replace('\\\\', '').replace('\\"', '')
    outside = ''.join(unescaped.split('"')[::2])
    brackets = outside.encode(errors='replace').translate(None, _OTHERS)
    for _ in range(_PASSES):
        if not brackets:
            return True
        brackets = brackets.replace(b'{}', b'').replace(b'[]', b'')
    return not brackets


def verify(value: object) -> None:
    """
    Check the depth of a value made of dicts and lists.

    :raises TooDeepError: if the value is nested too deeply, or contains itself.
    """
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_DEPTH):
        level = list({
            id(item): item for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, _CONTAINERS)
        }.values())
        if not level:
            return
    raise TooDeepError


def skim(raw: bytes | str) -> Any:
    """
    Parse only the upper levels of a JSON document of any depth. The lower levels become None.

    :raises ValueError: if the upper levels are not JSON.
    """
    value, _ = skim_at(raw if isinstance(raw, str) else raw.decode(), 0)
    return value


def skim_at(text: str, index: int) -> tuple[Any, int]:
    """Skim the JSON value at the index; also return the index of its end. Errors: see `skim`."""
    parts: list[str] = []
    depth, copied = 0, index
    for found in _TOKEN.finditer(text, index):
        token = found[0]
        if token in '{[':
            depth += 1
            if depth == SKIMMED_DEPTH + 1:
                parts += [text[copied:found.start()], 'null']
        elif token in '}]':
            if depth == SKIMMED_DEPTH + 1:
                copied = found.end()
            depth -= 1
            if depth == 0:
                parts.append(text[copied:found.end()])
                return json.loads(''.join(parts)), found.end()
    raise ValueError("The JSON does not end.")
