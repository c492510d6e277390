"""
Custom resources: the same objects are stored or refused as by the real API, with the same words.
"""
import json

import pytest

from kopf._kits.sandbox import schemas
from tests._kits.sandbox import recorded

SCHEMA, ROWS = recorded.load_with_schema('validation')
DEFAULTED, DEFAULTS = recorded.load_with_schema('defaults')


def store(schema, obj):
    pruned, unknown = schemas.prune(schema, obj, decoding=True)
    filled = schemas.default(schema, pruned)
    return filled, unknown, [cause.as_dict() for cause in schemas.validate(schema, filled)]


@pytest.mark.parametrize('row', ROWS, ids=lambda row: json.dumps(row['spec'])[:60])
def test_an_object_is_stored_or_refused_as_by_the_real_api(row):
    schema = schemas.Schema(SCHEMA)
    obj = {'apiVersion': 'a.b/v1', 'kind': 'Val', 'metadata': {'name': 'n'}, 'spec': row['spec']}
    if row['code'] == 400:
        with pytest.raises(schemas.Undecodable) as e:
            store(schema, obj)
        assert row['answer'].endswith(f': {e.value}')
        return
    stored, unknown, causes = store(schema, obj)
    assert unknown == row['unknown']
    if row['code'] == 201:
        assert not causes
        assert stored.get('spec') == row['answer']
    else:
        assert recorded.by_content(causes) == recorded.by_content(row['answer'])


@pytest.mark.parametrize('row', DEFAULTS, ids=lambda row: json.dumps(row['body'])[:60])
def test_defaults_are_filled_in_as_by_the_real_api(row):
    stored, _, causes = store(schemas.Schema(DEFAULTED), {'metadata': {'name': 'n'}, **row['body']})
    if row['code'] == 201:
        assert not causes
        assert {**stored, 'metadata': {}} == {**row['answer'], 'metadata': {}}
    else:
        assert recorded.by_content(causes) == recorded.by_content(row['answer'])


@pytest.mark.parametrize(
    'row', recorded.load('formats'), ids=lambda row: f"{row['format']}={row['value'][:40]}")
def test_a_string_is_of_a_format_if_the_real_api_takes_it_for_it(row):
    schema = schemas.Schema({'type': 'string', 'format': row['format']})
    assert (not schemas.validate(schema, row['value'])) == row['valid']
