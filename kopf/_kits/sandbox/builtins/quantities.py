"""
Quantities of resources: numbers with suffixes, as ``1500m`` or ``512Mi``.
"""
import fractions
import functools
import re

_FORM = re.compile(
    r'([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?[0-9]+))', re.ASCII)
_BINARY = ('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')
_DECIMAL = {'n': -9, 'u': -6, 'm': -3, '': 0, 'k': 3, 'M': 6, 'G': 9, 'T': 12, 'P': 15, 'E': 18}


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> fractions.Fraction:
    """The number. Raises `ValueError` if it is no quantity."""
    match = _FORM.fullmatch(text)
    if not match:
        raise ValueError(text)
    sign, number, binary, decimal, exponent = match.groups()
    value = fractions.Fraction(number if number != '.' else '0')
    if binary:
        value *= 1024 ** _BINARY.index(binary)
    else:
        power = int(exponent) if exponent else _DECIMAL[decimal or '']
        value *= fractions.Fraction(10) ** max(-64, min(64, power))
    return -value if sign == '-' else value


@functools.lru_cache(maxsize=1024)
def canonicalize(text: str) -> str:
    """
    The same quantity with the largest suffix that needs no fractions, of the family it came with.
    """
    value = parse(text)
    match = _FORM.fullmatch(text)
    assert match is not None
    if match[5] and value == int(value):
        return _exponential(int(value))
    if match[3] and abs(value) >= 1024 and value == int(value):
        power = 0
        while value % 1024 == 0 and power < len(_BINARY) - 1:
            value, power = value / 1024, power + 1
        return f'{int(value)}{_BINARY[power]}'
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = value / fractions.Fraction(10) ** power
        if scaled == int(scaled) and (scaled or not power):
            return f'{int(scaled)}{suffix}'
    rounded = -(-value * 10 ** 9 // 1) if value > 0 else value * 10 ** 9 // 1
    return f'{rounded}n'


def _exponential(value: int) -> str:
    power = 0
    while value and value % 1000 == 0:
        value, power = value // 1000, power + 3
    return f'{value}e{power}' if power else str(value)
