"""
The metrics of external systems.
"""
import asyncio

import kopf
from kopf import testing
from kopf._kits.observing import inspection, metrics
from kopf.testing import virtual_time
from tests._kits.external.clouds import Cloud, declare
from tests.crds import make_crd


@virtual_time
async def test_drifts_and_outages_are_counted(monkeypatch):
    found, read = [], inspection.Inspector.__init__

    def note(inspector, operator, *args):
        read(inspector, operator, *args)
        found.append(inspector)

    monkeypatch.setattr(inspection.Inspector, '__init__', note)
    cloud, registry = Cloud(), kopf.OperatorRegistry()
    declare(cloud, registry=registry, interval=60)

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.debugging.endpoint = 'http://127.0.0.1:18080/debug'

    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with api.operator(registry=registry):
            await api.client.create('things', 'a', spec={'plan': 'small'})
            await asyncio.sleep(100)
            cloud.edit(cloud.living[0].key, {'plan': 'drifted'})
            await asyncio.sleep(100)
            cloud.is_down = True
            await asyncio.sleep(1000)
            families = {family.name: [(sample.labels, sample.value) for sample in family.samples]
                        for family in metrics._read_externals(found[0])}
    label = {'external': 'account'}
    assert families == {
        'kopf_external_drifts': [(label, 1.0)], 'kopf_external_breaks': [(label, 1.0)],
        'kopf_external_unavailable': [(label, 1.0)], 'kopf_external_waiting': [(label, 1.0)]}
