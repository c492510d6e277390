"""
The vocabulary of typed kinds: what annotations say beyond the types of Python.

Kopf also understands the constraints of annotated-types, of msgspec, and of pydantic: by the names
of their attributes, so none of these libraries is imported.
"""
import dataclasses
import datetime
import decimal
import enum
import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from kopf._core.engines.reconciling import conditions
from kopf._core.intents import handlers

T = TypeVar('T')

IMPLIED = frozenset({'apiVersion', 'kind', 'metadata'})
"""The fields that Kubernetes itself defines in all objects."""


class DeclarationError(TypeError):
    """The API cannot have what is declared. The message names the field, and what to do."""


class Word(enum.Enum):
    """The words that need no arguments."""
    IMMUTABLE = enum.auto()
    NULLABLE = enum.auto()
    FLOAT = enum.auto()
    SET = enum.auto()
    EMBEDDED = enum.auto()
    INT_OR_STRING = enum.auto()
    ATOMIC = enum.auto()


Immutable = Word.IMMUTABLE
"""In ``Annotated``: the field cannot be changed or removed once it is set."""

ListSet = Word.SET
"""In ``Annotated``: the items of the list are unique, and have no order for server-side apply."""

Float = Word.FLOAT
"""
In ``Annotated[float, kopf.Float]``: a float is meant. The API conventions advise against floats, as
they do not survive all clients; `Quantity` and integers do.
"""


@dataclasses.dataclass(frozen=True)
class Wire:
    """
    In ``Annotated``: the name of the field in the API.

    ::

        size_gb: Annotated[int, kopf.Wire('sizeGB')]

    See "Declare typed kinds" in the documentation.

    :param name: the name in the API.
    """
    name: str


@dataclasses.dataclass(frozen=True, init=False)
class ListMap:
    """
    In ``Annotated``: the items of the list are distinguished by these fields.

    ::

        ports: Annotated[list[Port], kopf.ListMap('port', 'protocol')]

    See "Declare typed kinds" in the documentation.

    :param keys: the names of the fields in the API.
    """
    keys: tuple[str, ...]

    def __init__(self, *keys: str) -> None:
        object.__setattr__(self, 'keys', keys)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """
    In ``Annotated``: the string matches a regular expression.

    ::

        host: Annotated[str, kopf.Pattern(r'^[a-z0-9.-]+$')]

    See "Declare typed kinds" in the documentation.

    :param pattern: the expression, in the syntax of RE2.
    """
    pattern: str


@dataclasses.dataclass(frozen=True)
class CEL:
    """
    A rule in CEL: an expression about ``self``, which must be true, and what to say if it is not.

    It is used in ``rules=`` of `kopf.crd`, where ``self`` is the object, or in ``Annotated``, where
    it is the value.

    ::

        replicas: Annotated[int, kopf.CEL('self % 2 == 1', "replicas must be odd")] = 1

    See "Declare typed kinds" in the documentation.

    :param rule: the expression.
    :param message: what users of the API read if the expression is false. Default: the expression.
    :param field: the path of the field to blame, relative to ``self``. Default: ``self``.
    """
    rule: str
    message: str | None = None
    field: str | None = None


@dataclasses.dataclass(frozen=True)
class Column:
    """
    A column of ``kubectl get``, in ``columns=`` of `kopf.crd`.

    ::

        @kopf.crd('example.com', 'v1', columns=[kopf.Column('Title', '.spec.title')])
        class Website: ...

    See "Declare typed kinds" in the documentation.

    :param name: the heading.
    :param path: the path of the field, with the names in the API.
    :param type: the type of the column. Default: that of the field.
    :param priority: columns above 0 are only in ``kubectl get -o wide``. Default: 0.
    :param description: a text for people. Default: none.
    """
    name: str
    path: str
    type: Literal['string', 'integer', 'number', 'boolean', 'date'] | None = None
    priority: int = 0
    description: str | None = None


@dataclasses.dataclass(frozen=True)
class Scale:
    """
    The paths that ``kubectl scale`` and autoscalers use, in ``scale=`` of `kopf.crd`.

    ::

        @kopf.crd('example.com', 'v1', scale=kopf.Scale('.spec.replicas', '.status.replicas'))
        class Website: ...

    See "Declare typed kinds" in the documentation.

    :param replicas: the path of the wanted number of replicas, with the names in the API.
    :param status: the path of the actual number of replicas.
    :param selector: the path of the selector of the pods, as a string. Default: none.
    """
    replicas: str
    status: str
    selector: str | None = None


