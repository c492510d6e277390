from typing import Any

from kopf._kits.sandbox import statuses, wordings


def unmarshalling_error(value: Any, what: str, expected: str) -> statuses.BadRequest:
    """
    A patch is not what its media type promises. ``what`` is a "value", or a field of a structure.
    """
    text = wordings.not_decoded(value, f"{what} of type {expected}")
    return statuses.BadRequest(f"error decoding patch: {text}")
