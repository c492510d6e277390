"""Reading the metadata of an object from a watch event, whatever users have written elsewhere."""
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopf._cogs.clients import screening

PADDING = 'x' * screening.MIN_LENGTH
METADATA = {'name': 'x', 'uid': 'u', 'resourceVersion': '1'}


def encode(type, body):
    return json.dumps({'type': type, 'object': body}, separators=(',', ':')).encode()


def make(metadata=METADATA, **fields):
    return {'apiVersion': 'g.test/v1', 'kind': 'Thing', 'metadata': metadata,
            'spec': {'text': PADDING}, **fields}


@pytest.mark.parametrize('type', ['ADDED', 'MODIFIED', 'DELETED'])
def test_metadata_is_read(type):
    assert screening.read_head(encode(type, make())) == (type, {'metadata': METADATA})


def test_kind_and_version_can_be_in_any_order():
    body = {'kind': 'Thing', 'apiVersion': 'v1', 'metadata': METADATA, 'data': {'x': PADDING}}
    assert screening.read_head(encode('ADDED', body)) == ('ADDED', {'metadata': METADATA})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([
        '"', '\\"', '{"metadata":{"uid":"other"}}', '"metadata":{"name":"y","uid":"other"}',
        '"}},"metadata":{"name":"y","uid":"other"}', '{"type":"ADDED","object":{"metadata":{}}}']),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(['metadata', 'uid', 'object', 'type', 'kind']) | st.text(), inner),
    max_leaves=10)

TEXTS = st.dictionaries(st.text(), st.text() | st.sampled_from([
    '{"metadata":{"uid":"other"}}', '"', '\\', '\\"},"uid":"other"']))


@given(annotations=TEXTS, spec=JSON, before=st.dictionaries(st.text(), JSON, max_size=1),
       after=st.dictionaries(st.text(), JSON, max_size=1), ascii=st.booleans())
@example({}, {'metadata': {'name': 'y', 'uid': 'other'}}, {}, {}, True)
@example({}, None, {'data': {'metadata': {'name': 'y', 'uid': 'other'}}}, {}, True)
@example({'a': '"},"uid":"other","x":{"'}, None, {}, {}, False)
def test_head_agrees_with_the_whole_whatever_users_write(annotations, spec, before, after, ascii):
    body = {**before, 'apiVersion': 'g.test/v1', 'kind': 'Thing', **after,
            'metadata': {'annotations': annotations, **METADATA}, 'spec': spec, 'z': PADDING}
    line = json.dumps({'type': 'ADDED', 'object': body}, separators=(',', ':'), ensure_ascii=ascii)
    head = screening.read_head(line.encode(errors='replace'))
    assert head is None or head == (
        'ADDED', {'metadata': json.loads(line.encode(errors='replace'))['object']['metadata']})
    if not before and not after:
        assert head is not None


@pytest.mark.parametrize('line', [
    b'',
    encode('ADDED', {**make(), 'spec': {}}),
    encode('BOOKMARK', make()),
    encode('ERROR', make()),
    encode('ADDED', {'data': 1, **make()}),
    encode('ADDED', make(metadata=[])),
    encode('ADDED', make(metadata={'name': 'x'})),
    encode('ADDED', make(metadata={'uid': 'u'})),
    encode('ADDED', make(metadata={**METADATA, 'uid': 1})),
    encode('ADDED', make(metadata={**METADATA, 'ownerReferences': ['x']})),
    encode('ADDED', make(apiVersion='"')),
    b' ' + encode('ADDED', make()),
    encode('ADDED', make()).replace(b'"uid":"u"', b'"uid":"\xff"'),
    encode('ADDED', make()).replace(b'"uid"', b'"deep":' + b'[' * 300 + b']' * 300 + b',"uid"'),
    encode('ADDED', make()).replace(b'"uid"', b'"deep":' + b'[' * 100_000 + b',"uid"'),
    encode('ADDED', make()).replace(b'"uid"', b'"uid'),
], ids=lambda line: line[:60].decode(errors='replace'))
def test_all_that_is_unusual_has_no_head(line):
    assert screening.read_head(line) is None
