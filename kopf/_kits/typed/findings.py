"""
The rules for custom resource definitions, and what is found by them.
"""
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

Level = Literal['error', 'warning']
Definition = Mapping[str, Any]
"""A CustomResourceDefinition of ``apiextensions.k8s.io/v1``."""
Schema = Mapping[str, Any]
"""A node of an ``openAPIV3Schema``."""

SOURCES: Mapping[str, str] = {
    'crdify': 'https://github.com/kubernetes-sigs/crdify/blob/main/docs/validations.md',
    'API': 'https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/'
           'custom-resource-definitions/',
    'versioning': 'https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/'
                  'custom-resource-definition-versioning/',
    'changes': 'https://github.com/kubernetes/community/blob/main/contributors/devel/'
               'sig-architecture/api_changes.md',
    'conventions': 'https://github.com/kubernetes/community/blob/main/contributors/devel/'
                   'sig-architecture/api-conventions.md',
    'deprecation': 'https://kubernetes.io/docs/reference/using-api/deprecation-policy/',
    'apply': 'https://kubernetes.io/docs/reference/using-api/server-side-apply/',
    'KEP-2876': 'https://github.com/kubernetes/enhancements/tree/master/keps/'
                'sig-api-machinery/2876-crd-validation-expression-language',
    'KEP-4008': 'https://github.com/kubernetes/enhancements/tree/master/keps/'
                'sig-api-machinery/4008-crd-ratcheting',
    'KEP-4358': 'https://github.com/kubernetes/enhancements/tree/master/keps/'
                'sig-api-machinery/4358-custom-resource-field-selectors',
}
"""Where the rules are from: the names of the documents, and where these are."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """
    What is to be found. ``level`` is the level of most of what it finds; ``sources`` are the names
    of documents in `SOURCES`.
    """

    name: str
    level: Level
    meaning: str
    sources: Sequence[str]


COMPATIBILITY: Sequence[Rule] = (
    Rule('definition-removed', 'error', "the whole kind is not declared any more",
         ['deprecation']),
    Rule('scope-changed', 'error', "another scope: the API refuses the definition",
         ['crdify', 'API']),
    Rule('kind-changed', 'error', "another kind, or kind of lists: the API refuses the definition",
         ['API']),
    Rule('name-removed', 'warning', "the singular, a short name, or a category is gone",
         ['API']),
    Rule('version-gone', 'error', "a served version is removed, or not served any more",
         ['deprecation', 'versioning']),
    Rule('storage-version-changed', 'error', "objects are stored in another version",
         ['versioning']),
    Rule('stored-version-removed', 'error',
         "a version is removed in which objects are stored: the API refuses the definition",
         ['crdify', 'versioning']),
    Rule('conversion-removed', 'error', "a webhook does not convert the versions any more",
         ['versioning']),
    Rule('subresource-removed', 'error', "the subresource `status` or `scale` is gone", ['API']),
    Rule('status-subresource-added', 'error',
         "the status is ignored in requests for the object itself", ['API']),
    Rule('scale-changed', 'error', "the subresource `scale` reads or writes other fields",
         ['API']),
    Rule('selectable-field-removed', 'error', "objects cannot be selected by a field any more",
         ['KEP-4358']),
    Rule('field-removed', 'error',
         "the API removes a field, or the values of a map, from the objects",
         ['crdify', 'changes']),
    Rule('unknown-fields-removed', 'error',
         "the API removes the fields that the schema does not mention", ['API']),
    Rule('type-changed', 'error',
         "another type; also, if a field is declared that could have any value before",
         ['crdify', 'changes']),
    Rule('format-changed', 'error', "another format", ['crdify', 'changes']),
    Rule('required-added', 'error',
         "a field is newly required, without a default; new fields in new optional parents can be",
         ['crdify', 'changes']),
    Rule('enum-narrowed', 'error', "a value is not allowed any more", ['crdify', 'changes']),
    Rule('enum-widened', 'warning', "clients can meet a value that they do not know",
         ['crdify', 'changes']),
    Rule('bounds-tightened', 'error',
         "less is allowed by a minimum, a maximum, a length, a number of items or of properties, "
         "or `multipleOf`", ['crdify', 'changes']),
    Rule('pattern-changed', 'error', "another pattern, or a new one", ['crdify', 'changes']),
    Rule('nullable-removed', 'error', "the API removes or refuses `null`", ['crdify', 'API']),
    Rule('combination-changed', 'error',
         "another `allOf`, `anyOf`, `oneOf`, or `not`, or a new one", ['crdify', 'changes']),
    Rule('embedding-changed', 'error',
         "the value becomes an object with `apiVersion` and `kind`, or is none any more", ['API']),
    Rule('list-type-changed', 'error', "another type of a list, or other keys of its items",
         ['apply']),
    Rule('map-type-changed', 'error', "another type of a map", ['apply']),
    Rule('rule-added', 'error',
         "a new or changed rule in CEL; only a warning if it uses `oldSelf`, or if Kubernetes 1.30 "
         "or newer accepts what was there before", ['KEP-2876', 'KEP-4008']),
    Rule('default-changed', 'warning',
         "another default, a new one, or none any more: objects without the field change",
         ['crdify', 'changes']),
)
"""What is incompatible with what was there before: see `compatibility.compare`."""

LINT: Sequence[Rule] = (
    Rule('description-missing', 'warning', "`kubectl explain` has nothing to say about a field",
         ['conventions']),
    Rule('name-not-camel-case', 'warning', "fields are named like `maxReplicas`", ['conventions']),
    Rule('boolean-field', 'warning', "a boolean has no room for a third value: an enum has",
         ['conventions']),
    Rule('float-field', 'warning',
         "floating-point numbers do not survive round trips: use an integer or a quantity",
         ['conventions']),
    Rule('map-of-objects', 'warning',
         "a list with `x-kubernetes-list-type: map` says what the keys are", ['conventions']),
    Rule('phase-field', 'warning', "phases cannot be extended: use conditions", ['conventions']),
    Rule('conditions-not-by-type', 'warning',
         "`status.conditions` is a list with `x-kubernetes-list-type: map`, by `type`",
         ['conventions']),
    Rule('list-without-type', 'warning',
         "server-side apply replaces a list as a whole, unless its type is declared", ['apply']),
    Rule('status-without-subresource', 'warning',
         "without the subresource, users and the operator overwrite each other", ['conventions']),
    Rule('rule-without-bounds', 'warning',
         "the API can refuse a rule in CEL on a list, a map, or a string of any length",
         ['KEP-2876']),
    Rule('versions-differ', 'warning',
         "without a conversion, a field of one version is lost or refused in another one",
         ['crdify', 'versioning']),
)
"""What the conventions of the API advise against: see `linting.lint`."""

ENFORCEMENT: Sequence[Rule] = (
    Rule('not-enforced', 'warning', "the API server of `--kubernetes` ignores a part of the schema",
         ['API', 'KEP-2876', 'KEP-4358']),
)
"""What older versions of Kubernetes ignore: see `enforcement.find_unenforced`."""

RULES: Mapping[str, Rule] = {
    rule.name: rule for rule in (*COMPATIBILITY, *LINT, *ENFORCEMENT)}


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """
    What a rule has found in a definition.

    ``path`` is the name of the definition, the version, and the field, as far as it concerns them:
    ``databases.example.com/v1.spec.users[*].name``.
    """

    path: str
    rule: str
    level: Level
    text: str

    @property
    def key(self) -> str:
        """The rule and the path, as ``--allow`` has them."""
        return f'{self.rule}:{self.path}'

    def __str__(self) -> str:
        return f"{self.level}: {self.path}: {self.text} [{self.rule}]"


def find(rule: str, path: str, text: str, *, level: Level | None = None) -> Finding:
    """Make a finding, of the level of its rule unless another one is given."""
    return Finding(path, rule, level or RULES[rule].level, text)


def iter_schemas(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Iterate over a schema and all schemas in it, with their paths."""
    yield path, schema
    for place, sub in iter_children(path, schema):
        yield from iter_schemas(place, sub)


def iter_children(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Iterate over the schemas of the fields, the items, and the values of a map."""
    for key, sub in (schema.get('properties') or {}).items():
        yield add_key(path, key), sub
    for key in ('items', 'additionalProperties'):
        if isinstance(schema.get(key), Mapping):
            yield f'{path}[*]', schema[key]


def add_key(path: str, key: str) -> str:
    """Get the path of a field of an object: ``.key``, or ``['a key']`` if it is no simple word."""
    return f'{path}.{key}' if re.fullmatch(r'[\w-]+', key) else f'{path}[{key!r}]'
