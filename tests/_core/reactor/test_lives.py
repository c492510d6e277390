"""
Random lives of objects that have handlers of all kinds at once, with a watch that lags and breaks.
"""
import asyncio
import collections

import hypothesis.strategies as st
from hypothesis import example, given, settings

import kopf
from tests._core.reactor.worlds import Api, Operator, accompany, run_virtually

NAMES = ['a', 'b']
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'

ACTIONS = st.one_of(
    st.tuples(st.just('create'), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just('edit'), st.sampled_from(NAMES), st.sampled_from([None, 'yes', 'no'])),
    st.tuples(st.just('touch'), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just('delete'), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just('wait'), st.none(), st.sampled_from([0.001, 0.015, 0.05, 0.3, 1.5])),
    st.tuples(st.just('gap'), st.none(), st.none()),
    st.tuples(st.just('look'), st.none(), st.none()),
)


class Life:
    """Two objects, an operator, and what the handlers have seen."""

    def __init__(self, *, slow, companions, has_deletion, patched_by_events, **options):
        self.api = Api()
        self.calls = collections.Counter()
        self.newest = {}
        self.shown = {}
        self.running = collections.Counter()
        self.companions = companions
        self.n = 0
        self.registry = kopf.OperatorRegistry()
        self.is_looking = True
        on = {'labels': {'on': 'yes'}, 'registry': self.registry}
        all = {'registry': self.registry}

        def note(id, uid, old, new):
            before, after = (
                None if essence is None else (essence['spec']['n'], essence['spec'].get('own'))
                for essence in (old, new))
            self.calls[id, uid, before, after] += 1
            self.newest[id, uid] = new['spec']['n']

        @kopf.on.event('kopfexamples', **all)
        async def show(event, uid, name, spec, patch, **_):
            self.shown[uid] = event['type'], event['object']['metadata']['resourceVersion']
            if patched_by_events:
                patch.status['shown'] = spec['n']

        @kopf.on.create('kopfexamples', id='patching', **all)
        @kopf.on.update('kopfexamples', id='patching', **all)
        async def patching(uid, old, new, spec, patch, **_):
            note('patching', uid, old, new)
            patch.spec['own'] = spec['n']

        @kopf.on.create('kopfexamples', id='looking', **all)
        @kopf.on.update('kopfexamples', id='looking', **all)
        async def looking(uid, old, new, **_):
            await asyncio.sleep(slow)
            note('looking', uid, old, new)

        if 'timer' in companions:
            @kopf.timer('kopfexamples', interval=1, **on)
            async def tick(spec, patch, **_):
                patch.status['ticked'] = spec['n']

        if 'daemon' in companions:
            @kopf.daemon('kopfexamples', **on)
            async def accompany(uid, stopped, **_):
                self.running[uid] += 1
                await stopped.wait()
                self.running[uid] -= 1

        if has_deletion:
            @kopf.on.delete('kopfexamples', **on)
            async def deleted(uid, **_):
                self.calls['deleted', uid] += 1

        self.operator = Operator(self.api, self.registry, **options)
        self.operator.start()

    async def begin(self):
        await self.act('create', 'a', True)
        await self.act('create', 'b', False)
        await asyncio.sleep(2)

    async def act(self, action, name, value):
        match action:
            case 'create' if name not in self.api.objects:
                labels = {'labels': {'on': 'yes'}} if value else {}
                self.n += 1
                self.api.create(name, metadata=labels, spec={'n': self.n})
            case 'edit':
                self.n += 1
                meta = {} if value is None else {'labels': {'on': value}}
                self.api.edit({'metadata': meta, 'spec': {'n': self.n}}, name)
            case 'touch':
                self.n += 1
                self.api.edit({'status': {'touched': self.n}}, name)
            case 'delete':
                self.api.delete(name)
            case 'wait':
                await asyncio.sleep(value)
            case 'gap' if self.is_looking:
                await self.operator.lose_sight()
                self.is_looking = False
            case 'look' if not self.is_looking:
                self.operator.start()
                self.is_looking = True

    async def rest(self):
        if not self.is_looking:
            self.operator.start()
        self.api.faults = []
        for _ in range(2):
            await asyncio.sleep(10)  # also for the timers, which tick and back off by themselves
            await self.operator.rest(limit=100)


@given(
    actions=st.lists(ACTIONS, max_size=20),
    slow=st.sampled_from([0, 0.03, 0.7]),
    companions=st.sampled_from([['timer'], ['daemon'], ['timer', 'daemon']]),
    has_deletion=st.booleans(),
    patched_by_events=st.booleans(),
    watch_delay=st.sampled_from([0.004, 0.012, 0.03, 0.1, 0.5]),
    watch_step=st.sampled_from([None, 1]),
    flush_delay=st.sampled_from([0, 1.0]),
    subresource=st.booleans(),
    faults=st.lists(st.sampled_from([None, None, None, 'late', 'absent']), max_size=6),
)
@settings(max_examples=150, deadline=None)
@example(  # a companion ends while the watch is still to show what the handlers have written
    actions=[('edit', 'a', 'no')],
    slow=0, companions=['timer'], has_deletion=False, patched_by_events=False, watch_delay=0.012,
    watch_step=1, flush_delay=1.0, subresource=False, faults=[])
@example(  # an edit is known by the response to an own patch only
    actions=[('edit', 'b', None), ('wait', None, 0.05), ('gap', None, None),
             ('edit', 'b', None), ('wait', None, 1.5)],
    slow=0.7, companions=['timer'], has_deletion=False, patched_by_events=False,
    watch_delay=0.004, watch_step=None, flush_delay=1.0, subresource=False, faults=[])
