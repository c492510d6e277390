"""
Typed arguments: handlers of declared kinds get values of the author's classes.

The classes are not known here: a declared kind makes the decoders for the arguments of a handler.
"""
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Misfit:
    """
    What does not fit the type of an argument.

    A handler takes it instead of being held if its annotation says so: ``spec: X | kopf.Misfit``.
    """
    raw: Any
    """The value as the API has it."""
    reasons: tuple[str, ...]
    """Why it does not fit: each with the path of the field, e.g. ``spec.replicas: is absent``."""


class MisfitError(ValueError):
    """
    An object does not fit the types of a handler.

    :param reasons: why, each with the path of the field.
    """

    def __init__(self, *reasons: str) -> None:
        super().__init__('; '.join(reasons))
        self.reasons = reasons


@dataclasses.dataclass(frozen=True)
class Argument:
    """How one argument is made."""
    decode: Callable[[Any], Any]
    """Makes the value; it returns a `Misfit` for what does not fit, and never raises an error."""
    takes_misfits: bool = False


FORMER = " (in `old`, which stays as it is: add kopf.Misfit to its type)"
"""The end of reasons that no change of the object can remove."""

Known = dict[tuple[str, Any], tuple[Any, Any]]
"""The decoded values, with the raw values they are made of: each once, for all handlers."""


def decode(
        arguments: Mapping[str, Argument], kwargs: Mapping[str, Any], known: Known,
) -> dict[str, Any]:
    """
    Decode the typed arguments of a handler.

    :raises MisfitError: if some of them do not fit, with the reasons of all of these.
    """
    values: dict[str, Any] = {}
    reasons: list[str] = []
    for name, argument in arguments.items():
        if name not in kwargs:  # the call fails, as it does without types
            continue
        raw = kwargs[name]
        key = name, argument.decode
        entry = known.get(key)
        if entry is None or entry[0] is not raw:
            entry = known[key] = raw, argument.decode(raw)
        values[name] = value = entry[1]
        if isinstance(value, Misfit) and not argument.takes_misfits:
            reasons.extend(f"{it}{FORMER if name == 'old' else ''}" for it in value.reasons)
    if reasons:
        raise MisfitError(*dict.fromkeys(reasons))
    return values
