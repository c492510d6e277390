"""
Labels: the names that can be those of operators, namespaces, and services.
"""
import re

FAULT = (
    "no DNS label: these have at most 63 lower-case letters, digits, and dashes; they begin with a "
    "letter, and do not end with a dash.")
"""What is wrong with other names."""


def is_label(name: str) -> bool:
    """Whether the name is a DNS label, as services need it (RFC 1035)."""
    return bool(re.fullmatch(r'[a-z]([-a-z0-9]{0,61}[a-z0-9])?', name))
