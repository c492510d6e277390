"""
What operators do about peering when nothing is said about it.
"""

import uuid

import pytest

from tests.e2e.kubes import NAMESPACES
from tests.e2e.test_peering import ACTIVE, NARROW, TEXT, YIELDING, install


@pytest.fixture()
async def namespace(kube):
    """A namespace of the test's own; everything in it is gone after the test."""
    name = f'ns-{uuid.uuid4().hex[:8]}'
    await kube.create(NAMESPACES, name)
    await install(kube, NARROW.group)
    yield name
    await kube.delete(NAMESPACES, name)


@pytest.fixture()
def start(operator, kind, namespace):
    """Start an operator in the namespace, with nothing said about peering but its priority."""
    def start(who, priority):
        return operator(
            TEXT, '--priority', str(priority), kind=kind, env={'WHO': who, 'POD_ID': who},
            scope=('--namespace', namespace, '--verbose'))
    return start


async def test_the_default_object_is_joined_if_it_is_there(kube, namespace, start):
    await kube.create(NARROW, 'default', namespace=namespace)
    high = start('high', 2)
    await high.wait_for(ACTIVE)
    low = start('low', 1)
    await low.wait_for(YIELDING)
    obj = await kube.get(NARROW, 'default', namespace=namespace)
    assert obj['status'].keys() == {'high', 'low'}
    assert high.stop() == 0
    await low.wait_for(ACTIVE)


async def test_without_the_default_object_the_operator_is_alone(kube, kind, namespace, start):
    operators = [start('one', 0), start('two', 0)]
    for operator in operators:
        await operator.wait_for('falling back to the standalone mode')
        await operator.wait_for(ACTIVE)
    await kube.create(kind, 'obj', namespace=namespace, spec={})
    for operator in operators:
        assert await operator.wait_for('CREATE obj BY')
