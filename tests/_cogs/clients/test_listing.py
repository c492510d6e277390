import json

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients import errors, listing
from kopf._cogs.structs import references
from tests._cogs.clients.servers import refuse, say, show

THINGS = references.Resource('g.test', 'v1', 'things', kind='Thing', namespaced=True)


async def collect(client, settings, resource=THINGS, namespace=None, **kwargs):
    return [
        (page.resource_version, [item['metadata']['name'] for item in page.items], page.restarted)
        async for page in listing.list_objects(
            client, resource=resource, namespace=namespace, settings=settings, **kwargs)
    ]


async def test_lists_come_in_pages(server, client, settings):
    server.script(show('a', more='t1'), show('b', 'c', more='t2'), show('d'))
    pages = await collect(client, settings)
    assert pages == [('100', ['a'], False), ('100', ['b', 'c'], False), ('100', ['d'], False)]
    assert [req.query.get('continue') for req in server.requests] == [None, 't1', 't2']
    assert all(req.query['limit'] == '500' for req in server.requests)


async def test_the_size_of_pages_is_in_settings(server, client, settings):
    settings.watching.chunk_size = 7
    server.script(show())
    await collect(client, settings)
    assert server.requests[0].query['limit'] == '7'


@pytest.mark.parametrize(('found', 'expected'), [(['a'], 'a'), ([], None)])
async def test_objects_are_found_by_their_names(server, client, settings, found, expected):
    server.script(show(*found))
    raw = await listing.find_object(
        client, resource=THINGS, namespace='ns1', name='a', settings=settings)
    assert server.requests[0].query['fieldSelector'] == 'metadata.name=a'
    assert server.requests[0].path == '/apis/g.test/v1/namespaces/ns1/things'
    assert (None if raw is None else raw['metadata']['name']) == expected


async def test_lists_are_never_taken_from_caches(server, client, settings):
    server.script(show())
    await collect(client, settings)
    assert 'resourceVersion' not in server.requests[0].query


async def test_lists_that_cannot_be_continued_begin_anew_in_one_page(server, client, settings):
    server.script(show('a', more='t1'), refuse(410), show('a', 'b', version='200'))
    pages = await collect(client, settings)
    assert pages == [('100', ['a'], False), ('200', ['a', 'b'], True)]
    assert 'limit' not in server.requests[2].query
    assert 'continue' not in server.requests[2].query


async def test_pages_but_the_first_are_retried_anyway(server, client, settings):
    server.script(show('a', more='t1'), refuse(500), show('b'))
    assert len(await collect(client, settings, retry=False)) == 2


async def test_the_first_page_is_not_retried_if_not_wished(server, client, settings):
    server.script(refuse(500))
    with pytest.raises(errors.APIServerError):
        await collect(client, settings, retry=False)
    assert len(server.requests) == 1


async def test_a_field_selector_is_added_to_those_of_the_settings(server, client, settings):
    settings.watching.field_selectors['things'] = 'a=b'
    server.script(show())
    await collect(client, settings, field_selector='metadata.name=x')
    assert server.requests[0].query['fieldSelector'] == 'a=b,metadata.name=x'


def parse(value, resource=THINGS):
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    head, items = listing.parse_list(raw, resource)
    return head, list(items)


TEXT = st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5)
OBJECTS = st.builds(
    lambda rest, name: {**rest, 'kind': 'K', 'apiVersion': 'v1', 'metadata': {'name': name}},
    st.dictionaries(TEXT, JSON, max_size=3), st.text(min_size=1, max_size=5))


@hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@given(
    items=st.lists(OBJECTS, max_size=4),
    before=st.dictionaries(TEXT, JSON, max_size=3),
    after=st.dictionaries(TEXT, JSON, max_size=3),
    order=st.permutations(['metadata', 'items']),
    indent=st.none() | st.integers(min_value=0, max_value=3),
    ascii=st.booleans(),
)
def test_lists_are_parsed_as_by_the_ordinary_parser(items, before, after, order, indent, ascii):
    values = {'metadata': {'resourceVersion': '1', 'x': 'y'}, 'items': items}
    document = {**before, **{key: values[key] for key in order}}
    document.update({key: val for key, val in after.items() if key not in values})
    document.update(values)
    text = json.dumps(document, indent=indent, ensure_ascii=ascii)
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    head, parsed = parse(raw)
    assert head == values['metadata']
    assert parsed == items


@pytest.mark.parametrize('items', [None, []])
def test_lists_can_be_empty(items):
    assert parse({'metadata': {'resourceVersion': '1'}, 'items': items})[1] == []


def test_lists_can_have_no_items_at_all():
    assert parse({'metadata': {'resourceVersion': '1'}})[1] == []


