import json
import sys

import pytest

from kopf._kits.sandbox import schemas
from kopf._kits.sandbox.schemas import expressions, nodes
from tests._kits.sandbox import recorded

SCHEMA, ROWS = recorded.load_with_schema('rules')


@pytest.fixture
def cel():
    return pytest.importorskip('cel')


def complete(schema, spec):
    return schemas.default(schema, {'metadata': {}, 'spec': spec})


@pytest.mark.parametrize('row', ROWS, ids=lambda row: json.dumps(row['spec']))
def test_rules_are_kept_or_broken_as_in_the_real_api(row, cel):
    schema = nodes.Schema(SCHEMA)
    old = complete(schema, row['old']) if row['old'] else nodes.NOTHING
    found = schemas.validate(schema, complete(schema, row['spec']), old)
    assert recorded.by_content(cause.as_dict() for cause in found) == recorded.by_content(
        row['causes'])


def test_a_rule_that_cannot_be_parsed_is_told(cel):
    [cause] = expressions.check_syntax({'rule': 'self +'}, 'rules[0]')
    assert cause.field == 'rules[0].rule'
    assert "compilation failed: ERROR: <input>:1:7: Syntax error" in cause.message


@pytest.mark.parametrize('text, value', [
    ('self.l.sum()', 6), ('self.l.isSorted()', True), ('self.l.indexOf(2)', 1),
    ('self.s.lowerAscii()', 'a-b'), ('self.s.split("-")', ['A', 'B']),
    ('["a", "b"].join(",")', 'a,b'), ('"%s is bad".format([self.s])', 'A-B is bad'),
    ('self.s.find("[A-Z]")', 'A'), ('self.s.replace("A", "x")', 'x-B'),
])
def test_functions_of_kubernetes_are_known(text, value, cel):
    assert expressions.evaluate(text, {'self': {'l': [1, 2, 3], 's': 'A-B'}}) == value


def test_rules_with_unknown_functions_are_not_checked(cel):
    rule = {'rule': "quantity(self).isLessThan(quantity('1Gi'))"}
    schema = nodes.Schema({'type': 'string', 'x-kubernetes-validations': [rule]})
    assert not schemas.validate(schema, '2Gi')


def test_rules_are_not_checked_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, 'cel', None)
    expressions._compile.cache_clear()
    schema = nodes.Schema({'type': 'integer', 'x-kubernetes-validations': [{'rule': 'self > 5'}]})
    assert not schemas.validate(schema, 1)
    assert not list(expressions.check_syntax({'rule': 'self +'}, 'rules[0]'))
    expressions._compile.cache_clear()


@pytest.mark.parametrize('name, escaped', [
    ('a-b', 'a__dash__b'), ('a.b/c', 'a__dot__b__slash__c'), ('namespace', '__namespace__'),
    ('a__b', 'a__underscores__b'), ('plain', 'plain'),
])
def test_fields_of_odd_names_have_others_in_expressions(name, escaped):
    assert expressions.escape(name) == escaped
