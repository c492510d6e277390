import pytest

from kopf._kits.sandbox.schemas import nodes
from kopf._kits.shadowing import evidence

SCHEMA = nodes.Schema({'properties': {
    'list': {'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['type']},
    'set': {'x-kubernetes-list-type': 'set'},
    'data': {'x-kubernetes-map-type': 'atomic'}}})


def entry(manager, tree):
    return {'manager': manager, 'operation': 'Update', 'fieldsV1': tree}


def obj(content, *managers):
    return {'metadata': {'managedFields': list(managers)}, **content}


def undo(old, new):
    made = evidence.undo(SCHEMA, old, new, lambda manager: manager == 'kopf')
    return {key: value for key, value in made.items() if key != 'metadata'}


OURS = entry('kopf', {'f:spec': {'f:a': {}}})
THEIRS = entry('user', {'f:spec': {'f:a': {}}})


@pytest.mark.parametrize('old, new, expected', [
    # A field belongs to who has set it last.
    (obj({'spec': {'a': 1}}, THEIRS), obj({'spec': {'a': 2}}, OURS), {'spec': {'a': 1}}),
    (obj({'spec': {'a': 1}}, OURS), obj({'spec': {'a': 2}}, THEIRS), {'spec': {'a': 2}}),
    # Several writes can come at once.
    (obj({'spec': {'a': 1, 'b': 1}}), obj({'spec': {'a': 2, 'b': 2}}, OURS),
     {'spec': {'a': 1, 'b': 2}}),
    # New structures are of those who have made them.
    (obj({}), obj({'spec': {'a': 2}}, OURS), {}),
    (obj({}), obj({'spec': {'a': 2, 'b': 2}}, OURS), {'spec': {'b': 2}}),
    # A removed field was removed by its manager.
    (obj({'spec': {'a': 1}}, OURS), obj({'spec': {}}), {'spec': {'a': 1}}),
    (obj({'spec': {'a': 1}}, THEIRS), obj({'spec': {}}, THEIRS), {'spec': {}}),
    (obj({'spec': {'a': 1}}, OURS), obj({}), {'spec': {'a': 1}}),
    # Maps can be one value.
    (obj({'data': {'x': {'y': 1}}}), obj({'data': {'x': {'y': 2}}}, entry('kopf', {'f:data': {}})),
     {'data': {'x': {'y': 1}}}),
    # Those who have made a map have not set what others have set in it since then.
    (obj({'spec': {'a': 1}}, OURS), obj({'spec': {'a': 2}}, entry('kopf', {'f:spec': {}}), THEIRS),
     {'spec': {'a': 2}}),
    (obj({'spec': {'a': 1}}, entry('kopf', {'f:spec': {}}), THEIRS),
     obj({'spec': {'a': 2}}, entry('kopf', {'f:spec': {}}), THEIRS), {'spec': {'a': 2}}),
    (obj({}), obj({'spec': {'a': 1}}, entry('kopf', {'f:spec': {}}), THEIRS), {'spec': {'a': 1}}),
    (obj({}), obj({'spec': {}}, entry('kopf', {'f:spec': {}})), {}),
    (obj({'spec': {}}, entry('kopf', {'f:spec': {}})), obj({}), {'spec': {}}),
    # Items of lists are the same by their keys, or by their values.
    (obj({'list': [{'type': 'A', 'v': 1}, {'type': 'B', 'v': 1}]}),
     obj({'list': [{'type': 'A', 'v': 2}, {'type': 'B', 'v': 2}]},
         entry('kopf', {'f:list': {'k:{"type":"A"}': {'.': {}, 'f:v': {}}}})),
     {'list': [{'type': 'A', 'v': 1}, {'type': 'B', 'v': 2}]}),
    # Items are made and removed as a whole, with the defaults of their fields.
    (obj({'list': [{'type': 'A', 'd': 1}]}, entry('kopf', {'f:list': {
        'k:{"type":"A"}': {'.': {}, 'f:type': {}}}})),
     obj({'list': [{'type': 'B', 'd': 2}]}, entry('kopf', {'f:list': {
         'k:{"type":"B"}': {'.': {}, 'f:type': {}}}})),
     {'list': [{'type': 'A', 'd': 1}]}),
    (obj({'list': [{'type': 'A', 'v': 1, 'd': 1}]}, entry('kopf', {'f:list': {
        'k:{"type":"A"}': {'f:v': {}}}})), obj({'list': []}), {'list': []}),
    (obj({'list': []}), obj({'list': [{'type': 'A', 'v': 1}]}, entry('kopf', {'f:list': {
        'k:{"type":"A"}': {'f:v': {}}}})), {'list': [{'type': 'A'}]}),
    (obj({'set': ['a', 'b']}, entry('kopf', {'f:set': {'v:"a"': {}}})),
     obj({'set': ['b', 'c', 'd']}, entry('kopf', {'f:set': {'v:"c"': {}}})),
     {'set': ['a', 'b', 'd']}),
])
def test_what_the_managers_have_changed_is_undone(old, new, expected):
    assert undo(old, new) == expected


BOTH = entry('kopf', {'f:spec': {'f:a': {}, 'f:b': {}}})


@pytest.mark.parametrize('old, new, expected', [
    ([OURS], [OURS, THEIRS], [OURS, THEIRS]),  # with the same value, both own it
    ([OURS], [THEIRS], [THEIRS]),  # who sets another value takes the field from the others
    ([BOTH], [THEIRS], [entry('kopf', {'f:spec': {'f:b': {}}}), THEIRS]),
    ([OURS, THEIRS], [THEIRS], [OURS, THEIRS]),  # that is what the managers have given up
    ([THEIRS], [OURS], []),
])
def test_the_managers_of_others_are_followed(old, new, expected):
    made = evidence.undo(
        SCHEMA, obj({}, *old), obj({}, *new), lambda manager: manager == 'kopf')
    assert made['metadata']['managedFields'] == expected
