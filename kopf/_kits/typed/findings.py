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

_DOCS = 'https://kubernetes.io/docs'
_CRDS = f'{_DOCS}/tasks/extend-kubernetes/custom-resources'
_DEVEL = 'https://github.com/kubernetes/community/blob/main/contributors/devel/sig-architecture'
_KEPS = 'https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery'
SOURCES: Mapping[str, str] = {
    'crdify': 'https://github.com/kubernetes-sigs/crdify/blob/main/docs/validations.md',
    'API': f'{_CRDS}/custom-resource-definitions/',
    'versioning': f'{_CRDS}/custom-resource-definition-versioning/',
    'changes': f'{_DEVEL}/api_changes.md',
    'conventions': f'{_DEVEL}/api-conventions.md',
    'deprecation': f'{_DOCS}/reference/using-api/deprecation-policy/',
    'apply': f'{_DOCS}/reference/using-api/server-side-apply/',
    'KEP-2876': f'{_KEPS}/2876-crd-validation-expression-language',
    'KEP-4008': f'{_KEPS}/4008-crd-ratcheting',
    'KEP-4358': f'{_KEPS}/4358-custom-resource-field-selectors',
}
"""Where the rules are from: the names of the documents, and where these are."""


class Rule:
    """
    What is to be found, and why. The level is that of most of its findings; the sources are names
    in `SOURCES`.
    """

    def __init__(self, name: str, level: Level, meaning: str, *sources: str) -> None:
        self.name, self.level, self.meaning, self.sources = name, level, meaning, sources


COMPATIBILITY: Sequence[Rule] = (
    Rule('definition-removed', 'error', "a kind is not declared any more", 'deprecation'),
    Rule('scope-changed', 'error', "the API refuses the definition", 'crdify', 'API'),
    Rule('kind-changed', 'error', "the API refuses it, unless it is the kind of lists", 'API'),
    Rule('version-gone', 'error', "a served version is removed, or not served any more",
         'deprecation', 'versioning'),
    Rule('storage-version-changed', 'error', "objects must be migrated", 'versioning'),
    Rule('stored-version-removed', 'error',
         "the API refuses the definition, as there can be objects", 'crdify', 'versioning'),
    Rule('conversion-removed', 'error', "no webhook converts the objects", 'versioning'),
    Rule('subresource-removed', 'error', "`status` or `scale` is gone", 'API'),
    Rule('status-subresource-added', 'error', "other requests ignore the status", 'API'),
    Rule('scale-changed', 'error', "`scale` reads or writes other fields", 'API'),
    Rule('selectable-field-removed', 'error', "clients cannot select by a field", 'KEP-4358'),
    Rule('field-removed', 'error', "the API removes the field, or the values of a map",
         'crdify', 'changes'),
    Rule('unknown-fields-removed', 'error', "the API removes what the schema lacks", 'API'),
    Rule('type-changed', 'error', "also if the field could have any value", 'crdify', 'changes'),
    Rule('format-changed', 'error', "the format is another one", 'crdify', 'changes'),
    Rule('required-added', 'error',
         "a field becomes required, unless it has a default, or its parent is new and optional",
         'crdify', 'changes'),
    Rule('enum-narrowed', 'error', "a value is not allowed any more", 'crdify', 'changes'),
    Rule('enum-widened', 'warning', "clients can meet unknown values", 'crdify', 'changes'),
    Rule('bounds-tightened', 'error',
         "a minimum rises, a maximum falls (of values, lengths, items, or properties), or "
         "`multipleOf` changes", 'crdify', 'changes'),
    Rule('pattern-changed', 'error', "a pattern is new or another one", 'crdify', 'changes'),
    Rule('nullable-removed', 'error', "the API removes or refuses `null`", 'crdify', 'API'),
    Rule('combination-changed', 'error',
         "`allOf`, `anyOf`, `oneOf`, or `not` is new or another one", 'crdify', 'changes'),
    Rule('embedding-changed', 'error', "an object becomes an embedded one, or ceases to be", 'API'),
    Rule('list-type-changed', 'error', "a list gets another type, or other keys", 'apply'),
    Rule('map-type-changed', 'error', "a map gets another type", 'apply'),
    Rule('rule-added', 'error',
         "a rule in CEL is new or another one; a warning with `oldSelf`, or if Kubernetes 1.30 or "
         "newer accepts what does not change", 'KEP-2876', 'KEP-4008'),
    Rule('default-changed', 'warning', "objects without the field change", 'crdify', 'changes'),
)
"""What is incompatible with what was there before: see `compatibility.compare`."""

LINT: Sequence[Rule] = (
    Rule('description-missing', 'warning', "`kubectl explain` says nothing", 'conventions'),
    Rule('name-not-camel-case', 'warning', "names are like `maxReplicas`", 'conventions'),
    Rule('boolean-field', 'warning', "an enum can have more values", 'conventions'),
    Rule('float-field', 'warning', "integers and quantities are exact", 'conventions'),
    Rule('phase-field', 'warning', "phases cannot be extended; conditions can", 'conventions'),
    Rule('conditions-not-by-type', 'warning', "conditions are a list by `type`", 'conventions'),
    Rule('list-without-type', 'warning', "server-side apply replaces the whole list", 'apply'),
    Rule('status-without-subresource', 'warning',
         "users and the operator overwrite each other", 'conventions'),
    Rule('rule-without-bounds', 'warning',
         "the API can refuse a rule in CEL on a value of any size", 'KEP-2876'),
    Rule('versions-differ', 'warning',
         "a field of one version is lost or refused in another one", 'crdify', 'versioning'),
)
"""What the conventions of the API advise against: see `linting.lint`."""

ENFORCEMENT: Sequence[Rule] = (
    Rule('not-enforced', 'warning', "the version of Kubernetes ignores it", 'KEP-2876', 'KEP-4358'),
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
