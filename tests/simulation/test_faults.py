"""
The simulation finds faults: each planted one violates a guarantee, by a seed that is known for it.

``python -m tests.simulation --faults`` looks for the seeds again, if the plans have changed.
"""
import json
import sys

import pytest

from tests.simulation import command, plans, worlds
from tests.simulation.command import FOUND, USUAL
from tests.simulation.faults import FAULTS
from tests.simulation.planting import Fault, planted

SEEDS = json.loads(FOUND.read_text())

VERSION = (3, 11)
"""
The version of Python whose seeds are known. Other versions run the tasks in other orders, so that
their seeds are other ones.
"""


def test_there_are_at_least_40():
    assert len(SEEDS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_seed_is_known_for_each_fault():
    assert SEEDS.keys() == {fault.name for fault in FAULTS}


@pytest.mark.skipif(sys.version_info[:2] != VERSION, reason="the seeds are of another version")
@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault):
    found = SEEDS[fault.name]
    with planted(fault):
        violation = worlds.run(command.make_plan(found['seed'], fault)).violation
    assert violation is not None, fault.breaks
    assert violation.guarantee == found['guarantee']


def test_without_its_fault_a_seed_violates_nothing():
    used = {(SEEDS[fault.name]['seed'], fault.get_options()) for fault in FAULTS}
    for seed, options in sorted(used - {(seed, ()) for seed in USUAL}):
        assert worlds.run(plans.make(seed, **dict.fromkeys(options, True))).violation is None


def test_a_fault_that_cannot_be_planted_any_more_says_so():
    fault = Fault('x', '_core.path.inboxes:Inbox.remind', "no such text", "pass", "nothing")
    with pytest.raises(ValueError, match="Adapt it to the changed function"):
        with planted(fault):
            pass
