import base64

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._kits.sandbox import encoding, protobuf


def field(number, value):
    """A field of a message on the wire."""
    if isinstance(value, int):
        return bytes([number << 3]) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = b''
    while value > 0x7f:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def wrap(api_version, kind, raw):
    typed = field(1, api_version.encode()) + field(2, kind.encode())
    return protobuf.MAGIC + field(1, typed) + field(2, raw)


def test_names_labels_and_data_are_read():
    labels = field(1, b'x') + field(2, b'y')
    metadata = field(1, b'name') + field(3, b'') + field(8, b'') + field(11, labels)
    data = field(1, b'key') + field(2, b'value')
    found = protobuf.decode(wrap('v1', 'ConfigMap', field(1, metadata) + field(2, data)))
    assert found == {
        'kind': 'ConfigMap', 'apiVersion': 'v1', 'data': {'key': 'value'},
        'metadata': {'name': 'name', 'labels': {'x': 'y'}},
    }


def test_bytes_are_in_base64():
    data = field(1, b'key') + field(2, b'\0\1')
    found = protobuf.decode(wrap('v1', 'Secret', field(2, data)))
    assert found['data'] == {'key': base64.b64encode(b'\0\1').decode()}


def test_what_is_inline_in_json_is_so():
    reference = field(1, field(1, b'secret'))  # the name is of an inline LocalObjectReference
    env = field(1, b'NAME') + field(3, field(4, reference + field(2, b'key')))
    container = field(1, b'c') + field(7, env)
    pod = field(2, field(2, container))
    found = protobuf.decode(wrap('v1', 'Pod', pod))
    container, = found['spec']['containers']
    assert container['env'][0]['valueFrom'] == {'secretKeyRef': {'name': 'secret', 'key': 'key'}}


def test_zeros_are_kept_where_they_differ_from_nothing():
    found = protobuf.decode(wrap('apps/v1', 'Deployment', field(2, field(1, 0))))
    assert found['spec']['replicas'] == 0


def test_times_quantities_and_numbers_or_strings_are_as_in_json():
    time = field(1, 1577836800)
    found = protobuf.decode(wrap('v1', 'Pod', field(1, field(9, time))))
    assert found['metadata']['deletionTimestamp'] == '2020-01-01T00:00:00Z'
    ports = field(1, field(3, 80) + field(4, field(1, 1) + field(3, b'http')))
    found = protobuf.decode(wrap('v1', 'Service', field(2, ports)))
    assert found['spec']['ports'][0] == {'port': 80, 'targetPort': 'http'}
    quantity = field(1, b'cpu') + field(2, field(1, b'100m'))
    container = field(1, b'c') + field(8, field(1, quantity))
    found = protobuf.decode(wrap('v1', 'Pod', field(2, field(2, container))))
    assert found['spec']['containers'][0]['resources'] == {'limits': {'cpu': '100m'}}


@pytest.mark.parametrize('raw', [
    b'', b'{}', protobuf.MAGIC, wrap('v1', 'Unknown', b''), wrap('x.y/v1', 'Pod', b''),
    wrap('v1', 'Pod', b'\xff'), wrap('v1', 'Pod', field(1, 5)), wrap('v1', 'Pod', b'\x0a\x7f')])
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(encoding.DecodingError):
        protobuf.decode(raw)


@hypothesis.given(st.sampled_from(['Pod', 'ConfigMap', 'Service']), st.binary(max_size=60))
def test_any_bytes_are_an_object_or_not(kind, raw):
    try:
        protobuf.decode(wrap('v1', kind, raw))
    except encoding.DecodingError:
        pass


def test_all_messages_are_made_of_those_that_are_known():
    table = protobuf._table()
    scalars = {'string', 'bytes', 'bool', 'int32', 'int64', 'double', 'float', 'uint32', 'uint64'}
    for fields in table.values():
        for _, type, *_ in fields.values():
            name = type.removeprefix('[]').removeprefix('{}')
            assert name in scalars or name in table or name in protobuf._SPECIAL, name