@pytest.mark.parametrize('group, expected', [('', 'v1'), ('g.test', 'g.test/v1')])
def test_kinds_and_versions_are_added_where_they_lack(group, expected):
    resource = references.Resource(group, 'v1', 'things')
    document = {
        'kind': 'ThingList', 'metadata': {'resourceVersion': '1'},
        'items': [{'metadata': {'name': 'a'}}]}
    _, items = parse(document, resource)
    assert items == [{'apiVersion': expected, 'kind': 'Thing', 'metadata': {'name': 'a'}}]


@pytest.mark.parametrize('raw', [
    b'', b'{', b'[]', b'null', b'"x"', b'{}', b'\xff', b'{"metadata"', b'{"metadata" 1}',
    b'{"metadata": {}}', b'{"metadata": {"resourceVersion": 1}}', b'{"metadata": []}',
    b'{"metadata": {"resourceVersion": "1"}, "items": [',
    b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "x"}}',
    b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "x"}} 1]}',
    b'{"metadata": {"resourceVersion": "1"}, "items": [1]}',
    b'{"metadata": {"resourceVersion": "1"}, "items": [{}]}',
    b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {}}]}',
])
def test_what_is_no_list_is_an_error_of_the_server(raw):
    with pytest.raises(errors.APIServerError):
        parse(raw)


async def test_metadata_alone_can_be_asked_for(server, client, settings):
    server.script(say({'metadata': {'resourceVersion': '1'}}))
    await collect(client, settings, metadata_only=True)
    assert 'PartialObjectMetadataList' in server.requests[0].headers['Accept']


DEEP = json.dumps({'kind': 'Thing', 'metadata': {'name': 'bad'}, 'spec': '*'}).replace(
    '"*"', '[' * 5000 + ']' * 5000)


async def test_an_object_nested_too_deeply_is_an_error_for_those_who_need_it(
        odd, settings):
    answer = f'{{"items":[{DEEP}],"metadata":{{"resourceVersion":"1"}}}}'
    async with odd(answer.encode()) as client:
        with pytest.raises(errors.APITooDeepError, match='deeper than 250 levels'):
            await collect(client, settings)


async def test_objects_nested_too_deeply_are_skipped_if_that_is_wished(odd, settings):
    skipped = []
    answer = f'{{"items":[{DEEP},{DEEP}],"metadata":{{"resourceVersion":"1"}}}}'
    async with odd(answer.encode()) as client:
        assert await collect(
            client, settings, skip=lambda body, _: skipped.append(body)) == [('1', [], False)]
    assert skipped == [{'apiVersion': 'g.test/v1', 'kind': 'Thing', 'metadata': {'name': 'bad'},
                        'spec': [[[None]]]}] * 2


ITEM = {'metadata': {'name': 'x', 'uid': 'u', 'resourceVersion': '1'}}
LISTS = [
    {'apiVersion': 'g.test/v1', 'items': [ITEM], 'kind': 'ThingList',
     'metadata': {'continue': 'abc', 'remainingItemCount': 7, 'resourceVersion': '5'}},
    {'items': [ITEM], 'metadata': {'resourceVersion': '5'}},
    {'items': [ITEM], 'metadata': {'resourceVersion': '5'}, 'kind': 'ThingList'},
    {'items': [], 'kind': 'ThingList', 'metadata': {'resourceVersion': '5', 'x': {'y': 'z'}}},
    {'items': [{**ITEM, 'x': [], 'kind': 'ThingList', 'metadata': {
        'name': 'x', 'resourceVersion': '6'}}], 'metadata': {'resourceVersion': '5'}},
    {'items': [{**ITEM, 'spec': '],"metadata":{"resourceVersion":"6"}}'}],
     'metadata': {'resourceVersion': '5'}},
    {'metadata': {'resourceVersion': '5'}, 'items': [
        {**ITEM, 'spec': '],"metadata":{"resourceVersion":"6"}}'}]},
    {'items': [ITEM], 'metadata': {'resourceVersion': '5'},
     'x': {'y': [], 'metadata': {'resourceVersion': '6'}}},
]


@pytest.mark.parametrize('content', LISTS)
@pytest.mark.parametrize('separators', [(',', ':'), (', ', ': ')])
def test_metadata_of_a_list_is_found_wherever_it_is(content, separators):
    raw = json.dumps(content, separators=separators).encode() + b'\n'
    resource = references.Resource('g.test', 'v1', 'things', kind='Thing', namespaced=True)
    metadata, items = listing.parse_list(raw, resource)
    assert metadata == content['metadata']
    assert [item['metadata'] for item in items] == [
        item['metadata'] for item in content['items']]


def test_items_are_not_parsed_to_find_the_metadata_after_them():
    raw = b'{"items":[this is not JSON],"kind":"ThingList","metadata":{"resourceVersion":"5"}}'
    resource = references.Resource('g.test', 'v1', 'things', kind='Thing', namespaced=True)
    metadata, items = listing.parse_list(raw, resource)
    assert metadata == {'resourceVersion': '5'}
    with pytest.raises(errors.APIServerError, match="no valid list"):
        next(items)
