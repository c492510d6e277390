from typing import Any

from kopf._kits.sandbox import statuses


def unmarshalling_error(value: Any, what: str, expected: str) -> statuses.BadRequest:
    """
    A patch is not what its media type promises. ``what`` is a "value", or a field of a structure.
    """
    return statuses.BadRequest(
        f"error decoding patch: json: cannot unmarshal {json_type(value)} "
        f"into Go {what} of type {expected}"
    )


def json_type(value: Any) -> str:
    """The type's name as errors of decoding tell it."""
    if isinstance(value, bool):
        return 'bool'
    for cls, name in (
            (dict, 'object'), (list, 'array'), (str, 'string'), (int, 'number'), (float, 'number')
    ):
        if isinstance(value, cls):
            return name
    return 'null'
