"""
The forms that names, labels, and other identifiers must have.

Every function returns the errors of a value in the words of the API, or nothing if it is valid.
"""
import re

_LABEL = re.compile(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?')
_SUBDOMAIN = re.compile(rf'{_LABEL.pattern}(\.{_LABEL.pattern})*')
_DNS_1035 = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')
_QUALIFIED = re.compile(r'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
_VALUE = re.compile(rf'({_QUALIFIED.pattern})?')

_QUALIFIED_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
    "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    f"regex used for validation is '{_QUALIFIED.pattern}')"
)


def check_subdomain(value: str, *, unit: str = 'characters') -> list[str]:
    """Dotted, up to 253 characters: the names of most objects, and of groups."""
    return _check(
        value, 253, unit, _SUBDOMAIN,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
        "'-' or '.', and must start and end with an alphanumeric character "
        f"(e.g. 'example.com', regex used for validation is '{_SUBDOMAIN.pattern}')")


def check_label(value: str) -> list[str]:
    """No dots, up to 63 characters: the names of namespaces, services."""
    return _check(
        value, 63, 'characters', _LABEL,
        "must not contain dots" if _SUBDOMAIN.fullmatch(value) else
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character "
        f"(e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL.pattern}')")


def check_dns1035(value: str) -> list[str]:
    """As a label, but begins with a letter: plurals, versions."""
    return _check(
        value, 63, 'characters', _DNS_1035,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start "
        "with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',"
        f"  or 'abc-123', regex used for validation is '{_DNS_1035.pattern}')")


def check_kind(value: str) -> list[str]:
    """As that, but for the case: kinds."""
    return [f"may have mixed case, but should otherwise match: {problem}"
            for problem in check_dns1035(value.lower())]


def check_segment(value: str) -> list[str]:
    """Whatever fits between the slashes of a path: the names of roles."""
    if value in ('.', '..'):
        return [f"may not be '{value}'"]
    return [f"may not contain '{char}'" for char in '/%' if char in value]


def check_qualified(value: str) -> list[str]:
    """A key of a label: a name, with a subdomain and a slash before it or not."""
    prefix, slash, name = value.rpartition('/')
    if '/' in prefix:
        return [f"a valid label key {_QUALIFIED_TEXT} with an optional DNS subdomain prefix "
                "and '/' (e.g. 'example.com/MyName')"]
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += [f"prefix part {text}" for text in check_subdomain(prefix, unit='bytes')]
    if not name:
        problems.append("name part must be non-empty")
    checked = _check(name, 63, 'bytes', _QUALIFIED, _QUALIFIED_TEXT)
    return problems + [f"name part {text}" for text in checked]


def check_label_value(value: str) -> list[str]:
    return _check(
        value, 63, 'bytes', _VALUE,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  "
        f"or 'my_value',  or '12345', regex used for validation is '{_VALUE.pattern}')")


def _check(value: str, limit: int, unit: str, form: re.Pattern[str], why: str) -> list[str]:
    problems = []
    if len(value.encode('utf-8', 'replace')) > limit:
        problems.append(f"must be no more than {limit} {unit}")
    if not form.fullmatch(value):
        problems.append(why)
    return problems
