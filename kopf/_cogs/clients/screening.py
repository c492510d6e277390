"""
Screening: the metadata of an object in a watch event, without the rest of the event.

The metadata of large objects is parsed many times faster than the whole. It is enough to know that
nobody here needs the object, e.g. because another replica handles it.
"""
import re
from collections.abc import Callable
from typing import Literal, cast

from kopf._cogs.structs import bodies, nesting

MIN_LENGTH = 2048
"""From which length on (bytes) events are screened: parsing only the metadata also takes time."""

EventType = Literal['ADDED', 'MODIFIED', 'DELETED']

Screen = Callable[[EventType | None, bodies.RawBody], bool]
"""
Says whether a listed (None) or changed object is of no use, by a body that has only the metadata.

If so, the object is noted, and the rest of it is not parsed.
"""

_HEAD = re.compile(
    rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":\{'
    rb'(?:"(?:kind|apiVersion)":"[A-Za-z0-9./-]*",){0,2}"metadata":(?=\{)')
"""
How events begin. Up to here, the API server alone decides what is there. All that users write comes
in the metadata, which is parsed, or after it. If anything else comes first, the event has no head.
"""


def read_head(line: bytes) -> tuple[EventType, bodies.RawBody] | None:
    """
    Get the type of the event, and a body that has only the metadata of the object.

    None if the event is short or in any way unusual: then, the caller parses the whole event.
    """
    head = _HEAD.match(line) if len(line) >= MIN_LENGTH else None
    if head is None:
        return None
    try:
        metadata, _ = nesting.parse_at(line.decode(), head.end())
    except ValueError:
        return None
    body = {'metadata': metadata}
    if not metadata.get('uid') or bodies.find_damage(body) is not None:
        return None
    return cast(EventType, head[1].decode()), cast(bodies.RawBody, body)
