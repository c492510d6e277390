"""
Conversion: objects there and back between versions, whole ones and parts of them.
"""
import copy
import dataclasses
import datetime
import json
import random
import re
from typing import Annotated, Any

import pytest

import kopf
from kopf._cogs.structs import dicts
from kopf._kits.conversion import lossless
from kopf._kits.typed import kinds
from tests._kits.conversion import pairs
from tests._kits.conversion.pairs import make

LOST = 'kopf.dev/only-in-v1'
BACKLESS = lossless.dump([
    lossless.Leaf(('spec', 'storage'), 'not a size', lossless._digest('1Gi'))])


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def converter(registry):
    return pairs.declare(registry)


def store(converter, obj):
    """Do as the API does with an object that is converted and stored."""
    return json.loads(json.dumps(converter.complete(obj)))


@pytest.mark.parametrize('part', range(10))
def test_a_thousand_objects_there_and_back_change_only_by_the_edit(converter, part):
    seen = set()
    for seed in range(part * 100, part * 100 + 100):
        rng = random.Random(seed)
        original = make(pairs.draw(rng))
        old = store(converter, converter.convert(original, 'v1alpha1'))
        assert set(old['spec']) <= {'sizeGB', 'type', 'users', 'ports', 'legacy'}
        expected = copy.deepcopy(original)
        edit = pairs.mutate(rng, old['spec'], expected['spec'])
        seen.add(edit)
        back = store(converter, converter.convert(old, 'v1'))
        assert back == converter.complete(expected), (seed, edit)
    assert len(seen) > 5


def test_what_is_lost_of_the_older_version_is_kept_as_well(converter):
    original = make({'sizeGB': 1, 'users': [], 'ports': [], 'legacy': 'x'}, 'v1alpha1')
    new = store(converter, converter.convert(original, 'v1'))
    assert 'legacy' not in new['spec']
    new['spec']['mode'] = 'fast'
    back = store(converter, converter.convert(new, 'v1alpha1'))
    assert back['spec'] == original['spec']
    again = store(converter, converter.convert(back, 'v1'))
    assert again['spec'] == new['spec']
    assert again['metadata'] == new['metadata']


def test_nothing_is_noted_if_nothing_is_lost(converter):
    original = make({'storage': '2Gi', 'mode': 'auto', 'users': [], 'ports': []})
    assert converter.convert(original, 'v1alpha1')['metadata'] == original['metadata']


def test_a_value_is_restored_only_if_its_place_was_not_touched(converter):
    original = make({'storage': '1.5Gi', 'users': [], 'ports': [], 'mode': 'auto'})
    old = converter.convert(original, 'v1alpha1')
    old['spec']['sizeGB'] = 2
    assert converter.convert(old, 'v1')['spec']['storage'] == '2Gi'


def test_an_item_that_was_removed_does_not_come_back(converter):
    original = make({'storage': '1Gi', 'users': [{'name': 'joe', 'password': 'x'}]})
    old = converter.convert(original, 'v1alpha1')
    old['spec']['users'] = []
    back = converter.convert(old, 'v1')
    assert back['spec']['users'] == []
    old['spec']['users'] = [{'name': 'joe'}]  # it is another one, maybe; but of this name
    assert converter.convert(old, 'v1')['spec']['users'][0]['password'] == 'x'


@pytest.mark.parametrize('content', [
    {}, {'spec': None}, {'spec': {}}, {'spec': {'mode': 'fast'}}, {'spec': {'tls': {}}},
    {'metadata': {'labels': {'a': 'b'}}, 'spec': {'storage': '2Gi'}}])
def test_parts_of_objects_get_no_defaults(converter, content):
    part = {'apiVersion': 'convert.example.com/v1', 'kind': 'Database', 'metadata': {}, **content}
    old = converter.convert(part, 'v1alpha1')
    assert (old.get('spec') or {}).items() <= {'sizeGB': 2}.items()
    assert converter.convert(old, 'v1') == part


def test_the_object_itself_stays_and_so_does_its_metadata(converter):
    original = make({'storage': '1.5Gi', 'mode': 'fast'}, generation=3,
                    managedFields=[{'manager': 'x'}], labels={'a': 'b'})
    before = copy.deepcopy(original)
    old = converter.convert(original, 'v1alpha1')
    assert original == before
    old['metadata'].pop('annotations')
    assert old['metadata'] == original['metadata']


def test_too_much_for_the_annotations_is_an_error_that_says_so(converter):
    original = make({'storage': '1Gi', 'tls': {'cert': 'c' * 300_000}})
    with pytest.raises(ValueError, match=r"v1alpha1 cannot express so much .* 256 KiB"):
        converter.convert(original, 'v1alpha1')


