"""
Errors of the framework itself: the object waits, the others do not, and nothing is lost.
"""
import asyncio

import pytest

import kopf
from tests._core.reactor.worlds import Api, Operator, run_virtually


class BrokenStorage(kopf.AnnotationsDiffBaseStorage):
    """The last-handled states of some objects cannot be read for some time."""

    def __init__(self):
        super().__init__()
        self.broken = {'bad'}
        self.times = []

    def fetch(self, *, body):
        if body.metadata.name in self.broken:
            time = round(asyncio.get_running_loop().time(), 1)
            if time not in self.times:
                self.times.append(time)
            raise RuntimeError("boo")
        return super().fetch(body=body)


async def live(*moves, delays, seen, names=('bad',)):
    """Run an operator over objects; the moves are (time, function of the API and the storage)."""
    api, storage, registry = Api(), BrokenStorage(), kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def fn(name, spec, **_):
        seen.append((name, spec['field'], round(asyncio.get_running_loop().time())))

    for name in names:
        api.create(name, spec={'field': 0})
    operator = Operator(api, registry, diffbase_storage=storage)
    operator.settings.queueing.error_delays = delays
    operator.start()
    start = asyncio.get_running_loop().time()
    for time, move in moves:
        await asyncio.sleep(start + time - asyncio.get_running_loop().time())
        move(api, storage)
    await operator.stop()
    return storage.times


def edit(value):
    return lambda api, _: api.edit({'spec': {'field': value}}, 'bad')


def mend(_, storage):
    storage.broken.clear()


def spoil(_, storage):
    storage.broken.add('bad')


def stop(*_):
    pass


def test_an_object_backs_off_by_the_delays_and_the_last_one_repeats():
    times = run_virtually(live((125, stop), delays=[10, 20, 30], seen=[]))
    assert [round(time) for time in times] == [0, 10, 30, 60, 90, 120]


def test_other_objects_do_not_wait():
    seen = []
    run_virtually(live((5, stop), delays=[10], seen=seen, names=['good', 'bad', 'better']))
    assert seen == [('good', 0, 0), ('better', 0, 0)]


def test_only_the_latest_state_is_handled_afterwards():
    seen = []
    moves = [(1, edit(1)), (2, edit(2)), (3, mend), (4, edit(3)), (30, stop)]
    run_virtually(live(*moves, delays=[10], seen=seen))
    assert seen == [('bad', 3, 10)]


def test_changes_do_not_make_the_object_wait_less():
    moves = [(time, edit(time)) for time in range(1, 20)]
    times = run_virtually(live(*moves, (29, stop), delays=[10], seen=[]))
    assert [round(time) for time in times] == [0, 10, 20]


def test_a_success_begins_the_delays_anew():
    seen = []
    moves = [(5, mend), (25, spoil), (26, edit(1)), (60, stop)]
    times = run_virtually(live(*moves, delays=[10, 20, 30], seen=seen))
    assert seen == [('bad', 0, 10)]
    assert [round(time) for time in times] == [0, 26, 36, 56]


def test_delays_are_not_kept_over_restarts():
    times = [run_virtually(live((15, stop), delays=[10, 1000], seen=[])) for _ in range(2)]
    assert [[round(time) for time in each] for each in times] == [[0, 10], [0, 10]]


def test_without_delays_the_object_waits_for_its_next_change():
    seen = []
    moves = [(10, mend), (100, edit(1)), (110, stop)]
    times = run_virtually(live(*moves, delays=[], seen=seen))
    assert [round(time) for time in times] == [0]
    assert seen == [('bad', 1, 100)]


def test_errors_of_handlers_are_not_throttled():
    times = []

    async def main():
        api, registry = Api(), kopf.OperatorRegistry()

        @kopf.on.create('kopfexamples', registry=registry, backoff=3)
        async def fn(retry, **_):
            times.append(round(asyncio.get_running_loop().time()))
            if retry < 3:
                raise Exception("boo")

        api.create(spec={})
        operator = Operator(api, registry)
        operator.settings.queueing.error_delays = [100]
        operator.start()
        await operator.rest()
        await operator.stop()

    run_virtually(main())
    assert times == [0, 3, 6, 9]


