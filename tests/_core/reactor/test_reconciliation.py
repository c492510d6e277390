"""
What handlers see of an object that others edit between them. The time is virtual.
"""
import asyncio
import json
import logging

import pytest

import kopf
from kopf._cogs.clients import errors
from kopf._core.intents.registries import OperatorRegistry
from tests._core.reactor.worlds import Api, Operator, accompany, run_virtually, succeed

HANDLED = 'kopf.zalando.org/last-handled-configuration'
CYCLE = 'kopf.zalando.org/handling-cycle'
LARGE = 'x' * 100_000


class Story:
    """Handlers one & two of updates; two, at least, is to be retried once in each cycle."""

    def __init__(self, *, failing=('two',), api=None, **fields):
        self.registry = OperatorRegistry()
        self.done = []
        """Who has finished, and for what: (handler, old, new)."""
        self.api = api or Api()
        self.api.create(spec={'f': 0, **fields})
        self.fields = fields
        for id in ['one', 'two']:
            self.declare(id, fails=1 if id in failing else 0)

    def declare(self, id, *, fails):
        @kopf.on.update('kopfexamples', id=id, field='spec.f', registry=self.registry)
        async def fn(retry, old, new, **_):
            if retry < fails:
                raise kopf.TemporaryError("not yet", delay=10)
            self.done.append((id, old, new))

    def edit(self, value):
        self.api.edit({'spec': {'f': value}})

    @property
    def handled(self):
        """The last-handled states one after another."""
        found = []
        for _, raw in self.api.history:
            encoded = raw['metadata'].get('annotations', {}).get(HANDLED)
            value = encoded and json.loads(encoded)['spec']['f']
            if encoded and found[-1:] != [value]:
                found.append(value)
        return found

    def go(self, *moves):
        """Each move is (time, value) of an edit, or (time, "restart")."""
        async def live():
            operator = Operator(self.api, self.registry)
            operator.start()
            for when, move in moves:
                await asyncio.sleep(when - asyncio.get_running_loop().time())
                if move == 'restart':
                    await operator.stop()
                    operator = Operator(self.api, self.registry)
                    operator.start()
                else:
                    self.edit(move)
            await operator.rest()
            await operator.stop()

        run_virtually(live())
        meta = self.api.objects['obj']['metadata']
        assert set(meta['annotations']) == {HANDLED}, "something is left on the object"


# The worked table of the handling cycle.


@pytest.mark.parametrize('restart', [[], [(6, 'restart')]], ids=['', 'restart'])
def test_an_edit_between_two_handlers_is_a_change_for_all_in_the_next_cycle(restart):
    story = Story()
    story.go((1, 1), (5, 2), *restart)
    assert story.done == [('one', 0, 1), ('two', 0, 2), ('one', 1, 2), ('two', 1, 2)]
    assert story.handled == [0, 1, 2]


class RevertingApi(Api):
    """Others revert an edit just before the state without it is remembered as handled."""

    def patch(self, name, subresource, content_type, payload):
        handled = payload.get('metadata', {}).get('annotations', {}).get(HANDLED)
        if handled and json.loads(handled)['spec']['f'] == 1:
            self.edit({'spec': {'f': 1}})
        return super().patch(name, subresource, content_type, payload)


def test_a_revert_to_what_others_have_seen_is_a_change_for_all():
    story = Story(api=RevertingApi())
    story.go((1, 1), (5, 2))
    assert story.done == [('one', 0, 1), ('two', 0, 2), ('one', 2, 1), ('two', 2, 1)]
    assert story.handled == [0, 1, 2, 1]


@pytest.mark.parametrize('restart', [[], [(4, 'restart')]], ids=['', 'restart'])
def test_a_revert_while_one_handler_waits_is_a_change_for_all(restart):
    story = Story()
    story.go((1, 1), *restart, (5, 0))
    assert story.done == [('one', 0, 1), ('one', 1, 0), ('two', 1, 0)]
    assert story.handled == [0, 1, 0]


@pytest.mark.parametrize('restart', [[], [(4, 'restart')]], ids=['', 'restart'])
def test_a_revert_while_none_has_finished_is_no_change(restart):
    story = Story(failing=['one', 'two'])
    story.go((1, 1), *restart, (5, 0))
    assert story.done == []
    assert story.handled == [0]


