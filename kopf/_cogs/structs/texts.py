"""
Texts for people, where their length is limited, or where others have written a part of them.
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


def make_entry(text: str) -> str:
    """
    Make an entry of a list: its further lines are indented, so that none looks like other entries,
    e.g. in a diff; and nothing in it controls the terminal.
    """
    return '\n      '.join(map(make_line, text.splitlines()))


def make_line(text: str) -> str:
    """Make a line that can be in the log or in a header: without what is not printable."""
    return ''.join(char if char.isprintable() else ' ' for char in text)