async def watch(registry, *moves, faults):
    """Let an event handler patch an object; the moves are (time, function of API, operator)."""
    calls = []

    @kopf.on.event('kopfexamples', registry=registry)
    async def fn(spec, patch, **_):
        calls.append(spec['field'])
        patch.status[f'seen{spec["field"]}'] = 'yes'

    api = Api()
    api.create(spec={'field': 0})
    api.faults += faults
    operator = Operator(api, registry)
    operator.settings.queueing.error_delays = [10]
    operator.start()
    start = asyncio.get_running_loop().time()
    for time, move in moves:
        await asyncio.sleep(start + time - asyncio.get_running_loop().time())
        result = move(api, operator)
        if result is not None:
            await result
    await operator.rest()
    await operator.stop()
    return api.objects['obj'].get('status'), calls


def change(api, _):
    api.edit({'spec': {'field': 1}})


@pytest.mark.parametrize('fault', ['before', 'after', 'absent'])
def test_patches_of_event_handlers_are_sent_again_without_another_call(fault):
    status, calls = run_virtually(watch(kopf.OperatorRegistry(), faults=[fault]))
    assert status == {'seen0': 'yes'}
    assert calls == [0, 0]  # the second call is for the patch itself


def test_patches_of_event_handlers_are_sent_with_those_for_newer_events():
    registry = kopf.OperatorRegistry()
    status, calls = run_virtually(watch(registry, (5, change), faults=['before']))
    assert status == {'seen0': 'yes', 'seen1': 'yes'}
    assert calls == [0, 1, 1]


def test_patches_of_event_handlers_do_not_hold_up_other_handlers():
    registry, times = kopf.OperatorRegistry(), []

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(**_):
        times.append(round(asyncio.get_running_loop().time()))

    run_virtually(watch(registry, faults=['before', 'none', 'before', 'before']))
    assert times == [10]


def test_patches_of_event_handlers_are_not_sent_after_a_pause():
    def freeze(_, operator):
        return operator.freeze()

    def thaw(_, operator):
        operator.thaw()

    status, calls = run_virtually(watch(
        kopf.OperatorRegistry(), (2, freeze), (3, change), (4, thaw), faults=['before']))
    assert status == {'seen1': 'yes'}
    assert calls == [0, 1, 1]


@pytest.mark.parametrize('wanted', [True, False], ids=['added', 'removed'])
def test_an_object_whose_finalizer_is_undone_by_a_webhook_is_throttled(wanted, caplog):
    api, registry = Api(), kopf.OperatorRegistry()
    finalizer = 'kopf.zalando.org/KopfFinalizerMarker'

    def undo(raw):
        kept = [] if wanted else [finalizer]
        return {**raw, 'metadata': {**raw['metadata'], 'finalizers': kept}}

    @kopf.on.update('kopfexamples', registry=registry)
    async def fn(**_):
        pass

    if wanted:
        @kopf.on.delete('kopfexamples', registry=registry)
        async def release(**_):
            pass

    async def run():
        api.create('obj', spec={}, metadata={'finalizers': [] if wanted else [finalizer]})
        api.admit = undo
        operator = Operator(api, registry)
        operator.settings.queueing.error_delays = [10, 20]
        operator.start()
        await asyncio.sleep(55)
        undone = len(api.requests)
        api.admit = lambda raw: raw
        await asyncio.sleep(30)
        await operator.stop()
        return undone

    assert run_virtually(run()) == 4  # at 0, 10, 30, 50 seconds
    told = [text for text in caplog.messages if text.startswith("Throttling for ")]
    assert len(told) == 4 and all(
        f"The change of the finalizer {finalizer} was accepted, but is undone" in text
        for text in told)
    assert (finalizer in api.objects["obj"]["metadata"].get("finalizers", [])) is wanted