def test_an_object_is_resumed_once_if_the_response_to_its_closing_patch_is_lost():
    registry, calls = OperatorRegistry(), []
    api = Api()
    api.create(spec={'f': 0})
    api.faults.append('after')

    @kopf.on.resume('kopfexamples', registry=registry)
    async def fn(reason, **_):
        calls.append(reason)

    async def live():
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        await operator.stop()

    run_virtually(live())
    assert calls == ['create']
    assert not api.faults


# What is too large to be remembered.


def test_what_is_done_is_written_at_exit_also_if_an_event_handler_is_interrupted():
    def declare(registry):
        @kopf.on.event('kopfexamples', registry=registry)
        async def event(status, **_):
            await asyncio.sleep(1000 if status else 0)

        @kopf.on.create('kopfexamples', id='fn', registry=registry)
        async def fn(**_):
            pass

    async def run():
        api, operator = await accompany(declare)
        api.faults.append('before')  # what is done is not written, and so the object has to wait
        await asyncio.sleep(0.5)
        api.edit({'status': {'touched': True}})
        await asyncio.sleep(1)
        await operator.stop()
        return api.objects['obj']['metadata'].get('annotations') or {}

    assert run_virtually(run()) == {
        'kopf.zalando.org/last-handled-configuration': '{"spec":{}}\n'}


@pytest.mark.parametrize('fault', ['before', 'after', 'late'])
def test_a_closing_patch_without_a_response_is_sent_again_at_exit(fault):
    """If it was applied, outcomes written after it would count as those of the next state."""
    seen = []

    def declare(registry):
        @kopf.on.create('kopfexamples', id='fn', registry=registry)
        @kopf.on.update('kopfexamples', id='fn', registry=registry)
        async def fn(spec, **_):
            seen.append(spec['number'])
            await asyncio.sleep(2)

    async def run():
        api, first = await accompany(declare, spec={'number': 0})
        await asyncio.sleep(5)
        api.edit({'spec': {'number': 1}})
        await asyncio.sleep(1)
        first.watch_delay = 60
        api.edit({'spec': {'number': 2}})
        api.faults.append(fault)
        await asyncio.sleep(1.5)
        await first.stop()
        await succeed(api, declare, lasts=5)

    run_virtually(run())
    assert seen == [0, 1, 2]


def test_no_handler_is_called_without_the_finalizer_if_others_remove_it_meanwhile():
    seen = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def one(**_):
            await asyncio.sleep(2)

        @kopf.on.create('kopfexamples', registry=registry)
        async def two(meta, **_):
            seen.append(meta.get('finalizers'))

        @kopf.on.delete('kopfexamples', registry=registry)
        async def deleted(**_):
            pass

    async def run():
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        api.edit({'metadata': {'finalizers': None}})
        await operator.rest()
        await operator.stop()

    run_virtually(run())
    assert seen == [['kopf.zalando.org/KopfFinalizerMarker']]


@pytest.mark.parametrize('others', [None, ['other/finalizer']])
@pytest.mark.parametrize('annotations', [None, {'other': 'text'}])
@pytest.mark.parametrize('has_others_due', [True, False])
def test_the_finalizer_is_added_though_the_object_changes_more_often_than_a_request_takes(
        others, annotations, has_others_due):
    seen = []

    def declare(registry):
        if has_others_due:
            @kopf.on.create('kopfexamples', registry=registry)
            async def created(**_):
                pass

        @kopf.on.delete('kopfexamples', registry=registry)
        async def deleted(**_):
            pass

    async def run():
        api, operator = await accompany(
            declare, metadata={'finalizers': others, 'annotations': annotations})
        for number in range(100):
            await asyncio.sleep(api.latency / 3)
            api.edit({'spec': {'number': number}})
            seen.append(api.objects['obj']['metadata'].get('finalizers'))
        await operator.stop()
        return api.objects['obj']['metadata']

    meta = run_virtually(run())
    assert seen[20] == [*(others or []), 'kopf.zalando.org/KopfFinalizerMarker']
    assert HANDLED in meta['annotations']
    assert (meta['annotations'].get('other') == 'text') == (annotations is not None)


