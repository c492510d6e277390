import asyncio
import random

import pytest

from kopf._kits.sandbox.statuses import APIError
from kopf._kits.testing import virtual
from tests._kits.sandbox.conftest import toy
from tests._kits.shadowing.conftest import WINDOW, declare, perform


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
        "tell for toys.sandbox.test default/one)"]),
    'a condition': ({'ready': 'False'}, [
        "different: toys.sandbox.test default/one: status.conditions[Ready].status: \"True\" in "
        "production, \"False\" here (by "
        "tell for toys.sandbox.test default/one)"]),
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
            print(*stage.told, sep='\n')
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
