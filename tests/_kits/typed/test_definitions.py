import copy

import pytest

from kopf._kits.sandbox.schemas import defaulting, nodes, pruning, structure, validating
from tests._kits.typed import declared
from tests._kits.typed.declared import LIBRARIES


def get_schema(definition):
    [version] = definition['spec']['versions']
    return version['schema']['openAPIV3Schema']


class Judge:
    """Judges objects as the API does."""

    def __init__(self, raw):
        self.schema = nodes.Schema(raw)

    def fill(self, spec):
        obj, _ = pruning.prune(self.schema, {
            'apiVersion': 'a/v1', 'kind': 'A', 'metadata': {'name': 'a'},
            'spec': copy.deepcopy(spec)})
        return defaulting.default(self.schema, obj)

    def find(self, spec, old=None):
        before = nodes.NOTHING if old is None else self.fill(old)
        return validating.validate(self.schema, self.fill(spec), before)


@pytest.fixture(params=LIBRARIES)
def library(request):
    return request.param


def test_schemas_are_structural(library):
    schema = get_schema(declared.define(library))
    assert structure.validate_structure(schema, 'schema') == []
    assert list(structure.find_unrecognized_formats(schema)) == []


def test_the_same_fields_have_the_same_schema_in_each_library():
    expected = get_schema(declared.define('dataclass'))['properties']['spec']['properties']
    for library in LIBRARIES:
        spec = get_schema(declared.define(library))['properties']['spec']
        found = spec['properties']
        for name in found:
            assert found[name] == expected[name], (library, name)


def test_valid_values_are_accepted_and_invalid_ones_are_refused(library):
    judge = Judge(get_schema(declared.define(library)))
    for case in declared.list_cases(library):
        for value in case.valid:
            assert judge.find(declared.hold(case, value)) == [], (case.name, value)
        for value in case.invalid:
            assert judge.find(declared.hold(case, value)), (case.name, value)
        assert bool(judge.find(declared.leave(case))) == case.is_required, case.name


def test_defaults_are_those_of_the_types(library):
    judge = Judge(get_schema(declared.define(library)))
    for case in declared.list_cases(library):
        spec = judge.fill(declared.leave(case))['spec'][declared.to_wire(case.name)]
        assert spec.get('value', declared.NOTHING) == case.filled, case.name


def test_what_is_immutable_cannot_be_changed_removed_or_removed_with_its_parent(library):
    judge = Judge(get_schema(declared.define(library)))
    for case in declared.list_cases(library):
        for changes, is_refused in [(case.invalid_changes, True), (case.valid_changes, False)]:
            for before, after in changes:
                old, new = (declared.leave(case) if value is None else declared.hold(case, value)
                            for value in (before, after))
                assert bool(judge.find(new, old)) == is_refused, (case.name, before, after)


def test_of_random_shapes_the_valid_values_are_accepted_and_their_mutants_are_refused(library):
    cases = declared.draw_cases(100)
    definition = declared.define_cases(library, cases)
    assert structure.validate_structure(get_schema(definition), 'schema') == []
    judge = Judge(get_schema(definition))
    for case in cases:
        for value in case.valid:
            assert judge.find(declared.hold(case, value)) == [], (case, value)
        for value in case.invalid:
            assert judge.find(declared.hold(case, value)), (case, value)


KEEPING = frozenset({'description', 'x-kubernetes-map-type', 'type'})
"""Keywords without which the same objects are valid, or without which there is no schema at all."""


def iter_keywords(schema, path=()):
    for key, value in schema.items():
        if key == 'properties':
            for name, inner in value.items():
                yield from iter_keywords(inner, (*path, key, name))
        elif key in ('items', 'additionalProperties'):
            yield from iter_keywords(value, (*path, key))
        if key not in KEEPING | {'properties', 'items', 'additionalProperties'}:
            yield (*path, key)


def drop(schema, path):
    mutant = copy.deepcopy(schema)
    node = mutant
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return mutant


def is_caught(case, schema, original):
    if structure.validate_structure(schema, 'schema'):
        return True
    judge = Judge(schema)
    return (
        any(judge.find(declared.hold(case, value)) for value in case.valid)
        or any(not judge.find(declared.hold(case, value)) for value in case.invalid)
        or any(judge.fill(spec) != original.fill(spec)
               for spec in (declared.hold(case, value) for value in case.valid))
        or bool(judge.find(declared.leave(case))) != case.is_required
        or judge.fill(declared.leave(case))['spec'][declared.to_wire(case.name)].get(
            'value', declared.NOTHING) != case.filled
        or any(not judge.find(
            declared.leave(case) if after is None else declared.hold(case, after),
            declared.hold(case, before)) for before, after in case.invalid_changes))


def test_each_keyword_matters():
    schema = get_schema(declared.define('dataclass'))
    original = Judge(schema)
    missed = [
        (case.name, *path[5:])
        for case in declared.CASES
        for path in iter_keywords(schema)
        if path[:4] == ('properties', 'spec', 'properties', declared.to_wire(case.name))
        and not is_caught(case, drop(schema, path), original)]
    assert missed == []
