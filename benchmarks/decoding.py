"""
The cost of typed arguments: CPU time per object, for a spec of 0.7 KB.

``python -m benchmarks.decoding``. The budgets: 40 µs for dataclasses, 10 µs for msgspec.
"""

import dataclasses
import enum
import json
import time
from typing import Annotated, Any

import msgspec
import pydantic

import kopf
from kopf._kits.typed import decoding, shapes

RAW = {
    'engine': 'MySQL', 'storage': '100Gi', 'port': 5432, 'replicas': 3, 'maxConnections': 100,
    'labels': {f'label-{i}': f'value-{i}' for i in range(6)},
    'users': [{'name': f'user-{i}', 'password': {'name': f'secret-{i}', 'key': 'password'}}
              for i in range(6)]}


class Engine(enum.StrEnum):
    MYSQL = 'MySQL'
    POSTGRES = 'Postgres'


@dataclasses.dataclass(frozen=True, kw_only=True)
class User:
    name: str
    password: kopf.SecretKeyRef


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataclassSpec:
    engine: Engine
    storage: kopf.Quantity
    port: kopf.IntOrString = 5432
    replicas: int = 1
    users: Annotated[list[User], kopf.ListMap('name')] = dataclasses.field(default_factory=list)
    max_connections: int | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)


class Ref(msgspec.Struct):
    name: str
    key: str


class StructUser(msgspec.Struct):
    name: str
    password: Ref


class MsgspecSpec(msgspec.Struct, rename='camel'):
    engine: Engine
    storage: str
    port: int = 5432
    replicas: int = 1
    users: Annotated[list[StructUser], kopf.ListMap('name')] = []
    max_connections: int | None = None
    labels: dict[str, str] = {}


class MixedSpec(MsgspecSpec, rename='camel'):
    storage: kopf.Quantity  # type: ignore[assignment]


class ModelRef(pydantic.BaseModel):
    name: str
    key: str


class ModelUser(pydantic.BaseModel):
    name: str
    password: ModelRef


class PydanticSpec(pydantic.BaseModel):
    engine: Engine
    storage: str
    port: int = 5432
    replicas: int = 1
    users: Annotated[list[ModelUser], kopf.ListMap('name')] = []
    max_connections: int | None = pydantic.Field(default=None, alias='maxConnections')
    labels: dict[str, str] = {}


def measure(cls: Any, *, number: int = 1000, rounds: int = 9) -> float:
    """Measure the best of several rounds, in seconds."""
    decode = decoding.make(shapes.read(cls), 'spec')
    assert isinstance(decode(RAW), cls)
    taken = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(number):
            decode(RAW)
        taken.append((time.thread_time() - began) / number)
    return min(taken)


if __name__ == '__main__':
    print(f"A spec of {len(json.dumps(RAW))} bytes, µs:")
    for each in (DataclassSpec, MsgspecSpec, MixedSpec, PydanticSpec):
        print(f"{each.__name__:15} {measure(each) * 1e6:6.1f}")
