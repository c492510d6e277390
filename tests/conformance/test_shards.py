"""
Lists and watches of shards, which the API selects by hashes (KEP-5866).

The real API is skipped if it does not have the feature gate ``ShardedListAndWatch``.
"""
import pytest

from kopf._cogs.clients.shardselectors import hash_text
from tests.conformance.apis import PARTIAL_LIST, TABLE, make

UID, NAMESPACE = 'object.metadata.uid', 'object.metadata.namespace'
START, MIDDLE, END = '0x0000000000000000', '0x8000000000000000', '0x10000000000000000'
LOWER = f"shardRange({UID}, '{START}', '{MIDDLE}')"
UPPER = f"shardRange({UID}, '{MIDDLE}', '{END}')"


@pytest.fixture(autouse=True)
def _skip_without_the_feature(api):
    if 'shardInfo' not in api.get('/api/v1/namespaces', shardSelector=LOWER).ok['metadata']:
        pytest.skip("The API does not have the feature gate ShardedListAndWatch.")


@pytest.fixture()
def twenty(api, cms):
    """The path of twenty config maps."""
    for number in range(20):
        api.post(cms, make(f'cm{number:02}', metadata={'labels': {'x': 'y'}})).ok
    return cms


def uids(answer):
    return [item['metadata']['uid'] for item in answer.ok['items']]


def lower(items):
    return [uid for uid in items if hash_text(uid) < 1 << 63]


def test_objects_are_selected_by_the_hashes_of_their_uids(api, twenty):
    assert uids(api.get(twenty, shardSelector=LOWER)) == lower(uids(api.get(twenty)))


def test_objects_are_selected_by_the_hashes_of_their_namespaces(api, twenty, ns):
    value = hash_text(ns)
    own = f"shardRange({NAMESPACE}, '0x{value:016x}', '0x{value + 1:016x}')"
    assert len(uids(api.get('/api/v1/configmaps', shardSelector=own))) == 20


def test_custom_resources_are_selected_too_but_the_answer_does_not_tell(api, frees, kinds):
    for number in range(20):
        api.post(frees, kinds.make('frees', f'free{number}')).ok
    answer = api.get(frees, shardSelector=LOWER)
    assert uids(answer) == lower(uids(api.get(frees)))
    assert 'shardInfo' not in answer['metadata']


def test_several_ranges_are_joined(api, twenty):
    everything = uids(api.get(twenty))
    assert uids(api.get(twenty, shardSelector=f'{LOWER} || {UPPER}')) == everything
    parts = [f"shardRange({UID}, '0x{part:x}000000000000000', '0x{part + 1:x}000000000000000')"
             for part in (9, 2)]
    assert uids(api.get(twenty, shardSelector='||'.join(parts))) == [
        uid for uid in everything if hash_text(uid) >> 60 in (9, 2)]


@pytest.mark.parametrize('selector', [
    LOWER, LOWER.replace("'", '"'), LOWER.replace(' ', ''), f' (\n( {LOWER} )) '])
def test_the_answer_tells_the_selector_in_a_normal_form(api, twenty, selector):
    answer = api.get(twenty, shardSelector=selector).ok
    assert answer['metadata']['shardInfo'] == {'selector': LOWER}


@pytest.mark.parametrize('accept', [PARTIAL_LIST, TABLE])
def test_other_shapes_do_not_tell_the_selector(api, twenty, accept):
    assert 'shardInfo' not in api.get(twenty, shardSelector=LOWER, accept=accept).ok['metadata']


def test_pages_are_full_and_tell_how_many_objects_follow_in_all_shards(api, twenty):
    found, params, left = [], {}, 20
    while True:
        answer = api.get(twenty, shardSelector=LOWER, limit='3', **params)
        page = answer.ok['metadata']
        found += uids(answer)
        if 'continue' not in page:
            break
        assert len(answer['items']) == 3
        assert page['remainingItemCount'] == left - 3
        names = [item['metadata']['name'] for item in api.get(twenty)['items']]
        left = 20 - names.index(answer['items'][-1]['metadata']['name']) - 1
        params = {'continue': page['continue']}
    assert found == lower(uids(api.get(twenty)))


def test_pages_of_labels_and_shards_tell_no_rest(api, twenty):
    page = api.get(twenty, shardSelector=LOWER, labelSelector='x=y', limit='1').ok['metadata']
    assert page['continue']
    assert 'remainingItemCount' not in page


