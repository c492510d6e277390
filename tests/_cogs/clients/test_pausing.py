import itertools

import pytest

from kopf._cogs.clients import pausing


class Endless:
    def __iter__(self):
        return itertools.count(1)


@pytest.mark.parametrize('backoffs, pauses', [
    (3, [3]),
    (1.5, [1.5]),
    ((), []),
    ([1, 2], [1, 2]),
    (range(3), [0, 1, 2]),
])
def test_backoffs_of_all_sorts(backoffs, pauses):
    assert list(pausing.as_iterable(backoffs)) == pauses
    assert list(pausing.as_iterable(backoffs)) == pauses
    assert len(pausing.as_iterable(backoffs)) == len(pauses)


def test_endless_backoffs_are_taken_one_by_one():
    assert list(itertools.islice(pausing.as_iterable(Endless()), 3)) == [1, 2, 3]


@pytest.mark.parametrize('pause, retry_after, enforced, expected', [
    (3, None, False, 3), (3, None, True, 3),
    (3, 5, False, 5), (3, 5, True, 5),
    (5, 3, False, 5), (5, 3, True, 3),
])
def test_the_server_is_never_asked_earlier_than_it_wants(pause, retry_after, enforced, expected):
    assert pausing.combine(pause, retry_after, enforced=enforced) == expected


def take(backoffs, count):
    return list(itertools.islice(pausing.repeat(backoffs), count))


def assert_about(pauses, expected):
    for pause, base in zip(pauses, expected, strict=True):
        assert base <= pause <= base * 1.3


def test_the_last_pause_repeats_for_ever():
    assert_about(take([1, 2, 5], 5), [1, 2, 5, 5, 5])


def test_too_short_pauses_do_not_repeat_for_ever():
    assert_about(take([0.1, 0.2], 4), [0.1, 0.2, 1, 1])


def test_without_pauses_of_the_settings_they_double():
    assert_about(take([], 7), [1, 2, 4, 8, 16, 30, 30])


def test_one_number_is_a_pause_that_repeats():
    assert_about(take(3, 3), [3, 3, 3])


def test_pauses_vary():
    assert len(set(take([1] * 10, 10))) > 1