@pytest.mark.parametrize('latency', [0.01, 0.02, 0.03])
def test_the_finalizer_replaces_no_finalizers_of_others(latency):
    def declare(registry):
        @kopf.on.delete('kopfexamples', registry=registry)
        async def deleted(**_):
            pass

    async def run():
        api, operator = await accompany(declare)
        api.latency = 0.02
        await asyncio.sleep(latency)  # before the PATCH arrives, or after that
        present = api.objects['obj']['metadata'].get('finalizers') or []
        api.edit({'metadata': {'finalizers': [*present, 'other/finalizer']}})
        await operator.rest()
        await operator.stop()
        return api.objects['obj']['metadata']['finalizers']

    assert sorted(run_virtually(run())) == [
        'kopf.zalando.org/KopfFinalizerMarker', 'other/finalizer']


async def handle_as_of_the_beginning(api, declare):
    """Run another operator, whose first list shows the first state of the object."""
    registry = kopf.OperatorRegistry()
    declare(registry)
    operator = Operator(api, registry)
    operator.start(behind=len(api.history) - 1)
    await operator.rest()
    await operator.stop()


def test_a_finalizer_that_only_an_outdated_state_needs_is_removed_again():
    """The first list of the second operator comes from an API server that is behind."""
    calls = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def created(**_):
            calls.append('created')

        @kopf.on.delete('kopfexamples', labels={'on': 'yes'}, registry=registry)
        async def deleted(**_):
            pass

    async def run():
        api, first = await accompany(declare, metadata={'labels': {'on': 'yes'}})
        await first.rest()
        api.edit({'metadata': {'labels': {'on': 'no'}}})
        await first.rest()
        await first.stop()
        assert not api.objects['obj']['metadata'].get('finalizers')
        await handle_as_of_the_beginning(api, declare)
        return api.objects['obj']['metadata']

    meta = run_virtually(run())
    assert calls == ['created']
    assert not meta.get('finalizers')


def test_nothing_is_called_again_as_soon_as_it_is_known_that_others_have_handled_the_object():
    """The first list of the second operator comes from an API server that is behind."""
    calls = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def one(**_):
            calls.append('one')
            await asyncio.sleep(1)

        @kopf.on.create('kopfexamples', registry=registry)
        async def two(**_):
            calls.append('two')

    async def run():
        api, first = await accompany(declare)
        await first.rest()
        await first.stop()
        await handle_as_of_the_beginning(api, declare)
        return api.objects['obj']

    raw = run_virtually(run())
    assert calls == ['one', 'two', 'one']
    assert list(raw['metadata']['annotations']) == [
        'kopf.zalando.org/last-handled-configuration']


def test_objects_are_resumed_once_though_they_return_to_their_handled_state_meanwhile():
    calls = []

    def declare(registry):
        @kopf.on.update('kopfexamples', registry=registry)
        async def updated(old, new, **_):
            calls.append(('updated', old['spec']['n'], new['spec']['n']))

        @kopf.on.resume('kopfexamples', registry=registry)
        async def resumed(**_):
            await asyncio.sleep(2)
            calls.append('resumed')

    async def run():
        api, first = await accompany(declare, spec={'n': 0})
        await first.rest()
        await first.stop()
        calls.clear()
        api.edit({'spec': {'n': 1}})
        registry = kopf.OperatorRegistry()
        declare(registry)
        second = Operator(api, registry)
        second.start()
        await asyncio.sleep(1)
        api.edit({'spec': {'n': 0}})
        await second.rest()
        await second.stop()

    run_virtually(run())
    assert calls == [('updated', 0, 1), 'resumed', ('updated', 1, 0)]


