"""
Random writes in a sandbox and in its upstream, compared with a model of both.

The model says when the sandbox hears of the upstream, and so there is one right outcome.
"""
import asyncio
import dataclasses
import datetime
from typing import Any

import hypothesis
from hypothesis import strategies as st

from kopf._kits.sandbox.overlays import make_entry
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.sandbox.statuses import APIError
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing import apis
from tests._kits.sandbox.conftest import cm

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NAMES = 'xy'
FINALIZER, DELETING = 'finalizer', ('deleting',)


@dataclasses.dataclass
class Thing:
    """An object, by its leaves: data, labels, finalizers, and whether it is being deleted."""
    uid: str
    leaves: dict[tuple[str, ...], Any]

    def finalizers(self):
        return {leaf for leaf in self.leaves if leaf[0] == FINALIZER}


def read(obj):
    meta = obj['metadata']
    return Thing(meta['uid'], {
        **{('data', key): value for key, value in (obj.get('data') or {}).items()},
        **{('label', key): value for key, value in (meta.get('labels') or {}).items()},
        **{(FINALIZER, key): True for key in meta.get('finalizers') or ()},
        **({DELETING: True} if 'deletionTimestamp' in meta else {})})


class Model:
    """What is known of the upstream, what is seen here, and what was deleted here."""

    def __init__(self):
        self.base, self.here, self.deleted = {}, {}, set()

    def hear(self, name, new):
        """The upstream tells of an object, or (None) of its end."""
        old, local = self.base.get(name), self.here.get(name)
        if new is not None and old is not None and old.uid != new.uid:
            self.hear(name, None)
            old, local = None, self.here.get(name)
        self.base[name] = new
        if local is not None and old is not None and local.uid == old.uid:
            self.follow(name, old, local, new)
        elif local is None and new is not None and new.uid not in self.deleted:
            self.here[name] = Thing(new.uid, dict(new.leaves))

    def follow(self, name, old, local, new):
        if new is None:
            own = local.finalizers() - old.finalizers()
            kept = {leaf: value for leaf, value in local.leaves.items()
                    if leaf[0] != FINALIZER or leaf in own}
            local.leaves = {**kept, DELETING: True}
            if not own:
                del self.here[name]
            return
        for leaf in {*old.leaves, *new.leaves, *local.leaves}:
            if local.leaves.get(leaf) == old.leaves.get(leaf):
                local.leaves.pop(leaf, None)
                local.leaves.update({leaf: new.leaves[leaf]} if leaf in new.leaves else {})
        if DELETING in local.leaves and not local.finalizers():
            self.release(name)

    def release(self, name):
        """An object is deleted here: if its name is of another one there, that one is seen."""
        self.deleted.add(self.here.pop(name).uid)
        base = self.base.get(name)
        if base is not None and base.uid not in self.deleted:
            self.here[name] = Thing(base.uid, dict(base.leaves))

    def find_differences(self):
        return {
            name for name in NAMES
            if (base := self.base.get(name)) != (here := self.here.get(name))
            and not (here is None and DELETING in base.leaves and not base.finalizers())}


