import asyncio
import pathlib

import pytest

import kopf
from kopf import testing
from kopf._cogs.clients.vaults import Vault
from kopf._core.engines import activities
from kopf._kits import commanding, explaining

CRD = pathlib.Path(__file__).parents[2] / 'examples' / 'crd.yaml'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()
    kopf.on.delete('kopfexamples', registry=registry)(lambda **_: None)
    return registry


async def explain(registry, name='obj', **options):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create({
            'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
            'metadata': {'name': 'obj', 'finalizers': ['example.com/own']}})
        api.sandbox.faults.add(testing.Fault(
            action='refuse', verb='get', resource='kopfexamples', status=403))
        return await explaining.explain(
            kind='kopfexamples', name=name, registry=registry,
            vault=Vault({'test': api.credentials}), **options)


@testing.virtual_time
async def test_it_needs_no_permission_to_get_single_objects(registry):
    found = await explain(registry)
    assert found.name == 'obj'


@testing.virtual_time
async def test_an_absent_object_is_an_error(registry):
    with pytest.raises(commanding.CommandError, match="no KopfExample 'other' in the namespace"):
        await explain(registry, 'other')


@pytest.mark.parametrize('startup, text', [
    (False, "or of this operator, if a startup handler sets settings.persistence.finalizer"),
    (True, "of this operator, needed by: delete "),
])
def test_the_finalizer_can_be_set_by_a_startup_handler(registry, startup, text):
    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.persistence.finalizer = 'example.com/own'

    found = testing.virtual_time(explain)(registry, startup=startup)
    assert text in found.finalizers['example.com/own']


@testing.virtual_time
async def test_the_cleanup_handlers_close_what_the_startup_handlers_have_opened(registry):
    steps = []

    @kopf.on.startup(registry=registry)
    async def open_session(memo, **_):
        memo.session = 'session'

    @kopf.on.cleanup(registry=registry)
    async def close_session(memo, **_):
        steps.append(memo.session)

    await explain(registry)
    assert steps == []
    await explain(registry, startup=True)
    assert steps == ['session']


@testing.virtual_time
async def test_a_startup_that_fails_is_not_repeated(registry):
    @kopf.on.startup(registry=registry)
    async def fail(**_):
        raise Exception("the configuration is broken")

    began = asyncio.get_running_loop().time()
    with pytest.raises(activities.ActivityError, match="fail.*: the configuration is broken"):
        await explain(registry, startup=True)
    assert asyncio.get_running_loop().time() == began


@testing.virtual_time
async def test_a_cleanup_that_never_succeeds_is_given_up(registry, caplog):
    @kopf.on.cleanup(registry=registry)
    async def fail(**_):
        raise Exception("the session cannot be closed")

    assert await explain(registry, startup=True)
    assert "The cleanup has not succeeded in 10 seconds, and is given up." in caplog.messages
