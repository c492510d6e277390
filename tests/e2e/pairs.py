"""
Pairs of versions of an operator: the present one, and the next one with a planted change, or none.
"""
import dataclasses
import random
from collections.abc import Mapping
from typing import Any

RECONCILING = '''
import kopf

@kopf.reconcile(*KIND, owns=['configmaps', 'secrets', 'services', 'deployments.apps'],
                recreate={recreate})
async def children(name, spec, **_):
    for child in make(name, spec):
        yield child

@kopf.on.resume(*KIND)
@kopf.on.create(*KIND)
@kopf.on.update(*KIND, field='spec')
async def mark(patch, **_):
    patch.metadata.annotations['example.com/phase'] = {phase!r}
    patch.status['phase'] = {phase!r}
'''

APPLYING = '''
import kopf

@kopf.on.resume(*KIND)
@kopf.on.create(*KIND)
@kopf.on.update(*KIND, field='spec')
async def apply(name, spec, patch, **_):
    for child in make(name, spec):
        kopf.adopt(child)
        await kopf.apply(child)
    patch.metadata.annotations['example.com/phase'] = {phase!r}
    return {{'phase': {phase!r}}}
'''

CHILDREN = '''
def make(name, spec):
    children = [
        {{'apiVersion': 'v1', 'kind': 'ConfigMap',
          'metadata': {{'name': f'{{name}}-{prefix}-{{i}}', 'labels': {labels!r}}},
          'data': {{'n': str(i), 'text': {text!r}}}}}
        for i in range({count}) if i {condition} spec['n']]
    children.append({{
        'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {{'name': name}},
        'stringData': {{'key': {secret!r}}}}})
    children.append({{
        'apiVersion': 'v1', 'kind': 'Service', 'metadata': {{'name': name}},
        'spec': {{'selector': {{'app': name}}, 'ports': [
            {{'name': 'http', 'port': {port}, 'protocol': 'TCP'}},
            {{'name': 'tcp', 'port': 9000, 'protocol': 'TCP'}}]}}}})
    selector = {{'app': name, **{selector!r}}}
    children.append({{
        'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {{'name': name}},
        'spec': {{'replicas': {replicas}, 'selector': {{'matchLabels': selector}},
                  'template': {{'metadata': {{'labels': selector}}, 'spec': {{'containers': [
                      {{'name': 'app', 'image': {image!r},
                        'env': [{{'name': key, 'value': value}}
                                for key, value in {env!r}.items()]}},
                      {{'name': 'log', 'image': 'log:1'}}]}}}}}}}})
    return children
'''


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two versions, and what is planted: nothing, or a field, and what would come of it."""
    style: str
    old: Mapping[str, Any]
    change: Mapping[str, Any]
    field: str = ''
    """The end of the path of the field that would change, if it is planted."""
    actions: frozenset[str] = frozenset()
    """What would become of objects, if that is planted."""
    restarts: int = 0
    is_refused: bool = False

    @property
    def is_planted(self) -> bool:
        return bool(self.field or self.actions or self.is_refused)

    def write(self, selector: tuple[str, ...], *, is_new: bool) -> str:
        """Write the source of the version."""
        params = {**self.old, **(self.change if is_new else {})}
        note = '# Refactored.\nunused = dict(a=1)\n' if is_new else ''
        text = f'{note}{self.style}{CHILDREN}'.format(**params).replace('KIND', repr(selector))
        return text.replace('i in range', 'i in [*range').replace(' if i ', '] if i ') if (
            is_new) else text


def make_pairs() -> list[Pair]:
    chance = random.Random(38)

    def choose() -> dict[str, Any]:
        return {
            'prefix': chance.choice('abc'), 'count': chance.randint(3, 6), 'condition': '<',
            'labels': {f'example.com/l{i}': str(i) for i in range(chance.randint(1, 3))},
            'text': 'x' * chance.randint(0, 50), 'secret': f'secret{chance.random()}',
            'port': chance.randint(1000, 8000), 'replicas': chance.randint(2, 9),
            'image': f'app:{chance.randint(1, 99)}', 'selector': {}, 'phase': 'Done',
            'env': {f'E{i}': str(chance.random()) for i in range(chance.randint(1, 3))},
            'recreate': False}

    pairs = []
    for style in (RECONCILING, APPLYING):
        prunes = frozenset({'delete'}) if style == RECONCILING else frozenset()
        old = choose()
        pairs += [
            Pair(style, old, {'image': 'app:new'}, 'containers[app].image',
                 restarts=old['replicas']),
            Pair(style, old, {'env': {**old['env'], 'MORE': '1'}}, 'env[MORE]',
                 restarts=old['replicas']),
            Pair(style, old, {'replicas': old['replicas'] + 1}, 'spec.replicas'),
            Pair(style, old, {'port': 8888}, 'ports[http].port'),
            Pair(style, old, {'labels': {**old['labels'], 'new': 'x'}}, 'metadata.labels.new'),
            Pair(style, old, {'phase': 'Other'}, 'annotations[example.com/phase]'),
            Pair(style, old, {'prefix': 'new'}, actions=prunes | {'create'}),
            Pair(style, old, {'secret': 'changed'}, 'data.key'),
            Pair(style, old, {'selector': {'more': 'x'}}, is_refused=True),
        ]
    old = choose()
    pairs += [
        Pair(RECONCILING, old, {'condition': '>='}, actions=frozenset({'delete', 'create'})),
        Pair(RECONCILING, old, {'selector': {'more': 'x'}, 'recreate': True},
             actions=frozenset({'replace'}), restarts=old['replicas'])]
    planted = len(pairs)
    return pairs + [Pair(chance.choice([RECONCILING, APPLYING]), choose(), {})
                    for _ in range(planted)]