class SlowUpstream(Upstream):
    """An upstream whose changes arrive when they are asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.coming, self.is_slow = [], False

    def _post(self, take):
        if self.is_slow:
            self.coming.append(take)
        else:
            super()._post(take)


class Both:
    """Both servers, and the model."""

    def __init__(self, there, here):
        self.there, self.here, self.upstream = there, here, here.upstream
        self.model, self.told = Model(), []

    async def write(self, side, name, how):
        """Write, and return the object afterwards, or None; False if it is refused."""
        try:
            match how:
                case 'create', leaf, value:
                    await side.create({**cm(name), leaf: {'a': value}} if leaf == 'data' else cm(
                        name, metadata={'labels': {'a': value}}))
                case 'delete', _, _:
                    await side.delete('cm', name)
                case ('data', leaf, value):
                    await side.patch('cm', name, {'data': {leaf: value}})
                case ('label', leaf, value):
                    await side.patch('cm', name, {'metadata': {'labels': {leaf: value}}})
                case ('finalizer', leaf, value):
                    obj = await side.get('cm', name)
                    rest = set(obj['metadata'].get('finalizers') or ()) - {f'a.b/{leaf}'}
                    await side.patch('cm', name, {'metadata': {
                        'finalizers': sorted(rest | ({f'a.b/{leaf}'} if value else set()))}})
        except APIError:
            return False
        await asyncio.sleep(0)
        return await self.get(side, name)

    async def get(self, side, name):
        found = [obj for obj in await side.list('cm', 'default') if obj['metadata']['name'] == name]
        return read(found[0]) if found else None

    async def write_there(self, name, how):
        before, coming = await self.get(self.there, name), len(self.upstream.coming)
        after = await self.write(self.there, name, how)
        if after is not False and after != before:
            self.told.append((name, after))
            while len(self.upstream.coming) == coming:
                await asyncio.sleep(0)

    async def write_here(self, name, how):
        before = self.model.here.get(name)
        after = await self.write(self.here, name, how)
        if after is False or after == before:
            return
        if before is not None and (after is None or after.uid != before.uid):
            self.model.release(name)
        else:
            self.model.here[name] = after

    def tell(self):
        """Let the sandbox hear of the earliest change."""
        if self.told:
            self.model.hear(*self.told.pop(0))
            take = self.upstream.coming.pop(0)
            take(self.upstream._overlay)

    async def relist(self):
        """Let the sandbox hear of the outcome of all changes, as after an interruption."""
        self.told.clear()
        self.upstream.coming.clear()
        objs = await self.there.list('cm')
        for name in NAMES:
            now = await self.get(self.there, name)
            if now != self.model.base.get(name):
                self.model.hear(name, now)
        kind = self.here._cluster.kind(('', 'configmaps'))
        self.upstream._overlay.replace(kind, '', [make_entry(kind, obj) for obj in objs])

    async def check(self):
        await asyncio.sleep(0)
        for name in NAMES:
            assert await self.get(self.here, name) == self.model.here.get(name)
        changed = {change.key[1] for change in self.upstream.changes()
                   if change.key[0] == 'default' and change.key[1] in NAMES}
        assert changed == self.model.find_differences()


async def play(steps):
    async with Sandbox() as there:
        await there.create(cm('x', data={'a': '0', 'b': '0'}))
        await there.create(cm('y', metadata={'finalizers': ['a.b/a'], 'labels': {'a': '0'}}))
        upstream = SlowUpstream(apis.read_credentials(there.kubeconfig()))
        async with Sandbox(upstream=upstream) as here:
            both = Both(there, here)
            for sandbox in (there, here):  # of deletions on both sides, the times are equal
                sandbox._cluster.clock = lambda: NOW
            for obj in await here.list('cm', 'default'):
                both.model.hear(obj['metadata']['name'], read(obj))
            await here.create(cm('other'))
            await here.delete('cm', 'other')  # from then on, all resources are known
            upstream.is_slow = True
            for who, name, how in steps:
                match who:
                    case 'there':
                        await both.write_there(name, how)
                    case 'here':
                        await both.write_here(name, how)
                    case 'tell':
                        both.tell()
                    case _:
                        await both.relist()
                await both.check()
            while both.told:
                both.tell()
                await both.check()


values = st.sampled_from('0123')
changes = st.one_of(
    st.tuples(st.sampled_from(['data', 'label']), st.sampled_from('ab'), st.none() | values),
    st.tuples(st.just('finalizer'), st.sampled_from('ab'), st.booleans()),
    st.tuples(st.just('create'), st.sampled_from(['data', 'label']), values),
    st.just(('delete', '', '')))
whos = st.sampled_from([*3 * ['here'], *3 * ['there'], *5 * ['tell'], 'relist'])
steps = st.tuples(whos, st.sampled_from(NAMES), changes)


@hypothesis.given(st.lists(steps, min_size=30, max_size=100))
def test_the_sandbox_is_as_the_model_says(story):
    asyncio.run(play(story))
