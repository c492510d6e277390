"""
Handlers that change their own object, and are called for that: not in a hot loop. In virtual time.
"""
import pytest

import kopf
from kopf._cogs.structs import patches
from tests._core.reactor.worlds import live, now

WARNING = "10 times in a row, the handlers were called only because "


def increment(body):
    body['spec']['n'] += 1


def make_declare(times, *, by_function=False, until=float('inf')):
    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', id='other', registry=registry)
        async def other(**_):
            pass

        @kopf.on.update('kopfexamples', id='hot', field='spec', registry=registry)
        async def hot(spec, patch, **_):
            times.append(now())
            if len(times) < until and by_function:
                patch.fns.append(increment)
            elif len(times) < until:
                patch.spec['n'] = spec['n'] + 1

    return declare


def touch(api):
    api.edit({'spec': {'touched': now()}})


@pytest.mark.parametrize('by_function', [False, True])
def test_after_ten_cycles_in_a_row_the_handler_is_named_and_slowed_down(by_function, caplog):
    times = []
    live(make_declare(times, by_function=by_function), (1, touch), lasts=600, spec={'n': 0})
    assert all(time < 2 for time in times[:10])
    pauses = [round(b - a) for a, b in zip(times[9:], times[10:])]
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [text for text in caplog.messages if text.startswith(WARNING)] == [
        f"{WARNING}'hot/spec' had changed spec.n. From now on, such calls are delayed by up to 60 "
        f"seconds. Change the object only if it is not as it should be, or let the handlers select "
        f"other fields by field=."]


def stamp_each_write(api):
    api.admit = lambda raw: patches.merge(
        raw, {'spec': {'writes': raw['spec'].get('writes', 0) + 1}})


def test_handlers_that_a_webhook_calls_by_each_own_write_are_slowed_down(caplog):
    times = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', registry=registry)
        async def fn(**_):
            times.append(now())

    live(declare, (1, stamp_each_write), (2, touch), (650, touch), lasts=655)
    assert sum(2 <= time < 3 for time in times) == 10
    pauses = [round(b - a) for a, b in zip(times[10:], times[11:])]
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert sum(650 <= time < 651 for time in times) == 10
    assert next(text for text in caplog.messages if text.startswith(WARNING)).startswith(
        f"{WARNING}an admission webhook had changed spec.writes. From now on, such calls are ")


def test_handlers_are_not_called_for_what_json_makes_of_their_patches_and_results():
    seen = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', registry=registry)
        async def fn(**_):
            seen.append('parent')
            await kopf.execute(fns={'a': child, 'b': child})
            return {443: 'https'}

        async def child(patch, **_):
            seen.append('child')
            patch.spec['ports'] = {80: ('http', 'tcp')}

        @kopf.on.field('kopfexamples', field='status', registry=registry)
        async def status_changed(**_):
            pass

    live(declare, lasts=100, spec={'n': 0})
    assert seen == ['parent', 'child', 'child']


def test_a_change_by_others_is_handled_at_once_and_begins_anew():
    times = []
    live(make_declare(times), (1, touch), (100, touch), lasts=110, spec={'n': 0})
    assert sum(time < 2 for time in times) == 10
    assert sum(100 <= time < 101 for time in times) == 10


def test_handlers_that_come_to_an_end_are_not_slowed_down(caplog):
    times = []
    live(make_declare(times, until=9), (1, touch), (2, touch), (3, touch), lasts=60, spec={'n': 0})
    assert all(time < 4 for time in times)
    assert not any(text.startswith(WARNING) for text in caplog.messages)


def test_a_deletion_is_not_slowed_down():
    times, deleted = [], []

    def declare(registry):
        make_declare(times)(registry)

        @kopf.on.delete('kopfexamples', registry=registry)
        async def delete(**_):
            deleted.append(now())

    live(declare, (1, touch), (100, lambda api: api.delete()), lasts=110, spec={'n': 0})
    assert len(deleted) == 1 and deleted[0] < 101


def test_a_change_that_is_put_off_is_not_lost():
    times = []
    api = live(make_declare(times, until=15), (1, touch), lasts=600, spec={'n': 0})
    assert len(times) == 15
    assert api.objects['obj']['spec']['n'] == 14


@pytest.mark.parametrize('patched, expected', [
    (5, []),
    (30, ["10 times in a row, the event handlers were called only because they had patched the "
          "object. They are called again as fast as the API server allows it. Patch the object "
          "only if it is not as it should be."]),
])
def test_event_handlers_that_call_themselves_are_told_once(patched, expected, caplog):
    def declare(registry):
        @kopf.on.event('kopfexamples', registry=registry)
        async def count(spec, patch, **_):
            if spec['n'] < patched:
                patch.spec['n'] = spec['n'] + 1

    api = live(declare, lasts=60, spec={'n': 0})
    assert api.objects['obj']['spec']['n'] == patched
    assert [text for text in caplog.messages if "in a row" in text] == expected


def test_event_handlers_that_others_call_are_not_told(caplog):
    def declare(registry):
        @kopf.on.event('kopfexamples', registry=registry)
        async def copy(spec, patch, **_):
            patch.spec['copied'] = spec.get('touched')

    live(declare, *((number, touch) for number in range(1, 31)), lasts=60, spec={})
    assert not any("in a row" in text for text in caplog.messages)
