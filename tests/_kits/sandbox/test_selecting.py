import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._kits.sandbox import fields, selecting
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.statuses import BadRequest
from kopf._kits.sandbox.storage import Entry


@pytest.mark.parametrize(('text', 'labels', 'matches'), [
    ('', {}, True),
    ('a', {'a': ''}, True),
    ('a', {}, False),
    ('!a', {}, True),
    ('!a', {'a': 'b'}, False),
    ('a=b', {'a': 'b'}, True),
    ('a==b', {'a': 'c'}, False),
    ('a!=b', {}, True),
    ('a!=b', {'a': 'b'}, False),
    ('a=', {'a': ''}, True),
    ('a in (b,c)', {'a': 'c'}, True),
    ('a in (b, c),d', {'a': 'c'}, False),
    ('a in ()', {'a': ''}, True),
    ('a in (b,)', {'a': ''}, True),
    ('a notin (b,c)', {'a': 'd'}, True),
    ('a notin (b,c)', {}, True),
    ('a>5', {'a': '6'}, True),
    ('a<5', {'a': '6'}, False),
    ('a>5', {'a': 'x'}, False),
    ('x.y/a=b,c', {'x.y/a': 'b', 'c': ''}, True),
])
def test_labels_are_selected(text, labels, matches):
    assert selecting.parse_labels(text).matches(labels) is matches


@pytest.mark.parametrize(('text', 'message'), [
    ('a===b', "unable to parse requirement: found '=', expected: identifier"),
    ('a in (', "unable to parse requirement: found '', expected: ',', ')' or identifier"),
    ('a in (b,=)', "unable to parse requirement: found '=', expected: ',', or identifier"),
    ('a in (b c)', "unable to parse requirement: found 'c', expected: ',' or ')'"),
    ('a=b c', "found 'c', expected: ',' or 'end of string'"),
    (',', "found ',', expected: !, identifier, or 'end of string'"),
    ('a=b,', "found '', expected: identifier after ','"),
    ('a>x', "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' "
            "operators, the value must be an integer"),
    (f'{"x" * 254}/a', f"unable to parse requirement: <nil>: Invalid value: \"{'x' * 254}/a\": "
                       "prefix part must be no more than 253 bytes"),
])
def test_bad_selectors_of_labels_are_refused_in_the_words_of_the_api(text, message):
    with pytest.raises(BadRequest) as error:
        selecting.parse_labels(text)
    assert error.value.message == message


@hypothesis.given(st.text(alphabet='ab =!<>(),in/-.'))
def test_any_text_is_a_selector_of_labels_or_a_bad_request(text):
    try:
        selecting.parse_labels(text).matches({'a': 'b'})
    except BadRequest:
        pass


@hypothesis.given(st.dictionaries(
    st.from_regex('[a-z][a-z0-9]{0,5}', fullmatch=True),
    st.from_regex('([a-z][a-z0-9]{0,5})?', fullmatch=True)))
def test_a_selector_of_all_labels_selects_them(labels):
    text = selecting.labels_text({'matchLabels': labels})
    assert selecting.parse_labels(text).matches(labels)
    assert selecting.labels_of({'matchLabels': labels}).matches(labels)


KIND = Kind(group='x', version='v1', plural='things', kind='Thing', custom=True,
            selectable=('.a.b', '.c'))


def parse(text):
    return fields.parse_for(KIND, text)


@pytest.mark.parametrize(('text', 'matches'), [
    ('', True), ('a.b=x', True), ('a.b==x', True), ('a.b!=x', False), ('c=', True),
    ('a.b=x,c!=y', True), ('a.b=y', False), (r'c=a\,b', False),
])
def test_fields_are_selected(text, matches):
    entry = Entry(('', 'n'), 'u', 1, b'{"a":{"b":"x"}}', None)
    assert fields.matches(parse(text), KIND, entry) is matches


def test_unknown_fields_are_refused():
    with pytest.raises(BadRequest, match='field label not supported: d'):
        parse('d=1')


def test_what_is_no_term_is_refused():
    with pytest.raises(BadRequest, match="invalid selector: 'x'; can't understand 'x'"):
        parse('x')


@pytest.mark.parametrize(('value', 'text'), [
    (None, ''), (True, 'true'), (5, '5'), ('x', 'x')])
def test_values_of_fields_are_compared_as_texts(value, text):
    assert selecting.field_value({'a': value}, 'a') == text
