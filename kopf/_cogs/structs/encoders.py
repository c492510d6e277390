"""
Encoding of JSON.
"""
import json
from collections.abc import Callable


def make_encode(encoder: json.JSONEncoder) -> Callable[[object], str]:
    """
    Make a function that encodes as the encoder does, with the same errors.

    The encoder prepares itself anew for each value, which takes longer than encoding a small value.
    Here, it is prepared once. It must encode to ASCII without indents, as encoders do by default.
    """
    prepare = getattr(json.encoder, 'c_make_encoder', None)
    if prepare is None:  # in other implementations of Python
        return encoder.encode
    iterate = prepare(
        None, encoder.default, json.encoder.encode_basestring_ascii, None,
        encoder.key_separator, encoder.item_separator,
        encoder.sort_keys, encoder.skipkeys, encoder.allow_nan)

    def encode(value: object) -> str:
        try:
            return ''.join(iterate(value, 0))
        except RecursionError:
            return encoder.encode(value)  # it finds if the value contains itself

    return encode
