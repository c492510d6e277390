import functools
import re
from collections.abc import Callable

_CLASSES = {
    'alnum': '0-9A-Za-z', 'alpha': 'A-Za-z', 'ascii': r'\x00-\x7f', 'blank': r'\t ',
    'cntrl': r'\x00-\x1f\x7f', 'digit': '0-9', 'graph': '!-~', 'lower': 'a-z', 'print': ' -~',
    'punct': r'!-/:-@\[-`{-~', 'space': r'\t\n\v\f\r ', 'upper': 'A-Z', 'word': '0-9A-Za-z_',
    'xdigit': '0-9A-Fa-f',
}
_TOKENS = re.compile(r'\\z|\\.|\[:(\w+):\]|\[\^?\]?|\]|\$', re.DOTALL)


class UnknownPattern(ValueError):
    """A regular expression that is none, or that Python has no means for."""


@functools.lru_cache(maxsize=1024)
def compile(pattern: str) -> Callable[[str], object]:
    r"""
    A function that searches for a pattern of the API's dialect (RE2), where Python agrees with it.

    They differ in the end of the text (``$`` and ``\z``) and in the POSIX classes. Classes
    by Unicode properties (``\pL``) are not supported: `UnknownPattern` is raised.
    """
    inside = False

    def translate(match: re.Match[str]) -> str:
        nonlocal inside
        token = match[0]
        if match[1]:
            return _CLASSES.get(match[1], token)
        if token == r'\z' or (token == '$' and not inside):
            return r'\Z'
        if token == ']':
            inside = False
        elif token.startswith('[') and not inside:
            inside = True
        elif token.startswith('['):
            return token.replace('[', r'\[', 1)
        return token

    try:
        return re.compile(_TOKENS.sub(translate, pattern), re.ASCII).search
    except (re.error, RecursionError, OverflowError) as e:
        raise UnknownPattern(str(e)) from None