def test_each_change_is_handled_once_by_each_and_event_handlers_see_the_last_state(
        actions, faults, **options):

    async def live():
        life = Life(**options)
        await life.begin()
        life.api.faults = faults
        for action in actions:
            await life.act(*action)
        await life.rest()

        assert set(life.calls.values()) <= {1}
        existing = {raw['metadata']['uid']: raw for raw in life.api.objects.values()}
        for uid, raw in existing.items():
            assert life.newest['patching', uid] == life.newest['looking', uid] == raw['spec']['n']
            assert raw['spec']['own'] == raw['spec']['n']
            assert life.shown[uid][1] == raw['metadata']['resourceVersion']
        assert {uid for uid, (type, _) in life.shown.items() if type != 'DELETED'} == set(existing)
        matching = {uid for uid, raw in existing.items()
                    if raw['metadata'].get('labels', {}).get('on') == 'yes'}
        if 'daemon' in life.companions:
            assert +life.running == collections.Counter(matching)
        assert matching == {
            uid for uid, raw in existing.items()
            if FINALIZER in raw['metadata'].get('finalizers', [])}
        await life.operator.stop()

    run_virtually(live())


def test_an_edit_that_is_known_from_the_response_to_a_patch_is_shown_to_event_handlers():
    seen = []

    def declare(registry):
        @kopf.on.event('kopfexamples', registry=registry)
        async def show(spec, **_):
            seen.append(spec.get('field'))

        @kopf.on.update('kopfexamples', registry=registry)
        async def handle(**_):
            await asyncio.sleep(1)

    async def live():
        api, operator = await accompany(declare, spec={'field': 0})
        await operator.rest()
        api.edit({'spec': {'field': 1}})
        await asyncio.sleep(0.5)
        await operator.lose_sight()
        api.edit({'spec': {'field': 2}})
        await asyncio.sleep(5)
        assert seen[-1] == 1
        operator.start()
        await operator.rest()
        await operator.stop()

    run_virtually(live())
    assert seen[-1] == 2


def test_states_that_event_handlers_have_seen_are_not_shown_again_after_a_gap():
    seen = []

    def declare(registry):
        @kopf.on.event('kopfexamples', registry=registry)
        async def show(type, body, **_):
            seen.append((type, body.metadata['resourceVersion']))

        @kopf.on.create('kopfexamples', registry=registry)
        async def handle(**_):
            pass

    async def live():
        _, operator = await accompany(declare)
        await asyncio.sleep(1)
        await operator.lose_sight()
        operator.start()
        await operator.rest()
        await operator.stop()

    run_virtually(live())
    assert seen == [(None, '1'), ('MODIFIED', '2')]


def test_a_retried_handler_sees_the_newest_state_also_while_event_handlers_see_older_ones():
    seen = []

    def declare(registry):
        @kopf.on.event('kopfexamples', registry=registry)
        async def show(**_):
            pass

        @kopf.on.update('kopfexamples', registry=registry)
        async def patching(patch, **_):
            patch.spec['own'] = True

        @kopf.on.update('kopfexamples', registry=registry)
        async def retried(spec, retry, **_):
            seen.append(dict(spec))
            if not retry:
                raise kopf.TemporaryError("not yet", delay=0.3)

    async def live():
        api, operator = await accompany(declare, spec={'field': 0})
        await operator.rest()
        operator.watch_delay, operator.watch_step = 0.25, 1
        api.edit({'spec': {'field': 1}})
        api.edit({'status': {'touched': True}})
        await asyncio.sleep(10)
        await operator.stop()

    run_virtually(live())
    assert seen == [{'field': 1, 'own': True}] * 2


def test_a_state_is_not_handled_again_when_a_response_with_it_comes_late():
    seen = []

    def declare(registry):
        @kopf.on.update('kopfexamples', registry=registry)
        async def handle(spec, **_):
            seen.append(spec['field'])

        @kopf.timer('kopfexamples', interval=10, initial_delay=5, registry=registry)
        async def tick(patch, **_):
            patch.status['ticked'] = True

    async def live():
        api, operator = await accompany(declare, spec={'field': 0})
        await asyncio.sleep(4)
        operator.watch_delay = 0.3  # so that the edit is seen after the write of the timer
        await asyncio.sleep(0.95)
        api.edit({'spec': {'field': 1}})
        api.faults = ['late']
        await asyncio.sleep(5)
        await operator.stop()

    run_virtually(live())
    assert seen == [1]


def test_a_namesake_in_a_new_list_waits_also_when_it_is_indexed_before_the_end_of_the_list():
    seen = []

    def declare(registry):
        @kopf.index('kopfexamples', registry=registry)
        async def known(uid, **_):
            return {uid: None}

        @kopf.on.event('kopfexamples', registry=registry)
        async def show(type, uid, **_):
            seen.append((type, uid))

        @kopf.on.create('kopfexamples', registry=registry)
        async def handle(**_):
            await asyncio.sleep(1)

    async def live():
        api, operator = await accompany(declare)
        await operator.rest()
        await operator.lose_sight()
        api.delete()
        api.create(spec={})
        operator.informer.list_started(restored=False)
        operator.informer.listed(api.objects['obj'])
        await asyncio.sleep(0.5)
        assert (None, 'uid1') in seen
        assert 'uid2' not in dict(seen).values()
        operator.informer.list_ended()
        await asyncio.sleep(3)
        await operator.stop()

    run_virtually(live())
    assert seen.index(('DELETED', 'uid1')) < seen.index(('ADDED', 'uid2'))
