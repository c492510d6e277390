"""
Cycles in a row that handlers cause by their own patches: when they count, and how they slow down.
"""
import pytest

from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.feedbackloops import Feedback, Slowdown, find_own, follow, makes, slow_down

ESSENCE = {'spec': {'n': 1}}


def press_times(count, *, apart):
    slowdown, delays = None, []
    for number in range(count):
        slowdown = slow_down(slowdown, ESSENCE, now=number * apart)
        delays.append(slowdown.until - slowdown.last)
    return delays


def test_delays_begin_with_the_tenth_cycle_and_double_up_to_a_minute():
    assert press_times(18, apart=60) == [0] * 9 + [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_delays_stay_at_a_minute_however_long_it_lasts():
    assert press_times(2000, apart=60)[-1] == 60


def test_cycles_with_a_longer_quiet_between_them_are_not_in_a_row():
    assert press_times(100, apart=121) == [0] * 100


def test_cycles_with_a_quiet_of_two_minutes_between_them_are_in_a_row():
    assert press_times(11, apart=120)[-1] == 2


def test_the_slowdown_is_new_once():
    slowdowns = [Slowdown(ESSENCE, count, 0, 0) for count in range(100)]
    assert [each.cycles for each in slowdowns if each.is_new] == [10]


@pytest.mark.parametrize(('after', 'patches', 'fields'), [
    ({'spec': {'n': 2}}, [{'spec': {'n': 2}}], [('spec', 'n')]),
    ({'spec': {'n': '2000m'}}, [{'spec': {'n': 2}}], [('spec', 'n')]),
    ({'spec': {'n': 2}}, [{'spec': {'x': 2}}, {'spec': {'n': 2}}], [('spec', 'n')]),
    ({'spec': {'n': 1, 'x': {'y': 1}}}, [{'spec': {'x': {'y': 1}}}], [('spec', 'x')]),
    ({'spec': {'n': {'y': 1}}}, [{'spec': {'n': {'y': 1}}}], [('spec', 'n')]),
    ({}, [{'spec': None}], [('spec',)]),
    ({'spec': {'n': 1}}, [{'spec': {'n': 1}}], []),
    ({'spec': {'n': 2}}, [], []),
    ({'spec': {'n': 2}}, [{'status': {'n': 2}}], []),
    ({'spec': {'n': 2, 'm': 2}}, [{'spec': {'n': 2}}], []),
])
def test_changes_are_own_ones_if_patches_are_for_all_of_them(after, patches, fields):
    assert find_own(diff(ESSENCE, after), map(Patch, patches)) == fields


def test_patches_with_functions_can_make_any_change():
    assert find_own(diff(ESSENCE, {'spec': {'n': 2}}), [Patch(fns=[print])]) == [('spec', 'n')]


@pytest.mark.parametrize(('patch', 'field', 'expected'), [
    ({'spec': {'n': 1}}, ('spec', 'n'), True),
    ({'spec': {'n': 1}}, ('spec', 'm'), False),
    ({'spec': {'n': 1}}, ('spec',), True),  # also of a part of the field
    ({'spec': {'n': 1}}, ('spec', 'n', 'x'), True),  # and of the field above it
])
def test_a_patch_makes_changes_of_its_fields_and_of_what_is_above_and_below_them(
        patch, field, expected):
    assert makes(Patch(patch), field) is expected


def make_state(version):
    return {'metadata': {'resourceVersion': version}}


def test_patches_of_event_handlers_are_in_a_row_if_each_follows_the_state_of_the_one_before():
    echo = follow(None, make_state('1'), make_state('2'))
    assert echo == Feedback(2, 1)
    echo = follow(echo, make_state('2'), make_state('3'))
    assert echo == Feedback(3, 2)
    assert follow(echo, make_state('4'), make_state('5')) == Feedback(5, 1)  # others changed it


def test_the_row_of_patches_is_new_once():
    assert [count for count in range(100) if Feedback(1, count).is_new] == [10]
