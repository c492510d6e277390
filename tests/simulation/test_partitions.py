"""
A peer that works is cut off until the other one has taken over, and then comes back.
"""
import collections
import sys

import pytest

from tests.simulation import plans, worlds
from tests.simulation.faults import OWN
from tests.simulation.planting import Fault, planted
from tests.simulation.test_faults import VERSION


def find_repetitions(plan):
    """
    Find what is handled twice, though it was first handled by the operator that has taken over.

    What the other operator does while it is cut off cannot be known.
    """
    report = worlds.run(plan)
    assert report.violation is None
    cut, = (step for step in plan.steps if step.action == 'cut')
    healed = cut.at + cut.args['seconds']
    done = collections.Counter(
        f'{call.id} of {call.name}: {call.reason} from {call.old} to {call.new}'
        for call in report.calls
        if call.finished and (call.process.who == 1 or call.ended > healed))
    return [what for what, count in done.items() if count > 1]


@pytest.mark.parametrize('seed', range(20))
def test_what_is_handled_after_a_takeover_is_not_handled_again_when_the_former_peer_is_back(seed):
    assert find_repetitions(plans.make_partition(seed)) == []


@pytest.mark.skipif(sys.version_info[:2] != VERSION, reason="the seeds are of another version")
@pytest.mark.parametrize('seed, fault', [
    (18, Fault('writes of the former peer come later',
               '_core.engines.peering.memberships:Membership.judge',
               "self._client.reset_writes()", "pass", OWN)),
    (18, Fault('writes that wait are not fenced',
               '_core.actions.application:Target.pass_unfenced',
               "if self.is_fenced:", "if False:", OWN)),
])
def test_a_planted_fault_lets_changes_be_handled_twice(seed, fault):
    with planted(fault):
        assert find_repetitions(plans.make_partition(seed))