@pytest.mark.parametrize('damage', [
    '', '{', '[]{', '{"a": 1}', '[1]', '[{"path": []}]', '[' * 9999,
    '[{"path": ["spec"]}, {"path": ["spec", "mode"]}]', BACKLESS,
    *(f'[{{"path": ["spec", "mode"], "value": {value}}}]' for value in [
        '{"evil": 1}', 'NaN', '1e999', '9' * 400, '9' * 5000, '[' * 900 + ']' * 900])])
def test_a_damaged_note_is_as_none_with_one_warning_that_names_the_object(
        converter, caplog, damage):
    old = make({'sizeGB': 1}, 'v1alpha1', annotations={LOST: damage}, namespace='ns')
    plain = make({'sizeGB': 1}, 'v1alpha1', namespace='ns')
    for _ in range(3):
        assert converter.convert(old, 'v1') == converter.convert(plain, 'v1')
    assert len(caplog.records) == 1
    assert caplog.messages[0].startswith(
        f"The annotation {LOST} of {pairs.NAME} 'ns/one' is ignored: ")
    assert len(caplog.messages[0]) < 600


def test_a_note_of_many_leaves_in_many_items_takes_no_longer_than_both(converter):
    users = [{'name': f'u{n}', 'roles': []} for n in range(2000)]
    note = lossless.dump([
        lossless.Leaf(('spec', 'users', {'name': f'u{n}'}, 'password'), 'x', None)
        for n in range(3000)])
    calls = 0

    class Counted(str):
        def __eq__(self, other):
            nonlocal calls
            calls += 1
            return str.__eq__(self, other)
        __hash__ = str.__hash__

    users[-1]['name'] = Counted('u1999')
    restored = lossless.restore({'spec': {'users': users}}, lossless.load(note))
    assert {user['password'] for user in restored['spec']['users']} == {'x'}
    assert calls < 10


def test_a_version_whose_defaults_have_no_way_back_can_be_read(registry):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class New:
        ready: str = ''

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Old:
        count: int | None = None

    @kopf.crd('convert.example.com', 'v1', plural='databases', storage=True)
    class Database:
        spec: New = New()

    @kopf.crd('convert.example.com', 'v1alpha1', of=Database)
    class OldDatabase:
        spec: Old = Old()

    kopf.convert(OldDatabase, Database, kopf.Move(
        '.spec.count', '.spec.ready', up=str, down=int), registry=registry)
    converter = registry._converters[pairs.NAME]
    assert converter.convert(make({}, 'v1alpha1'), 'v1') == make({})
    assert converter.convert(make({'count': 1}, 'v1alpha1'), 'v1') == make({'ready': '1'})
    with pytest.raises(ValueError, match="spec.ready cannot be converted"):
        converter.convert(make({'ready': 'no'}), 'v1alpha1')


def test_a_note_changes_neither_the_identity_nor_unknown_fields(converter):
    note = json.dumps([{'path': path, 'value': 'x'} for path in [
        ['kind'], ['apiVersion'], ['metadata'], ['what'], ['spec', 'what'], ['spec', 'mode']]])
    old = make({'sizeGB': 1}, 'v1alpha1', annotations={LOST: note})
    assert converter.convert(old, 'v1') == make({'storage': '1Gi', 'mode': 'x'})


def test_without_keeping_what_is_lost_is_lost(registry):
    converter = pairs.declare(registry, lossless=False)
    original = make({'storage': '1.5Gi', 'mode': 'fast'})
    old = converter.convert(original, 'v1alpha1')
    assert old['metadata'] == original['metadata']
    assert converter.convert(old, 'v1')['spec']['storage'] == '1Gi'


# Essences.

def test_an_essence_of_another_version_is_the_current_one_if_nothing_has_changed(converter):
    for seed in range(200):
        current = converter.complete(make(pairs.draw(random.Random(seed))))
        old = store(converter, converter.convert(current, 'v1alpha1'))
        converted = converter.convert_essence(
            {'spec': old['spec']}, 'v1alpha1', current={'spec': current['spec']}, to='v1')
        assert converted == {'spec': current['spec']}, seed


def test_an_essence_of_another_version_shows_what_has_changed_since(converter):
    current = make({'storage': '3Gi', 'mode': 'fast', 'users': [], 'ports': []})
    converted = converter.convert_essence(
        {'spec': {'sizeGB': 1, 'users': [], 'ports': []}, 'metadata': {'labels': {'a': 'b'}}},
        'v1alpha1', current={'spec': current['spec']}, to='v1')
    assert converted == {'metadata': {'labels': {'a': 'b'}}, 'spec': {
        'storage': '1Gi', 'mode': 'fast', 'users': [], 'ports': []}}


