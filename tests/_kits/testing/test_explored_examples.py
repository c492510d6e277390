"""
The examples survive all faults, except for those whose text says why not.

By default, each example meets a third of the kinds of faults, and all of them meet all kinds. With
``$KOPF_ALL_STRIKES``, each of them meets all.

An object is created, changed, and deleted if there are handlers for that. In between, the operator
has more time than it needs to recover from any fault.
"""
import asyncio
import logging
import os
import pathlib
import re

import pytest
import yaml

from kopf import testing
from kopf._kits.testing.exploring import STRIKES

EXAMPLES = pathlib.Path(__file__).parents[3] / 'examples'
NAMES = sorted(path.parent.name for path in EXAMPLES.glob('*/example.py'))

UNFIT = {
    '04-owned-resources': "a sync client with a login of its own",
    '08-daemons': "real connections, and no writes",
    '11-memos': "an external service",
    '12-events': "no writes",
    '13-admission': "a webhook server, and tests of its own",
    '15-embedding': "a program of its own",
    '16-several-operators': "a program of its own",
    '17-testing': "hours of timers, and tests of its own",
    '18-walkthrough': "a sync client with a login of its own",
    '21-observability': "metrics, which exist once in a process",
    '22-exploring': "explorations in tests of its own",
}
"""The examples that cannot or need not be explored here, and what they have."""

NOT_SURVIVED = {'09-timers': {'refuse-422'}}
"""The faults that examples do not survive; their text says why."""

OBJECTS = {'07-filters': 'objs.yaml', '10-indices': 'objs.yaml', '20-reconcile': 'obj.yaml'}
CHANGES = {'10-indices': {'data': {'background': 'black'}}, '20-reconcile': {
    'spec': {'public': False, 'text': 'Bye.'}}}
CHANGE = {'spec': {'field': 'other', 'items': ['item1', 'heavy'], 'duration': '5m'}}

RECOVERY = 600
"""How long (virtual seconds) each step can take, with the longest recovery."""


def choose_strikes(name):
    if 'KOPF_ALL_STRIKES' in os.environ:
        return tuple(STRIKES)
    kept = NOT_SURVIVED.get(name, set())
    return tuple(strike for number, strike in enumerate(STRIKES)
                 if number % 3 == NAMES.index(name) % 3 or strike in kept)


def make_scenario(name):
    path = EXAMPLES / name / OBJECTS[name] if name in OBJECTS else EXAMPLES / 'obj.yaml'
    objs = list(yaml.safe_load_all(path.read_text()))
    is_deleting = 'on.delete' in (EXAMPLES / name / 'example.py').read_text()

    async def scenario(client):
        for obj in objs:
            await client.create(obj)
        await asyncio.sleep(RECOVERY)
        await client.patch(objs[0], CHANGES.get(name, CHANGE))
        await asyncio.sleep(RECOVERY)
        if is_deleting:
            await client.delete(objs[0])
            await client.wait_gone(objs[0], timeout=RECOVERY)

    return scenario


@pytest.mark.parametrize('name', [name for name in NAMES if name not in UNFIT])
def test_examples_survive_all_faults_but_those_in_their_text(name, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), 'handlers', [])  # pytest would format all messages
    example = EXAMPLES / name / 'example.py'
    definition = EXAMPLES / name / 'crd.yaml'
    failed, text = set(), ''
    try:
        explored = testing.explore(
            make_scenario(name), example, strikes=choose_strikes(name),
            load=[definition if definition.exists() else EXAMPLES / 'crd.yaml'])
    except testing.ExplorationError as e:
        failed, text = {finding.strike.kind for finding in e.findings}, str(e)
    else:
        assert explored.runs
    assert failed == NOT_SURVIVED.get(name, set()), text
    told = {f'refuse-{status}' for status in re.findall(r'HTTP (\d+)', example.read_text())}
    assert failed == told


def test_an_example_handles_all_specs_that_its_schema_allows(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), 'handlers', [])
    folder = EXAMPLES / '20-reconcile'
    assert testing.walk(
        'homepages', folder / 'example.py', load=[folder / 'crd.yaml'], walks=20) == 20
