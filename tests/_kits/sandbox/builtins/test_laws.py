"""
What holds for all objects of all built-in kinds, whatever of their fields are there.
"""
import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopf._kits.sandbox import applying, builtins, kinds, schemas

KINDS = [kind for kind in kinds.builtin_kinds()
         if 'create' in kind.verbs and 'list' in kind.verbs and kind.kind not in (
             'CustomResourceDefinition',)]
META = {'name': 'x', 'namespace': 'ns', 'uid': 'u-1', 'labels': {'a': 'b'}}
TIMES = {'Time': '2026-01-01T00:00:00Z', 'MicroTime': '2026-01-01T00:00:00.000000Z',
         'Quantity': '1500m', 'IntOrString': 80}


def values(draw, schema, depth):
    """Anything that can be decoded by the schema."""
    name = schema.name.rpartition('.')[2]
    if name in TIMES:
        return TIMES[name]
    if not schema.type:
        return {}
    if schema.type == 'object':
        if schema.additional is not None:
            return {key: values(draw, schema.additional, depth - 1)
                    for key in draw(st.sets(st.sampled_from('ab'), max_size=2))}
        keys = sorted(schema.properties)
        if depth <= 0 or not keys:
            return {}
        chosen = draw(st.sets(st.sampled_from(keys), max_size=5))
        return {key: values(draw, schema.properties[key], depth - 1) for key in sorted(chosen)}
    if schema.type == 'array':
        size = draw(st.integers(0, 2)) if depth > 0 else 0
        return [values(draw, schema.items, depth - 1) for _ in range(size)]
    if schema.raw.get('format') == 'byte':
        return 'YQ=='
    if schema.type == 'string':
        return draw(st.sampled_from(['', 'x', *schema.raw.get('enum', ())]))
    return draw({'integer': st.integers(-1, 3), 'boolean': st.booleans()}.get(
        schema.type, st.just(0.5)))


@st.composite
def objects(draw):
    kind = draw(st.sampled_from(KINDS))
    body = values(draw, schemas.schema_of(kind), 6)
    return kind, {**body, 'kind': kind.kind, 'apiVersion': kind.api_version,
                  'metadata': dict(META)}


def decode(kind, obj):
    return schemas.decode(schemas.schema_of(kind), obj)[0]


LAWS = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)


@LAWS
@given(objects())
def test_objects_are_decoded_and_completed_once(pair):
    kind, obj = pair
    before = copy.deepcopy(obj)
    completed = builtins.complete(kind, decode(kind, obj))
    assert builtins.complete(kind, completed) == completed
    assert builtins.complete(kind, decode(kind, completed)) == completed
    assert obj == before


@LAWS
@given(objects(), objects())
def test_anything_that_can_be_decoded_can_be_worked_with(pair, other):
    kind, obj = pair
    schema = schemas.typed_schema_of(kind)
    created = builtins.complete(kind, builtins.prepare_creation(
        kind, builtins.complete(kind, decode(kind, obj))))
    builtins.validate(kind, created)
    if other[0] is kind:
        updated = builtins.prepare_update(
            kind, builtins.complete(kind, decode(kind, other[1])), created)
        builtins.validate_update(kind, updated, created)
    entries = applying.track_update(
        None, created, manager='m', schema=schema, api_version=kind.api_version, time='t')
    live = {**created, 'metadata': {**created['metadata'], 'managedFields': entries}}
    assert applying.track_update(
        live, live, manager='n', schema=schema, api_version=kind.api_version, time='t') == entries


@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: f'{kind.plural}.{kind.group}')
def test_an_object_of_a_name_alone_can_be_worked_with(kind):
    obj = {'apiVersion': kind.api_version, 'kind': kind.kind, 'metadata': dict(META)}
    created = builtins.complete(kind, builtins.prepare_creation(
        kind, builtins.complete(kind, decode(kind, obj))))
    builtins.validate(kind, created)
    builtins.validate_update(kind, builtins.prepare_update(kind, created, created), created)