# Functions and several versions.

@pytest.fixture()
def three(registry):
    """Three versions in a row, by functions: the field has another name in each of them."""
    def rename(old, new):
        def fn(obj):
            spec = obj.get('spec', {})
            if old in spec:
                spec[new] = spec.pop(old)
        return fn

    names = {'v1': 'one', 'v2': 'two', 'v3': 'three'}
    for old, new in [('v1', 'v2'), ('v2', 'v1'), ('v2', 'v3'), ('v3', 'v2')]:
        kopf.on.convert('things.example.com', old, new, registry=registry)(
            rename(names[old], names[new]))
    return registry._converters['things.example.com']


def test_versions_are_converted_over_their_neighbours(three):
    obj = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'spec': {'one': 1}}
    assert three.convert(obj, 'v3') == {**obj, 'apiVersion': 'example.com/v3', 'spec': {'three': 1}}
    assert three.find_fault() is None


@pytest.fixture()
def rising(registry, monkeypatch):
    """Three versions in a row, by classes: each can express a bit more."""
    monkeypatch.setattr(kinds, '_declared', {})

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class User:
        name: str
        role: str = 'r'

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class MoreUser(User):
        host: str = '*'

    def declare(version, of, item, **more):
        spec = dataclasses.make_dataclass('Spec', [
            ('users', Annotated[list[item], kopf.ListMap('name')], dataclasses.field(
                default_factory=list)), *more.values()], frozen=True)
        return kopf.crd('convert.example.com', version, **of)(
            type('Thing', (), {'__annotations__': {'spec': spec}}))

    newest = declare('v3', {'plural': 'things', 'storage': True}, MoreUser, owner=(
        'owner', kopf.Nullable[str], dataclasses.field(default=kopf.ABSENT)))
    middle = declare('v2', {'of': newest}, MoreUser)
    oldest = declare('v1', {'of': middle}, User)
    kopf.convert(oldest, middle, registry=registry)
    kopf.convert(middle, newest, registry=registry)
    return registry._converters['things.convert.example.com']


def test_versions_on_the_way_express_what_they_can(rising):
    users = [{'name': 'ann', 'role': 'r', 'host': 'h1'}, {'name': 'bob', 'role': 'r', 'host': '*'}]
    original = make({'users': users, 'owner': None}, 'v3')
    oldest = store(rising, rising.convert(original, 'v1'))
    assert oldest['spec']['users'] == [{'name': 'ann', 'role': 'r'}, {'name': 'bob', 'role': 'r'}]
    middle = store(rising, rising.convert(oldest, 'v2'))
    assert middle['spec'] == {'users': users}
    middle['spec']['users'][0]['host'] = 'h2'
    oldest = store(rising, rising.convert(middle, 'v1'))
    newest = store(rising, rising.convert(oldest, 'v3'))
    assert newest['spec'] == {'users': [{**users[0], 'host': 'h2'}, users[1]], 'owner': None}
    assert newest['metadata'] == original['metadata']


def test_nulls_do_not_let_items_be_restored_as_a_whole(rising):
    users = [{'name': 'ann', 'role': 'r', 'host': 'h1'}, {'name': 'bob', 'role': 'r', 'host': 'h2'}]
    oldest = rising.convert(make({'users': users, 'owner': None}, 'v3'), 'v1')
    oldest['spec']['users'][0]['role'] = 'w'
    newest = rising.convert(oldest, 'v3')
    assert newest['spec'] == {'users': [{**users[0], 'role': 'w'}, users[1]], 'owner': None}


def test_a_function_can_return_another_object(registry, monkeypatch):
    monkeypatch.setattr(kinds, '_declared', {})  # other tests have a kind of this name
    @kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)
    def up(obj):
        return {'spec': {'size': len(obj['spec']['items'])}}

    kopf.on.convert('things.example.com', 'v2', 'v1', registry=registry)(lambda obj: None)
    obj = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {'name': 'a'},
           'spec': {'items': [1, 2]}}
    made = registry._converters['things.example.com'].convert(obj, 'v2')
    del made['metadata']['annotations']  # the items
    assert made == {**obj, 'apiVersion': 'example.com/v2', 'spec': {'size': 2}}


