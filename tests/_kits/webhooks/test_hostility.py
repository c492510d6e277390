"""
Whoever sends whatever, the others are served meanwhile.
"""
import asyncio
import contextlib
import logging

import pytest

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Context
from kopf._core.engines.admission import reviewing, webhooks
from kopf.testing import virtual_time
from tests._kits.webhooks import hostility
from tests._kits.webhooks.conftest import get_port

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)


@contextlib.asynccontextmanager
async def serve():
    """A server of real reviews."""
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()

    @kopf.on.mutate('any', id='fn', registry=registry)
    async def fn(patch, spec, diff, **_):
        patch.spec['changed'] = len(diff)

    handlers = list(registry._webhooks)
    reviewer = reviewing.Reviewer(
        directory=webhooks.Directory(handlers),
        context=Context(settings=settings, clock=Clock(), indices={}), get_memo=lambda *_: None,
        find=lambda resource: (RESOURCE, handlers) if resource == RESOURCE else None)
    async with kopf.WebhookServer(addr='127.0.0.1', port=0, insecure=True) as server:
        yield get_port(await anext(server(reviewer)))
    settings.execution.executor.shutdown()


@pytest.mark.parametrize('seed', range(3))
@virtual_time
async def test_random_hostility_makes_no_errors_but_theirs(seed, caplog):
    async with serve() as port:
        attacking = asyncio.create_task(hostility.attack_on(port, None, count=100, seed=seed))
        latencies = await hostility.live(port, None, attacking)
        outcomes = await attacking
    assert sum(outcomes.values()) == 100
    assert outcomes[200] and outcomes[400]
    assert 500 not in outcomes
    assert not [record for record in caplog.records
                if record.levelno > logging.WARNING and record.name.startswith('kopf._kits')]
    assert latencies and max(latencies) < 0.1
