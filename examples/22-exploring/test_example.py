import pathlib

import pytest
from kopf import testing

HERE = pathlib.Path(__file__).parent
CRD = HERE.parent / 'crd.yaml'


async def scenario(client):
    await client.create('kopfexamples', 'example', spec={'field': 'red'})
    await wait_for_backups(client, {'red'})
    await client.patch('kopfexamples', 'example', {'spec': {'field': 'blue'}})
    await wait_for_backups(client, {'red', 'blue'})


async def wait_for_backups(client, expected):
    async def check():
        backups = await client.list('configmaps')
        assert {backup['data']['field'] for backup in backups} == expected

    await testing.wait_for(check, timeout=300)


def test_it_survives_everything():
    explored = testing.explore(scenario, HERE / 'example.py', load=[CRD])
    assert explored.runs > 20


def test_a_mistake_is_found():
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(scenario, HERE / 'mistake.py', load=[CRD])
    assert "If the operator is killed between write 3 and write 4" in str(found.value)
    assert "configmaps default/example-2 is there, but should not be" in str(found.value)
    assert "make their names from the handled object" in str(found.value)
