"""
Two versions of a kind for the tests, with all sorts of differences, and random objects.
"""
import copy
import random
from dataclasses import dataclass, field
from typing import Annotated, Any

import kopf

NAME = 'databases.convert.example.com'


@dataclass(frozen=True, kw_only=True)
class User:
    name: str
    password: str | None = None
    roles: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Spec:
    storage: str = '1Gi'  # was: sizeGB, in whole units only
    mode: str = 'auto'  # absent in the older version
    engine: str | None = None  # was: kind, of the nested type
    tls: dict[str, str] | None = None  # absent in the older version
    users: Annotated[list[User], kopf.ListMap('name')] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OldUser:
    name: str
    roles: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Type:
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class OldSpec:
    size: Annotated[int, kopf.Wire('sizeGB')] = 1
    type: Type | None = None
    users: Annotated[list[OldUser], kopf.ListMap('name')] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    legacy: str | None = None  # absent in the newer version


def declare(registry: kopf.OperatorRegistry, *, lossless: bool = True) -> Any:
    """Declare both versions, and return the converter."""
    @kopf.crd('convert.example.com', 'v1', plural='databases', storage=True)
    class Database:
        spec: Spec = Spec()

    @kopf.crd('convert.example.com', 'v1alpha1', of=Database)
    class OldDatabase:
        spec: OldSpec = OldSpec()

    kopf.convert(
        OldDatabase, Database,
        kopf.Move('.spec.sizeGB', '.spec.storage', up='{}Gi'.format, down=to_size),
        kopf.Move('.spec.type.kind', '.spec.engine'),
        lossless=lossless, registry=registry)
    return registry._converters[NAME]


def to_size(storage: str) -> int:
    return max(1, int(float(storage.removesuffix('Gi'))))


def make(spec: dict[str, Any], version: str = 'v1', **meta: Any) -> dict[str, Any]:
    return {'apiVersion': f'convert.example.com/{version}', 'kind': 'Database',
            'metadata': {'name': 'one', 'uid': 'u-1', **meta}, 'spec': spec}


def draw(rng: random.Random) -> dict[str, Any]:
    """Make a random spec of the newer version, of which anything can be absent."""
    names = rng.sample(['ann', 'bob', 'joe', 'zoe'], rng.randint(0, 4))
    spec: dict[str, Any] = {
        'storage': rng.choice(['1Gi', '1.5Gi', '2Gi', '0.5Gi']),
        'mode': rng.choice(['auto', 'fast']),
        'ports': rng.sample(range(9), rng.randint(0, 3)),
        'users': [{'name': name, 'roles': rng.sample(['r', 'w'], rng.randint(0, 2)),
                   **({'password': f's-{name}'} if rng.random() < 0.5 else {})} for name in names]}
    if rng.random() < 0.5:
        spec['tls'] = {'cert': 'c'} if rng.random() < 0.7 else {}
    if rng.random() < 0.5:
        spec['engine'] = rng.choice(['my', 'pg'])
    return {key: value for key, value in spec.items() if rng.random() < 0.8}


def mutate(rng: random.Random, old: dict[str, Any], new: dict[str, Any]) -> str:
    """Make one change in a spec of the older version, and the same change in the newer one."""
    edits = ['nothing', 'size', 'kind', 'ports', 'add']
    if old.get('users'):
        edits += ['remove', 'roles', 'reverse']
    edit = rng.choice(edits)
    if edit == 'size':
        old['sizeGB'], new['storage'] = 7, '7Gi'
    elif edit == 'kind':
        old['type'], new['engine'] = {'kind': 'lite'}, 'lite'
    elif edit == 'ports':
        old['ports'], new['ports'] = [1, 2, 3, 99], [1, 2, 3, 99]
    elif edit == 'add':
        for spec in (old, new):
            spec['users'] = [*copy.deepcopy(spec.get('users', [])), {'name': 'eve', 'roles': []}]
    elif edit == 'remove':
        index = rng.randrange(len(old['users']))
        for spec in (old, new):
            spec['users'] = [user for n, user in enumerate(spec['users']) if n != index]
    elif edit == 'roles':
        index = rng.randrange(len(old['users']))
        for spec in (old, new):
            spec['users'] = copy.deepcopy(spec['users'])
            spec['users'][index]['roles'] = ['x']
    elif edit == 'reverse':
        for spec in (old, new):
            spec['users'] = [*reversed(spec['users'])]
    return edit
