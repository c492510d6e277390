"""
Any JSON: in any place of a document that is otherwise right.
"""
import copy
import json
import re

from hypothesis import strategies as st

DEPTHS = [100, 249, 250, 251, 400, 1100]
NESTED = {'{': ('{"k":', '}'), '[': ('[', ']')}

deep = st.builds('@{}{}'.format, st.sampled_from('{['), st.sampled_from(DEPTHS))
"""Something that `encode` replaces by JSON of that depth."""

strings = st.text(st.characters(codec='utf-8', exclude_characters='@'), max_size=8) | (
    st.sampled_from(['', '{', '"', 'null', 'a\x00b', '\ud800', '\r\n', '9' * 4500, 'x' * 2000,
                     'a/b/c', '-1', 'true', '0001-01-01T00:00:00+14:00', '../../etc']))
scalars = st.none() | st.booleans() | st.integers(-2 ** 70, 2 ** 70) | strings | (
    st.floats(allow_nan=False, allow_infinity=False))
keys = strings.filter(lambda key: len(key) < 100)
values = st.recursive(scalars, lambda inner: (
    st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)), max_leaves=6)
nested_values = st.recursive(scalars | deep, lambda inner: (
    st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)), max_leaves=6)


def encode(value):
    """JSON with what is nested deeply in its place."""
    return re.sub(r'"@([{\[])(\d+)"', lambda found: '{}{}{}'.format(
        NESTED[found[1]][0] * int(found[2]), 'null', NESTED[found[1]][1] * int(found[2])),
        json.dumps(value))


def find_places(document, path=()):
    """The paths of everything in the document, itself included."""
    yield path
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from find_places(value, (*path, key))


@st.composite
def damaged(draw, document, *, inner=values, most=3):
    """Strategy: the document with any other values in some places, or without them."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        *path, key = draw(st.sampled_from([p for p in find_places(document) if p] or [(None,)]))
        if key is None:
            return draw(inner)
        parent = document
        for part in path:
            parent = parent[part]
        if draw(st.integers(0, 4)):
            parent[key] = draw(inner)
        else:
            del parent[key]
    return document
