"""
The words for what has happened in a run, and for what its author can change.
"""
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from kopf._kits.sandbox.storage import Change
from kopf._kits.testing import snapshots

MAX_FIELDS = 3
"""How many changed fields of an object are named."""

MAX_ANSWER = 80
"""How many characters of an answer of an external system are shown."""

CALL_ERRORS = ('call-lose', 'call-429', 'call-500', 'call-timeout')

DUPLICATES = (
    "A call can be repeated after it has succeeded: before you create a thing, find it by a "
    "reference that was created with it; or store a token on the object, wait until it is stored, "
    "and then create the thing with that token.")
"""What to change if there are several things instead of one."""

VAIN_DELETIONS = (
    "A deletion can be repeated after it has succeeded: if the system answers that the thing is "
    "not there, take this for a success.")
"""What to change if a deletion is tried again and again, though the thing is gone."""

NO_CHANGE = "changes nothing"


uncaptured: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
"""Makes a context in which what is written reaches the terminal; pytest captures it otherwise."""


def show_progress(text: str) -> None:
    """Show a text on the terminal, if there is one, instead of the previous text."""
    with uncaptured():
        if sys.stderr.isatty():  # save the cursor, clear the rest of the line, restore the cursor
            print(f'\x1b7\x1b[K{text}\x1b8', end='', file=sys.stderr, flush=True)


def describe_change(change: Change) -> str:
    """Say what a write has changed, e.g. "sets metadata.finalizers, removes spec.field"."""
    if change.old is None or change.type != 'MODIFIED':
        return "creates it" if change.type == 'ADDED' else "deletes it"
    before, after = (dict(_iter_fields(entry.decode())) for entry in (change.old, change.new))
    changed = [f"sets {key}" for key in after if after[key] != before.get(key)]
    changed += [f"removes {key}" for key in before if key not in after]
    left_out = len(changed) - MAX_FIELDS
    if left_out > 0:
        changed[MAX_FIELDS:] = [f"and changes {left_out} more"]
    return ', '.join(changed) or NO_CHANGE


def _iter_fields(obj: Mapping[str, Any], *path: str) -> Iterator[tuple[str, Any]]:
    for key, value in obj.items():
        if path == ('metadata',) and key in snapshots.IGNORED_METADATA:
            continue
        if value and isinstance(value, dict):
            yield from _iter_fields(value, *path, key)
        elif path == ('metadata', 'annotations'):
            yield f"annotation {key}", value
        else:
            yield '.'.join([*path, key]), value


def describe_answer(status: int, body: bytes) -> str:
    """Say what an external system has answered, e.g. ``201 {"id": …``."""
    text = ' '.join(body.decode(errors='replace').split())
    shown = text if len(text) <= MAX_ANSWER else f"{text[:MAX_ANSWER - 1]}…"
    return f"{status} {shown}".rstrip()


def advise(
        strike: str, expected: snapshots.Snapshot, actual: snapshots.Snapshot, *, repeated: bool,
) -> str | None:
    """
    Say what to change in an operator whose objects differ after this kind of fault.

    ``repeated`` is whether any handlers were called more often than without the fault.
    """
    if expected == actual:
        return None
    if strike == 'call-stale':
        return ("What an external system shows can be older: find out by its writes, or wait, "
                "before you create or change anything because of that.")
    if strike == 'stale':
        return ("Indices and lists can be older: make the names and the values from the handled "
                "object, not from what is or is not in an index or a list.")
    if repeated and actual.keys() - expected.keys():
        return ("A repeated call must write the same objects: make their names from the handled "
                "object, not from counters, times, or random values.")
    if repeated and expected.keys() - actual.keys():
        return ("A repeated call must write the same objects: do not leave out any because of what "
                "an earlier call has done.")
    if repeated:
        return ("A repeated call must write the same values: make them from the handled object, "
                "not from counters, times, random values, or earlier results.")
    if strike.startswith('refuse') or strike == 'lose' or strike in CALL_ERRORS:
        race = ("" if expected.keys() != actual.keys() else
                " If no handler does this: let only one handler write each of the fields that "
                "differ, as the order of the writes can change.")
        return ("Do not give up after an error of the API: let it out of the handler, which is "
                f"then called again, or raise kopf.TemporaryError.{race}")
    if strike == 'gap':
        return "Some events are never seen: decide by the current objects, not by the events."
    return ("What is only in memory is lost with the process: keep it in the status of the "
            "object, or find it in the cluster.")
