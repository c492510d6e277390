"""
Operators in a small world, with their metrics read as Prometheus would read them.
"""
import types

from prometheus_client import exposition

import kopf
from kopf._cogs.aiokits import clocks, pulses
from kopf._core.actions import brakes, inflight
from kopf._core.reactor.roles import coordination
from kopf._core.reactor.watches import watchsets
from kopf._kits.observing import inspection, metrics
from tests._core.reactor.worlds import Api, Operator
from tests.expressions import parse_text


class Role(coordination.Coordination):
    """The role of an operator that handles everything, and describes itself so."""

    def __init__(self, *works, described):
        super().__init__(*works)
        self.described = described

    def describe(self):
        return {} if self.described is None else {'leadership': self.described}


class Releasing(Role):
    """The role of an operator that releases all that it has handled."""

    @property
    def works(self):
        return ()

    @property
    def ending(self):
        return self._works


class Measured:
    """An operator that is measured, and whatever has happened to it."""

    def __init__(self, declare, *, role=None):
        registry = kopf.OperatorRegistry()
        declare(registry)
        self.api = Api()
        settings = kopf.OperatorSettings()
        settings.leadership.name = None if role is None else 'my-lease'
        self.underway = inflight.Calls()
        inflight.calls_var.set(self.underway)
        self.inspected = types.SimpleNamespace(
            hub=None,
            settings=settings, clock=clocks.Clock(), underway=self.underway,
            brakes=brakes.Brakes(settings.brakes),
            watches=types.SimpleNamespace(
                list_states=lambda: [watchsets.WatchState(
                    self.operator.informer.resource, None, self.pulse, True)],
                count_restarts=lambda: {self.operator.informer.resource: self.pulse.restarts}))
        self.inspector = inspection.Inspector(self.inspected)
        self.measures = metrics.Measures(self.inspector)
        self.operator = Operator(self.api, registry, observer=self.measures.meter)
        self.operator.settings.queueing.error_delays = [30]
        self.inspected.role = Role(self.operator, described=role)
        self.inspected.switch = self.operator.switch
        self.inspected.indices = self.operator.indexers
        self.pulse = pulses.Pulse()

    async def __aenter__(self):
        self.operator.start()
        return self

    async def __aexit__(self, *_):
        await self.operator.stop()

    async def get_text(self, accept=''):
        await self.measures._read()
        encode, _ = exposition.choose_encoder(accept)
        return encode(self.measures).decode()

    async def scrape(self):
        return Scrape(await self.get_text())


class Scrape:
    """The series at one moment."""

    def __init__(self, text):
        self.series = parse_text(text)

    def __len__(self):
        return sum(map(len, self.series.values()))

    def get(self, metric, /, **labels):
        """Get the value of the only series with these labels."""
        value, = [value for found, value in self.series[metric] if labels.items() <= found.items()]
        return value

    def get_all(self, metric, label, /, **labels):
        """Get the values by this label, without zeros."""
        return {found[label]: value for found, value in self.series.get(metric, ())
                if labels.items() <= found.items() and value}
