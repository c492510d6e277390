"""
The kinds of custom resources for the tests.
"""
import dataclasses
from typing import Any, ClassVar

from tests.conformance.apis import Object

THING: Object = {
    'type': 'object',
    'required': ['spec'],
    'properties': {
        'spec': {
            'type': 'object',
            'required': ['size'],
            'properties': {
                'size': {'type': 'integer', 'minimum': 1, 'maximum': 10},
                'replicas': {'type': 'integer', 'default': 1},
                'color': {'type': 'string', 'enum': ['red', 'green'], 'default': 'red'},
                'code': {'type': 'string', 'pattern': '^[a-z]+$', 'maxLength': 5, 'minLength': 2},
                'email': {'type': 'string', 'format': 'date-time'},
                'flag': {'type': 'boolean'},
                'ratio': {'type': 'number', 'exclusiveMinimum': True, 'minimum': 0},
                'even': {'type': 'integer', 'multipleOf': 2},
                'any': {'x-kubernetes-preserve-unknown-fields': True},
                'port': {'x-kubernetes-int-or-string': True},
                'maybe': {'type': 'string', 'nullable': True},
                'items': {'type': 'array', 'maxItems': 3, 'items': {'type': 'string'}},
                'labels': {'type': 'object', 'maxProperties': 2,
                           'additionalProperties': {'type': 'string'}},
                'tags': {'type': 'array', 'x-kubernetes-list-type': 'set',
                         'items': {'type': 'string'}},
                'ports': {
                    'type': 'array',
                    'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['name'],
                    'items': {
                        'type': 'object', 'required': ['name'],
                        'properties': {
                            'name': {'type': 'string'}, 'port': {'type': 'integer'},
                            'protocol': {'type': 'string', 'default': 'TCP'}}},
                },
                'nested': {
                    'type': 'object',
                    'properties': {'a': {'type': 'string', 'default': 'x'},
                                   'b': {'type': 'string'}},
                },
                'choice': {
                    'type': 'object',
                    'properties': {'one': {'type': 'string'}, 'two': {'type': 'string'}},
                    'oneOf': [{'required': ['one']}, {'required': ['two']}],
                },
                'atomic': {'type': 'object', 'x-kubernetes-map-type': 'atomic',
                           'properties': {'a': {'type': 'string'}, 'b': {'type': 'string'}}},
                'template': {'type': 'object', 'x-kubernetes-embedded-resource': True,
                             'x-kubernetes-preserve-unknown-fields': True},
            },
        },
        'status': {
            'type': 'object',
            'properties': {
                'phase': {'type': 'string'}, 'replicas': {'type': 'integer'},
                'selector': {'type': 'string'},
                'note': {'x-kubernetes-preserve-unknown-fields': True}},
        },
    },
}

ANYTHING: Object = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}


@dataclasses.dataclass(frozen=True)
class Kinds:
    group: str

    crds: ClassVar[str] = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'
    example: ClassVar[Any] = {'spec': {'size': 5}}

    def path(self, plural: str, *, namespace: str | None = None, version: str = 'v1') -> str:
        within = f'namespaces/{namespace}/' if namespace and plural != 'globes' else ''
        return f'/apis/{self.group}/{version}/{within}{plural}'

    def make(self, plural: str, name: str | None = None, **fields: Any) -> Object:
        metadata = {**({'name': name} if name else {}), **fields.pop('metadata', {})}
        version = fields.pop('version', 'v1')
        kind = plural.removesuffix('s').capitalize()
        return {'apiVersion': f'{self.group}/{version}', 'kind': kind, 'metadata': metadata,
                **fields}

    def crd(self, plural: str, *versions: Object, scope: str = 'Namespaced',
            **names: Any) -> Object:
        kind = plural.removesuffix('s').capitalize()
        return {
            'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
            'metadata': {'name': f'{plural}.{self.group}'},
            'spec': {
                'group': self.group, 'scope': scope,
                'names': {'plural': plural, 'kind': kind, **names},
                'versions': list(versions) or [version('v1')],
            },
        }


def version(name: str, schema: Object = ANYTHING, **fields: Any) -> Object:
    return {'name': name, 'served': True, 'storage': name == 'v1',
            'schema': {'openAPIV3Schema': schema}, **fields}


def make_crds(kinds: Kinds) -> list[Object]:
    scale = {'specReplicasPath': '.spec.replicas', 'statusReplicasPath': '.status.replicas',
             'labelSelectorPath': '.status.selector'}
    columns = [
        {'name': 'Size', 'type': 'integer', 'jsonPath': '.spec.size'},
        {'name': 'Phase', 'type': 'string', 'jsonPath': '.status.phase',
         'description': 'where it is'},
        {'name': 'Color', 'type': 'string', 'jsonPath': '.spec.color', 'priority': 1},
        {'name': 'Age', 'type': 'date', 'jsonPath': '.metadata.creationTimestamp'},
        {'name': 'Note', 'type': 'string', 'jsonPath': r'.metadata.annotations.g\.test/note'},
    ]
    return [
        kinds.crd('things', version(
            'v1', THING, subresources={'status': {}, 'scale': scale},
            additionalPrinterColumns=columns,
            selectableFields=[{'jsonPath': '.spec.color'}],
        ), version('v1beta1', {**THING, 'description': 'An older thing.'}),
            shortNames=['tg', 'tng'], categories=['all', 'toys']),
        kinds.crd('frees'),
        kinds.crd('globes', version('v1', subresources={'status': {}}), scope='Cluster'),
    ]
