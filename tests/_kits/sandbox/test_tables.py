import datetime

import pytest

from kopf._kits.sandbox import cells, tables
from kopf._kits.sandbox.kinds import Column, Kind, builtin_kinds
from kopf._kits.sandbox.requests import Accepted, Request

NOW = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)
HOUR, DAY = 3600, 86400


@pytest.mark.parametrize(('seconds', 'text'), [
    (-5, '<invalid>'), (0, '0s'), (119, '119s'), (120, '2m'), (125, '2m5s'), (600, '10m'),
    (2 * HOUR, '120m'), (3 * HOUR, '3h'), (3 * HOUR + 300, '3h5m'), (10 * HOUR, '10h'),
    (3 * DAY, '3d'), (3 * DAY + 5 * HOUR, '3d5h'), (30 * DAY, '30d'), (800 * DAY, '2y70d'),
    (3650 * DAY, '10y'),
])
def test_ages_are_told_as_to_people(seconds, text):
    assert cells.duration(seconds) == text


@pytest.mark.parametrize(('path', 'found'), [
    ('.a.b', [1]), ('.c[0].d', ['x']), ('.c[*].d', ['x', 'y']), ('.nowhere', []), ('.a.b.c', []),
    ("['a'].b", [1]), (r'.e\.f', [2]), ('.c[?(@.d=="y")].n', [5]), ('.c[9].d', []),
])
def test_paths_lead_to_values(path, found):
    obj = {'a': {'b': 1}, 'c': [{'d': 'x'}, {'d': 'y', 'n': 5}], 'e.f': 2}
    assert tables.follow(obj, tables.parse_path(path)) == found


def row(columns, obj, custom=True):
    kind = Kind(group='x.y', version='v1', plural='things', kind='Thing', columns=tuple(columns),
                custom=custom)
    request = Request(verb='list', kind=kind, accepted=Accepted(shape='Table'))
    table = tables.Maker(request, NOW).table([obj], {})
    return table['rows'][0]['cells']


@pytest.mark.parametrize(('type', 'value', 'cell'), [
    ('string', 'x', 'x'), ('string', 5, '5'), ('string', {'a': 1}, '{"a":1}'),
    ('string', True, 'true'),
    ('integer', 5, 5), ('integer', 'x', None), ('integer', True, None),
    ('number', 1.5, 1.5), ('boolean', False, False), ('boolean', 'x', None),
    ('date', '2020-01-01T00:00:00Z', '24h'), ('date', 'x', '<unknown>'),
    ('string', None, None), ('date', None, '<unknown>'),
])
def test_cells_are_of_the_types_of_their_columns(type, value, cell):
    assert row([Column('X', type, path='.spec.x')], {'spec': {'x': value}}) == [cell]


def test_all_builtin_kinds_can_be_shown_when_almost_empty():
    for kind in builtin_kinds():
        request = Request(verb='list', kind=kind, accepted=Accepted(shape='Table'))
        obj = {'metadata': {'name': 'x', 'creationTimestamp': '2020-01-01T00:00:00Z'}}
        maker = tables.Maker(request, NOW)
        table = maker.table([obj], {})
        assert len(table['rows'][0]['cells']) == len(table['columnDefinitions'])
