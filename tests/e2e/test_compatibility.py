"""
Whether a definition is compatible with another one, as the API itself sees it: see `Judge`.
"""
import os
import random
from typing import Any

import pytest

from kopf._kits.typed.compatibility import compare
from tests._kits.typed.pairs import PAIRS, define
from tests._kits.typed.randompairs import make_pair
from tests.e2e.kubes import CRDS, KubeError

SEEDS = range(int(os.environ.get('KOPF_E2E_PAIRS', '60')))
"""The seeds of random pairs of definitions."""

HARMS: dict[str, dict[str, str]] = {}
"""What the API has done to the object of each pair, by the name of the pair."""


def find_errors(old: Any, new: Any, *, ratcheting: bool = False) -> list[str]:
    return [str(finding)
            for finding in compare(define(old), define(new), ratcheting=ratcheting)
            if finding.level == 'error']


@pytest.fixture()
async def harms(judge):
    """How the changes of all pairs harm their objects; asked once, as that takes a minute."""
    for pair in PAIRS if not HARMS else ():
        HARMS[pair.name] = await judge.find_harm(pair.old, pair.new, pair.spec)
    return HARMS


async def test_the_api_harms_an_object_where_an_error_is_expected_and_nowhere_else(harms, minor):
    for pair in PAIRS:
        if pair.is_new and minor < 25:
            continue
        harm, errors = harms[pair.name], find_errors(pair.old, pair.new)
        assert bool(harm) == bool(errors and not pair.harmless), (pair.name, harm, errors)


async def test_a_harmed_update_is_an_error_also_with_ratcheting(harms, minor):
    for pair in PAIRS:
        harm, errors = harms[pair.name], find_errors(pair.old, pair.new, ratcheting=minor >= 30)
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


def change_scope(spec):
    spec['scope'] = 'Cluster'


def change_kind(spec):
    spec['names'] = {**spec['names'], 'kind': 'Other'}


def change_kind_of_lists(spec):
    spec['names'] = {**spec['names'], 'listKind': 'Others'}


def change_names(spec):
    spec['names'] = {**spec['names'], 'singular': 'other', 'shortNames': ['ot']}


def remove_stored_version(spec):
    spec['versions'] = [{**spec['versions'][0], 'name': 'v2'}]


def store_other_version(spec):
    [version] = spec['versions']
    spec['versions'] = [{**version, 'storage': False}, {**version, 'name': 'v2'}]


def add_status(spec):
    [version] = spec['versions']
    spec['versions'] = [{**version, 'subresources': {'status': {}}}]


@pytest.mark.parametrize(('change', 'is_refused', 'rules'), [
    (change_scope, True, {'scope-changed'}),
    (change_kind, True, {'kind-changed'}),
    (change_kind_of_lists, False, {'kind-changed'}),
    (change_names, False, set()),
    (remove_stored_version, True, {'stored-version-removed', 'version-gone'}),
    (store_other_version, False, {'storage-version-changed'}),
    (add_status, False, {'status-subresource-added'}),
])
async def test_the_api_refuses_some_incompatible_definitions(
        kube, make_kind, change, is_refused, rules):
    kind = await make_kind()
    path = f'{CRDS}/{kind.plural}.{kind.group}'
    old = await kube.request('GET', path)
    new = {**old, 'spec': {**old['spec']}}
    change(new['spec'])
    assert {finding.rule for finding in compare(old, new)} == rules
    refused = False
    try:
        await kube.set_spec(path, new['spec'], dry=True)
    except KubeError as e:
        assert e.status == 422, e
        refused = True
    assert refused == is_refused
