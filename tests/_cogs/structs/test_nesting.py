import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.configs.diffbase import AnnotationsDiffBaseStorage, MultiDiffBaseStorage
from kopf._cogs.structs import bodies, diffs, nesting, patches
from kopf._core.actions import essences

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) |
    st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


def nest(levels, kind='{', leaf='1'):
    opening, closing = {'{': ('{"k":', '}'), '[': ('[', ']'), '{[': ('{"k":[', ']}')}[kind]
    times = levels // len(kind)
    return opening * times + leaf + closing * times


@pytest.mark.parametrize('kind', ['{', '[', '{['])
def test_json_of_the_greatest_depth_is_parsed(kind):
    text = nest(nesting.MAX_DEPTH, kind)
    assert nesting.parse(text) == nesting.parse(text.encode()) == json.loads(text)
    assert nesting.parse_at(f'--{text}--', 2) == (json.loads(text), 2 + len(text))


@pytest.mark.parametrize('depth', [nesting.MAX_DEPTH + 2, 900, 10_000, 100_000])
@pytest.mark.parametrize('kind', ['{', '[', '{['])
def test_deeper_json_is_refused(kind, depth):
    text = nest(depth, kind)
    with pytest.raises(nesting.TooDeepError, match='deeper than 250 levels'):
        nesting.parse(text)
    with pytest.raises(nesting.TooDeepError):
        nesting.parse_at(text, 0)


def test_many_brackets_are_not_deep():
    wide = json.dumps([{'k': [{}]}] * 1000)
    assert nesting.parse(wide) == json.loads(wide)


@pytest.mark.parametrize('text', ['{' * 1000, ']}' * 1000, '"{[' * 1000, '\\' * 999, '\ud800['])
def test_brackets_in_strings_are_not_deep(text):
    assert nesting.parse(json.dumps({'k': [text] * 300})) == {'k': [text] * 300}


@pytest.mark.parametrize('raw', [b'', b'{', b'{]', b'\xff', b'[1,]', b'"', b'{}{}', b'{}\n\n1'])
def test_what_is_no_json_is_a_value_error(raw):
    with pytest.raises(ValueError):
        nesting.parse(raw)


@pytest.mark.parametrize('opening, closing', [
    ('{', '}'), ('{', '\\"}'), ('{', '\\\\'), ('\\"{', '}\\\\'), ('\\\\\\"{', '}\\"'),
])
def test_brackets_in_strings_do_not_hide_the_depth(opening, closing):
    text = f'{{"{closing}": ' * 400 + '0' + f', "{opening}": 0}}' * 400
    assert json.loads(text)
    with pytest.raises(nesting.TooDeepError):
        nesting.parse(text)


def test_values_that_contain_themselves_are_too_deep():
    endless = []
    endless.extend([endless, endless])
    with pytest.raises(nesting.TooDeepError):
        nesting.verify(endless)


SPACES = st.text(alphabet=' \t\r\n')


@given(JSON, SPACES, SPACES)
def test_parsing_is_as_with_any_other_parser(value, before, after):
    text = before + json.dumps(value) + after
    assert nesting.parse(text) == json.loads(text)


@given(st.dictionaries(st.text(), JSON))
def test_skimming_leaves_the_upper_levels_as_they_are(value):
    def cut(value, levels):
        if isinstance(value, dict | list) and levels == 0:
            return None
        if isinstance(value, dict):
            return {key: cut(val, levels - 1) for key, val in value.items()}
        if isinstance(value, list):
            return [cut(val, levels - 1) for val in value]
        return value

    text = json.dumps(value)
    assert nesting.skim(text) == cut(json.loads(text), nesting.SKIMMED_DEPTH)
    assert nesting.skim_at(f'[{text}]', 1)[1] == 1 + len(text)


@pytest.mark.parametrize('depth', [300, 900, 10_000, 300_000])
def test_skimming_takes_any_depth(depth):
    text = f'{{"a":{nest(depth)},"b":{{"c":[{nest(depth, "[")}]}},"d":"{{"}}'
    assert nesting.skim(text) == {
        'a': {'k': {'k': {'k': None}}}, 'b': {'c': [[None]]}, 'd': '{'}


@pytest.mark.parametrize('text', ['', '1', '{', '{"a":[}'])
def test_skimming_of_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        nesting.skim(text)


def call_deeply(fn, frames):
    return fn() if frames == 0 else call_deeply(fn, frames - 1)


@pytest.mark.parametrize('kind', ['{', '['])
def test_whatever_is_parsed_can_be_worked_with(kind):
    """Each of these is recursive; a hundred functions can have been called before."""
    text = nest(nesting.MAX_DEPTH - 1, kind)
    old = {'metadata': {'name': 'x'}, 'spec': {'k': json.loads(text)}}
    new = {'metadata': {'name': 'x'}, 'spec': {'k': json.loads(text.replace('1', '2'))}}
    old['spec'], new['spec'] = old['spec']['k'], new['spec']['k']
    storage = MultiDiffBaseStorage([AnnotationsDiffBaseStorage(), AnnotationsDiffBaseStorage()])

    def work():
        assert copy.deepcopy(old) == old
        assert json.loads(json.dumps(old)) == old
        assert repr(old)
        assert old != new
        assert diffs.diff(old, new)
        patch = patches.Patch(new, fns=[lambda body: None])
        assert patches.combine(new, old) is not None
        assert patches.merge(old, patch) == new
        assert patch.apply(old) == new
        assert patch.as_json_patch(old)
        assert storage.build(body=bodies.Body(old), extra_fields=['spec'])
        assert essences.rebase(old, new, old)
        assert essences.advance(old, [patch], new)
        assert repr(patch)

    call_deeply(work, 100)
