"""
The marks of what is deprecated, for type checkers and editors (PEP 702).
"""
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import deprecated as deprecated
else:
    T = TypeVar('T', bound=Callable)

    def deprecated(message: str, *, category: None) -> Callable[[T], T]:
        """Mark a function, as `typing_extensions` does, whose import would take much longer."""
        def mark(fn: T) -> T:
            fn.__deprecated__ = message
            return fn

        return mark
