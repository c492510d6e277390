"""
The examples survive all faults, except for those whose text says why not.

By default, each example meets a third of the kinds of faults, and all of them meet all kinds. With
``$KOPF_ALL_STRIKES``, each of them meets all.

An object is created, changed, and deleted if there are handlers for that. In between, the operator
has more time than it needs to recover from any fault.
"""
import ast
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

SOURCES = {name: (EXAMPLES / name / 'example.py').read_text() for name in NAMES}
TEXTS = {
    name: ' '.join((ast.get_docstring(ast.parse(source)) or '').split())
    for name, source in SOURCES.items()}
UNFIT = {name for name, text in TEXTS.items()
         if '``kopf.testing.explore`` does not try its faults, as ' in text}
"""The examples that cannot be explored here; their text says why."""

ALONE = {
    '18-walkthrough', '22-exploring', '25-external', '26-database', '27-tenant', '28-dns'}
"""The examples that are explored by tests of their own, with the systems that they need."""

NOT_SURVIVED = {
    name: set(re.findall(r'``([a-z]+(?:-\d+)?)``', text)) & STRIKES.keys()
    for name, text in TEXTS.items()}
"""The faults that examples do not survive; their text says which, and why."""

OBJECTS = {
    '07-filters': 'objs.yaml', '10-indices': 'objs.yaml', '20-reconcile': 'obj.yaml',
    '23-typed-kinds': 'obj.yaml', '24-versions': 'obj.yaml'}
CHANGES = {
    '10-indices': {'data': {'background': 'black'}},
    '20-reconcile': {'spec': {'public': False, 'text': 'Bye.'}},
    '23-typed-kinds': {'spec': {'replicas': 3}},
    '24-versions': {'spec': {'sizeGb': 9}}}
CHANGE = {'spec': {'field': 'other', 'items': ['item1', 'heavy'], 'duration': '5m'}}

RECOVERY = 600
"""How long (virtual seconds) each step can take, with the longest recovery."""


def choose_strikes(name):
    if 'KOPF_ALL_STRIKES' in os.environ:
        return tuple(STRIKES)
    return tuple(strike for number, strike in enumerate(STRIKES)
                 if (number + NAMES.index(name)) % 3 == 0 or strike in NOT_SURVIVED[name])


def make_scenario(name):
    path = EXAMPLES / name / OBJECTS[name] if name in OBJECTS else EXAMPLES / 'obj.yaml'
    objs = list(yaml.safe_load_all(path.read_text()))
    is_deleting, has_webhooks = (text in SOURCES[name] for text in ('on.delete', '.managed = '))

    async def scenario(client):
        if has_webhooks:
            await asyncio.sleep(RECOVERY)  # before that, objects are neither checked nor converted
        for obj in objs:
            await client.create(obj)
        await asyncio.sleep(RECOVERY)
        await client.patch(objs[0], CHANGES.get(name, CHANGE))
        await asyncio.sleep(RECOVERY)
        if is_deleting:
            await client.delete(objs[0])
            await client.wait_gone(objs[0], timeout=RECOVERY)

    return scenario


@pytest.mark.parametrize('name', [name for name in NAMES if name not in UNFIT | ALONE])
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
    assert failed == NOT_SURVIVED[name], text


def test_an_example_handles_all_specs_that_its_schema_allows(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), 'handlers', [])
    folder = EXAMPLES / '20-reconcile'
    assert testing.walk(
        'homepages', folder / 'example.py', load=[folder / 'crd.yaml'], walks=20) == 20