def test_functions_refuse_and_fail_with_words(registry):
    @kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)
    def up(obj):
        if obj['spec'] == 'lossy':
            raise kopf.Lossy("it has too many arms")
        return obj['nothing']

    converter = registry._converters['things.example.com']
    obj = {'apiVersion': 'example.com/v1', 'kind': 'Thing'}
    with pytest.raises(kopf.Lossy, match=r"^it has too many arms$"):
        converter.convert({**obj, 'spec': 'lossy'}, 'v2')
    with pytest.raises(ValueError, match=r"up has failed: KeyError\('nothing'\)"):
        converter.convert({**obj, 'spec': 'x'}, 'v2')


@pytest.mark.parametrize(('edges', 'fault'), [
    ([('v1', 'v2')], r"no conversion of v2 to v1, only back. .*@kopf.on.convert\('things.example"),
    ([('v1', 'v2'), ('v2', 'v1'), ('v3', 'v4'), ('v4', 'v3')], r"no conversion between v1 and v3"),
    ([('v1', 'v2'), ('v2', 'v1'), ('v2', 'v3'), ('v3', 'v2'), ('v1', 'v3'), ('v3', 'v1')],
     r"several ways"),
])
def test_versions_have_to_be_a_tree(registry, edges, fault):
    for old, new in edges:
        kopf.on.convert('things.example.com', old, new, registry=registry)(lambda obj: None)
    with pytest.raises(LookupError, match=fault):
        registry.verify()


@pytest.mark.parametrize(('args', 'error'), [
    (('things', 'v1', 'v2'), r"'things' is no name of a definition"),
    (('things.example.com', '1', 'v2'), r"'1' is no version"),
    (('things.example.com', 'v1', 'v1'), r"to the same version is none"),
])
def test_wrong_names_are_refused(registry, args, error):
    with pytest.raises(kopf.DeclarationError, match=error):
        kopf.on.convert(*args, registry=registry)


def test_one_way_is_declared_once(registry):
    kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)(lambda obj: None)
    with pytest.raises(kopf.DeclarationError, match=r"two conversions of v1 to v2"):
        kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)(lambda obj: None)


def test_functions_are_not_async(registry):
    async def fn(value):
        pass

    with pytest.raises(kopf.DeclarationError, match=r"fn is async, .* synchronous function"):
        kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)(fn)

    @kopf.crd('async.example.com', 'v1', plural='things', storage=True)
    class Thing:
        spec: dict[str, int]

    @kopf.crd('async.example.com', 'v1beta1', of=Thing)
    class OldThing:
        spec: dict[str, int]

    for options in [{'up': fn}, {'down': fn}]:
        with pytest.raises(kopf.DeclarationError, match=r"fn is async, .* synchronous function"):
            kopf.convert(OldThing, Thing, **options, registry=registry)
        with pytest.raises(kopf.DeclarationError, match=r"fn is async, .* synchronous function"):
            kopf.convert(OldThing, Thing, kopf.Move('.spec.a', '.spec.b', **options),
                         registry=registry)


@pytest.mark.parametrize('returned', [True, [], 'x'])
def test_functions_return_objects_or_nothing(registry, returned):
    @kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)
    def fn(obj):
        return returned

    obj = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'spec': {}}
    with pytest.raises(ValueError, match=rf"fn has returned {type(returned).__name__}, not a dict"):
        registry._converters['things.example.com'].convert(obj, 'v2')


CIRCLE = {}
CIRCLE['circle'] = CIRCLE


@pytest.mark.parametrize(('change', 'error'), [
    ({'spec': {'x': {'y': {1}}}}, r"spec\.x\.y is no JSON: .* set"),
    ({'spec': {'x': [b'x']}}, r"spec\.x is no JSON: .* bytes"),
    ({'spec': {'x': datetime.date(2020, 1, 1)}}, r"spec\.x is no JSON: .* date"),
    ({'spec': {'x': float('nan')}}, r"spec\.x is no JSON: Out of range"),
    ({'spec': {('x',): 1}}, r"spec is no JSON: keys must be str"),
    ({'spec': CIRCLE}, r"nested too deeply"),
    ({'metadata': 'abc'}, r"metadata is str, not a dict"),
    ({'metadata': {'labels': 'abc'}}, r"metadata\.labels is not a dict of strings"),
    ({'metadata': {'annotations': {'a': None}}}, r"metadata\.annotations is not a dict of strings"),
])
@pytest.mark.parametrize('lossless', [True, False])
def test_functions_return_what_api_servers_accept(registry, lossless, change, error):
    for old, new in [('v1', 'v2'), ('v2', 'v1')]:
        kopf.on.convert('things.example.com', old, new, lossless=lossless, registry=registry)(
            lambda obj: obj.update(change))
    obj = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {'name': 'a'}}
    for whole in (obj, dicts.without(obj, ['metadata'])):
        with pytest.raises(ValueError, match=error):
            registry._converters['things.example.com'].convert(whole, 'v2')


