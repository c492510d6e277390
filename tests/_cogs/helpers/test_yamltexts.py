import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.helpers import yamltexts

READ = {  # as Kubernetes 1.36 does
    'y': True, 'n': False, 'Yes': True, 'off': False, 'tRue': 'tRue', 'yn': 'yn',
    '': None, '~': None, 'null': None, 'Null': None, 'nUll': 'nUll',
    '1e3': 1000, '1E3': 1000, '1e-3': 0.001, '12e45': 12e45, '1e400': '1e400', '12e': '12e',
    '08': 8, '-08': -8, '017': 15, '0o17': 15, '0o': '0o', '00': 0, '0': 0, '+1': 1, '-7': -7,
    '0x1F': 31, '0x': '0x', '0xG': '0xG', '0b11': 3, '0b12': '0b12', '-0b11': -3,
    '1_000': 1000, '1__0': 10, '_1': '_1', '0.1_5': 0.15, '.5_0': '.5_0', '1,000': '1,000',
    '.5': 0.5, '-.5': -0.5, '+.5e2': 50, '5.': 5, '1.5e3': 1500, '.': '.', '..': '..',
    '12:30': '12:30', '12:30:45': '12:30:45', '190:20:30.15': '190:20:30.15',
    '2026-12-01': '2026-12-01', '2026-12-01T00:00:00Z': '2026-12-01T00:00:00Z',
    '=': '=', '9223372036854775807': 2 ** 63 - 1, '9223372036854775808': 2 ** 63,
    '+9223372036854775808': float(2 ** 63), '18446744073709551616': float(2 ** 64),
    '.inf': math.inf, '-.Inf': -math.inf, '.iNf': '.iNf',
}


@pytest.mark.parametrize('text', READ, ids=repr)
def test_plain_words_mean_what_they_mean_in_kubernetes(text):
    value = yamltexts.load_all(f'key: {text}')[0]['key']
    assert (value, type(value)) == (READ[text], type(READ[text]))
    assert yamltexts.load_all(f'key: "{text}"') == [{'key': text}]


def test_not_a_number():
    assert math.isnan(yamltexts.load_all('.NaN')[0])


def test_keys_are_read_and_merged_as_values_are():
    assert yamltexts.load_all('a: &a {y: 1}\nb: {<<: *a, 08: 2}') == [
        {'a': {True: 1}, 'b': {True: 1, 8: 2}}]


def test_explicit_tags_win():
    assert yamltexts.load_all('[!!str 5, !!int "5", !!float "1"]') == [['5', 5, 1.0]]


@pytest.mark.parametrize('text', READ, ids=repr)
def test_strings_stay_strings(text):
    made = yamltexts.dump_all([{text: text}])
    assert yamltexts.load_all(made) == [{text: text}]
    assert yaml.safe_load(made) == {text: text}


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-2 ** 63, 2 ** 64 - 1) | st.text() | st.sampled_from(
        [*READ]) | st.from_regex(r'[-+.0-9_eExob:]{1,6}', fullmatch=True),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_whatever_is_written_is_read_again(value):
    assert yamltexts.load_all(yamltexts.dump_all([value])) == [value]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_in_json(value):
    read = yamltexts.load_all(yamltexts.dump_all([value]))[0]
    assert read == value == json.loads(json.dumps(read))


def test_several_documents():
    made = yamltexts.dump_all([{'a': 1}, {'b': 2}], explicit_start=True)
    assert made == '---\na: 1\n---\nb: 2\n'
    assert yamltexts.load_all(made) == [{'a': 1}, {'b': 2}]
