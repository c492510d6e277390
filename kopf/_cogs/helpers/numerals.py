"""
What counts as a number, wherever somebody gives one: of any type, but not NaN.
"""
import math
import numbers


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not math.isnan(value)
