"""
Versions of last-handled states: for kinds whose objects are converted between several versions.

A state is comparable only with a state of the same version. So the stored state says its version,
and is converted when the operator has begun to watch another one: otherwise, all objects would look
updated. All functions are pure.
"""
from collections.abc import Mapping
from typing import Any, cast

from kopf._cogs.structs import bodies, dicts

KEY = 'kopf.dev/version'
"""The key of the version in the stored state. No field of an object has such a name."""


def mark(
        essence: bodies.BodyEssence, *, body: bodies.Body, converter: bodies.Converter | None,
) -> bodies.BodyEssence:
    """Add the version of the object to an essence, before the essence is stored."""
    if converter is None:
        return essence
    return cast(bodies.BodyEssence, {**essence, KEY: _get_version(body)})


def update(
        stored: bodies.BodyEssence, *, body: bodies.Body, current: bodies.BodyEssence | None,
        converter: bodies.Converter | None,
) -> tuple[bodies.BodyEssence, bool]:
    """
    Convert a stored essence to the version of the object; return also whether that was needed.

    A state that was stored before there were conversions does not say its version. Then it is the
    version by which it was written, according to the ``managedFields``. What cannot be converted is
    compared as it is, so that no change is lost.
    """
    old = dicts.without(stored, (KEY,))
    if converter is None or current is None:
        return old, False
    wanted = _get_version(body)
    version = cast(Any, stored).get(KEY) or _find_writer(body) or wanted
    if version == wanted:
        return old, False
    try:
        return converter.convert_essence(old, version, current=current, to=wanted), True
    except ValueError:
        return old, True


def _get_version(body: Mapping[str, Any]) -> str:
    return str(body.get('apiVersion') or '').rpartition('/')[2]


def _find_writer(body: bodies.Body) -> str | None:
    """Find the version in which the annotation of the last-handled state was written."""
    for entry in body.metadata.get('managedFields') or ():
        fields = (entry.get('fieldsV1') or {}).get('f:metadata') or {}
        if any(name.endswith('/last-handled-configuration')
               for name in fields.get('f:annotations') or ()):
            return _get_version(entry)
    return None