@pytest.mark.parametrize('meta', ['x', ['x'], {'annotations': 5}, {'annotations': {LOST: 5}}])
def test_objects_with_other_metadata_are_not_converted(converter, meta):
    with pytest.raises(ValueError, match=r"^metadata"):
        converter.convert({**make({}), 'metadata': meta}, 'v1alpha1')


@pytest.mark.parametrize('path', ['spec.a', '.', '.spec.', '.metadata.name', '.kind', ''])
def test_only_fields_of_the_content_are_moved(path):
    with pytest.raises(kopf.DeclarationError, match=r"is no path of a field to move"):
        kopf.Move(path, '.spec.b')
    with pytest.raises(kopf.DeclarationError, match=r"is no path of a field to move"):
        kopf.Move('.spec.b', path)


def test_moves_can_swap_fields_and_name_what_fails(registry):
    @kopf.crd('swap.example.com', 'v1', plural='things', storage=True)
    class Thing:
        spec: dict[str, int]

    @kopf.crd('swap.example.com', 'v1beta1', of=Thing)
    class OldThing:
        spec: dict[str, int]

    kopf.convert(OldThing, Thing, kopf.Move('.spec.a', '.spec.b'), kopf.Move('.spec.b', '.spec.a'),
                 kopf.Move('.spec.c', '.spec.c', up=lambda value: value / 0), registry=registry)
    converter = registry._converters['things.swap.example.com']
    obj = {'apiVersion': 'swap.example.com/v1beta1', 'kind': 'Thing', 'spec': {'a': 1, 'b': 2}}
    assert converter.convert(obj, 'v1')['spec'] == {'a': 2, 'b': 1}
    with pytest.raises(ValueError, match=r"spec\.c cannot be converted: ZeroDivisionError"):
        converter.convert({**obj, 'spec': {'c': 1}}, 'v1')


@pytest.mark.parametrize('old, new, options, missing', [
    ('.spec.sizeGb', '.spec.size', {}, None),
    ('.spec.any.thing', '.spec.any.other', {}, None),
    ('.spec.sizeGB', '.spec.size', {}, r"'.spec.sizeGB' in v1beta1"),
    ('.spec.sizeGb', '.spec.volume.size', {}, r"'.spec.volume.size' in v1, .*'.spec.maxSize'"),
    ('.spec.size', '.spec.sizeGb', {'up': lambda obj: None}, r"'.spec.size' in v1beta1"),
    ('.spec.sizeGb', '.spec.own', {'up': lambda obj: None}, None),
])
def test_moves_of_fields_that_there_are_not_are_faults(registry, old, new, options, missing):
    one, two = (dataclasses.make_dataclass('Spec', [(name, int), ('any', dict[str, Any])])
                for name in ('size_gb', 'size'))
    thing = kopf.crd('moved.example.com', 'v1', plural='things', storage=True)(
        type('Thing', (), {'__annotations__': {'spec': two}}))
    old_thing = kopf.crd('moved.example.com', 'v1beta1', of=thing)(
        type('OldThing', (), {'__annotations__': {'spec': one}}))
    kopf.convert(old_thing, thing, kopf.Move(old, new), **options, registry=registry)
    fault = registry._converters['things.moved.example.com'].find_fault()
    if missing is None:
        assert fault is None
    else:
        assert re.search(f'things.moved.example.com has no field {missing}', fault)


def test_two_kinds_are_no_versions_of_one(registry):
    @kopf.crd('one.example.com', 'v1', plural='things')
    class Thing:
        spec: dict[str, int]

    @kopf.crd('two.example.com', 'v2', plural='things')
    class Other:
        spec: dict[str, int]

    with pytest.raises(kopf.DeclarationError, match=r"not two versions of one kind"):
        kopf.convert(Thing, Other, registry=registry)


def test_a_version_leaves_out_what_all_versions_have_in_common():
    @kopf.crd('one.example.com', 'v1', plural='things', short=['th'], scope='Cluster')
    class Thing:
        spec: dict[str, int]

    for options in [{'short': ['t']}, {'plural': 'others'}, {'kind': 'X'}]:
        with pytest.raises(kopf.DeclarationError, match=r"Leave them out with of="):
            kopf.crd('one.example.com', 'v2', of=Thing, **options)
    with pytest.raises(kopf.DeclarationError, match=r"Leave them out with of="):
        kopf.crd('another.example.com', 'v2', of=Thing)
    with pytest.raises(kopf.DeclarationError, match=r"needs the name of its resource"):
        kopf.crd('one.example.com', 'v2')
