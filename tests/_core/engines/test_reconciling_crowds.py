"""
Lives of two objects with owned resources of two kinds, of two handlers, some of which come and go.

Each life has two operators that know nothing of each other. A seed decides what happens. With
``KOPF_LIVES=1000``, there are so many lives; with ``KOPF_LIVES=1000:2000``, other ones.

In the end, there is what the last spec wants, and nothing else.
"""
import pytest

import kopf
from kopf import testing
from kopf._core.engines.reconciling import children, planning
from tests._core.engines import test_reconciling_lives as lives

PARENTS = ('one', 'two')
PAUSED = 'kopf.dev/paused'
VALUES = range(3)


def declare():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings, **_):
        settings.posting.enabled = False
        settings.networking.error_backoffs = [1, 2]

    @kopf.reconcile('kopfexamples', owns=['configmaps', 'secrets'], id='many', registry=registry)
    async def many(name, spec, **_):
        for kind, number in spec['many']:
            yield make(kind, f'{name}-{number}', spec['n'])

    @kopf.reconcile('kopfexamples', owns=['configmaps'], id='few', registry=registry)
    async def few(spec, **_):
        return [make('ConfigMap', name, spec['n']) for name in spec['few']]

    return registry


def make(kind, name, n):
    return {'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': name},
            'data': {'n': lives.encode(str(n))}}


class Life(lives.Life):
    """A life of two objects and of what they own, until all is at rest."""

    def make_registry(self):
        return declare()

    async def live(self, client):
        for name in PARENTS:
            await self.recreate(client, name)
        for number in range(self.STEPS):
            await self.sleep()
            act = self.random.choice(self.ACTIONS)
            self.note(act.__name__)
            try:
                await act(self, client, number)
            except testing.APIError as e:
                assert e.status in (404, 409)
        self.is_quiet = True
        if self._lag is not None:
            self._lag.end()
        for name in PARENTS:
            await client.patch('kopfexamples', name, {'metadata': {'annotations': {PAUSED: None}}})
        await self.settle(client)

    STEPS = 14

    async def settle(self, client):
        """What was decided by older lists, or after too many errors, stays until a change."""
        for name in PARENTS:
            await client.patch('kopfexamples', name, {'spec': self.draw(name)})

    def draw(self, name):
        many = sorted({(self.random.choice(['ConfigMap', 'Secret']), self.random.randrange(2))
                       for _ in range(self.random.randrange(4))})
        few = self.random.choice([[], [f'{name}-few'], [f'{name}-few', f'{name}-more']])
        return {'n': self.random.choice(VALUES), 'many': many, 'few': few}

    async def recreate(self, client, name):
        await client.create('kopfexamples', name, spec=self.draw(name))

    async def respecify(self, client, _):
        name = self.random.choice(PARENTS)
        spec = self.draw(name)
        key = self.random.choice(list(spec))
        await client.patch('kopfexamples', name, {'spec': {key: spec[key]}})

    async def flip(self, client, _):
        """Nothing is wanted for a moment, or another value is."""
        name = self.random.choice(PARENTS)
        old = await client.get('kopfexamples', name)
        await client.patch('kopfexamples', name, {
            'spec': {'many': [], 'few': []} if self.random.random() < 0.5 else {'n': 9}})
        await self.sleep()
        await client.patch('kopfexamples', name, {'spec': dict(old['spec'])})

    async def pause(self, client, _):
        name = self.random.choice(PARENTS)
        text = self.random.choice([None, ''])
        await client.patch('kopfexamples', name, {'metadata': {'annotations': {PAUSED: text}}})

    async def replace(self, client, _):
        name = self.random.choice(PARENTS)
        await client.delete('kopfexamples', name)
        await self.sleep()
        await self.recreate(client, name)

    async def pick(self):
        found = [(plural, obj['metadata']['name']) for plural, obj in self.sandbox.dump()
                 if plural in ('configmaps', 'secrets')]
        return self.random.choice(found or [('secrets', 'none')])

    async def edit(self, client, number):
        plural, name = await self.pick()
        field, key, value = self.random.choice([
            ('labels', 'kopf.dev/owner', None), ('labels', 'kopf.dev/owner', 'edited'),
            ('labels', 'kopf.dev/reconciler', None), ('labels', 'kopf.dev/reconciler', 'edited'),
            ('annotations', 'kopf.dev/applied', None), ('annotations', 'kopf.dev/applied', 'x')])
        self.note(f"{plural}/{name} {key}: {value}")
        await client.patch(plural, name, {'metadata': {field: {key: value}}})

    async def drift(self, client, number):
        plural, name = await self.pick()
        value = self.random.choice([None, lives.encode(f'drift-{number}')])
        await client.patch(plural, name, {'data': {'n': value}})

    async def delete(self, client, _):
        await client.delete(*await self.pick())

    ACTIONS = [
        respecify, respecify, respecify, flip, flip, pause, replace, edit, edit, drift, drift,
        delete, delete, lives.Life.stop_one, lives.Life.kill_one, lives.Life.break_watches,
        lives.Life.lag_behind]

    def hear(self, change):
        super(lives.Life, self).hear(change)

    def conclude(self):
        super(lives.Life, self).conclude()
        wanted, parents = {}, {}
        for plural, obj in self.sandbox.dump():
            if plural == 'kopfexamples':
                name, spec = obj['metadata']['name'], obj['spec']
                parents[obj['metadata']['uid']] = name
                for kind, number in spec['many']:
                    wanted[f'{kind.lower()}s', f'{name}-{number}'] = spec['n'], name
                for few in spec['few']:
                    wanted['configmaps', few] = spec['n'], name
        found = {}
        for plural, obj in self.sandbox.dump():
            if plural in ('configmaps', 'secrets'):
                meta = obj['metadata']
                owner = parents.get((meta.get('labels') or {}).get('kopf.dev/owner'))
                value = (obj.get('data') or {}).get('n')
                found[plural, meta['name']] = value, owner
        wanted = {key: (lives.encode(str(n)), name) for key, (n, name) in wanted.items()}
        hidden = {(plural, obj['metadata']['name']) for plural, obj in self.sandbox.dump()
                  if (obj['metadata'].get('labels') or {}).get('kopf.dev/reconciler') in (
                      None, 'edited')}  # they are not watched, and found only if they are wanted
        found = {key: value for key, value in found.items() if key in wanted or key not in hidden}
        if found != wanted:
            left = {key: value for key, value in found.items() if wanted.get(key) != value}
            lacking = {key: value for key, value in wanted.items() if found.get(key) != value}
            self.problems.append(f"There are {left} instead of {lacking}.")


@lives.each_chunk
def test_there_is_what_is_wanted_and_nothing_else(seeds):
    lives.verify(seeds, Life)


# Planted faults.

def prune_nothing(monkeypatch):
    plan = planning.plan
    monkeypatch.setattr(planning, 'plan', lambda wanted, known, prune: plan(
        wanted, known, prune=False))


def restore_nothing(monkeypatch):
    monkeypatch.setattr(children.Child, 'is_as', lambda child, wanted: (
        child._digest == hash(wanted.digest)))


@pytest.mark.parametrize('plant', [prune_nothing, restore_nothing])
def test_a_planted_fault_is_found(monkeypatch, plant):
    plant(monkeypatch)
    assert any(lives.live(seed, Life).problems for seed in range(lives.MAX_LIVES))
