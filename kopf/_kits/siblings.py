"""
Siblings: the other processes of one operator, if the command line has started several of them.
"""
import os
from collections.abc import Mapping

VARIABLE = 'KOPF_SIBLINGS'


def make_environment(number: int) -> Mapping[str, str]:
    """Make the environment of each process, if there is this number of processes."""
    return {**os.environ, VARIABLE: str(number - 1)}


def are_there() -> bool:
    """Whether this process has siblings."""
    return os.environ.get(VARIABLE, '0') != '0'