def test_watches_are_selected(api, twenty):
    items = api.get(twenty).ok
    with api.watch(twenty, shardSelector=LOWER,
                   resourceVersion=items['metadata']['resourceVersion']) as watch:
        for item in items['items'][:10]:
            api.patch(f"{twenty}/{item['metadata']['name']}", {'data': {'a': 'b'}}).ok
            api.delete(f"{twenty}/{item['metadata']['name']}").ok
        api.post(twenty, make('last', metadata={'labels': {'x': 'y'}})).ok
        own = [item['metadata']['name'] for item in items['items'][:10]
               if hash_text(item['metadata']['uid']) < 1 << 63]
        assert watch.names(2 * len(own)) == [
            (type, name) for name in own for type in ('MODIFIED', 'DELETED')]


def test_present_objects_of_watches_are_selected(api, twenty):
    own = lower(uids(api.get(twenty)))
    with api.watch(twenty, shardSelector=LOWER, sendInitialEvents='true',
                   resourceVersionMatch='NotOlderThan', allowWatchBookmarks='true') as watch:
        events = watch.take(len(own) + 1)
    assert sorted(event['object']['metadata']['uid'] for event in events[:-1]) == sorted(own)
    assert events[-1]['type'] == 'BOOKMARK'
    assert set(events[-1]['object']['metadata']) == {'resourceVersion', 'annotations'}


def test_collections_of_shards_are_deleted(api, twenty):
    everything = uids(api.get(twenty))
    answer = api.delete(twenty, shardSelector=LOWER)
    assert answer.ok['metadata']['shardInfo'] == {'selector': LOWER}
    assert set(uids(api.get(twenty))) == set(everything) - set(lower(everything))


@pytest.mark.parametrize(('selector', 'message'), [
    ('garbage', "unexpected expression kind 3; expected shardRange() call or || operator"),
    (f'{LOWER} || x', "unexpected expression kind 3; expected shardRange() call or || operator"),
    ("'x'", "unexpected expression kind 5; expected shardRange() call or || operator"),
    (' ', "empty shard selector is not allowed; omit the parameter for unfiltered lists"),
    (f"other({UID}, '{START}', '{END}')",
     'unsupported function "other"; only shardRange() and || are allowed'),
    (f"shardRange('{START}', '{END}')", "shardRange() requires exactly 3 arguments, got 2"),
    (f"shardRange(metadata.uid, '{START}', '{END}')",
     f'unsupported field path "metadata.uid"; supported: {UID}, {NAMESPACE}'),
    (f"{LOWER} || shardRange({NAMESPACE}, '{START}', '{END}')",
     f'all shard ranges must use the same field, got "{UID}" and "{NAMESPACE}"'),
    (f"shardRange({UID}, '{MIDDLE}', '{MIDDLE}')",
     f"shard range start {MIDDLE} must be less than end {MIDDLE}"),
    (f"shardRange({UID}, '0x5', '{END}')",
     'hexStart must be a 0x-prefixed 16-digit hex value, got "0x5" '
     '(did you mean "0x0000000000000005"?)'),
    (f"shardRange({UID}, '{START}', '8')", "hexEnd must have '0x' prefix, got \"8\""),
    (f"shardRange({UID}, '0x', '{END}')", "hexStart: hex value is required after '0x'"),
    ('(' * 251 + LOWER + ')' * 251, "CEL parse error: expression recursion limit exceeded: 250"),
    (f"shardRange({UID}, 1, 2)", "hexStart must be a string literal, got int64"),
    (f"shardRange({UID}, '0xA000000000000000', '{END}')",
     'hexStart: invalid hex character "A" in "0xA000000000000000"'),
    (f"shardRange({UID}, '{START}', '0x00000000000000000000')",
     'hexEnd: hex value too long (20 chars, max 17): "00000000000000000000"'),
    (f"shardRange({UID}, '{START}', '0x10000000000000001')",
     "hexEnd: 17-digit hex value must be '0x10000000000000000' (2^64), "
     'got "0x10000000000000001"'),
])
@pytest.mark.parametrize('params', [{}, {'watch': 'true'}])
def test_bad_selectors_are_refused_without_a_reason(api, cms, selector, message, params):
    answer = api.get(cms, shardSelector=selector, **params)
    assert answer.error == (500, None)
    assert answer['message'] == f'invalid shard selector: {message}'
