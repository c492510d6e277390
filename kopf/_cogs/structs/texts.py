"""
Texts for people, where their length is limited.
"""


def cut(text: str, limit: int, *, marker: str = '...') -> str:
    """
    Cut out the middle of a text that is too long. The limit is in bytes of UTF-8, not characters.
    """
    encoded = text.encode('utf-8', errors='replace')
    if len(encoded) <= limit:
        return encoded.decode()
    infix = marker.encode()
    tail = (limit - len(infix) + 1) // 2
    head = limit - len(infix) - tail
    parts = (encoded[:head], infix, encoded[-tail:])
    return ''.join(part.decode(errors='ignore') for part in parts)
