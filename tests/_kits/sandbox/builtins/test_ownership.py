import pytest

from kopf._kits.sandbox import applying, builtins, kinds, schemas
from tests._kits.sandbox import recorded

KINDS = kinds.Kinds(kinds.builtin_kinds())
ROWS = recorded.load('ownership')
WHO = {'manager': 'me', 'time': '2026-01-01T00:00:00Z'}


def kind_of(row):
    return KINDS.named(row['sent']['apiVersion'], row['sent']['kind'])


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['sent']['kind'])
def test_creators_own_what_they_have_sent_and_the_defaults_as_in_the_real_api(row):
    kind = kind_of(row)
    obj, _ = schemas.decode(schemas.schema_of(kind), row['sent'])
    obj = builtins.complete(kind, obj)
    if kind.has_status:
        obj.pop('status', None)
    [entry] = applying.track_update(
        None, obj, schema=schemas.typed_schema_of(kind), api_version=kind.api_version, **WHO)
    assert entry['fieldsV1'] == row['created']


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['sent']['kind'])
def test_appliers_own_what_they_have_sent_as_in_the_real_api(row):
    kind = kind_of(row)
    obj = applying.apply(
        None, row['sent'], schema=schemas.typed_schema_of(kind), api_version=kind.api_version,
        **WHO)
    [entry] = obj['metadata']['managedFields']
    assert entry['fieldsV1'] == row['applied']
