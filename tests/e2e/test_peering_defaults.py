"""
What operators do about peering when nothing is said about it in their options.
"""

import uuid

import pytest

from tests.e2e import test_peering
from tests.e2e.kubes import NAMESPACES
from tests.e2e.test_peering import ACTIVE, NARROW, YIELDING, install

TEXT = f'''{test_peering.TEXT}
@kopf.on.event(*KIND)
def event(name, **_):
    print(f'EVENT {{name}} BY {{WHO}}')

@kopf.on.startup()
def choose(settings, **_):
    pass
'''


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
    """
    Start an operator in the namespace, with nothing said about peering in its options but the
    priority; the other settings are for its startup handler.
    """
    def start(who, priority, **changes):
        text = TEXT + ''.join(
            f'    settings.peering.{key} = {value!r}\n' for key, value in changes.items())
        return operator(
            text, '--priority', str(priority), kind=kind, env={'WHO': who, 'POD_ID': who},
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
    for operator in operators:  # only one of them has to handle it, if that one is much quicker
        assert await operator.wait_for('EVENT obj BY')


async def test_the_object_is_waited_for_if_it_is_mandatory_by_the_settings(kube, namespace, start):
    op = start('me', 0, name='own', mandatory=True)
    await op.wait_for("There is no KopfPeering 'own' in .+, but it is mandatory")
    assert not op.find(ACTIVE)
    await kube.create(NARROW, 'own', namespace=namespace)
    await op.wait_for(ACTIVE)


async def test_operators_are_alone_if_so_set_in_the_settings(kube, namespace, start):
    await kube.create(NARROW, 'default', namespace=namespace)
    high = start('high', 2)
    await high.wait_for(ACTIVE)
    alone = start('alone', 1, standalone=True)
    await alone.wait_for(ACTIVE)
    obj = await kube.get(NARROW, 'default', namespace=namespace)
    assert obj['status'].keys() == {'high'}
