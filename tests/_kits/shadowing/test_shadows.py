import asyncio
import os
import random

import pytest

from kopf._kits.sandbox.statuses import APIError
from kopf._kits.testing import virtual
from tests._kits.sandbox.conftest import toy
from tests._kits.shadowing.conftest import WINDOW, declare, perform

CHURN = float(os.environ.get("KOPF_SHADOW_CHURN", 600))
"""For how long (virtual seconds) users change objects: an hour takes two minutes."""


async def live(stage):
    """What users do, for a while."""
    await stage.there.create(toy('one', spec={'n': 1}))
    await stage.wait()
    await stage.there.patch('toys', 'one', {'spec': {'n': 2, 'light': True}})
    await stage.wait()


PLANTED = {
    'a field': ({'field': 'red'}, [
        "different: configmaps default/one-conf: data.field: \"blue\" in production, \"red\" here "
        "(by children for toys.sandbox.test default/one)"]),
    'a count': ({'count': 3}, [
        "different: deployments.apps default/one: spec.replicas: 2 in production, 3 here "
        "(by children for toys.sandbox.test default/one)"]),
    'a name': ({'child': 'config'}, [
        "missing: configmaps default/one-conf: only production has created it",
        "more: configmaps default/one-config: only the new version has created it "
        "(by children for toys.sandbox.test default/one)"]),
    'a missing child': ({'child': None}, [
        "missing: configmaps default/one-conf: only production has created it"]),
    'one more child': ({'extra': True}, [
        "more: configmaps default/one-extra: only the new version has created it "
        "(by children for toys.sandbox.test default/one)"]),
    'a status': ({'phase': 'fine'}, [
        "different: toys.sandbox.test default/one: status.phase: \"ok\" in production, "
        "\"fine\" here (by "
        "found for toys.sandbox.test default/one, tell for toys.sandbox.test default/one)"]),
    'a condition': ({'ready': 'False'}, [
        "different: toys.sandbox.test default/one: status.conditions[Ready].status: \"True\" in "
        "production, \"False\" here (by "
        "found for toys.sandbox.test default/one, tell for toys.sandbox.test default/one)"]),
    'a finalizer': ({'holds': False}, [
        "missing: toys.sandbox.test default/one: "
        "metadata.finalizers[kopf.zalando.org/KopfFinalizerMarker]: true in production, "
        "nothing here"]),
    'a later write': ({'delay': 1.5 * WINDOW}, [
        "later: configmaps default/one-conf: all of it after 90 seconds"]),
    'a deletion': ({'is_light_kept': True}, [
        "missing: configmaps default/one-heavy: only production has deleted it"]),
    'a refusal': ({'is_denied': True}, [
        "refused: toys.sandbox.test default/one: the UPDATE would be denied: too many"]),
}


@pytest.mark.parametrize('change, expected', PLANTED.values(), ids=PLANTED)
def test_a_planted_difference_is_told_once(change, expected):
    async def scenario():
        async with perform(declare(), declare(**change)) as stage:
            await live(stage)
            if 'delay' in change:
                assert {told.partition(':')[0] for told in stage.told} == {'later'}
                assert any(expected[0] in told for told in stage.told)
            else:
                assert sorted(stage.told) == sorted(expected)
    virtual.run(scenario())


def test_the_same_version_differs_in_nothing():
    async def scenario():
        async with perform(declare(), declare(), existing=[toy('zero', spec={'n': 5})]) as stage:
            await live(stage)
            await stage.there.delete('toys', 'one')
            await stage.there.delete('toys', 'zero')
            await stage.wait()
            assert stage.told == []
            for sandbox in (stage.there, stage.here):
                assert await sandbox.list('toys', 'default') == []
                assert await sandbox.list('cm', 'default') == []
    virtual.run(scenario())


