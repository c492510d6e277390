"""
Typed kinds: the class is the definition of the resource, the type of its objects in the handlers,
and the selector in the decorators. ``kopf crd examples/23-typed-kinds/example.py`` prints
``crd.yaml``. Each cache gets a deployment; the status is a value of its class, too. The replicas
and the size of the memory are checked by the API. The engine of a cache cannot be changed. Type
``kopf run --sandbox -A examples/23-typed-kinds/example.py``, which needs no ``crd.yaml``; or apply
``crd.yaml``, then ``obj.yaml``, and type ``kubectl get caches``. Then type ``kubectl scale cache
hello --replicas=3``, ``kubectl patch cache hello --type merge -p '{"spec": {"replicas": 99}}'``,
and see that the API refuses the latter. The tests in ``test_example.py`` run the operator with the
least permissions: those that ``kopf rbac`` prints. This example needs ``pip install
annotated-types``.
"""
import dataclasses
import enum
from typing import Annotated

import kopf
from annotated_types import Ge, Le


class Engine(enum.StrEnum):
    REDIS = 'Redis'
    VALKEY = 'Valkey'


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """What is wanted of the cache."""
    engine: Annotated[Engine, kopf.Immutable] = Engine.VALKEY  # The program of the cache.
    replicas: Annotated[int, Ge(0), Le(9)] = 1
    memory: kopf.Quantity = kopf.Quantity('64Mi')  # The memory of each replica.
    port: Annotated[int, Ge(1), Le(65535)] = 6379
    password: kopf.SecretKeyRef | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheStatus:
    replicas: int = 0
    ready_replicas: int = 0
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='caches', short=['ca'],
          scale=kopf.Scale('.spec.replicas', '.status.replicas'),
          columns=[kopf.Column('Engine', '.spec.engine'),
                   kopf.Column('Ready', '.status.readyReplicas')],
          rules=[kopf.CEL("self.spec.engine != 'Redis' || has(self.spec.password)",
                          "Redis needs a password", field='.spec.password')])
class Cache:
    spec: CacheSpec = CacheSpec()
    status: CacheStatus = CacheStatus()


@kopf.reconcile(Cache, owns=['deployments.apps'], conditions=True)
def deploy(name, spec: CacheSpec, children, patch, **_):
    labels = {'cache': name}
    yield {
        'apiVersion': 'apps/v1',
        'kind': 'Deployment',
        'metadata': {'name': name},
        'spec': {
            'replicas': spec.replicas,
            'selector': {'matchLabels': labels},
            'template': {
                'metadata': {'labels': labels},
                'spec': {'containers': [describe_container(spec)]},
            },
        },
    }
    server = children.get('deployments', name)
    status = server.status if server is not None else {}
    patch.status = CacheStatus(
        replicas=status.get('replicas', 0), ready_replicas=status.get('readyReplicas', 0))


def describe_container(spec: CacheSpec):
    password = [] if spec.password is None else [{
        'name': 'PASSWORD',
        'valueFrom': {'secretKeyRef': {'name': spec.password.name, 'key': spec.password.key}},
    }]
    return {
        'name': 'server',
        'image': f'{spec.engine.lower()}:latest',
        'ports': [{'containerPort': spec.port, 'protocol': 'TCP'}],
        'env': password,
        'resources': {'limits': {'memory': str(spec.memory)}},
    }


@kopf.on.update(Cache, field='spec.replicas')
def tell(old: int, new: int, logger, **_):
    logger.info(f"From {old} to {new} replicas.")
