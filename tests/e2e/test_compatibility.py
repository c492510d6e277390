"""
Whether a definition is compatible with another one, as the API itself sees it: see `Judge`.
"""
import os
import random
from typing import Any

from kopf._kits.typed.compatibility import compare
from tests._kits.typed.pairs import PAIRS, define
from tests._kits.typed.randompairs import make_pair
from tests.e2e.kubes import KubeError

SEEDS = range(int(os.environ.get('KOPF_E2E_PAIRS', '60')))
"""The seeds of random pairs of definitions."""


def find_errors(old: Any, new: Any, *, ratcheting: bool = False) -> list[str]:
    return [str(finding)
            for finding in compare(define(old), define(new), ratcheting=ratcheting)
            if finding.level == 'error']


async def test_the_api_harms_an_object_where_an_error_is_expected_and_nowhere_else(judge, minor):
    for pair in PAIRS:
        if pair.is_new and minor < 25:
            continue
        harm = await judge.find_harm(pair.old, pair.new, pair.spec)
        errors = find_errors(pair.old, pair.new)
        assert bool(harm) == bool(errors and not pair.harmless), (pair.name, harm, errors)


async def test_a_harmed_update_is_an_error_also_with_ratcheting(judge, minor):
    for pair in PAIRS:
        harm = await judge.find_harm(pair.old, pair.new, pair.spec)
        errors = find_errors(pair.old, pair.new, ratcheting=minor >= 30)
        assert 'update' not in harm or errors, (pair.name, harm)


async def test_harm_by_random_changes_is_always_an_error(judge, minor):
    harmed = compatible = 0
    for seed in SEEDS:
        old, new, specs = make_pair(random.Random(seed))
        try:
            harm = await judge.find_harm(old, new, *specs)
        except KubeError as e:
            assert e.status == 422, e
            continue  # it is no definition
        errors = find_errors(old, new)
        assert not harm or errors, f"Seed {seed}: {harm}\n{old}\n{new}"
        harmed += bool(harm)
        compatible += not errors
    print(f"Of {len(SEEDS)} pairs, {harmed} are harmful, and {compatible} are compatible.")
    assert harmed > len(SEEDS) / 5
    assert compatible > len(SEEDS) / 20
