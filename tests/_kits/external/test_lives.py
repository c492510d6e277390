"""
Whatever happens in a life, there is one thing for each object; and each careless change is found.
"""
import pytest

from tests._kits.external import faults, lives
from tests.simulation import planting


@pytest.mark.parametrize('begin', range(0, 100, 10))
def test_all_promises_hold(begin):
    for seed in range(begin, begin + 10):
        life = lives.run(seed)
        assert life.violation is None, f"seed {seed}: {life.violation}"


@pytest.mark.parametrize('seed', [
    21565, 22227, 24072, 25894, 29174, 52327, 52504, 53229, 72759, 74077])
def test_promises_hold_where_they_were_broken(seed):
    life = lives.run(seed)
    assert life.violation is None, life.violation


@pytest.mark.parametrize('seed', [8, 1118, 1623, 2681, 3163, 3263, 3485, 3563])
def test_records_that_people_remove_are_restored_and_announce_nothing(seed):
    life = lives.run(seed, is_replaced=True)
    assert life.violation is None, life.violation


@pytest.mark.parametrize('seed', [9, 25, 60, 108, 139, 148, 173, 184])
def test_nothing_is_created_twice_though_the_record_was_removed_while_no_operator_ran(seed):
    life = lives.run(seed, is_bereft=True)
    assert life.violation is None, life.violation
    assert life.bereft.total()


@pytest.mark.parametrize('seed', [*range(10), 252, 358, 482, 487, 655, 757, 402492])
def test_promises_hold_for_two_externals_of_which_one_waits_for_the_other(seed):
    life = lives.run(seed, is_paired=True)
    assert life.violation is None, life.violation


@pytest.mark.parametrize('seed', [*range(8), 65])
def test_promises_hold_for_objects_that_do_not_match_for_a_while(seed):
    life = lives.run(seed, is_filtered=True)
    assert life.violation is None, life.violation


@pytest.mark.parametrize('seed', [5498, 5839, 6310, 6388])
def test_two_operators_do_not_overwrite_their_conditions_without_an_end(seed):
    life = lives.run(seed, is_paired=True, is_replaced=True, is_answered=True)
    assert life.violation is None, life.violation


@pytest.mark.parametrize('seed', [97, 127, 487, 652, 742, 977, 987, 1037, 1377, 1547, 1557])
def test_the_answers_of_people_settle_what_nobody_else_can_tell(seed):
    life = lives.run(seed, system='neither', is_answered=True)
    assert life.violation is None, life.violation
    assert life.answered.total()


@pytest.mark.parametrize('fault', faults.FAULTS, ids=lambda fault: fault.name)
def test_planted_faults_are_found(fault):
    with planting.planted(fault):
        assert lives.run(faults.FAULTS[fault]).violation is not None
    assert lives.run(faults.FAULTS[fault]).violation is None