def test_deletions_before_the_first_handling_are_those_of_users_with_any_finalizer():
    async def scenario():
        versions = [declare(finalizer='example.com/own') for _ in range(2)]
        async with perform(*versions) as stage:
            await stage.there.create({**toy('one'), 'metadata': {
                'name': 'one', 'annotations': {'kopf.dev/paused': ''}}})
            await asyncio.sleep(5)
            await stage.there.delete('toys', 'one')
            await asyncio.sleep(5)
            assert 'deletionTimestamp' in (await stage.here.get('toys', 'one'))['metadata']
            await stage.there.patch('toys', 'one', {
                'metadata': {'annotations': {'kopf.dev/paused': None}}})
            await stage.wait()
            assert stage.told == []
            assert await stage.here.list('toys', 'default') == []
    virtual.run(scenario())


def test_edits_that_production_undoes_are_undone_by_the_shadow():
    async def scenario():
        async with perform(declare(), declare()) as stage:
            await stage.there.create(toy('one', spec={'n': 1}))
            await stage.wait()
            for value in 'red', 'green':
                await stage.there.patch('cm', 'one-conf', {'data': {'field': value}})
                await stage.there.patch('deployments.apps', 'one', {'spec': {'replicas': 77}})
                await stage.wait()
                for sandbox in (stage.there, stage.here):
                    assert (await sandbox.get('cm', 'one-conf'))['data']['field'] == 'blue'
                    deployment = await sandbox.get('deployments.apps', 'one')
                    assert deployment['spec']['replicas'] == 2
            assert stage.told == []
    virtual.run(scenario())


async def churn(stage, seed, seconds):
    """What users and other controllers do: every few seconds, something."""
    rng = random.Random(seed)
    there, until = stage.there, asyncio.get_running_loop().time() + seconds
    names = [f'o{number}' for number in range(8)]
    touched, robbed = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    counts = dict.fromkeys(['create', 'change', 'delete', 'child', 'status', 'label', 'edit'], 0)
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(rng.expovariate(1 / 2))
        name, what = rng.choice(names), rng.choice(list(counts))
        now = asyncio.get_running_loop().time()
        # Nobody can tell who has deleted something around the time of a change of its owner.
        if what in ('create', 'change', 'delete'):
            if now < robbed[name] + 2:
                continue
            touched[name] = now
        try:
            match what:
                case 'create':
                    await there.create(toy(name, spec={'n': 1}))
                case 'change':
                    await there.patch('toys', name, {'spec': {
                        'n': rng.randint(1, 5), 'light': rng.choice([True, None])}})
                case 'delete':
                    await there.delete('toys', name)
                case 'child':
                    child = rng.choice(['conf', 'heavy', 'found'])
                    if child == 'found':
                        if now < touched[name] + 25:
                            continue
                        robbed[name] = now
                    await there.delete('cm', f'{name}-{child}')
                case 'status':
                    await there.patch('deployments.apps', name, {'status': {
                        'replicas': rng.randint(0, 9)}}, subresource='status')
                case 'label':
                    await there.patch('cm', f'{name}-conf', {'metadata': {'labels': {
                        'seen': str(rng.random())}}})
                case 'edit':
                    await there.patch('cm', f'{name}-conf', {'data': {'field': 'red'}})
                    await there.patch('deployments.apps', name, {'spec': {'replicas': 77}})
        except APIError:
            continue
        counts[what] += 1
    return counts


@pytest.mark.parametrize('seed, seconds', [
    (0, CHURN),
    (1, CHURN),
    (3, max(CHURN, 2000)),  # an owner is created again while the objects of the former one go
])
def test_nothing_is_invented_in_churn(seed, seconds):
    async def scenario():
        versions = [declare(slowness=4.0, seed=f'{seed}-{number}') for number in range(2)]
        async with perform(*versions, window=20.0) as stage:
            counts = await churn(stage, seed, seconds)
            await stage.wait()
            assert stage.told == []
            assert min(counts.values()) > seconds / 200, counts
            found = [{obj['metadata']['name'] for kind in ('toys', 'cm')
                      for obj in await sandbox.list(kind, 'default')}
                     for sandbox in (stage.there, stage.here)]
            assert found[0] == found[1]
    virtual.run(scenario())
