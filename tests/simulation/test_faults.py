"""
The simulation finds faults: each planted one is found, within some seeds.
"""
import pytest

from tests.simulation import plans, worlds
from tests.simulation.faults import FAULTS
from tests.simulation.planting import planted

LIMIT = 400
"""How many seeds are tried at most."""


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault):
    with planted(fault):
        for seed in range(LIMIT):
            if worlds.run(plans.make(seed)).violation is not None:
                return
    pytest.fail(f"Nothing is found in {LIMIT} seeds: {fault}")