IntOrString: TypeAlias = Annotated[int | str, Word.INT_OR_STRING]
"""An integer or a string, as in the ports of services."""

Nullable: TypeAlias = Annotated[T | Literal[handlers.MetaFilterToken.ABSENT] | None, Word.NULLABLE]
"""A value that can be null in the API, which is not the same as absent: that is `kopf.ABSENT`."""

Embedded: TypeAlias = Annotated[dict[str, Any], Word.EMBEDDED]
"""A whole object of any kind, as a dict: with ``apiVersion``, ``kind``, and ``metadata``."""

_SUFFIXES: Mapping[str, decimal.Decimal] = {
    **{suffix: decimal.Decimal(10) ** power for suffix, power in zip(
        ('n', 'u', 'm', '', 'k', 'M', 'G', 'T', 'P', 'E'), range(-9, 19, 3), strict=True)},
    **{suffix: decimal.Decimal(1024) ** power for power, suffix in enumerate(
        ('Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'), start=1)}}
_NUMBER = r'(?:\d+(?:\.\d*)?|\.\d+)'
QUANTITY = (
    r'^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))'
    r'(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$')
"""The pattern of quantities, as in the schemas of Kubernetes itself."""
_QUANTITY = re.compile(rf'([+-]?{_NUMBER})(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE])?)', re.ASCII)


@functools.total_ordering
@dataclasses.dataclass(frozen=True, eq=False)
class Quantity:
    """
    A quantity: ``Quantity('500Mi')``, ``Quantity('0.1')``, ``Quantity(3)``.

    It keeps the notation for writing, and is compared by the exact value.

    :param raw: the quantity, as the API has it.
    :raises ValueError: if it is no quantity of Kubernetes.
    """
    raw: int | str

    def __post_init__(self) -> None:
        if isinstance(self.raw, bool) or not _QUANTITY.fullmatch(str(self.raw)):
            raise ValueError(f"{self.raw!r} is no quantity, such as '500Mi', '0.1', or 3")

    @functools.cached_property
    def value(self) -> decimal.Decimal:
        """The exact value."""
        match = _QUANTITY.fullmatch(str(self.raw))
        assert match is not None
        number, exponent, suffix = match.groups()
        return decimal.Decimal(number + (exponent or '')) * _SUFFIXES[suffix or '']

    def __str__(self) -> str:
        return str(self.raw)

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: 'Quantity') -> bool:
        return self.value < other.value if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretKeyRef:
    """A reference to a key of a Secret in the namespace of the object."""
    name: str
    """The name of the Secret."""
    key: str
    """The key in the data of the Secret."""
    optional: bool | None = None
    """Whether the Secret or its key may be absent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigMapKeyRef:
    """A reference to a key of a ConfigMap in the namespace of the object."""
    name: str
    """The name of the ConfigMap."""
    key: str
    """The key in the data of the ConfigMap."""
    optional: bool | None = None
    """Whether the ConfigMap or its key may be absent."""


ATOMIC_TYPES = (SecretKeyRef, ConfigMapKeyRef)
"""The types whose fields belong together: server-side apply replaces them as a whole."""


@dataclasses.dataclass(frozen=True)
class Length:
    """How long a string can be. The name is that of annotated-types."""
    max_length: int


@dataclasses.dataclass(frozen=True)
class Range:
    """How small a number can be. The name is that of annotated-types."""
    ge: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condition:
    """One aspect of the state of an object, as ``metav1.Condition`` of Kubernetes."""
    type: Annotated[str, Length(max_length=316), Pattern(
        r'^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?'
        r'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$')]
    """The aspect, in CamelCase, e.g. Ready."""
    status: Literal['True', 'False', 'Unknown']
    """Whether the condition holds."""
    reason: Annotated[str, Length(max_length=1024), Pattern(f'^{conditions.REASON}$')]
    """Why, as one word in CamelCase, for programs."""
    message: Annotated[str, Length(max_length=32768)]
    """Why, for people."""
    last_transition_time: datetime.datetime
    """When the status has changed last."""
    observed_generation: Annotated[int, Range(0)] | None = None
    """The generation of the object that the condition is about."""


Conditions: TypeAlias = Annotated[list[Condition], ListMap('type')]
"""The conditions of an object, distinguished by their types."""
