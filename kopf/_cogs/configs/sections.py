"""
Sections of settings that notice misspelled names and values of wrong types.

Otherwise, a misspelled setting would silently have no effect, and a value of a wrong type would
fail much later and far from its cause.
"""
import collections.abc
import contextlib
import dataclasses
import functools
import logging
import math
import numbers
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

Rule = tuple[Callable[[Any], object], str]
"""
Whether a value of a setting other than None can work, and what can, for the message. It is for
values that would otherwise fail far from here, or have no effect without a message.
"""


@typing.dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
class Section:
    """
    A group of settings. Its subclasses are dataclasses, and name the rules of their fields.

    :raises TypeError: if a value of a wrong type is assigned.
    :raises ValueError: if the value cannot work.
    """

    _rules: ClassVar[Mapping[str, Rule]] = {}

    def __init_subclass__(cls, **rules: Rule) -> None:
        cls._rules = {**cls._rules, **rules}
        if Section in cls.__bases__:  # not those which authors derive from the sections
            dataclasses.dataclass(eq=False, repr=False)(cls)

    # Here, and not by `dataclasses`, which compiles them again for each section at the import.

    def __eq__(self, other: object) -> bool:
        return _get_values(self) == _get_values(other) if type(other) is type(self) else (
            NotImplemented)

    def __repr__(self) -> str:
        values = ', '.join(f'{name}={value!r}' for name, value in _get_values(self).items())
        return f'{type(self).__qualname__}({values})'

    if not TYPE_CHECKING:  # type checkers would accept all names

        def __setattr__(self, name: str, value: Any) -> None:
            hint = _get_hints(type(self)).get(name)
            if hint is not None and not _fits(value, hint):
                number = None if hint is bool else _read_number(name, value)
                if number is None or not _fits(number, hint):
                    raise TypeError(
                        f"{_get_path(type(self))}.{name} must be {_describe(hint)}, not {value!r}.")
                value = number
            check, wanted = self._rules.get(name, (None, ''))
            if value is not None and check is not None and not check(value):
                raise ValueError(f"{_get_path(type(self))}.{name} must be {wanted}, not {value!r}.")
            if hint is None and not name.startswith('_') and not hasattr(type(self), name):
                _complain(type(self), name)
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"There is no {_get_path(type(self))}.{name}{_suggest(type(self), name)}",
                name=name, obj=self)


def _get_values(section: Any) -> Mapping[str, Any]:
    return {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}


@functools.cache
def _get_hints(cls: type[Any]) -> Mapping[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}
    hints = {name: hint for name, hint in typing.get_type_hints(cls).items() if name in names}
    for base in cls.__mro__:
        if Section in base.__bases__:  # not the classes of authors, which may annotate nothing
            for name, member in vars(base).items():
                if isinstance(member, property) and member.fset is not None:
                    hints[name] = typing.get_type_hints(member.fget)['return']
    return hints


def _get_path(cls: type[Section]) -> str:
    name = cls.__name__.removesuffix('Settings').lower()
    return 'settings' if name == 'operator' else f'settings.{name}'


def _complain(cls: type[Section], name: str) -> None:
    suggestion = _suggest(cls, name)
    if suggestion or _get_path(cls) != 'settings':  # authors put values of their own there
        warnings.warn(
            f"There is no {_get_path(cls)}.{name}, so it has no effect{suggestion or '.'}",
            UserWarning, stacklevel=3)


def _suggest(cls: type[Section], name: str) -> str:
    hints = _get_hints(cls)  # type: ignore[arg-type]  # mypy doubts that classes are hashable
    known = [known for known in dir(cls) if not known.startswith('_')] + list(hints)
    import difflib  # only for an error
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {_get_path(cls)}.{close[0]}?" if close else ""


def is_number(value: object) -> bool:
    """Whether the value is a number of any type, but not NaN, which no comparison would notice."""
    return isinstance(value, numbers.Real) and not math.isnan(value)


def _read_number(name: str, value: object) -> float | None:
    """
    Read a number from a text, such as an environment variable, or the level of the log from its
    name; None if it is neither.
    """
    if not isinstance(value, str):
        return None
    levels = logging.getLevelNamesMapping() if name == 'level' else {}
    if value.upper() in levels:
        return levels[value.upper()]
    with contextlib.suppress(ValueError):
        number = float(value)
        return int(number) if number.is_integer() else number
    return None


def _fits(value: Any, hint: Any) -> bool:
    """Whether the value is of the type, or so similar that everything works with it."""
    origin = typing.get_origin(hint) or hint
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if origin is bool:
        return not isinstance(value, str)  # 'false' would be true
    if origin in (int, float):
        return is_number(value)
    if origin is collections.abc.Iterable:
        item, = typing.get_args(hint)
        return isinstance(value, origin) and not isinstance(value, (str, bytes)) and (
            # The items of others, e.g. of endless ones, are not known before they are needed.
            not isinstance(value, collections.abc.Collection)
            or all(_fits(each, item) for each in value))
    if origin is collections.abc.Callable:
        is_entered = hasattr(value, '__aenter__')  # the webhook server is what the block yields
        return (callable(value) or is_entered) and not isinstance(value, type)
    return isinstance(value, origin)


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint) or hint
    if origin in (types.UnionType, typing.Union):
        return ' or '.join(_describe(each) for each in typing.get_args(hint))
    known: Mapping[Any, str] = {
        bool: 'True or False', int: 'an integer', float: 'a number', str: 'a string',
        types.NoneType: 'None', collections.abc.Iterable: 'several numbers',
        collections.abc.Callable: 'a function or an object that can be called, not a class,'}
    return known.get(origin) or f'an object of {origin.__name__}'