class Retold:
    """An object that one operator has handled, and that another one sees as it was before."""

    def __init__(self, *, retried_after, has_timer=False):
        self.calls = []
        self.retried_after = retried_after
        self.has_timer = has_timer

    def declare(self, registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def one(**_):
            self.calls.append('one')
            await asyncio.sleep(2)

        @kopf.on.create('kopfexamples', registry=registry)
        async def two(**_):
            self.calls.append('two')

        @kopf.on.create('kopfexamples', registry=registry)
        async def three(retry, **_):
            self.calls.append('three')
            if not retry:
                raise kopf.TemporaryError("not yet", delay=self.retried_after)

        if self.has_timer:
            @kopf.timer('kopfexamples', interval=1, registry=registry)
            async def tick(patch, status, **_):
                patch.status['ticks'] = status.get('ticks', 0) + 1

    async def live(self, *, lasts, watch_delay, watch_step=None, shown=1):
        """
        Return what the second operator has called, and what it has written.

        Its list shows the object in the state number ``shown``; 0 is before the creation.
        """
        api, first = await accompany(self.declare)
        await asyncio.sleep(lasts)
        await first.stop()
        self.calls.clear()
        number = len(api.history)
        registry = kopf.OperatorRegistry()
        self.declare(registry)
        second = Operator(api, registry, watch_delay=watch_delay, watch_step=watch_step)
        second.start(behind=number - shown)
        await asyncio.sleep(lasts)
        await second.stop()
        return self.calls, [raw for _, raw in api.history[number:]]


def test_nothing_is_written_over_what_the_previous_process_has_written_since(caplog):
    caplog.set_level(logging.INFO)
    story = Retold(retried_after=1)
    calls, written = run_virtually(story.live(lasts=20, watch_delay=60))
    assert calls == ['one', 'two', 'three']
    assert not written
    assert "Another operator has handled the object meanwhile" in caplog.text


def test_states_older_than_the_one_that_a_refused_patch_has_met_are_ignored():
    story = Retold(retried_after=1)
    calls, written = run_virtually(story.live(lasts=60, watch_delay=10, watch_step=1))
    assert calls == ['one', 'two', 'three']
    assert not written


def test_no_handler_is_called_again_as_soon_as_it_is_known_that_it_has_finished():
    story = Retold(retried_after=1000)
    calls, written = run_virtually(story.live(lasts=20, watch_delay=1))
    assert calls == ['one']
    assert not written


def test_responses_to_timers_show_that_the_previous_process_has_finished_handlers():
    story = Retold(retried_after=1000, has_timer=True)
    calls, _ = run_virtually(story.live(lasts=20, watch_delay=60, shown=2))  # with the finalizer
    assert calls == ['one']


def test_of_states_that_come_at_once_only_the_newest_one_counts():
    story = Retold(retried_after=1000)
    calls, written = run_virtually(story.live(lasts=20, watch_delay=0.1, shown=0))
    assert not calls
    assert not written


@pytest.mark.parametrize('is_released', [False, True], ids=['handlers', 'finalizer'])
def test_each_process_resumes_an_object_that_it_sees_as_it_was_before(is_released):
    """Its first write, which meets newer records, is of the handlers, or of the finalizer."""
    calls = []

    def declare(registry, *, has_deletion=is_released):
        @kopf.on.resume('kopfexamples', registry=registry)
        async def resumed(**_):
            calls.append('resumed')

        @kopf.on.create('kopfexamples', registry=registry)
        async def created(**_):
            raise kopf.TemporaryError("not yet", delay=5)

        if has_deletion:
            @kopf.on.delete('kopfexamples', registry=registry)
            async def deleted(**_):
                pass

    async def run():
        api, first = await accompany(declare)
        await asyncio.sleep(20)
        await first.stop()
        registry = kopf.OperatorRegistry()
        declare(registry, has_deletion=False)
        second = Operator(api, registry, watch_delay=1)
        second.start(behind=1)
        await asyncio.sleep(20)
        await second.stop()

    run_virtually(run())
    assert calls == ['resumed', 'resumed']


def test_nobody_is_called_again_for_the_same_state_though_others_have_seen_an_older_one():
    """The first list of the second operator comes from an API server that is behind."""
    calls = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def one(spec, **_):
            calls.append(('one', spec['n']))
            await asyncio.sleep(2)

        @kopf.on.create('kopfexamples', registry=registry)
        async def two(retry, spec, **_):
            calls.append(('two', spec['n']))
            if not retry:
                raise kopf.TemporaryError("not yet", delay=3)

        @kopf.on.create('kopfexamples', registry=registry)
        async def three(**_):
            raise kopf.TemporaryError("not yet", delay=1000)

    async def run():
        api, first = await accompany(declare, spec={'n': 0})
        await asyncio.sleep(1)
        api.edit({'spec': {'n': 1}})
        await asyncio.sleep(3)
        number = len(api.history)
        await asyncio.sleep(10)
        await first.stop()
        assert calls == [('one', 0), ('two', 1), ('two', 1)]
        calls.clear()
        registry = kopf.OperatorRegistry()
        declare(registry)
        second = Operator(api, registry, watch_delay=60)
        second.start(behind=len(api.history) - number)
        await asyncio.sleep(20)
        await second.stop()

    run_virtually(run())
    assert calls == [('two', 1)]


@pytest.mark.parametrize('delay', [1, 1000], ids=['closed', 'open'])
def test_who_was_called_for_an_outdated_state_sees_the_newest_one(delay):
    """Also if the previous process has called this handler for the newest state, at last."""
    seen = []

    def declare(registry):
        @kopf.on.create('kopfexamples', id='one', registry=registry)
        @kopf.on.update('kopfexamples', id='one', registry=registry)
        async def one(spec, **_):
            seen.append(spec['number'])

        @kopf.on.update('kopfexamples', id='two', registry=registry)
        async def two(retry, **_):
            if not retry:
                raise kopf.TemporaryError("not yet", delay=delay)

    async def run():
        api, first = await accompany(declare, spec={'number': 0})
        await asyncio.sleep(5)
        api.edit({'spec': {'number': 1}})
        await asyncio.sleep(5)
        await first.stop()
        assert seen == [0, 1]
        registry = kopf.OperatorRegistry()
        declare(registry)
        second = Operator(api, registry, watch_delay=60)
        second.start(behind=len(api.history) - 1)
        await asyncio.sleep(20)
        await second.stop()

    run_virtually(run())
    assert seen[2:] == [0, 1]


@pytest.mark.parametrize('moment', ['calling', 'throttled'])
@pytest.mark.parametrize('delay', [1, 1000], ids=['closed', 'open'])
def test_who_was_called_for_an_outdated_state_before_an_exit_sees_the_newest_one(moment, delay):
    """It is noted on the object, for the next process."""
    seen = []

    def declare(registry):
        @kopf.on.create('kopfexamples', id='one', registry=registry)
        @kopf.on.update('kopfexamples', id='one', registry=registry)
        async def one(spec, **_):
            seen.append(spec['number'])
            await asyncio.sleep(2 if moment == 'calling' else 0)

        @kopf.on.update('kopfexamples', id='two', registry=registry)
        async def two(retry, **_):
            if not retry:
                raise kopf.TemporaryError("not yet", delay=delay)

    class RefusingApi(Api):
        until = 0

        def patch(self, *args):
            if asyncio.get_running_loop().time() < self.until:
                raise errors.APIServerError("no", status=500)
            return super().patch(*args)

    async def run():
        api = RefusingApi()
        api.create(spec={'number': 0})
        for number, behind, lasts in [(1, 0, 5), (2, 1, 1), (3, 0, 20)]:
            registry = kopf.OperatorRegistry()
            declare(registry)
            operator = Operator(api, registry, watch_delay=60 if behind else 0.1)
            if behind and moment == 'throttled':
                api.until = asyncio.get_running_loop().time() + lasts
            operator.start(behind=(len(api.history) - 1) * behind)
            await asyncio.sleep(lasts)
            if number == 1:
                api.edit({'spec': {'number': 1}})
                await asyncio.sleep(5)
            await operator.stop()

    run_virtually(run())
    assert seen == [0, 1, 0, 1]


def test_an_object_that_others_edit_meanwhile_is_written_to_with_the_second_patch(monkeypatch):
    """The first PATCH of a process is for the version that the process has seen."""
    def declare(registry):
        @kopf.on.create('kopfexamples', id='fn', registry=registry)
        async def fn(**_):
            return 'done'

    async def run():
        api, operator = await accompany(declare)
        operator.watch_delay = 5
        plain_patch = api.patch

        def patch(*args):
            patches.append(args)
            return plain_patch(*args)

        monkeypatch.setattr(api, 'patch', patch)
        api.edit({'status': {'of': 'others'}})
        await operator.rest()
        await operator.stop()
        return api.objects['obj']

    patches = []
    raw = run_virtually(run())
    assert len(patches) == 2
    assert raw['status'] == {'fn': 'done', 'of': 'others'}


def test_handlers_of_too_large_objects_are_repeated_after_a_restart_and_it_is_said(caplog):
    story = Story(other=LARGE)
    story.go((1, 1), (5, 'restart'))
    assert story.done == [('one', 0, 1), ('one', 0, 1), ('two', 0, 1)]
    assert story.handled == [0, 1]
    assert "these are called again: one/spec.f." in caplog.text
    assert not any(CYCLE in raw['metadata'].get('annotations', {}) for _, raw in story.api.history)


def test_handlers_of_too_large_objects_are_not_repeated_without_a_restart():
    story = Story(other=LARGE)
    story.go((1, 1))
    assert story.done == [('one', 0, 1), ('two', 0, 1)]


@pytest.mark.parametrize('fields', [{'other': LARGE}, {}], ids=['always large', 'large later'])
def test_an_edit_that_only_some_handlers_of_a_large_object_have_seen_is_for_all(fields, caplog):
    new = 2 if fields else LARGE
    story = Story(**fields)
    story.go((1, 1), (5, new))
    assert story.done[:2] == [('one', 0, 1), ('two', 0, new)]
    assert story.done[2:] == [('one', 0, new), ('two', 0, new)]
    assert story.handled == [0, new]
    assert "all of them are called again" in caplog.text


def test_the_return_of_a_large_object_is_seen_by_those_who_have_seen_the_edit(caplog):
    story = Story(other=LARGE)
    story.go((1, 1), (5, 0))
    assert story.done == [('one', 0, 1), ('one', 1, 0), ('two', 1, 0)]
    assert story.handled == [0, 1, 0]
    assert "if the operator restarts, and that state comes again" in caplog.text


def test_handlers_of_a_large_object_see_the_state_that_comes_again():
    story = Story(other=LARGE)
    story.go((1, 1), (5, 0), (8, 1))
    assert story.done == [
        ('one', 0, 1), ('one', 1, 0), ('one', 0, 1), ('two', 0, 1)]
    assert story.handled == [0, 1, 0, 1]


# What handlers are not there any more.


LONG_PARENT = 'parent-with-a-name-that-is-too-long-for-the-name-of-an-annotation'


def declare_creators(*ids, decorator=kopf.on.create):
    registry = OperatorRegistry()
    for id in ids:
        @decorator('kopfexamples', id=id, registry=registry)
        async def fn(name, retry, id=id, **_):
            if id == 'waiting':
                raise kopf.TemporaryError("not yet", delay=30)
            if id.startswith('parent'):
                @kopf.subhandler(id='sub')
                async def sub(**_):
                    raise kopf.TemporaryError("not yet", delay=30)
    return registry


@pytest.mark.parametrize(('before', 'after', 'named'), [
    (['old', 'waiting'], ['new', 'waiting'], ['old']),
    (['old', 'older', 'waiting'], ['new', 'waiting'], ['old', 'older']),
    (['old', 'waiting'], ['old', 'waiting', 'new'], []),
    (['old', 'waiting'], ['waiting'], []),
    (['parent', 'waiting'], ['parent', 'waiting', 'new'], []),
    ([LONG_PARENT, 'waiting'], [LONG_PARENT, 'waiting', 'new'], []),
    (['parent', 'waiting'], ['new', 'waiting'], ['parent']),
    (['waiting'], ['waiting', 'new'], []),
])
def test_handlers_that_could_have_been_renamed_in_a_cycle_are_told(before, after, named, caplog):
    async def run():
        api = Api()
        for ids in (before, after):
            operator = Operator(api, declare_creators(*ids))
            operator.start()
            if ids is before:
                api.create(spec={})
            await asyncio.sleep(5)
            await operator.stop()

    run_virtually(run())
    warnings = [record.getMessage() for record in caplog.records
                if record.levelname == 'WARNING']
    assert len(warnings) == (1 if named else 0)
    for warning in warnings:
        names = ', '.join(f'kopf.zalando.org/{id}' for id in named)
        assert warning.startswith(
            f"Handler 'new' is called, though the object has the progress of handlers that are "
            f"not there: {names}. ")


def test_progress_of_other_causes_says_nothing_about_renamed_handlers(caplog):
    async def run():
        api = Api()
        operator = Operator(api, declare_creators('old', 'waiting'))
        operator.start()
        api.create(spec={})
        await asyncio.sleep(5)
        await operator.stop()
        api.edit({'metadata': {'annotations': {HANDLED: '{}'}}})
        operator = Operator(api, declare_creators('new', decorator=kopf.on.update))
        operator.start()
        await asyncio.sleep(5)
        await operator.stop()

    run_virtually(run())
    assert not [record for record in caplog.records if record.levelname == 'WARNING']
