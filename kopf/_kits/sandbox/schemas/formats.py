"""
Formats of strings, as the API knows and understands them: at places laxer than their standards.
"""
import datetime
import ipaddress
import re
from collections.abc import Callable

from kopf._kits.sandbox import naming

_TIME = re.compile(r'([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})')
_GO_DURATION = re.compile(r'[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)')
_UNITS = {('ns', 'nano'): 1e-9, ('us', 'µs', 'μs', 'micro'): 1e-6, ('ms', 'milli'): 1e-3,
          ('s', 'sec'): 1, ('m', 'min'): 60, ('h', 'hr', 'hour'): 3600, ('d', 'day'): 86400,
          ('w', 'week'): 604800}
"""Units of durations, in seconds."""
_CREDIT_CARD = re.compile(
    r'(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}'
    r'|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})')
_RGB = r'\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*'
_HOST = r'[^\W_]'


def _is_date(value: str) -> bool:
    try:
        return len(value) == 10 and bool(datetime.date.fromisoformat(value))
    except ValueError:
        return False


def _is_datetime(value: str) -> bool:
    date, sep, time = value.lower().partition('t')
    match = _TIME.fullmatch(time)
    return bool(
        sep and match and _is_date(date)
        and int(match[1]) < 24 and int(match[2]) < 60 and int(match[3]) < 60)


def _is_duration(value: str) -> bool:
    if _GO_DURATION.fullmatch(value):
        return True
    return any(_find_unit(unit) for unit in re.findall(r'\d+\s*([A-Za-zµ]+)', value))


def _find_unit(unit: str) -> float:
    return next((seconds for names, seconds in _UNITS.items()
                 if unit.lower() in names or unit.startswith(names[-1])), 0)


def parse_duration(value: str) -> datetime.timedelta:
    """The duration that a text of the format means, as ``1h30m`` or ``2 days``."""
    parts = re.findall(r'(\d+\.?\d*|\.\d+)\s*([A-Za-zµμ]+)', value)
    seconds = sum(float(number) * _find_unit(unit) for number, unit in parts)
    return datetime.timedelta(seconds=-seconds if value.startswith('-') else seconds)


def _is_ip(value: str, version: int) -> bool:
    octets = value.split('.')
    if len(octets) == 4 and all(octet.isdecimal() for octet in octets):
        value = '.'.join(str(int(octet)) for octet in octets)  # the API takes leading zeros
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return '%' not in value and (address.version == version or (version == 4 and mapped))


def _is_cidr(value: str) -> bool:
    try:
        return '/' in value and bool(ipaddress.ip_interface(value))
    except ValueError:
        return False


def _is_uri(value: str) -> bool:
    if not re.match(r'[A-Za-z][A-Za-z0-9+.-]*:|/', value) or re.search(r'[\x00-\x1f\x7f]', value):
        return False
    if re.search(r'%(?![0-9A-Fa-f]{2})', value):
        return False
    match = re.match(r'(?:[^:/?#]+:)?//([^/?#]*)', value)
    host = match[1] if match else ''
    return not re.search(r'[\s<>"]', host) and host.count('[') == host.count(']')


def _is_hostname(value: str) -> bool:
    pattern = (
        rf'({_HOST}(-?{_HOST}{{0,62}})?'
        rf'|({_HOST}(({_HOST}|-){{0,61}}{_HOST})?\.)+[^\W\d_]{{2,63}})'
    )
    return (
        len(value) <= 255 and all(len(part) <= 63 for part in value.split('.'))
        and re.fullmatch(pattern, value) is not None)


def _is_isbn(value: str, length: int) -> bool:
    digits = re.sub(r'[\s-]', '', value)
    if length == 10:
        return bool(re.fullmatch(r'[0-9]{9}[0-9X]', digits)) and sum(
            (10 - index) * (10 if digit == 'X' else int(digit))
            for index, digit in enumerate(digits)) % 11 == 0
    return bool(re.fullmatch(r'[0-9]{13}', digits)) and sum(
        int(digit) * (3 if index % 2 else 1) for index, digit in enumerate(digits)) % 10 == 0


def _is_credit_card(value: str) -> bool:
    digits = re.sub(r'[^0-9]+', '', value)
    doubled = [int(digit) * 2 if index % 2 else int(digit)
               for index, digit in enumerate(reversed(digits))]
    return bool(_CREDIT_CARD.fullmatch(digits)) and sum(
        number - 9 if number > 9 else number for number in doubled) % 10 == 0


def _matching(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda value: compiled.fullmatch(value) is not None


def _uuid(version: str, variant: str = '[0-9a-f]') -> Callable[[str], bool]:
    return _matching(
        rf'(?i:[0-9a-f]{{8}}-?[0-9a-f]{{4}}-?{version}[0-9a-f]{{3}}-?{variant}[0-9a-f]{{3}}'
        r'-?[0-9a-f]{12})')


FORMATS: dict[str, Callable[[str], bool]] = {
    'date': _is_date,
    'date-time': _is_datetime,
    'datetime': _is_datetime,
    'duration': _is_duration,
    'uuid': _uuid('[0-9a-f]'),
    'uuid3': _uuid('3'),
    'uuid4': _uuid('4', '[89ab]'),
    'uuid5': _uuid('5', '[89ab]'),
    'ipv4': lambda value: _is_ip(value, 4),
    'ipv6': lambda value: _is_ip(value, 6),
    'cidr': _is_cidr,
    'mac': _matching(
        r'(?i:[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4})'),
    'uri': _is_uri,
    'email': _matching(r'([^<>@]*<[^\s<>@]+@[^\s<>@]+>|[^\s<>@]+@[^\s<>@]+)'),
    'hostname': _is_hostname,
    'byte': _matching(
        r'([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})'),
    'password': lambda value: True,
    'isbn': lambda value: _is_isbn(value, 10) or _is_isbn(value, 13),
    'isbn10': lambda value: _is_isbn(value, 10),
    'isbn13': lambda value: _is_isbn(value, 13),
    'creditcard': _is_credit_card,
    'ssn': _matching(r'[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}'),
    'hexcolor': _matching(r'#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})'),
    'rgbcolor': _matching(rf'rgb\({_RGB},{_RGB},{_RGB}\)'),
    'bsonobjectid': _matching(r'(?i:[0-9a-f]{24})'),
    'k8s-short-name': lambda value: not naming.check_label(value),
    'k8s-long-name': lambda value: not naming.check_subdomain(value),
}
"""Those that the API checks; any other one is ignored."""

NUMERIC = frozenset(['int32', 'int64', 'float', 'double'])
"""Formats of numbers: they are limits."""
